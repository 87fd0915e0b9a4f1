//! A POSIX file system over any [`Remote`], in FUSE's terms but without FUSE.
//!
//! Keeps what the kernel and SFTP do not have: inodes with numbers and link counts, handles,
//! attributes that count for a while, the order of writes and reads, and the promise that a name
//! which was replaced on the server is another file. `docs/semantics.md` lists the promises.
//!
//! The methods of [`Vfs`] are named after FUSE's operations. Each is cancelled by dropping its
//! future, and counts a look-up, or opens a handle, in the very poll in which it returns, so that
//! a dropped future leaves nothing behind.
//!
//! Deliberately not here: who talks to the kernel (the binary's adapter), where the remote is, and
//! locks (`flock`, `fcntl`), which the kernel keeps for this machine by itself.
#![forbid(unsafe_code)]

mod attributes;
mod attributes_behind;
mod background;
mod backing;
mod config;
mod contents;
mod digests;
mod directory;
mod dirty;
mod figures;
mod finish;
mod flush;
mod fractions;
mod gone;
mod grant;
mod idmap;
mod inode;
mod invalidate;
mod io;
mod known;
mod links;
mod locate;
mod lookup;
mod moment;
mod name_changes;
mod names;
mod names_alone;
mod numbers;
mod open;
mod pulse;
mod readahead;
mod remote_file;
mod set_ids;
mod shared;
mod snapshot;
mod stale;
mod tree;
mod validate_ahead;
mod walk;
mod write_behind;
mod writes;

use std::ops::Deref;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use base::{Attr, AttrChange, Errno, Name, Remote, Result, Timestamp};
use tokio::time::Instant;

pub use config::{Config, Consistency, IdMap, Links, PageCache, Shown, Timeout};
pub use directory::{DirHandle, ListedEntry, Listing};
pub use figures::Figures;
pub use flush::Closer;
pub use invalidate::{Invalidate, Surplus};
pub use io::Seek;
pub use links::relative_target;
pub use lookup::Looked;
pub use open::{OpenRequest, Opened};

use inode::Inode;
use shared::Shared;
use tree::Ticks;

/// FUSE's node id: what the kernel calls an inode by. Never used twice in the life of a mount,
/// unlike the inode number that users see ([`Stat::number`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

impl Ino {
    /// The root of the mount.
    pub const ROOT: Ino = Ino(1);
}

/// What the kernel calls an open file by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// Attributes as an application sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `st_ino`.
    pub number: u64,
    /// Owners mapped, times as exact as they are known.
    pub attr: Attr,
    /// `st_nlink`: links made through this mount; 1 for directories, which means unknown.
    pub nlink: u32,
    /// `st_ctime`: the last change made through this mount, or `mtime`.
    pub ctime: Timestamp,
    /// How long the kernel may take this for true.
    pub ttl: Duration,
}

/// A name that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its inode, of which one look-up has been counted.
    pub ino: Ino,
    /// Its attributes.
    pub stat: Stat,
    /// How long the kernel may take the name for this inode.
    pub ttl: Duration,
}

/// For how long a server is waited for by who asks what umount(8), `df` and whatever lists the
/// directory above ask: what the file system and its root are. They are not to hang on one that is
/// away.
const SILENCE: Duration = Duration::from_secs(5);

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// A mounted file system. See the [crate](self).
pub struct Vfs {
    shared: Arc<Shared>,
}

impl Deref for Vfs {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Vfs {
    fn drop(&mut self) {
        self.background.end();
    }
}

impl Vfs {
    /// A file system that shows `remote`.
    #[must_use]
    pub fn new(remote: Arc<dyn Remote>, config: Config) -> Vfs {
        Vfs { shared: Arc::new(Shared::new(remote, config.effective())) }
    }

    /// Has the kernel drop what is not true any longer by `invalidate`. To be called once, before
    /// the first operation; without it the kernel keeps such pages until the next open.
    pub fn set_invalidate(&self, invalidate: Arc<dyn Invalidate>) {
        self.shared.set_invalidate(invalidate);
    }

    /// How many inodes are kept, the root included.
    #[must_use]
    pub fn inodes(&self) -> usize {
        self.tree().len()
    }

    /// How many files and directories are open.
    #[must_use]
    pub fn handles(&self) -> usize {
        self.files.len() + self.directories.len()
    }

    /// Ends what goes on without a caller who waits for it, for good; the handles that it holds
    /// open at the remote are given back. To be called before the remote is taken away.
    pub fn end_background(&self) {
        self.background.end();
    }

    /// Waits until everything written through any handle, and each change of attributes that was
    /// acknowledged, is at the server.
    pub async fn drain(&self) {
        let mut open = Vec::new();
        self.files.each(|file| open.push(file.clone()));
        open.iter().for_each(|file| file.inode.writes.send_all());
        self.dirty.gone().await;
        tokio::select! {
            () = self.closing.none() => {}
            // All that was written is acknowledged; what else the server has to say comes too late.
            () = self.remote.disconnected() => {}
        }
    }

    /// The error of a write whose file was closed before it failed, so that no call could report
    /// it; the last of them. So late come pages written through a mapping, and what the server
    /// reports only when the file is closed there.
    pub fn lost_write(&self) -> Option<Errno> {
        *self.lost_write.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Figures of the file system that holds `ino`; of the root the last ones where no answer comes
    /// for five seconds.
    ///
    /// # Errors
    /// `ETIMEDOUT` where there are none, of the root alone.
    pub async fn statfs(&self, ino: Ino) -> Result<base::StatVfs> {
        let path = self.tree().path(ino).unwrap_or_default();
        let asking = self.remote.statvfs(&path);
        if ino != Ino::ROOT {
            return asking.await;
        }
        let last = || self.last_statfs.lock().unwrap_or_else(PoisonError::into_inner);
        match tokio::time::timeout(SILENCE, asking).await {
            Ok(figures) => {
                let figures = figures?;
                *last() = Some(figures);
                Ok(figures)
            }
            Err(_) => (*last()).ok_or(Errno::ETIMEDOUT),
        }
    }

    /// Drops `count` look-ups of `ino`; the inode goes with the last one.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.tree().forget(ino, count);
    }
}

/// A change of an inode on its way; ends when dropped, however the change ended.
struct Change<'a> {
    inode: &'a Inode,
    ticks: &'a Ticks,
    /// How many changes of the inode had begun with this one, if none was on its way before.
    only: Option<u64>,
    /// Until when the attributes counted before.
    counted: Option<Instant>,
    /// Until when they count after it, if nothing else is changed meanwhile.
    known_until: Option<Instant>,
    over: bool,
}

impl<'a> Change<'a> {
    fn begin(inode: &'a Inode, ticks: &'a Ticks) -> Change<'a> {
        let mut state = inode.state();
        let counted = state.fresh_attr(Instant::now()).map(|_| state.valid_until());
        state.begin_change(ticks.advance());
        let only = Some(state.begun()).filter(|begun| state.only_change(*begun));
        Change { inode, ticks, only, counted, known_until: None, over: false }
    }

    /// Whether nothing will have to be asked when the server has done `change`.
    fn foretells(&self, change: &AttrChange) -> bool {
        self.counted.is_some() && inode::is_predictable(change)
    }

    /// The server has done `change`: what follows from it without asking is taken over.
    fn apply(&mut self, change: &AttrChange) {
        let mut state = self.inode.state();
        let alone = self.only.is_some_and(|begun| state.only_change(begun));
        let counted = self.counted.filter(|_| alone);
        if state.apply(change, counted.is_some()) {
            self.known_until = counted;
        }
        if alone {
            state.keep_time(change);
        }
    }

    /// Ends it. Tells when, if no other change was on its way meanwhile.
    fn end(mut self) -> Option<u64> {
        self.finish()
    }

    fn finish(&mut self) -> Option<u64> {
        if std::mem::replace(&mut self.over, true) {
            return None;
        }
        let mut state = self.inode.state();
        let alone = self.only.is_some_and(|begun| state.only_change(begun));
        let tick = self.ticks.advance();
        state.end_change(tick);
        if let Some(until) = self.known_until.filter(|_| alone) {
            state.extend(until);
        }
        alone.then_some(tick)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The name that the kernel asks for.
fn name(bytes: &[u8]) -> Result<Name> {
    Name::new(bytes).map_err(|invalid| match invalid {
        base::InvalidName::TooLong => Errno::ENAMETOOLONG,
        _ => Errno::EINVAL,
    })
}

/// Translates the owners of `change` to the remote's.
fn change_there(config: &Config, change: AttrChange) -> Result<AttrChange> {
    Ok(AttrChange {
        uid: change.uid.map(|uid| config.idmap.uid_there(uid)).transpose()?,
        gid: change.gid.map(|gid| config.idmap.gid_there(gid)).transpose()?,
        ..change
    })
}
