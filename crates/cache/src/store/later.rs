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
const QUIET: Duration = Duration::from_millis(300);

/// Notes that wait, at most: some megabytes. With more, the older ones are written at once.
const MAX_NOTES: usize = 8 << 10;

/// Contents whose digests are to be made, at most: 2 MiB. Those of more are made when they are
/// asked for.
const MAX_UNDIGESTED: usize = 64 << 10;

/// How much the thread stands back when there are others who want the processor: all the way.
const NICENESS: i32 = 19;

/// Where a content was found.
struct Note {
    digest: Digest,
    origin: Origin,
}

#[derive(Default)]
struct State {
    notes: VecDeque<Note>,
    undigested: VecDeque<Digest>,
    /// Contents of earlier processes are to be looked through.
    look_through: bool,
    /// How many are looking through, or at work on a content that is not in `undigested` any more.
    at_work: usize,
    last_kept: Option<Instant>,
}

/// What waits. See the [module](self).
#[derive(Default)]
pub(crate) struct Later {
    state: Mutex<State>,
    /// Somebody is at work no more.
    done: Condvar,
    /// Held while notes are written.
    writing: Mutex<()>,
    /// The thread is at work, or waits until it may be.
    working: AtomicBool,
}

impl Later {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_quiet(&self) -> bool {
        self.lock().last_kept.is_none_or(|at| at.elapsed() >= QUIET)
    }

    fn is_empty(&self) -> bool {
        let state = self.lock();
        state.notes.is_empty() && state.undigested.is_empty() && !state.look_through
    }

    fn next_note(&self) -> Option<Note> {
        self.lock().notes.pop_front()
    }

    /// The next content, for one who is at work on it from now on.
    fn next_undigested(&self) -> Option<(Digest, AtWork<'_>)> {
        let mut state = self.lock();
        let digest = state.undigested.pop_front()?;
        state.at_work += 1;
        Some((digest, AtWork(self)))
    }

    /// Whether contents are to be looked through, by one who is at work from now on.
    fn is_to_look_through(&self) -> Option<AtWork<'_>> {
        let mut state = self.lock();
        std::mem::take(&mut state.look_through).then(|| {
            state.at_work += 1;
            AtWork(self)
        })
    }

    /// Returns when nobody is at work any more, or `goes_on` says no.
    fn until_done(&self, goes_on: &dyn Fn() -> bool) {
        // Asked from time to time, and without the lock, which it may take.
        while goes_on() {
            let state = self.lock();
            if state.at_work == 0 {
                return;
            }
            drop(self.done.wait_timeout(state, QUIET / 10));
        }
    }
}

/// Somebody is at work as long as this lives.
struct AtWork<'a>(&'a Later);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.lock().at_work -= 1;
        self.0.done.notify_all();
    }
}

impl Shared {
    /// A content was kept, or found to be here, that was at `origin`.
    pub(crate) fn note_later(self: &Arc<Shared>, digest: Digest, origin: Option<Origin>) {
        let surplus = {
            let mut state = self.later.lock();
            state.last_kept = Some(Instant::now());
            if self.digests && state.undigested.len() < MAX_UNDIGESTED {
                state.undigested.push_back(digest);
            }
            state.notes.extend(origin.map(|origin| Note { digest, origin }));
            let surplus = if state.notes.len() > MAX_NOTES { MAX_NOTES / 2 } else { 0 };
            state.notes.drain(..surplus).collect::<Vec<_>>()
        };
        surplus.into_iter().for_each(|note| self.write_note(note));
        self.start_later();
    }

    /// Contents whose digests an earlier process did not make get theirs, too.
    pub(crate) fn look_through_later(self: &Arc<Shared>) {
        self.later.lock().look_through = true;
        self.start_later();
    }

    /// Writes the notes that wait.
    pub(crate) fn write_notes(&self) {
        // Whoever is here last returns when all of them are written.
        let _writing = self.later.writing.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(note) = self.later.next_note() {
            self.write_note(note);
        }
    }

    fn write_note(&self, note: Note) {
        self.add_to_about(&note.digest, Some(note.origin), None);
    }

    /// Makes the digests that wait now, as long as `goes_on` says so. Those that others are at are
    /// waited for.
    pub(crate) fn make_waiting_digests(self: &Arc<Shared>, goes_on: &dyn Fn() -> bool) {
        loop {
            if let Some(at_work) = self.later.is_to_look_through() {
                let found = self.undigested();
                self.later.lock().undigested.extend(found);
                drop(at_work);
            }
            while goes_on()
                && let Some((digest, _at_work)) = self.later.next_undigested()
            {
                if self.make_digests(&digest, goes_on).is_none() && !goes_on() {
                    // Given up in the middle, perhaps.
                    self.later.lock().undigested.push_front(digest);
                }
            }
            self.later.until_done(goes_on);
            // Whoever was at work may have found more, or given up.
            if !goes_on() || self.later.lock().undigested.is_empty() {
                return;
            }
        }
    }

    /// The contents that are here, but for those beyond what may wait.
    fn undigested(&self) -> Vec<Digest> {
        let mut items = Vec::new();
        scan::objects(&self.places(), &mut items);
        let digests = items.into_iter().filter_map(|item| match item.what {
            What::Object(digest, _) => Some(digest),
            What::Partial(_) | What::Records(..) => None,
        });
        digests.take(MAX_UNDIGESTED).collect()
    }

    fn start_later(self: &Arc<Shared>) {
        if self.later.working.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("cache-later".into());
        if thread.spawn(move || work(&shared)).is_err() {
            self.later.working.store(false, Ordering::Release);
        }
    }
}

/// What the thread does until nothing is left, or nobody has the store open any more.
fn work(shared: &Weak<Shared>) {
    stand_back(NICENESS);
    loop {
        std::thread::sleep(QUIET);
        let Some(shared) = shared.upgrade() else { return };
        if !shared.later.is_quiet() {
            continue;
        }
        shared.write_notes();
        // The last to have it open would keep it open for nobody.
        let goes_on = || shared.later.is_quiet() && Arc::strong_count(&shared) > 1;
        shared.make_waiting_digests(&goes_on);
        if !shared.later.is_empty() {
            continue;
        }
        shared.later.working.store(false, Ordering::Release);
        // Something may have come between the two.
        if shared.later.is_empty() || shared.later.working.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

/// Lets others have the processor first. If that is not allowed, all goes on as well.
pub(crate) fn stand_back(niceness: i32) {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), niceness);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn others_who_are_at_work_are_waited_for_as_long_as_one_goes_on() {
        let later = Later::default();
        later.until_done(&|| true);
        later.lock().undigested.push_back(Digest::of(b"content"));
        let (_, at_work) = later.next_undigested().unwrap();
        let looks = Cell::new(0);
        later.until_done(&|| {
            looks.set(looks.get() + 1);
            later.is_quiet() && looks.get() < 3
        });
        assert_eq!(looks.get(), 3);
        std::thread::scope(|scope| {
            scope.spawn(|| later.until_done(&|| true));
            drop(at_work);
        });
        later.lock().look_through = true;
        let at_work = later.is_to_look_through().unwrap();
        assert!(later.is_to_look_through().is_none());
        later.until_done(&|| false);
        drop(at_work);
        later.until_done(&|| true);
    }
}
