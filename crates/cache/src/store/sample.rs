//! Verifies a random sample of a store, read only: nothing is created, removed, or noted as used.
//! It may run beside processes that use the store.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use super::layout::VERSION;
use super::scan::directory_of;
use crate::digest::{Digest, unhex};
use crate::dir_fd::DirFd;
use crate::index::log::{FILE_NAME, Loaded, SUB, Target};
use crate::object::about::About;
use crate::object::{CHUNK_BYTES, Names, chunk_count, read_chunk_of};

/// How much is read at most.
#[derive(Clone, Copy, Debug)]
pub struct SampleLimits {
    /// Bytes of contents and records. A single item may exceed it, by less than a content's
    /// metadata.
    pub bytes: u64,
    /// The time after which no further item is begun. A quarter of it is for records.
    pub time: Duration,
}

/// What was verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Undamaged contents, whole ones or parts of large ones.
    pub contents: u64,
    /// Damaged ones.
    pub damaged_contents: u64,
    /// Directories with undamaged records.
    pub directories: u64,
    /// Directories with damaged ones.
    pub damaged_directories: u64,
    /// Bytes that were read.
    pub bytes: u64,
}

impl Sample {
    /// Verifies a sample of the store in `dir`. Without a store there is nothing to verify.
    ///
    /// # Errors
    /// If a directory of the store cannot be opened.
    pub fn take(dir: &Path, limits: SampleLimits) -> io::Result<Sample> {
        let mut sample = Sample::default();
        let opened = DirFd::at(dir).and_then(|top| top.sub(VERSION));
        let root = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(sample),
            opened => opened?,
        };
        let (random, began) = (RandomState::new(), Instant::now());
        let mut taking = Taking {
            sample: &mut sample,
            random,
            bytes: limits.bytes.div_ceil(4),
            until: began + limits.time / 4,
        };
        taking.records(&root.sub(b"index")?);
        (taking.bytes, taking.until) = (limits.bytes, began + limits.time);
        taking.contents(&root.sub(b"objects")?);
        Ok(sample)
    }

    /// Whether nothing that was verified is damaged.
    pub fn is_clean(&self) -> bool {
        self.damaged_contents == 0 && self.damaged_directories == 0
    }
}

struct Taking<'a> {
    sample: &'a mut Sample,
    random: RandomState,
    /// The sample must not exceed this.
    bytes: u64,
    until: Instant,
}

impl Taking<'_> {
    fn is_done(&self) -> bool {
        self.sample.bytes >= self.bytes || Instant::now() >= self.until
    }

    /// The entries of a directory in random order; of one that was removed, none.
    fn shuffled(&self, dir_fd: &DirFd) -> Vec<(Vec<u8>, FileType)> {
        let mut names = dir_fd.names().unwrap_or_default();
        names.sort_by_cached_key(|(name, _)| self.random.hash_one(name));
        names
    }

    fn contents(&mut self, objects: &DirFd) {
        for (first, kind) in self.shuffled(objects) {
            if kind != FileType::Directory {
                continue;
            }
            let Ok(dir_fd) = objects.sub(&first) else { continue };
            for (name, _) in self.shuffled(&dir_fd) {
                if self.is_done() {
                    return;
                }
                // The files beside a content have other names.
                let Some(digest) = Digest::from_hex(&[&first[..], &name].concat()) else {
                    continue;
                };
                match self.content(&dir_fd, &digest) {
                    Some(true) => self.sample.contents += 1,
                    Some(false) => self.sample.damaged_contents += 1,
                    None => {}
                }
            }
        }
    }

    /// Whether a content is undamaged; of a large one, as much of it as the limit allows. `None` if
    /// it was removed meanwhile, or cannot be read.
    fn content(&mut self, dir_fd: &DirFd, digest: &Digest) -> Option<bool> {
        let names = Names::of(digest);
        let (file, stat) = dir_fd.read_only(&names.content).ok()?;
        let size = stat.st_size as u64;
        if size <= CHUNK_BYTES {
            self.sample.bytes += size;
            let content = crate::dir_fd::read_exact_at(&file, 0, size as usize).ok()??;
            return Some(Digest::of(&content) == *digest);
        }
        let about = About::load(dir_fd, &names.about, digest).ok()?;
        let Some(about) = about.filter(|about| about.size == size) else { return Some(false) };
        let mut chunks: Vec<u64> = (0..chunk_count(size)).collect();
        chunks.sort_by_cached_key(|chunk| self.random.hash_one(chunk));
        for chunk in chunks {
            if self.is_done() {
                break;
            }
            let bytes = read_chunk_of(&file, chunk, size)?;
            self.sample.bytes += bytes.len() as u64;
            if about.sums.get(chunk as usize) != Some(&crate::codec::checksum_at(&bytes, chunk)) {
                return Some(false);
            }
        }
        Some(true)
    }

    fn records(&mut self, index: &DirFd) {
        let sources = self.shuffled(index).into_iter();
        let mut paths: Vec<Vec<u8>> = sources
            .filter(|(name, kind)| *kind == FileType::Directory && unhex::<32>(name).is_some())
            .map(|(name, _)| name)
            .collect();
        while let Some(path) = paths.pop() {
            if self.is_done() {
                return;
            }
            let Ok(dir_fd) = index.below(&path) else { continue };
            for (name, kind) in self.shuffled(&dir_fd) {
                if kind == FileType::Directory && name.first() == Some(&SUB) {
                    paths.push([&path[..], b"/", &name].concat());
                } else if name == FILE_NAME {
                    self.records_of(index, &path);
                }
            }
        }
    }

    fn records_of(&mut self, index: &DirFd, path: &[u8]) {
        let Some((source, directory)) = directory_of(path) else { return };
        let target = Target { source: &source, path: &directory };
        match Loaded::verify(index, &target) {
            Some((true, bytes)) => {
                self.sample.directories += 1;
                self.sample.bytes += bytes;
            }
            Some((false, bytes)) => {
                self.sample.damaged_directories += 1;
                self.sample.bytes += bytes;
            }
            None => {}
        }
    }
}
