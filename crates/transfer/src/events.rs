//! What is seen from outside while a run goes on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::{FileKind, RemotePath};

use crate::outcome::Problem;
use crate::step::Action;

/// Counters that only grow, cheap enough for each piece of a file.
#[derive(Debug, Default)]
pub struct Progress {
    /// Entries of the sources that were compared.
    pub entries: AtomicU64,
    /// Files to be copied, as far as they are known.
    pub files_planned: AtomicU64,
    /// Bytes of them.
    pub bytes_planned: AtomicU64,
    /// All of the sources was compared: what is planned is all.
    pub planned: AtomicBool,
    /// Files that were copied, or failed.
    pub files_done: AtomicU64,
    /// Bytes that were copied, or need not be since an earlier run has.
    pub bytes_done: AtomicU64,
}

impl Progress {
    pub(crate) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    /// Adds to [`Progress::bytes_done`]; for an engine that copies files by itself.
    pub fn bytes(&self, more: u64) {
        Progress::add(&self.bytes_done, more);
    }
}

/// What became of one entry.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Relative to the target.
    pub name: &'a RemotePath,
    /// What it is.
    pub kind: FileKind,
    /// Bytes that were copied, or would be.
    pub bytes: u64,
    /// What was done, or would be.
    pub action: &'a Action,
    /// Why it failed.
    pub problem: Option<&'a Problem>,
}

/// Who wants to see each entry. Called from several threads, and must not block.
pub trait Events: Send + Sync + 'static {
    /// An entry was dealt with, or would be (`dry_run`).
    fn entry(&self, entry: Entry<'_>);
}

/// Nobody does.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Events for Silent {
    fn entry(&self, _entry: Entry<'_>) {}
}
