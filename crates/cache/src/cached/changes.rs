//! Changes made through this mount: those in flight, and recent ones.
//!
//! An answer of the remote that was requested before a change of this mount may be older than the
//! change, and must not be recorded after it. So each request notes a *generation* when it is sent,
//! each change is noted from its beginning to its end, and an answer is recorded only if no change
//! has affected its scope since its generation.
//!
//! A change whose future was dropped may still happen at the server. Its scope is in doubt until
//! the layers below have given up a silent server.
//!
//! The times of the changes are kept to judge the records of other mounts: one of them may have
//! sent a request before a change made here, and recorded the answer after it. The record says when
//! the request was sent, and is not used here if that was before the change.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use base::{Mutex, RemotePath, Timestamp};
use tokio::time::Instant;

/// A cancelled change is in doubt for at least this time: a request that is in a stalled connection
/// when that is given up may arrive later.
const MIN_IN_DOUBT: Duration = Duration::from_secs(60);

/// Bound on the finished changes that are remembered in their order, and on the scopes of older
/// ones: about a megabyte each.
const MAX_RECENT: usize = 4096;

/// The part of the tree that a change affects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    /// A path, and all below it.
    Subtree(RemotePath),
    /// The entry at a path alone: its attributes, and its content if it is a file.
    Entry(RemotePath),
    /// A directory's own list of names, and its attributes.
    Names(RemotePath),
}

impl Scope {
    pub(crate) fn path(&self) -> &RemotePath {
        let (Scope::Subtree(path) | Scope::Entry(path) | Scope::Names(path)) = self;
        path
    }

    /// Whether the entry at `path` is affected.
    pub(crate) fn touches(&self, path: &RemotePath) -> bool {
        match self {
            Scope::Subtree(tree) => path.is_within(tree),
            Scope::Entry(at) | Scope::Names(at) => at == path,
        }
    }

    /// Whether the listing of `dir`, with the attributes in it, is affected.
    fn touches_listing(&self, dir: &RemotePath) -> bool {
        match self {
            Scope::Subtree(tree) => dir.is_within(tree) || tree.parent().as_ref() == Some(dir),
            Scope::Entry(at) => at.parent().as_ref() == Some(dir),
            Scope::Names(names) => names == dir || names.parent().as_ref() == Some(dir),
        }
    }
}

/// Replaces the deepest scopes by their directories, with all below these, until at most `max` are
/// left. A directory gets the largest value of the scopes that it replaces.
pub(crate) fn fold<V: Ord + Copy>(scopes: &mut HashMap<Scope, V>, max: usize) {
    let depth = |scope: &Scope| scope.path().names().count();
    while scopes.len() > max {
        let deepest = scopes.keys().map(depth).max().unwrap_or_default();
        let folded: Vec<_> = scopes.extract_if(|scope, _| depth(scope) == deepest).collect();
        for (scope, value) in folded {
            let dir = Scope::Subtree(scope.path().parent().unwrap_or_default());
            let known = scopes.remove(&dir);
            scopes.insert(dir, known.map_or(value, |known| known.max(value)));
        }
    }
}

/// Bound on the paths of both kinds: some megabytes. Beyond it the older half is dropped. Earlier
/// requests are then treated as older than a change. Contents are not: a mount that changes very
/// many files would fetch all others once more.
const MAX_PATHS: usize = 16 << 10;

#[derive(Default)]
struct Times {
    /// Changes of the entry at a path, and of all below it.
    trees: HashMap<RemotePath, Timestamp>,
    /// Changes of an entry alone, of a directory's list of names, or of the attributes in it.
    listings: HashMap<RemotePath, Timestamp>,
    all: Option<Timestamp>,
}

/// When a request was sent, in the order of the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation(u64);

struct ChangeLog {
    generation: u64,
    next: u64,
    in_flight: Vec<(u64, Arc<[Scope]>)>,
    /// With the generation in which each ended.
    recent: VecDeque<(u64, Arc<[Scope]>)>,
    /// The scopes of the changes that were dropped from `recent`, with the generation of the newest.
    /// Beyond the bound directories stand for what was changed in them.
    older: HashMap<Scope, u64>,
    /// The generation of the newest change that was dropped from `recent`.
    newest_older: u64,
    /// Cancelled changes, with the time of their cancellation.
    in_doubt: VecDeque<(Instant, Arc<[Scope]>)>,
    /// When the newest cancelled change that did not fit into `in_doubt` was cancelled.
    all_in_doubt: Option<Instant>,
    in_doubt_for: Duration,
    times: Times,
}

/// See the [module](self). Bounded by the calls in flight. Clones share one state.
#[derive(Clone)]
pub(crate) struct Changes(Arc<Mutex<ChangeLog>>);

/// A change in flight. It counts as cancelled if it is dropped before it is [done](Change::done).
pub(crate) struct Change {
    number: u64,
    scopes: Arc<[Scope]>,
    changes: Arc<Mutex<ChangeLog>>,
    done: bool,
}

impl Changes {
    /// A silent server is given up after `request_timeout`; twice that includes the pauses between
    /// the checks for it.
    pub(crate) fn new(request_timeout: Duration) -> Changes {
        Changes(Arc::new(Mutex::new(ChangeLog {
            generation: 0,
            next: 0,
            in_flight: Vec::new(),
            recent: VecDeque::new(),
            older: HashMap::new(),
            newest_older: 0,
            in_doubt: VecDeque::new(),
            all_in_doubt: None,
            in_doubt_for: request_timeout.saturating_mul(2).max(MIN_IN_DOUBT),
            times: Times::default(),
        })))
    }

    /// The present generation, to be taken before a request is sent.
    pub(crate) fn generation(&self) -> Generation {
        Generation(self.0.lock().generation)
    }

    /// Begins a change of `scopes`.
    pub(crate) fn begin(&self, scopes: Vec<Scope>) -> Change {
        let scopes: Arc<[Scope]> = scopes.into();
        let mut state = self.0.lock();
        state.next += 1;
        let number = state.next;
        state.in_flight.push((number, scopes.clone()));
        state.times.note(&scopes);
        Change { number, scopes, changes: self.0.clone(), done: false }
    }

    /// Whether no change has affected `path` since `generation`.
    pub(crate) fn is_unchanged(&self, path: &RemotePath, generation: Generation) -> bool {
        !self.any(generation, |item| item.touches(path))
    }

    /// Whether no change has affected the listing of `dir` since `generation`.
    pub(crate) fn is_listing_unchanged(&self, dir: &RemotePath, generation: Generation) -> bool {
        !self.any(generation, |item| item.touches_listing(dir))
    }

    /// Whether no change of `path` is in flight or in doubt.
    pub(crate) fn is_stable(&self, path: &RemotePath) -> bool {
        let now = self.generation();
        self.is_unchanged(path, now)
    }

    /// Whether an answer about `path`, or the names in it, that any mount has requested at
    /// `seen_at`, is not older than a change made here.
    pub(crate) fn is_current(&self, path: &RemotePath, seen_at: Timestamp) -> bool {
        self.0.lock().times.are_before(path, seen_at)
    }

    /// Whether the file `path`, which any mount has opened at `opened_at`, was not changed here
    /// since.
    pub(crate) fn is_current_file(&self, path: &RemotePath, opened_at: Timestamp) -> bool {
        self.0.lock().times.entry_is_before(path, opened_at)
    }

    fn any(&self, since: Generation, touches: impl Fn(&Scope) -> bool) -> bool {
        let mut state = self.0.lock();
        let is_newer = |generation: &u64| *generation > since.0;
        let mut older = state.older.iter();
        if is_newer(&state.newest_older)
            && older.any(|(scope, generation)| is_newer(generation) && touches(scope))
        {
            return true;
        }
        let touches = |scopes: &Arc<[Scope]>| scopes.iter().any(&touches);
        if state.in_flight.iter().any(|(_, scopes)| touches(scopes)) {
            return true;
        }
        let newer = state.recent.iter().rev().take_while(|(generation, _)| is_newer(generation));
        if newer.into_iter().any(|(_, scopes)| touches(scopes)) {
            return true;
        }
        if state.in_doubt.is_empty() {
            return false;
        }
        let limit = state.in_doubt_for;
        if state.all_in_doubt.is_some_and(|cancelled| cancelled.elapsed() < limit) {
            return true;
        }
        while state.in_doubt.front().is_some_and(|(cancelled, _)| cancelled.elapsed() >= limit) {
            state.in_doubt.pop_front();
        }
        state.in_doubt.iter().any(|(_, scopes)| touches(scopes))
    }
}

impl Change {
    /// The scopes that it affects.
    pub(crate) fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// Ends the change: it was answered.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

fn changed_since(changed: Option<&Timestamp>, seen_at: Timestamp) -> bool {
    changed.is_some_and(|changed| *changed >= seen_at)
}

impl Times {
    /// Notes that `scopes` are being changed, or were until now.
    fn note(&mut self, scopes: &[Scope]) {
        let now = Timestamp::now();
        for item in scopes {
            let path = item.path();
            match item {
                Scope::Subtree(_) => self.trees.insert(path.clone(), now),
                Scope::Entry(_) | Scope::Names(_) => self.listings.insert(path.clone(), now),
            };
            // The listing of the parent has the attributes of the entry.
            path.parent().map(|dir| self.listings.insert(dir, now));
        }
        if self.trees.len() + self.listings.len() > MAX_PATHS {
            self.drop_older_half();
        }
    }

    fn drop_older_half(&mut self) {
        let mut times: Vec<_> =
            self.trees.values().chain(self.listings.values()).copied().collect();
        let half = times.len() / 2;
        let middle = *times.select_nth_unstable(half).1;
        self.trees.retain(|_, changed| *changed > middle);
        self.listings.retain(|_, changed| *changed > middle);
        self.all = self.all.max(Some(middle));
    }

    fn are_before(&self, path: &RemotePath, seen_at: Timestamp) -> bool {
        !changed_since(self.all.as_ref(), seen_at) && self.entry_is_before(path, seen_at)
    }

    fn entry_is_before(&self, path: &RemotePath, seen_at: Timestamp) -> bool {
        // The attributes of a directory change with its names.
        if changed_since(self.listings.get(path), seen_at) {
            return false;
        }
        let mut above = std::iter::successors(Some(path.clone()), RemotePath::parent);
        self.trees.is_empty() || above.all(|at| !changed_since(self.trees.get(&at), seen_at))
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let mut state = self.changes.lock();
        state.in_flight.retain(|(number, _)| *number != self.number);
        state.times.note(&self.scopes);
        state.generation += 1;
        let generation = state.generation;
        state.recent.push_back((generation, self.scopes.clone()));
        if state.recent.len() > MAX_RECENT
            && let Some((oldest, scopes)) = state.recent.pop_front()
        {
            state.newest_older = oldest;
            state.older.extend(scopes.iter().map(|scope| (scope.clone(), oldest)));
            if state.older.len() > MAX_RECENT {
                fold(&mut state.older, MAX_RECENT / 2);
            }
        }
        if !self.done {
            state.in_doubt.push_back((Instant::now(), self.scopes.clone()));
            if state.in_doubt.len() > MAX_RECENT {
                state.all_in_doubt = state.in_doubt.pop_front().map(|(cancelled, _)| cancelled);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    #[tokio::test(start_paused = true)]
    async fn an_answer_requested_before_the_end_of_a_change_is_affected() {
        let changes = changes();
        let before = changes.generation();
        let change = changes.begin(vec![Scope::Subtree(path("d/f")), Scope::Names(path("d"))]);
        let during = changes.generation();
        change.done();
        let after = changes.generation();
        for at in ["d/f", "d/f/x", "d"] {
            assert!(!changes.is_unchanged(&path(at), before), "{at}");
            assert!(!changes.is_unchanged(&path(at), during), "{at}");
            assert!(changes.is_unchanged(&path(at), after), "{at}");
        }
        assert!(changes.is_unchanged(&path("d/g"), before));
        assert!(!changes.is_listing_unchanged(&path("d"), before));
        assert!(!changes.is_listing_unchanged(&path(""), before), "it has the attributes of d");
        assert!(changes.is_listing_unchanged(&path("e"), before));
    }

    #[test]
    fn a_change_of_a_directory_alone_affects_nothing_below_it() {
        let changes = changes();
        let (before, then) = (changes.generation(), Timestamp::now());
        changes.begin(vec![Scope::Entry(path("d/e"))]).done();
        assert!(!changes.is_unchanged(&path("d/e"), before));
        assert!(!changes.is_listing_unchanged(&path("d"), before), "it has the attributes of e");
        assert!(!changes.is_current(&path("d/e"), then) && !changes.is_current(&path("d"), then));
        assert!(!changes.is_current_file(&path("d/e"), then));
        assert!(changes.is_unchanged(&path("d/e/f"), before));
        assert!(changes.is_unchanged(&path("d"), before));
        assert!(changes.is_listing_unchanged(&path("d/e"), before));
        assert!(changes.is_current(&path("d/e/f"), then));
        assert!(changes.is_current_file(&path("d/e/f"), then));
    }

    const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

    fn changes() -> Changes {
        Changes::new(REQUEST_TIMEOUT)
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_change_is_in_doubt_until_a_silent_server_is_given_up() {
        let changes = changes();
        drop(changes.begin(vec![Scope::Subtree(path("f"))]));
        let after = changes.generation();
        assert!(changes.is_unchanged(&path("g"), after));
        tokio::time::advance(REQUEST_TIMEOUT).await;
        assert!(!changes.is_unchanged(&path("f"), after));
        tokio::time::advance(REQUEST_TIMEOUT).await;
        assert!(changes.is_unchanged(&path("f"), after));
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_cancelled_changes_put_every_path_in_doubt() {
        let changes = changes();
        for number in 0..=MAX_RECENT {
            drop(changes.begin(vec![Scope::Subtree(path(&format!("f{number}")))]));
        }
        let after = changes.generation();
        assert!(!changes.is_unchanged(&path("f0"), after));
        tokio::time::advance(2 * REQUEST_TIMEOUT).await;
        assert!(changes.is_unchanged(&path("f0"), after));
    }

    /// A large file is read beside `tar -x`.
    #[tokio::test]
    async fn very_many_changes_affect_only_the_directories_that_they_are_in() {
        let changes = changes();
        let before = changes.generation();
        changes.begin(vec![Scope::Subtree(path("d/first")), Scope::Names(path("d"))]).done();
        let after_first = changes.generation();
        for number in 0..4 * MAX_RECENT {
            let dir = format!("d/e/{}", number / 100);
            let file = path(&format!("{dir}/{number}"));
            changes.begin(vec![Scope::Subtree(file), Scope::Names(path(&dir))]).done();
        }
        for unchanged in ["f", "g/f", "d/other", "d/e"] {
            assert!(changes.is_unchanged(&path(unchanged), before), "{unchanged}");
        }
        for changed in ["d", "d/first", "d/e/0/0", "d/e/163/16383"] {
            assert!(!changes.is_unchanged(&path(changed), before), "{changed}");
        }
        assert!(changes.is_unchanged(&path("d/first"), after_first));
        assert!(!changes.is_listing_unchanged(&path("d"), before));
        assert!(!changes.is_listing_unchanged(&path("d/e/0"), after_first));
        assert!(changes.is_listing_unchanged(&path("g"), before));
        assert!(changes.is_unchanged(&path("d/e/0/0"), changes.generation()));
        assert!(changes.0.lock().older.len() <= MAX_RECENT);
    }

    #[test]
    fn folded_scopes_are_those_of_the_directories_above() {
        let scope = |at: &str| (Scope::Entry(path(at)), at.len());
        let mut scopes: HashMap<_, _> =
            ["a", "b/c", "b/dd", "b/e/f/g", "h/i/j/k"].map(scope).into();
        fold(&mut scopes, 4);
        let tree = |at: &str| Scope::Subtree(path(at));
        let expected = [scope("a"), (tree("b"), 7), (tree("h"), 7)];
        assert_eq!(scopes, expected.into());
        fold(&mut scopes, 1);
        assert_eq!(scopes, [(tree(""), 7)].into());
    }

    #[test]
    fn a_record_requested_before_a_change_is_not_current() {
        let changes = changes();
        let before = Timestamp::now();
        assert!(changes.is_current(&path("d/f"), before));
        changes.begin(vec![Scope::Subtree(path("d/f")), Scope::Names(path("d"))]).done();
        let after = Timestamp { secs: Timestamp::now().secs + 1, nanos: 0 };
        for at in ["d/f", "d/f/below", "d", ""] {
            assert!(!changes.is_current(&path(at), before), "{at}");
            assert!(changes.is_current(&path(at), after), "{at}");
        }
        assert!(changes.is_current(&path("d/g"), before));
    }

    #[test]
    fn too_many_changes_make_all_earlier_records_stale() {
        let changes = changes();
        let before = Timestamp::now();
        for number in 0..=MAX_PATHS {
            changes.begin(vec![Scope::Subtree(path(&format!("d/f{number}")))]).done();
        }
        assert!(!changes.is_current(&path("never"), before));
        let after = Timestamp { secs: Timestamp::now().secs + 1, nanos: 0 };
        assert!(changes.is_current(&path("never"), after));
        assert!(changes.0.lock().times.trees.len() < MAX_PATHS);
        assert!(changes.is_current_file(&path("never"), before));
        assert!(!changes.is_current_file(&path(&format!("d/f{MAX_PATHS}")), before));
    }
}
