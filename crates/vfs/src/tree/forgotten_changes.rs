//! Directories whose record of local changes was dropped.
//!
//! The local changes in a directory are recorded with its node and dropped with it. A listing that
//! was requested before, and arrives later or is cached by path, may be older than those changes;
//! so may answers about files in the directory. So the path is kept here, with the sequence number
//! before which requests about it are not valid. If a path is not known, or there are too many of
//! them, that sequence number applies to all paths.

use std::collections::{HashMap, VecDeque};

use base::RemotePath;

/// Paths that are kept: more than are removed while a request is in flight; some 200 KiB.
const MAX_PATHS: usize = 1024;

/// See the [module](self).
#[derive(Default)]
pub(super) struct ForgottenChanges {
    by_path: HashMap<RemotePath, u64>,
    /// Ordered by sequence number; a path that was dropped N times is in it N times.
    order: VecDeque<(u64, RemotePath)>,
    /// Applies to all paths.
    floor: u64,
}

impl ForgottenChanges {
    /// Requests about the directory at `path` from before `seq` are not valid.
    pub(super) fn note(&mut self, path: RemotePath, seq: u64) {
        self.order.push_back((seq, path.clone()));
        self.by_path.insert(path, seq);
        while self.order.len() > MAX_PATHS {
            let Some((seq, path)) = self.order.pop_front() else { return };
            self.floor = self.floor.max(seq);
            if self.by_path.get(&path) == Some(&seq) {
                self.by_path.remove(&path);
            }
        }
    }

    /// Requests about any directory from before `seq` are not valid.
    pub(super) fn note_all(&mut self, seq: u64) {
        *self = ForgottenChanges { floor: seq, ..ForgottenChanges::default() };
    }

    /// Whether the answer to a request at `seq` about the directory at `path` is valid.
    pub(super) fn is_valid(&self, path: &RemotePath, seq: u64) -> bool {
        let since = if self.by_path.is_empty() { None } else { self.by_path.get(path) };
        seq >= self.floor && since.is_none_or(|since| seq >= *since)
    }

    /// Whether no record was dropped since `seq`.
    pub(super) fn none_since(&self, seq: u64) -> bool {
        seq >= self.floor && self.order.back().is_none_or(|(last, _)| seq >= *last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RemotePath {
        RemotePath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_dropped_path_does_not_affect_others_until_there_are_too_many() {
        let mut forgotten = ForgottenChanges::default();
        assert!(forgotten.none_since(0) && forgotten.is_valid(&path("d"), 0));
        forgotten.note(path("d"), 5);
        forgotten.note(path("d"), 7);
        assert!(!forgotten.none_since(6) && forgotten.none_since(7));
        assert!(!forgotten.is_valid(&path("d"), 6) && forgotten.is_valid(&path("d"), 7));
        assert!(forgotten.is_valid(&path("e"), 0) && forgotten.is_valid(&path("d/e"), 0));
        for seq in 8..8 + MAX_PATHS as u64 {
            forgotten.note(path(&format!("d{seq}")), seq);
        }
        assert!(!forgotten.is_valid(&path("e"), 6) && forgotten.is_valid(&path("e"), 7));
        assert_eq!((forgotten.by_path.len(), forgotten.order.len()), (MAX_PATHS, MAX_PATHS));
        forgotten.note_all(5000);
        assert!(!forgotten.is_valid(&path("e"), 4999) && forgotten.is_valid(&path("d8"), 5000));
        assert!(!forgotten.none_since(4999) && forgotten.none_since(5000));
    }
}
