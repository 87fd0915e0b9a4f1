//! What was changed here a short time ago, and through which gateway.
//!
//! For [`Config::lag`](crate::Config::lag) after a change the other gateways may show what was
//! before it. So the changed name, and the directory that lists it, are asked from the gateway that
//! made the change. Of a name that was made, removed or moved, that goes for all below it too.
//!
//! | what was done | entries |
//! |---|---|
//! | content, attributes | the name; its directory, whose listing has them |
//! | made, removed, moved | the name and all below it; its directory |
//!
//! The nearest entry counts: a name's own before one of a directory above it, and of two changes
//! of one name the later.
//!
//! While that gateway is left out, an answer of another one is refused where it may be older than the
//! change: one that denies it, and attributes of which it cannot be told. An open is not, since a
//! gateway looks anew at what it opens.
//!
//! The table is bounded: what is made below a name that is in it with all below it needs no entry of
//! its own; a directory with many changed names is entered with all below it; and when it
//! is full, what is closest to its end goes first.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Name, RemotePath};
use tokio::time::Instant;

use crate::names::Version;

/// Entries at most: some megabytes with long paths.
const MAX_ENTRIES: usize = 1 << 14;

/// Changed names of one directory before all below it counts as changed.
const MANY_NAMES: u32 = 256;

/// Entries before those that are over are looked for the first time.
const FIRST_SWEEP: usize = 256;

/// How far a change goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Content or attributes of what a name leads to.
    Inside,
    /// A change of it is under way, has failed, or may have happened.
    Unsure,
    /// The answer was lost to a change after which it has to be there, or must not be. Until the
    /// gateway is back, or the others have to show it, one that shows it as before proves nothing.
    Lost { there: bool },
    /// It leads to something now, or to something else.
    Made,
    /// It leads to nothing now.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Who changed it, or a name in it, last.
    gateway: usize,
    until: Instant,
    /// Who changed all below it, and until when that counts.
    below: Option<(usize, Instant)>,
    /// Whether it has to be there; or would be, if a change happened whose answer was lost.
    there: Option<bool>,
    /// Names in it that were entered, if it is a directory.
    names: u32,
    /// Who made, removed or moved a name in it last, if it is a directory.
    lister: Option<usize>,
    /// Who made, removed or moved it last.
    namer: Option<usize>,
    /// What was seen of its content after it was changed.
    version: Option<Version>,
    /// It was changed, and nothing was seen of it since.
    unseen: bool,
    /// It was made or removed here shortly before that, or may have been.
    is_renewed: bool,
    /// The answer to a change of what is renewed was lost.
    is_open: bool,
}

/// What is known of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Who changed it.
    pub(crate) gateway: usize,
    /// Who made, removed or moved it; another gateway may have changed its content since.
    pub(crate) namer: Option<usize>,
    /// Whether it has to be there, where that is known.
    pub(crate) there: Option<bool>,
    /// What its content was after that, where it is known.
    pub(crate) version: Option<Version>,
    /// Nothing was seen of it since it was changed, so older attributes cannot be told from newer.
    pub(crate) unseen: bool,
    /// No answer of another gateway shows whether it exists.
    pub(crate) is_open: bool,
    /// It may have been made through that gateway, by itself or in a directory that was made, moved or
    /// much changed.
    pub(crate) may_be_new: bool,
}

/// A change of which nothing was seen: through which gateway, and until when it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unseen {
    pub(crate) gateway: usize,
    until: Instant,
}

/// The names that a listing of a directory must have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// These, beside others.
    Names(HashSet<Name>),
    /// It is not known which.
    Any,
}

impl Entry {
    /// That `gateway` has changed something, of which no more is known.
    fn new(gateway: usize, until: Instant) -> Entry {
        Entry {
            gateway,
            until,
            below: None,
            there: None,
            names: 0,
            lister: None,
            namer: None,
            version: None,
            unseen: false,
            is_renewed: false,
            is_open: false,
        }
    }
}

impl Changed {
    /// That `gateway` has changed something, of which no more is known.
    fn by(gateway: usize) -> Changed {
        let (namer, there, version) = (None, None, None);
        Changed { gateway, namer, there, version, unseen: false, is_open: false, may_be_new: false }
    }
}

#[derive(Default)]
struct Table {
    entries: HashMap<RemotePath, Entry>,
    sweep_at: usize,
}

/// The table of recent changes.
pub(crate) struct Recent {
    lag: Duration,
    began: Instant,
    /// Entries in the table, with those that are over: without any there is nothing to lock.
    count: AtomicUsize,
    /// When the last of them ends, in milliseconds since `began`.
    last_until_ms: AtomicU64,
    table: Mutex<Table>,
}

impl Recent {
    pub(crate) fn new(lag: Duration) -> Recent {
        Recent {
            lag,
            began: Instant::now(),
            count: AtomicUsize::new(0),
            last_until_ms: AtomicU64::new(0),
            table: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is surely nothing in it that counts.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
            || (self.began.elapsed().as_millis() as u64) > self.last_until_ms.load(Ordering::SeqCst)
    }

    /// Entries, some of which may be over.
    pub(crate) fn len(&self) -> usize {
        if self.is_empty() { 0 } else { self.count.load(Ordering::SeqCst) }
    }

    /// Whether other gateways may still show what was before a change at this time.
    pub(crate) fn may_be_unseen(&self, changed_at: Instant) -> bool {
        changed_at.elapsed() < self.lag
    }

    /// Notes that `path` is being changed, or was just now, through `gateway`.
    pub(crate) fn note(&self, path: &RemotePath, gateway: usize, extent: Extent) {
        let now = Instant::now();
        let until = now + self.lag;
        let mut table = self.lock();
        table.note(path, gateway, extent, now, until);
        self.count.store(table.entries.len(), Ordering::SeqCst);
        let until_ms = (until - self.began).as_millis() as u64 + 1;
        self.last_until_ms.fetch_max(until_ms, Ordering::SeqCst);
    }

    /// Notes that `gateway` has changed the content of `path`, which was this version then.
    pub(crate) fn note_version(&self, path: &RemotePath, gateway: usize, version: Version) {
        self.note(path, gateway, Extent::Inside);
        let (mut table, now) = (self.lock(), Instant::now());
        let until = now + self.lag;
        let (there, version) = (Some(true), Some(version));
        let new = Entry { there, version, ..Entry::new(gateway, until) };
        // One that is covered by a directory above has none of its own so far.
        let entry = table.entries.entry(path.clone()).or_insert(new);
        (entry.there, entry.version, entry.unseen) = (there, version, false);
        self.count.store(table.entries.len(), Ordering::SeqCst);
    }

    /// The change of `path` of which nothing was seen. To be taken before the gateway that made it is
    /// asked, for [`Recent::saw`].
    pub(crate) fn unseen(&self, path: &RemotePath) -> Option<Unseen> {
        if self.is_empty() {
            return None;
        }
        let entry = self.lock().live(path, Instant::now()).filter(|entry| entry.unseen)?;
        Some(Unseen { gateway: entry.gateway, until: entry.until })
    }

    /// The gateway that has made this change of `path` showed this version, unless there was another
    /// change since it was asked.
    pub(crate) fn saw(&self, path: &RemotePath, change: Unseen, version: Version) {
        if let Some(entry) = self.lock().entries.get_mut(path)
            && (entry.gateway, entry.until) == (change.gateway, change.until)
        {
            (entry.there, entry.version, entry.unseen) = (Some(true), Some(version), false);
        }
    }

    /// Who changed `path`, or something above it that it came or went with.
    pub(crate) fn of(&self, path: &RemotePath) -> Option<Changed> {
        if self.is_empty() {
            return None;
        }
        self.lock().find(path, Instant::now())
    }

    /// Who made, removed or moved a name in this directory last.
    pub(crate) fn lister(&self, directory: &RemotePath) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        self.lock().live(directory, Instant::now())?.lister
    }

    /// As [`Recent::of`], or who changed the directory that it is in.
    pub(crate) fn of_place(&self, path: &RemotePath) -> Option<Changed> {
        if self.is_empty() {
            return None;
        }
        let (table, now) = (self.lock(), Instant::now());
        table.find(path, now).or_else(|| {
            let entry = table.live(&path.parent()?, now)?;
            let Entry { gateway, .. } = entry;
            Some(Changed::by(gateway))
        })
    }

    /// The names in `directory` that were made through other gateways, and that `gateway` may not
    /// show. None where it was the last to change a name there, since it has looked since.
    pub(crate) fn made_in(&self, directory: &RemotePath, gateway: usize) -> Made {
        if self.is_empty() {
            return Made::Names(HashSet::new());
        }
        let (table, now) = (self.lock(), Instant::now());
        let own = table.live(directory, now);
        if own.is_some_and(|own| own.lister == Some(gateway)) {
            return Made::Names(HashSet::new());
        }
        let below = own.and_then(|own| own.below).filter(|(_, until)| *until > now);
        let below = below.map(|(who, _)| who);
        let above = || table.above(directory, now).map(|(_, who, _)| who);
        if below.or_else(above).is_some_and(|who| who != gateway) {
            return Made::Any;
        }
        if own.is_none_or(|own| own.lister.is_none()) {
            return Made::Names(HashSet::new());
        }
        let is_made = |entry: &Entry| {
            let is_others = entry.namer.is_some_and(|namer| namer != gateway);
            entry.until > now && is_others && entry.there == Some(true)
        };
        let made = table.entries.iter().filter(|(_, entry)| is_made(entry));
        let made = made.filter(|(path, _)| path.parent().as_ref() == Some(directory));
        Made::Names(made.filter_map(|(path, _)| path.file_name()).collect())
    }
}

impl Table {
    fn live(&self, path: &RemotePath, now: Instant) -> Option<Entry> {
        self.entries.get(path).copied().filter(|entry| entry.until > now)
    }

    fn find(&self, path: &RemotePath, now: Instant) -> Option<Changed> {
        if let Some(entry) = self.live(path, now) {
            let Entry { gateway, namer, there, version, unseen, is_open, .. } = entry;
            let may_be_new = entry.is_renewed && there.is_none();
            let changed = Changed { namer, there, version, unseen, ..Changed::by(gateway) };
            return Some(Changed { is_open, may_be_new, ..changed });
        }
        let (_, gateway, there) = self.above(path, now)?;
        // Below what is gone nothing can be, and below what is there anything.
        let there = there.filter(|there| !there);
        let may_be_new = there.is_none();
        Some(Changed { namer: Some(gateway), there, may_be_new, ..Changed::by(gateway) })
    }

    /// The nearest directory above `path` that is entered with all below it: who changed that, and
    /// whether it has to be there.
    fn above(&self, path: &RemotePath, now: Instant) -> Option<(RemotePath, usize, Option<bool>)> {
        let mut above = path.parent();
        while let Some(path) = above {
            if let Some(entry) = self.live(&path, now)
                && let Some((gateway, _)) = entry.below.filter(|(_, until)| *until > now)
            {
                return Some((path, gateway, entry.there));
            }
            above = path.parent();
        }
        None
    }

    fn note(
        &mut self,
        path: &RemotePath,
        gateway: usize,
        extent: Extent,
        now: Instant,
        until: Instant,
    ) {
        // One who changes what came with a directory keeps that alive, and is covered by it.
        let above = self.above(path, now);
        let above = above.filter(|(_, who, there)| *who == gateway && *there != Some(false));
        if let Some((above, _, _)) = &above
            && let Some(entry) = self.entries.get_mut(above)
        {
            (entry.until, entry.below) = (until, Some((gateway, until)));
        }
        let own = self.live(path, now);
        if above.is_some() && own.is_none() && matches!(extent, Extent::Made | Extent::Unsure) {
            return;
        }
        let (below, there) = match extent {
            Extent::Inside => (own.and_then(|own| own.below), own.and_then(|own| own.there)),
            Extent::Unsure => (Some((gateway, until)), None),
            Extent::Lost { there } => (Some((gateway, until)), Some(there)),
            Extent::Made => (Some((gateway, until)), Some(true)),
            Extent::Gone => (Some((gateway, until)), Some(false)),
        };
        let names = own.map_or(0, |own| own.names);
        let is_renewed =
            above.is_some() || own.is_some_and(|own| own.is_renewed || own.there.is_some());
        // What shows the change may be from before the one before it.
        let is_open = is_renewed && matches!(extent, Extent::Lost { .. });
        let there = there.filter(|_| !is_open);
        let lister = own.and_then(|own| own.lister);
        let namer = match extent {
            Extent::Inside => own.and_then(|own| own.namer),
            _ => Some(gateway),
        };
        let new = Entry { below, there, names, lister, namer, ..Entry::new(gateway, until) };
        self.entries.insert(path.clone(), Entry { unseen: true, is_renewed, is_open, ..new });
        if let Some(parent) = path.parent() {
            let lister = (extent != Extent::Inside).then_some(gateway);
            self.note_listing(parent, gateway, (lister, own.is_none()), now, until);
        }
        self.sweep(now);
    }

    /// Notes that a name in `directory` was changed, with who has made, removed or moved it.
    fn note_listing(
        &mut self,
        directory: RemotePath,
        gateway: usize,
        (lister, is_new): (Option<usize>, bool),
        now: Instant,
        until: Instant,
    ) {
        let own = self.live(&directory, now);
        let names = own.map_or(0, |own| own.names) + u32::from(is_new);
        // All there is would be too much.
        let below = match names >= MANY_NAMES && !directory.is_root() {
            true => Some((gateway, until)),
            false => own.and_then(|own| own.below),
        };
        let (there, namer) = own.map_or((None, None), |own| (own.there, own.namer));
        // Whoever changes what a file contains has not looked for names that another one has made.
        let lister = lister.or_else(|| own.and_then(|own| own.lister));
        // Its own attributes are not what is asked about it in the first place.
        let new = Entry::new(lister.unwrap_or(gateway), until);
        let entry = Entry { below, there, names, lister, namer, ..new };
        self.entries.insert(directory, entry);
    }

    /// Drops what is over, and when that is not enough, what soon will be.
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

    fn who(recent: &Recent, at: &str) -> Option<usize> {
        recent.of(&path(at)).map(|changed| changed.gateway)
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_asked_from_who_made_it_for_the_lag() {
        let recent = Recent::new(LAG);
        assert!(recent.is_empty());
        recent.note(&path("d/file"), 1, Extent::Inside);
        assert_eq!(who(&recent, "d/file"), Some(1));
        assert_eq!(who(&recent, "d"), Some(1), "its listing has the attributes");
        assert_eq!(who(&recent, "d/other"), None);
        assert_eq!(who(&recent, ""), None);
        assert_eq!(recent.of_place(&path("d/other")).unwrap().gateway, 1, "the same listing");
        assert_eq!(recent.of_place(&path("e/other")), None);
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
        let recent = Recent::new(LAG);
        recent.note(&path("d/made"), 0, Extent::Made);
        let names = HashSet::from([Name::new(b"made").unwrap()]);
        for changed in ["d/file", "d", "d/made"] {
            recent.note(&path(changed), 1, Extent::Inside);
            assert_eq!(recent.lister(&path("d")), Some(0), "{changed}");
            assert_eq!(recent.made_in(&path("d"), 1), Made::Names(names.clone()), "{changed}");
            assert_eq!(recent.made_in(&path("d"), 0), Made::Names(HashSet::new()), "{changed}");
        }
        recent.note(&path("d/new"), 1, Extent::Made);
        assert_eq!(recent.lister(&path("d")), Some(1));
        assert_eq!(recent.made_in(&path("d"), 1), Made::Names(HashSet::new()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_made_or_moved_takes_all_below_it_along() {
        let recent = Recent::new(LAG);
        recent.note(&path("a/dir"), 2, Extent::Made);
        recent.note(&path("a/old"), 2, Extent::Gone);
        let there = |at: &str| recent.of(&path(at)).and_then(|changed| changed.there);
        assert_eq!(who(&recent, "a/dir/x/y"), Some(2));
        assert_eq!((there("a/dir"), there("a/dir/x")), (Some(true), None));
        assert_eq!((there("a/old"), there("a/old/x")), (Some(false), Some(false)));
        assert_eq!(who(&recent, "a/dirx"), None);
        // The later change of a name counts, and the nearer entry.
        recent.note(&path("a/dir/x"), 0, Extent::Made);
        assert_eq!(who(&recent, "a/dir/x/y"), Some(0));
        assert_eq!(who(&recent, "a/dir/z"), Some(2));
        recent.note(&path("a/old"), 0, Extent::Made);
        assert_eq!((who(&recent, "a/old"), there("a/old")), (Some(0), Some(true)));
        assert_eq!(who(&recent, "a"), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn work_below_a_new_directory_needs_no_room_and_keeps_it_alive() {
        let recent = Recent::new(LAG);
        recent.note(&path("new"), 1, Extent::Made);
        let before = recent.len();
        for number in 0..1000 {
            recent.note(&path(&format!("new/a{number}")), 1, Extent::Made);
        }
        assert_eq!(recent.len(), before);
        tokio::time::advance(LAG - Duration::from_secs(1)).await;
        recent.note(&path("new/late"), 1, Extent::Inside);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(who(&recent, "new/late"), Some(1));
        recent.note(&path("new/late"), 1, Extent::Gone);
        assert_eq!(recent.of(&path("new/late")).unwrap().there, Some(false));
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded() {
        let recent = Recent::new(LAG);
        for number in 0..10_000 {
            recent.note(&path(&format!("d/file{number}")), 1, Extent::Made);
        }
        assert!(recent.len() < 300, "{}", recent.len());
        assert_eq!(who(&recent, "d/file9999"), Some(1));
        assert_eq!(who(&recent, "d/another"), Some(1), "all of it counts as changed");
        for number in 0..60_000 {
            if number % 100 == 0 {
                tokio::time::advance(Duration::from_millis(1)).await;
            }
            recent.note(&path(&format!("d{number}/file")), number % 3, Extent::Inside);
            assert!(recent.len() <= MAX_ENTRIES + 2);
        }
        assert_eq!(who(&recent, "d59999/file"), Some(59_999 % 3));
    }
}
