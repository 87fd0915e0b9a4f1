//! An open directory.

use base::{DirEntry, Name, Result};
use rustix::fs::{AtFlags, Dir, statat};

use crate::attr::{attr, errno};

/// Entries in a batch: about as many as one system call returns.
const BATCH_ENTRIES: usize = 512;

/// The state of a listing.
#[derive(Debug)]
pub(crate) struct Listing {
    dir: Dir,
    /// Set at the end of the directory, or by an error that ends the listing.
    end: Option<Result<()>>,
    /// A batch that was read, but not taken, since its caller's future was dropped.
    pub(crate) ready: Option<Vec<DirEntry>>,
}

impl Listing {
    pub(crate) fn new(dir: Dir) -> Listing {
        Listing { dir, end: None, ready: None }
    }

    /// Reads until there is a batch in `ready`, or the directory ends.
    pub(crate) fn fill_batch(&mut self) -> Result<()> {
        if self.ready.is_some() {
            return Ok(());
        }
        let mut batch = Vec::new();
        while self.end.is_none() && batch.len() < BATCH_ENTRIES {
            match self.dir.read() {
                None => self.end = Some(Ok(())),
                Some(Ok(entry)) => batch.extend(self.entry(entry.file_name().to_bytes())),
                Some(Err(error)) => self.end = Some(Err(errno(error))),
            }
        }
        // The entries before an error are returned; the next call returns the error.
        if batch.is_empty() {
            return self.end.unwrap_or(Ok(()));
        }
        self.ready = Some(batch);
        Ok(())
    }

    /// The entry; `None` if it was removed meanwhile.
    fn entry(&self, name: &[u8]) -> Option<DirEntry> {
        if matches!(name, b"." | b"..") {
            return None;
        }
        let valid = match Name::new(name) {
            Ok(valid) => valid,
            Err(why) => {
                tracing::warn!(
                    "the system listed {why}, which is left out: \"{}\"",
                    name.escape_ascii()
                );
                return None;
            }
        };
        let stat = self.dir.fd().and_then(|dir| statat(dir, name, AtFlags::SYMLINK_NOFOLLOW));
        match stat {
            Ok(stat) => Some(DirEntry { name: valid, attr: attr(&stat).ok() }),
            Err(rustix::io::Errno::NOENT) => None,
            // The entry exists, but its attributes may not be read.
            Err(_) => Some(DirEntry { name: valid, attr: None }),
        }
    }
}
