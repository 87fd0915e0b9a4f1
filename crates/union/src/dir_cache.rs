//! Which branches were seen to have a directory, so that a look-up need not ask for it again.
//!
//! It is only ever used in ways that cannot change an answer:
//!
//! - A branch that had the directory is asked only for what is below it, not for each directory on
//!   the way as well. If that directory has become something else meanwhile, whoever gave us the
//!   path has taken the old one for true too, and has us look it up again when that is too old.
//! - A branch that had none is asked for that directory again, and for nothing below it while it
//!   has none.
//!
//! What is learnt from answers is thrown away when names of directories were changed here after
//! the question, so that an answer from before a change is never kept after it. One mutex, held
//! for a few look-ups in a map.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::{Name, RemotePath};

use crate::steps::Steps;

/// Directories in each of the two generations. Walking a tree of more than twice as many costs
/// some requests for directories once more; the memory is some 2 MiB.
const MAX_DIRECTORIES: usize = 8_192;

/// A set of branches, by their places in the order of the tree.
pub(crate) type Slots = u64;

/// What is known of one path.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Branches that have told of it.
    asked: Slots,
    /// Those of them which have a directory there.
    directory: Slots,
}

/// How to ask a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// So many names from the beginning lead through directories.
    pub(crate) trusted: usize,
    /// The name after those was no directory.
    pub(crate) missing: bool,
    /// The whole path was seen to be a directory.
    pub(crate) directory: bool,
}

/// What a branch has told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    pub(crate) slot: usize,
    /// Names of its place, which are directories without being asked for.
    pub(crate) place: usize,
    /// So many names lead through directories.
    pub(crate) dirs: usize,
    /// Whether the whole path is a directory, if the branch was asked that.
    pub(crate) leaf: Option<bool>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Known(Mutex<State>);

#[derive(Default)]
struct State {
    young: HashMap<Box<[u8]>, Seen>,
    old: HashMap<Box<[u8]>, Seen>,
    /// How often names of directories were changed.
    changes: u64,
}

impl State {
    fn get(&self, path: &[u8]) -> Option<Seen> {
        self.young.get(path).or_else(|| self.old.get(path)).copied()
    }

    fn put(&mut self, path: &[u8], told: Seen) {
        let mut seen = self.get(path).unwrap_or_default();
        seen.asked |= told.asked;
        seen.directory = (seen.directory & !told.asked) | told.directory;
        if self.young.len() >= MAX_DIRECTORIES {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(path.into(), seen);
    }
}

impl Known {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How to ask each branch, given by its slot and the length of its place, and what tells
    /// [`Known::learn`] when that was. No more than `trust` names are taken on trust.
    pub(crate) fn routes(
        &self,
        steps: &Steps<'_>,
        branches: impl Iterator<Item = (usize, usize)>,
        trust: usize,
    ) -> (u64, Vec<Route>) {
        let state = self.state();
        let seen: Vec<Option<Seen>> =
            (1..=steps.depth()).map(|count| state.get(steps.prefix(count))).collect();
        let changes = state.changes;
        drop(state);
        let route = |(slot, place): (usize, usize)| {
            let bit = 1 << slot;
            let mut trusted = place.min(steps.above());
            let mut missing = false;
            while trusted < trust {
                match seen[trusted] {
                    Some(seen) if seen.directory & bit != 0 => trusted += 1,
                    told => {
                        missing = told.is_some_and(|seen| seen.asked & bit != 0);
                        break;
                    }
                }
            }
            let directory =
                seen.last().copied().flatten().is_some_and(|seen| seen.directory & bit != 0);
            Route { trusted, missing, directory }
        };
        (changes, branches.map(route).collect())
    }

    /// Keeps what branches have told about the directories on the way to a path, and about the
    /// path itself where it is one; nothing if there was a change since `changes`.
    pub(crate) fn learn(&self, changes: u64, steps: &Steps<'_>, heard: &[Heard]) {
        let mut state = self.state();
        if state.changes != changes {
            return;
        }
        for count in 1..=steps.depth() {
            let mut told = Seen::default();
            for Heard { slot, place, dirs, leaf } in heard.iter().copied() {
                let directory = match count {
                    count if count <= place => continue,
                    count if count <= dirs => true,
                    count if count > dirs + 1 => continue,
                    count if count == steps.depth() => match leaf {
                        Some(directory) => directory,
                        None => continue,
                    },
                    _ => false,
                };
                told.asked |= 1 << slot;
                told.directory |= u64::from(directory) << slot;
            }
            if told.directory != 0 {
                state.put(steps.prefix(count), told);
            }
        }
    }

    /// Keeps which of the branches that were `asked` have a directory of each of these names in
    /// `parent`, as a complete listing has told.
    pub(crate) fn learn_listed<'n>(
        &self,
        changes: u64,
        parent: &RemotePath,
        asked: Slots,
        names: impl Iterator<Item = (&'n Name, Slots)>,
    ) {
        let mut state = self.state();
        if state.changes != changes {
            return;
        }
        for (name, directory) in names {
            state.put(parent.join(name).as_bytes(), Seen { asked, directory });
        }
    }

    /// The directory at `path` is made or removed while this lives.
    pub(crate) fn change<'k>(&'k self, path: &'k RemotePath) -> Change<'k> {
        let change = Change { known: self, path: Some(path) };
        change.forget();
        change
    }

    /// Directories are renamed while this lives.
    pub(crate) fn change_all(&self) -> Change<'_> {
        let change = Change { known: self, path: None };
        change.forget();
        change
    }
}

/// A change on its way. What is learnt during it is forgotten, also when its caller gives up.
pub(crate) struct Change<'k> {
    known: &'k Known,
    path: Option<&'k RemotePath>,
}

impl Change<'_> {
    fn forget(&self) {
        let mut state = self.known.state();
        state.changes += 1;
        match self.path {
            Some(path) => {
                state.young.remove(path.as_bytes());
                state.old.remove(path.as_bytes());
            }
            None => {
                state.young.clear();
                state.old.clear();
            }
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    fn routes(known: &Known, at: &str) -> (u64, Vec<Route>) {
        let at = path(at);
        let steps = Steps::new(&at);
        known.routes(&steps, [(0, 0), (1, 0), (2, 1)].into_iter(), steps.above())
    }

    fn route(trusted: usize, missing: bool, directory: bool) -> Route {
        Route { trusted, missing, directory }
    }

    fn learn(known: &Known, at: &str, changes: u64) {
        let at = path(at);
        let heard = |slot, place, dirs, leaf| Heard { slot, place, dirs, leaf };
        let told = [heard(0, 0, 2, Some(true)), heard(1, 0, 0, None), heard(2, 1, 1, None)];
        known.learn(changes, &Steps::new(&at), &told);
    }

    #[test]
    fn directories_that_were_seen_are_trusted_and_others_asked_for() {
        let known = Known::default();
        let (changes, fresh) = routes(&known, "a/b/c");
        assert_eq!(fresh, [route(0, false, false), route(0, false, false), route(1, false, false)]);
        learn(&known, "a/b/c", changes);
        let (_, now) = routes(&known, "a/b/c/d");
        assert_eq!(now, [route(3, false, false), route(0, true, false), route(1, true, false)]);
        let (_, itself) = routes(&known, "a/b/c");
        assert_eq!(itself[0], route(2, false, true));
        let (_, beside) = routes(&known, "a/x/c");
        assert_eq!(beside[0], route(1, false, false));
    }

    #[test]
    fn answers_from_before_a_change_are_not_kept() {
        let known = Known::default();
        let (changes, _) = routes(&known, "a/b/c");
        learn(&known, "a/b/c", changes);
        let at = path("a/b");
        drop(known.change(&at));
        learn(&known, "a/b/c", changes);
        let (_, now) = routes(&known, "a/b/c/d");
        assert_eq!(now[0], route(1, false, false));
        drop(known.change_all());
        assert_eq!(routes(&known, "a/b/c/d").1[0], route(0, false, false));
    }

    #[test]
    fn the_table_is_bounded_and_keeps_what_came_last() {
        let known = Known::default();
        for number in 0..5 * MAX_DIRECTORIES {
            let name = Name::new(number.to_string().as_bytes()).unwrap();
            known.learn_listed(0, &path("d"), 3, [(&name, 1)].into_iter());
        }
        let state = known.state();
        assert!(state.young.len() + state.old.len() <= 2 * MAX_DIRECTORIES);
        drop(state);
        let last = 5 * MAX_DIRECTORIES - 1;
        let (_, now) = routes(&known, &format!("d/{last}/x"));
        // `d` itself was never seen.
        assert_eq!(now[2], route(1, false, false));
        assert!(routes(&known, &format!("d/{last}")).1[0].directory);
    }
}
