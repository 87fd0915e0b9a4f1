//! Deferred work: records of where contents were found, and their digests of other kinds.
//!
//! A content of one chunk needs no other file, since its name is its checksum. So the record of
//! where it was found is written when the store has been idle for a moment, and its MD5, SHA-1 and
//! SHA-256, which take longer than all the rest, are computed after that. Neither takes processor
//! time from a reader.
//!
//! Records are written when there are too many, before a clean-up, and when the store is closed;
//! digests that are not computed by then are computed on request. A killed process loses its
//! records: they matter only when the index is lost, too.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::Mutex;

use super::shared::Shared;
use crate::digest::Digest;
use crate::object::about::Origin;

/// Time without a new content after which the work begins, and between two checks.
const IDLE_AFTER: Duration = Duration::from_millis(300);

/// Bound on the deferred records: some megabytes. Beyond it the older ones are written at once.
const MAX_NOTES: usize = 8 << 10;

/// Bound on the contents whose digests are due: 2 MiB. Those of others are computed on request.
const MAX_UNDIGESTED: usize = 64 << 10;

/// The nice value of the thread: the lowest priority.
const NICE_INCREMENT: i32 = 19;

#[derive(Default)]
struct Queue {
    /// The files where contents were found.
    notes: VecDeque<(Digest, Origin)>,
    undigested: VecDeque<Digest>,
    last_kept: Option<Instant>,
}

/// The deferred work. See the [module](self).
#[derive(Default)]
pub(crate) struct DeferredWork {
    queue: Mutex<Queue>,
    /// Held while records are written.
    writing: Mutex<()>,
    /// The thread is running.
    running: AtomicBool,
}

impl DeferredWork {
    fn is_idle(&self) -> bool {
        self.queue.lock().last_kept.is_none_or(|at| at.elapsed() >= IDLE_AFTER)
    }

    fn is_empty(&self) -> bool {
        let queue = self.queue.lock();
        queue.notes.is_empty() && queue.undigested.is_empty()
    }
}

impl Shared {
    /// Defers the work for a content that was kept, or found in the store, for the file `origin`.
    pub(crate) fn defer_work(self: &Arc<Shared>, digest: Digest, origin: Option<Origin>) {
        let excess = {
            let mut queue = self.deferred.queue.lock();
            queue.last_kept = Some(Instant::now());
            if self.digests && queue.undigested.len() < MAX_UNDIGESTED {
                queue.undigested.push_back(digest);
            }
            queue.notes.extend(origin.map(|origin| (digest, origin)));
            let excess = if queue.notes.len() > MAX_NOTES { MAX_NOTES / 2 } else { 0 };
            queue.notes.drain(..excess).collect::<Vec<_>>()
        };
        self.write(excess);
        self.start_deferred();
    }

    /// Writes the deferred records.
    pub(crate) fn write_notes(&self) {
        // Under the lock, so that all of them are written when a second caller returns.
        let _writing = self.deferred.writing.lock();
        let notes = std::mem::take(&mut self.deferred.queue.lock().notes);
        self.write(notes);
    }

    fn write(&self, notes: impl IntoIterator<Item = (Digest, Origin)>) {
        for (digest, origin) in notes {
            self.add_to_about(&digest, Some(origin), None);
        }
    }

    /// Computes the digests that are due, as long as `may_continue` returns true. Long.
    fn compute_due(self: &Arc<Shared>, may_continue: &dyn Fn() -> bool) {
        let queue = &self.deferred.queue;
        while may_continue() {
            let Some(digest) = queue.lock().undigested.pop_front() else { return };
            if self.make_digests(&digest, may_continue).is_none() && !may_continue() {
                // It may have been given up in the middle.
                queue.lock().undigested.push_front(digest);
            }
        }
    }

    fn start_deferred(self: &Arc<Shared>) {
        if self.deferred.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("cache-deferred".into());
        if thread.spawn(move || run(&shared)).is_err() {
            self.deferred.running.store(false, Ordering::Release);
        }
    }
}

/// Runs until nothing is left, or the store is closed.
fn run(shared: &Weak<Shared>) {
    lower_priority(NICE_INCREMENT);
    loop {
        std::thread::sleep(IDLE_AFTER);
        let Some(shared) = shared.upgrade() else { return };
        if !shared.deferred.is_idle() {
            continue;
        }
        shared.write_notes();
        // Ends when this thread holds the last reference to the store.
        shared.compute_due(&|| shared.deferred.is_idle() && Arc::strong_count(&shared) > 1);
        if !shared.deferred.is_empty() {
            continue;
        }
        shared.deferred.running.store(false, Ordering::Release);
        // Work may have been added between the two.
        if shared.deferred.is_empty() || shared.deferred.running.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

/// Sets the nice value of this thread. Failing has no effect but the priority.
pub(crate) fn lower_priority(niceness: i32) {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), niceness);
}
