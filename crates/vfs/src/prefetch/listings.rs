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
use std::sync::Arc;
use std::time::Duration;

use base::{DirGuard, Errno, Mutex, RemotePath, Result};
use tokio::sync::watch;
use tokio::time::Instant;

use super::traversal::{Depth, Target, Traversal};
use super::{MAX_WAIT, Prefetcher, start};
use crate::Ino;
use crate::config::{Prefetch, Timeout};
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
    /// The end of the listing of `path`, if one is in flight.
    fn in_flight(&self, path: &RemotePath) -> Option<watch::Receiver<()>> {
        self.state.lock().in_flight.get(path).cloned()
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

impl Prefetcher {
    /// A lookup in `dir` needs a request. After several of them the whole directory is listed.
    pub(crate) fn note_piecemeal_lookup(&self, shared: &Arc<Shared>, dir: Ino) {
        if !shared.prefetches(Prefetch::Listings) || !shared.keeps_listings() {
            return;
        }
        let now = Instant::now();
        let Some(worth) = self.listings.state.lock().count_lookup(dir, now) else { return };
        let path = {
            let mut tree = shared.tree();
            let listed = tree.listing(dir).map(CachedListing::first_batch_at);
            // Just listed, and the looked-up names have overrides or have expired.
            if listed.is_some_and(|at| now < at + shared.live(|it| it.dirs).min) {
                return;
            }
            tree.path(dir)
        };
        if let Some(path) = path {
            self.start_listing(shared, path, worth, Some(dir));
        }
    }

    /// Absent names of `dir` are being looked up, and its listing will expire soon. Refreshes it,
    /// so that no caller has to wait for that.
    pub(crate) fn refresh_listing(&self, shared: &Arc<Shared>, dir: Ino) {
        let path = shared.tree().path(dir).filter(|_| shared.prefetches(Prefetch::Listings));
        if let Some(path) = path {
            self.start_listing(shared, path, MAX_NAMES, Some(dir));
        }
    }

    /// A directory is about to be listed. In a walk, prefetches the next directories.
    pub(crate) fn note_listing(
        &self,
        shared: &Arc<Shared>,
        path: &RemotePath,
        prefetched_in_time: Option<bool>,
    ) {
        if !shared.prefetches(Prefetch::Listings) || shared.live(|it| it.dirs).min.is_zero() {
            return;
        }
        let is_walk = {
            let mut state = self.listings.state.lock();
            if let Some(in_time) = prefetched_in_time {
                state.note_used(in_time);
            }
            state.step(path, Instant::now())
        };
        if is_walk {
            self.prefetch_walk(shared, Some(shared.live(|it| it.dirs)));
        }
    }

    /// A listing of `path` has arrived: continues with the directories that it shows. A directory
    /// that was listed once is not listed again until the walk itself continues.
    pub(crate) fn continue_walk(&self, shared: &Arc<Shared>, path: &RemotePath) {
        // A listing that is too large to be cached would be fetched again and again.
        let Some(has_subdirs) = shared.tree().listing_at(path).map(CachedListing::has_directories)
        else {
            return;
        };
        if has_subdirs || self.listings.state.lock().out_of_room {
            self.prefetch_walk(shared, None);
        }
    }

    /// Lists the next directories of the walk within the window that have no valid listing; without
    /// a time-out, those that have no listing at all.
    fn prefetch_walk(&self, shared: &Arc<Shared>, timeout: Option<Timeout>) {
        let (from, window, order) = {
            let mut state = self.listings.state.lock();
            let Some((from, _)) = state.steps.back().filter(|_| state.is_walk()) else { return };
            let from = from.clone();
            state.out_of_room = state.in_flight.len() >= MAX_IN_FLIGHT;
            if state.out_of_room || timeout.is_some() && state.idle.is_some() {
                return;
            }
            (from, state.window, state.order)
        };
        let next = {
            let mut tree = shared.tree();
            let order = walk_order(&mut tree, &from, order);
            let target = Target::Unlisted(timeout);
            let next = Traversal::new(&mut tree, order, Depth::InPlace, target, window).find(
                &from,
                0,
                MAX_IN_FLIGHT,
            );
            let mut state = self.listings.state.lock();
            state.order = order;
            state.out_of_room = next.len() >= MAX_IN_FLIGHT;
            let is_idle = timeout.is_some() && next.is_empty();
            state.idle = is_idle.then(|| (window / 2, Instant::now() + IDLE_PAUSE));
            next
        };
        for (path, _) in next {
            if self.listings.state.lock().in_flight.len() >= MAX_IN_FLIGHT {
                return;
            }
            self.start_listing(shared, path, MAX_NAMES, None);
        }
    }

    /// Waits for a listing of `path` in flight, for at most [`MAX_WAIT`].
    pub(crate) async fn await_listing(&self, path: &RemotePath) {
        if let Some(mut ended) = self.listings.in_flight(path) {
            // No value is ever sent: the wait ends when the sender is dropped.
            let _ = tokio::time::timeout(MAX_WAIT, ended.changed()).await;
        }
    }

    /// Begins to list `path` for the directory cache, unless that is in flight already.
    fn start_listing(&self, shared: &Arc<Shared>, path: RemotePath, most: usize, dir: Option<Ino>) {
        let ended = {
            let mut state = self.listings.state.lock();
            if state.in_flight.contains_key(&path) {
                return;
            }
            let (ended, end) = watch::channel(());
            state.in_flight.insert(path.clone(), end);
            ended
        };
        start(shared, |shared| async move {
            let in_flight = ListingInFlight { shared: &shared, path: &path, _ended: ended };
            let stamp = shared.stamp_request();
            let listed = fetch_listing(&shared, &path, stamp, most).await;
            if listed.is_err() {
                // Not to be repeated at once. A caller that lists the directory gets the error.
                let nothing = CachedListing::new(Vec::new(), false, stamp, Instant::now());
                shared.tree().insert_listing_at(path.clone(), nothing);
            }
            if let (Some(dir), Ok(Some(larger_than))) = (dir, listed)
                && let Some(piecemeal) =
                    shared.prefetch.listings.state.lock().piecemeal.get_mut(&dir)
            {
                piecemeal.larger_than = larger_than;
            }
            drop(in_flight);
            if dir.is_none() {
                shared.prefetch.continue_walk(&shared, &path);
            }
        });
    }
}

/// The order of a walk that has reached `dir`: the one in which `dir` is the first directory of its
/// parent, if it is not the first in the `present` order.
fn walk_order(tree: &mut Tree, dir: &RemotePath, present: Order) -> Order {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return present };
    let mut is_first = |order: &Order| {
        if *order == Order::Number {
            tree.ensure_number_order(&parent);
        }
        let first = tree.listing_at(&parent).and_then(|it| it.directories_from(0, *order).next());
        first.is_some_and(|first| first.name == name)
    };
    if is_first(&present) {
        return present;
    }
    Order::ALL.into_iter().find(is_first).unwrap_or(present)
}

/// Lists `path` into the directory cache. Returns the number of names read if they were more
/// than `most`.
async fn fetch_listing(
    shared: &Shared,
    path: &RemotePath,
    stamp: RequestStamp,
    most: usize,
) -> Result<Option<usize>> {
    let open = DirGuard::new(&*shared.remote, shared.remote.opendir(path).await?);
    let mut listed = Vec::new();
    let mut first_batch_at = None;
    let complete = loop {
        let batch = shared.remote.readdir(open.dh()).await?;
        let received_at = Instant::now();
        first_batch_at.get_or_insert(received_at);
        let Some(batch) = batch else { break true };
        for entry in batch {
            // If a server sends no attributes, they are requested only on demand.
            let attr = entry.attr.ok_or(Errno::EOPNOTSUPP)?;
            listed.push(CachedEntry { name: entry.name, attr: attr.into(), received_at });
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
    shared.tree().insert_listing_at(path.clone(), listing);
    Ok(larger_than)
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
        self.shared.prefetch.listings.state.lock().in_flight.remove(self.path);
    }
}
