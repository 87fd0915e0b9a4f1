//! When something was changed here last, for what other mounts record.
//!
//! What is recorded is forgotten when it is changed here. Another mount may have asked before that,
//! and record its answer later: it says when it asked, and what it asked before a change made here
//! does not count here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{RemotePath, Timestamp};

use super::changes::Item;

/// Paths of either kind that are remembered, at most: some megabytes. With more, all that was asked
/// until then does not count.
const MAX_PATHS: usize = 16 << 10;

#[derive(Default)]
struct State {
    /// Of what is at a path, and below it.
    trees: HashMap<RemotePath, Timestamp>,
    /// Of a directory's list of names, with the attributes in it.
    listings: HashMap<RemotePath, Timestamp>,
    all: Option<Timestamp>,
}

/// See the [module](self). Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct ChangedAt(Arc<Mutex<State>>);

impl ChangedAt {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `items` are being changed, or were until now.
    pub(crate) fn note(&self, items: &[Item]) {
        let now = Timestamp::now();
        let mut state = self.lock();
        for item in items {
            let (Item::Tree(path) | Item::Names(path)) = item;
            match item {
                Item::Tree(_) => state.trees.insert(path.clone(), now),
                Item::Names(_) => state.listings.insert(path.clone(), now),
            };
            // It has the attributes of what is at the path.
            path.parent().map(|dir| state.listings.insert(dir, now));
        }
        if state.trees.len() + state.listings.len() > MAX_PATHS {
            *state = State { all: Some(now), ..State::default() };
        }
    }

    /// Whether nothing was ever changed here.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.trees.is_empty() && state.listings.is_empty() && state.all.is_none()
    }

    /// Whether what was told at `seen_at` of `path`, or of the names in it, still counts.
    pub(crate) fn lets_count(&self, path: &RemotePath, seen_at: Timestamp) -> bool {
        let state = self.lock();
        // The attributes of a directory change with its names.
        state.lets_count(path, seen_at) && !later(state.listings.get(path), seen_at)
    }
}

fn later(changed: Option<&Timestamp>, seen_at: Timestamp) -> bool {
    changed.is_some_and(|changed| *changed >= seen_at)
}

impl State {
    fn lets_count(&self, path: &RemotePath, seen_at: Timestamp) -> bool {
        if later(self.all.as_ref(), seen_at) {
            return false;
        }
        let mut above = std::iter::successors(Some(path.clone()), RemotePath::parent);
        self.trees.is_empty() || above.all(|at| !later(self.trees.get(&at), seen_at))
    }
}

#[cfg(test)]
mod tests {
    use testkit::path;

    use super::*;

    #[test]
    fn what_was_asked_before_a_change_does_not_count() {
        let changed_at = ChangedAt::default();
        let before = Timestamp::now();
        assert!(changed_at.is_empty() && changed_at.lets_count(&path("d/f"), before));
        changed_at.note(&[Item::Tree(path("d/f")), Item::Names(path("d"))]);
        let after = Timestamp { secs: Timestamp::now().secs + 1, nanos: 0 };
        for at in ["d/f", "d/f/below", "d", ""] {
            assert!(!changed_at.lets_count(&path(at), before), "{at}");
            assert!(changed_at.lets_count(&path(at), after), "{at}");
        }
        assert!(changed_at.lets_count(&path("d/g"), before));
        assert!(!changed_at.is_empty());
    }

    #[test]
    fn with_too_many_changes_nothing_from_before_counts() {
        let changed_at = ChangedAt::default();
        let before = Timestamp::now();
        for number in 0..=MAX_PATHS {
            changed_at.note(&[Item::Tree(path(&format!("d/f{number}")))]);
        }
        assert!(!changed_at.lets_count(&path("never"), before));
        let after = Timestamp { secs: Timestamp::now().secs + 1, nanos: 0 };
        assert!(changed_at.lets_count(&path("never"), after));
        assert!(changed_at.lock().trees.len() < MAX_PATHS);
    }
}
