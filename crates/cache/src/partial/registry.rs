//! The partial contents of this process, by subject: all callers share one.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use base::{Mutex, RemotePath};

use super::chunks::chunk_range;
use super::files::{self, Names, Subject};
use super::{InFlight, Inner, Partial};
use crate::metadata::SourceId;
use crate::object::chunk_count;
use crate::store::shared::Shared;

/// The partial contents of this process.
#[derive(Default)]
pub(crate) struct Registry {
    open: Mutex<HashMap<[u8; 32], Weak<Inner>>>,
    /// Contents of several chunks that this process has begun to fetch.
    begun: Mutex<HashSet<[u8; 32]>>,
}

/// Bound on them. Beyond it all are forgotten, and partial contents start from nothing.
const MAX_BEGUN: usize = 64 << 10;

impl Registry {
    /// Removes a content, if it is the registered one.
    pub(super) fn remove(&self, inner: &Inner) {
        let mut open = self.open.lock();
        if open.get(&inner.key).is_some_and(|weak| std::ptr::eq(weak.as_ptr(), inner)) {
            open.remove(&inner.key);
        }
    }
}

impl Shared {
    /// The operations of this subject's content in flight to the store.
    pub(crate) fn in_flight(&self, subject: &Subject) -> Option<InFlight> {
        let known = self.partials.open.lock().get(&subject.key()).and_then(Weak::upgrade)?;
        Some(known.in_flight.clone())
    }

    /// Records that this process fetches the content, if it has several chunks. Returns whether
    /// that is new.
    pub(crate) fn begins(&self, subject: &Subject) -> bool {
        if chunk_count(subject.validator.size) <= 1 {
            return false;
        }
        let mut begun = self.partials.begun.lock();
        if begun.len() >= MAX_BEGUN {
            begun.clear();
        }
        begun.insert(subject.key())
    }

    /// Whether this process has begun the content.
    pub(crate) fn has_begun(&self, subject: &Subject) -> bool {
        self.partials.begun.lock().contains(&subject.key())
    }

    /// The partial content of this subject: the one in use in this process, or one that an earlier
    /// process left, or an empty one.
    pub(crate) fn partial(self: &Arc<Shared>, subject: Subject) -> Partial {
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
        inner.resume(&mut state);
        drop(state);
        Partial(inner)
    }

    /// Discards the partial contents of files below these directories. Long where there are very
    /// many.
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
        // Dropped without the lock: dropping the last reference takes it.
        let known: Vec<Arc<Inner>> =
            self.partials.open.lock().values().filter_map(Weak::upgrade).collect();
        let mut found: Vec<Subject> = known.iter().map(|it| it.subject.clone()).collect();
        drop(known);
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
            self.partial(subject).abandon();
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
