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
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::scan::{self, What};
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

/// A record of where a content was found.
struct Note {
    digest: Digest,
    origin: Origin,
}

#[derive(Default)]
struct Queue {
    notes: VecDeque<Note>,
    undigested: VecDeque<Digest>,
    /// The contents of earlier processes have to be scanned.
    scan_due: bool,
    /// Workers that scan, or compute the digests of a content that is no longer in `undigested`.
    workers: usize,
    last_kept: Option<Instant>,
}

/// The deferred work. See the [module](self).
#[derive(Default)]
pub(crate) struct DeferredWork {
    state: Mutex<Queue>,
    /// Notified when a worker ends.
    done: Condvar,
    /// Held while records are written.
    writing: Mutex<()>,
    /// The thread is running.
    running: AtomicBool,
}

impl DeferredWork {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self) -> bool {
        self.lock().last_kept.is_none_or(|at| at.elapsed() >= IDLE_AFTER)
    }

    fn is_empty(&self) -> bool {
        let state = self.lock();
        state.notes.is_empty() && state.undigested.is_empty() && !state.scan_due
    }

    fn next_note(&self) -> Option<Note> {
        self.lock().notes.pop_front()
    }

    /// The next content, with a guard that counts the worker.
    fn next_undigested(&self) -> Option<(Digest, Worker<'_>)> {
        let mut state = self.lock();
        let digest = state.undigested.pop_front()?;
        state.workers += 1;
        Some((digest, Worker(self)))
    }

    /// A guard that counts the worker, if a scan is due.
    fn take_scan(&self) -> Option<Worker<'_>> {
        let mut state = self.lock();
        std::mem::take(&mut state.scan_due).then(|| {
            state.workers += 1;
            Worker(self)
        })
    }

    /// Returns when no worker is left, or `may_continue` returns false.
    fn until_done(&self, may_continue: &dyn Fn() -> bool) {
        // Called without the lock, which it may take.
        while may_continue() {
            let state = self.lock();
            if state.workers == 0 {
                return;
            }
            drop(self.done.wait_timeout(state, IDLE_AFTER / 10));
        }
    }
}

/// Counts a worker until it is dropped.
struct Worker<'a>(&'a DeferredWork);

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.0.lock().workers -= 1;
        self.0.done.notify_all();
    }
}

impl Shared {
    /// Defers the work for a content that was kept, or found in the store, for the file `origin`.
    pub(crate) fn defer_work(self: &Arc<Shared>, digest: Digest, origin: Option<Origin>) {
        let excess = {
            let mut state = self.deferred.lock();
            state.last_kept = Some(Instant::now());
            if self.digests && state.undigested.len() < MAX_UNDIGESTED {
                state.undigested.push_back(digest);
            }
            state.notes.extend(origin.map(|origin| Note { digest, origin }));
            let excess = if state.notes.len() > MAX_NOTES { MAX_NOTES / 2 } else { 0 };
            state.notes.drain(..excess).collect::<Vec<_>>()
        };
        excess.into_iter().for_each(|note| self.write_note(note));
        self.start_deferred();
    }

    /// Defers a scan for contents whose digests an earlier process has not computed.
    pub(crate) fn defer_scan(self: &Arc<Shared>) {
        self.deferred.lock().scan_due = true;
        self.start_deferred();
    }

    /// Writes the deferred records.
    pub(crate) fn write_notes(&self) {
        // Under the lock, so that all of them are written when a second caller returns.
        let _writing = self.deferred.writing.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(note) = self.deferred.next_note() {
            self.write_note(note);
        }
    }

    fn write_note(&self, note: Note) {
        self.add_to_about(&note.digest, Some(note.origin), None);
    }

    /// Computes the digests that are due, as long as `may_continue` returns true, and waits for
    /// those that other workers compute.
    pub(crate) fn make_waiting_digests(self: &Arc<Shared>, may_continue: &dyn Fn() -> bool) {
        loop {
            if let Some(worker) = self.deferred.take_scan() {
                let found = self.undigested();
                self.deferred.lock().undigested.extend(found);
                drop(worker);
            }
            while may_continue()
                && let Some((digest, _worker)) = self.deferred.next_undigested()
            {
                if self.make_digests(&digest, may_continue).is_none() && !may_continue() {
                    // It may have been given up in the middle.
                    self.deferred.lock().undigested.push_front(digest);
                }
            }
            self.deferred.until_done(may_continue);
            // Other workers may have added contents, or given up.
            if !may_continue() || self.deferred.lock().undigested.is_empty() {
                return;
            }
        }
    }

    /// The contents in the store, up to the bound.
    fn undigested(&self) -> Vec<Digest> {
        let mut items = Vec::new();
        scan::objects(&self.layout(), &mut items);
        let digests = items.into_iter().filter_map(|item| match item.what {
            What::Object(digest, _) => Some(digest),
            What::Partial(_) | What::Records(..) => None,
        });
        digests.take(MAX_UNDIGESTED).collect()
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
        let may_continue = || shared.deferred.is_idle() && Arc::strong_count(&shared) > 1;
        shared.make_waiting_digests(&may_continue);
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn others_who_are_worker_are_waited_for_as_long_as_one_goes_on() {
        let deferred = DeferredWork::default();
        deferred.until_done(&|| true);
        deferred.lock().undigested.push_back(Digest::of(b"content"));
        let (_, worker) = deferred.next_undigested().unwrap();
        let looks = Cell::new(0);
        deferred.until_done(&|| {
            looks.set(looks.get() + 1);
            deferred.is_idle() && looks.get() < 3
        });
        assert_eq!(looks.get(), 3);
        std::thread::scope(|scope| {
            scope.spawn(|| deferred.until_done(&|| true));
            drop(worker);
        });
        deferred.lock().scan_due = true;
        let worker = deferred.take_scan().unwrap();
        assert!(deferred.take_scan().is_none());
        deferred.until_done(&|| false);
        drop(worker);
        deferred.until_done(&|| true);
    }
}
