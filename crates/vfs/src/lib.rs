//! A POSIX file system over any [`Remote`], in FUSE's terms but without FUSE.
//!
//! Manages the state that neither the kernel nor SFTP has: inodes with numbers and link counts,
//! handles, attributes with time-outs, the order of writes and reads, and the rule that a name
//! replaced on the server is another file. `docs/semantics.md` lists the promises.
//!
//! The methods of [`Vfs`] are named after FUSE's operations. Dropping a future cancels its
//! operation. A lookup is counted, and a handle opened, in the same poll that returns it, so a
//! dropped future leaves nothing behind.
//!
//! Everything that fetches data or metadata before it is requested is in `prefetch` and
//! `readahead`; the other modules work without them.
//!
//! Deliberately not here: the kernel's protocol (the binary's adapter), the location of the remote,
//! and locks (`flock`, `fcntl`) of remotes without any, which the kernel keeps for this machine by
//! itself.
#![forbid(unsafe_code)]

mod attributes;
mod background;
mod backing;
mod cached_lookup;
mod compact_instant;
mod config;
mod cover;
mod deferred_open;
mod digests;
mod dir_cache;
mod directory;
mod dirty;
mod flush;
mod fractions;
mod idmap;
mod inode;
mod invalidate;
mod io;
mod links;
mod locks;
mod lookup;
mod name_changes;
mod name_operations;
mod numbers;
mod open;
mod own_changes;
mod prefetch;
mod readahead;
mod readdirplus;
mod remote_file;
mod removed_remotely;
mod repeat;
mod server_close;
mod set_ids;
mod setattr_behind;
mod shared;
mod stale;
mod stats;
mod stored_attr;
mod tree;
mod watch;
mod write_behind;
mod writes;
mod xattr;

use std::ops::Deref;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use base::{AttrChange, Errno, Name, Remote, Result};
use tokio::time::Instant;

pub use base::{Entry, Ino, LookupResult, Stat};
pub use config::{
    Config, Consistency, IdMap, Ids, Links, PageCache, Prefetch, RemoteRoot, Shown, Timeout,
};
pub use directory::{DirHandle, EntrySink, ListedEntry};
pub use flush::Caller;
pub use invalidate::{Eviction, Invalidate};
pub use links::relative_target;
pub use open::{OpenRequest, Opened};
pub use repeat::{ForeignChange, Repeat};
pub use stats::{Counters, Stats};
pub use watch::WatchStatus;
pub use xattr::is_acl;

use inode::Inode;
use shared::Shared;
use tree::ChangeCounter;

/// The kernel's name for an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// How long operations on the root wait for the server. umount(8), `df` and a listing of the parent
/// directory send them, and must not hang while the server is unreachable.
const ROOT_TIMEOUT: Duration = Duration::from_secs(5);

/// The statistics where no server reports any: 1000 GiB, all free, as in sshfs.
const PLACEHOLDER_STATVFS: base::StatVfs = base::StatVfs {
    block_size: 4096,
    fragment_size: 4096,
    blocks: 250 << 20,
    blocks_free: 250 << 20,
    blocks_available: 250 << 20,
    files: 1_000_000_000,
    files_free: 1_000_000_000,
    files_available: 1_000_000_000,
    fsid: 0,
    name_max: 255,
    flags: 0,
};

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
    pub fn new(remote: Arc<dyn Remote>, config: Config) -> Vfs {
        Vfs { shared: Arc::new(Shared::new(remote, config.effective())) }
    }

    /// Changes the settings that can be changed while the file system is in use: time-outs, what is
    /// prefetched and read ahead, `serve_stale`, and the bounds of written bytes and of memory. All
    /// others stay as they are. The caller [invalidates](Vfs::invalidate_all) what is cached if it
    /// is to be valid for a shorter time. Must be called within a tokio runtime.
    pub fn configure(&self, config: &Config) {
        let consistency = self.config.consistency;
        let config = Config { consistency, ..config.clone() }.effective();
        self.dirty.set_max_bytes(config.dirty_bytes);
        self.tree().set_budget(config.metadata_bytes);
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Sets the interface to the kernel's caches. Must be called once, before the first operation;
    /// without it the kernel keeps stale pages until the next open.
    pub fn set_invalidate(&self, invalidate: Arc<dyn Invalidate>) {
        self.shared.set_invalidate(invalidate);
    }

    /// Whether the remote shows files of several servers.
    pub fn is_union(&self) -> bool {
        self.config.is_union
    }

    /// The number of inodes in memory, including the root.
    pub fn inodes(&self) -> usize {
        self.tree().len()
    }

    /// The number of open files and directories.
    pub fn handles(&self) -> usize {
        self.files.len() + self.directories.len()
    }

    /// Stops all background work for good and closes the remote handles that it holds. Must be
    /// called before the remote is shut down.
    pub fn end_background(&self) {
        self.background.end();
    }

    /// Waits until all data written through any handle, and all attribute changes that have
    /// returned, are at the server.
    pub async fn drain(&self) {
        let mut open = Vec::new();
        self.files.each(|file| open.push(file.clone()));
        open.iter().for_each(|file| file.inode.writes.send_all());
        self.dirty.drained().await;
        // All writes are acknowledged; further answers of an unreachable server come too late.
        self.closing.drained().await;
    }

    /// Waits until the writes and attribute changes that have returned before this call are at the
    /// server. Their errors are returned to the application, not here.
    pub async fn flush_all(&self) {
        for inode in self.written_inodes() {
            inode.writes.drained().await;
        }
    }

    /// The files that may have writes in flight.
    fn written_inodes(&self) -> Vec<Arc<Inode>> {
        let mut inodes = Vec::new();
        self.files.each(|file| inodes.push(file.inode.clone()));
        self.released.each(|inode| inodes.push(inode.clone()));
        inodes
    }

    /// The last error of a write that failed after its file was closed, so that no call could
    /// report it. Pages written through a mapping fail that late, and so do errors that the server
    /// reports only at its close.
    pub fn lost_write(&self) -> Option<Errno> {
        *self.lost_write.lock()
    }

    /// Statistics of the file system that contains `ino`. For the root, those of the last answer if
    /// the server does not answer within five seconds.
    ///
    /// # Errors
    /// `ETIMEDOUT` for the root, if there was no answer before.
    pub async fn statfs(&self, ino: Ino) -> Result<base::StatVfs> {
        let path = self.tree().path(ino).unwrap_or_default();
        let asking = async {
            match self.remote.statvfs(&path).await {
                Err(Errno::EOPNOTSUPP) => Ok(PLACEHOLDER_STATVFS),
                found => found,
            }
        };
        if ino != Ino::ROOT {
            return asking.await;
        }
        let last = || self.last_statfs.lock();
        match tokio::time::timeout(ROOT_TIMEOUT, asking).await {
            Ok(stats) => {
                let stats = stats?;
                *last() = Some(stats);
                Ok(stats)
            }
            Err(_) => (*last()).ok_or(Errno::ETIMEDOUT),
        }
    }

    /// Drops `count` lookups of `ino`; the last one removes the inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.tree().forget(ino, count);
    }
}

/// A change of an inode in flight. Ends when dropped, whether it succeeded or not.
struct Change<'a> {
    inode: &'a Inode,
    change_counter: &'a ChangeCounter,
    /// The count of [`State::changes_begun`](inode::State::changes_begun), with this change, if no
    /// other change was in flight when it began.
    begun_alone: Option<u64>,
    /// The count of [`State::validator_changes`](inode::State::validator_changes) when it began.
    validator_changes: u64,
    /// Until when the attributes were valid before the change.
    valid_until: Option<Instant>,
    /// Until when they are valid after it, if nothing else changes meanwhile.
    known_until: Option<Instant>,
    ended: bool,
}

impl<'a> Change<'a> {
    fn begin(inode: &'a Inode, change_counter: &'a ChangeCounter) -> Change<'a> {
        let mut state = inode.state();
        let valid_until = state.fresh_attr(Instant::now()).map(|_| state.valid_until());
        state.begin_change(change_counter.advance());
        let begun_alone = Some(state.changes_begun())
            .filter(|changes_begun| state.is_only_change(*changes_begun));
        Change {
            inode,
            change_counter,
            begun_alone,
            validator_changes: state.validator_changes(),
            valid_until,
            known_until: None,
            ended: false,
        }
    }

    /// Whether the attributes after `change` are known without a request.
    fn predicts(&self, change: &AttrChange) -> bool {
        self.valid_until.is_some() && self.inode.state().predicts(change)
    }

    /// The server has executed `change`: records its predictable effects.
    fn apply(&mut self, change: &AttrChange) {
        let mut state = self.inode.state();
        let alone =
            self.begun_alone.is_some_and(|changes_begun| state.is_only_change(changes_begun));
        let valid_until = self.valid_until.filter(|_| alone);
        // It was sent behind all writes that had begun before it, so they have not set the mtime.
        // (`copy_file_range` and `fallocate` are not among these: one in flight may set it.)
        let sets_last_mtime = state.validator_changes() == self.validator_changes;
        if state.apply(change, valid_until.is_some()) {
            self.known_until = valid_until;
        }
        if sets_last_mtime {
            state.keep_set_mtime(change);
        }
    }

    /// Ends the change. Returns its sequence number if no other change was in flight meanwhile.
    fn end(mut self) -> Option<u64> {
        self.complete()
    }

    fn complete(&mut self) -> Option<u64> {
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        let mut state = self.inode.state();
        self.inode.writes.forget_end();
        let alone =
            self.begun_alone.is_some_and(|changes_begun| state.is_only_change(changes_begun));
        let seq = self.change_counter.advance();
        state.end_change(seq);
        if let Some(until) = self.known_until.filter(|_| alone) {
            state.extend_validity(until);
        }
        alone.then_some(seq)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.complete();
    }
}

/// Checks a name that the kernel sent.
fn name(bytes: &[u8]) -> Result<Name> {
    Name::new(bytes).map_err(|invalid| match invalid {
        base::InvalidName::TooLong => Errno::ENAMETOOLONG,
        _ => Errno::EINVAL,
    })
}

/// Translates the owners in `change` to the remote's ids.
fn change_to_remote(config: &Config, change: AttrChange) -> Result<AttrChange> {
    Ok(AttrChange {
        uid: change.uid.map(|uid| config.idmap.uids.to_remote(uid)).transpose()?,
        gid: change.gid.map(|gid| config.idmap.gids.to_remote(gid)).transpose()?,
        ..change
    })
}
