//! Counters of requests, and the record of single requests for a profile.
//!
//! Counting costs a few relaxed atomic additions for each request; no lock, and no allocation. A
//! request is recorded only while the file system [is recording](Filesystem::is_recording).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::metrics::{Counter, Histogram, requests_sent};

use super::Inner;
use super::dispatch::guarded;
use super::interrupts::Policy;
use super::origin::Origin;
use crate::abi::{InHeader, opcode};
use crate::filesystem::Filesystem;
use crate::operation::Operation;

/// More than the largest opcode.
const KINDS: usize = 64;

/// Requests that the kernel has sent, and their replies, since the session began. FORGET and
/// INTERRUPT, which have no reply, are not counted, nor are requests that never reach the file
/// system.
#[derive(Debug)]
pub struct Counters {
    kinds: Box<[Kind]>,
    in_flight: AtomicU64,
    /// Bytes returned by READ.
    pub read_bytes: Counter,
    /// Bytes accepted by WRITE.
    pub written_bytes: Counter,
}

#[derive(Debug, Default)]
struct Kind {
    errors: Counter,
    latency: Histogram,
}

/// The counters of one kind of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationCounts {
    /// Its name, in lower case.
    pub name: String,
    /// Replies with an error.
    pub errors: u64,
    /// All replies by their times, as in [`Histogram::counts`].
    pub latency: Vec<u64>,
    /// The sum of these times in nanoseconds.
    pub latency_nanos: u64,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            kinds: (0..KINDS).map(|_| Kind::default()).collect(),
            in_flight: AtomicU64::new(0),
            read_bytes: Counter::new(),
            written_bytes: Counter::new(),
        }
    }
}

impl Counters {
    /// The kinds of requests that were answered.
    pub fn operations(&self) -> Vec<OperationCounts> {
        let kinds = opcode::ALL.iter().filter_map(|code| {
            let kind = &self.kinds[*code as usize];
            let latency = kind.latency.counts();
            (!latency.is_empty()).then(|| OperationCounts {
                name: opcode::name(*code).unwrap_or_default().to_ascii_lowercase(),
                errors: kind.errors.get(),
                latency,
                latency_nanos: kind.latency.nanos(),
            })
        });
        kinds.collect()
    }

    /// Requests without a reply.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// A reply was written; `bytes` is the length of its content.
    pub(super) fn end(&self, call: &Call, error: i32, bytes: usize) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let kind = &self.kinds[call.kind()];
        kind.latency.record(call.began.elapsed());
        if error != 0 {
            kind.errors.add(1);
        } else if call.opcode == opcode::READ {
            self.read_bytes.add(bytes as u64);
        }
        if let Some(traced) = &call.traced {
            traced.failed.store(error != 0, Ordering::Relaxed);
            if call.opcode == opcode::READ {
                traced.bytes.store(bytes as u64, Ordering::Relaxed);
            }
        }
    }

    /// A WRITE has accepted this number of bytes.
    pub(super) fn written(&self, call: &Call, bytes: u32) {
        self.written_bytes.add(bytes.into());
        if let Some(traced) = &call.traced {
            traced.bytes.store(bytes.into(), Ordering::Relaxed);
        }
    }
}

/// A request that is being executed.
pub(super) struct Call {
    opcode: u32,
    pub(super) ino: u64,
    pub(super) policy: Policy,
    began: Instant,
    pub(super) traced: Option<Arc<Traced>>,
    /// Where the reply goes; `None` once it was sent.
    pub(super) origin: Option<Origin>,
}

impl Call {
    /// A request that has just been read.
    pub(super) fn new(
        header: &InHeader,
        operation: &Operation<'_>,
        origin: Origin,
        is_recording: bool,
    ) -> Call {
        let traced = is_recording.then(|| {
            Arc::new(Traced {
                opcode: header.opcode,
                pid: header.pid,
                ino: header.nodeid,
                name: name_of(operation).map(<[u8]>::to_vec),
                began: Instant::now(),
                bytes: AtomicU64::new(0),
                failed: AtomicBool::new(false),
            })
        });
        let policy = Policy::of(operation);
        let (opcode, ino, origin) = (header.opcode, header.nodeid, Some(origin));
        Call { opcode, ino, policy, began: Instant::now(), traced, origin }
    }

    fn kind(&self) -> usize {
        // An unknown opcode may be larger.
        (self.opcode as usize).min(KINDS - 1)
    }
}

/// The name in a directory that an operation is about.
fn name_of<'a>(operation: &Operation<'a>) -> Option<&'a [u8]> {
    match operation {
        Operation::Lookup { name }
        | Operation::Symlink { name, .. }
        | Operation::Mknod { name, .. }
        | Operation::Mkdir { name, .. }
        | Operation::Unlink { name }
        | Operation::Rmdir { name }
        | Operation::Rename { name, .. }
        | Operation::Create { name, .. }
        | Operation::Link { new_name: name, .. } => Some(name),
        _ => None,
    }
}

/// A request that will be recorded.
pub(super) struct Traced {
    opcode: u32,
    pid: u32,
    ino: u64,
    name: Option<Vec<u8>>,
    began: Instant,
    bytes: AtomicU64,
    failed: AtomicBool,
}

/// A request that has ended, for a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished<'a> {
    /// The name of its opcode.
    pub operation: &'static str,
    /// The thread that has caused it; zero if it was none, or is not visible here.
    pub pid: u32,
    /// The inode, or the directory of `name`.
    pub ino: u64,
    /// The name in the directory, if it is about one.
    pub name: Option<&'a [u8]>,
    /// Time from the request to the end of its operation.
    pub took: Duration,
    /// Bytes read or written by the application.
    pub bytes: u64,
    /// Requests to servers that were sent while the operation ran, also for data that is fetched
    /// ahead.
    pub requests: u64,
    /// The reply was an error.
    pub failed: bool,
}

/// Reports a request when it is dropped, at the end of the operation.
struct Record<F: Filesystem> {
    inner: Arc<Inner<F>>,
    traced: Arc<Traced>,
    requests: u64,
}

impl<F: Filesystem> Drop for Record<F> {
    fn drop(&mut self) {
        let traced = &self.traced;
        let finished = Finished {
            operation: opcode::name(traced.opcode).unwrap_or_default(),
            pid: traced.pid,
            ino: traced.ino,
            name: traced.name.as_deref(),
            took: traced.began.elapsed(),
            bytes: traced.bytes.load(Ordering::Relaxed),
            requests: self.requests,
            failed: traced.failed.load(Ordering::Relaxed),
        };
        guarded("record", || self.inner.filesystem.record(&finished));
    }
}

/// Runs `operation`, and then reports it to the file system.
pub(super) async fn recorded<F: Filesystem>(
    inner: Arc<Inner<F>>,
    traced: Arc<Traced>,
    operation: impl Future<Output = ()> + Send,
) {
    let mut record = Record { inner, traced, requests: 0 };
    let mut operation = pin!(operation);
    poll_fn(|context| {
        let before = requests_sent();
        let polled = operation.as_mut().poll(context);
        record.requests += requests_sent() - before;
        polled
    })
    .await;
}
