//! The data of the workloads: made once a run from a seed, with their digests.
//!
//! Files are [`Content`]: what has to be at any place of them is known without reading the
//! original. Digests are SHA-256, since `sha256sum` makes them on any host.

pub mod content;
pub mod tree;

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::failure::{Failure, Result};
use crate::quoting::shown;
use content::Content;

/// Makes the file `name` in `corpus`, of the content that belongs to `seed`, if it is not there in
/// that length; gives its path. Directories on the way are made.
///
/// # Errors
/// What creating and writing can fail with.
pub fn file(corpus: &Path, name: &str, bytes: u64, seed: u64) -> Result<PathBuf> {
    let path = corpus.join(name);
    let failed =
        |error: io::Error| Failure::failed(format!("cannot make {}: {error}", shown(&path)));
    if fs::metadata(&path).is_ok_and(|found| found.len() == bytes) {
        return Ok(path);
    }
    let make = || {
        fs::create_dir_all(path.parent().unwrap_or(corpus))?;
        let mut file = File::create(&path)?;
        Content::new(seed).write_to(&mut file, bytes)?;
        file.set_modified(last_changed())
    };
    make().map_err(failed)?;
    Ok(path)
}

/// The time of change of the data of all workloads: long ago, as that of most files that are read.
/// A cache cannot trust the attributes of a file that was changed a moment ago.
pub fn last_changed() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

/// SHA-256 in hexadecimal of a file, or of the listing of a tree (see [`tree::survey`]).
///
/// # Errors
/// Those of opening and reading.
pub fn digest(path: &Path) -> io::Result<String> {
    match fs::metadata(path).map_err(|error| tree::at(path, &error))?.is_dir() {
        true => Ok(tree::survey(path)?.digest),
        false => digest_file(path),
    }
}

/// SHA-256 of a file in hexadecimal, as `sha256sum` prints it.
///
/// # Errors
/// Those of opening and reading.
pub fn digest_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; content::PIECE_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex::encode(hasher.finalize())),
            len => hasher.update(&buffer[..len]),
        }
    }
}

/// SHA-256 of what [`file()`] makes, without a file.
pub fn digest_content(seed: u64, bytes: u64) -> String {
    let content = Content::new(seed);
    digest_blocks(bytes, |block, buffer| content.fill(block, buffer))
}

/// SHA-256 of a file of which `fill` makes the blocks from a number on.
pub fn digest_blocks(bytes: u64, fill: impl Fn(u64, &mut [u8])) -> String {
    let mut hasher = Sha256::new();
    let Ok(()) = content::pieces(bytes, |block, buffer| {
        fill(block, buffer);
        hasher.update(buffer);
        Ok::<_, Infallible>(())
    });
    hex::encode(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_sha256sum() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        fs::write(&path, "abc").unwrap();
        // The example of FIPS 180-2, B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest_file(&path).unwrap(), expected);
    }

    #[test]
    fn a_file_has_the_digest_of_its_content_and_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        for bytes in [0, 1, 4096, (content::PIECE_BYTES as u64) * 2 + 5] {
            let path = file(dir.path(), &format!("deep/{bytes}"), bytes, 3).unwrap();
            let made = fs::metadata(&path).unwrap();
            assert_eq!(made.len(), bytes);
            assert_eq!(digest_file(&path).unwrap(), digest_content(3, bytes));
            let again = file(dir.path(), &format!("deep/{bytes}"), bytes, 3).unwrap();
            assert_eq!(again, path);
            assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), made.modified().unwrap());
        }
        assert_ne!(digest_content(3, 4096), digest_content(4, 4096));
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("plain"), "").unwrap();
        let failure = file(dir.path(), "plain/below", 1, 1).unwrap_err();
        assert!(failure.to_string().contains("plain/below"), "{failure}");
    }
}
