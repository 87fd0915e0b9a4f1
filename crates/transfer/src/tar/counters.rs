//! What a stream has done so far, entry by entry.

use std::sync::Arc;

use base::{Attr, Errno, FileKind, RemotePath, Timestamp};

use crate::events::{Entry, Events, Progress};
use crate::outcome::{Counts, Doing, PROBLEMS_KEPT, Problem};
use crate::sink::{Finished, Sink};
use crate::step::Action;

/// Files that get their time when tar has succeeded; further ones are missed. Some 25 MB.
const IN_DOUBT_LIMIT: usize = 1 << 18;

/// The counts of a stream, and their observers.
pub(super) struct Counters {
    pub counts: Counts,
    /// Entries, or parts of the tree, that a run has to check.
    pub missed: u64,
    /// Owners could not be set.
    pub owners_refused: bool,
    /// What a run would not find, up to a number, and all of it.
    pub problems: Vec<Problem>,
    pub problems_total: u64,
    /// The file that is being sent, with its attributes at the source.
    pub sending: Option<(RemotePath, Attr)>,
    /// Files whose content is in doubt until tar has succeeded: paths below the sink's root, and the
    /// times that they get then.
    in_doubt: Vec<(RemotePath, Timestamp)>,
    progress: Arc<Progress>,
    events: Arc<dyn Events>,
}

impl Counters {
    pub(super) fn new(progress: Arc<Progress>, events: Arc<dyn Events>) -> Counters {
        let (counts, in_doubt) = (Counts::default(), Vec::new());
        Counters {
            counts,
            missed: 0,
            owners_refused: false,
            problems: Vec::new(),
            problems_total: 0,
            sending: None,
            in_doubt,
            progress,
            events,
        }
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
        self.counts.bytes += bytes;
        Progress::add(&self.progress.files_planned, 1);
        Progress::add(&self.progress.bytes_planned, bytes);
    }

    /// Counts an entry for which `action` has succeeded.
    pub(super) fn done(&mut self, name: &RemotePath, kind: FileKind, bytes: u64, action: &Action) {
        if kind == FileKind::Regular && matches!(action, Action::Copy(_)) {
            Progress::add(&self.progress.files_done, 1);
        }
        self.counts.entries += 1;
        self.counts.add(action, bytes, 0);
        Progress::add(&self.progress.entries, 1);
        self.events.entry(Entry { name, kind, bytes, action, problem: None });
    }

    /// Counts an entry that could not be copied. The run that tries it again reports the problem.
    pub(super) fn missed(&mut self, name: &RemotePath, doing: Doing, errno: Errno) {
        tracing::debug!("{name}: {doing}: {errno}");
        self.missed += 1;
    }

    /// Notes a file whose content is in doubt.
    pub(super) fn doubted(&mut self, path: &RemotePath, mtime: Timestamp) {
        match self.in_doubt.len() < IN_DOUBT_LIMIT {
            true => self.in_doubt.push((path.clone(), mtime)),
            false => self.missed += 1,
        }
    }

    /// Gives the files in doubt their times: tar has succeeded. On a thread that may block.
    pub(super) fn date(&mut self, sink: &Sink) {
        for (path, mtime) in std::mem::take(&mut self.in_doubt) {
            if let Err(errno) = sink.set_mtime(&path, mtime) {
                self.missed(&path, Doing::SetAttr, errno);
            }
        }
    }

    /// Notes attributes that the system refused. Extended ones are a problem here, since a run does not
    /// compare them.
    pub(super) fn refused(&mut self, name: &RemotePath, finished: Finished) {
        self.owners_refused |= finished.owner_refused;
        if finished.xattrs_refused > 0 {
            self.problems_total += 1;
            if self.problems.len() < PROBLEMS_KEPT {
                self.problems.push(Problem::refused_xattrs(name, finished.xattrs_refused));
            }
        }
    }
}
