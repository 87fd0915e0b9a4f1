//! Prefetching of listings.
//!
//! Two patterns of programs make that useful. If a directory is *looked up piecemeal* (a compiler
//! that searches its include path, `git status`), it is listed as a whole, so that one request
//! answers for all its names; and again before its answers about absent names expire, as long as
//! such names are looked up. In a *walk* (`find`, `ls -lR`, `tar`), which lists directories depth
//! first, the next directories are listed ahead.
//!
//! The results go into the directory cache and are valid as long as any other listing. A caller
//! that needs one in flight waits a little, and then lists the directory itself.
//!
//! Bounds: a listing for piecemeal lookups never costs more requests than the lookups did; a walk
//! has a window that grows while prefetched listings are used and shrinks when they expire first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{DirGuard, Errno, Name, RemotePath, Result};
use tokio::sync::watch;
use tokio::time::Instant;

use super::MAX_WAIT;
use crate::Ino;
use crate::config::Timeout;
use crate::dir_cache::{CachedEntry, CachedListing, Order};
use crate::shared::Shared;
use crate::tree::{RequestStamp, Tree};

/// Lookups of a directory that needed a request before it is listed. Fewer are no pattern.
const MIN_PIECEMEAL_LOOKUPS: usize = 4;

/// The time between two of them, at most.
const PIECEMEAL_PAUSE: Duration = Duration::from_secs(1);

/// Names fetched for each lookup that needed a request: the size of one answer of OpenSSH's server.
const NAMES_PER_LOOKUP: usize = 100;

/// The longest listing that is prefetched, in names. Some 3 MiB on the wire.
const MAX_NAMES: usize = 20_000;

/// Directories whose lookups are counted.
const MAX_PIECEMEAL_DIRS: usize = 256;

/// Directories listed one below the other that make a walk.
const MIN_WALK_SCORE: u32 = 2;

/// How long a directory is remembered as a step of a walk after it, or anything in it, was listed.
const STEP_LIFETIME: Duration = Duration::from_secs(3);

/// Steps of a walk that are remembered: several times the depth of most trees.
const MAX_STEPS: usize = 64;

/// Directories listed ahead in a walk: at first, at least and at most. At 100 ms and 64 directories
/// a walk gets one in 2 to 3 ms, which is about what the programs need for them.
const WINDOW: (usize, usize, usize) = (8, 2, 64);

/// How long no search for directories is made after one found all of them listed: a part of the
/// shortest default time-out of listings.
const IDLE_PAUSE: Duration = Duration::from_millis(250);

/// Listings in flight, at most. Each has up to three requests in flight.
const MAX_IN_FLIGHT: usize = 16;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct ListingPrefetch {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the path of the directory when it was requested.
    in_flight: HashMap<RemotePath, watch::Receiver<()>>,
    piecemeal: HashMap<Ino, PiecemealLookups>,
    steps: VecDeque<(RemotePath, Instant)>,
    score: u32,
    window: usize,
    /// The order in which the walk visits directories.
    order: Order,
    /// There were more directories to list than allowed in flight.
    out_of_room: bool,
    /// All directories ahead were listed, so no search is made for this many steps, and until then:
    /// it costs more than a step does.
    idle: Option<(usize, Instant)>,
}

/// Lookups in one directory that needed a request.
#[derive(Clone, Copy)]
struct PiecemealLookups {
    count: usize,
    last: Instant,
    /// The directory has more names than this.
    larger_than: usize,
}

impl ListingPrefetch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of the listing of `path`, if one is in flight.
    fn in_flight(&self, path: &RemotePath) -> Option<watch::Receiver<()>> {
        self.state().in_flight.get(path).cloned()
    }
}

impl State {
    /// Counts a lookup. Returns how many names of the directory are worth fetching now.
    fn count_lookup(&mut self, dir: Ino, now: Instant) -> Option<usize> {
        if self.piecemeal.len() >= MAX_PIECEMEAL_DIRS && !self.piecemeal.contains_key(&dir) {
            self.piecemeal.retain(|_, piecemeal| now < piecemeal.last + PIECEMEAL_PAUSE);
            if self.piecemeal.len() >= MAX_PIECEMEAL_DIRS {
                return None;
            }
        }
        let piecemeal = self.piecemeal.entry(dir).or_insert(PiecemealLookups {
            count: 0,
            last: now,
            larger_than: 0,
        });
        if now >= piecemeal.last + PIECEMEAL_PAUSE {
            piecemeal.count = 0;
        }
        piecemeal.count += 1;
        piecemeal.last = now;
        let worth = (piecemeal.count * NAMES_PER_LOOKUP).min(MAX_NAMES);
        // Doubled, so that all attempts together cost no more than twice the last.
        (piecemeal.count >= MIN_PIECEMEAL_LOOKUPS && worth >= piecemeal.larger_than * 2)
            .then_some(worth)
    }

    /// The walk has reached `path`. Returns whether it is a walk.
    fn step(&mut self, path: &RemotePath, now: Instant) -> bool {
        self.steps.retain(|(_, at)| now < *at + STEP_LIFETIME);
        let parent = path.parent();
        let above = self.steps.iter_mut().find(|(step, _)| parent.as_ref() == Some(step));
        let continues = above.is_some();
        if let Some((_, at)) = above {
            // The walk continues as long as something below is listed.
            *at = now;
        }
        self.score = if continues { self.score + 1 } else { 0 };
        self.idle = self.idle.and_then(|(steps, until)| Some((steps.checked_sub(1)?, until)));
        if !continues || self.idle.is_some_and(|(_, until)| now >= until) {
            self.idle = None;
        }
        self.steps.retain(|(step, _)| step != path);
        self.steps.push_back((path.clone(), now));
        if self.steps.len() > MAX_STEPS {
            self.steps.pop_front();
        }
        if self.window == 0 {
            self.window = WINDOW.0;
        }
        self.is_walk()
    }

    fn is_walk(&self) -> bool {
        self.score >= MIN_WALK_SCORE
    }

    /// A prefetched listing was used in time, or had expired by then.
    fn note_used(&mut self, in_time: bool) {
        self.window =
            if in_time { (self.window * 2).min(WINDOW.2) } else { (self.window / 4).max(WINDOW.1) };
    }
}

impl Shared {
    /// Whether listings are cached at all.
    pub(crate) fn keeps_listings(&self) -> bool {
        !self.config.dirs.min.is_zero() || !self.config.negative.is_zero()
    }

    /// A lookup in `dir` needs a request. After several of them the whole directory is listed.
    pub(crate) fn note_piecemeal_lookup(self: &Arc<Self>, dir: Ino) {
        if !self.keeps_listings() {
            return;
        }
        let now = Instant::now();
        let Some(worth) = self.prefetch.listings.state().count_lookup(dir, now) else { return };
        let path = {
            let mut tree = self.tree();
            let listed = tree.listing(dir).map(CachedListing::first_batch_at);
            // Just listed, and the looked-up names have overrides or have expired.
            if listed.is_some_and(|at| now < at + self.config.dirs.min) {
                return;
            }
            tree.path(dir)
        };
        if let Some(path) = path {
            self.start_listing(path, worth, Some(dir));
        }
    }

    /// Absent names of `dir` are being looked up, and its listing will expire soon. Refreshes it,
    /// so that no caller has to wait for that.
    pub(crate) fn refresh_listing(self: &Arc<Self>, dir: Ino) {
        let path = self.tree().path(dir);
        if let Some(path) = path {
            self.start_listing(path, MAX_NAMES, Some(dir));
        }
    }

    /// A directory is about to be listed. In a walk, prefetches the next directories.
    pub(crate) fn note_listing(
        self: &Arc<Self>,
        path: &RemotePath,
        prefetched_in_time: Option<bool>,
    ) {
        if self.config.dirs.min.is_zero() {
            return;
        }
        let is_walk = {
            let mut state = self.prefetch.listings.state();
            if let Some(in_time) = prefetched_in_time {
                state.note_used(in_time);
            }
            state.step(path, Instant::now())
        };
        if is_walk {
            self.prefetch_walk(Some(self.config.dirs));
        }
    }

    /// A listing of `path` has arrived: continues with the directories that it shows. A directory
    /// that was listed once is not listed again until the walk itself continues.
    pub(crate) fn continue_walk(self: &Arc<Self>, path: &RemotePath) {
        // A listing that is too large to be cached would be fetched again and again.
        let Some(has_subdirs) = self.tree().listing_at(path).map(CachedListing::has_directories)
        else {
            return;
        };
        if has_subdirs || self.prefetch.listings.state().out_of_room {
            self.prefetch_walk(None);
        }
    }

    /// Lists the next directories of the walk within the window that have no valid listing; without
    /// a time-out, those that have no listing at all.
    fn prefetch_walk(self: &Arc<Self>, timeout: Option<Timeout>) {
        let (from, window, order) = {
            let mut state = self.prefetch.listings.state();
            let Some((from, _)) = state.steps.back().filter(|_| state.is_walk()) else { return };
            let from = from.clone();
            state.out_of_room = state.in_flight.len() >= MAX_IN_FLIGHT;
            if state.out_of_room || timeout.is_some() && state.idle.is_some() {
                return;
            }
            (from, state.window, state.order)
        };
        let next = {
            let mut tree = self.tree();
            let (order, next) = WalkAhead::new(&mut tree, timeout, order).after(&from, window);
            let mut state = self.prefetch.listings.state();
            state.order = order;
            state.out_of_room = next.len() >= MAX_IN_FLIGHT;
            let is_idle = timeout.is_some() && next.is_empty();
            state.idle = is_idle.then(|| (window / 2, Instant::now() + IDLE_PAUSE));
            next
        };
        for path in next {
            if self.prefetch.listings.state().in_flight.len() >= MAX_IN_FLIGHT {
                return;
            }
            self.start_listing(path, MAX_NAMES, None);
        }
    }

    /// Waits for a listing of `path` in flight, for at most [`MAX_WAIT`].
    pub(crate) async fn await_listing(&self, path: &RemotePath) {
        if let Some(mut ended) = self.prefetch.listings.in_flight(path) {
            // No value is ever sent: the wait ends when the sender is dropped.
            let _ = tokio::time::timeout(MAX_WAIT, ended.changed()).await;
        }
    }

    /// Begins to list `path` for the directory cache, unless that is in flight already.
    fn start_listing(self: &Arc<Self>, path: RemotePath, most: usize, dir: Option<Ino>) {
        let ended = {
            let mut state = self.prefetch.listings.state();
            if state.in_flight.contains_key(&path) {
                return;
            }
            let (ended, end) = watch::channel(());
            state.in_flight.insert(path.clone(), end);
            ended
        };
        let shared = self.clone();
        self.background.start(async move {
            let in_flight = ListingInFlight { shared: &shared, path: &path, _ended: ended };
            let stamp = shared.stamp_request();
            let listed = shared.fetch_listing(&path, stamp, most).await;
            if listed.is_err() {
                // Not to be repeated at once. A caller that lists the directory gets the error.
                let nothing = CachedListing::new(Vec::new(), false, stamp, Instant::now());
                shared.tree().insert_listing_at(path.clone(), nothing);
            }
            if let (Some(dir), Ok(Some(larger_than))) = (dir, listed)
                && let Some(piecemeal) = shared.prefetch.listings.state().piecemeal.get_mut(&dir)
            {
                piecemeal.larger_than = larger_than;
            }
            drop(in_flight);
            if dir.is_none() {
                shared.continue_walk(&path);
            }
        });
    }

    /// Lists `path` into the directory cache. Returns the number of names read if they were more
    /// than `most`.
    async fn fetch_listing(
        &self,
        path: &RemotePath,
        stamp: RequestStamp,
        most: usize,
    ) -> Result<Option<usize>> {
        let open = DirGuard::new(&*self.remote, self.remote.opendir(path).await?);
        let mut listed = Vec::new();
        let mut first_batch_at = None;
        let complete = loop {
            let batch = self.remote.readdir(open.dh()).await?;
            let received_at = Instant::now();
            first_batch_at.get_or_insert(received_at);
            let Some(batch) = batch else { break true };
            for entry in batch {
                // If a server sends no attributes, they are requested only on demand.
                let attr = entry.attr.ok_or(Errno::EOPNOTSUPP)?;
                listed.push(CachedEntry { name: entry.name, attr, received_at });
            }
            if listed.len() > most {
                break false;
            }
        };
        drop(open);
        let larger_than = (!complete).then_some(listed.len());
        let mut listing =
            CachedListing::new(listed, complete, stamp, first_batch_at.unwrap_or(stamp.at));
        listing.mark_prefetched();
        self.tree().insert_listing_at(path.clone(), listing);
        Ok(larger_than)
    }
}

/// A listing in flight. Removed from the list when dropped, whether it succeeded or not.
struct ListingInFlight<'a> {
    shared: &'a Shared,
    path: &'a RemotePath,
    /// Wakes the callers that wait, after the listing is off the list.
    _ended: watch::Sender<()>,
}

impl Drop for ListingInFlight<'_> {
    fn drop(&mut self) {
        self.shared.prefetch.listings.state().in_flight.remove(self.path);
    }
}

/// The next directories of a walk, by the cached listings.
struct WalkAhead<'a> {
    tree: &'a mut Tree,
    /// How long a listing is valid; `None`: for ever.
    timeout: Option<Timeout>,
    order: Order,
    /// Directories that the walk may still visit.
    dirs_left: usize,
    unlisted: Vec<RemotePath>,
}

impl WalkAhead<'_> {
    fn new(tree: &mut Tree, timeout: Option<Timeout>, order: Order) -> WalkAhead<'_> {
        WalkAhead { tree, timeout, order, dirs_left: 0, unlisted: Vec::new() }
    }

    /// The directories without a listing among the next `window` of a walk that is at `from`, up to
    /// [`MAX_IN_FLIGHT`]; and the order of the walk.
    fn after(mut self, from: &RemotePath, window: usize) -> (Order, Vec<RemotePath>) {
        self.order = self.order_up_to(from).unwrap_or(self.order);
        self.visit_after(from, window);
        (self.order, self.unlisted)
    }

    fn visit_after(&mut self, from: &RemotePath, window: usize) {
        self.dirs_left = window;
        self.below(from);
        let mut at = from.clone();
        while self.dirs_left > 0
            && let (Some(parent), Some(name)) = (at.parent(), at.file_name())
        {
            let dirs = self.directories(&parent);
            let position = dirs.iter().position(|(dir, _)| *dir == name);
            for (dir, _) in
                dirs.iter().skip(position.map_or(dirs.len(), |at| at + 1)).filter(is_present)
            {
                self.visit(&parent.join(dir));
            }
            at = parent;
        }
    }

    /// The order in which `from` is the first directory, if it is not the first in the present
    /// order.
    fn order_up_to(&mut self, from: &RemotePath) -> Option<Order> {
        let (parent, name) = (from.parent()?, from.file_name()?);
        let dirs = self.tree.directories(&parent, Order::Listing);
        let is_first = |order: &Order| {
            let first = match order {
                Order::Listing => dirs.first(),
                Order::Name => dirs.iter().min_by_key(|(dir, _)| dir.as_bytes()),
                Order::Number => {
                    let number = self.tree.expected_numbers_in(&parent);
                    dirs.iter().min_by_key(|(dir, _)| number(dir))
                }
            };
            first.is_some_and(|(first, _)| *first == name)
        };
        if is_first(&self.order) { None } else { Order::ALL.into_iter().find(is_first) }
    }

    fn directories(&mut self, path: &RemotePath) -> Vec<(Name, bool)> {
        self.tree.directories(path, self.order)
    }

    fn visit(&mut self, path: &RemotePath) {
        if self.dirs_left == 0 {
            return;
        }
        self.dirs_left -= 1;
        if self.tree.has_valid_listing(path, self.timeout) {
            self.below(path);
        } else {
            self.unlisted.push(path.clone());
            if self.unlisted.len() >= MAX_IN_FLIGHT {
                self.dirs_left = 0;
            }
        }
    }

    fn below(&mut self, path: &RemotePath) {
        for (dir, _) in self.directories(path).iter().filter(is_present) {
            if self.dirs_left == 0 {
                return;
            }
            self.visit(&path.join(dir));
        }
    }
}

/// Whether a directory was not removed since it was listed.
fn is_present((_, is_present): &&(Name, bool)) -> bool {
    *is_present
}
