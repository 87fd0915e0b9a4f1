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
//! A reader never waits for this, nor does it take the processor from him if it can wait
//! ([`lull`](super::lull)): threads write ([`writing`](super::writing)), listings
//! ([`fresh`](super::fresh)) in the same order. Bytes on their way to the disk are bounded; what does
//! not fit is left out, and fetched by the next who reads it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use base::task::Task;
use base::{Data, Errno, RemotePath, Result, Timestamp};
use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use super::changes::{Changes, Tick};
use super::files::{Content, File};
use super::fresh::Note;
use super::lull::Lull;
use super::writing::{Fetched, Holding, Job, Piece, Recorder, Work, Writer};
use crate::under_way::UnderWay;
use crate::{Partial, SourceId, Store, Validator};

/// Bytes that were read and are not on the disk yet, for all files together: so much of the memory
/// of the machine, within these bounds. Room for what comes in while a large content is being
/// hashed, where less leaves more out; and half of it for what waits until nobody reads.
const BEHIND_OF_MEMORY: u64 = 32;
const BEHIND_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=128 << 20;

/// The unit in which that is counted, so that very many small pieces are bounded, too.
const UNIT_BYTES: u64 = 1 << 10;

/// Less than this came along with other things, mostly.
const SHARES_BYTES: usize = 16 << 10;

/// What may be on its way to the store, in number. More is left out: each takes some kilobytes
/// beside its bytes, and a disk may hang.
const MAX_UNDER_WAY: u64 = 32 << 10;

/// Bytes of one file for which the server is asked once whether it is still the same.
const BATCH_BYTES: u64 = 4 << 20;

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
    pub(crate) of: Of,
    /// It is kept for a tree that is said never to change, and nowhere trusted else.
    pub(crate) racy: bool,
    pending: Mutex<Pending>,
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
    pub(crate) fn is_touched(&self) -> bool {
        !self.changes.untouched(&self.path, self.tick)
    }
}

/// What becomes of the part of a content that an earlier mount has left.
#[derive(Clone, Copy)]
pub(crate) enum Leftovers {
    /// It is completed: the tree never changes, or nothing is fetched.
    Used,
    /// It is thrown away: the file may have another content with the same size and time.
    Dropped,
}

impl Filling {
    /// For the content of a file that has just been opened, of which `store` may have a part.
    pub(crate) fn new(
        store: &Store,
        of: Of,
        validator: Validator,
        racy: bool,
        leftovers: Leftovers,
    ) -> Arc<Filling> {
        let partial = match leftovers {
            Leftovers::Used => store.fetch(&of.source, &of.path, validator),
            Leftovers::Dropped => store.fetch_own(&of.source, &of.path, validator),
        };
        Arc::new(Filling { partial, of, racy, pending: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file is another one by now: nothing of what was read of it counts.
    fn has_changed(&self, file: &File, tally: &Tally) {
        let pieces = {
            let mut pending = self.lock();
            if !std::mem::replace(&mut pending.changed, true) {
                tally.changed.fetch_add(1, Ordering::Relaxed);
            }
            pending.bytes = 0;
            std::mem::take(&mut pending.pieces)
        };
        drop(pieces);
        file.read_from_server();
    }

    /// What was read so far is not kept.
    fn leave_out(&self, tally: &Tally) {
        let (pieces, bytes) = {
            let mut pending = self.lock();
            (pending.confirming, pending.due) = (false, false);
            (std::mem::take(&mut pending.pieces), std::mem::take(&mut pending.bytes))
        };
        drop(pieces);
        tally.left_out_bytes.fetch_add(bytes, Ordering::Relaxed);
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

/// The way to the store. See the [module](self).
pub(crate) struct Filler {
    jobs: mpsc::Sender<Job>,
    room: Arc<Semaphore>,
    units: u32,
    lull: Arc<Lull>,
    under_way: UnderWay,
    pub(crate) tally: Arc<Tally>,
    /// Ends when nobody wants anything any more.
    wanted: watch::Receiver<()>,
}

impl Filler {
    /// `wanted` ends with the one for whom all this is done.
    pub(crate) fn new(recorder: Recorder, wanted: watch::Receiver<()>) -> std::io::Result<Filler> {
        let tally = Arc::<Tally>::default();
        let units = units_behind();
        let room = Arc::new(Semaphore::new(units as usize));
        let lull = Arc::new(Lull::new());
        let under_way = UnderWay::default();
        let holding = Holding {
            lull: lull.clone(),
            room: room.clone(),
            least: units as usize / 2,
            under_way: under_way.clone(),
            most: MAX_UNDER_WAY / 2,
        };
        let jobs = Writer::new(recorder, tally.clone()).start(holding)?;
        Ok(Filler { jobs, room, units, lull, under_way, tally, wanted })
    }

    /// Returns when nothing is on its way to the store any more.
    pub(crate) async fn settled(&self) {
        let _urging = self.lull.urge();
        self.under_way.until_none().await;
    }

    /// Returns when nothing of this content is on its way to the store any more.
    pub(crate) async fn settled_of(&self, content: &UnderWay) {
        let _urging = self.lull.urge();
        content.until_none().await;
    }

    /// A directory was listed. Where it counts already it is written when its turn comes.
    pub(crate) fn listed(&self, note: Arc<Note>) {
        self.lull.disturb();
        let work = Work::begin(&self.under_way, None);
        // The threads are there as long as anybody can send.
        let _ = self.jobs.send(Job::List(note, work));
    }

    /// Returns when there is room for more, or at once for a reader that does not care.
    pub(crate) async fn room_for(&self, bytes: u64) {
        let units = units(bytes).min(self.units / 2);
        // Given back at once: it is taken by whoever reads. Never closed.
        let _ = self.room.acquire_many(units).await;
    }

    /// `data` was read from the server, at `offset`, when `asked` bytes were asked for.
    pub(crate) fn took(&self, file: &Arc<File>, filling: &Arc<Filling>, read: Read<'_>) {
        self.lull.disturb();
        let Validator { size, .. } = file.validator();
        let Read { offset, asked, data } = read;
        let end = offset.saturating_add(data.len() as u64);
        let expected = u64::from(asked).min(size.saturating_sub(offset));
        if end > size.max(offset) || (data.len() as u64) < expected {
            return filling.has_changed(file, &self.tally);
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
                    pending.pieces.push(Piece { offset, data: on_its_own(data), room });
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

    /// Asks, in the background, whether the file is still the same, and passes on what was read
    /// before that.
    fn confirm(&self, file: Arc<File>, filling: Arc<Filling>) {
        if self.under_way.count() >= MAX_UNDER_WAY {
            return filling.leave_out(&self.tally);
        }
        let work = Work::begin(&self.under_way, Some(&filling));
        let confirming = Confirming {
            jobs: self.jobs.clone(),
            under_way: self.under_way.clone(),
            tally: self.tally.clone(),
            file,
            filling,
        };
        let mut wanted = self.wanted.clone();
        // Nobody waits for it. The questions of one batch of answers leave together.
        let _ = Task::start(async move {
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

impl Drop for Filler {
    fn drop(&mut self) {
        self.lull.end();
    }
}

/// The bytes without what came along with them, which would take memory as long as they do.
fn on_its_own(data: &Data) -> Data {
    if data.len() < SHARES_BYTES { Bytes::from(data.to_vec()).into() } else { data.clone() }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes / UNIT_BYTES + 1).unwrap_or(u32::MAX)
}

/// Of all that may be on its way to the disk.
fn units_behind() -> u32 {
    let system = rustix::system::sysinfo();
    let memory = system.totalram.saturating_mul(u64::from(system.mem_unit));
    let bytes = (memory / BEHIND_OF_MEMORY).clamp(*BEHIND_BYTES.start(), *BEHIND_BYTES.end());
    (bytes / UNIT_BYTES) as u32
}

/// A question whether a file is still the same.
struct Confirming {
    jobs: mpsc::Sender<Job>,
    under_way: UnderWay,
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
            let asked_at = Timestamp::now();
            match self.still_the_same().await {
                Ok(Some(attr)) => self.pass_on(pieces, attr, asked_at),
                Ok(None) => self.filling.has_changed(&self.file, &self.tally),
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

    fn pass_on(&self, pieces: Vec<Piece>, attr: base::Attr, seen_at: Timestamp) {
        let filling = self.filling.clone();
        let work = Work::begin(&self.under_way, Some(&filling));
        let file = Arc::downgrade(&self.file);
        let fetched = Fetched { filling, attr, seen_at, file, work };
        // The threads are there as long as anybody can send.
        let _ = self.jobs.send(Job::Write(pieces, fetched));
    }
}
