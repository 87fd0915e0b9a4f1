//! What the threads do that write behind the readers' backs: contents of which something has come,
//! and listings.
//!
//! One thread writes what comes, in its order, when nobody reads or too much waits
//! ([`lull`](super::lull)); a second one completes what is large, which means to read and to hash
//! all of it. Both stand back when others want the processor.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak, mpsc};
use std::time::Instant;

use base::{Data, RemotePath, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::changed_at::ChangedAt;
use super::changes::{Changes, Tick};
use super::files::File;
use super::filling::{Filling, Tally};
use super::fresh::{Fresh, Note};
use super::listing::same_entries;
use super::lull::Lull;
use crate::store::later::stand_back;
use crate::under_way::UnderWay;
use crate::{KnownFile, Listing, SourceId, Store, Validator};

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
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) data: Data,
    pub(crate) room: OwnedSemaphorePermit,
}

/// Something to be written.
pub(crate) enum Job {
    /// Bytes that are of the content.
    Write(Vec<Piece>, Fetched),
    /// A listing.
    List(Arc<Note>, Work),
}

/// A content of which something has come.
pub(crate) struct Fetched {
    pub(crate) filling: Arc<Filling>,
    /// What the server said of the file when it was asked last, and when.
    pub(crate) attr: base::Attr,
    pub(crate) seen_at: Timestamp,
    pub(crate) file: Weak<File>,
    pub(crate) work: Work,
}

impl Job {
    /// Since when it waits.
    fn since(&self) -> Instant {
        let (Job::Write(_, Fetched { work, .. }) | Job::List(_, work)) = self;
        work.since
    }
}

impl Fetched {
    /// Whoever is told that the work is over finds nobody holding the content any more.
    fn over(self) {
        drop(self.filling);
        drop(self.work);
    }
}

/// Something that is on its way to the store, counted for all and, if it is of one, for its content.
pub(crate) struct Work {
    counts: [Option<UnderWay>; 2],
    since: Instant,
}

impl Work {
    pub(crate) fn begin(all: &UnderWay, filling: Option<&Filling>) -> Work {
        let counts =
            [Some(all.clone()), filling.map(|filling| filling.partial.under_way().clone())];
        counts.iter().flatten().for_each(UnderWay::begin);
        Work { counts, since: Instant::now() }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.counts.iter().flatten().for_each(UnderWay::end);
    }
}

/// Whether the thread that writes may.
pub(crate) struct Holding {
    pub(crate) lull: Arc<Lull>,
    /// For what comes.
    pub(crate) room: Arc<Semaphore>,
    /// With less room than this, too much waits.
    pub(crate) least: usize,
    /// All that is on its way.
    pub(crate) under_way: UnderWay,
    /// With more than this, too much waits.
    pub(crate) most: u64,
}

impl Holding {
    /// Returns when the job is to be done.
    fn wait(&self, job: &Job) {
        let is_much =
            || self.room.available_permits() < self.least || self.under_way.count() > self.most;
        self.lull.wait(job.since(), is_much);
    }
}

/// What the threads do.
pub(crate) struct Writer {
    recorder: Recorder,
    tally: Arc<Tally>,
    /// Contents that are in the store, and are not recorded yet.
    made: Vec<Made>,
}

/// A content that was completed, or was before.
struct Made {
    fetched: Fetched,
    known: KnownFile,
    is_new: bool,
}

impl Writer {
    pub(crate) fn new(recorder: Recorder, tally: Arc<Tally>) -> Writer {
        Writer { recorder, tally, made: Vec::new() }
    }

    /// Starts the threads, which end when nobody can send jobs any more.
    pub(crate) fn start(self, holding: Holding) -> std::io::Result<mpsc::Sender<Job>> {
        let (jobs, work) = mpsc::channel();
        let (large, waiting) = mpsc::sync_channel(MAX_WAITING);
        let other = Writer::new(self.recorder.clone(), self.tally.clone());
        let lull = holding.lull.clone();
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        thread("cache-finish").spawn(move || {
            stand_back(NICENESS);
            other.finish_all(&waiting, &lull);
        })?;
        thread("cache-write").spawn(move || {
            stand_back(NICENESS);
            self.take_all(&work, &large, &holding);
        })?;
        Ok(jobs)
    }

    /// Takes what comes. What is completed is recorded when nothing more waits: files that are read
    /// one after the other are mostly of one directory, whose records are added to by one write.
    fn take_all(
        mut self,
        work: &mpsc::Receiver<Job>,
        large: &mpsc::SyncSender<Fetched>,
        holding: &Holding,
    ) {
        while let Ok(job) = work.recv() {
            holding.wait(&job);
            // Not for as long as somebody reads: what is made is waited for.
            for job in std::iter::once(job).chain(work.try_iter().take(MAX_UNRECORDED)) {
                // Another mount may be changing by now what one that has ended has read.
                if !holding.lull.is_over() {
                    self.take(job, large);
                }
            }
            self.record();
        }
    }

    /// Completes what is large.
    fn finish_all(mut self, waiting: &mpsc::Receiver<Fetched>, lull: &Lull) {
        while let Ok(fetched) = waiting.recv() {
            if !lull.is_over() {
                self.finish(fetched);
                self.record();
            }
        }
    }

    fn take(&mut self, job: Job, large: &mpsc::SyncSender<Fetched>) {
        match job {
            Job::List(note, work) => {
                // What was read before is not to be the last word on its name.
                self.record();
                self.recorder.note(&note);
                drop(work);
            }
            Job::Write(_, fetched) if fetched.filling.of.is_touched() => {
                fetched.filling.partial.abandon();
                fetched.over();
            }
            Job::Write(pieces, fetched) => {
                let partial = &fetched.filling.partial;
                for Piece { offset, data, room } in pieces {
                    let mut at = offset;
                    for bytes in data.pieces() {
                        partial.write(at, bytes);
                        at += bytes.len() as u64;
                    }
                    drop(room);
                }
                if !partial.is_whole() {
                    return fetched.over();
                }
                if fetched.attr.size <= SMALL_BYTES {
                    return self.finish(fetched);
                }
                if let Err(back) = large.try_send(fetched) {
                    let (mpsc::TrySendError::Full(it) | mpsc::TrySendError::Disconnected(it)) =
                        back;
                    self.finish(it);
                }
            }
        }
    }

    fn finish(&mut self, fetched: Fetched) {
        let Fetched { filling, attr, seen_at, .. } = &fetched;
        if filling.of.is_touched() {
            filling.partial.abandon();
            return fetched.over();
        }
        match filling.partial.finish_unrecorded(attr, filling.racy, *seen_at) {
            Ok((known, is_new)) => self.made.push(Made { fetched, known, is_new }),
            Err(error) => {
                tracing::debug!(%error, "a fetched content was not completed");
                fetched.over();
            }
        }
    }

    /// Whether another state of the file was recorded since it was read.
    fn is_overtaken(&self, made: &Made) -> bool {
        let of = &made.fetched.filling.of;
        self.recorder.store.attr(&of.source, &of.path).is_some_and(|known| {
            known.seen_at > made.fetched.seen_at
                && Validator::of(&known.attr) != made.known.validator()
        })
    }

    /// Records what was completed.
    fn record(&mut self) {
        let counts = |made: &&Made| {
            let of = &made.fetched.filling.of;
            made.is_new && !of.is_touched() && !self.is_overtaken(made)
        };
        let files: Vec<_> = self.made.iter().filter(counts).map(Made::named).collect();
        self.recorder.store.record_files(&files);
        for Made { fetched, known, .. } in self.made.drain(..) {
            let filling = &fetched.filling;
            if filling.of.is_touched() {
                // A change began meanwhile, and may have forgotten it too early.
                filling.partial.abandon();
                self.recorder.store.forget(&filling.of.source, &filling.of.path);
            } else {
                self.tally.completed.fetch_add(1, Ordering::Relaxed);
                let file = fetched.file.upgrade();
                if let Some((file, object)) =
                    file.and_then(|file| Some((file, self.recorder.store.object(&known.digest)?)))
                {
                    file.is_whole(filling, object);
                }
            }
            fetched.over();
        }
    }
}

impl Made {
    /// The file, and its content.
    fn named(&self) -> (SourceId, RemotePath, KnownFile) {
        let of = &self.fetched.filling.of;
        (of.source, of.path.clone(), self.known)
    }
}

/// What writes listings down.
#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) store: Store,
    pub(crate) fresh: Fresh,
    pub(crate) changes: Changes,
    pub(crate) changed_at: ChangedAt,
}

impl Recorder {
    /// One that waits, unless it was forgotten meanwhile.
    pub(crate) fn note(&self, note: &Arc<Note>) {
        if !self.fresh.has(note) {
            return;
        }
        let Note { source, path, tick, listing, .. } = &**note;
        self.listing(source, path, *tick, listing);
        if !self.fresh.has(note) {
            // It was forgotten meanwhile, or overtaken by what was told later.
            self.store.forget_listing(source, path);
        }
        self.fresh.written(note);
    }

    /// One that was asked for at `tick`, if it says anything new.
    pub(crate) fn listing(
        &self,
        source: &SourceId,
        path: &RemotePath,
        tick: Tick,
        listing: &Listing,
    ) {
        let says_the_same = |known: Listing| {
            self.changed_at.lets_count(path, known.seen_at)
                && same_entries(&known.entries, &listing.entries)
        };
        if self.store.directory(source, path).is_some_and(says_the_same) {
            return;
        }
        self.store.record_directory(source, path, listing);
        // A change may have begun meanwhile, and have forgotten it too early.
        if !self.changes.listing_untouched(path, tick) {
            self.store.forget_listing(source, path);
        }
    }
}
