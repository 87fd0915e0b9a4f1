//! What is in a tree: its listing and the digest of that.
//!
//! A tree that was listed by other means (over ssh) gets the same digest from a [`Listing`].

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::corpus::digest_file;
use crate::quoting::shown;

/// A line of a listing: `f DIGEST PATH` or `d - PATH`, and a line feed. `head` is what is before
/// the path.
///
/// A backslash in the path is doubled and a line feed is written as `\n`, so that no name can
/// pass for two lines.
pub(super) fn line(head: &str, path: &[u8]) -> Vec<u8> {
    let mut line = head.as_bytes().to_vec();
    for &byte in path {
        match byte {
            b'\\' => line.extend(br"\\"),
            b'\n' => line.extend(br"\n"),
            byte => line.push(byte),
        }
    }
    line.push(b'\n');
    line
}

/// A tree's files and directories. Paths are relative to the tree, with no `./`; the tree
/// itself is not among them.
#[derive(Debug, Default)]
pub struct Listing {
    lines: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Listing {
    /// Adds a file, whose contents have that SHA-256 in hexadecimal.
    pub fn file(&mut self, path: &[u8], digest: &str) {
        self.lines.insert(path.to_vec(), line(&format!("f {digest} "), path));
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &[u8]) {
        self.lines.insert(path.to_vec(), line("d - ", path));
    }

    /// SHA-256 in hexadecimal of all lines.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for line in self.lines.values() {
            hash.update(line);
        }
        hex::encode(hash.finalize())
    }
}

/// How much there is in a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Regular ones.
    pub files: u64,
    /// Without the tree itself.
    pub directories: u64,
    /// In all regular files.
    pub bytes: u64,
    /// Of the listing.
    pub digest: String,
}

/// Counts a tree and makes its digest.
///
/// # Errors
/// What the file system says, with the path; a link or special file is an error.
pub fn survey(dir: &Path) -> io::Result<Tally> {
    let (mut listing, mut tally) = (Listing::default(), Tally::default());
    let mut directories = vec![(dir.to_owned(), Vec::new())];
    while let Some((directory, name)) = directories.pop() {
        for entry in fs::read_dir(&directory).map_err(|error| at(&directory, &error))? {
            let file = entry.map_err(|error| at(&directory, &error))?.path();
            let mut path: Vec<u8> = name.clone();
            path.extend(file.file_name().unwrap_or_default().as_bytes());
            let metadata = fs::symlink_metadata(&file).map_err(|error| at(&file, &error))?;
            if metadata.is_dir() {
                tally.directories += 1;
                listing.directory(&path);
                path.push(b'/');
                directories.push((file, path));
            } else if metadata.is_file() {
                let digest = digest_file(&file).map_err(|error| at(&file, &error))?;
                tally.files += 1;
                tally.bytes += metadata.len();
                listing.file(&path, &digest);
            } else {
                return Err(at(&file, &io::Error::other("neither a file nor a directory")));
            }
        }
    }
    tally.digest = listing.digest();
    Ok(tally)
}

/// The regular files below a directory, in the order of their paths.
///
/// # Errors
/// Those of reading directories.
pub fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut directories = vec![dir.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Bytes of the regular files below a directory, as far as they can be read.
pub fn bytes_below(dir: &Path) -> u64 {
    let bytes = |path: PathBuf| fs::metadata(path).map_or(0, |found| found.len());
    files(dir).unwrap_or_default().into_iter().map(bytes).sum()
}

/// An error with the path that it is of.
pub(crate) fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", shown(path)))
}
