//! Which branches have a directory, so that a look-up does not query it again.
//!
//! An entry never changes an answer:
//!
//! - A branch that has the directory is queried only for the names below it, not for each directory
//!   of the path. If the directory has been replaced meanwhile, the caller has also taken the old
//!   one for current, and looks it up again when its attributes expire.
//! - A branch without the directory is queried for that directory again, and for nothing below it
//!   while it is absent.
//!
//! Answers are not recorded if names of directories were changed here after the request was sent,
//! so that an answer from before a change is never kept after it. One mutex, held for a few
//! look-ups in a map.

use std::collections::HashMap;

use base::{Mutex, Name, RemotePath, SmallSet};

use crate::components::Components;

/// Directories in each of the two generations. Walking a tree of more than twice as many costs some
/// requests for directories again; the memory is some 2 MiB.
const MAX_DIRECTORIES: usize = 8_192;

/// A set of branches, by their slots in the order of search.
pub(crate) type SlotSet = SmallSet;

/// The cached state of one path.
#[derive(Clone, Copy, Debug, Default)]
struct CachedDir {
    /// Branches that have answered for it.
    queried: SlotSet,
    /// Branches that have a directory there.
    present: SlotSet,
}

/// How to query a branch for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The number of leading names that are known to be directories.
    pub(crate) trusted: usize,
    /// The name after those is known not to be a directory.
    pub(crate) missing: bool,
    /// The whole path is known to be a directory.
    pub(crate) directory: bool,
}

/// The answer of one branch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) slot: usize,
    /// The number of names in its place, which are directories without a request.
    pub(crate) place_depth: usize,
    /// The number of leading names that are directories.
    pub(crate) dirs: usize,
    /// Whether the whole path is a directory, if the branch was queried for that.
    pub(crate) leaf: Option<bool>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct DirCache(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: HashMap<Box<[u8]>, CachedDir>,
    old: HashMap<Box<[u8]>, CachedDir>,
    /// Incremented by each change of directory names.
    generation: u64,
}

impl Generations {
    fn get(&self, path: &[u8]) -> Option<CachedDir> {
        self.young.get(path).or_else(|| self.old.get(path)).copied()
    }

    fn put(&mut self, path: &[u8], update: CachedDir) {
        let mut seen = self.get(path).unwrap_or_default();
        seen.queried = seen.queried.union(update.queried);
        seen.present = seen.present.difference(update.queried).union(update.present);
        if self.young.len() >= MAX_DIRECTORIES {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(path.into(), seen);
    }
}

impl DirCache {
    /// The routes for the branches, each given by its slot and the length of its place, and the
    /// generation for [`DirCache::record`]. At most `trust` names are taken from the cache.
    pub(crate) fn routes(
        &self,
        components: &Components<'_>,
        branches: impl Iterator<Item = (usize, usize)>,
        trust: usize,
    ) -> (u64, Vec<Route>) {
        let state = self.0.lock();
        let seen: Vec<Option<CachedDir>> =
            (1..=components.depth()).map(|count| state.get(components.prefix(count))).collect();
        let generation = state.generation;
        drop(state);
        let route = |(slot, place_depth): (usize, usize)| {
            let mut trusted = place_depth.min(components.parent_depth());
            let mut missing = false;
            while trusted < trust {
                match seen[trusted] {
                    Some(seen) if seen.present.contains(slot) => trusted += 1,
                    cached => {
                        missing = cached.is_some_and(|seen| seen.queried.contains(slot));
                        break;
                    }
                }
            }
            let directory =
                seen.last().copied().flatten().is_some_and(|seen| seen.present.contains(slot));
            Route { trusted, missing, directory }
        };
        (generation, branches.map(route).collect())
    }

    /// Records which names of a path are directories, unless `generation` is out of date.
    pub(crate) fn record(&self, generation: u64, components: &Components<'_>, reports: &[Report]) {
        let mut state = self.0.lock();
        if state.generation != generation {
            return;
        }
        for count in 1..=components.depth() {
            let mut update = CachedDir::default();
            for Report { slot, place_depth, dirs, leaf } in reports.iter().copied() {
                let directory = match count {
                    count if count <= place_depth => continue,
                    count if count <= dirs => true,
                    count if count > dirs + 1 => continue,
                    count if count == components.depth() => match leaf {
                        Some(directory) => directory,
                        None => continue,
                    },
                    _ => false,
                };
                update.queried = update.queried.with(slot);
                if directory {
                    update.present = update.present.with(slot);
                }
            }
            if !update.present.is_empty() {
                state.put(components.prefix(count), update);
            }
        }
    }

    /// Records which of the `queried` branches have a directory of each of these names in `parent`,
    /// from a complete listing.
    pub(crate) fn record_listing<'n>(
        &self,
        generation: u64,
        parent: &RemotePath,
        queried: SlotSet,
        names: impl Iterator<Item = (&'n Name, SlotSet)>,
    ) {
        let mut state = self.0.lock();
        if state.generation != generation {
            return;
        }
        for (name, present) in names {
            state.put(parent.join(name).as_bytes(), CachedDir { queried, present });
        }
    }

    /// The directory at `path` is created or removed until the guard is dropped; without a path,
    /// directories are renamed.
    pub(crate) fn begin_change<'k>(&'k self, path: Option<&'k RemotePath>) -> Change<'k> {
        let change = Change { cache: self, path };
        change.forget();
        change
    }
}

/// A change in flight. Answers recorded during it are forgotten, also when its future is dropped.
pub(crate) struct Change<'k> {
    cache: &'k DirCache,
    path: Option<&'k RemotePath>,
}

impl Change<'_> {
    fn forget(&self) {
        let mut state = self.cache.0.lock();
        state.generation += 1;
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

    fn routes(cache: &DirCache, at: &str) -> (u64, Vec<Route>) {
        let at = path(at);
        let components = Components::new(&at);
        cache.routes(&components, [(0, 0), (1, 0), (2, 1)].into_iter(), components.parent_depth())
    }

    fn route(trusted: usize, missing: bool, directory: bool) -> Route {
        Route { trusted, missing, directory }
    }

    fn record(cache: &DirCache, at: &str, generation: u64) {
        let at = path(at);
        let report = |slot, place_depth, dirs, leaf| Report { slot, place_depth, dirs, leaf };
        let reports = [report(0, 0, 2, Some(true)), report(1, 0, 0, None), report(2, 1, 1, None)];
        cache.record(generation, &Components::new(&at), &reports);
    }

    #[test]
    fn directories_that_were_seen_are_trusted_and_others_asked_for() {
        let cache = DirCache::default();
        let (generation, fresh) = routes(&cache, "a/b/c");
        assert_eq!(fresh, [route(0, false, false), route(0, false, false), route(1, false, false)]);
        record(&cache, "a/b/c", generation);
        let (_, now) = routes(&cache, "a/b/c/d");
        assert_eq!(now, [route(3, false, false), route(0, true, false), route(1, true, false)]);
        let (_, itself) = routes(&cache, "a/b/c");
        assert_eq!(itself[0], route(2, false, true));
        let (_, beside) = routes(&cache, "a/x/c");
        assert_eq!(beside[0], route(1, false, false));
    }

    #[test]
    fn answers_from_before_a_change_are_not_kept() {
        let cache = DirCache::default();
        let (generation, _) = routes(&cache, "a/b/c");
        record(&cache, "a/b/c", generation);
        let at = path("a/b");
        drop(cache.begin_change(Some(&at)));
        record(&cache, "a/b/c", generation);
        let (_, now) = routes(&cache, "a/b/c/d");
        assert_eq!(now[0], route(1, false, false));
        drop(cache.begin_change(None));
        assert_eq!(routes(&cache, "a/b/c/d").1[0], route(0, false, false));
    }

    #[test]
    fn the_table_is_bounded_and_keeps_what_came_last() {
        let cache = DirCache::default();
        for number in 0..5 * MAX_DIRECTORIES {
            let name = Name::new(number.to_string().as_bytes()).unwrap();
            let (first, both) = (SlotSet::of(0), SlotSet::of(0).with(1));
            cache.record_listing(0, &path("d"), both, [(&name, first)].into_iter());
        }
        let state = cache.0.lock();
        assert!(state.young.len() + state.old.len() <= 2 * MAX_DIRECTORIES);
        drop(state);
        let last = 5 * MAX_DIRECTORIES - 1;
        let (_, now) = routes(&cache, &format!("d/{last}/x"));
        // `d` itself was never recorded.
        assert_eq!(now[2], route(1, false, false));
        assert!(routes(&cache, &format!("d/{last}")).1[0].directory);
    }
}
