//! What a stream has done so far, entry by entry.

use std::sync::Arc;

use base::{Attr, Errno, FileKind, RemotePath, Timestamp};

use crate::events::{Entry, Events, Progress};
use crate::outcome::{Doing, Outcome, Problem};
use crate::sink::{Finished, Sink};
use crate::step::Action;

use super::receive::Confirmed;

/// Bound on the unconfirmed files, some 25 MB. Further ones are counted as missed.
const UNCONFIRMED_LIMIT: usize = 1 << 18;

/// The counts of a stream, and their observers.
pub(super) struct Counters {
    /// Counts, problems that a run would not find, and whether owners could not be set.
    pub outcome: Outcome,
    /// Entries, or parts of the tree, that a run has to check.
    pub missed: u64,
    /// The file that is being sent, with its attributes at the source.
    pub sending: Option<(RemotePath, Attr)>,
    /// Files whose content is unconfirmed until tar has ended: paths below the sink's root, and
    /// the mtimes that they get then.
    unconfirmed: Vec<(RemotePath, Timestamp)>,
    progress: Arc<Progress>,
    events: Arc<dyn Events>,
}

impl Counters {
    pub(super) fn new(progress: Arc<Progress>, events: Arc<dyn Events>) -> Counters {
        let (outcome, unconfirmed) = (Outcome::default(), Vec::new());
        Counters { outcome, missed: 0, sending: None, unconfirmed, progress, events }
    }

    /// The counters of the program.
    pub(super) fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Counts bytes of a file that were transferred.
    pub(super) fn bytes(&self, bytes: u64) {
        self.progress.bytes(bytes);
    }

    /// Counts a file of this size when its transfer starts.
    pub(super) fn begin_file(&mut self, bytes: u64) {
        self.outcome.counts.bytes += bytes;
        Progress::add(&self.progress.files_planned, 1);
        Progress::add(&self.progress.bytes_planned, bytes);
    }

    /// Counts an entry for which `action` has succeeded.
    pub(super) fn done(&mut self, name: &RemotePath, kind: FileKind, bytes: u64, action: &Action) {
        if kind == FileKind::Regular && matches!(action, Action::Copy(_)) {
            Progress::add(&self.progress.files_done, 1);
        }
        self.outcome.counts.entries += 1;
        self.outcome.counts.add(action, bytes, 0);
        Progress::add(&self.progress.entries, 1);
        self.events.entry(Entry { name, kind, bytes, action, problem: None });
    }

    /// Counts an entry that could not be copied. The run that retries it reports the problem.
    pub(super) fn missed(&mut self, name: &RemotePath, doing: Doing, errno: Errno) {
        tracing::debug!("{name}: {doing}: {errno}");
        self.missed += 1;
    }

    /// Notes a file whose content is unconfirmed.
    pub(super) fn note_unconfirmed(&mut self, path: &RemotePath, mtime: Timestamp) {
        match self.unconfirmed.len() < UNCONFIRMED_LIMIT {
            true => self.unconfirmed.push((path.clone(), mtime)),
            false => self.missed += 1,
        }
    }

    /// Sets the mtimes of the files that are confirmed. On a thread that may block.
    pub(super) fn set_mtimes(&mut self, sink: &Sink, confirmed: Confirmed) {
        for (path, mtime) in std::mem::take(&mut self.unconfirmed) {
            if confirmed.includes(mtime)
                && let Err(errno) = sink.set_mtime(&path, mtime)
            {
                self.missed(&path, Doing::SetAttr, errno);
            }
        }
    }

    /// Notes attributes that the system refused. Refused extended attributes are a problem of this
    /// stream, since a run does not compare them.
    pub(super) fn refused(&mut self, name: &RemotePath, finished: Finished) {
        self.outcome.owners_refused |= finished.owner_refused;
        if let Err(problem) = Problem::of_refused_xattrs(name, finished.xattrs_refused) {
            self.events.problem(&problem);
            self.outcome.note_problem(&problem);
        }
    }
}
