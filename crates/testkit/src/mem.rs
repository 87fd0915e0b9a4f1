//! A perfect [`Remote`] in memory: what a server with nothing to hide would answer.
//!
//! Beside the operations of the trait it offers what a test needs to see and to do:
//! the number of calls by operation (assert round trips), the number of open handles (nothing may
//! leak), changes from behind as another client of the same server would make them
//! ([`behind`](self)), and answers that take their time.
//!
//! An operation takes effect in the first poll of its future; what takes time is the answer. So
//! the rules 1 and 2 of [`base::remote`] hold as they do over a wire: a dropped call has happened,
//! and a handle that it would have brought is closed.
//!
//! One mutex guards the tree and the handles. It is never held over an await.

mod behind;
mod remote;

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Access, Dh, Errno, Fh, Name, Remote, RemotePath, Result};
use bytes::Bytes;

use crate::call::{Call, Counters};
use crate::clock::Clock;
use crate::tree::{Follow, Ino, Limits, Tree};

/// How a [`MemRemote`] is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where times come from.
    pub clock: Clock,
    /// How much it holds.
    pub limits: Limits,
    /// Open files and directories together; beyond them `EMFILE`.
    pub max_handles: usize,
    /// Longest piece in bytes in which a read arrives, as a server's packets are limited. `None`:
    /// each read is one piece.
    pub read_piece_bytes: Option<usize>,
    /// The most that one copy copies, in bytes.
    pub copy_max_bytes: u64,
    /// Entries in a batch of a listing.
    pub listing_batch: usize,
    /// Whether listings have attributes.
    pub listing_attrs: bool,
}

impl Default for Options {
    /// The machine's clock and no limits of size; batches of 100 with attributes and pieces of
    /// 255 KiB, as OpenSSH sends them; copies of 16 MiB, so that callers have to go on; 65,536
    /// handles, which only a leak reaches.
    fn default() -> Options {
        Options {
            clock: Clock::System,
            limits: Limits::default(),
            max_handles: 1 << 16,
            read_piece_bytes: Some(255 << 10),
            copy_max_bytes: 16 << 20,
            listing_batch: 100,
            listing_attrs: true,
        }
    }
}

/// A file system in memory. See the [module](self).
#[derive(Debug)]
pub struct MemRemote {
    options: Options,
    state: Mutex<State>,
    pace: Mutex<Pace>,
    write_verifier: Mutex<Option<Bytes>>,
    calls: Counters,
}

#[derive(Debug)]
struct State {
    tree: Tree,
    next_handle: u64,
    files: HashMap<u64, OpenFile>,
    listings: HashMap<u64, Listing>,
    /// What `lstat` fails for, and with what.
    unseen: HashMap<Ino, Errno>,
}

#[derive(Clone, Copy, Debug)]
struct OpenFile {
    ino: Ino,
    access: Access,
    append: bool,
}

/// An open directory: the names that it had when it was opened, still to be listed.
#[derive(Debug)]
struct Listing {
    ino: Ino,
    names: VecDeque<Name>,
}

/// How long answers take.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    latency: Option<Duration>,
    pending: bool,
}

impl Default for MemRemote {
    fn default() -> MemRemote {
        MemRemote::new()
    }
}

impl MemRemote {
    /// An empty one with [`Options::default`].
    #[must_use]
    pub fn new() -> MemRemote {
        MemRemote::with(Options::default())
    }

    /// An empty one with these options.
    #[must_use]
    pub fn with(options: Options) -> MemRemote {
        let tree = Tree::new(options.clock.clone(), options.limits.clone());
        let (files, listings, unseen) = (HashMap::new(), HashMap::new(), HashMap::new());
        let state = State { tree, next_handle: 1, files, listings, unseen };
        MemRemote {
            options,
            state: Mutex::new(state),
            pace: Mutex::default(),
            write_verifier: Mutex::default(),
            calls: Counters::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked while it held the lock has failed already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets each answer from now on take this long, in tokio's time (which a test may pause).
    pub fn set_latency(&self, latency: Option<Duration>) {
        self.pace().latency = latency;
    }

    /// Whether each answer from now on comes from another task, so that no call is ready when it
    /// is first polled. Needs a tokio runtime around the calls.
    pub fn set_pending(&self, pending: bool) {
        self.pace().pending = pending;
    }

    /// What [`Remote::write_verifier`] names from now on; at first there is none.
    pub fn set_write_verifier(&self, run: impl Into<Bytes>) {
        let mut named = self.write_verifier.lock().unwrap_or_else(PoisonError::into_inner);
        *named = Some(run.into());
    }

    /// How often `call` was made.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.calls.of(call)
    }

    /// How many calls were made that cost a round trip: all but [`Call::Close`] and
    /// [`Call::Closedir`].
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.calls.round_trips()
    }

    /// Starts counting anew.
    pub fn reset_calls(&self) {
        self.calls.reset();
    }

    /// How many files and directories are open.
    #[must_use]
    pub fn open_handles(&self) -> usize {
        let state = self.state();
        state.files.len() + state.listings.len()
    }

    /// Waits as long as an answer takes.
    async fn answer_arrives(&self) {
        let pace = *self.pace();
        if pace.pending {
            let (answer, arrival) = tokio::sync::oneshot::channel::<()>();
            tokio::spawn(async move { drop(answer) });
            // The answer is that the sender is gone.
            let _ = arrival.await;
        }
        if let Some(latency) = pace.latency {
            tokio::time::sleep(latency).await;
        }
    }

    /// Counts `call`, lets it take effect now, and gives its result when the answer has arrived.
    async fn call<T>(
        &self,
        call: Call,
        effect: impl FnOnce(&mut State, &Options) -> Result<T>,
    ) -> Result<T> {
        self.calls.count(call);
        let result = effect(&mut self.state(), &self.options);
        self.answer_arrives().await;
        result
    }
}

impl State {
    /// What `path` names, unless it cannot be looked at.
    fn seen(&self, path: &RemotePath) -> Result<Ino> {
        let ino = self.tree.lookup(path, Follow::No)?;
        self.unseen.get(&ino).map_or(Ok(ino), |errno| Err(*errno))
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
            self.tree.release(file.ino);
        }
    }

    fn closedir(&mut self, dh: Dh) {
        if let Some(listing) = self.listings.remove(&dh.0) {
            self.tree.release(listing.ino);
        }
    }
}

/// A handle whose answer is on its way; given back if nobody waits for it any more.
struct Late<'a> {
    remote: &'a MemRemote,
    give_back: Option<GiveBack>,
}

#[derive(Clone, Copy)]
enum GiveBack {
    File(Fh),
    Directory(Dh),
}

impl Drop for Late<'_> {
    fn drop(&mut self) {
        match self.give_back.take() {
            Some(GiveBack::File(fh)) => self.remote.close(fh),
            Some(GiveBack::Directory(dh)) => self.remote.closedir(dh),
            None => {}
        }
    }
}
