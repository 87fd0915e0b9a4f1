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

use crate::Ino;
use crate::config::Timeout;
use crate::shared::Shared;
use crate::snapshot::{Found, Order, Snapshot};
use crate::tree::{Asked, Tree};

/// Look-ups of a directory that had to ask before it is listed. Fewer are no habit.
const PIECEMEAL_ASKS: usize = 4;

/// The time between two of them, at most.
const PIECEMEAL_PAUSE: Duration = Duration::from_secs(1);

/// Names fetched for each look-up that had to ask: what OpenSSH's server puts into one answer.
const NAMES_PER_ASK: usize = 100;

/// Longest listing in names that is fetched without being asked for. Some 3 MiB on the wire.
const MAX_NAMES: usize = 20_000;

/// Directories of which look-ups are counted.
const MAX_COUNTED: usize = 256;

/// Directories listed one below the other before that is taken for a walk.
const WALK_SCORE: u32 = 2;

/// How long the listing of a directory is remembered as a step of a walk after it was listed, or
/// anything in it.
const WALK_PAUSE: Duration = Duration::from_secs(3);

/// Steps of a walk that are remembered: the depth of most trees several times over.
const WALK_STEPS: usize = 64;

/// Directories that are listed ahead in a walk: at first, at least and at most. At 100 ms and 64
/// directories a walk sees one in 2 to 3 ms, which is about what the programs take for them.
const WINDOW: (usize, usize, usize) = (8, 2, 64);

/// How long it is not looked ahead again when all that comes next was listed: a part of the
/// shortest time for which listings count by default.
const REST: Duration = Duration::from_millis(250);

/// Listings on their way, at most. Each has up to three requests in flight.
const MAX_ON_THEIR_WAY: usize = 16;

/// How long one waits for a listing that is on its way before asking by oneself: longer than a
/// round trip on most links, and short enough not to be taken for a hang.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Walk {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the path at which the directory was when it was asked for.
    on_their_way: HashMap<RemotePath, watch::Receiver<()>>,
    asks: HashMap<Ino, Asks>,
    steps: VecDeque<(RemotePath, Instant)>,
    score: u32,
    window: usize,
    /// In which the walk goes through a directory.
    order: Order,
    /// There was more to be listed than there was room for.
    wants_room: bool,
    /// All that comes next was listed, so that for so many steps, and until then, it is not looked
    /// at again: that costs more than a step does.
    rest: Option<(usize, Instant)>,
}

/// Look-ups in one directory that had to ask.
#[derive(Clone, Copy)]
struct Asks {
    count: usize,
    last: Instant,
    /// It has more names than this.
    larger_than: usize,
}

impl Walk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of the listing of `path` that is on its way, if one is.
    fn on_its_way(&self, path: &RemotePath) -> Option<watch::Receiver<()>> {
        self.state().on_their_way.get(path).cloned()
    }
}

impl State {
    /// Counts a look-up; tells how many names of the directory are worth fetching now.
    fn count_ask(&mut self, dir: Ino, now: Instant) -> Option<usize> {
        if self.asks.len() >= MAX_COUNTED && !self.asks.contains_key(&dir) {
            self.asks.retain(|_, asks| now < asks.last + PIECEMEAL_PAUSE);
            if self.asks.len() >= MAX_COUNTED {
                return None;
            }
        }
        let asks = self.asks.entry(dir).or_insert(Asks { count: 0, last: now, larger_than: 0 });
        if now >= asks.last + PIECEMEAL_PAUSE {
            asks.count = 0;
        }
        asks.count += 1;
        asks.last = now;
        let worth = (asks.count * NAMES_PER_ASK).min(MAX_NAMES);
        // Doubled, so that all attempts together cost no more than twice the last.
        (asks.count >= PIECEMEAL_ASKS && worth >= asks.larger_than * 2).then_some(worth)
    }

    /// The walk has come to `path`. Tells whether it is one.
    fn step(&mut self, path: &RemotePath, now: Instant) -> bool {
        self.steps.retain(|(_, at)| now < *at + WALK_PAUSE);
        let parent = path.parent();
        let above = self.steps.iter_mut().find(|(step, _)| parent.as_ref() == Some(step));
        let goes_on = above.is_some();
        if let Some((_, at)) = above {
            // It goes on for as long as something below is listed.
            *at = now;
        }
        self.score = if goes_on { self.score + 1 } else { 0 };
        self.rest = self.rest.and_then(|(steps, until)| Some((steps.checked_sub(1)?, until)));
        if !goes_on || self.rest.is_some_and(|(_, until)| now >= until) {
            self.rest = None;
        }
        self.steps.retain(|(step, _)| step != path);
        self.steps.push_back((path.clone(), now));
        if self.steps.len() > WALK_STEPS {
            self.steps.pop_front();
        }
        if self.window == 0 {
            self.window = WINDOW.0;
        }
        self.walks()
    }

    fn walks(&self) -> bool {
        self.score >= WALK_SCORE
    }

    /// A listing that was fetched ahead was of use, or had grown too old by then.
    fn used(&mut self, in_time: bool) {
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
    pub(crate) fn asks_piecemeal(self: &Arc<Self>, dir: Ino) {
        if !self.keeps_listings() {
            return;
        }
        let now = Instant::now();
        let Some(worth) = self.walk.state().count_ask(dir, now) else { return };
        let path = {
            let mut tree = self.tree();
            let listed = tree.snapshot(dir).map(Snapshot::first_at);
            // Just listed, and the names that are asked for are exceptions, or count no longer.
            if listed.is_some_and(|at| now < at + self.config.dirs.min) {
                return;
            }
            tree.path(dir)
        };
        if let Some(path) = path {
            self.list_ahead(path, worth, Some(dir));
        }
    }

    /// Names that the listing of `dir` leaves out are being looked up, and it will not count for
    /// much longer. It is asked for again before anybody has to wait for it.
    pub(crate) fn list_again(self: &Arc<Self>, dir: Ino) {
        let path = self.tree().path(dir);
        if let Some(path) = path {
            self.list_ahead(path, MAX_NAMES, Some(dir));
        }
    }

    /// A directory is about to be listed. In a walk, what comes next is listed ahead.
    pub(crate) fn walked(self: &Arc<Self>, path: &RemotePath, was_ahead: Option<bool>) {
        if self.config.dirs.min.is_zero() {
            return;
        }
        let walks = {
            let mut state = self.walk.state();
            if let Some(in_time) = was_ahead {
                state.used(in_time);
            }
            state.step(path, Instant::now())
        };
        if walks {
            self.walk_ahead(Some(self.config.dirs));
        }
    }

    /// Goes on with what the listing of `path`, which has come, shows of the way ahead. What was
    /// listed once is not listed again until the walk itself goes on.
    pub(crate) fn walk_on(self: &Arc<Self>, path: &RemotePath) {
        // One that is not kept would be listed again and again.
        let Some(leads_on) = self.tree().lists(path).map(Snapshot::has_directories) else { return };
        if leads_on || self.walk.state().wants_room {
            self.walk_ahead(None);
        }
    }

    /// Lists what the walk comes to next, as far as the window goes, but what has been listed and
    /// counts still; with no time-out but what has been listed.
    fn walk_ahead(self: &Arc<Self>, counts: Option<Timeout>) {
        let (from, window, order) = {
            let mut state = self.walk.state();
            let Some((from, _)) = state.steps.back().filter(|_| state.walks()) else { return };
            let from = from.clone();
            state.wants_room = state.on_their_way.len() >= MAX_ON_THEIR_WAY;
            if state.wants_room || counts.is_some() && state.rest.is_some() {
                return;
            }
            (from, state.window, state.order)
        };
        let next = {
            let mut tree = self.tree();
            let (order, next) = Ahead::new(&mut tree, counts, order).after(&from, window);
            let mut state = self.walk.state();
            state.order = order;
            state.wants_room = next.len() >= MAX_ON_THEIR_WAY;
            let rests = counts.is_some() && next.is_empty();
            state.rest = rests.then(|| (window / 2, Instant::now() + REST));
            next
        };
        for path in next {
            if self.walk.state().on_their_way.len() >= MAX_ON_THEIR_WAY {
                return;
            }
            self.list_ahead(path, MAX_NAMES, None);
        }
    }

    /// Waits for a listing of `path` that is on its way, though not for long.
    pub(crate) async fn await_listing(&self, path: &RemotePath) {
        if let Some(mut ended) = self.walk.on_its_way(path) {
            // Nothing is ever sent: it ends with its sender.
            let _ = tokio::time::timeout(PATIENCE, ended.changed()).await;
        }
    }

    /// Begins to list `path` for the snapshots, if that is not on its way already.
    fn list_ahead(self: &Arc<Self>, path: RemotePath, most: usize, dir: Option<Ino>) {
        let ended = {
            let mut state = self.walk.state();
            if state.on_their_way.contains_key(&path) {
                return;
            }
            let (ended, end) = watch::channel(());
            state.on_their_way.insert(path.clone(), end);
            ended
        };
        let shared = self.clone();
        self.background.start(async move {
            let over = Over { shared: &shared, path: &path, _ended: ended };
            let asked = shared.asked();
            let listed = shared.list_whole(&path, asked, most).await;
            if listed.is_err() {
                // Not to be tried again at once. Who really lists it is told why it fails.
                let nothing = Snapshot::new(Vec::new(), false, asked, Instant::now());
                shared.tree().learn_directory_at(path.clone(), nothing);
            }
            if let (Some(dir), Ok(Some(larger_than))) = (dir, listed)
                && let Some(asks) = shared.walk.state().asks.get_mut(&dir)
            {
                asks.larger_than = larger_than;
            }
            drop(over);
            if dir.is_none() {
                shared.walk_on(&path);
            }
        });
    }

    /// Lists `path` into the snapshots. Tells how many names there were when they were more than
    /// `most`.
    async fn list_whole(
        &self,
        path: &RemotePath,
        asked: Asked,
        most: usize,
    ) -> Result<Option<usize>> {
        let dh = self.remote.opendir(path).await?;
        let open = OpenListing { remote: &self.remote, dh };
        let mut listed = Vec::new();
        let mut first_at = None;
        let complete = loop {
            let batch = self.remote.readdir(dh).await?;
            let seen_at = Instant::now();
            first_at.get_or_insert(seen_at);
            let Some(batch) = batch else { break true };
            for entry in batch {
                // A server that tells no attributes is asked for them only when they are wanted.
                let attr = entry.attr.ok_or(Errno::EOPNOTSUPP)?;
                listed.push(Found { name: entry.name, attr, seen_at });
            }
            if listed.len() > most {
                break false;
            }
        };
        drop(open);
        let larger_than = (!complete).then_some(listed.len());
        let mut snapshot = Snapshot::new(listed, complete, asked, first_at.unwrap_or(asked.at));
        snapshot.set_ahead();
        self.tree().learn_directory_at(path.clone(), snapshot);
        Ok(larger_than)
    }
}

/// Takes a listing off the list when it is over, however it ended.
struct Over<'a> {
    shared: &'a Shared,
    path: &'a RemotePath,
    /// Tells those who wait, after the listing is off the list.
    _ended: watch::Sender<()>,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.shared.walk.state().on_their_way.remove(self.path);
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
struct Ahead<'a> {
    tree: &'a mut Tree,
    /// For how long a listing counts; for ever without.
    counts: Option<Timeout>,
    order: Order,
    /// Directories that the walk comes to, at most.
    left: usize,
    unknown: Vec<RemotePath>,
}

impl Ahead<'_> {
    fn new(tree: &mut Tree, counts: Option<Timeout>, order: Order) -> Ahead<'_> {
        Ahead { tree, counts, order, left: 0, unknown: Vec::new() }
    }

    /// The directories, out of the next `window` that a walk comes to which is at `from`, of which
    /// there is no listing, up to [`MAX_ON_THEIR_WAY`]; and the order in which the walk goes.
    fn after(mut self, from: &RemotePath, window: usize) -> (Order, Vec<RemotePath>) {
        self.order = self.order_up_to(from).unwrap_or(self.order);
        self.visit_after(from, window);
        (self.order, self.unknown)
    }

    fn visit_after(&mut self, from: &RemotePath, window: usize) {
        self.left = window;
        self.below(from);
        let mut at = from.clone();
        while self.left > 0
            && let (Some(parent), Some(name)) = (at.parent(), at.file_name())
        {
            let dirs = self.directories(&parent);
            let place = dirs.iter().position(|(dir, _)| *dir == name);
            for (dir, _) in dirs.iter().skip(place.map_or(dirs.len(), |at| at + 1)).filter(is_there)
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
                    let number = self.tree.numbers_in(&parent);
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
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        if self.tree.lists_well(path, self.counts) {
            self.below(path);
        } else {
            self.unknown.push(path.clone());
            if self.unknown.len() >= MAX_ON_THEIR_WAY {
                self.left = 0;
            }
        }
    }

    fn below(&mut self, path: &RemotePath) {
        for (dir, _) in self.directories(path).iter().filter(is_there) {
            if self.left == 0 {
                return;
            }
            self.visit(&path.join(dir));
        }
    }
}

/// Whether a directory was not removed since it was listed.
fn is_there((_, is_there): &&(Name, bool)) -> bool {
    *is_there
}
