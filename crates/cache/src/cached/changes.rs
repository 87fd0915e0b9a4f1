//! What is being changed through this mount, and what was changed a while ago.
//!
//! An answer of the remote that was asked for before a change of ours may be from before it, and
//! must not be recorded after it. So each question notes a *tick* when it is asked, each change is
//! noted from its beginning to its end, and an answer is recorded only if no change has touched
//! what it is about since its tick.
//!
//! A change that was given up (its future was dropped) may still happen at the server. What it is
//! about is in doubt until no request can be on its way any more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::RemotePath;
use tokio::time::Instant;

/// For how long a change that was given up may still happen: `host` gives a server that is silent
/// up after a minute.
const DOUBT: Duration = Duration::from_secs(60);

/// Changes that are over and remembered. Questions that were asked before the oldest of them count
/// as touched: nothing of their answers is recorded. They take about a megabyte.
const MAX_RECENT: usize = 4096;

/// What a change is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A path, and all below it.
    Tree(RemotePath),
    /// A directory's own list of names, and its attributes.
    Names(RemotePath),
}

impl Item {
    /// Whether what is known of `path` itself is touched by it.
    fn touches(&self, path: &RemotePath) -> bool {
        match self {
            Item::Tree(tree) => path.is_within(tree),
            Item::Names(dir) => dir == path,
        }
    }

    /// Whether the listing of `dir`, with the attributes in it, is touched by it.
    fn touches_listing(&self, dir: &RemotePath) -> bool {
        match self {
            Item::Tree(tree) => dir.is_within(tree) || tree.parent().as_ref() == Some(dir),
            Item::Names(names) => names == dir || names.parent().as_ref() == Some(dir),
        }
    }
}

/// When something was asked, in the order of the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(u64);

#[derive(Default)]
struct State {
    tick: u64,
    next: u64,
    under_way: Vec<(u64, Arc<[Item]>)>,
    /// With the tick at which each was over.
    recent: VecDeque<(u64, Arc<[Item]>)>,
    /// The tick of the newest that was dropped from `recent`.
    forgotten: u64,
    doubtful: VecDeque<(Instant, Arc<[Item]>)>,
}

/// See the [module](self). Bounded by the calls that are under way. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Changes(Arc<Mutex<State>>);

/// A change that is under way. Given up, if it is dropped before it is [done](Change::done).
pub(crate) struct Change {
    number: u64,
    items: Arc<[Item]>,
    changes: Arc<Mutex<State>>,
    done: bool,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Changes {
    /// To be called before a question is asked.
    pub(crate) fn tick(&self) -> Tick {
        Tick(lock(&self.0).tick)
    }

    /// A change of `items` begins.
    pub(crate) fn begin(&self, items: Vec<Item>) -> Change {
        let items: Arc<[Item]> = items.into();
        let mut state = lock(&self.0);
        state.next += 1;
        let number = state.next;
        state.under_way.push((number, items.clone()));
        Change { number, items, changes: self.0.clone(), done: false }
    }

    /// Whether nothing has touched `path` since it was asked for at `tick`.
    pub(crate) fn untouched(&self, path: &RemotePath, tick: Tick) -> bool {
        !self.any(tick, |item| item.touches(path))
    }

    /// Whether nothing has touched the listing of `dir` since it was asked for at `tick`.
    pub(crate) fn listing_untouched(&self, dir: &RemotePath, tick: Tick) -> bool {
        !self.any(tick, |item| item.touches_listing(dir))
    }

    /// Whether nothing touches `path` now.
    pub(crate) fn quiet(&self, path: &RemotePath) -> bool {
        let now = self.tick();
        self.untouched(path, now)
    }

    fn any(&self, since: Tick, touches: impl Fn(&Item) -> bool) -> bool {
        let mut state = lock(&self.0);
        if state.forgotten > since.0 {
            return true;
        }
        let touches = |items: &Arc<[Item]>| items.iter().any(&touches);
        if state.under_way.iter().any(|(_, items)| touches(items)) {
            return true;
        }
        let newer = state.recent.iter().rev().take_while(|(tick, _)| *tick > since.0);
        if newer.into_iter().any(|(_, items)| touches(items)) {
            return true;
        }
        if state.doubtful.is_empty() {
            return false;
        }
        let now = Instant::now();
        while state.doubtful.front().is_some_and(|(until, _)| *until <= now) {
            state.doubtful.pop_front();
        }
        state.doubtful.iter().any(|(_, items)| touches(items))
    }
}

impl Change {
    /// What it is about.
    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// It was answered: with this it is over.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let mut state = lock(&self.changes);
        state.under_way.retain(|(number, _)| *number != self.number);
        state.tick += 1;
        let tick = state.tick;
        state.recent.push_back((tick, self.items.clone()));
        if state.recent.len() > MAX_RECENT
            && let Some((oldest, _)) = state.recent.pop_front()
        {
            state.forgotten = oldest;
        }
        if !self.done {
            state.doubtful.push_back((Instant::now() + DOUBT, self.items.clone()));
            if state.doubtful.len() > MAX_RECENT {
                state.doubtful.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    #[tokio::test(start_paused = true)]
    async fn a_change_touches_what_was_asked_before_its_end() {
        let changes = Changes::default();
        let before = changes.tick();
        let change = changes.begin(vec![Item::Tree(path("d/f")), Item::Names(path("d"))]);
        let during = changes.tick();
        change.done();
        let after = changes.tick();
        for at in ["d/f", "d/f/x", "d"] {
            assert!(!changes.untouched(&path(at), before), "{at}");
            assert!(!changes.untouched(&path(at), during), "{at}");
            assert!(changes.untouched(&path(at), after), "{at}");
        }
        assert!(changes.untouched(&path("d/g"), before));
        assert!(!changes.listing_untouched(&path("d"), before));
        assert!(!changes.listing_untouched(&path(""), before), "it has the attributes of d");
        assert!(changes.listing_untouched(&path("e"), before));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_up_is_in_doubt_for_a_while() {
        let changes = Changes::default();
        drop(changes.begin(vec![Item::Tree(path("f"))]));
        let after = changes.tick();
        assert!(!changes.untouched(&path("f"), after));
        assert!(changes.untouched(&path("g"), after));
        tokio::time::advance(DOUBT).await;
        assert!(changes.untouched(&path("f"), after));
    }

    #[tokio::test]
    async fn what_is_too_old_to_tell_counts_as_touched() {
        let changes = Changes::default();
        let before = changes.tick();
        for number in 0..=MAX_RECENT {
            changes.begin(vec![Item::Tree(path(&format!("f{number}")))]).done();
        }
        assert!(!changes.untouched(&path("never"), before));
        assert!(changes.untouched(&path("never"), changes.tick()));
    }
}
