//! The times of the last changes made here, to judge the records of other mounts.
//!
//! A change made here removes the records it affects. Another mount may have sent a request before
//! the change, and record the answer after it: the record says when the request was sent, and is
//! not used here if that was before the change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{RemotePath, Timestamp};

use super::changes::Scope;

/// Bound on the paths of either kind: some megabytes. Beyond it, all requests sent until then are
/// taken for older than a change.
const MAX_PATHS: usize = 16 << 10;

#[derive(Default)]
struct Times {
    /// Changes of the entry at a path, and of all below it.
    trees: HashMap<RemotePath, Timestamp>,
    /// Changes of a directory's list of names, or of the attributes in it.
    listings: HashMap<RemotePath, Timestamp>,
    all: Option<Timestamp>,
}

/// See the [module](self). Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct ChangeTimes(Arc<Mutex<Times>>);

impl ChangeTimes {
    fn lock(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `scopes` are being changed, or were until now.
    pub(crate) fn note(&self, scopes: &[Scope]) {
        let now = Timestamp::now();
        let mut state = self.lock();
        for item in scopes {
            let (Scope::Subtree(path) | Scope::Names(path)) = item;
            match item {
                Scope::Subtree(_) => state.trees.insert(path.clone(), now),
                Scope::Names(_) => state.listings.insert(path.clone(), now),
            };
            // The listing of the parent has the attributes of the entry.
            path.parent().map(|dir| state.listings.insert(dir, now));
        }
        if state.trees.len() + state.listings.len() > MAX_PATHS {
            *state = Times { all: Some(now), ..Times::default() };
        }
    }

    /// Whether nothing was ever changed here.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.trees.is_empty() && state.listings.is_empty() && state.all.is_none()
    }

    /// Whether an answer about `path`, or the names in it, requested at `seen_at`, is valid.
    pub(crate) fn is_valid(&self, path: &RemotePath, seen_at: Timestamp) -> bool {
        let state = self.lock();
        // The attributes of a directory change with its names.
        state.is_valid(path, seen_at) && !changed_since(state.listings.get(path), seen_at)
    }
}

fn changed_since(changed: Option<&Timestamp>, seen_at: Timestamp) -> bool {
    changed.is_some_and(|changed| *changed >= seen_at)
}

impl Times {
    fn is_valid(&self, path: &RemotePath, seen_at: Timestamp) -> bool {
        if changed_since(self.all.as_ref(), seen_at) {
            return false;
        }
        let mut above = std::iter::successors(Some(path.clone()), RemotePath::parent);
        self.trees.is_empty() || above.all(|at| !changed_since(self.trees.get(&at), seen_at))
    }
}

#[cfg(test)]
mod tests {
    use testkit::path;

    use super::*;

    #[test]
    fn what_was_asked_before_a_change_does_not_count() {
        let change_times = ChangeTimes::default();
        let before = Timestamp::now();
        assert!(change_times.is_empty() && change_times.is_valid(&path("d/f"), before));
        change_times.note(&[Scope::Subtree(path("d/f")), Scope::Names(path("d"))]);
        let after = Timestamp { secs: Timestamp::now().secs + 1, nanos: 0 };
        for at in ["d/f", "d/f/below", "d", ""] {
            assert!(!change_times.is_valid(&path(at), before), "{at}");
            assert!(change_times.is_valid(&path(at), after), "{at}");
        }
        assert!(change_times.is_valid(&path("d/g"), before));
        assert!(!change_times.is_empty());
    }

    #[test]
    fn with_too_many_changes_nothing_from_before_counts() {
        let change_times = ChangeTimes::default();
        let before = Timestamp::now();
        for number in 0..=MAX_PATHS {
            change_times.note(&[Scope::Subtree(path(&format!("d/f{number}")))]);
        }
        assert!(!change_times.is_valid(&path("never"), before));
        let after = Timestamp { secs: Timestamp::now().secs + 1, nanos: 0 };
        assert!(change_times.is_valid(&path("never"), after));
        assert!(change_times.lock().trees.len() < MAX_PATHS);
    }
}
