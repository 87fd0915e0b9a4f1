//! Directories of whose changes nothing is known any longer.
//!
//! What was changed here in a directory is remembered with its node, and goes with it. A listing
//! that was asked for before, and comes later or is kept by its path, may be older than those
//! changes; so may what was asked of a file in it. Such a path is remembered here with the tick
//! before which nothing counts that was asked about it. For one that is not known, and for those
//! that there was no room for, that is so of all paths.

use std::collections::{HashMap, VecDeque};

use base::RemotePath;

/// Paths that are remembered: more than are removed while an answer is on its way; some 200 KiB.
const MAX_PATHS: usize = 1024;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Lost {
    by_path: HashMap<RemotePath, u64>,
    /// In the order of the ticks; a path that was lost several times is in it as often.
    order: VecDeque<(u64, RemotePath)>,
    /// Of all paths.
    floor: u64,
}

impl Lost {
    /// What was asked about the directory at `path` before `tick` does not count.
    pub(super) fn note(&mut self, path: RemotePath, tick: u64) {
        self.order.push_back((tick, path.clone()));
        self.by_path.insert(path, tick);
        while self.order.len() > MAX_PATHS {
            let Some((tick, path)) = self.order.pop_front() else { return };
            self.floor = self.floor.max(tick);
            if self.by_path.get(&path) == Some(&tick) {
                self.by_path.remove(&path);
            }
        }
    }

    /// The same of all directories.
    pub(super) fn note_all(&mut self, tick: u64) {
        *self = Lost { floor: tick, ..Lost::default() };
    }

    /// Whether what was asked about the directory at `path` at `tick` counts.
    pub(super) fn counts(&self, path: &RemotePath, tick: u64) -> bool {
        let since = if self.by_path.is_empty() { None } else { self.by_path.get(path) };
        tick >= self.floor && since.is_none_or(|since| tick >= *since)
    }

    /// Whether nothing was lost since `tick`.
    pub(super) fn none_since(&self, tick: u64) -> bool {
        tick >= self.floor && self.order.back().is_none_or(|(last, _)| tick >= *last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RemotePath {
        RemotePath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn one_path_says_nothing_about_another_until_there_is_no_room() {
        let mut lost = Lost::default();
        assert!(lost.none_since(0) && lost.counts(&path("d"), 0));
        lost.note(path("d"), 5);
        lost.note(path("d"), 7);
        assert!(!lost.none_since(6) && lost.none_since(7));
        assert!(!lost.counts(&path("d"), 6) && lost.counts(&path("d"), 7));
        assert!(lost.counts(&path("e"), 0) && lost.counts(&path("d/e"), 0));
        for tick in 8..8 + MAX_PATHS as u64 {
            lost.note(path(&format!("d{tick}")), tick);
        }
        assert!(!lost.counts(&path("e"), 6) && lost.counts(&path("e"), 7));
        assert_eq!((lost.by_path.len(), lost.order.len()), (MAX_PATHS, MAX_PATHS));
        lost.note_all(5000);
        assert!(!lost.counts(&path("e"), 4999) && lost.counts(&path("d8"), 5000));
        assert!(!lost.none_since(4999) && lost.none_since(5000));
    }
}
