//! opendir, readdir, readdirplus, releasedir.
//!
//! An open directory keeps what it has listed, so that an offset means the same entry for as long
//! as it is open, whatever happens to the directory. Listing from the start again lists anew. Of a
//! very long listing only the end is kept.
//!
//! Entries carry attributes, which count as look-ups of their names. Attributes that may be older
//! than a change made here are left out, since the kernel would take them for newer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::{Attr, Dh, DirEntry, Errno, FileKind, Name, Remote, RemotePath, Result};
use tokio::time::Instant;

use crate::inode::Validator;
use crate::snapshot::{Found, Snapshot, Whole};
use crate::tree::Asked;
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
    /// `d_type`.
    pub kind: FileKind,
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
    opened_at: Instant,
    /// Held by whoever fetches, one at a time, since batches come in order.
    fetching: tokio::sync::Mutex<()>,
    listed: Mutex<Listed>,
    /// Its files are named alone, unless [one is looked up](crate::names_alone).
    names_alone: AtomicBool,
}

struct Listed {
    /// `None` when the listing is from a snapshot.
    dh: Option<Dh>,
    /// What has come from the remote and is not in `entries` yet, with the time when it came. Kept
    /// here, since the caller that has fetched it may give up while it asks for attributes.
    fetched: VecDeque<(DirEntry, Instant)>,
    entries: VecDeque<Found>,
    /// How many entries before these have been let go.
    dropped: usize,
    complete: bool,
    /// Something of it was given out.
    begun: bool,
    asked: Asked,
    /// When its first entries came.
    first_at: Option<Instant>,
}

/// Entries that an open directory keeps behind those that were asked for last; about 16 MiB. An
/// offset before them is `EINVAL`: nobody seeks back that far, and a server may list for ever.
const KEPT: usize = 1 << 17;

/// A directory is read right after it was opened. What was listed by then, by us or by the remote,
/// is not shown to who begins later; less would cost a round trip where nothing is cached.
const READ_WITHIN: Duration = Duration::from_secs(1);

impl Listed {
    fn new(dh: Dh, asked: Asked) -> Listed {
        Listed {
            dh: Some(dh),
            fetched: VecDeque::new(),
            entries: VecDeque::new(),
            dropped: 0,
            complete: false,
            begun: false,
            asked,
            first_at: None,
        }
    }

    /// One that is known already.
    fn known((entries, asked): Whole) -> Listed {
        let first_at = Some(asked.at);
        Listed {
            dh: None,
            fetched: VecDeque::new(),
            entries: entries.into(),
            dropped: 0,
            complete: true,
            begun: false,
            asked,
            first_at,
        }
    }

    /// The listing for the snapshots, when it has come to its end and nothing was let go.
    fn snapshot(&self) -> Option<Snapshot> {
        let whole = self.complete && self.dropped == 0;
        let entries = || self.entries.iter().cloned().collect();
        whole.then(|| {
            Snapshot::new(entries(), true, self.asked, self.first_at.unwrap_or(self.asked.at))
        })
    }

    /// How many entries there have been.
    fn end(&self) -> usize {
        self.dropped + self.entries.len()
    }

    /// Takes over the fetched entries that have attributes, up to the first that has none; returns
    /// the name of that one. `wanted` is the first entry that a caller still waits for.
    fn take_known(&mut self, wanted: usize) -> Option<Name> {
        while let Some((DirEntry { attr: Some(attr), .. }, _)) = self.fetched.front() {
            let attr = *attr;
            if let Some((DirEntry { name, .. }, seen_at)) = self.fetched.pop_front() {
                self.entries.push_back(Found { name, attr, seen_at });
            }
        }
        self.let_go(wanted);
        self.fetched.front().map(|(entry, _)| entry.name.clone())
    }

    /// The first of the fetched entries has these attributes, or is gone.
    fn resolve_first(&mut self, attr: Option<Attr>) {
        match attr {
            Some(attr) => {
                if let Some((entry, _)) = self.fetched.front_mut() {
                    entry.attr = Some(attr);
                }
            }
            None => drop(self.fetched.pop_front()),
        }
    }

    /// Lets go of entries before `wanted` where there are too many.
    fn let_go(&mut self, wanted: usize) {
        let surplus = self.entries.len().saturating_sub(KEPT);
        let before = wanted.saturating_sub(self.dropped);
        let gone = surplus.min(before);
        self.entries.drain(..gone);
        self.dropped += gone;
    }
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
        if let Some(dh) = self.with(|listed| listed.dh) {
            self.remote.closedir(dh);
        }
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
        let known = match self.stale_listing(ino) {
            Some(known) => Some(known),
            None => {
                self.await_listing(&path).await;
                self.whole_listing(ino, &path)
            }
        };
        let listed = match known {
            Some(whole) => Listed::known(whole),
            None => {
                let asked = self.asked();
                let opening = async {
                    let opened = self.remote.opendir(&path).await;
                    let dh = opened.inspect_err(|error| {
                        if *error == Errno::ENOENT {
                            self.outdate(&inode);
                        }
                    })?;
                    Ok(Listed::new(dh, asked))
                };
                let known = || Ok(self.stale_listing(ino).map(Listed::known));
                self.or_stale(opening, known).await?
            }
        };
        let number = self.directories.number();
        let directory = OpenDirectory {
            ino,
            remote: self.remote.clone(),
            opened_at: Instant::now(),
            fetching: tokio::sync::Mutex::default(),
            listed: Mutex::new(listed),
            names_alone: AtomicBool::new(false),
        };
        self.directories.insert(number, Arc::new(directory));
        Ok(DirHandle(number))
    }

    /// The whole of the directory `ino`, if that is known. Notes that it is being listed.
    fn whole_listing(&self, ino: Ino, path: &RemotePath) -> Option<Whole> {
        let (whole, was_ahead) = self.tree().whole(ino, self.config.dirs);
        self.shared.walked(path, was_ahead);
        whole
    }

    /// Gives an open directory back. Waits for nothing.
    pub fn releasedir(&self, handle: DirHandle) {
        self.directories.remove(handle.0);
    }

    /// Lists from `offset` on: 0 for the start, else the `next_offset` of an entry. Nothing pushed
    /// means the end. With `plus`, entries are looked up too, where the listing contains enough for
    /// that, and where that is worth it (`names_alone.rs`).
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
            if plus {
                self.begin_listing(&directory);
            }
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
                kind: FileKind::Directory,
                next_offset: index as u64 + 1,
                entry: None,
            });
        }
        let files_alone =
            self.names_alone.is_active() && directory.names_alone.load(Ordering::Relaxed);
        let looks_up = |kind| plus && (kind == FileKind::Directory || !files_alone);
        directory.with(|listed| {
            let first = offset.saturating_sub(DOTS.len());
            let skipped = first.checked_sub(listed.dropped).ok_or(Errno::EINVAL)?;
            listed.begun = true;
            for (index, found) in listed.entries.iter().enumerate().skip(skipped) {
                let index = listed.dropped + index;
                let name = found.name.as_bytes();
                if !listing.has_room(name) {
                    break;
                }
                let look_up = || self.listed_entry(directory.ino, found, listed.asked);
                let entry = looks_up(found.attr.kind).then(look_up).flatten();
                let expected = || self.tree().expected_number(directory.ino, &found.name);
                listing.push(ListedEntry {
                    name,
                    number: entry.map_or_else(expected, |entry| entry.stat.number),
                    kind: found.attr.kind,
                    next_offset: (index + DOTS.len()) as u64 + 1,
                    entry,
                });
            }
            Ok(())
        })
    }

    /// Decides whether the files of `directory` are named alone.
    fn begin_listing(&self, directory: &OpenDirectory) {
        let is_full = self.tree().is_full();
        if is_full {
            self.names_alone.begin_listing();
        }
        let alone = is_full && self.names_alone.is_active();
        directory.names_alone.store(alone, Ordering::Relaxed);
    }

    /// Begins the listing anew, unless it has not begun and shows the directory as it is.
    async fn rewind(&self, directory: &OpenDirectory) -> Result<()> {
        let _fetching = directory.fetching.lock().await;
        let (begun, asked) = directory.with(|listed| (listed.begun, listed.asked));
        let old = directory.opened_at.elapsed() >= self.config.dirs.min.max(READ_WITHIN);
        let changed = || self.tree().any_name_changed_since(directory.ino, asked.tick);
        if !begun && (self.serves_stale() || !old && !changed()) {
            return Ok(());
        }
        let path = self.path(directory.ino)?;
        let asked = self.asked();
        let dh = self.remote.opendir(&path).await?;
        let old = directory.with(|listed| std::mem::replace(listed, Listed::new(dh, asked)).dh);
        if let Some(old) = old {
            self.remote.closedir(old);
        }
        Ok(())
    }

    /// Fetches until the entry at `offset` is there, or the listing is complete.
    async fn fetch_past(&self, directory: &OpenDirectory, offset: usize) -> Result<()> {
        let enough = |listed: &mut Listed| listed.complete || listed.end() + DOTS.len() > offset;
        // The dots alone would make a reply, but a poor one.
        let reached = |listed: &mut Listed| enough(listed) && (listed.complete || listed.end() > 0);
        if directory.with(reached) {
            return Ok(());
        }
        let _fetching = directory.fetching.lock().await;
        let wanted = offset.saturating_sub(DOTS.len());
        while !directory.with(reached) {
            // A listing without a handle is complete.
            let Some(dh) = directory.with(|listed| listed.dh) else { break };
            // What an earlier caller has fetched, and was interrupted over.
            self.resolve_fetched(directory, wanted).await?;
            if directory.with(reached) {
                break;
            }
            let reading = async { self.remote.readdir(dh).await.map(Some) };
            let known = || Ok(self.list_stale(directory).then_some(None));
            let Some(batch) = self.or_stale(reading, known).await? else { break };
            directory.with(|listed| {
                listed.first_at.get_or_insert_with(Instant::now);
            });
            let Some(batch) = batch else {
                let snapshot = directory.with(|listed| {
                    listed.complete = true;
                    listed.snapshot()
                });
                self.keep_listing(directory.ino, snapshot);
                break;
            };
            let seen_at = Instant::now();
            directory.with(|listed| {
                listed.fetched.extend(batch.into_iter().map(|entry| (entry, seen_at)));
            });
            self.resolve_fetched(directory, wanted).await?;
        }
        Ok(())
    }

    /// Lists what is known instead of what has not come yet.
    fn list_stale(&self, directory: &OpenDirectory) -> bool {
        let known = self.stale_listing(directory.ino);
        let replaced = directory.with(|listed| {
            let known = known.filter(|_| listed.end() == 0)?;
            Some(std::mem::replace(listed, Listed::known(known)))
        });
        if let Some(dh) = replaced.as_ref().and_then(|replaced| replaced.dh) {
            self.remote.closedir(dh);
        }
        replaced.is_some()
    }

    /// Keeps a listing that was asked for, and goes on with the walk that it may be part of.
    fn keep_listing(&self, dir: Ino, snapshot: Option<Snapshot>) {
        let Some(snapshot) = snapshot.filter(|_| self.keeps_listings()) else { return };
        let path = {
            let mut tree = self.tree();
            tree.learn_directory(dir, snapshot);
            tree.path(dir)
        };
        if let Some(path) = path {
            self.shared.walk_on(&path);
        }
    }

    /// Makes entries of what was fetched. Attributes that a server leaves out are requested; a name
    /// that is gone by then is left out. Nothing is lost where this fails or is dropped: the next
    /// caller goes on with the same name.
    async fn resolve_fetched(&self, directory: &OpenDirectory, wanted: usize) -> Result<()> {
        while let Some(name) = directory.with(|listed| listed.take_known(wanted)) {
            let path = self.path(directory.ino)?.join(&name);
            let attr = match self.remote.lstat(&path).await {
                Ok(attr) => Some(attr),
                Err(Errno::ENOENT) => None,
                Err(error) => return Err(error),
            };
            directory.with(|listed| listed.resolve_first(attr));
        }
        Ok(())
    }

    /// Looks up a name by what the listing tells of it.
    fn listed_entry(&self, dir: Ino, found: &Found, asked: Asked) -> Option<Entry> {
        let Found { name, attr, seen_at } = found;
        let (inode, until) = self.see_listed(&mut self.tree(), dir, name, attr, *seen_at, asked)?;
        // An owner with no number here is left to a look-up, which can say so.
        self.entry_until(&inode, attr, until).inspect_err(|_| self.forget(inode.ino, 1)).ok()
    }
}

pub(crate) fn differs(known: Option<Attr>, told: &Attr) -> bool {
    known.is_none_or(|known| Validator::of(&known) != Validator::of(told))
}
