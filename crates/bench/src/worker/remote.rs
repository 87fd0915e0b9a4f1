//! Reads and writes a file over SFTP with a fixed number of requests in flight.

use std::cmp::Ordering;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use sftp::codec::{OpenFlags, RemoteHandle, Reply, Request, StatusCode};

use super::check::{Checker, too_short};
use super::clock::{Clock, Latencies, used};
use super::job::{Check, Done, Fill, Invocation, Order, Start, Transfer};
use super::local::{record, walk};
use super::sftp::{Sftp, refusal};
use super::walk::Walk;
use crate::corpus::content::{BLOCK_BYTES, Content};
use crate::failure::Failure;

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
    record_bytes: u32,
    walk: Walk,
    handle: RemoteHandle,
    slots: Vec<Slot>,
    free: Vec<u32>,
    clock: Clock,
    latencies: Latencies,
    done: Done,
    begun: u64,
}

impl Run<'_> {
    /// How many requests are to be in flight.
    fn depth(transfer: &Transfer, record_bytes: u32) -> u32 {
        let in_sequence = matches!(transfer.order, Order::Sequential) && transfer.record_bytes == 0;
        let most = if in_sequence { (IN_FLIGHT_BYTES / record_bytes).max(1) } else { u32::MAX };
        transfer.depth.clamp(1, most)
    }

    fn new<'a>(
        mut sftp: Sftp,
        path: &Path,
        flags: OpenFlags,
        transfer: &'a Transfer,
        record_bytes: u32,
    ) -> Result<Run<'a>, Failure> {
        let walk = walk(transfer, record_bytes)?;
        let depth = Run::depth(transfer, record_bytes);
        let before = used();
        let clock = Clock::start();
        let handle = sftp.open(path.as_os_str().as_bytes(), flags);
        let handle = handle.map_err(|error| sftp.failure("open", &error))?;
        let slot = Slot { offset: 0, len: 0, begin: Instant::now() };
        Ok(Run {
            sftp,
            transfer,
            record_bytes,
            walk,
            handle,
            slots: vec![slot; depth as usize],
            free: (0..depth).rev().collect(),
            clock,
            latencies: Latencies::new(),
            done: Done { before, ..Done::default() },
            begun: 0,
        })
    }

    fn in_flight(&self) -> bool {
        self.free.len() < self.slots.len()
    }

    /// The next record, if there is to be one, and a slot for it is free.
    fn begin(&mut self) -> Option<(u32, Slot)> {
        if self.clock.is_over(self.transfer.until, self.begun, self.walk.records()) {
            return None;
        }
        let id = self.free.pop()?;
        let (offset, len) = record(self.transfer, self.record_bytes, self.walk.next()?);
        let slot = Slot { offset, len, begin: Instant::now() };
        self.slots[id as usize] = slot;
        self.begun += 1;
        Some((id, slot))
    }

    fn end(&mut self, id: u32) {
        let slot = self.slots[id as usize];
        self.latencies.add(slot.begin.elapsed());
        self.done.operations += 1;
        self.done.bytes += slot.len as u64;
        self.free.push(id);
    }

    fn finish(mut self, verified: bool) -> Result<Done, Failure> {
        let closed = self.sftp.close(&self.handle);
        closed.map_err(|error| self.sftp.failure("close", &error))?;
        let seconds = self.clock.seconds();
        let random = matches!(self.transfer.order, Order::Random { .. });
        let latency = random.then(|| self.latencies.into_latency()).flatten();
        Ok(Done { seconds, latency, verified, ..self.done })
    }
}

/// Reads as the transfer says, and compares.
pub(super) fn read(
    ssh: &Invocation,
    path: &Path,
    transfer: &Transfer,
    check: &Check,
) -> Result<Done, Failure> {
    let sftp = Sftp::connect(ssh)?;
    let record_bytes = match transfer.record_bytes {
        0 => sftp.read_bytes(),
        bytes => bytes,
    };
    let mut checker = Checker::new(check, transfer)?;
    let mut run = Run::new(sftp, path, OpenFlags::READ, transfer, record_bytes)?;
    loop {
        run.ask().map_err(|error| run.sftp.failure("read", &error))?;
        if !run.in_flight() {
            break;
        }
        // All that has arrived, before anything is asked for again: so requests are gathered.
        run.take(&mut checker)?;
        while run.in_flight() && run.sftp.has_answer() {
            run.take(&mut checker)?;
        }
    }
    run.check_length()?;
    checker.finish()?;
    run.finish(true)
}

impl Run<'_> {
    /// Asks for records until no slot is free.
    fn ask(&mut self) -> io::Result<()> {
        while let Some((id, slot)) = self.begin() {
            self.ask_for(id, slot.offset, slot.len)?;
        }
        self.sftp.flush()
    }

    fn ask_for(&mut self, id: u32, offset: u64, len: usize) -> io::Result<()> {
        let handle = self.handle.as_bytes();
        self.sftp.queue(id, &Request::Read { handle, offset, len: len as u32 })
    }

    /// Takes one reply.
    fn take(&mut self, checker: &mut Checker) -> Result<(), Failure> {
        let alone = self.slots.len() == 1;
        let Run { sftp, slots, clock, transfer, .. } = self;
        let answer = sftp.answer();
        let (id, answer) = answer.map_err(|error| sftp.failure("read", &error))?;
        let Some(slot) = slots.get(id as usize).copied() else {
            return Err(Failure::failed(format!("a reply to request {id}, which was not sent")));
        };
        let got = match answer {
            Reply::Data(data) if usable(data.len(), slot.len) > 0 => {
                let data = &data[..usable(data.len(), slot.len)];
                let mut check = || checker.check(slot.offset, data);
                if alone { clock.aside(check) } else { check() }?;
                data.len()
            }
            Reply::Data(data) => {
                let (got, asked) = (data.len(), slot.len);
                return Err(Failure::wrong(format!("{got} bytes where {asked} were asked for")));
            }
            Reply::Status { code: StatusCode::EOF, .. } => {
                return Err(too_short(slot.offset, transfer));
            }
            reply => return Err(Failure::failed(format!("read: {}", refusal(reply)))),
        };
        if got == slot.len {
            self.end(id);
            return Ok(());
        }
        // A short read: the rest is asked for, by the same slot.
        let (offset, len) = (slot.offset + got as u64, slot.len - got);
        self.done.bytes += got as u64;
        self.slots[id as usize] = Slot { offset, len, ..slot };
        self.ask_for(id, offset, len).map_err(|error| self.sftp.failure("read", &error))
    }

    fn check_length(&mut self) -> Result<(), Failure> {
        let Run { sftp, handle, clock, .. } = self;
        let attrs = clock.aside(|| sftp.attrs(&Request::Fstat { handle: handle.as_bytes() }));
        let attrs = attrs.map_err(|error| sftp.failure("fstat", &error))?;
        match attrs.size {
            Some(size) if size != self.transfer.file_bytes => Err(too_short(size, self.transfer)),
            _ => Ok(()),
        }
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

/// Writes as the transfer says.
pub(super) fn write(
    ssh: &Invocation,
    path: &Path,
    transfer: &Transfer,
    fill: &Fill,
    start: Start,
    fsync: bool,
) -> Result<Done, Failure> {
    let sftp = Sftp::connect(ssh)?;
    let record_bytes = match transfer.record_bytes {
        0 => sftp.write_bytes(),
        bytes => bytes,
    };
    let flags = match start {
        Start::Absent => OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE,
        Start::Present => OpenFlags::WRITE,
    };
    let content = Content::new(fill.seed);
    let mut buffer = vec![0; record_bytes as usize];
    let mut run = Run::new(sftp, path, flags, transfer, record_bytes)?;
    loop {
        run.send(&content, &mut buffer).map_err(|error| run.sftp.failure("write", &error))?;
        if !run.in_flight() {
            break;
        }
        run.take_status()?;
        while run.in_flight() && run.sftp.has_answer() {
            run.take_status()?;
        }
    }
    if fsync {
        let Run { sftp, handle, .. } = &mut run;
        let synced = sftp.status(&Request::Fsync { handle: handle.as_bytes() });
        synced.map_err(|error| sftp.failure("fsync", &error))?;
    }
    run.finish(false)
}

impl Run<'_> {
    /// Sends records until no slot is free.
    fn send(&mut self, content: &Content, buffer: &mut [u8]) -> io::Result<()> {
        let alone = self.slots.len() == 1;
        while let Some((id, slot)) = self.begin() {
            let first = slot.offset / BLOCK_BYTES as u64;
            let data = &mut buffer[..slot.len];
            if alone {
                self.clock.aside(|| content.fill(first, data));
                // Filling is no part of the operation either.
                self.slots[id as usize].begin = Instant::now();
            } else {
                content.fill(first, data);
            }
            let handle = self.handle.as_bytes();
            self.sftp.queue(id, &Request::Write { handle, offset: slot.offset, data })?;
        }
        self.sftp.flush()
    }

    fn take_status(&mut self) -> Result<(), Failure> {
        let answer = self.sftp.answer();
        let (id, answer) = answer.map_err(|error| self.sftp.failure("write", &error))?;
        if id as usize >= self.slots.len() {
            return Err(Failure::failed(format!("a reply to request {id}, which was not sent")));
        }
        match answer {
            Reply::Status { code: StatusCode::OK, .. } => {
                self.end(id);
                Ok(())
            }
            reply => Err(Failure::failed(format!("write: {}", refusal(reply)))),
        }
    }
}
