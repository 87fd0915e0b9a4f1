//! What all parts of a run share, and the books.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use base::{AttrChange, Errno, FileKind, RemotePath, Result};
use tokio::sync::watch;

use super::Copied;
use crate::deletion::Late;
use crate::dir::Last;
use crate::events::{Entry, Events, Progress};
use crate::flow::{Flow, Side};
use crate::job::{Job, Source};
use crate::outcome::{Counts, Outcome, PROBLEMS_KEPT, Problem, Stop};
use crate::sink::Sink;
use crate::step::{Action, Step};

/// What all parts of a run share.
pub(crate) struct Core {
    pub(crate) job: Job,
    pub(crate) events: Arc<dyn Events>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) flow: Flow,
    /// The target by system calls, where it is a directory of this machine.
    pub(crate) sink: Option<Arc<Sink>>,
    /// The sources by system calls, where they are directories of this machine.
    pub(crate) here: Vec<Option<Arc<Sink>>>,
    pub(crate) owners_refused: AtomicBool,
    pub(crate) late: Mutex<Late>,
    tally: Mutex<Tally>,
    stop: watch::Sender<Option<Stop>>,
    begun: Instant,
}

#[derive(Default)]
struct Tally {
    counts: Counts,
    problems: Vec<Problem>,
    problems_total: u64,
    withheld: u64,
}

/// Whether nothing can go on after this.
fn is_lost(errno: Errno) -> bool {
    matches!(errno, Errno::EHOSTDOWN | Errno::ETIMEDOUT)
}

impl Core {
    pub(crate) fn new(job: Job, events: Arc<dyn Events>) -> Arc<Core> {
        let mut ends: Vec<_> =
            job.sources.iter().map(|source| source.tree.remote.clone()).collect();
        ends.push(job.target.remote.clone());
        let sink = job.target.local.as_ref().and_then(|root| Sink::open(root).ok());
        let open = |source: &Source| source.tree.local.as_ref().and_then(|it| Sink::open(it).ok());
        let here = job.sources.iter().map(|source| open(source).map(Arc::new)).collect();
        Arc::new(Core {
            here,
            flow: Flow::new(ends),
            sink: sink.map(Arc::new),
            job,
            events,
            progress: Arc::default(),
            owners_refused: AtomicBool::new(false),
            late: Mutex::default(),
            tally: Mutex::default(),
            stop: watch::Sender::new(None),
            begun: Instant::now(),
        })
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the run; the first reason stays.
    pub(crate) fn stop(&self, why: Stop) {
        self.stop.send_if_modified(|stop| match stop {
            None => {
                *stop = Some(why);
                true
            }
            Some(_) => false,
        });
    }

    /// Why the run is to end, if it is.
    pub(crate) fn stop_reason(&self) -> Option<Stop> {
        *self.stop.borrow()
    }

    /// Returns when the run is to end.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        // The sender is in `self`.
        let _ = stop.wait_for(Option::is_some).await;
    }

    /// Whether anything has failed.
    pub(crate) fn has_problems(&self) -> bool {
        self.tally().problems_total > 0
    }

    /// An entry of the sources was compared.
    pub(crate) fn planned(&self, step: &Step) {
        Progress::add(&self.progress.entries, 1);
        if matches!(step.action, Action::Copy(_)) {
            Progress::add(&self.progress.files_planned, 1);
            Progress::add(&self.progress.bytes_planned, step.bytes());
        }
        let mut tally = self.tally();
        tally.counts.entries += 1;
        if step.attr.kind == FileKind::Regular {
            tally.counts.bytes += step.attr.size;
        }
    }

    /// Notes a problem. One that ends the run is not an entry's.
    pub(crate) fn problem(&self, problem: &Problem) {
        if let Some(errno) = problem.errno()
            && is_lost(errno)
        {
            return self.stop(Stop::Lost(errno));
        }
        let mut tally = self.tally();
        tally.problems_total += 1;
        if tally.problems.len() < PROBLEMS_KEPT {
            tally.problems.push(problem.clone());
        }
    }

    /// Notes how a step ended. Of a directory only the event of a failure is not left for later.
    pub(crate) fn ended(&self, step: &Step, end: std::result::Result<Copied, Problem>) {
        if let Some(names) = &step.names
            && names.first == step.name
            && end.is_ok()
        {
            names.done();
        }
        if step.own.is_some() {
            return;
        }
        if matches!(step.action, Action::Copy(_)) {
            Progress::add(&self.progress.files_done, 1);
        }
        if self.job.options.dry_run {
            Progress::add(&self.progress.bytes_done, step.bytes());
        }
        self.entry_ended(&step.name, step.attr.kind, &step.action, end);
    }

    /// Takes back that a step has ended well with these bytes: it has to be done again.
    pub(crate) fn take_back(&self, action: &Action, bytes: u64) {
        let counts = &mut self.tally().counts;
        match action {
            Action::Copy(_) => {
                counts.files_copied -= 1;
                counts.bytes_copied -= bytes;
            }
            Action::MakeLink(_) => counts.links_made -= 1,
            Action::HardLink { .. } => counts.names_made -= 1,
            _ => {}
        }
    }

    /// Notes how a directory ended.
    pub(crate) fn dir_ended(
        &self,
        name: &RemotePath,
        last: &Last,
        end: std::result::Result<(), Problem>,
    ) {
        let end = end.map(|()| Copied::default());
        self.entry_ended(name, FileKind::Directory, &last.action, end);
    }

    fn entry_ended(
        &self,
        name: &RemotePath,
        kind: FileKind,
        action: &Action,
        end: std::result::Result<Copied, Problem>,
    ) {
        let problem = end.as_ref().err();
        let bytes = end.as_ref().map_or(0, |copied| copied.bytes);
        if let Some(problem) = problem {
            self.problem(problem);
            if problem.errno().is_some_and(is_lost) {
                return;
            }
        }
        {
            let counts = &mut self.tally().counts;
            match (&end, action) {
                (Err(_), _) => counts.failed += 1,
                (Ok(_), Action::MakeDir) => counts.dirs_made += 1,
                (Ok(copied), Action::Copy(_)) => {
                    counts.files_copied += 1;
                    counts.bytes_copied += copied.bytes;
                    counts.bytes_resumed += copied.resumed;
                }
                (Ok(_), Action::MakeLink(_)) => counts.links_made += 1,
                (Ok(_), Action::HardLink { .. }) => counts.names_made += 1,
                (Ok(_), Action::SetAttr(_)) => counts.attrs_set += 1,
                (Ok(_), Action::Nothing) => counts.unchanged += 1,
                (Ok(_), Action::Skip(_)) => counts.skipped += 1,
                (Ok(_), Action::Delete) => counts.deleted += 1,
            }
        }
        self.events.entry(Entry { name, kind, bytes, action, problem });
    }

    /// An entry of the target was deleted, or would be, or could not be.
    pub(crate) fn deleted(
        &self,
        name: &RemotePath,
        kind: FileKind,
        end: std::result::Result<(), &Problem>,
    ) {
        match end {
            Ok(()) => self.tally().counts.deleted += 1,
            Err(problem) => self.problem(problem),
        }
        let (action, problem) = (&Action::Delete, end.err());
        self.events.entry(Entry { name, kind, bytes: 0, action, problem });
    }

    /// So many deletions were planned and not done.
    pub(crate) fn withheld(&self, deletions: u64) {
        self.tally().withheld += deletions;
    }

    /// Owners are refused: from now on they are left.
    pub(crate) fn refuse_owners(&self) {
        self.owners_refused.store(true, Ordering::Relaxed);
    }

    /// Sets attributes by `set`. Where owners are refused, they are left, from now on for all.
    pub(crate) async fn with_owners<F: Future<Output = Result<()>>>(
        &self,
        mut change: AttrChange,
        set: impl Fn(AttrChange) -> F,
    ) -> Result<()> {
        if self.owners_refused.load(Ordering::Relaxed) {
            (change.uid, change.gid) = (None, None);
        }
        let set_ids = change.perm.filter(|perm| perm & 0o6000 != 0);
        let owned = change.uid.is_some() || change.gid.is_some();
        match set(change).await {
            // A server may have set the mode first, and the owner takes these bits from it.
            Ok(()) if owned && set_ids.is_some() => {
                set(AttrChange { perm: set_ids, ..AttrChange::default() }).await
            }
            Err(Errno::EPERM | Errno::EACCES | Errno::EINVAL) if owned => {
                (change.uid, change.gid) = (None, None);
                let set = set(change).await;
                // Only then was it the owners that were refused.
                if set.is_ok() {
                    self.refuse_owners();
                }
                set
            }
            set => set,
        }
    }

    /// How it went so far.
    pub(crate) fn outcome(&self) -> Outcome {
        let mut tally = self.tally();
        Outcome {
            counts: tally.counts,
            problems: std::mem::take(&mut tally.problems),
            problems_total: tally.problems_total,
            stopped: self.stop_reason(),
            deletions_withheld: tally.withheld,
            owners_refused: self.owners_refused.load(Ordering::Relaxed),
            elapsed: self.begun.elapsed(),
            waited_for_source: self.flow.waited_for(Side::Source),
            waited_for_target: self.flow.waited_for(Side::Target),
        }
    }
}
