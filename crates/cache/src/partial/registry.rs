//! The partial contents of this process, by subject: all callers share one.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use base::{Mutex, RemotePath};

use super::chunks::{ChunkSums, chunk_range};
use super::files::{self, Names, Subject};
use super::{InFlight, Inner, Partial};
use crate::codec::CHECKSUM_BYTES;
use crate::metadata::SourceId;
use crate::store::shared::Shared;

/// The partial contents of this process.
#[derive(Default)]
pub(crate) struct Registry {
    open: Mutex<HashMap<[u8; 32], Weak<Inner>>>,
    /// Those that this process has left on the disk.
    left: Mutex<HashMap<[u8; 32], Left>>,
}

/// A partial content, and the [`ChunkSums::seal`] of its chunks.
type Left = (Subject, [u8; CHECKSUM_BYTES]);

/// Bound on those that were left. Beyond it all are forgotten, and partial contents start from
/// nothing.
const MAX_LEFT: usize = 64 << 10;

/// Which partial contents on the disk are resumed. Others are discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resume {
    /// Those of any process.
    Any,
    /// Those with exactly the chunks that this process has left: size and mtime do not prove that
    /// others are of the same content, and parts of two contents must not be put together.
    Own,
}

impl Registry {
    /// Removes a content, if it is the registered one, and notes which chunks it leaves on the
    /// disk.
    pub(super) fn remove(&self, inner: &Inner, left: Option<&ChunkSums>) {
        let mut open = self.open.lock();
        if open.get(&inner.key).is_none_or(|weak| !std::ptr::eq(weak.as_ptr(), inner)) {
            return;
        }
        open.remove(&inner.key);
        let mut all = self.left.lock();
        if all.len() >= MAX_LEFT {
            all.clear();
        }
        match left {
            Some(left) => all.insert(inner.key, (inner.subject.clone(), left.seal())),
            None => all.remove(&inner.key),
        };
    }

    /// Whether this process has left exactly these chunks.
    pub(super) fn left(&self, key: &[u8; 32], chunks: &ChunkSums) -> bool {
        self.left.lock().get(key).is_some_and(|(_, left)| *left == chunks.seal())
    }
}

impl Shared {
    /// The operations of this subject's content in flight to the store.
    pub(crate) fn in_flight(&self, subject: &Subject) -> Option<InFlight> {
        let known = self.partials.open.lock().get(&subject.key()).and_then(Weak::upgrade)?;
        Some(known.in_flight.clone())
    }

    /// Whether this process has fetched a part of the content, or does so.
    pub(crate) fn has_begun(&self, subject: &Subject) -> bool {
        let key = subject.key();
        self.partials.open.lock().contains_key(&key) || self.partials.left.lock().contains_key(&key)
    }

    /// The partial content of this subject: the one in use in this process, or the one on the disk,
    /// or an empty one.
    pub(crate) fn partial(self: &Arc<Shared>, subject: Subject, which: Resume) -> Partial {
        let key = subject.key();
        let mut registry = self.partials.open.lock();
        if let Some(known) = registry.get(&key).and_then(Weak::upgrade) {
            return Partial(known);
        }
        let inner = Arc::new(Inner::new(self.clone(), subject, key));
        registry.insert(key, Arc::downgrade(&inner));
        // Locked before other callers can have it: they wait until it has been resumed.
        let mut state = inner.state.lock();
        drop(registry);
        inner.resume(&mut state, which);
        drop(state);
        Partial(inner)
    }

    /// Discards what this process has fetched of the files that are `affected`: it is not continued.
    pub(crate) fn abandon_own(&self, source: &SourceId, affected: impl Fn(&RemotePath) -> bool) {
        let is_here = |subject: &Subject| subject.source == *source && affected(&subject.path);
        self.partials.left.lock().retain(|_, (subject, _)| !is_here(subject));
        // Dropped without the lock: dropping the last reference takes it.
        let open: Vec<_> = self.partials.open.lock().values().filter_map(Weak::upgrade).collect();
        open.into_iter()
            .map(Partial)
            .filter(|it| is_here(&it.0.subject))
            .for_each(|it| it.abandon());
    }

    /// Discards the partial contents on the disk of files below these directories. Long where there
    /// are very many.
    pub fn abandon_below(self: &Arc<Shared>, directories: &[(&SourceId, &RemotePath)]) {
        if directories.is_empty() {
            return;
        }
        let is_below = |subject: &Subject| {
            let holds = |(source, dir): &(&SourceId, &RemotePath)| {
                subject.source == **source && subject.path.is_below(dir)
            };
            directories.iter().any(holds)
        };
        let mut found = Vec::new();
        let layout = self.layout();
        for (name, _) in layout.partial.names().unwrap_or_default() {
            if name.ends_with(b".map")
                && let Ok((map, _)) = layout.partial.read_only(&name)
                && let Ok(Some(subject)) = files::subject_of(&map)
            {
                found.push(subject);
            }
        }
        for subject in found.into_iter().filter(is_below) {
            self.partial(subject, Resume::Any).abandon();
        }
    }

    /// Bytes of an unfinished fetch on the disk, from this or an earlier process.
    pub(crate) fn partial_bytes(&self, subject: &Subject) -> u64 {
        let names = Names::of(&subject.key());
        let Ok((map, _)) = self.layout().partial.read_only(&names.map) else { return 0 };
        let Ok(Some((known, entries))) = files::read_map(&map) else { return 0 };
        if known != *subject {
            return 0;
        }
        let chunks: HashSet<u64> = entries.iter().map(|(chunk, _)| *chunk).collect();
        let len = |chunk: u64| {
            let range = chunk_range(chunk, subject.validator.size);
            range.end - range.start
        };
        chunks.into_iter().map(len).sum()
    }
}
