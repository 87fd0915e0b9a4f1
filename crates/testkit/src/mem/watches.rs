//! Watches of directories, as `inotify(7)` reports changes: of each watched directory, what is
//! different after each operation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{
    Attr, Changes, Errno, Event, FileKind, Mutex, Name, RemotePath, Result, Timestamp, WatchId,
    WatchedChange, Watches, until,
};
use tokio::sync::Notify;

use super::{MemRemote, State};
use crate::tree::{Follow, Ino, Tree};

/// Bytes of a content that are compared.
const MAX_CONTENT: u64 = 1 << 20;

/// What is compared of an entry.
type Seen = (Ino, Attr, Vec<u8>);

#[derive(Debug)]
struct Watched {
    number: u32,
    /// Held, like its directory.
    ino: Ino,
    /// The directory in which it is, and its name there; none for the root.
    place: Option<(Ino, Name)>,
    own: Attr,
    entries: BTreeMap<Name, Seen>,
}

/// The watches of a [`MemRemote`].
#[derive(Debug, Default)]
pub(super) struct WatchState {
    /// Reports are made at all.
    is_offered: bool,
    is_held: bool,
    has_overflown: bool,
    connection: u64,
    numbers: u32,
    /// Most watches, if there is a limit.
    most: Option<usize>,
    /// How long each answer to a request for a watch takes.
    answer_delay: Duration,
    /// How long each request to end a watch takes.
    end_delay: Duration,
    watched: Vec<Watched>,
    reports: Vec<WatchedChange>,
}

/// The attributes without the time of access, which no watch reports.
fn attr(tree: &Tree, ino: Ino) -> Attr {
    Attr { atime: Timestamp::default(), ..tree.attr(ino) }
}

fn seen(tree: &Tree, ino: Ino) -> Seen {
    let attr = attr(tree, ino);
    let content = match attr.kind {
        FileKind::Regular => tree.read(ino, 0, MAX_CONTENT).unwrap_or_default(),
        _ => Vec::new(),
    };
    // A change in a directory is reported by its own watch.
    let changes_alone = |attr: Attr| match attr.is_dir() {
        true => Attr { mtime: Timestamp::default(), size: 0, inode: None, ..attr },
        false => attr,
    };
    (ino, changes_alone(attr), content)
}

fn entries(tree: &Tree, dir: Ino) -> BTreeMap<Name, Seen> {
    let listed = tree.list(dir).unwrap_or_default();
    listed.into_iter().map(|(name, ino)| (name, seen(tree, ino))).collect()
}

impl WatchState {
    /// Compares all watched directories with `tree`.
    pub(super) fn compare(&mut self, tree: &mut Tree) {
        let connection = self.connection;
        let mut reports = Vec::new();
        for watched in &mut self.watched {
            let watch = WatchId { connection, number: watched.number };
            let mut report = |event, name: Option<&Name>, is_dir| {
                let (name, cookie, source) = (name.cloned(), 0, 0);
                reports.push(WatchedChange { watch, event, name, is_dir, cookie, source });
            };
            let is_in_place =
                |(dir, name): &(Ino, Name)| tree.child(*dir, name) == Some(watched.ino);
            if !watched.place.as_ref().is_none_or(is_in_place) {
                report(Event::Ended, None, true);
                watched.number = 0;
                continue;
            }
            let now = entries(tree, watched.ino);
            for (name, (ino, attr, content)) in &watched.entries {
                match now.get(name) {
                    Some((same, new, text)) if same == ino => {
                        if new != attr || text != content {
                            report(Event::Modified, Some(name), attr.is_dir());
                        }
                    }
                    _ => report(Event::Removed, Some(name), attr.is_dir()),
                }
            }
            for (name, (ino, attr, _)) in &now {
                if watched.entries.get(name).is_none_or(|(before, ..)| before != ino) {
                    let is_new = tree.link_count(*ino) == 1
                        && !watched.entries.values().any(|(before, ..)| before == ino);
                    let event = if is_new { Event::Created } else { Event::MovedHere };
                    report(event, Some(name), attr.is_dir());
                }
            }
            let own = attr(tree, watched.ino);
            if own != watched.own {
                report(Event::Modified, None, true);
            }
            (watched.own, watched.entries) = (own, now);
        }
        self.end(tree, |watched| watched.number == 0);
        self.reports.extend(reports);
    }

    fn end(&mut self, tree: &mut Tree, is_ending: impl Fn(&Watched) -> bool) {
        for watched in self.watched.extract_if(.., |watched| is_ending(watched)) {
            tree.release(watched.ino);
            if let Some((dir, _)) = watched.place {
                tree.release(dir);
            }
        }
    }
}

/// See [`MemRemote::offer_watches`].
#[derive(Debug)]
pub(super) struct MemWatches {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) reported: Notify,
}

impl MemRemote {
    /// Directories can be watched from now on.
    pub fn offer_watches(&self) {
        self.state.lock().watches.is_offered = true;
    }

    /// Limits the number of watches; beyond it `ENOSPC`.
    pub fn limit_watches(&self, most: usize) {
        self.state.lock().watches.most = Some(most);
    }

    /// Makes each answer to a request for a watch arrive this long after the watch has begun.
    pub fn delay_answers_of_watches(&self, delay: Duration) {
        self.state.lock().watches.answer_delay = delay;
    }

    /// Makes each request to end a watch take this long.
    pub fn delay_ends_of_watches(&self, delay: Duration) {
        self.state.lock().watches.end_delay = delay;
    }

    /// Whether reports wait until they are not held any more.
    pub fn hold_reports(&self, is_held: bool) {
        self.state.lock().watches.is_held = is_held;
        self.watches.reported.notify_waiters();
    }

    /// The reports that wait are lost, as if there were too many.
    pub fn overflow_reports(&self) {
        let mut state = self.state.lock();
        state.watches.reports.clear();
        state.watches.has_overflown = true;
        drop(state);
        self.watches.reported.notify_waiters();
    }

    /// The connection is lost and replaced, with all watches.
    pub fn lose_watches(&self) {
        let mut state = self.state.lock();
        let State { tree, watches, .. } = &mut *state;
        watches.connection += 1;
        watches.end(tree, |_| true);
        watches.reports.clear();
        drop(state);
        self.watches.reported.notify_waiters();
    }

    /// Number of watched directories.
    pub fn watched(&self) -> usize {
        self.state.lock().watches.watched.len()
    }

    pub(super) fn watches_if_offered(&self) -> Option<Arc<dyn Watches>> {
        self.state.lock().watches.is_offered.then(|| self.watches.clone() as _)
    }
}

impl MemWatches {
    fn begin(&self, dir: &RemotePath) -> Result<WatchId> {
        let mut state = self.state.lock();
        let State { tree, watches, .. } = &mut *state;
        let ino = tree.lookup(dir, Follow::No)?;
        if tree.attr(ino).kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let connection = watches.connection;
        if let Some(known) = watches.watched.iter().find(|watched| watched.ino == ino) {
            return Ok(WatchId { connection, number: known.number });
        }
        if watches.most.is_some_and(|most| watches.watched.len() >= most) {
            return Err(Errno::ENOSPC);
        }
        let place = match dir.parent().zip(dir.file_name()) {
            Some((above, name)) => Some((tree.lookup(&above, Follow::No)?, name)),
            None => None,
        };
        tree.hold(ino);
        if let Some((above, _)) = &place {
            tree.hold(*above);
        }
        watches.numbers += 1;
        let number = watches.numbers;
        watches.watched.push(Watched {
            number,
            ino,
            place,
            own: attr(tree, ino),
            entries: entries(tree, ino),
        });
        Ok(WatchId { connection, number })
    }
}

#[async_trait]
impl Watches for MemWatches {
    async fn watch(&self, dir: &RemotePath) -> Result<WatchId> {
        let (watch, delay) = (self.begin(dir), self.state.lock().watches.answer_delay);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        watch
    }

    async fn end(&self, watch: WatchId) {
        let delay = self.state.lock().watches.end_delay;
        tokio::time::sleep(delay).await;
        let mut state = self.state.lock();
        let State { tree, watches, .. } = &mut *state;
        if watch.connection == watches.connection {
            watches.end(tree, |watched| watched.number == watch.number);
        }
    }

    async fn next(&self, connection: u64) -> Result<Changes> {
        let check = || {
            let mut state = self.state.lock();
            let watches = &mut state.watches;
            if watches.connection != connection {
                return Some(Err(Errno::EHOSTDOWN));
            }
            if !watches.is_held && std::mem::take(&mut watches.has_overflown) {
                return Some(Ok(Changes::Overflow));
            }
            let has_reports = !watches.is_held && !watches.reports.is_empty();
            has_reports.then(|| Ok(Changes::Events(std::mem::take(&mut watches.reports))))
        };
        until(&self.reported, check).await
    }
}
