//! Reads and writes a file over SFTP with a fixed number of requests in flight.

use std::cmp::Ordering;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use sftp::codec::{OpenFlags, RemoteHandle, Reply, Request, StatusCode};

use super::Action;
use super::check::too_short;
use super::clock::{Clock, used};
use super::job::{Done, Invocation, Order, Transfer};
use super::latencies::Latencies;
use super::local::{record, walk};
use super::sftp::{Sftp, refusal};
use super::walk::Walk;
use crate::corpus::content::BLOCK_BYTES;
use crate::failure::{Failure, Result};

/// No more than this is asked for at once: OpenSSH's window for a channel, beyond which a server
/// cannot send.
const IN_FLIGHT_BYTES: u32 = 2 << 20;

/// A request under way; its id is its place among the slots.
#[derive(Clone, Copy, Debug)]
struct Slot {
    offset: u64,
    len: usize,
    begin: Instant,
}

/// A transfer under way.
struct Run<'a> {
    sftp: Sftp,
    transfer: &'a Transfer,
    action: Action,
    record_bytes: u32,
    walk: Walk,
    handle: RemoteHandle,
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
    ssh: &Invocation,
    path: &Path,
    transfer: &Transfer,
    action: Action,
) -> Result<Done> {
    let mut sftp = Sftp::connect(ssh)?;
    let create = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
    let (longest, flags) = match &action {
        Action::Read(_) => (sftp.read_bytes(), OpenFlags::READ),
        Action::Write { create: true, .. } => (sftp.write_bytes(), create),
        Action::Write { create: false, .. } => (sftp.write_bytes(), OpenFlags::WRITE),
    };
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
    let handle = sftp.open(path.as_os_str().as_bytes(), flags);
    let handle = handle.map_err(|error| sftp.failure("open", &error))?;
    let slot = Slot { offset: 0, len: 0, begin: Instant::now() };
    let mut run = Run {
        sftp,
        transfer,
        action,
        record_bytes,
        walk,
        handle,
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
        run.ask().map_err(|error| run.sftp.failure(what, &error))?;
        if !run.in_flight() {
            break;
        }
        // All that has arrived, before anything is asked for again: so requests are gathered.
        run.take()?;
        while run.in_flight() && run.sftp.has_answer() {
            run.take()?;
        }
    }
    run.finish()
}

impl Run<'_> {
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
        self.sftp.flush()
    }

    /// Queues the request of a slot.
    fn request(&mut self, id: u32) -> io::Result<()> {
        let Slot { offset, len, .. } = self.slots[id as usize];
        let handle = self.handle.as_bytes();
        let request = match &self.action {
            Action::Read(_) => Request::Read { handle, offset, len: len as u32 },
            Action::Write { .. } => Request::Write { handle, offset, data: &self.buffer[..len] },
        };
        self.sftp.queue(id, &request)
    }

    /// Takes one reply.
    fn take(&mut self) -> Result<()> {
        let (what, alone) = (self.action.name(), self.is_alone());
        let Run { sftp, slots, clock, action, transfer, .. } = self;
        let answer = sftp.answer();
        let (id, answer) = answer.map_err(|error| sftp.failure(what, &error))?;
        let Some(slot) = slots.get(id as usize).copied() else {
            return Err(Failure::failed(format!("a reply to request {id}, which was not sent")));
        };
        let got = match (action, answer) {
            (Action::Write { .. }, Reply::Status { code: StatusCode::OK, .. }) => slot.len,
            (Action::Read(checker), Reply::Data(data)) => {
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
            (Action::Read(_), Reply::Status { code: StatusCode::EOF, .. }) => {
                return Err(too_short(slot.offset, transfer));
            }
            (_, reply) => return Err(Failure::failed(format!("{what}: {}", refusal(reply)))),
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
        self.request(id).map_err(|error| self.sftp.failure(what, &error))
    }

    /// Compares the length of a file that was read, makes a written one durable, and closes it.
    fn finish(self) -> Result<Done> {
        let Run { mut sftp, transfer, action, handle, mut clock, latencies, done, .. } = self;
        match action {
            Action::Read(_) => {
                let fstat = Request::Fstat { handle: handle.as_bytes() };
                let attrs = clock.aside(|| sftp.attrs(&fstat));
                let attrs = attrs.map_err(|error| sftp.failure("fstat", &error))?;
                if let Some(size) = attrs.size.filter(|&size| size != transfer.file_bytes) {
                    return Err(too_short(size, transfer));
                }
            }
            Action::Write { .. } => {
                let synced = sftp.status(&Request::Fsync { handle: handle.as_bytes() });
                synced.map_err(|error| sftp.failure("fsync", &error))?;
            }
        }
        sftp.close(&handle).map_err(|error| sftp.failure("close", &error))?;
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
