//! Listings that are fetched before anybody asks for them.
//!
//! Two habits of programs make that worth while. A directory that is *looked up piecemeal* (a
//! compiler that searches its include path, `git status`) is listed as a whole, so that one
//! question answers for all its names, and again before its answer about absent names is too old,
//! as long as such names are looked up. In a *walk* (`find`, `ls -lR`, `tar`), where directories
//! are listed depth first, the ones that come next are listed ahead.
//!
//! What is fetched goes into the snapshots and counts as long as any other listing; whoever needs
//! it sooner than it comes waits a little and then asks by itself.
//!
//! Bounds: a listing for piecemeal look-ups never costs more requests than the look-ups did; a
//! walk is followed by a window that grows while the listings are used and shrinks when they come
//! too early.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Dh, Errno, Name, Remote, RemotePath, Result};
use tokio::sync::watch;
use tokio::time::Instant;

use super::MAX_WAIT;
use crate::Ino;
use crate::config::Timeout;
use crate::dir_cache::{CachedEntry, CachedListing, Order};
use crate::shared::Shared;
use crate::tree::{RequestStamp, Tree};

/// Look-ups of a directory that had to ask before it is listed. Fewer are no habit.
const MIN_PIECEMEAL_LOOKUPS: usize = 4;

/// The time between two of them, at most.
const PIECEMEAL_PAUSE: Duration = Duration::from_secs(1);

/// Names fetched for each look-up that had to ask: what OpenSSH's server puts into one answer.
const NAMES_PER_LOOKUP: usize = 100;

/// Longest listing in names that is fetched without being asked for. Some 3 MiB on the wire.
const MAX_NAMES: usize = 20_000;

/// Directories of which look-ups are counted.
const MAX_PIECEMEAL_DIRS: usize = 256;

/// Directories listed one below the other before that is taken for a walk.
const MIN_WALK_SCORE: u32 = 2;

/// How long the listing of a directory is remembered as a step of a walk after it was listed, or
/// anything in it.
const STEP_LIFETIME: Duration = Duration::from_secs(3);

/// Steps of a walk that are remembered: the depth of most trees several times over.
const MAX_STEPS: usize = 64;

/// Directories that are listed ahead in a walk: at first, at least and at most. At 100 ms and 64
/// directories a walk sees one in 2 to 3 ms, which is about what the programs take for them.
const WINDOW: (usize, usize, usize) = (8, 2, 64);

/// How long it is not looked ahead again when all that comes next was listed: a part of the
/// shortest time for which listings count by default.
const IDLE_PAUSE: Duration = Duration::from_millis(250);

/// Listings on their way, at most. Each has up to three requests in flight.
const MAX_IN_FLIGHT: usize = 16;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct ListingPrefetch {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the path at which the directory was when it was asked for.
    in_flight: HashMap<RemotePath, watch::Receiver<()>>,
    piecemeal: HashMap<Ino, PiecemealLookups>,
    steps: VecDeque<(RemotePath, Instant)>,
    score: u32,
    window: usize,
    /// In which the walk goes through a directory.
    order: Order,
    /// There was more to be listed than there was room for.
    out_of_room: bool,
    /// All that comes next was listed, so that for so many steps, and until then, it is not looked
    /// at again: that costs more than a step does.
    idle: Option<(usize, Instant)>,
}

/// Look-ups in one directory that had to ask.
#[derive(Clone, Copy)]
struct PiecemealLookups {
    count: usize,
    last: Instant,
    /// It has more names than this.
    larger_than: usize,
}

impl ListingPrefetch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of the listing of `path` that is on its way, if one is.
    fn in_flight(&self, path: &RemotePath) -> Option<watch::Receiver<()>> {
        self.state().in_flight.get(path).cloned()
    }
}

impl State {
    /// Counts a look-up; tells how many names of the directory are worth fetching now.
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

    /// The walk has come to `path`. Tells whether it is one.
    fn step(&mut self, path: &RemotePath, now: Instant) -> bool {
        self.steps.retain(|(_, at)| now < *at + STEP_LIFETIME);
        let parent = path.parent();
        let above = self.steps.iter_mut().find(|(step, _)| parent.as_ref() == Some(step));
        let continues = above.is_some();
        if let Some((_, at)) = above {
            // It goes on for as long as something below is listed.
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

    /// A listing that was fetched ahead was of use, or had grown too old by then.
    fn note_used(&mut self, in_time: bool) {
        self.window =
            if in_time { (self.window * 2).min(WINDOW.2) } else { (self.window / 4).max(WINDOW.1) };
    }
}

impl Shared {
    /// Whether listings are kept at all.
    pub(crate) fn keeps_listings(&self) -> bool {
        !self.config.dirs.min.is_zero() || !self.config.negative.is_zero()
    }

    /// A look-up in `dir` has to ask the server. When there have been several, all of the
    /// directory is asked for.
    pub(crate) fn note_piecemeal_lookup(self: &Arc<Self>, dir: Ino) {
        if !self.keeps_listings() {
            return;
        }
        let now = Instant::now();
        let Some(worth) = self.prefetch.listings.state().count_lookup(dir, now) else { return };
        let path = {
            let mut tree = self.tree();
            let listed = tree.listing(dir).map(CachedListing::first_batch_at);
            // Just listed, and the names that are asked for are exceptions, or count no longer.
            if listed.is_some_and(|at| now < at + self.config.dirs.min) {
                return;
            }
            tree.path(dir)
        };
        if let Some(path) = path {
            self.start_listing(path, worth, Some(dir));
        }
    }

    /// Names that the listing of `dir` leaves out are being looked up, and it will not count for
    /// much longer. It is asked for again before anybody has to wait for it.
    pub(crate) fn refresh_listing(self: &Arc<Self>, dir: Ino) {
        let path = self.tree().path(dir);
        if let Some(path) = path {
            self.start_listing(path, MAX_NAMES, Some(dir));
        }
    }

    /// A directory is about to be listed. In a walk, what comes next is listed ahead.
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

    /// Goes on with what the listing of `path`, which has come, shows of the way ahead. What was
    /// listed once is not listed again until the walk itself goes on.
    pub(crate) fn continue_walk(self: &Arc<Self>, path: &RemotePath) {
        // One that is not kept would be listed again and again.
        let Some(has_subdirs) = self.tree().listing_at(path).map(CachedListing::has_directories)
        else {
            return;
        };
        if has_subdirs || self.prefetch.listings.state().out_of_room {
            self.prefetch_walk(None);
        }
    }

    /// Lists what the walk comes to next, as far as the window goes, but what has been listed and
    /// counts still; with no time-out but what has been listed.
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

    /// Waits for a listing of `path` that is on its way, though not for long.
    pub(crate) async fn await_listing(&self, path: &RemotePath) {
        if let Some(mut ended) = self.prefetch.listings.in_flight(path) {
            // Nothing is ever sent: it ends with its sender.
            let _ = tokio::time::timeout(MAX_WAIT, ended.changed()).await;
        }
    }

    /// Begins to list `path` for the snapshots, if that is not on its way already.
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
                // Not to be tried again at once. Who really lists it is told why it fails.
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

    /// Lists `path` into the snapshots. Tells how many names there were when they were more than
    /// `most`.
    async fn fetch_listing(
        &self,
        path: &RemotePath,
        stamp: RequestStamp,
        most: usize,
    ) -> Result<Option<usize>> {
        let dh = self.remote.opendir(path).await?;
        let open = OpenListing { remote: &self.remote, dh };
        let mut listed = Vec::new();
        let mut first_batch_at = None;
        let complete = loop {
            let batch = self.remote.readdir(dh).await?;
            let received_at = Instant::now();
            first_batch_at.get_or_insert(received_at);
            let Some(batch) = batch else { break true };
            for entry in batch {
                // A server that tells no attributes is asked for them only when they are wanted.
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

/// Takes a listing off the list when it is over, however it ended.
struct ListingInFlight<'a> {
    shared: &'a Shared,
    path: &'a RemotePath,
    /// Tells those who wait, after the listing is off the list.
    _ended: watch::Sender<()>,
}

impl Drop for ListingInFlight<'_> {
    fn drop(&mut self) {
        self.shared.prefetch.listings.state().in_flight.remove(self.path);
    }
}

/// Closes a directory at the remote.
struct OpenListing<'a> {
    remote: &'a Arc<dyn Remote>,
    dh: Dh,
}

impl Drop for OpenListing<'_> {
    fn drop(&mut self) {
        self.remote.closedir(self.dh);
    }
}

/// The way of a walk through what is known of the tree.
struct WalkAhead<'a> {
    tree: &'a mut Tree,
    /// For how long a listing counts; for ever without.
    timeout: Option<Timeout>,
    order: Order,
    /// Directories that the walk comes to, at most.
    dirs_left: usize,
    unlisted: Vec<RemotePath>,
}

impl WalkAhead<'_> {
    fn new(tree: &mut Tree, timeout: Option<Timeout>, order: Order) -> WalkAhead<'_> {
        WalkAhead { tree, timeout, order, dirs_left: 0, unlisted: Vec::new() }
    }

    /// The directories, out of the next `window` that a walk comes to which is at `from`, of which
    /// there is no listing, up to [`MAX_IN_FLIGHT`]; and the order in which the walk goes.
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

    /// The order in which `from` is the first directory, if it is not so in the present one.
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
