//! Recent changes made here, and the gateway of each.
//!
//! For [`Config::lag`](crate::Config::lag) after a change the other gateways may show the state
//! before it. So requests about the changed name, and about the directory that lists it, go to the
//! gateway that made the change. After a name was created, removed or renamed, this includes
//! everything below it.
//!
//! | change | entries |
//! |---|---|
//! | content, attributes | the name; its directory, whose listing shows them |
//! | created, removed, renamed | the name and all below it; its directory |
//!
//! The entries below a renamed directory get new names. A directory is renamed through the gateway
//! that last made a change below it. The others that did may not show the new name yet.
//!
//! The nearest entry applies: a name's own before one of a directory above it, and of two changes
//! of one name the later.
//!
//! While the gateway of a change is left out, another gateway's answer is rejected if it may be
//! older than the change: if it contradicts the change, or if its attributes may be older. A gateway
//! revalidates a file that it opens. So the answer to an open is rejected only if it contradicts a
//! version that was seen after the change; if an open file was written since, only if it shows an
//! earlier mtime than that version, or within the same second a smaller size.
//!
//! The table is bounded: a name created below a directory whose entry covers all below it needs no
//! entry of its own; a directory with many changed names gets an entry that covers all below it;
//! and when the table is full, the entries closest to their end are evicted first.

use std::collections::{HashMap, HashSet};
use std::sync::MutexGuard;
use std::time::Duration;

use base::{Mutex, Name, RemotePath, RenameMode};
use tokio::time::Instant;

use crate::gateways::GatewaySet;
use crate::open_paths::Version;

/// Bound on the entries: some megabytes with long paths.
const MAX_ENTRIES: usize = 1 << 14;

/// Changed names of one directory from which on all below it counts as changed.
const MANY_NAMES: u32 = 256;

/// Number of entries at which expired ones are first looked for.
const FIRST_SWEEP: usize = 256;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// Content or attributes.
    Content,
    /// A change of the name is in flight, has failed, or may have happened.
    InDoubt,
    /// The answer to a change was lost after which the name has to exist, or must not. Until the
    /// gateway is back, or the lag is over, an answer that shows the state before the change proves
    /// nothing.
    Lost { exists: bool },
    /// The name was created or replaced.
    Created,
    /// The name was removed.
    Removed,
}

/// The recorded state of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    /// The gateway of the last change of it, or of a name in it.
    pub(crate) gateway: usize,
    until: Instant,
    /// The gateway of the last change of all below it, and when that expires.
    below: Option<(usize, Instant)>,
    /// Whether the name has to exist; after a lost answer, whether it would if the change happened.
    pub(crate) exists: Option<bool>,
    /// Number of changed names in it, if it is a directory.
    names: u32,
    /// The gateway that last created, removed or renamed a name in it, if it is a directory.
    list_gateway: Option<usize>,
    /// The gateway that last created, removed or renamed it. Another one may have changed its
    /// content since.
    pub(crate) name_gateway: Option<usize>,
    /// The version seen after the change.
    pub(crate) version: Option<Version>,
    /// It was changed, and has not been seen since, so older attributes cannot be told from newer
    /// ones.
    pub(crate) unseen: bool,
    /// It was, or may have been, created or removed here shortly before, by itself or in a
    /// directory that was created, renamed or changed in many names.
    pub(crate) was_changed_before: bool,
    /// The answer to a change was lost, and another change was made shortly before: no other
    /// gateway's answer proves whether it exists.
    pub(crate) is_ambiguous: bool,
    /// The answer to the change was lost, and its gateway has not shown the result since.
    is_lost: bool,
    /// Since the change, a directory above was renamed through another gateway: its own gateway may
    /// not show the new name.
    pub(crate) is_moved: bool,
}

impl Entry {
    /// An entry of which only the gateway is known.
    fn new(gateway: usize, until: Instant) -> Entry {
        Entry {
            gateway,
            until,
            below: None,
            exists: None,
            names: 0,
            list_gateway: None,
            name_gateway: None,
            version: None,
            unseen: false,
            was_changed_before: false,
            is_ambiguous: false,
            is_lost: false,
            is_moved: false,
        }
    }

    /// Whether its own gateway may return `ENOENT` although it exists, under its new name.
    pub(crate) fn may_be_hidden(&self) -> bool {
        self.is_moved && (self.is_lost || self.exists != Some(false))
    }
}

/// The entries of a path and of its directory.
type Pair = [Option<Entry>; 2];

/// The entries before a change that has begun, and those recorded at its start.
pub(crate) struct Begun {
    before: Pair,
    noted: Pair,
}

#[derive(Default)]
struct Table {
    entries: HashMap<RemotePath, Entry>,
    /// When the last of them expires.
    last_until: Option<Instant>,
    sweep_at: usize,
}

/// The table of recent changes.
pub(crate) struct RecentChanges {
    lag: Duration,
    table: Mutex<Table>,
}

impl RecentChanges {
    pub(crate) fn new(lag: Duration) -> RecentChanges {
        RecentChanges { lag, table: Mutex::default() }
    }

    /// The table, unless no entry is valid.
    fn valid(&self) -> Option<MutexGuard<'_, Table>> {
        let table = self.table.lock();
        let is_valid = table.last_until.is_some_and(|until| Instant::now() < until);
        is_valid.then_some(table)
    }

    /// Whether no entry is valid.
    pub(crate) fn is_empty(&self) -> bool {
        self.valid().is_none()
    }

    /// Number of entries, some of which may have expired.
    pub(crate) fn len(&self) -> usize {
        self.valid().map_or(0, |table| table.entries.len())
    }

    /// Whether other gateways may still show the state before a change at this time.
    pub(crate) fn may_be_unseen(&self, changed_at: Instant) -> bool {
        changed_at.elapsed() < self.lag
    }

    /// Records that `path` is being changed, or has just been, through `gateway`.
    pub(crate) fn note(&self, path: &RemotePath, gateway: usize, kind: ChangeKind) {
        let now = Instant::now();
        self.table.lock().note(path, gateway, kind, now, now + self.lag);
    }

    /// Records that `path` is about to be changed through `gateway`.
    pub(crate) fn begin(&self, path: &RemotePath, gateway: usize, kind: ChangeKind) -> Begun {
        let (mut table, now) = (self.table.lock(), Instant::now());
        let before = table.pair(path);
        table.note(path, gateway, kind, now, now + self.lag);
        Begun { before, noted: table.pair(path) }
    }

    /// Restores the entries from before a change that did not happen, unless another change has
    /// replaced them since it began.
    pub(crate) fn restore(&self, path: &RemotePath, begun: &Begun) {
        let mut table = self.table.lock();
        let now = table.pair(path);
        for (index, path) in [Some(path.clone()), path.parent()].into_iter().enumerate() {
            let Some(path) = path.filter(|_| now[index] == begun.noted[index]) else { continue };
            match begun.before[index] {
                Some(entry) => table.entries.insert(path, entry),
                None => table.entries.remove(&path),
            };
        }
    }

    /// Records that `gateway` has changed the content of `path` to this version.
    pub(crate) fn note_version(&self, path: &RemotePath, gateway: usize, version: Version) {
        self.note(path, gateway, ChangeKind::Content);
        let (mut table, now) = (self.table.lock(), Instant::now());
        let until = now + self.lag;
        let (exists, version) = (Some(true), Some(version));
        let new = Entry { exists, version, ..Entry::new(gateway, until) };
        // A path covered by a directory above has had no entry of its own so far.
        let entry = table.entries.entry(path.clone()).or_insert(new);
        (entry.exists, entry.version, entry.unseen) = (exists, version, false);
    }

    /// The change of `path` that was not seen since. To be called before the request to its
    /// gateway, for [`RecentChanges::note_seen`].
    pub(crate) fn unseen(&self, path: &RemotePath) -> Option<Entry> {
        self.valid()?.valid_entry(path, Instant::now()).filter(|entry| entry.unseen)
    }

    /// Records that the gateway of this change of `path` showed this version, or that it does not
    /// exist, unless there was another change since the request.
    pub(crate) fn note_seen(&self, path: &RemotePath, change: Entry, version: Option<Version>) {
        if let Some(entry) = self.table.lock().entries.get_mut(path)
            && (entry.gateway, entry.until) == (change.gateway, change.until)
        {
            (entry.exists, entry.version) = (Some(version.is_some()), version);
            (entry.unseen, entry.is_lost, entry.is_ambiguous) = (false, false, false);
        }
    }

    /// The recent change of `path`, or of a directory above it that covers it.
    pub(crate) fn get(&self, path: &RemotePath) -> Option<Entry> {
        self.valid()?.find(path, Instant::now())
    }

    /// The gateway of the last change below this directory.
    pub(crate) fn last_below(&self, directory: &RemotePath) -> Option<usize> {
        let (table, now) = (self.valid()?, Instant::now());
        let below = table.entries.iter().filter(|(path, entry)| {
            entry.until > now && path.is_within(directory) && *path != directory
        });
        below.max_by_key(|(_, entry)| entry.until).map(|(_, entry)| entry.gateway)
    }

    /// Records that `from`, and all below it, was renamed.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) {
        let Some(mut table) = self.valid() else { return };
        let renamed_by = table.find(to, Instant::now()).map(|entry| entry.gateway);
        let touched: Vec<_> = table
            .entries
            .extract_if(|path, _| path.is_below(from) || path.is_below(to))
            .filter_map(|(path, entry)| {
                let is_moved = entry.is_moved || renamed_by != Some(entry.gateway);
                Some((mode.moved(&path, from, to)?, Entry { is_moved, ..entry }))
            })
            .collect();
        table.entries.extend(touched);
    }

    /// The gateway that last created, removed or renamed a name in this directory.
    pub(crate) fn list_gateway(&self, directory: &RemotePath) -> Option<usize> {
        self.valid()?.valid_entry(directory, Instant::now())?.list_gateway
    }

    /// The recent change of `path`, of a directory that covers it, or of its parent directory.
    pub(crate) fn get_or_parent(&self, path: &RemotePath) -> Option<Entry> {
        let (table, now) = (self.valid()?, Instant::now());
        table.find(path, now).or_else(|| table.valid_entry(&path.parent()?, now))
    }

    /// The gateways that recently changed one of these paths, or a directory above it.
    pub(crate) fn gateways_of<'a>(
        &self,
        paths: impl Iterator<Item = &'a RemotePath>,
    ) -> GatewaySet {
        let mut gateways = GatewaySet::default();
        let Some(table) = self.valid() else { return gateways };
        let now = Instant::now();
        for path in paths {
            let mut at = Some(path.clone());
            while let Some(path) = at {
                if let Some(entry) = table.valid_entry(&path, now) {
                    let below = entry.below.map(|(gateway, _)| gateway);
                    let changed = [Some(entry.gateway), entry.name_gateway, below];
                    gateways = changed.into_iter().flatten().fold(gateways, GatewaySet::with);
                }
                at = path.parent();
            }
        }
        gateways
    }

    /// The names in `directory` that were created through other gateways, and that `gateway` may
    /// not show; `None` if they are unknown. There are none where it was the last to change a name
    /// there, since that has updated its view.
    pub(crate) fn created_in(
        &self,
        directory: &RemotePath,
        gateway: usize,
    ) -> Option<HashSet<Name>> {
        let Some(table) = self.valid() else { return Some(HashSet::new()) };
        let now = Instant::now();
        let own = table.valid_entry(directory, now);
        let list_gateway = own.and_then(|own| own.list_gateway);
        if list_gateway == Some(gateway) {
            return Some(HashSet::new());
        }
        let below = own.and_then(|own| own.below).filter(|(_, until)| *until > now);
        let below = below.map(|(who, _)| who);
        let above = || table.above(directory, now).map(|(_, who, _)| who);
        if below.or_else(above).is_some_and(|who| who != gateway) {
            return None;
        }
        if list_gateway.is_none() {
            return Some(HashSet::new());
        }
        let is_made = |entry: &Entry| {
            let is_others = entry.name_gateway.is_some_and(|name_gateway| name_gateway != gateway);
            entry.until > now && is_others && entry.exists == Some(true)
        };
        let made = table.entries.iter().filter(|(_, entry)| is_made(entry));
        let made = made.filter(|(path, _)| path.parent().as_ref() == Some(directory));
        Some(made.filter_map(|(path, _)| path.file_name()).collect())
    }
}

impl Table {
    fn pair(&self, path: &RemotePath) -> Pair {
        let of = |path: &RemotePath| self.entries.get(path).copied();
        [of(path), path.parent().and_then(|parent| of(&parent))]
    }

    fn valid_entry(&self, path: &RemotePath, now: Instant) -> Option<Entry> {
        self.entries.get(path).copied().filter(|entry| entry.until > now)
    }

    fn find(&self, path: &RemotePath, now: Instant) -> Option<Entry> {
        self.valid_entry(path, now).or_else(|| {
            let (_, gateway, exists) = self.above(path, now)?;
            // Below a removed name nothing can exist, below an existing one anything can.
            let exists = exists.filter(|exists| !exists);
            let name_gateway = Some(gateway);
            let covered = Entry::new(gateway, now);
            Some(Entry { name_gateway, exists, was_changed_before: true, ..covered })
        })
    }

    /// The nearest directory above `path` whose entry covers all below it: its gateway, and whether
    /// it has to exist.
    fn above(&self, path: &RemotePath, now: Instant) -> Option<(RemotePath, usize, Option<bool>)> {
        let mut above = path.parent();
        while let Some(path) = above {
            if let Some(entry) = self.valid_entry(&path, now)
                && let Some((gateway, _)) = entry.below.filter(|(_, until)| *until > now)
            {
                return Some((path, gateway, entry.exists));
            }
            above = path.parent();
        }
        None
    }

    fn note(
        &mut self,
        path: &RemotePath,
        gateway: usize,
        kind: ChangeKind,
        now: Instant,
        until: Instant,
    ) {
        self.last_until = Some(until);
        // A change through the same gateway below a covered directory extends that entry, and is
        // covered by it.
        let above = self.above(path, now);
        let above = above.filter(|(_, who, exists)| *who == gateway && *exists != Some(false));
        if let Some((above, _, _)) = &above
            && let Some(entry) = self.entries.get_mut(above)
        {
            (entry.until, entry.below) = (until, Some((gateway, until)));
        }
        let own = self.valid_entry(path, now);
        if above.is_some()
            && own.is_none()
            && matches!(kind, ChangeKind::Created | ChangeKind::InDoubt)
        {
            return;
        }
        let new = Entry::new(gateway, until);
        let old = own.unwrap_or(new);
        let all_below = Some((gateway, until));
        let (below, exists, name_gateway) = match kind {
            ChangeKind::Content => (old.below, old.exists, old.name_gateway),
            ChangeKind::InDoubt => (all_below, None, Some(gateway)),
            ChangeKind::Lost { exists } => (all_below, Some(exists), Some(gateway)),
            ChangeKind::Created => (all_below, Some(true), Some(gateway)),
            ChangeKind::Removed => (all_below, Some(false), Some(gateway)),
        };
        let was_changed_before = above.is_some() || old.was_changed_before || old.exists.is_some();
        // An answer that shows the change may be older than the change before it.
        let is_lost = matches!(kind, ChangeKind::Lost { .. });
        let is_ambiguous = was_changed_before && is_lost;
        let exists = exists.filter(|_| !is_ambiguous);
        let new = Entry { below, exists, name_gateway, was_changed_before, ..new };
        let new = Entry { is_ambiguous, is_lost, ..new };
        let (names, list_gateway) = (old.names, old.list_gateway);
        self.entries.insert(path.clone(), Entry { names, list_gateway, unseen: true, ..new });
        if let Some(parent) = path.parent() {
            let list_gateway = (kind != ChangeKind::Content).then_some(gateway);
            self.note_listing(parent, gateway, (list_gateway, own.is_none()), now, until);
        }
        self.sweep(now);
    }

    /// Records that a name in `directory` was changed, and which gateway has created, removed or
    /// renamed it.
    fn note_listing(
        &mut self,
        directory: RemotePath,
        gateway: usize,
        (list_gateway, is_new): (Option<usize>, bool),
        now: Instant,
        until: Instant,
    ) {
        let old = self.valid_entry(&directory, now).unwrap_or(Entry::new(gateway, until));
        let names = old.names + u32::from(is_new);
        // An entry that covers the whole tree would be too much.
        let covers = names >= MANY_NAMES && !directory.is_root();
        let below = if covers { Some((gateway, until)) } else { old.below };
        let Entry { exists, name_gateway, .. } = old;
        // A change of a file's content does not make the gateway list names created through another
        // one.
        let list_gateway = list_gateway.or(old.list_gateway);
        // Requests about a directory are for its listing, rather than for its own attributes.
        let new = Entry::new(list_gateway.unwrap_or(gateway), until);
        let entry = Entry { below, exists, names, list_gateway, name_gateway, ..new };
        self.entries.insert(directory, entry);
    }

    /// Drops the expired entries, and if that is not enough, those that expire soon.
    fn sweep(&mut self, now: Instant) {
        if self.entries.len() < self.sweep_at.max(FIRST_SWEEP) {
            return;
        }
        self.entries.retain(|_, entry| entry.until > now);
        if self.entries.len() > MAX_ENTRIES {
            let mut ends: Vec<Instant> = self.entries.values().map(|entry| entry.until).collect();
            let middle = ends.len() / 2;
            let (_, median, _) = ends.select_nth_unstable(middle);
            let median = *median;
            let mut left = MAX_ENTRIES / 4 * 3;
            self.entries.retain(|_, entry| {
                let stays = entry.until >= median && left > 0;
                left -= usize::from(stays);
                stays
            });
        }
        self.sweep_at = (2 * self.entries.len()).min(MAX_ENTRIES + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    const LAG: Duration = Duration::from_secs(60);

    fn who(recent: &RecentChanges, at: &str) -> Option<usize> {
        recent.get(&path(at)).map(|changed| changed.gateway)
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_path_is_requested_from_its_gateway_during_the_lag() {
        let recent = RecentChanges::new(LAG);
        assert!(recent.is_empty());
        recent.note(&path("d/file"), 1, ChangeKind::Content);
        assert_eq!(who(&recent, "d/file"), Some(1));
        assert_eq!(who(&recent, "d"), Some(1), "its listing has the attributes");
        assert_eq!(who(&recent, "d/other"), None);
        assert_eq!(who(&recent, ""), None);
        assert_eq!(recent.get_or_parent(&path("d/other")).unwrap().gateway, 1, "the same listing");
        assert_eq!(recent.get_or_parent(&path("e/other")), None);
        tokio::time::advance(LAG - Duration::from_millis(1)).await;
        assert_eq!(who(&recent, "d/file"), Some(1));
        tokio::time::advance(Duration::from_millis(2)).await;
        assert_eq!(who(&recent, "d/file"), None);
        tokio::time::advance(Duration::from_millis(5)).await;
        assert!(recent.is_empty());
        assert_eq!(recent.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_changes_a_file_or_its_directory_has_not_seen_the_names() {
        let recent = RecentChanges::new(LAG);
        recent.note(&path("d/made"), 0, ChangeKind::Created);
        let names = HashSet::from([Name::new(b"made").unwrap()]);
        for changed in ["d/file", "d", "d/made"] {
            recent.note(&path(changed), 1, ChangeKind::Content);
            assert_eq!(recent.list_gateway(&path("d")), Some(0), "{changed}");
            assert_eq!(recent.created_in(&path("d"), 1), Some(names.clone()), "{changed}");
            assert_eq!(recent.created_in(&path("d"), 0), Some(HashSet::new()), "{changed}");
        }
        recent.note(&path("d/new"), 1, ChangeKind::Created);
        assert_eq!(recent.list_gateway(&path("d")), Some(1));
        assert_eq!(recent.created_in(&path("d"), 1), Some(HashSet::new()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_created_or_moved_directory_includes_its_sub_tree() {
        let recent = RecentChanges::new(LAG);
        recent.note(&path("a/dir"), 2, ChangeKind::Created);
        recent.note(&path("a/old"), 2, ChangeKind::Removed);
        let exists = |at: &str| recent.get(&path(at)).and_then(|changed| changed.exists);
        assert_eq!(who(&recent, "a/dir/x/y"), Some(2));
        assert_eq!((exists("a/dir"), exists("a/dir/x")), (Some(true), None));
        assert_eq!((exists("a/old"), exists("a/old/x")), (Some(false), Some(false)));
        assert_eq!(who(&recent, "a/dirx"), None);
        // The later change of a name applies, and the nearer entry.
        recent.note(&path("a/dir/x"), 0, ChangeKind::Created);
        assert_eq!(who(&recent, "a/dir/x/y"), Some(0));
        assert_eq!(who(&recent, "a/dir/z"), Some(2));
        recent.note(&path("a/old"), 0, ChangeKind::Created);
        assert_eq!((who(&recent, "a/old"), exists("a/old")), (Some(0), Some(true)));
        assert_eq!(who(&recent, "a"), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn work_below_a_new_directory_needs_no_room_and_keeps_it_alive() {
        let recent = RecentChanges::new(LAG);
        recent.note(&path("new"), 1, ChangeKind::Created);
        let before = recent.len();
        for number in 0..1000 {
            recent.note(&path(&format!("new/a{number}")), 1, ChangeKind::Created);
        }
        assert_eq!(recent.len(), before);
        tokio::time::advance(LAG - Duration::from_secs(1)).await;
        recent.note(&path("new/late"), 1, ChangeKind::Content);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(who(&recent, "new/late"), Some(1));
        recent.note(&path("new/late"), 1, ChangeKind::Removed);
        assert_eq!(recent.get(&path("new/late")).unwrap().exists, Some(false));
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded() {
        let recent = RecentChanges::new(LAG);
        for number in 0..10_000 {
            recent.note(&path(&format!("d/file{number}")), 1, ChangeKind::Created);
        }
        assert!(recent.len() < 300, "{}", recent.len());
        assert_eq!(who(&recent, "d/file9999"), Some(1));
        assert_eq!(who(&recent, "d/another"), Some(1), "all of it counts as changed");
        for number in 0..60_000 {
            if number % 100 == 0 {
                tokio::time::advance(Duration::from_millis(1)).await;
            }
            recent.note(&path(&format!("d{number}/file")), number % 3, ChangeKind::Content);
            assert!(recent.len() <= MAX_ENTRIES + 2);
        }
        assert_eq!(who(&recent, "d59999/file"), Some(59_999 % 3));
    }
}
