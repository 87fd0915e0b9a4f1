//! Reads and writes a file by a protocol with a fixed number of requests in flight.

use std::cmp::Ordering;
use std::io;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;

use super::check::too_short;
use super::job::{Done, Order, Transfer};
use super::latencies::Latencies;
use super::local::{record, walk};
use super::walk::Walk;
use super::{Action, Clock, used};
use crate::corpus::content::BLOCK_BYTES;
use crate::failure::{Failure, Result};

/// No more than this is asked for at once: OpenSSH's window for a channel, beyond which a server
/// cannot send.
const IN_FLIGHT_BYTES: u32 = 2 << 20;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    Read,
    Write,
    /// It must not exist.
    Create,
}

/// The answer to a request.
pub(super) enum Answer {
    Data(Bytes),
    /// There are no bytes at the offset.
    End,
    /// So many bytes, as far as the protocol says how many.
    Written(Option<u32>),
    Refused(io::Error),
}

/// A connection to a server, and one file that is open there.
pub(super) trait Remote {
    /// Longest request, in bytes, a whole number of blocks.
    fn longest(&self, opening: Opening) -> u32;
    fn open(&mut self, path: &Path, opening: Opening) -> io::Result<()>;
    /// Queues a request for the next [`Remote::flush`], as [`Remote::write`] does.
    fn read(&mut self, id: u32, offset: u64, len: u32) -> io::Result<()>;
    fn write(&mut self, id: u32, offset: u64, data: &[u8]) -> io::Result<()>;
    fn flush(&mut self) -> io::Result<()>;
    /// Waits for the next answer; returns the id of its request, too.
    fn answer(&mut self) -> io::Result<(u32, Answer)>;
    /// Whether a whole answer was received.
    fn has_answer(&self) -> bool;
    /// The length of the file, if the server says it.
    fn size(&mut self) -> io::Result<Option<u64>>;
    /// Makes written data durable.
    fn sync(&mut self) -> io::Result<()>;
    fn close(&mut self) -> io::Result<()>;
    /// A failure, in the words of what carries the connection.
    fn failure(&mut self, what: &str, error: &io::Error) -> Failure;
}

/// A request under way; its id is its place among the slots.
#[derive(Clone, Copy, Debug)]
struct Slot {
    offset: u64,
    len: usize,
    begin: Instant,
}

/// A transfer under way.
struct Run<'a, R> {
    remote: R,
    transfer: &'a Transfer,
    action: Action,
    record_bytes: u32,
    walk: Walk,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Data of the request that is being sent.
    buffer: Vec<u8>,
    clock: Clock,
    latencies: Latencies,
    done: Done,
    begun: u64,
}

/// Reads and compares, or writes, as the transfer says.
pub(super) fn run(
    mut remote: impl Remote,
    path: &Path,
    transfer: &Transfer,
    action: Action,
) -> Result<Done> {
    let opening = match &action {
        Action::Read(_) => Opening::Read,
        Action::Write { create: true, .. } => Opening::Create,
        Action::Write { create: false, .. } => Opening::Write,
    };
    let longest = remote.longest(opening);
    let (record_bytes, most) = match (transfer.record_bytes, transfer.order) {
        (0, Order::Sequential) => (longest, (IN_FLIGHT_BYTES / longest).max(1)),
        (0, Order::Random { .. }) => (longest, u32::MAX),
        (bytes, _) => (bytes, u32::MAX),
    };
    let depth = transfer.depth.clamp(1, most);
    let walk = walk(transfer, record_bytes)?;
    let buffer = vec![0; record_bytes as usize];
    let done = Done { before: used(), ..Done::default() };
    let clock = Clock::start();
    remote.open(path, opening).map_err(|error| remote.failure("open", &error))?;
    let slot = Slot { offset: 0, len: 0, begin: Instant::now() };
    let mut run = Run {
        remote,
        transfer,
        action,
        record_bytes,
        walk,
        slots: vec![slot; depth as usize],
        free: (0..depth).rev().collect(),
        buffer,
        clock,
        latencies: Latencies::new(),
        done,
        begun: 0,
    };
    let what = run.action.name();
    loop {
        run.ask().map_err(|error| run.remote.failure(what, &error))?;
        if !run.in_flight() {
            break;
        }
        // All that has arrived, before anything is asked for again: so requests are gathered.
        run.take()?;
        while run.in_flight() && run.remote.has_answer() {
            run.take()?;
        }
    }
    run.finish()
}

impl<R: Remote> Run<'_, R> {
    fn in_flight(&self) -> bool {
        self.free.len() < self.slots.len()
    }

    /// With one request at a time the clock stands still while data are made and compared.
    fn is_alone(&self) -> bool {
        self.slots.len() == 1
    }

    /// Sends requests until no slot is free.
    fn ask(&mut self) -> io::Result<()> {
        while !self.clock.is_over(self.transfer.until, self.begun, self.walk.records())
            && let Some(id) = self.free.pop()
        {
            let number = self.walk.next().unwrap_or(0);
            let (offset, len) = record(self.transfer, self.record_bytes, number);
            let alone = self.is_alone();
            if let Action::Write { content, .. } = &self.action {
                let data = &mut self.buffer[..len];
                let mut fill = || content.fill(offset / BLOCK_BYTES as u64, data);
                if alone { self.clock.aside(fill) } else { fill() }
            }
            self.slots[id as usize] = Slot { offset, len, begin: Instant::now() };
            self.begun += 1;
            self.request(id)?;
        }
        self.remote.flush()
    }

    /// Queues the request of a slot.
    fn request(&mut self, id: u32) -> io::Result<()> {
        let Slot { offset, len, .. } = self.slots[id as usize];
        match &self.action {
            Action::Read(_) => self.remote.read(id, offset, len as u32),
            Action::Write { .. } => self.remote.write(id, offset, &self.buffer[..len]),
        }
    }

    /// Takes one reply.
    fn take(&mut self) -> Result<()> {
        let (what, alone) = (self.action.name(), self.is_alone());
        let Run { remote, slots, clock, action, transfer, .. } = self;
        let answer = remote.answer();
        let (id, answer) = answer.map_err(|error| remote.failure(what, &error))?;
        let Some(slot) = slots.get(id as usize).copied() else {
            return Err(Failure::failed(format!("a reply to request {id}, which was not sent")));
        };
        let got = match (action, answer) {
            (Action::Write { .. }, Answer::Written(bytes)) => match bytes {
                Some(bytes) if bytes as usize != slot.len => {
                    let why = format!("{bytes} of {} bytes were written", slot.len);
                    return Err(Failure::failed(why));
                }
                _ => slot.len,
            },
            (Action::Read(checker), Answer::Data(data)) => {
                let got = usable(data.len(), slot.len);
                if got == 0 {
                    let (got, asked) = (data.len(), slot.len);
                    let why = format!("{got} bytes where {asked} were asked for");
                    return Err(Failure::wrong(why));
                }
                let mut check = || checker.check(slot.offset, &data[..got]);
                if alone { clock.aside(check) } else { check() }?;
                got
            }
            (Action::Read(_), Answer::End) => return Err(too_short(slot.offset, transfer)),
            (_, Answer::Refused(error)) => return Err(Failure::failed(format!("{what}: {error}"))),
            _ => return Err(Failure::failed(format!("{what}: the answer to another request"))),
        };
        self.done.bytes += got as u64;
        if got == slot.len {
            self.latencies.add(slot.begin.elapsed());
            self.done.operations += 1;
            self.free.push(id);
            return Ok(());
        }
        // A short read: the rest is asked for, by the same slot.
        let (offset, len) = (slot.offset + got as u64, slot.len - got);
        self.slots[id as usize] = Slot { offset, len, ..slot };
        self.request(id).map_err(|error| self.remote.failure(what, &error))
    }

    /// Compares the length of a file that was read, makes a written one durable, and closes it.
    fn finish(self) -> Result<Done> {
        let Run { mut remote, transfer, action, mut clock, latencies, done, .. } = self;
        match action {
            Action::Read(_) => {
                let size = clock.aside(|| remote.size());
                let size = size.map_err(|error| remote.failure("stat", &error))?;
                if let Some(size) = size.filter(|&size| size != transfer.file_bytes) {
                    return Err(too_short(size, transfer));
                }
            }
            Action::Write { .. } => {
                remote.sync().map_err(|error| remote.failure("fsync", &error))?;
            }
        }
        remote.close().map_err(|error| remote.failure("close", &error))?;
        let seconds = clock.seconds();
        let latency = latencies.into_latency().filter(|_| transfer.order != Order::Sequential);
        Ok(Done { seconds, latency, verified: action.finish()?, ..done })
    }
}

/// How much of a reply can be compared: all, or the whole blocks of a short one; 0 if it is longer
/// than what was asked for.
fn usable(got: usize, asked: usize) -> usize {
    match got.cmp(&asked) {
        Ordering::Less => got - got % BLOCK_BYTES,
        Ordering::Equal => got,
        Ordering::Greater => 0,
    }
}
