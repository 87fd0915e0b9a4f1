//! opendir, readdir, readdirplus, releasedir.
//!
//! An open directory keeps what it has listed, so that an offset means the same entry for as long
//! as it is open, whatever happens to the directory. Listing from the start again lists anew.
//!
//! Entries carry attributes, which count as look-ups of their names. Attributes that may be older
//! than a change made here are left out, since the kernel would take them for newer.

use std::sync::{Arc, Mutex, PoisonError};

use base::{Attr, Dh, DirEntry, Errno, FileKind, Remote, Result};
use tokio::time::Instant;

use crate::inode::Validator;
use crate::{Entry, Ino, Vfs};

/// What the kernel calls an open directory by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirHandle(pub u64);

/// One name of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListedEntry<'a> {
    /// `.` and `..` among them.
    pub name: &'a [u8],
    /// `d_ino`.
    pub number: u64,
    /// `d_type`; `None` when the server has not told.
    pub kind: Option<FileKind>,
    /// Where the listing goes on after this entry.
    pub next_offset: u64,
    /// What it is, with one look-up counted; only when asked for, and known.
    pub entry: Option<Entry>,
}

/// Takes the entries of a listing, as many as there is room for.
pub trait Listing {
    /// Whether an entry of this name can be pushed.
    fn has_room(&self, name: &[u8]) -> bool;
    /// Takes an entry for which there is room.
    fn push(&mut self, entry: ListedEntry<'_>);
}

/// An open directory.
pub(crate) struct OpenDirectory {
    ino: Ino,
    remote: Arc<dyn Remote>,
    /// Held by whoever fetches, one at a time, since batches come in order.
    fetching: tokio::sync::Mutex<()>,
    listed: Mutex<Listed>,
}

struct Listed {
    dh: Dh,
    entries: Vec<(DirEntry, Instant)>,
    complete: bool,
    /// The tick before which the listing began.
    tick: u64,
}

/// `.` and `..` come first.
const DOTS: [&[u8]; 2] = [b".", b".."];

impl OpenDirectory {
    fn with<T>(&self, body: impl FnOnce(&mut Listed) -> T) -> T {
        body(&mut self.listed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        let dh = self.with(|listed| listed.dh);
        self.remote.closedir(dh);
    }
}

impl Vfs {
    /// Opens the directory `ino` for listing.
    pub async fn opendir(&self, ino: Ino) -> Result<DirHandle> {
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let path = self.path(ino)?;
        let tick = self.ticks.now();
        let dh = self.remote.opendir(&path).await?;
        let number = self.directories.number();
        let directory = OpenDirectory {
            ino,
            remote: self.remote.clone(),
            fetching: tokio::sync::Mutex::default(),
            listed: Mutex::new(Listed { dh, entries: Vec::new(), complete: false, tick }),
        };
        self.directories.insert(number, Arc::new(directory));
        Ok(DirHandle(number))
    }

    /// Gives an open directory back. Waits for nothing.
    pub fn releasedir(&self, handle: DirHandle) {
        self.directories.remove(handle.0);
    }

    /// Lists from `offset` on: 0 for the start, else the `next_offset` of an entry. Nothing pushed
    /// means the end. With `plus`, entries are looked up too, where the listing tells enough.
    pub async fn readdir(
        &self,
        handle: DirHandle,
        offset: u64,
        plus: bool,
        listing: &mut (dyn Listing + Send),
    ) -> Result<()> {
        let directory = self.directories.get(handle.0)?;
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        if offset == 0 {
            self.rewind(&directory).await?;
        }
        self.fetch_past(&directory, offset).await?;
        // From here on nothing waits, since look-ups are being counted.
        for (index, name) in DOTS.into_iter().enumerate().skip(offset) {
            if !listing.has_room(name) {
                return Ok(());
            }
            let tree = self.tree();
            let ino = if index == 0 { directory.ino } else { tree.parent(directory.ino) };
            listing.push(ListedEntry {
                name,
                number: tree.number(ino),
                kind: Some(FileKind::Directory),
                next_offset: index as u64 + 1,
                entry: None,
            });
        }
        directory.with(|listed| {
            let first = offset.saturating_sub(DOTS.len());
            for (index, (found, seen_at)) in listed.entries.iter().enumerate().skip(first) {
                let name = found.name.as_bytes();
                if !listing.has_room(name) {
                    break;
                }
                let number = self.tree().expected_number(directory.ino, &found.name);
                let entry = if plus {
                    self.listed_entry(directory.ino, found, listed.tick, *seen_at)?
                } else {
                    None
                };
                listing.push(ListedEntry {
                    name,
                    number: entry.map_or(number, |entry| entry.stat.number),
                    kind: found.attr.map(|attr| attr.kind),
                    next_offset: (index + DOTS.len()) as u64 + 1,
                    entry,
                });
            }
            Ok(())
        })
    }

    /// Begins the listing anew, if it has got anywhere.
    async fn rewind(&self, directory: &OpenDirectory) -> Result<()> {
        let _fetching = directory.fetching.lock().await;
        if directory.with(|listed| listed.entries.is_empty() && !listed.complete) {
            return Ok(());
        }
        let path = self.path(directory.ino)?;
        let tick = self.ticks.now();
        let dh = self.remote.opendir(&path).await?;
        let old = directory.with(|listed| {
            let old = listed.dh;
            *listed = Listed { dh, entries: Vec::new(), complete: false, tick };
            old
        });
        self.remote.closedir(old);
        Ok(())
    }

    /// Fetches until the entry at `offset` is there, or the listing is complete.
    async fn fetch_past(&self, directory: &OpenDirectory, offset: usize) -> Result<()> {
        let enough =
            |listed: &mut Listed| listed.complete || listed.entries.len() + DOTS.len() > offset;
        // The dots alone would make a reply, but a poor one.
        let reached = |listed: &mut Listed| {
            enough(listed) && (listed.complete || !listed.entries.is_empty())
        };
        if directory.with(reached) {
            return Ok(());
        }
        let _fetching = directory.fetching.lock().await;
        while !directory.with(reached) {
            let dh = directory.with(|listed| listed.dh);
            let batch = self.remote.readdir(dh).await?;
            let now = Instant::now();
            directory.with(|listed| match batch {
                Some(batch) => listed.entries.extend(batch.into_iter().map(|entry| (entry, now))),
                None => listed.complete = true,
            });
        }
        Ok(())
    }

    /// Looks up a name by what the listing, begun at `tick`, tells of it.
    fn listed_entry(
        &self,
        dir: Ino,
        found: &DirEntry,
        tick: u64,
        seen_at: Instant,
    ) -> Result<Option<Entry>> {
        let Some(attr) = found.attr else { return Ok(None) };
        let mut tree = self.tree();
        let trusted = match tree.child(dir, &found.name) {
            Some(known) => {
                let state = known.state();
                let outdated = !state.unchanged_since(tick);
                let doubtful = !state.open.is_empty() && differs(state.last_attr(), &attr);
                known.kind == attr.kind && !outdated && !doubtful
            }
            None => tree.names_unchanged_since(dir, tick),
        };
        if !trusted {
            return Ok(None);
        }
        let inode = tree.see(dir, &found.name, &attr, seen_at).inode();
        inode.state().learn(attr, seen_at, self.timeout(inode.kind));
        tree.rebind(dir, &found.name, inode.state().valid_until());
        drop(tree);
        match self.entry(&inode, &attr) {
            Ok(entry) => Ok(Some(entry)),
            Err(_) => {
                // An owner with no number here: left to a look-up, which can say so.
                self.forget(inode.ino, 1);
                Ok(None)
            }
        }
    }
}

fn differs(known: Option<Attr>, told: &Attr) -> bool {
    known.is_none_or(|known| Validator::of(&known) != Validator::of(told))
}
