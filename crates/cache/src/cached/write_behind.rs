//! Write-behind to the store: bytes that were read from the server are verified to be of one
//! content, and written in the background.
//!
//! Data that was read is kept in memory first. When enough has come together, or the reader has
//! reached the end or closed the file, the server is queried for the attributes of the open file.
//! If they are still those of the open, all data read before the query is of that content, and goes
//! to the store; if not, all of it is dropped. So a file that changes while it is fetched leaves
//! nothing in the store, also if this process ends in the middle.
//!
//! This holds only where no change can leave size and mtime as they were
//! ([`validators`](super::validators)); other files are not kept, or, in an immutable tree, are not
//! trusted elsewhere.
//!
//! The data of all open files is passed on early if too much is pending: it would keep new data
//! from being cached as long as the files are open.
//!
//! A reader never waits for this, nor does it take processor time from readers if it can wait
//! ([`idle_gate`](super::idle_gate)): a thread ([`writer`](super::writer)) writes contents and
//! listings ([`pending_listings`](super::pending_listings)) in the order of their reads. The queued
//! bytes are bounded; data beyond the bound is dropped, and fetched by the next reader.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use base::task::Task;
use base::{Data, Errno, Lifetime, Mutex, RemotePath, Result};
use bytes::Bytes;
use tokio::sync::Semaphore;

use super::Counters;
use super::changes::Changes;
use super::files::{Content, File};
use super::idle_gate::IdleGate;
use super::names::RequestStamp;
use super::pending_listings::PendingListing;
use super::writer::{Fetched, Job, PendingWork, Piece, Recorder, Writer};
use crate::partial::InFlight;
use crate::{Partial, SourceId, Validator};

/// Bound on the bytes that were read and are not on the disk yet, of all files together: this share
/// of the machine's memory, within the limits below. Enough for what arrives while a large content
/// is being hashed; half of it may be used by data that waits for a pause in the reads.
const MEMORY_DIVISOR: u64 = 32;
const QUEUE_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=128 << 20;

/// The unit of that bound, so that very many small pieces are bounded, too.
const UNIT_BYTES: u64 = 1 << 10;

/// Data shorter than this is copied: it mostly shares its buffer with other data.
const COPY_BELOW_BYTES: usize = 16 << 10;

/// Bound on the number of jobs in flight to the store. More are dropped: each takes some kilobytes
/// beside its bytes, and a disk may hang.
const MAX_IN_FLIGHT: u64 = 32 << 10;

/// Time between two early flushes of all open files.
pub(crate) const FLUSH_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of one file after which the server is queried whether it is still the same.
const BATCH_BYTES: u64 = 4 << 20;

#[derive(Default)]
struct Pending {
    pieces: Vec<Piece>,
    bytes: u64,
    /// A query of the server is in flight.
    revalidating: bool,
    /// The server is to be queried, however little data there is.
    due: bool,
    /// The server has returned other attributes.
    changed: bool,
}

/// A content being fetched. Each open file has its own.
pub(crate) struct Fetch {
    pub(crate) partial: Partial,
    pub(crate) target: FetchTarget,
    /// It is kept for an immutable tree, and not trusted elsewhere.
    pub(crate) racy: bool,
    pending: Mutex<Pending>,
}

/// The file that has the content.
pub(crate) struct FetchTarget {
    pub(crate) source: SourceId,
    pub(crate) path: RemotePath,
    /// When the file was opened.
    pub(crate) stamp: RequestStamp,
    pub(crate) changes: Changes,
}

impl FetchTarget {
    /// Whether the file was changed here since.
    pub(crate) fn is_changed(&self) -> bool {
        !self.changes.is_unchanged(&self.path, self.stamp.generation)
    }
}

impl Fetch {
    /// For the content of a file that has just been opened.
    pub(crate) fn new(partial: Partial, target: FetchTarget, racy: bool) -> Arc<Fetch> {
        Arc::new(Fetch { partial, target, racy, pending: Mutex::default() })
    }

    /// The file has changed: none of the data read from it is kept.
    fn mark_changed(&self, file: &File, counters: &Counters) {
        let pieces = {
            let mut pending = self.pending.lock();
            if !std::mem::replace(&mut pending.changed, true) {
                counters.add(|it| it.changed_meanwhile += 1);
            }
            pending.bytes = 0;
            std::mem::take(&mut pending.pieces)
        };
        drop(pieces);
        file.read_from_server();
    }

    /// Drops the data read so far.
    fn discard(&self, counters: &Counters) {
        let (pieces, bytes) = {
            let mut pending = self.pending.lock();
            (pending.revalidating, pending.due) = (false, false);
            (std::mem::take(&mut pending.pieces), std::mem::take(&mut pending.bytes))
        };
        drop(pieces);
        counters.add(|it| it.left_out_bytes += bytes);
    }
}

/// The state of the queue, which its thread shares.
pub(crate) struct Queue {
    pub(crate) idle_gate: IdleGate,
    /// The space for data to come.
    space: Arc<Semaphore>,
    units: u32,
    /// All jobs in flight.
    in_flight: InFlight,
    pub(crate) counters: Arc<Counters>,
}

impl Queue {
    /// Whether too much is queued to wait for a pause in the reads.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.space.available_permits() < self.units as usize / 2
            || *self.in_flight.borrow() > MAX_IN_FLIGHT / 2
    }
}

/// The write-behind queue. See the [module](self).
pub(crate) struct WriteBehind {
    jobs: mpsc::Sender<Job>,
    queue: Arc<Queue>,
    flushed_at: Mutex<Option<Instant>>,
    lifetime: Lifetime,
}

impl WriteBehind {
    /// Its tasks end with `lifetime`.
    pub(crate) fn new(
        recorder: Recorder,
        counters: Arc<Counters>,
        lifetime: Lifetime,
    ) -> std::io::Result<WriteBehind> {
        let units = queue_units();
        let (idle_gate, in_flight) = (IdleGate::new(), InFlight::default());
        let space = Arc::new(Semaphore::new(units as usize));
        let queue = Arc::new(Queue { idle_gate, space, units, in_flight, counters });
        let jobs = Writer::new(recorder, queue.clone()).start()?;
        Ok(WriteBehind { jobs, queue, flushed_at: Mutex::default(), lifetime })
    }

    /// Returns when nothing is in flight to the store.
    pub(crate) async fn wait_idle(&self) {
        self.wait_written(&self.queue.in_flight).await;
    }

    /// Returns when nothing of this content is in flight to the store.
    pub(crate) async fn wait_written(&self, content: &InFlight) {
        let _request = self.queue.idle_gate.flush_now();
        // The sender is in `content`, so the channel does not end.
        let _ = content.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Queues a listing, which is valid already.
    pub(crate) fn listed(&self, pending: Arc<PendingListing>) {
        self.queue.idle_gate.note_read();
        let work = PendingWork::begin(&self.queue.in_flight, None);
        // The thread lives as long as a sender.
        let _ = self.jobs.send(Job::List(pending, work));
    }

    /// Returns when there is space for more, for a reader that can wait.
    pub(crate) async fn wait_for_space(&self, bytes: u64) {
        let units = units(bytes).min(self.queue.units / 2);
        // Released at once: the read itself takes it. The semaphore is never closed.
        let _ = self.queue.space.acquire_many(units).await;
    }

    /// Takes the result of a read from the server.
    pub(crate) fn add_read(
        &self,
        file: &Arc<File>,
        fetch: &Arc<Fetch>,
        offset: u64,
        requested: u32,
        data: &Data,
    ) {
        self.queue.idle_gate.note_read();
        let Validator { size, .. } = file.validator();
        let end = offset.saturating_add(data.len() as u64);
        let expected = u64::from(requested).min(size.saturating_sub(offset));
        if end > size.max(offset) || (data.len() as u64) < expected {
            return fetch.mark_changed(file, &self.queue.counters);
        }
        let space = self.queue.space.clone().try_acquire_many_owned(units(data.len() as u64));
        let begin = {
            let mut pending = fetch.pending.lock();
            if pending.changed {
                return;
            }
            match space {
                Ok(space) if !data.is_empty() => {
                    pending.bytes += data.len() as u64;
                    pending.pieces.push(Piece { offset, data: copy_if_small(data), space });
                }
                Ok(_) => {}
                Err(_) => {
                    self.queue.counters.add(|it| it.left_out_bytes += data.len() as u64);
                }
            }
            pending.due |= end == size;
            pending.due |= pending.bytes >= BATCH_BYTES;
            pending.due && !std::mem::replace(&mut pending.revalidating, true)
        };
        if begin {
            self.revalidate(file.clone(), fetch.clone());
        }
    }

    /// Whether all open files are to be flushed now, since too much is pending.
    pub(crate) fn must_flush(&self) -> bool {
        if !self.queue.is_over_limit() {
            return false;
        }
        let mut flushed_at = self.flushed_at.lock();
        let is_due = flushed_at.is_none_or(|at| at.elapsed() >= FLUSH_PAUSE);
        if is_due {
            *flushed_at = Some(Instant::now());
        }
        is_due
    }

    /// Verifies the data of the file, however little it is, and passes it on.
    pub(crate) fn flush(&self, file: &Arc<File>) {
        let Content::Part(fetch) = file.content() else { return };
        let begin = {
            let mut pending = fetch.pending.lock();
            pending.due |= !pending.pieces.is_empty();
            pending.due && !std::mem::replace(&mut pending.revalidating, true)
        };
        if begin {
            self.revalidate(file.clone(), fetch);
        }
    }

    /// Queries the server, in the background, whether the file is still the same, and queues the
    /// data read before that.
    fn revalidate(&self, file: Arc<File>, fetch: Arc<Fetch>) {
        if *self.queue.in_flight.borrow() >= MAX_IN_FLIGHT {
            return fetch.discard(&self.queue.counters);
        }
        let work = PendingWork::begin(&self.queue.in_flight, Some(&fetch));
        let (jobs, queue) = (self.jobs.clone(), self.queue.clone());
        let revalidation = Revalidation { jobs, queue, file, fetch };
        let lifetime = self.lifetime.clone();
        // Not awaited. The queries of one batch of answers leave together.
        let _ = Task::start(async move {
            let _work = work;
            lifetime.run(revalidation.run()).await;
        });
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.queue.idle_gate.close();
    }
}

/// The bytes without the rest of their buffer, which would take memory as long as they do.
fn copy_if_small(data: &Data) -> Data {
    if data.len() < COPY_BELOW_BYTES { Bytes::from(data.to_vec()).into() } else { data.clone() }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes / UNIT_BYTES + 1).unwrap_or(u32::MAX)
}

/// The units of all that may be queued.
fn queue_units() -> u32 {
    let system = rustix::system::sysinfo();
    let memory = system.totalram.saturating_mul(u64::from(system.mem_unit));
    let bytes = (memory / MEMORY_DIVISOR).clamp(*QUEUE_BYTES.start(), *QUEUE_BYTES.end());
    (bytes / UNIT_BYTES) as u32
}

/// A query whether a file is still the same.
struct Revalidation {
    jobs: mpsc::Sender<Job>,
    queue: Arc<Queue>,
    file: Arc<File>,
    fetch: Arc<Fetch>,
}

impl Revalidation {
    async fn run(&self) {
        loop {
            let pieces = {
                let mut pending = self.fetch.pending.lock();
                if !std::mem::take(&mut pending.due) || pending.changed {
                    pending.revalidating = false;
                    return;
                }
                pending.bytes = 0;
                std::mem::take(&mut pending.pieces)
            };
            match self.unchanged_attr().await {
                Ok(Some(attr)) => self.pass_on(pieces, attr),
                Ok(None) => self.fetch.mark_changed(&self.file, &self.queue.counters),
                // The data cannot be verified.
                Err(_) => drop(pieces),
            }
        }
    }

    /// The attributes, if they are still those of the content that was opened.
    async fn unchanged_attr(&self) -> Result<Option<base::Attr>> {
        let fh = self.file.server_handle().ok_or(Errno::EBADF)?;
        let attr = self.file.inner().fstat(fh).await?;
        Ok((Validator::of(&attr) == self.file.validator()).then_some(attr))
    }

    fn pass_on(&self, pieces: Vec<Piece>, attr: base::Attr) {
        let fetch = self.fetch.clone();
        let work = PendingWork::begin(&self.queue.in_flight, Some(&fetch));
        let file = Arc::downgrade(&self.file);
        let fetched = Fetched { fetch, attr, file, work };
        // The thread lives as long as a sender.
        let _ = self.jobs.send(Job::Write(pieces, fetched));
    }
}
