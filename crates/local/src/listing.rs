//! An open directory.

use base::{DirEntry, Name, Result};
use rustix::fs::{AtFlags, Dir, statat};

use crate::attr::{attr, errno};

/// Entries in a batch: about what one system call brings.
const BATCH_ENTRIES: usize = 512;

/// Where a listing has come to.
#[derive(Debug)]
pub(crate) struct Listing {
    dir: Dir,
    /// Whether it is at its end, or why it cannot go on.
    end: Option<Result<()>>,
    /// A batch that was read, and that nobody has had yet: who asked for it has given up.
    pub(crate) ready: Option<Vec<DirEntry>>,
}

impl Listing {
    pub(crate) fn new(dir: Dir) -> Listing {
        Listing { dir, end: None, ready: None }
    }

    /// Reads on until there is a batch in `ready`, or no entry any more.
    pub(crate) fn read_on(&mut self) -> Result<()> {
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
        // What was read before an error is whole; the next call has the error.
        if batch.is_empty() {
            return self.end.unwrap_or(Ok(()));
        }
        self.ready = Some(batch);
        Ok(())
    }

    /// The entry, unless it has gone meanwhile.
    fn entry(&self, name: &[u8]) -> Option<DirEntry> {
        if matches!(name, b"." | b"..") {
            return None;
        }
        let valid = match Name::new(name) {
            Ok(valid) => valid,
            Err(why) => {
                tracing::warn!("the system listed {why}, left out: \"{}\"", name.escape_ascii());
                return None;
            }
        };
        let stat = self.dir.fd().and_then(|dir| statat(dir, name, AtFlags::SYMLINK_NOFOLLOW));
        match stat {
            Ok(stat) => Some(DirEntry { name: valid, attr: attr(&stat).ok() }),
            Err(rustix::io::Errno::NOENT) => None,
            // It is there, and may not be looked at.
            Err(_) => Some(DirEntry { name: valid, attr: None }),
        }
    }
}
