//! A correct [`Remote`](base::Remote) in memory: the replies of an ideal server.
//!
//! Beside the operations of the trait it offers tests: the number of calls by operation (to assert
//! round trips), the number of open handles (to detect leaks), out-of-band changes as by another
//! client of the server, and delayed replies.
//!
//! An operation takes effect in the first poll of its future; only the reply takes time. So rules 1
//! and 2 of [`base::remote`] hold as over a network: a dropped call has been executed, and a handle
//! in its reply is closed.
//!
//! One mutex guards the tree and the handles. It is never held over an await.

mod locks;
mod out_of_band;
mod remote;
mod watches;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use base::{Dh, Errno, Fh, Mutex, Name, RemotePath, Result, StatVfs};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::call::{Call, Counters};
use crate::clock::Clock;
use crate::tree::{Follow, Ino, Limits, OpenFile, Tree};

/// Options of a [`MemRemote`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Source of file times.
    pub clock: Clock,
    /// Capacity.
    pub limits: Limits,
    /// Maximum number of open files and directories; beyond it `EMFILE`.
    pub max_handles: usize,
    /// Maximum length in bytes of the chunks in which a read is returned, like the limit of a
    /// server's packets. `None`: each read is one chunk.
    pub read_piece_bytes: Option<usize>,
    /// Maximum length of one copy, in bytes.
    pub copy_max_bytes: u64,
    /// Entries in a batch of a listing.
    pub listing_batch: usize,
    /// Whether listings have attributes.
    pub listing_attrs: bool,
    /// Whether `lstat` shows a link as its target, unless it dangles.
    pub follow_symlinks: bool,
    /// Whether its errors may be those of a lost connection.
    pub may_be_lost: bool,
}

impl Default for Options {
    /// The machine's clock and no limit of size; batches of 100 entries with attributes and chunks
    /// of 255 KiB, as OpenSSH sends them; copies of 16 MiB, so that callers have to continue;
    /// 65,536 handles, which only a leak reaches.
    fn default() -> Options {
        Options {
            clock: Clock::System,
            limits: Limits::default(),
            max_handles: 1 << 16,
            read_piece_bytes: Some(255 << 10),
            copy_max_bytes: 16 << 20,
            listing_batch: 100,
            listing_attrs: true,
            follow_symlinks: false,
            may_be_lost: true,
        }
    }
}

/// A file system in memory. See the [module](self).
#[derive(Debug)]
pub struct MemRemote {
    options: Options,
    state: Arc<Mutex<State>>,
    watches: Arc<watches::MemWatches>,
    pace: Mutex<Pace>,
    write_verifier: Mutex<Option<Bytes>>,
    /// Notified when locks have ended.
    unlocked: Notify,
    calls: Counters,
}

#[derive(Debug)]
struct State {
    tree: Tree,
    next_handle: u64,
    files: HashMap<u64, OpenFile>,
    listings: HashMap<u64, Listing>,
    locks: Vec<locks::Held>,
    /// Inodes for which `lstat` fails, with its errno.
    unseen: HashMap<Ino, Errno>,
    /// Directories where another file system begins, with its id.
    mounts: HashMap<Ino, u64>,
    watches: watches::WatchState,
}

/// An open directory: the names at the time of the open that were not listed yet.
#[derive(Debug)]
struct Listing {
    ino: Ino,
    names: VecDeque<Name>,
}

/// Delay of replies, and what is not supported.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    latency: Option<Duration>,
    pending: bool,
    without_locks: bool,
}

impl Default for MemRemote {
    fn default() -> MemRemote {
        MemRemote::new()
    }
}

impl MemRemote {
    /// An empty file system with [`Options::default`].
    pub fn new() -> MemRemote {
        MemRemote::with(Options::default())
    }

    /// An empty file system with these options.
    pub fn with(options: Options) -> MemRemote {
        let tree = Tree::new(options.clock.clone(), options.limits.clone());
        let state = State {
            tree,
            next_handle: 1,
            files: HashMap::new(),
            listings: HashMap::new(),
            locks: Vec::new(),
            unseen: HashMap::new(),
            mounts: HashMap::new(),
            watches: watches::WatchState::default(),
        };
        let state = Arc::new(Mutex::new(state));
        let watches = watches::MemWatches { state: state.clone(), reported: Notify::new() };
        MemRemote {
            options,
            state,
            watches: Arc::new(watches),
            pace: Mutex::default(),
            write_verifier: Mutex::default(),
            unlocked: Notify::new(),
            calls: Counters::default(),
        }
    }

    /// Delays each reply from now on by this time, in tokio's time (which a test may pause).
    pub fn set_latency(&self, latency: Option<Duration>) {
        self.pace.lock().latency = latency;
    }

    /// Whether each reply from now on comes from another task, so that no call is ready at its
    /// first poll. Needs a tokio runtime.
    pub fn set_pending(&self, pending: bool) {
        self.pace.lock().pending = pending;
    }

    /// Sets the value of [`write_verifier`](base::Remote::write_verifier); initially none.
    pub fn set_write_verifier(&self, run: impl Into<Bytes>) {
        let mut named = self.write_verifier.lock();
        *named = Some(run.into());
    }

    /// Number of calls of `call`.
    pub fn calls(&self, call: Call) -> u64 {
        self.calls.of(call)
    }

    /// Number of calls that cost a round trip: all except [`Call::Close`] and [`Call::Closedir`].
    pub fn round_trips(&self) -> u64 {
        self.calls.round_trips()
    }

    /// Resets the counters.
    pub fn reset_calls(&self) {
        self.calls.reset();
    }

    /// Number of open files and directories.
    pub fn open_handles(&self) -> usize {
        let state = self.state.lock();
        state.files.len() + state.listings.len()
    }

    /// Waits for the delay of a reply.
    async fn answer_arrives(&self) {
        let pace = *self.pace.lock();
        if pace.pending {
            let (answer, arrival) = tokio::sync::oneshot::channel::<()>();
            tokio::spawn(async move { drop(answer) });
            // The end of the channel is the reply.
            let _ = arrival.await;
        }
        if let Some(latency) = pace.latency {
            tokio::time::sleep(latency).await;
        }
    }

    /// An operation may have changed what is watched.
    fn report_changes(&self, state: &mut State) {
        let State { tree, watches, .. } = state;
        watches.compare(tree);
        self.watches.reported.notify_waiters();
    }

    /// Counts `call`, executes it now, and returns its result after the delay.
    async fn call<T>(
        &self,
        call: Call,
        effect: impl FnOnce(&mut State, &Options) -> Result<T>,
    ) -> Result<T> {
        self.calls.count(call);
        let result = {
            let mut state = self.state.lock();
            let result = effect(&mut state, &self.options);
            self.report_changes(&mut state);
            result
        };
        self.answer_arrives().await;
        result
    }
}

impl State {
    /// The inode of `path`, which is not followed if it is a link.
    fn ino(&self, path: &RemotePath) -> Result<Ino> {
        self.tree.lookup(path, Follow::No)
    }

    /// The inode of `path`, unless its `lstat` is set to fail.
    fn seen(&self, path: &RemotePath) -> Result<Ino> {
        let ino = self.ino(path)?;
        self.unseen.get(&ino).map_or(Ok(ino), |errno| Err(*errno))
    }

    /// The file system of the entry at `path`.
    fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        self.ino(path)?;
        let above = std::iter::successors(Some(path.clone()), RemotePath::parent);
        let mut mounts = above.filter_map(|at| self.mounts.get(&self.ino(&at).ok()?).copied());
        let all = self.tree.statvfs();
        Ok(StatVfs { fsid: mounts.next().unwrap_or(all.fsid), ..all })
    }

    fn file(&self, fh: Fh) -> Result<OpenFile> {
        self.files.get(&fh.0).copied().ok_or(Errno::EBADF)
    }

    fn new_handle(&mut self, options: &Options) -> Result<u64> {
        if self.files.len() + self.listings.len() >= options.max_handles {
            return Err(Errno::EMFILE);
        }
        self.next_handle += 1;
        Ok(self.next_handle - 1)
    }

    fn close(&mut self, fh: Fh) {
        if let Some(file) = self.files.remove(&fh.0) {
            self.end_locks_of(fh);
            self.tree.release(file.ino);
        }
    }

    fn closedir(&mut self, dh: Dh) {
        if let Some(listing) = self.listings.remove(&dh.0) {
            self.tree.release(listing.ino);
        }
    }
}
