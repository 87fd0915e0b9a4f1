//! What the open files of one path have in common: their home, and whether somebody writes.
//!
//! An entry of the table lives as long as somebody holds it: an open file, or one who is opening
//! it. The table's lock is held while one entry's is taken, never the other way round.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Attr, RemotePath, Timestamp};
use tokio::time::Instant;

/// What tells one version of a file's content from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
}

impl Version {
    pub(crate) fn of(attr: &Attr) -> Version {
        Version { size: attr.size, mtime: attr.mtime }
    }

    /// Whether a file with these attributes shows this version, or a newer one.
    pub(crate) fn is_shown_by(self, attr: &Attr) -> bool {
        attr.mtime > self.mtime || Version::of(attr) == self
    }
}

struct State {
    /// What it is called now, as far as that is known here; `None` when it was removed.
    name: Option<RemotePath>,
    /// The gateway through which all of it goes.
    home: Option<usize>,
    /// The version that is shown by all who are used to read it.
    agreed: Option<Version>,
    /// Through which gateway a change of its content was sent last, and when.
    changed: Option<(usize, Instant)>,
}

/// What the open files of one path have in common.
pub(crate) struct Named {
    state: Mutex<State>,
    /// Shares in it; changed with the table locked.
    holders: AtomicUsize,
    /// Open files that may write.
    writers: AtomicUsize,
    /// Counts what ends the use of further gateways: changes made here, or seen.
    changes: AtomicU64,
}

impl Named {
    fn new(path: &RemotePath) -> Named {
        let state = State { name: Some(path.clone()), home: None, agreed: None, changed: None };
        Named {
            state: Mutex::new(state),
            holders: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self) -> Option<RemotePath> {
        self.lock().name.clone()
    }

    pub(crate) fn home(&self) -> Option<usize> {
        self.lock().home
    }

    pub(crate) fn set_home(&self, gateway: usize) {
        self.lock().home = Some(gateway);
    }

    /// Makes `gateway` the home, unless there is one that `stays`. Tells which it is.
    pub(crate) fn claim(&self, gateway: usize, stays: impl Fn(usize) -> bool) -> usize {
        let mut state = self.lock();
        match state.home.filter(|home| stays(*home)) {
            Some(home) => home,
            None => *state.home.insert(gateway),
        }
    }

    pub(crate) fn is_written(&self) -> bool {
        self.writers.load(Ordering::SeqCst) > 0
    }

    /// The number of changes so far. What was agreed on before another one is void.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Its content is being changed.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.lock().agreed = None;
    }

    /// A change of its content is about to be sent through `gateway`.
    pub(crate) fn changed_through(&self, gateway: usize) {
        self.lock().changed = Some((gateway, Instant::now()));
    }

    /// When its content was changed through another gateway than this, if that one was the last.
    pub(crate) fn changed_elsewhere(&self, gateway: usize) -> Option<Instant> {
        self.lock().changed.filter(|(other, _)| *other != gateway).map(|(_, at)| at)
    }

    /// What is shown of it from now on is later than all changes.
    pub(crate) fn looked_anew(&self) {
        self.lock().changed = None;
    }

    /// All who are used to read it show this version, if there was no change since `changes`.
    pub(crate) fn agree(&self, version: Version, changes: u64) -> bool {
        let mut state = self.lock();
        let good = self.changes() == changes && state.agreed.is_none_or(|it| it == version);
        if good {
            state.agreed = Some(version);
        }
        good
    }

    /// These attributes are about to be shown. If they are of another version than what was agreed
    /// on, that is void.
    pub(crate) fn shown(&self, attr: &Attr) {
        let mut state = self.lock();
        if state.agreed.is_some_and(|agreed| agreed != Version::of(attr)) {
            state.agreed = None;
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The paths with open files.
#[derive(Default)]
pub(crate) struct Names {
    table: Mutex<HashMap<RemotePath, Arc<Named>>>,
    /// Entries: without any there is nothing to lock.
    count: AtomicUsize,
}

impl Names {
    fn lock(&self) -> MutexGuard<'_, HashMap<RemotePath, Arc<Named>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// The entry of `path`, made if there is none.
    pub(crate) fn hold(self: &Arc<Names>, path: &RemotePath) -> Held {
        let mut table = self.lock();
        let named = match table.get(path) {
            Some(named) => named.clone(),
            None => {
                let named = Arc::new(Named::new(path));
                table.insert(path.clone(), named.clone());
                named
            }
        };
        named.holders.fetch_add(1, Ordering::SeqCst);
        self.count.store(table.len(), Ordering::SeqCst);
        Held { names: self.clone(), named, writes: false }
    }

    /// The entry of `path`, if something has it open.
    pub(crate) fn get(&self, path: &RemotePath) -> Option<Arc<Named>> {
        if self.is_empty() {
            return None;
        }
        self.lock().get(path).cloned()
    }

    /// The path leads to nothing any more, or to something else.
    pub(crate) fn removed(&self, path: &RemotePath) {
        if self.is_empty() {
            return;
        }
        let mut table = self.lock();
        let named = table.remove(path);
        self.count.store(table.len(), Ordering::SeqCst);
        drop(table);
        if let Some(named) = named {
            named.lock().name = None;
        }
    }

    /// The path, and all below it, is called otherwise now.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath) {
        if self.is_empty() || from == to {
            return;
        }
        let mut table = self.lock();
        let moved: Vec<_> = table
            .extract_if(|path, _| path.is_within(from) || path.is_within(to))
            .filter_map(|(path, named)| {
                let path = path.moved(from, to);
                named.lock().name.clone_from(&path);
                Some((path?, named))
            })
            .collect();
        table.extend(moved);
        self.count.store(table.len(), Ordering::SeqCst);
    }
}

/// A share of an entry; the last one to let go takes it out of the table.
pub(crate) struct Held {
    names: Arc<Names>,
    named: Arc<Named>,
    writes: bool,
}

impl Held {
    /// Counts among those who may write, from now until it is let go.
    pub(crate) fn write(&mut self) {
        if !std::mem::replace(&mut self.writes, true) {
            self.named.writers.fetch_add(1, Ordering::SeqCst);
            self.named.changed();
        }
    }
}

impl std::ops::Deref for Held {
    type Target = Named;

    fn deref(&self) -> &Named {
        &self.named
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.writes {
            self.named.writers.fetch_sub(1, Ordering::SeqCst);
        }
        let mut table = self.names.lock();
        if self.named.holders.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let name = self.named.lock().name.clone();
        if let Some(name) = name
            && table.get(&name).is_some_and(|named| Arc::ptr_eq(named, &self.named))
        {
            table.remove(&name);
            self.names.count.store(table.len(), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::FileKind;
    use testkit::path;

    fn attr(size: u64) -> Attr {
        Attr {
            kind: FileKind::Regular,
            perm: 0o644,
            size,
            uid: 0,
            gid: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
        }
    }

    #[test]
    fn an_entry_lives_as_long_as_somebody_holds_it() {
        let names = Arc::new(Names::default());
        let one = names.hold(&path("a"));
        assert_eq!(one.claim(2, |_| false), 2);
        let mut two = names.hold(&path("a"));
        assert_eq!((two.claim(1, |_| true), two.home()), (2, Some(2)));
        let looked_at = names.get(&path("a"));
        two.write();
        assert!(one.is_written());
        drop(two);
        assert!(!one.is_written() && names.get(&path("a")).is_some());
        drop(one);
        assert!(names.is_empty() && names.get(&path("a")).is_none());
        drop(looked_at);
    }

    #[test]
    fn names_are_followed() {
        let names = Arc::new(Names::default());
        let (file, other) = (names.hold(&path("d/a")), names.hold(&path("b")));
        names.renamed(&path("d"), &path("e"));
        assert_eq!(file.name(), Some(path("e/a")));
        names.renamed(&path("b"), &path("e/a"));
        assert_eq!((file.name(), other.name()), (None, Some(path("e/a"))));
        assert!(names.get(&path("b")).is_none());
        names.removed(&path("e/a"));
        assert_eq!(other.name(), None);
        let new = names.hold(&path("e/a"));
        drop((file, other));
        assert!(names.get(&path("e/a")).is_some(), "another file of the same name");
        drop(new);
        assert!(names.is_empty());
    }

    #[test]
    fn what_was_agreed_ends_with_any_change() {
        let names = Arc::new(Names::default());
        let named = names.hold(&path("a"));
        let version = Version::of(&attr(5));
        let changes = named.changes();
        assert!(named.agree(version, changes) && named.agree(version, changes));
        assert!(!named.agree(Version::of(&attr(6)), changes));
        named.shown(&attr(5));
        assert_eq!(named.changes(), changes);
        named.shown(&attr(6));
        assert_ne!(named.changes(), changes);
        assert!(!named.agree(version, changes), "too late");
        let changes = named.changes();
        assert!(named.agree(version, changes));
        let mut writer = names.hold(&path("a"));
        writer.write();
        assert_ne!(named.changes(), changes);
    }
}
