//! The order of requests.
//!
//! A client may send a request before an earlier one was answered, and relies on the server to
//! execute both as if in order. So a request claims what it reads or changes, in the order of
//! arrival, and is executed when no earlier claim conflicts with its own:
//!
//! | resource | read by | changed by |
//! | --- | --- | --- |
//! | names | requests with a path | those that create, remove or rename |
//! | contents of all files | attributes by path | size and attributes by path |
//! | one inode | reads and attributes by handle | writes, closes and changes by handle |
//! | one listing | | requests by the handle of a directory, and the one that opens it |
//!
//! A request by handle also states that it reads or changes *some* content, so that it conflicts
//! with those that concern all contents; two of these do not conflict with each other. (Databases
//! call these intention locks.)
//!
//! Each resource has a queue, and a claim is granted when it conflicts with no earlier one. All
//! claims of a request are queued at once, so no two requests wait for each other.
//!
//! A request may never end: that of a file system whose server is gone. If it only reads, later
//! changes wait for it for a limited time; then it may see what they have done. Requests by path
//! wait for a copy for the same time; then they may see what it has copied. If it changes
//! something, or waits for such a request, those for other file systems overtake it after that
//! time: its names and contents are not theirs. A file system is known by its device number; local
//! ones have none here, since they answer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::paths::{Device, FileSystem};

/// What a request reads or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Resource {
    /// All names.
    Names,
    /// The contents and attributes of all files.
    Contents,
    /// An inode, by device and number.
    Inode(u64, u64),
    /// An open directory, by the id of the request that has opened it.
    Listing(u32),
}

/// How it does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Reads a part.
    ReadSome,
    /// Changes a part.
    ChangeSome,
    /// Reads any part.
    Read,
    /// Changes any part.
    Change,
}

impl Mode {
    /// Whether both may happen at the same time.
    fn suits(self, other: Mode) -> bool {
        let conflicts = |one: Mode, other: Mode| {
            one == Mode::Change || one == Mode::Read && other == Mode::ChangeSome
        };
        !conflicts(self, other) && !conflicts(other, self)
    }
}

/// The claims of a request: of each resource at most one.
pub(crate) type Claims = Vec<(Resource, Mode)>;

/// Identifies a request; later ones have greater numbers.
pub(crate) type Ticket = u64;

/// The requests that were not answered yet.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    queues: HashMap<Resource, Queue>,
    requests: HashMap<Ticket, Entry<T>>,
    /// When file systems have last executed a request.
    executed: HashMap<Device, Instant>,
    next: Ticket,
}

#[derive(Debug)]
pub(crate) struct Entry<T> {
    claims: Claims,
    /// Later requests for names and contents need not wait for it for long: it only reads, and may
    /// see more than it should, or copies, and they may see a part.
    yields: bool,
    /// That which may never answer.
    file_system: Option<FileSystem>,
    since: Instant,
    /// Later requests for other file systems do not wait for it.
    is_overtaken: bool,
    /// When a thread has begun to execute it.
    begun: Option<Instant>,
    /// Claims that were not granted yet.
    waiting_for: usize,
    /// The request; `None` while it is executed.
    request: Option<T>,
}

/// A claim in a queue.
#[derive(Debug)]
struct Claim {
    ticket: Ticket,
    mode: Mode,
    file_system: Option<FileSystem>,
    is_granted: bool,
    /// As that of the request.
    is_overtaken: bool,
}

impl Resource {
    /// Whether requests for different file systems claim it.
    fn is_shared(self) -> bool {
        matches!(self, Resource::Names | Resource::Contents)
    }
}

impl Claim {
    fn delays(&self, later: &Claim) -> bool {
        let is_elsewhere = || self.file_system.is_some_and(|it| it.is_not(later.file_system));
        !(self.mode.suits(later.mode) || self.is_overtaken && is_elsewhere())
    }
}

impl<T> Entry<T> {
    /// Whether the request certainly changes no content of a local file.
    pub(crate) fn changes_nothing_local(&self) -> bool {
        self.file_system.is_some_and(|it| it.is_certain || !self.may_change_contents())
    }

    /// Whether the request is for one of these file systems.
    pub(crate) fn is_of(&self, devices: &[Device]) -> bool {
        self.file_system.is_some_and(|it| devices.contains(&it.device))
    }

    /// Whether the request may change the content of a file. One without claims may have released
    /// them.
    pub(crate) fn may_change_contents(&self) -> bool {
        let reads = |(resource, mode): &(Resource, Mode)| {
            *resource != Resource::Contents || matches!(mode, Mode::ReadSome | Mode::Read)
        };
        self.claims.is_empty() || !self.claims.iter().all(reads)
    }
}

/// The claims to a resource, in the order of arrival.
#[derive(Debug, Default)]
struct Queue(VecDeque<Claim>);

impl Queue {
    /// Adds a claim, and returns whether it is granted.
    fn add(&mut self, mut claim: Claim) -> bool {
        claim.is_granted = !self.0.iter().any(|earlier| earlier.delays(&claim));
        let is_granted = claim.is_granted;
        self.0.push_back(claim);
        is_granted
    }

    /// Grants what can be granted, and returns the tickets.
    fn grant(&mut self) -> Vec<Ticket> {
        let mut granted = Vec::new();
        for at in 0..self.0.len() {
            let claim = &self.0[at];
            if !claim.is_granted && !self.0.range(..at).any(|earlier| earlier.delays(claim)) {
                granted.push(claim.ticket);
                self.0[at].is_granted = true;
            }
        }
        granted
    }

    fn get(&mut self, ticket: Ticket) -> Option<&mut Claim> {
        self.0.iter_mut().find(|claim| claim.ticket == ticket)
    }

    fn remove(&mut self, ticket: Ticket) {
        if let Some(at) = self.0.iter().position(|claim| claim.ticket == ticket) {
            self.0.remove(at);
        }
    }
}

impl<T> Default for Schedule<T> {
    fn default() -> Schedule<T> {
        let (queues, requests, executed) = (HashMap::new(), HashMap::new(), HashMap::new());
        Schedule { queues, requests, executed, next: 0 }
    }
}

impl<T> Schedule<T> {
    /// The number of requests that were not finished yet.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether a request is for a file system that may never answer.
    pub(crate) fn may_hang(&self) -> bool {
        self.requests.values().any(|entry| entry.file_system.is_some())
    }

    /// Whether a request may wait for one that [`Schedule::overtake`] is about, or will: also for one
    /// that waits itself, since it may begin while the client is silent.
    pub(crate) fn is_held_up(&self) -> bool {
        let all = || self.requests.values();
        all().any(|entry| entry.request.is_some())
            && all().any(|entry| entry.yields || entry.file_system.is_some())
    }

    /// Whether the requests that are being executed or answered are all such ones.
    pub(crate) fn executes_only(&self, is_such: impl Fn(&Entry<T>) -> bool) -> bool {
        self.requests.values().filter(|entry| entry.request.is_none()).all(is_such)
    }

    /// The number of requests whose execution has begun this time ago, and goes on.
    pub(crate) fn long_executed(&self, limit: Duration) -> usize {
        let begun = self.requests.values().filter_map(|entry| entry.begun);
        begun.filter(|begun| begun.elapsed() >= limit).count()
    }

    /// The requests for file systems that hang: they execute some since this time, and have
    /// finished none. With the file system.
    pub(crate) fn hung(&self, limit: Duration) -> Vec<Device> {
        let is_silent =
            |device: &Device| self.executed.get(device).is_none_or(|last| last.elapsed() >= limit);
        let is_long = |entry: &&Entry<T>| entry.begun.is_some_and(|at| at.elapsed() >= limit);
        let long = self
            .requests
            .values()
            .filter(is_long)
            .filter_map(|entry| Some(entry.file_system?.device));
        let hung: HashSet<Device> = long.filter(is_silent).collect();
        let devices = self.requests.values().filter_map(|entry| Some(entry.file_system?.device));
        devices.filter(|device| hung.contains(device)).collect()
    }

    /// Adds a request, which may yield to later ones, for a file system that may never answer.
    /// Returns its ticket, and the request if it can be executed now.
    pub(crate) fn add(
        &mut self,
        claims: Claims,
        yields: bool,
        file_system: Option<FileSystem>,
        request: T,
    ) -> (Ticket, Option<T>) {
        let ticket = self.next;
        self.next += 1;
        let file_system = file_system.or_else(|| self.of_listing(&claims));
        let is_overtaken = self.is_overtaken(file_system);
        let mut waiting_for = claims.len();
        for (resource, mode) in &claims {
            let queue = self.queues.entry(*resource).or_default();
            let (mode, is_granted) = (*mode, false);
            let is_overtaken = is_overtaken && resource.is_shared();
            let claim = Claim { ticket, mode, file_system, is_granted, is_overtaken };
            waiting_for -= usize::from(queue.add(claim));
        }
        let (now, later) =
            if waiting_for == 0 { (Some(request), None) } else { (None, Some(request)) };
        let since = Instant::now();
        let entry = Entry {
            claims,
            yields,
            file_system,
            since,
            is_overtaken,
            begun: None,
            waiting_for,
            request: later,
        };
        self.requests.insert(ticket, entry);
        (ticket, now)
    }

    /// The file system of a request that was added without one.
    pub(crate) fn set_file_system(&mut self, ticket: Ticket, file_system: Option<FileSystem>) {
        let Some(entry) = self.requests.get(&ticket) else { return };
        let file_system = file_system.or(entry.file_system);
        let is_overtaken = self.is_overtaken(file_system);
        let Some(entry) = self.requests.get_mut(&ticket) else { return };
        (entry.file_system, entry.is_overtaken) = (file_system, is_overtaken);
        for (resource, _) in &entry.claims {
            let claim = self.queues.get_mut(resource).and_then(|queue| queue.get(ticket));
            if let Some(claim) = claim {
                claim.file_system = file_system;
                claim.is_overtaken = is_overtaken && resource.is_shared();
            }
        }
    }

    /// The file system of a listing that an earlier request opens, or reads.
    fn of_listing(&self, claims: &Claims) -> Option<FileSystem> {
        let listing =
            claims.iter().find(|(resource, _)| matches!(resource, Resource::Listing(_)))?;
        self.queues.get(&listing.0)?.0.back()?.file_system
    }

    /// Whether a request is for a file system that hangs.
    pub(crate) fn hangs(&self, ticket: Ticket) -> bool {
        self.requests.get(&ticket).is_some_and(|entry| entry.is_overtaken)
    }

    /// Whether a request for this file system is overtaken. Then later ones are from the beginning.
    fn is_overtaken(&self, file_system: Option<FileSystem>) -> bool {
        let Some(FileSystem { device, .. }) = file_system else { return false };
        let is_same = |entry: &Entry<T>| entry.file_system.is_some_and(|it| it.device == device);
        self.requests.values().any(|entry| entry.is_overtaken && is_same(entry))
    }

    /// A thread begins to execute a request.
    pub(crate) fn begin(&mut self, ticket: Ticket) {
        if let Some(entry) = self.requests.get_mut(&ticket) {
            entry.begun = Some(Instant::now());
        }
    }

    /// The thread has executed it, and sends the reply.
    pub(crate) fn executed(&mut self, ticket: Ticket) {
        let Some(entry) = self.requests.get_mut(&ticket) else { return };
        entry.begun = None;
        if let Some(file_system) = entry.file_system {
            self.executed.insert(file_system.device, Instant::now());
        }
    }

    /// Others wait no longer for a request, although it is still executed. Returns those that can
    /// be executed now.
    pub(crate) fn release(&mut self, ticket: Ticket) -> Vec<(Ticket, T)> {
        let Some(entry) = self.requests.get_mut(&ticket) else { return Vec::new() };
        let claims = std::mem::take(&mut entry.claims);
        self.remove_claims(ticket, claims)
    }

    /// Others wait no longer for what it does to names, and to contents as a whole. Those for the
    /// same inode or listing do. Returns those that can be executed now.
    pub(crate) fn release_shared(&mut self, ticket: Ticket) -> Vec<(Ticket, T)> {
        let Some(entry) = self.requests.get(&ticket) else { return Vec::new() };
        let shared = entry.claims.iter().filter(|(resource, _)| resource.is_shared());
        let shared = shared.copied().collect();
        self.remove_claims(ticket, shared)
    }

    /// A request was answered. Returns those that can be executed now.
    pub(crate) fn finish(&mut self, ticket: Ticket) -> Vec<(Ticket, T)> {
        let Some(entry) = self.requests.remove(&ticket) else { return Vec::new() };
        self.remove_claims(ticket, entry.claims)
    }

    /// Requests wait no longer for those that yield and were added this time ago, and requests for
    /// other file systems not for any. Returns those that can be executed now.
    pub(crate) fn overtake(&mut self, patience: Duration) -> Vec<(Ticket, T)> {
        let mut overtaken = Vec::new();
        for (ticket, entry) in &mut self.requests {
            if entry.since.elapsed() < patience {
                continue;
            }
            let queues = &mut self.queues;
            entry.is_overtaken = entry.file_system.is_some();
            let mut claims = Claims::new();
            entry.claims.retain(|(resource, mode)| {
                let Some(queue) = queues.get_mut(resource).filter(|_| resource.is_shared()) else {
                    return true;
                };
                let Some(claim) = queue.get(*ticket) else { return true };
                claim.is_overtaken = entry.is_overtaken;
                let is_dropped = entry.yields && claim.is_granted;
                claims.extend(is_dropped.then_some((*resource, *mode)));
                !is_dropped
            });
            overtaken.push((*ticket, claims));
        }
        let removed = overtaken.into_iter();
        let mut ready: Vec<_> =
            removed.flat_map(|(ticket, claims)| self.remove_claims(ticket, claims)).collect();
        for resource in [Resource::Names, Resource::Contents] {
            ready.extend(self.grant(resource));
        }
        ready
    }

    /// Returns the requests that can be executed now.
    fn remove_claims(&mut self, ticket: Ticket, claims: Claims) -> Vec<(Ticket, T)> {
        let mut ready = Vec::new();
        for (resource, _) in claims {
            if let Some(queue) = self.queues.get_mut(&resource) {
                queue.remove(ticket);
                ready.extend(self.grant(resource));
            }
        }
        ready
    }

    /// Grants claims to a resource. Returns the requests that can be executed now.
    fn grant(&mut self, resource: Resource) -> Vec<(Ticket, T)> {
        let mut ready = Vec::new();
        let Some(queue) = self.queues.get_mut(&resource) else { return ready };
        for granted in queue.grant() {
            let Some(waiting) = self.requests.get_mut(&granted) else { continue };
            waiting.waiting_for -= 1;
            if waiting.waiting_for == 0 {
                ready.extend(waiting.request.take().map(|request| (granted, request)));
            }
        }
        if queue.0.is_empty() {
            self.queues.remove(&resource);
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: Resource = Resource::Inode(1, 2);

    fn read() -> Claims {
        vec![(Resource::Contents, Mode::ReadSome), (FILE, Mode::Read)]
    }

    fn write() -> Claims {
        vec![(Resource::Contents, Mode::ChangeSome), (FILE, Mode::Change)]
    }

    fn stat() -> Claims {
        vec![(Resource::Names, Mode::Read), (Resource::Contents, Mode::Read)]
    }

    #[test]
    fn reads_share_and_writes_wait() {
        let mut schedule = Schedule::default();
        let (first, now) = schedule.add(read(), false, None, "first");
        assert!(now.is_some());
        let (second, now) = schedule.add(read(), false, None, "second");
        assert!(now.is_some());
        let (written, now) = schedule.add(write(), false, None, "write");
        assert!(now.is_none());
        // Behind the write, or it would return what the write has not changed yet.
        let (third, now) = schedule.add(read(), false, None, "third");
        assert!(now.is_none());
        assert!(schedule.finish(first).is_empty());
        assert_eq!(schedule.finish(second), [(written, "write")]);
        assert_eq!(schedule.finish(written), [(third, "third")]);
        assert!(schedule.finish(third).is_empty());
        assert_eq!((schedule.len(), schedule.queues.len()), (0, 0));
    }

    #[test]
    fn a_request_may_delay_only_those_for_its_file() {
        let mut schedule = Schedule::default();
        let (truncated, _) = schedule.add(write(), false, None, "truncation");
        let (looked, now) = schedule.add(stat(), false, None, "stat");
        assert!(now.is_none());
        let (written, now) = schedule.add(write(), false, None, "write");
        assert!(now.is_none());
        assert_eq!(schedule.release_shared(truncated), [(looked, "stat")]);
        assert!(schedule.finish(looked).is_empty());
        assert_eq!(schedule.finish(truncated), [(written, "write")]);
        assert!(schedule.finish(written).is_empty());
        assert_eq!((schedule.len(), schedule.queues.len()), (0, 0));
    }

    #[test]
    fn attributes_by_path_wait_for_writes_to_any_file() {
        let mut schedule = Schedule::default();
        let (written, _) = schedule.add(write(), false, None, "write");
        let other =
            vec![(Resource::Contents, Mode::ChangeSome), (Resource::Inode(1, 3), Mode::Change)];
        let (other, now) = schedule.add(other, false, None, "other file");
        assert!(now.is_some());
        let (looked, now) = schedule.add(stat(), false, None, "stat");
        assert!(now.is_none());
        assert!(schedule.finish(other).is_empty());
        assert_eq!(schedule.finish(written), [(looked, "stat")]);
    }

    #[test]
    fn changes_do_not_wait_forever_for_a_request_that_reads() {
        let mut schedule = Schedule::default();
        let listing = vec![(Resource::Names, Mode::Read), (Resource::Listing(1), Mode::Change)];
        let rename = vec![(Resource::Names, Mode::Change)];
        let (hung, now) = schedule.add(listing.clone(), true, None, "hung");
        assert!(now.is_some() && !schedule.is_held_up());
        let (renamed, _) = schedule.add(rename.clone(), false, None, "rename");
        let (_, now) = schedule.add(listing, true, None, "of the hung one");
        assert!(now.is_none() && schedule.is_held_up());
        assert!(schedule.overtake(Duration::from_secs(60)).is_empty());
        assert_eq!(schedule.overtake(Duration::ZERO), [(renamed, "rename")]);
        // What only reads does not overtake a change, whose claims stay.
        assert!(schedule.overtake(Duration::ZERO).is_empty());
        let (second, now) = schedule.add(rename, false, None, "second rename");
        assert!(now.is_none());
        assert!(schedule.finish(renamed).is_empty());
        assert_eq!(schedule.overtake(Duration::ZERO), [(second, "second rename")]);
        assert!(schedule.finish(second).is_empty());
        assert_eq!(schedule.finish(hung).len(), 1);
        assert!(!schedule.is_held_up());
    }

    /// The thread that reads requests sleeps until one arrives, or until this has to be checked again.
    #[test]
    fn changes_do_not_wait_forever_for_a_copy_that_has_waited_itself() {
        let mut schedule = Schedule::default();
        let (written, _) = schedule.add(write(), false, None, "write");
        let (_, now) = schedule.add(write(), true, None, "copy");
        assert!(now.is_none());
        let (looked, now) = schedule.add(stat(), false, None, "stat");
        assert!(now.is_none() && schedule.is_held_up());
        assert_eq!(schedule.finish(written).len(), 1);
        assert_eq!(schedule.overtake(Duration::ZERO), [(looked, "stat")]);
    }

    const HUNG: Option<FileSystem> = Some(FileSystem { device: (0, 7), is_certain: true });

    /// Neither those that are executed nor those that wait for them.
    #[test]
    fn requests_for_other_file_systems_overtake_changes() {
        let mut schedule = Schedule::default();
        let create = vec![(Resource::Names, Mode::Change)];
        let (opened, _) = schedule.add(create.clone(), false, None, "open");
        schedule.set_file_system(opened, HUNG);
        schedule.add(write(), false, HUNG, "write");
        let (other, now) = schedule.add(create.clone(), false, HUNG, "second open");
        assert!(now.is_none());
        let (looked, now) = schedule.add(stat(), true, None, "stat elsewhere");
        assert!(now.is_none() && schedule.is_held_up());
        let (renamed, now) = schedule.add(create.clone(), false, None, "rename elsewhere");
        assert!(now.is_none());
        assert_eq!(schedule.overtake(Duration::ZERO), [(looked, "stat elsewhere")]);
        // Those elsewhere keep their own order, unless they only read.
        assert_eq!(schedule.overtake(Duration::ZERO), [(renamed, "rename elsewhere")]);
        let (later, now) = schedule.add(create.clone(), false, None, "create elsewhere");
        assert!(now.is_none());
        // From now on nothing elsewhere waits for it.
        schedule.add(create.clone(), false, HUNG, "third open");
        let (late, now) = schedule.add(stat(), true, None, "stat elsewhere");
        assert!(now.is_none(), "of what is created there");
        assert_eq!(schedule.finish(renamed), [(later, "create elsewhere")]);
        assert_eq!(schedule.finish(later), [(late, "stat elsewhere")]);
        // For the same file system, or perhaps for it.
        let unknown = Some(FileSystem { device: (0, 8), is_certain: false });
        for file_system in [HUNG, unknown] {
            let (_, now) = schedule.add(stat(), true, file_system, "stat");
            assert!(now.is_none());
        }
        assert_eq!(schedule.finish(opened), [(other, "second open")]);
    }

    /// A copy from there into a local file, and a listing that is opened there.
    #[test]
    fn nothing_overtakes_a_request_for_the_same_file_or_listing() {
        let mut schedule = Schedule::default();
        let copy = vec![
            (Resource::Contents, Mode::ChangeSome),
            (FILE, Mode::Change),
            (Resource::Inode(7, 2), Mode::Read),
        ];
        let opendir = vec![(Resource::Names, Mode::Read), (Resource::Listing(1), Mode::Change)];
        let (copied, _) = schedule.add(copy.clone(), true, HUNG, "copy");
        let (opened, _) = schedule.add(opendir.clone(), true, HUNG, "opendir");
        for hung in [copied, opened] {
            schedule.set_file_system(hung, HUNG);
        }
        schedule.overtake(Duration::ZERO);
        // Also of those that are overtaken from the beginning.
        let (again, _) = schedule.add(copy, true, HUNG, "copy again");
        schedule.set_file_system(again, HUNG);
        let (written, now) = schedule.add(write(), false, None, "write");
        assert!(now.is_none());
        let (listed, now) = schedule.add(opendir, true, None, "readdir by an early handle");
        assert!(now.is_none());
        // That it is for that file system is known.
        assert!(schedule.hangs(listed));
        schedule.set_file_system(listed, None);
        assert!(schedule.hangs(listed));
        assert!(schedule.overtake(Duration::ZERO).is_empty());
        assert_eq!(schedule.finish(copied), [(again, "copy again")]);
        assert_eq!(schedule.finish(again), [(written, "write")]);
        assert_eq!(schedule.finish(opened), [(listed, "readdir by an early handle")]);
    }

    #[test]
    fn a_file_system_hangs_that_executes_nothing() {
        let mut schedule = Schedule::default();
        let tickets = [0, 1].map(|_| schedule.add(read(), true, HUNG, ()).0);
        assert!(schedule.hung(Duration::ZERO).is_empty(), "nothing has begun");
        schedule.begin(tickets[0]);
        let limit = Duration::from_millis(20);
        std::thread::sleep(limit);
        assert_eq!(schedule.hung(limit).len(), 2);
        assert_eq!(schedule.long_executed(limit), 1);
        schedule.begin(tickets[1]);
        schedule.executed(tickets[1]);
        assert!(schedule.hung(Duration::from_secs(60)).is_empty());
        // The reply of the other one may wait for the client.
        schedule.executed(tickets[0]);
        assert!(schedule.hung(Duration::ZERO).is_empty());
    }

    proptest! {
        /// Every request is executed once, and never beside one that conflicts.
        #[test]
        fn conflicting_requests_are_executed_in_order(
            requests in prop::collection::vec((0_u8..5, 0_u64..3), 1..60),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let claims = |(kind, inode): (u8, u64)| -> Claims {
                let file = Resource::Inode(0, inode);
                match kind {
                    0 => vec![(Resource::Contents, Mode::ReadSome), (file, Mode::Read)],
                    1 => vec![(Resource::Contents, Mode::ChangeSome), (file, Mode::Change)],
                    2 => stat(),
                    3 => vec![(Resource::Names, Mode::Change)],
                    _ => vec![(Resource::Names, Mode::Change), (Resource::Contents, Mode::Change)],
                }
            };
            let conflict = |one: &Claims, other: &Claims| one.iter().any(|(resource, mode)| {
                other.iter().any(|(of, how)| of == resource && !mode.suits(*how))
            });
            let mut schedule = Schedule::default();
            let (mut running, mut done) = (Vec::new(), 0);
            let all: Vec<Claims> = requests.iter().map(|it| claims(*it)).collect();
            let mut finished = vec![false; all.len()];
            let mut picks = picks.iter().cycle();
            let started = |number: usize, finished: &[bool]| {
                for earlier in 0..number {
                    assert!(finished[earlier] || !conflict(&all[earlier], &all[number]));
                }
            };
            for (number, claims) in all.iter().enumerate() {
                let (ticket, now) = schedule.add(claims.clone(), false, None, number);
                if now.is_some() {
                    started(number, &finished);
                    running.push((ticket, number));
                }
                if number % 3 == 0 && !running.is_empty() {
                    let (ticket, over) = running.swap_remove(picks.next().unwrap().index(running.len()));
                    finished[over] = true;
                    done += 1;
                    for (ticket, number) in schedule.finish(ticket) {
                        started(number, &finished);
                        running.push((ticket, number));
                    }
                }
            }
            while let Some((ticket, over)) = running.pop() {
                finished[over] = true;
                done += 1;
                for (ticket, number) in schedule.finish(ticket) {
                    started(number, &finished);
                    running.push((ticket, number));
                }
            }
            prop_assert_eq!(done, all.len());
            prop_assert_eq!((schedule.len(), schedule.queues.len()), (0, 0));
        }
    }
}
