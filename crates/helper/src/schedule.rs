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
//! Each resource has a queue, and claims are granted from its front only. All claims of a request
//! are queued at once, so no two requests wait for each other.
//!
//! A request may never end: that of a file system whose server is gone. If it only reads, later
//! changes wait for it for a limited time; then it may see what they have done.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

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
    next: Ticket,
}

#[derive(Debug)]
struct Entry<T> {
    claims: Claims,
    /// Later requests may see less than this one.
    only_reads: bool,
    since: Instant,
    /// Claims that were not granted yet.
    waiting_for: usize,
    /// The request; `None` while it is executed.
    request: Option<T>,
}

/// The claims to a resource, in the order of arrival.
#[derive(Debug, Default)]
struct Queue {
    claims: VecDeque<(Ticket, Mode)>,
    /// The number of claims at the front that are granted.
    granted: usize,
}

impl Queue {
    /// Grants what can be granted, and returns the tickets.
    fn grant(&mut self) -> Vec<Ticket> {
        let before = self.granted;
        while let Some((_, mode)) = self.claims.get(self.granted) {
            let granted = self.claims.iter().take(self.granted);
            if granted.into_iter().any(|(_, other)| !other.suits(*mode)) {
                break;
            }
            self.granted += 1;
        }
        self.claims.range(before..self.granted).map(|(ticket, _)| *ticket).collect()
    }

    fn is_granted(&self, ticket: Ticket) -> bool {
        self.claims.iter().take(self.granted).any(|(granted, _)| *granted == ticket)
    }

    fn remove(&mut self, ticket: Ticket) {
        if let Some(at) = self.claims.iter().position(|(other, _)| *other == ticket) {
            self.claims.remove(at);
            self.granted -= usize::from(at < self.granted);
        }
    }
}

impl<T> Default for Schedule<T> {
    fn default() -> Schedule<T> {
        Schedule { queues: HashMap::new(), requests: HashMap::new(), next: 0 }
    }
}

impl<T> Schedule<T> {
    /// The number of requests that were not finished yet.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether a request may wait for one that only reads.
    pub(crate) fn is_held_up(&self) -> bool {
        let all = || self.requests.values();
        all().any(|entry| entry.request.is_some())
            && all().any(|entry| entry.request.is_none() && entry.only_reads)
    }

    /// Adds a request, which may only read names and contents. Returns its ticket, and the request
    /// if it can be executed now.
    pub(crate) fn add(
        &mut self,
        claims: Claims,
        only_reads: bool,
        request: T,
    ) -> (Ticket, Option<T>) {
        let ticket = self.next;
        self.next += 1;
        let mut waiting_for = claims.len();
        for (resource, mode) in &claims {
            let queue = self.queues.entry(*resource).or_default();
            queue.claims.push_back((ticket, *mode));
            waiting_for -= queue.grant().len();
        }
        let (now, later) =
            if waiting_for == 0 { (Some(request), None) } else { (None, Some(request)) };
        let since = Instant::now();
        let entry = Entry { claims, only_reads, since, waiting_for, request: later };
        self.requests.insert(ticket, entry);
        (ticket, now)
    }

    /// A request was executed. Returns those that can be executed now.
    pub(crate) fn finish(&mut self, ticket: Ticket) -> Vec<(Ticket, T)> {
        let Some(entry) = self.requests.remove(&ticket) else { return Vec::new() };
        self.remove_claims(ticket, entry.claims)
    }

    /// Changes wait no longer for requests that only read and were added this time ago. Returns the
    /// requests that can be executed now.
    pub(crate) fn overtake(&mut self, patience: Duration) -> Vec<(Ticket, T)> {
        let mut overtaken = Vec::new();
        for (ticket, entry) in &mut self.requests {
            if !entry.only_reads || entry.since.elapsed() < patience {
                continue;
            }
            let queues = &self.queues;
            let is_shared = |(resource, _): &mut (Resource, Mode)| {
                matches!(resource, Resource::Names | Resource::Contents)
                    && queues.get(resource).is_some_and(|queue| queue.is_granted(*ticket))
            };
            let claims: Claims = entry.claims.extract_if(.., is_shared).collect();
            overtaken.push((*ticket, claims));
        }
        let removed = overtaken.into_iter();
        removed.flat_map(|(ticket, claims)| self.remove_claims(ticket, claims)).collect()
    }

    /// Returns the requests that can be executed now.
    fn remove_claims(&mut self, ticket: Ticket, claims: Claims) -> Vec<(Ticket, T)> {
        let mut ready = Vec::new();
        for (resource, _) in claims {
            let Some(queue) = self.queues.get_mut(&resource) else { continue };
            queue.remove(ticket);
            for granted in queue.grant() {
                let Some(waiting) = self.requests.get_mut(&granted) else { continue };
                waiting.waiting_for -= 1;
                if waiting.waiting_for == 0 {
                    ready.extend(waiting.request.take().map(|request| (granted, request)));
                }
            }
            if queue.claims.is_empty() {
                self.queues.remove(&resource);
            }
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
        let (first, now) = schedule.add(read(), false, "first");
        assert!(now.is_some());
        let (second, now) = schedule.add(read(), false, "second");
        assert!(now.is_some());
        let (written, now) = schedule.add(write(), false, "write");
        assert!(now.is_none());
        // Behind the write, or it would return what the write has not changed yet.
        let (third, now) = schedule.add(read(), false, "third");
        assert!(now.is_none());
        assert!(schedule.finish(first).is_empty());
        assert_eq!(schedule.finish(second), [(written, "write")]);
        assert_eq!(schedule.finish(written), [(third, "third")]);
        assert!(schedule.finish(third).is_empty());
        assert_eq!((schedule.len(), schedule.queues.len()), (0, 0));
    }

    #[test]
    fn attributes_by_path_wait_for_writes_to_any_file() {
        let mut schedule = Schedule::default();
        let (written, _) = schedule.add(write(), false, "write");
        let other =
            vec![(Resource::Contents, Mode::ChangeSome), (Resource::Inode(1, 3), Mode::Change)];
        let (other, now) = schedule.add(other, false, "other file");
        assert!(now.is_some());
        let (looked, now) = schedule.add(stat(), false, "stat");
        assert!(now.is_none());
        assert!(schedule.finish(other).is_empty());
        assert_eq!(schedule.finish(written), [(looked, "stat")]);
    }

    #[test]
    fn changes_do_not_wait_forever_for_a_request_that_reads() {
        let mut schedule = Schedule::default();
        let listing = vec![(Resource::Names, Mode::Read), (Resource::Listing(1), Mode::Change)];
        let rename = vec![(Resource::Names, Mode::Change)];
        let (hung, now) = schedule.add(listing.clone(), true, "hung");
        assert!(now.is_some() && !schedule.is_held_up());
        let (renamed, _) = schedule.add(rename.clone(), false, "rename");
        let (_, now) = schedule.add(listing, true, "of the hung one");
        assert!(now.is_none() && schedule.is_held_up());
        assert!(schedule.overtake(Duration::from_secs(60)).is_empty());
        assert_eq!(schedule.overtake(Duration::ZERO), [(renamed, "rename")]);
        // What only reads does not overtake a change, whose claims stay.
        assert!(schedule.overtake(Duration::ZERO).is_empty());
        let (second, now) = schedule.add(rename, false, "second rename");
        assert!(now.is_none());
        assert!(schedule.finish(renamed).is_empty());
        assert_eq!(schedule.overtake(Duration::ZERO), [(second, "second rename")]);
        assert!(schedule.finish(second).is_empty());
        assert_eq!(schedule.finish(hung).len(), 1);
        assert!(!schedule.is_held_up());
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
                let (ticket, now) = schedule.add(claims.clone(), false, number);
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
