//! The background thread that writes fetched contents and listings to the store.
//!
//! It runs the jobs in their order, when reads pause or too much is queued
//! ([`idle_gate`](super::idle_gate)), with a lower priority than readers.

use std::sync::{Arc, Weak, mpsc};
use std::time::Instant;

use base::{Data, RemotePath};
use tokio::sync::OwnedSemaphorePermit;

use super::changes::{Changes, Generation};
use super::files::File;
use super::pending_listings::{PendingListing, PendingListings};
use super::write_behind::{Fetch, Queue};
use crate::partial::InFlight;
use crate::store::deferred::lower_priority;
use crate::{KnownFile, Listing, SourceId, Store, Validator};

/// Bound on contents that are completed and not recorded: about as many as a directory has files.
const MAX_UNRECORDED: usize = 64;

/// The nice value of the thread.
const NICE_INCREMENT: i32 = 10;

/// Bytes that were read, with their share of the bound.
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) data: Data,
    pub(crate) space: OwnedSemaphorePermit,
}

/// A job of the writing thread.
pub(crate) enum Job {
    /// Verified bytes of a content.
    Write(Vec<Piece>, Fetched),
    /// A listing.
    List(Arc<PendingListing>, PendingWork),
}

/// A content of which bytes were fetched. Its parts are dropped in their order, so that a caller
/// that waits for the end of the job finds the content released.
pub(crate) struct Fetched {
    pub(crate) fetch: Arc<Fetch>,
    /// The server's last attributes of the file.
    pub(crate) attr: base::Attr,
    pub(crate) file: Weak<File>,
    pub(crate) work: PendingWork,
}

impl Job {
    /// When it was queued.
    fn since(&self) -> Instant {
        let (Job::Write(_, Fetched { work, .. }) | Job::List(_, work)) = self;
        work.since
    }
}

/// A job in flight to the store, counted in all jobs and, if it has one, for its content.
pub(crate) struct PendingWork {
    counts: [Option<InFlight>; 2],
    since: Instant,
}

impl PendingWork {
    pub(crate) fn begin(all: &InFlight, fetch: Option<&Fetch>) -> PendingWork {
        let counts = [Some(all.clone()), fetch.map(|fetch| fetch.partial.in_flight().clone())];
        counts.iter().flatten().for_each(|count| count.send_modify(|count| *count += 1));
        PendingWork { counts, since: Instant::now() }
    }
}

impl Drop for PendingWork {
    fn drop(&mut self) {
        self.counts.iter().flatten().for_each(|count| count.send_modify(|count| *count -= 1));
    }
}

/// The state of the thread.
pub(crate) struct Writer {
    recorder: Recorder,
    queue: Arc<Queue>,
    /// Contents in the store that are not recorded yet.
    completed: Vec<Completed>,
}

/// A content that was completed now, or before.
struct Completed {
    fetched: Fetched,
    known: KnownFile,
    is_new: bool,
}

impl Writer {
    pub(crate) fn new(recorder: Recorder, queue: Arc<Queue>) -> Writer {
        Writer { recorder, queue, completed: Vec::new() }
    }

    /// Starts the thread, which ends when all senders are dropped.
    pub(crate) fn start(self) -> std::io::Result<mpsc::Sender<Job>> {
        let (jobs, work) = mpsc::channel();
        std::thread::Builder::new().name("cache-write".to_owned()).spawn(move || {
            lower_priority(NICE_INCREMENT);
            self.run(&work);
        })?;
        Ok(jobs)
    }

    /// Runs the jobs. Completed contents are recorded when the queue is empty: files that are read
    /// one after the other are mostly in one directory, whose records are appended by one write.
    fn run(mut self, work: &mpsc::Receiver<Job>) {
        while let Ok(job) = work.recv() {
            self.queue.idle_gate.wait(job.since(), || self.queue.is_over_limit());
            // Bounded also while reads go on, since callers wait for completed contents.
            for job in std::iter::once(job).chain(work.try_iter().take(MAX_UNRECORDED)) {
                // After the end of this mount another one may change what it has read.
                if !self.queue.idle_gate.is_closed() {
                    self.take(job);
                }
            }
            self.record();
        }
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::List(pending, work) => {
                // Records of contents read before must not come after the listing.
                self.record();
                self.recorder.write_pending(&pending);
                drop(work);
            }
            Job::Write(_, fetched) if fetched.fetch.target.is_changed() => {
                fetched.fetch.partial.abandon();
            }
            Job::Write(pieces, fetched) => {
                let partial = &fetched.fetch.partial;
                for Piece { offset, data, space } in pieces {
                    let mut at = offset;
                    for bytes in data.pieces() {
                        partial.write(at, bytes);
                        at += bytes.len() as u64;
                    }
                    drop(space);
                }
                if partial.is_whole() {
                    self.finish(fetched);
                }
            }
        }
    }

    fn finish(&mut self, fetched: Fetched) {
        let Fetched { fetch, attr, .. } = &fetched;
        if fetch.target.is_changed() {
            return fetch.partial.abandon();
        }
        // The handle is of the file that had the name when it was opened, and perhaps no later.
        let opened_at = fetch.target.stamp.time;
        match fetch.partial.finish_unrecorded(attr, fetch.racy, opened_at) {
            Ok((known, is_new)) => self.completed.push(Completed { fetched, known, is_new }),
            Err(error) => tracing::debug!(%error, "a fetched content was not completed"),
        }
    }

    /// Whether another state of the file was recorded since it was read.
    fn is_superseded(&self, completed: &Completed) -> bool {
        let target = &completed.fetched.fetch.target;
        self.recorder.store.attr(&target.source, &target.path).is_some_and(|known| {
            known.seen_at > target.stamp.time
                && Validator::of(&known.attr) != completed.known.validator()
        })
    }

    /// Records the completed contents.
    fn record(&mut self) {
        let counts = |completed: &&Completed| {
            let target = &completed.fetched.fetch.target;
            completed.is_new && !target.is_changed() && !self.is_superseded(completed)
        };
        let named = |completed: &Completed| {
            let target = &completed.fetched.fetch.target;
            (target.source, target.path.clone(), completed.known)
        };
        let files: Vec<_> = self.completed.iter().filter(counts).map(named).collect();
        self.recorder.store.record_files(&files);
        for Completed { fetched, known, .. } in self.completed.drain(..) {
            let fetch = &fetched.fetch;
            if fetch.target.is_changed() {
                // A change began meanwhile, and may have tried to forget it before it was recorded.
                fetch.partial.abandon();
                self.recorder.store.forget(&fetch.target.source, &fetch.target.path);
            } else {
                self.queue.counters.add(|it| it.completed += 1);
                let file = fetched.file.upgrade();
                if let Some((file, object)) =
                    file.and_then(|file| Some((file, self.recorder.store.object(&known.digest)?)))
                {
                    file.complete(fetch, object);
                }
            }
        }
    }
}

/// Writes listings to the store.
#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) store: Store,
    pub(crate) pending_listings: PendingListings,
    pub(crate) changes: Changes,
}

impl Recorder {
    /// Writes a pending listing, unless it was forgotten meanwhile.
    pub(crate) fn write_pending(&self, pending: &Arc<PendingListing>) {
        if !self.pending_listings.is_valid(pending) {
            return;
        }
        let PendingListing { source, path, generation, listing, .. } = &**pending;
        self.write_listing(source, path, *generation, listing);
        if !self.pending_listings.is_valid(pending) {
            // It was forgotten meanwhile, or replaced by a later one.
            self.store.forget_listing(source, path);
        }
        self.pending_listings.remove_written(pending);
    }

    /// Writes a listing that was requested at `generation`, if it contains anything new.
    pub(crate) fn write_listing(
        &self,
        source: &SourceId,
        path: &RemotePath,
        generation: Generation,
        listing: &Listing,
    ) {
        let says_the_same = |known: Listing| {
            self.changes.is_current(path, known.seen_at) && known.has_entries_of(listing)
        };
        if self.store.directory(source, path).is_some_and(says_the_same)
            && !self.store.contradicts_listing(source, path)
        {
            return;
        }
        self.store.record_directory(source, path, listing);
        // A change may have begun meanwhile, and have tried to forget it before it was recorded.
        if !self.changes.is_listing_unchanged(path, generation) {
            self.store.forget_listing(source, path);
        }
    }
}
