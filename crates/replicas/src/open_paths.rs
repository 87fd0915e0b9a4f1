//! The state that the open files of one path share: the primary gateway, and whether any of them
//! writes.
//!
//! An entry of the table lives as long as a guard of it: that of an open file, or of an open in
//! flight. The table's lock is held while one entry's is taken, never the other way round.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use base::{Attr, Mutex, RemotePath, RenameMode, Result, Timestamp};
use tokio::time::Instant;

/// Distinguishes the versions of a file's content. Times are compared in whole seconds where one
/// gateway reports no more.
#[derive(Clone, Copy, Debug)]
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
        let (shown, own) = comparable(attr.mtime, self.mtime);
        shown > own || Version::of(attr) == self
    }

    /// Whether a file of this version may have these attributes after further changes, which have
    /// not made it smaller within a second.
    pub(crate) fn may_precede(self, attr: &Attr) -> bool {
        let (shown, own) = comparable(attr.mtime, self.mtime);
        shown > own || (shown == own && attr.size >= self.size)
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Version) -> bool {
        let (one, other_time) = comparable(self.mtime, other.mtime);
        self.size == other.size && one == other_time
    }
}

/// Both times as precise as the less precise one.
fn comparable(one: Timestamp, other: Timestamp) -> (Timestamp, Timestamp) {
    if one.nanos > 0 && other.nanos > 0 {
        return (one, other);
    }
    (Timestamp::from_secs(one.secs), Timestamp::from_secs(other.secs))
}

struct PathState {
    /// Its present name, as far as it is known here; `None` when it was removed.
    name: Option<RemotePath>,
    /// The primary gateway.
    primary: Option<usize>,
    /// The primary before the present one, while no answer of the present one was used.
    claimed_from: Option<Option<usize>>,
    /// The version shown by all gateways that are used to read it.
    agreed: Option<Version>,
    /// The last change of its content.
    changed: Option<LastChange>,
    /// Numbers of changes of its content and attributes that were sent, and that were answered.
    begun: u64,
    answered: u64,
}

struct LastChange {
    gateway: usize,
    at: Instant,
    /// The version recorded in [`RecentChanges`](crate::recent_changes::RecentChanges) shows it.
    is_recorded: bool,
}

/// The shared state of the open files of one path.
pub(crate) struct OpenPath {
    state: Mutex<PathState>,
    /// Number of guards; changed with the table locked.
    holders: AtomicUsize,
    /// Open files that may write.
    writers: AtomicUsize,
    /// Incremented by changes, made here or seen, which end the use of stripes.
    changes: AtomicU64,
}

impl OpenPath {
    fn new(path: &RemotePath) -> OpenPath {
        let state = PathState {
            name: Some(path.clone()),
            primary: None,
            claimed_from: None,
            agreed: None,
            changed: None,
            begun: 0,
            answered: 0,
        };
        OpenPath {
            state: Mutex::new(state),
            holders: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
        }
    }

    pub(crate) fn name(&self) -> Option<RemotePath> {
        self.state.lock().name.clone()
    }

    pub(crate) fn primary(&self) -> Option<usize> {
        self.state.lock().primary
    }

    /// The last primary of which an answer was used.
    pub(crate) fn used_primary(&self) -> Option<usize> {
        let state = self.state.lock();
        state.claimed_from.unwrap_or(state.primary)
    }

    pub(crate) fn set_primary(&self, gateway: usize) {
        let mut state = self.state.lock();
        (state.primary, state.claimed_from) = (Some(gateway), None);
    }

    /// Makes `gateway` the primary, unless the present one `stays`. Returns the primary.
    pub(crate) fn claim_primary(&self, gateway: usize, stays: impl Fn(usize) -> bool) -> usize {
        let mut state = self.state.lock();
        match state.primary.filter(|primary| stays(*primary)) {
            Some(primary) => primary,
            None => {
                let before = state.primary.replace(gateway);
                state.claimed_from.get_or_insert(before);
                gateway
            }
        }
    }

    /// Makes `gateway` the primary, whose answer is about to be used, unless the present one
    /// `stays`. Returns whether it is the primary.
    pub(crate) fn confirm_primary(&self, gateway: usize, stays: impl Fn(usize) -> bool) -> bool {
        let mut state = self.state.lock();
        let is_primary = state.primary.is_none_or(|it| it == gateway || !stays(it));
        if is_primary {
            (state.primary, state.claimed_from) = (Some(gateway), None);
        }
        is_primary
    }

    /// No answer of the primary `gateway` is used, unless one was already. The primary before it,
    /// which may have come back, is the primary again.
    pub(crate) fn reject_primary(&self, gateway: usize) {
        let mut state = self.state.lock();
        if state.primary == Some(gateway)
            && let Some(before) = state.claimed_from.take()
        {
            state.primary = before;
        }
    }

    pub(crate) fn has_writers(&self) -> bool {
        self.writers.load(Ordering::SeqCst) > 0
    }

    /// The number of changes so far. A later change voids the agreed version.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Records a change of its content.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.state.lock().agreed = None;
    }

    /// Records that a change through an open file is about to be sent through `gateway`.
    pub(crate) fn begin_change(&self, gateway: usize) {
        let mut state = self.state.lock();
        state.begun += 1;
        state.changed = Some(LastChange { gateway, at: Instant::now(), is_recorded: false });
    }

    /// Records that a change by its name is about to be sent, which
    /// [`RecentChanges`](crate::recent_changes::RecentChanges) has.
    pub(crate) fn begin_change_by_name(&self) {
        self.note_change();
        self.state.lock().begun += 1;
    }

    /// Records the answer to a change. One that was lost may still be made at any time.
    pub(crate) fn end_change<T>(&self, answer: &Result<T>) {
        if !answer.as_ref().is_err_and(|errno| errno.is_loss()) {
            self.state.lock().answered += 1;
        }
    }

    /// The number of changes, which attributes requested now show. `None` if one is in flight, and
    /// from the first one on whose answer was lost: it may be made at any time.
    pub(crate) fn settled(&self) -> Option<u64> {
        let state = self.state.lock();
        (state.begun == state.answered).then_some(state.begun)
    }

    /// Whether attributes requested when these changes were `settled` show all changes so far.
    pub(crate) fn is_settled_since(&self, settled: Option<u64>) -> bool {
        settled == Some(self.state.lock().begun)
    }

    /// Records that [`RecentChanges`](crate::recent_changes::RecentChanges) has the version after
    /// its last change, unless there was another since `settled`.
    pub(crate) fn note_recorded(&self, settled: Option<u64>) {
        let mut state = self.state.lock();
        if settled == Some(state.begun)
            && let Some(changed) = &mut state.changed
        {
            changed.is_recorded = true;
        }
    }

    /// When its content was last changed, if that was through another gateway than this.
    pub(crate) fn changed_elsewhere(&self, gateway: usize) -> Option<Instant> {
        let state = self.state.lock();
        state.changed.as_ref().filter(|it| it.gateway != gateway).map(|it| it.at)
    }

    /// Whether its content was changed through another gateway than this, after the version in
    /// [`RecentChanges`](crate::recent_changes::RecentChanges) was seen.
    pub(crate) fn changed_since_recorded(&self, gateway: usize) -> bool {
        let state = self.state.lock();
        state.changed.as_ref().is_some_and(|it| it.gateway != gateway && !it.is_recorded)
    }

    /// Attributes returned from now on are later than all changes.
    pub(crate) fn clear_change(&self) {
        self.state.lock().changed = None;
    }

    /// Sets the version that all gateways in use show, unless there was a change since `changes`.
    pub(crate) fn agree(&self, version: Version, changes: u64) -> bool {
        let mut state = self.state.lock();
        let good = self.changes() == changes && state.agreed.is_none_or(|it| it == version);
        if good {
            state.agreed = Some(version);
        }
        good
    }

    /// Records that these attributes are about to be returned. If they differ from the agreed
    /// version, that is void.
    pub(crate) fn note_shown(&self, attr: &Attr) {
        let mut state = self.state.lock();
        if state.agreed.is_some_and(|agreed| agreed != Version::of(attr)) {
            state.agreed = None;
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The paths with open files.
#[derive(Default)]
pub(crate) struct OpenPaths {
    table: Mutex<HashMap<RemotePath, Arc<OpenPath>>>,
}

impl OpenPaths {
    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().is_empty()
    }

    /// A guard of the entry of `path`, which is created if there is none.
    pub(crate) fn hold(self: &Arc<OpenPaths>, path: &RemotePath) -> PathGuard {
        let mut table = self.table.lock();
        let open_path = table.entry(path.clone()).or_insert_with(|| Arc::new(OpenPath::new(path)));
        let open_path = open_path.clone();
        open_path.holders.fetch_add(1, Ordering::SeqCst);
        PathGuard { table: self.clone(), open_path, writes: false }
    }

    /// The entry of `path`, if it is open.
    pub(crate) fn get(&self, path: &RemotePath) -> Option<Arc<OpenPath>> {
        self.table.lock().get(path).cloned()
    }

    /// The path was removed or replaced.
    pub(crate) fn removed(&self, path: &RemotePath) {
        let open_path = self.table.lock().remove(path);
        if let Some(open_path) = open_path {
            open_path.state.lock().name = None;
        }
    }

    /// The path, with all below it, was renamed.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) {
        if from == to {
            return;
        }
        mode.move_entries(&mut self.table.lock(), from, to, |open_path, path| {
            open_path.state.lock().name = path.cloned();
        });
    }
}

/// A share of an entry; dropping the last one removes it from the table.
#[must_use]
pub(crate) struct PathGuard {
    table: Arc<OpenPaths>,
    open_path: Arc<OpenPath>,
    writes: bool,
}

impl PathGuard {
    /// The state, without its own guard.
    pub(crate) fn shared(&self) -> Arc<OpenPath> {
        self.open_path.clone()
    }

    /// Counts as a writer from now until it is dropped.
    pub(crate) fn register_writer(&mut self) {
        if !std::mem::replace(&mut self.writes, true) {
            self.open_path.writers.fetch_add(1, Ordering::SeqCst);
            self.open_path.note_change();
        }
    }
}

impl std::ops::Deref for PathGuard {
    type Target = OpenPath;

    fn deref(&self) -> &OpenPath {
        &self.open_path
    }
}

impl Drop for PathGuard {
    fn drop(&mut self) {
        if self.writes {
            self.open_path.writers.fetch_sub(1, Ordering::SeqCst);
        }
        let mut table = self.table.table.lock();
        if self.open_path.holders.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let name = self.open_path.state.lock().name.clone();
        if let Some(name) = name
            && table.get(&name).is_some_and(|open_path| Arc::ptr_eq(open_path, &self.open_path))
        {
            table.remove(&name);
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
            inode: None,
        }
    }

    #[test]
    fn an_entry_lives_until_its_last_holder_is_dropped() {
        let names = Arc::new(OpenPaths::default());
        let one = names.hold(&path("a"));
        assert_eq!(one.claim_primary(2, |_| false), 2);
        let mut two = names.hold(&path("a"));
        assert_eq!((two.claim_primary(1, |_| true), two.primary()), (2, Some(2)));
        let looked_at = names.get(&path("a"));
        two.register_writer();
        assert!(one.has_writers());
        drop(two);
        assert!(!one.has_writers() && names.get(&path("a")).is_some());
        drop(one);
        assert!(names.is_empty() && names.get(&path("a")).is_none());
        drop(looked_at);
    }

    #[test]
    fn names_are_followed() {
        let names = Arc::new(OpenPaths::default());
        let (file, other) = (names.hold(&path("d/a")), names.hold(&path("b")));
        names.renamed(&path("d"), &path("e"), RenameMode::Replace);
        assert_eq!(file.name(), Some(path("e/a")));
        names.renamed(&path("b"), &path("e/a"), RenameMode::Replace);
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
    fn an_agreed_version_ends_with_any_change() {
        let names = Arc::new(OpenPaths::default());
        let open_path = names.hold(&path("a"));
        let version = Version::of(&attr(5));
        let changes = open_path.changes();
        assert!(open_path.agree(version, changes) && open_path.agree(version, changes));
        assert!(!open_path.agree(Version::of(&attr(6)), changes));
        open_path.note_shown(&attr(5));
        assert_eq!(open_path.changes(), changes);
        open_path.note_shown(&attr(6));
        assert_ne!(open_path.changes(), changes);
        assert!(!open_path.agree(version, changes), "too late");
        let changes = open_path.changes();
        assert!(open_path.agree(version, changes));
        let mut writer = names.hold(&path("a"));
        writer.register_writer();
        assert_ne!(open_path.changes(), changes);
    }
}
