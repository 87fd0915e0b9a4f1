//! What can wait until nobody reads: notes about contents, and their digests of other kinds.
//!
//! A content of one chunk needs nothing beside it to be used, since its name is its checksum. So
//! where it was found is written when the store has been left alone for a moment, and its MD5,
//! SHA-1 and SHA-256, which take longer to make than all the rest, after that. A reader shares the
//! processor with neither.
//!
//! Notes are written when there are too many, before a clean-up, and when the store is closed;
//! digests that are not made by then are made when they are asked for. A killed process loses its
//! notes: they only matter when the index is lost, too.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::scan::{self, What};
use super::shared::Shared;
use crate::digest::Digest;
use crate::object::about::Origin;

/// For how long nothing must have been kept before the work begins, and between two looks at that.
const IDLE_AFTER: Duration = Duration::from_millis(300);

/// Notes that wait, at most: some megabytes. With more, the older ones are written at once.
const MAX_NOTES: usize = 8 << 10;

/// Contents whose digests are to be made, at most: 2 MiB. Those of more are made when they are
/// asked for.
const MAX_UNDIGESTED: usize = 64 << 10;

/// How much the thread stands back when there are others who want the processor: all the way.
const NICE_INCREMENT: i32 = 19;

/// Where a content was found.
struct Note {
    digest: Digest,
    origin: Origin,
}

#[derive(Default)]
struct Queue {
    notes: VecDeque<Note>,
    undigested: VecDeque<Digest>,
    /// Contents of earlier processes are to be looked through.
    scan_due: bool,
    /// How many are looking through, or at work on a content that is not in `undigested` any more.
    workers: usize,
    last_kept: Option<Instant>,
}

/// What waits. See the [module](self).
#[derive(Default)]
pub(crate) struct DeferredWork {
    state: Mutex<Queue>,
    /// Somebody is at work no more.
    done: Condvar,
    /// Held while notes are written.
    writing: Mutex<()>,
    /// The thread is at work, or waits until it may be.
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

    /// The next content, for one who is at work on it from now on.
    fn next_undigested(&self) -> Option<(Digest, Worker<'_>)> {
        let mut state = self.lock();
        let digest = state.undigested.pop_front()?;
        state.workers += 1;
        Some((digest, Worker(self)))
    }

    /// Whether contents are to be looked through, by one who is at work from now on.
    fn take_scan(&self) -> Option<Worker<'_>> {
        let mut state = self.lock();
        std::mem::take(&mut state.scan_due).then(|| {
            state.workers += 1;
            Worker(self)
        })
    }

    /// Returns when nobody is at work any more, or `may_continue` says no.
    fn until_done(&self, may_continue: &dyn Fn() -> bool) {
        // Asked from time to time, and without the lock, which it may take.
        while may_continue() {
            let state = self.lock();
            if state.workers == 0 {
                return;
            }
            drop(self.done.wait_timeout(state, IDLE_AFTER / 10));
        }
    }
}

/// Somebody is at work as long as this lives.
struct Worker<'a>(&'a DeferredWork);

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.0.lock().workers -= 1;
        self.0.done.notify_all();
    }
}

impl Shared {
    /// A content was kept, or found to be here, that was at `origin`.
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

    /// Contents whose digests an earlier process did not make get theirs, too.
    pub(crate) fn defer_scan(self: &Arc<Shared>) {
        self.deferred.lock().scan_due = true;
        self.start_deferred();
    }

    /// Writes the notes that wait.
    pub(crate) fn write_notes(&self) {
        // Whoever is here last returns when all of them are written.
        let _writing = self.deferred.writing.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(note) = self.deferred.next_note() {
            self.write_note(note);
        }
    }

    fn write_note(&self, note: Note) {
        self.add_to_about(&note.digest, Some(note.origin), None);
    }

    /// Makes the digests that wait now, as long as `may_continue` says so. Those that others are at are
    /// waited for.
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
                    // Given up in the middle, perhaps.
                    self.deferred.lock().undigested.push_front(digest);
                }
            }
            self.deferred.until_done(may_continue);
            // Whoever was at work may have found more, or given up.
            if !may_continue() || self.deferred.lock().undigested.is_empty() {
                return;
            }
        }
    }

    /// The contents that are here, but for those beyond what may wait.
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

/// What the thread does until nothing is left, or nobody has the store open any more.
fn run(shared: &Weak<Shared>) {
    lower_priority(NICE_INCREMENT);
    loop {
        std::thread::sleep(IDLE_AFTER);
        let Some(shared) = shared.upgrade() else { return };
        if !shared.deferred.is_idle() {
            continue;
        }
        shared.write_notes();
        // The last to have it open would keep it open for nobody.
        let may_continue = || shared.deferred.is_idle() && Arc::strong_count(&shared) > 1;
        shared.make_waiting_digests(&may_continue);
        if !shared.deferred.is_empty() {
            continue;
        }
        shared.deferred.running.store(false, Ordering::Release);
        // Something may have come between the two.
        if shared.deferred.is_empty() || shared.deferred.running.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

/// Lets others have the processor first. If that is not allowed, all goes on as well.
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
