//! From what readers got to the store: bytes that were read from the server, proven to be of one
//! content, and written behind the readers' backs.
//!
//! What is read is kept in memory first. When enough has come together, or the reader is at the
//! end or gone, the server is asked for the attributes of the open file. If they are still those
//! that it was opened with, all that was read before the question is of that content, and goes to
//! the store; if not, all of it is dropped. So a file that changes while it is fetched leaves
//! nothing behind, also if this process ends in the middle.
//!
//! It holds only where no change can leave size and time as they were ([`seen`](super::seen));
//! files of which that is not known are not kept, or, where the tree is said never to change, not
//! trusted elsewhere.
//!
//! A reader never waits for this. Bytes on their way to the disk are bounded; what does not fit is
//! left out, and fetched by the next who reads it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};

use base::{Data, Errno, RemotePath, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::changes::{Changes, Tick};
use super::files::{Content, File};
use crate::store::later::stand_back;
use crate::{KnownFile, Partial, SourceId, Store, Validator};

/// Bytes that were read and are not on the disk yet, for all files together. Room for what comes
/// in while a large content is being hashed; less leaves more out.
const MAX_BEHIND_BYTES: usize = 64 << 20;

/// The unit in which that is counted, so that very many small pieces are bounded, too.
const UNIT_BYTES: usize = 1 << 10;

/// Bytes of one file for which the server is asked once whether it is still the same.
const BATCH_BYTES: u64 = 4 << 20;

/// Contents up to this size are completed as they come; larger ones by a thread of their own, which
/// reads and hashes all of it.
const SMALL_BYTES: u64 = 1 << 20;

/// Large contents that wait to be completed. More are completed by the thread that writes.
const MAX_WAITING: usize = 16;

/// Contents that are completed and not recorded, at most: as many as a directory has files.
const MAX_UNRECORDED: usize = 64;

/// How much the threads stand back when there are others who want the processor.
const NICENESS: i32 = 10;

/// Bytes that were read, with their place in the budget.
struct Piece {
    offset: u64,
    data: Data,
    _room: OwnedSemaphorePermit,
}

#[derive(Default)]
struct Pending {
    pieces: Vec<Piece>,
    bytes: u64,
    /// The server is being asked.
    confirming: bool,
    /// It is to be asked, however little has come together.
    due: bool,
    /// It has told that the file is another one.
    changed: bool,
}

/// A content that comes to be here. Shared by nobody: each open file has its own.
pub(crate) struct Filling {
    pub(crate) partial: Partial,
    of: Of,
    /// It is kept for a tree that is said never to change, and nowhere trusted else.
    racy: bool,
    pending: Mutex<Pending>,
    /// What of it is on its way to the store.
    under_way: watch::Sender<u64>,
}

/// Whose content it is.
pub(crate) struct Of {
    pub(crate) source: SourceId,
    pub(crate) path: RemotePath,
    /// When the file was opened, in the order of the changes made here.
    pub(crate) tick: Tick,
    pub(crate) changes: Changes,
}

impl Of {
    /// Whether something was changed here since.
    fn is_touched(&self) -> bool {
        !self.changes.untouched(&self.path, self.tick)
    }
}

impl Filling {
    /// For the content of a file that has just been opened, of which `store` may have a part.
    pub(crate) fn new(store: &Store, of: Of, validator: Validator, racy: bool) -> Arc<Filling> {
        let partial = store.fetch(&of.source, &of.path, validator);
        let (pending, under_way) = (Mutex::default(), watch::Sender::new(0));
        Arc::new(Filling { partial, of, racy, pending, under_way })
    }

    /// Returns when nothing of it is on its way to the store any more.
    pub(crate) async fn settled(&self) {
        until_none(&self.under_way).await;
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What has become of what was read.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Contents that were completed.
    pub(crate) completed: AtomicU64,
    /// Files that changed while they were fetched.
    pub(crate) changed: AtomicU64,
    /// Bytes that there was no room for.
    pub(crate) left_out_bytes: AtomicU64,
}

enum Job {
    Write { filling: Arc<Filling>, pieces: Vec<Piece>, work: Work },
    Finish { filling: Arc<Filling>, attr: base::Attr, file: Weak<File>, work: Work },
}

/// Something that is on its way to the store, counted for all and for its content.
struct Work([watch::Sender<u64>; 2]);

impl Work {
    fn begin(all: &watch::Sender<u64>, filling: &Filling) -> Work {
        let counts = [all.clone(), filling.under_way.clone()];
        counts.iter().for_each(|count| count.send_modify(|count| *count += 1));
        Work(counts)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.iter().for_each(|count| count.send_modify(|count| *count -= 1));
    }
}

async fn until_none(count: &watch::Sender<u64>) {
    let mut count = count.subscribe();
    // The sender is there as long as we are.
    let _ = count.wait_for(|count| *count == 0).await;
}

/// The way to the store. See the [module](self).
pub(crate) struct Filler {
    jobs: mpsc::Sender<Job>,
    room: Arc<Semaphore>,
    under_way: watch::Sender<u64>,
    pub(crate) tally: Arc<Tally>,
    /// Ends when nobody wants anything any more.
    wanted: watch::Receiver<()>,
}

impl Filler {
    /// `wanted` ends with the one for whom all this is done.
    pub(crate) fn new(store: Store, wanted: watch::Receiver<()>) -> std::io::Result<Filler> {
        let (jobs, work) = mpsc::channel();
        let (large, waiting) = mpsc::sync_channel(MAX_WAITING);
        let tally = Arc::<Tally>::default();
        let finisher = Finisher { store: store.clone(), tally: tally.clone(), made: Vec::new() };
        let other = Finisher { store, tally: tally.clone(), made: Vec::new() };
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        thread("cache-finish").spawn(move || {
            stand_back(NICENESS);
            other.finish_all(&waiting);
        })?;
        thread("cache-write").spawn(move || {
            stand_back(NICENESS);
            finisher.take_all(&work, &large);
        })?;
        let units = MAX_BEHIND_BYTES / UNIT_BYTES;
        let room = Arc::new(Semaphore::new(units));
        Ok(Filler { jobs, room, under_way: watch::Sender::new(0), tally, wanted })
    }

    /// Returns when nothing is on its way to the store any more.
    pub(crate) async fn settled(&self) {
        until_none(&self.under_way).await;
    }

    /// Returns when there is room for more, or at once for a reader that does not care.
    pub(crate) async fn room_for(&self, bytes: u64) {
        let units = units(bytes).min(MAX_BEHIND_BYTES as u32 / UNIT_BYTES as u32 / 2);
        // Given back at once: it is taken by whoever reads. Never closed.
        let _ = self.room.acquire_many(units).await;
    }

    /// `data` was read from the server, at `offset`, when `asked` bytes were asked for.
    pub(crate) fn took(&self, file: &Arc<File>, filling: &Arc<Filling>, read: Read<'_>) {
        let Validator { size, .. } = file.validator();
        let Read { offset, asked, data } = read;
        let end = offset.saturating_add(data.len() as u64);
        let expected = u64::from(asked).min(size.saturating_sub(offset));
        if end > size.max(offset) || (data.len() as u64) < expected {
            return self.has_changed(file, filling);
        }
        let room = self.room.clone().try_acquire_many_owned(units(data.len() as u64));
        let begin = {
            let mut pending = filling.lock();
            if pending.changed {
                return;
            }
            match room {
                Ok(room) if !data.is_empty() => {
                    pending.bytes += data.len() as u64;
                    pending.pieces.push(Piece { offset, data: data.clone(), _room: room });
                }
                Ok(_) => {}
                Err(_) => {
                    self.tally.left_out_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
                }
            }
            pending.due |= end == size;
            pending.due |= pending.bytes >= BATCH_BYTES;
            pending.due && !std::mem::replace(&mut pending.confirming, true)
        };
        if begin {
            self.confirm(file.clone(), filling.clone());
        }
    }

    /// The reader is gone: what he got is confirmed, however little it is.
    pub(crate) fn closed(&self, file: &Arc<File>) {
        let Content::Part(filling) = file.content() else { return };
        let begin = {
            let mut pending = filling.lock();
            pending.due |= !pending.pieces.is_empty();
            pending.due && !std::mem::replace(&mut pending.confirming, true)
        };
        if begin {
            self.confirm(file.clone(), filling);
        }
    }

    /// A content without bytes is whole as it is.
    pub(crate) fn is_empty(&self, file: &Arc<File>, filling: &Arc<Filling>) {
        self.took(file, filling, Read { offset: 0, asked: 0, data: &Data::new() });
    }

    fn has_changed(&self, file: &Arc<File>, filling: &Filling) {
        let pieces = {
            let mut pending = filling.lock();
            if !std::mem::replace(&mut pending.changed, true) {
                self.tally.changed.fetch_add(1, Ordering::Relaxed);
            }
            pending.bytes = 0;
            std::mem::take(&mut pending.pieces)
        };
        drop(pieces);
        file.read_from_server();
    }

    /// Asks, in the background, whether the file is still the same, and passes on what was read
    /// before that.
    fn confirm(&self, file: Arc<File>, filling: Arc<Filling>) {
        let work = Work::begin(&self.under_way, &filling);
        let confirming = Confirming {
            jobs: self.jobs.clone(),
            under_way: self.under_way.clone(),
            tally: self.tally.clone(),
            file,
            filling,
        };
        let mut wanted = self.wanted.clone();
        tokio::spawn(async move {
            let _work = work;
            tokio::select! {
                () = confirming.run() => {}
                // Nothing is ever sent: it ends.
                _ = wanted.changed() => {}
            }
        });
    }
}

/// Bytes that were read.
pub(crate) struct Read<'a> {
    pub(crate) offset: u64,
    pub(crate) asked: u32,
    pub(crate) data: &'a Data,
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes / UNIT_BYTES as u64 + 1).unwrap_or(u32::MAX)
}

/// A question whether a file is still the same.
struct Confirming {
    jobs: mpsc::Sender<Job>,
    under_way: watch::Sender<u64>,
    tally: Arc<Tally>,
    file: Arc<File>,
    filling: Arc<Filling>,
}

impl Confirming {
    async fn run(&self) {
        loop {
            let pieces = {
                let mut pending = self.filling.lock();
                if !std::mem::take(&mut pending.due) || pending.changed {
                    pending.confirming = false;
                    return;
                }
                pending.bytes = 0;
                std::mem::take(&mut pending.pieces)
            };
            match self.still_the_same().await {
                Ok(Some(attr)) => self.pass_on(pieces, attr),
                Ok(None) => self.has_changed(),
                // Nobody can tell what was read.
                Err(_) => drop(pieces),
            }
        }
    }

    /// The attributes, if they are still those of the content that was opened.
    async fn still_the_same(&self) -> Result<Option<base::Attr>> {
        let fh = self.file.opened().ok_or(Errno::EBADF)?;
        let attr = self.file.inner().fstat(fh).await?;
        Ok((Validator::of(&attr) == self.file.validator()).then_some(attr))
    }

    fn has_changed(&self) {
        let pieces = {
            let mut pending = self.filling.lock();
            if !std::mem::replace(&mut pending.changed, true) {
                self.tally.changed.fetch_add(1, Ordering::Relaxed);
            }
            std::mem::take(&mut pending.pieces)
        };
        drop(pieces);
        self.file.read_from_server();
    }

    fn pass_on(&self, pieces: Vec<Piece>, attr: base::Attr) {
        let filling = self.filling.clone();
        let work = || Work::begin(&self.under_way, &filling);
        // The threads are there as long as anybody can send.
        let _ = self.jobs.send(Job::Write { filling: filling.clone(), pieces, work: work() });
        let file = Arc::downgrade(&self.file);
        let work = work();
        let _ = self.jobs.send(Job::Finish { filling, attr, file, work });
    }
}

/// What the threads do.
struct Finisher {
    store: Store,
    tally: Arc<Tally>,
    /// Contents that are in the store, and are not recorded yet.
    made: Vec<Made>,
}

/// A content that was completed, or was before.
struct Made {
    filling: Arc<Filling>,
    known: KnownFile,
    is_new: bool,
    file: Weak<File>,
    work: Work,
}

impl Finisher {
    /// Takes what comes. What is completed is recorded when nothing more waits: files that are read
    /// one after the other are mostly of one directory, whose records are added to by one write.
    fn take_all(mut self, work: &mpsc::Receiver<Job>, large: &mpsc::SyncSender<Job>) {
        while let Ok(job) = work.recv() {
            self.take(job, large);
            // Not for as long as somebody reads: what is made is waited for.
            for job in work.try_iter().take(MAX_UNRECORDED) {
                self.take(job, large);
            }
            self.record();
        }
    }

    /// Completes what is large.
    fn finish_all(mut self, waiting: &mpsc::Receiver<Job>) {
        while let Ok(job) = waiting.recv() {
            self.finish(job);
            self.record();
        }
    }

    fn take(&mut self, job: Job, large: &mpsc::SyncSender<Job>) {
        match job {
            Job::Write { filling, work, .. } | Job::Finish { filling, work, .. }
                if filling.of.is_touched() =>
            {
                filling.partial.abandon();
                over(filling, work);
            }
            Job::Write { filling, pieces, work } => {
                for Piece { offset, data, _room } in pieces {
                    let mut at = offset;
                    for bytes in data.pieces() {
                        filling.partial.write(at, bytes);
                        at += bytes.len() as u64;
                    }
                }
                over(filling, work);
            }
            Job::Finish { filling, work, .. } if !filling.partial.is_whole() => {
                over(filling, work);
            }
            Job::Finish { ref attr, .. } => {
                if attr.size <= SMALL_BYTES {
                    return self.finish(job);
                }
                if let Err(back) = large.try_send(job) {
                    let (mpsc::TrySendError::Full(job) | mpsc::TrySendError::Disconnected(job)) =
                        back;
                    self.finish(job);
                }
            }
        }
    }

    fn finish(&mut self, job: Job) {
        let Job::Finish { filling, attr, file, work } = job else { return };
        match filling.partial.finish_unrecorded(&attr, filling.racy) {
            Ok((known, is_new)) => self.made.push(Made { filling, known, is_new, file, work }),
            Err(error) => {
                tracing::debug!(%error, "a fetched content was not completed");
                over(filling, work);
            }
        }
    }

    /// Records what was completed.
    fn record(&mut self) {
        let counts = |made: &&Made| made.is_new && !made.filling.of.is_touched();
        let new = self.made.iter().filter(counts);
        let files: Vec<_> = new
            .map(|made| (made.filling.of.source, made.filling.of.path.clone(), made.known))
            .collect();
        self.store.record_files(&files);
        for Made { filling, known, file, work, .. } in self.made.drain(..) {
            if filling.of.is_touched() {
                // A change began meanwhile, and may have forgotten it too early.
                filling.partial.abandon();
                self.store.forget(&filling.of.source, &filling.of.path);
            } else {
                self.tally.completed.fetch_add(1, Ordering::Relaxed);
                let file = file.upgrade();
                if let Some((file, object)) =
                    file.and_then(|file| Some((file, self.store.object(&known.digest)?)))
                {
                    file.is_whole(&filling, object);
                }
            }
            over(filling, work);
        }
    }
}

/// Whoever is told that the work is over finds nobody holding the content any more.
fn over(filling: Arc<Filling>, work: Work) {
    drop(filling);
    drop(work);
}
