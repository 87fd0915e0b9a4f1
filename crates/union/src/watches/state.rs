//! Which watches of the tree there are, their parts, and the reports that wait to be taken.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base::{Changes, Errno, Event, RemotePath, Result, WatchId, WatchedChange, Watches};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Reports of a connection that wait to be taken, at most.
const MAX_WAITING: usize = 65_536;

/// Requests to end parts that one call sends at the same time.
const MAX_ENDING: usize = 16;

/// A connection of a branch: the number of the branch, and that of the connection there.
pub(super) type BranchConnection = (u64, u64);

/// A watch of a branch: the number of the branch, and the watch there.
type PartId = (u64, WatchId);

/// A watch on a branch.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) branch: u64,
    pub(super) watch: WatchId,
    pub(super) watches: Arc<dyn Watches>,
}

impl Part {
    fn id(&self) -> PartId {
        (self.branch, self.watch)
    }

    pub(super) fn connection(&self) -> BranchConnection {
        (self.branch, self.watch.connection)
    }
}

/// A connection of the tree.
struct Connection {
    /// The connections of branches that it depends on.
    basis: Vec<BranchConnection>,
    waiting: Vec<WatchedChange>,
    has_overflown: bool,
    lost: Option<Errno>,
    arrived: Arc<Notify>,
}

/// A watch of the tree.
struct Watch {
    path: RemotePath,
    connection: u64,
    parts: Vec<Part>,
}

/// A watch that is being started.
struct Start {
    path: RemotePath,
    /// A branch may have got or lost the directory meanwhile, or the set of branches has changed.
    is_outdated: bool,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct State {
    last_connection: u64,
    last_number: u32,
    connections: HashMap<u64, Connection>,
    by_basis: HashMap<Vec<BranchConnection>, u64>,
    watches: HashMap<u32, Watch>,
    by_path: HashMap<RemotePath, u32>,
    /// The watches of the tree that each part belongs to.
    users: HashMap<PartId, Vec<u32>>,
    starting: HashMap<u32, Start>,
    /// Parts to be ended, unless they are used again before.
    unused: HashMap<PartId, Part>,
    /// Parts whose end was requested. An answer that was sent before may still name one.
    ending: HashSet<PartId>,
    ends_in_flight: usize,
    /// The tasks that wait for reports.
    pub(super) readers: HashMap<BranchConnection, AbortHandle>,
}

impl State {
    /// A watch of `path` is being started, with this number. Must be followed by
    /// [`State::end_start`].
    pub(super) fn begin_start(&mut self, path: &RemotePath) -> u32 {
        self.last_number += 1;
        self.starting.insert(self.last_number, Start { path: path.clone(), is_outdated: false });
        self.last_number
    }

    pub(super) fn end_start(&mut self, number: u32) {
        self.starting.remove(&number);
        self.forget_ended();
    }

    /// The connections that a watch with these `parts` depends on, if the branches `lacking` do not
    /// have its directory. `None` if the reports of one are not awaited, or a part is being ended.
    pub(super) fn basis(&self, parts: &[Part], lacking: &[u64]) -> Option<Vec<BranchConnection>> {
        if parts.iter().any(|part| self.ending.contains(&part.id())) {
            return None;
        }
        let awaited =
            |branch: &u64| self.readers.keys().filter(|it| it.0 == *branch).max().copied();
        let mut basis = lacking.iter().map(awaited).collect::<Option<Vec<_>>>()?;
        basis.extend(parts.iter().map(Part::connection));
        basis.sort_unstable();
        Some(basis)
    }

    /// The watch with this number begins, unless there is one with these parts.
    pub(super) fn begin(
        &mut self,
        number: u32,
        path: &RemotePath,
        parts: &[Part],
        basis: Vec<BranchConnection>,
    ) -> Result<WatchId> {
        if self.starting.get(&number).is_none_or(|start| start.is_outdated) {
            return Err(Errno::EHOSTDOWN);
        }
        let connection = self.connection(basis);
        if let Some(known) = self.by_path.get(path)
            && let Some(watch) = self.watches.get(known)
            && watch.connection == connection
            && watch.parts.iter().map(Part::id).eq(parts.iter().map(Part::id))
        {
            return Ok(WatchId { connection, number: *known });
        }
        for part in parts {
            self.unused.remove(&part.id());
            self.users.entry(part.id()).or_default().push(number);
        }
        self.by_path.insert(path.clone(), number);
        let watch = Watch { path: path.clone(), connection, parts: parts.to_vec() };
        self.watches.insert(number, watch);
        Ok(WatchId { connection, number })
    }

    /// The connection of the tree that depends on these of branches.
    fn connection(&mut self, basis: Vec<BranchConnection>) -> u64 {
        if let Some(known) = self.by_basis.get(&basis) {
            return *known;
        }
        self.last_connection += 1;
        let connection = Connection {
            basis: basis.clone(),
            waiting: Vec::new(),
            has_overflown: false,
            lost: None,
            arrived: Arc::default(),
        };
        self.connections.insert(self.last_connection, connection);
        self.by_basis.insert(basis, self.last_connection);
        self.last_connection
    }

    /// A watch ends, if there is one with this number.
    pub(super) fn end(&mut self, number: u32) {
        let Some(Watch { path, parts, .. }) = self.watches.remove(&number) else { return };
        if self.by_path.get(&path) == Some(&number) {
            self.by_path.remove(&path);
        }
        for part in &parts {
            if let Some(users) = self.users.get_mut(&part.id()) {
                users.retain(|user| *user != number);
                if users.is_empty() {
                    self.users.remove(&part.id());
                }
            }
        }
        self.release(&parts);
    }

    /// Those of these parts that nothing uses are to be ended.
    pub(super) fn release(&mut self, parts: &[Part]) {
        let unused = parts.iter().filter(|part| !self.users.contains_key(&part.id()));
        self.unused.extend(unused.map(|part| (part.id(), part.clone())));
    }

    /// Some parts to be ended now. Must be followed by [`State::finish_ending`].
    pub(super) fn begin_ending(&mut self) -> Vec<Part> {
        self.ends_in_flight += 1;
        let some: Vec<PartId> = self.unused.keys().take(MAX_ENDING).copied().collect();
        self.ending.extend(some.iter().copied());
        some.iter().filter_map(|id| self.unused.remove(id)).collect()
    }

    pub(super) fn finish_ending(&mut self) {
        self.ends_in_flight -= 1;
        self.forget_ended();
    }

    /// While nothing is being started or ended, no answer can name a part that has ended.
    fn forget_ended(&mut self) {
        if self.starting.is_empty() && self.ends_in_flight == 0 {
            self.ending.clear();
        }
    }

    /// A branch has reported these events.
    pub(super) fn report(&mut self, at: BranchConnection, events: Vec<WatchedChange>) {
        for event in events {
            let users = self.users.get(&(at.0, event.watch)).cloned().unwrap_or_default();
            for user in users {
                self.note_directory(at.0, user, &event);
                let connection = self.watches[&user].connection;
                // Two servers may use one number for different renames.
                let cookie = event.cookie ^ (at.0 as u32).rotate_right(8);
                let watch = WatchId { connection, number: user };
                self.push(WatchedChange { watch, cookie, source: at.0, ..event.clone() });
            }
        }
    }

    /// A branch may have got or lost a directory by this event of a watch: a watch of the directory
    /// at this path is of other branches than those that have it now.
    fn note_directory(&mut self, branch: u64, user: u32, event: &WatchedChange) {
        let appears = match event.event {
            Event::Created | Event::MovedHere if event.is_dir => true,
            Event::Removed | Event::MovedAway => false,
            _ => return,
        };
        let Some(name) = &event.name else { return };
        let path = self.watches[&user].path.join(name);
        for start in self.starting.values_mut().filter(|start| start.path == path) {
            start.is_outdated = true;
        }
        let Some(number) = self.by_path.get(&path).copied() else { return };
        let Some(watch) = self.watches.get(&number) else { return };
        let has_part = watch.parts.iter().any(|part| part.branch == branch);
        if has_part != appears {
            let watch = WatchId { connection: watch.connection, number };
            let (event, name, cookie, source) = (Event::Ended, None, 0, branch);
            self.push(WatchedChange { watch, event, name, is_dir: true, cookie, source });
        }
    }

    /// The attributes of the directory at this path, as they are being returned, must not be taken
    /// for valid until the next report.
    pub(super) fn note_incomplete(&mut self, path: &RemotePath) {
        let Some(number) = self.by_path.get(path).copied() else { return };
        let Some(watch) = self.watches.get(&number) else { return };
        let watch = WatchId { connection: watch.connection, number };
        let (event, name, cookie, source) = (Event::Attributes, None, 0, 0);
        self.push(WatchedChange { watch, event, name, is_dir: true, cookie, source });
    }

    fn push(&mut self, change: WatchedChange) {
        let Some(connection) = self.connections.get_mut(&change.watch.connection) else { return };
        if connection.waiting.len() < MAX_WAITING {
            connection.waiting.push(change);
        } else {
            connection.has_overflown = true;
        }
        connection.arrived.notify_one();
    }

    /// The connections of the tree that depend on this one of a branch.
    fn depending(&self, at: BranchConnection) -> Vec<u64> {
        let depends = |(_, it): &(&u64, &Connection)| it.basis.contains(&at);
        self.connections.iter().filter(depends).map(|(number, _)| *number).collect()
    }

    /// A branch has lost reports.
    pub(super) fn overflow(&mut self, at: BranchConnection) {
        for number in self.depending(at) {
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.has_overflown = true;
                connection.arrived.notify_one();
            }
        }
    }

    /// The connection of a branch is lost.
    pub(super) fn lose(&mut self, at: BranchConnection, why: Errno) {
        self.readers.remove(&at);
        for number in self.depending(at) {
            self.lose_connection(number, why);
        }
        // They have ended with the connection.
        self.unused.retain(|_, part| part.connection() != at);
    }

    fn lose_connection(&mut self, number: u64, why: Errno) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.lost = Some(why);
        connection.arrived.notify_one();
        self.by_basis.remove(&connection.basis);
        let of_it = self.watches.iter().filter(|(_, watch)| watch.connection == number);
        let ended: Vec<u32> = of_it.map(|(watch, _)| *watch).collect();
        ended.into_iter().for_each(|watch| self.end(watch));
    }

    /// A branch is left out.
    pub(super) fn lose_branch(&mut self, branch: u64) {
        // It may be back before they have started, and reports of what it did meanwhile are missing.
        self.starting.values_mut().for_each(|start| start.is_outdated = true);
        let depends = |(_, it): &(&u64, &Connection)| it.basis.iter().any(|at| at.0 == branch);
        let depending = self.connections.iter().filter(depends).map(|(number, _)| *number);
        for number in depending.collect::<Vec<_>>() {
            self.lose_connection(number, Errno::EHOSTDOWN);
        }
    }

    /// All watches are lost. Branches that are not left have no reports any more.
    pub(super) fn lose_all(&mut self, is_left: impl Fn(u64) -> bool) {
        self.starting.values_mut().for_each(|start| start.is_outdated = true);
        for number in self.connections.keys().copied().collect::<Vec<_>>() {
            self.lose_connection(number, Errno::EHOSTDOWN);
        }
        for (_, reader) in self.readers.extract_if(|(branch, _), _| !is_left(*branch)) {
            reader.abort();
        }
        self.unused.retain(|_, part| is_left(part.branch));
    }

    /// What there is to be taken of a connection, if anything.
    pub(super) fn take(&mut self, number: u64) -> Option<Result<Changes>> {
        let connection = self.connections.get_mut(&number)?;
        if let Some(why) = connection.lost {
            self.connections.remove(&number);
            return Some(Err(why));
        }
        if std::mem::take(&mut connection.has_overflown) {
            connection.waiting = Vec::new();
            return Some(Ok(Changes::Overflow));
        }
        let waiting = std::mem::take(&mut connection.waiting);
        (!waiting.is_empty()).then_some(Ok(Changes::Events(waiting)))
    }

    /// Notified when there is something to be taken of a connection.
    pub(super) fn arrived(&self, number: u64) -> Option<Arc<Notify>> {
        Some(self.connections.get(&number)?.arrived.clone())
    }
}
