//! What a program can observe of a run in progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::{FileKind, RemotePath};

use crate::outcome::Problem;
use crate::step::Action;

/// Counters that only grow. Cheap enough to update for each piece of a file.
#[derive(Debug, Default)]
pub struct Progress {
    /// Entries of the sources that were compared.
    pub entries: AtomicU64,
    /// Files to copy that are known so far.
    pub files_planned: AtomicU64,
    /// Bytes of these files.
    pub bytes_planned: AtomicU64,
    /// All sources were compared: the planned counts are final.
    pub planned: AtomicBool,
    /// Files that were copied, or failed.
    pub files_done: AtomicU64,
    /// Bytes that were copied, by this run or an earlier one.
    pub bytes_done: AtomicU64,
}

impl Progress {
    pub(crate) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    /// Notes that bytes of a file were counted as done, and are copied again.
    pub(crate) fn again(&self, bytes: u64) {
        Progress::add(&self.bytes_planned, bytes);
    }

    /// Adds to [`Progress::bytes_done`]. For engines that copy files themselves.
    pub fn bytes(&self, more: u64) {
        Progress::add(&self.bytes_done, more);
    }
}

/// The result of one entry.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Relative to the target.
    pub name: &'a RemotePath,
    /// Its kind.
    pub kind: FileKind,
    /// Bytes that were copied, or would be (`dry_run`).
    pub bytes: u64,
    /// What was done, or would be (`dry_run`).
    pub action: &'a Action,
    /// Why it failed.
    pub problem: Option<&'a Problem>,
}

/// Observes each entry and each problem. Called from several threads, and must not block.
pub trait Events: Send + Sync + 'static {
    /// An entry has its result.
    fn entry(&self, entry: Entry<'_>);

    /// A problem that is not the result of an entry: of a source, of a directory that cannot be
    /// listed, of an entry that cannot be inspected.
    fn problem(&self, _problem: &Problem) {}
}

/// Ignores all entries.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Events for Silent {
    fn entry(&self, _entry: Entry<'_>) {}
}
