//! What is in a tree: its listing and the digest of that.
//!
//! A tree that was listed by other means (over ssh) gets the same digest from a [`Listing`].

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::corpus::{digest_file, hex};
use crate::quoting::shown;

/// What a line is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The digest is that of its contents.
    File,
    /// The digest is that of its target's bytes.
    Link,
    /// It has no digest.
    Directory,
}

/// A line of a listing: `f DIGEST PATH`, `l DIGEST PATH` or `d - PATH`, and a line feed.
///
/// A backslash in the path is doubled and a line feed is written as `\n`, so that no name can
/// pass for two lines.
pub fn line(kind: Kind, digest: &str, path: &[u8]) -> Vec<u8> {
    let mut line = match kind {
        Kind::File => format!("f {digest} "),
        Kind::Link => format!("l {digest} "),
        Kind::Directory => "d - ".to_owned(),
    }
    .into_bytes();
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

/// A tree's files, links and directories. Paths are relative to the tree, with no `./`; the tree
/// itself is not among them.
#[derive(Debug, Default)]
pub struct Listing {
    lines: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Listing {
    /// Adds a file, whose contents have that SHA-256 in hexadecimal.
    pub fn file(&mut self, path: &[u8], digest: &str) {
        self.lines.insert(path.to_vec(), line(Kind::File, digest, path));
    }

    /// Adds a link, which says `target`.
    pub fn link(&mut self, path: &[u8], target: &[u8]) {
        self.lines.insert(path.to_vec(), line(Kind::Link, &hex(&Sha256::digest(target)), path));
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &[u8]) {
        self.lines.insert(path.to_vec(), line(Kind::Directory, "", path));
    }

    /// SHA-256 in hexadecimal of all lines.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for line in self.lines.values() {
            hash.update(line);
        }
        hex(&hash.finalize())
    }
}

/// What is made of a tree's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// They stay links.
    Kept,
    /// In their places is what they lead to.
    Followed,
    /// They are missing.
    LeftOut,
}

/// How much there is in a tree, links as `Links` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Regular ones.
    pub files: u64,
    /// Symbolic ones.
    pub links: u64,
    /// Without the tree itself.
    pub directories: u64,
    /// In all regular files.
    pub bytes: u64,
    /// Of the listing.
    pub digest: String,
}

/// The digest of a tree as it is.
///
/// # Errors
/// What the file system says, with the path; a special file is an error.
pub fn digest(dir: &Path) -> io::Result<String> {
    Ok(survey(dir, Links::Kept)?.digest)
}

/// Counts a tree and makes its digest.
///
/// # Errors
/// As [`digest`]; a link to be followed that leads nowhere or round in a circle.
pub fn survey(dir: &Path, links: Links) -> io::Result<Tally> {
    let mut walk = Walk { links, listing: Listing::default(), tally: Tally::default() };
    let mut above = vec![identity(dir)?];
    walk.directory(dir, b"", &mut above)?;
    walk.tally.digest = walk.listing.digest();
    Ok(walk.tally)
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

struct Walk {
    links: Links,
    listing: Listing,
    tally: Tally,
}

impl Walk {
    /// `above` are the directories from the tree to this one, so that circles are found.
    fn directory(
        &mut self,
        dir: &Path,
        name: &[u8],
        above: &mut Vec<(u64, u64)>,
    ) -> io::Result<()> {
        for entry in fs::read_dir(dir).map_err(|error| at(dir, &error))? {
            let entry = entry.map_err(|error| at(dir, &error))?;
            let mut path = name.to_vec();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(entry.file_name().as_bytes());
            self.entry(&entry.path(), &path, above)?;
        }
        Ok(())
    }

    fn entry(&mut self, file: &Path, path: &[u8], above: &mut Vec<(u64, u64)>) -> io::Result<()> {
        let mut metadata = fs::symlink_metadata(file).map_err(|error| at(file, &error))?;
        if metadata.is_symlink() {
            match self.links {
                Links::Kept => {
                    let target = fs::read_link(file).map_err(|error| at(file, &error))?;
                    self.tally.links += 1;
                    self.listing.link(path, target.as_os_str().as_bytes());
                    return Ok(());
                }
                Links::LeftOut => return Ok(()),
                Links::Followed => {
                    metadata = fs::metadata(file).map_err(|error| at(file, &error))?;
                }
            }
        }
        if metadata.is_dir() {
            let identity = (metadata.dev(), metadata.ino());
            if above.contains(&identity) {
                return Err(at(file, &io::Error::other("leads round in a circle")));
            }
            self.tally.directories += 1;
            self.listing.directory(path);
            above.push(identity);
            self.directory(file, path, above)?;
            above.pop();
        } else if metadata.is_file() {
            let digest = digest_file(file).map_err(|error| at(file, &error))?;
            self.tally.files += 1;
            self.tally.bytes += metadata.len();
            self.listing.file(path, &digest);
        } else {
            return Err(at(file, &io::Error::other("neither a file, nor a directory, nor a link")));
        }
        Ok(())
    }
}

fn identity(dir: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(dir).map_err(|error| at(dir, &error))?;
    Ok((metadata.dev(), metadata.ino()))
}

/// An error with the path that it is of.
pub(crate) fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", shown(path)))
}
