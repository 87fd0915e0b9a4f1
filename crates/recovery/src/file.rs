//! Open files: our handles, and what the handles of one path have in common.
//!
//! A [`OpenFile`] is a file as we know it: its name now, what it must look like, its log. It is in one
//! of these phases:
//!
//! - `Open`: its handles below are good, as far as is known. → `Lost` by whoever finds one that is
//!   not ([`OpenFile::lost`]).
//! - `Lost`: none of its handles below may be used. → `Reopening` by the first who needs one
//!   (`recover`).
//! - `Reopening`: one task opens it again, compares it, sends the log. → `Open`, `Lost` (the connection
//!   was lost once more, or another error), or `Dead`.
//! - `Dead`: it is not the file any more. For ever.
//!
//! It is in the table from before the first open is sent, so that all handles of a file share it
//! (`same`). Until an open has been answered nothing is known of it.
//!
//! A [`Handle`] is closed below when nobody uses it any more: the caller has closed it here, and no
//! call and no entry of the log goes through it. A flush closes it below earlier (`closed`).

mod flush;
mod handle;
mod identity;
mod table;
mod tail;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use base::{Attr, Errno, Fh, FileKind, RemotePath};
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Core;
use crate::change_log::{Change, ChangeLog, EndedEntry};
use crate::expected_attrs::ExpectedAttrs;
use crate::name_history::NameState;
use crate::unstable::{Digest, UnstableWrites};

pub(crate) use handle::{Handle, UsableHandle, usable};
pub(crate) use table::OpenFiles;
pub(crate) use tail::Tail;

/// Where a body is between being open and being lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    Lost,
    Reopening,
    Dead,
}

/// The handle below of one of our handles.
#[derive(Clone, Debug)]
pub(crate) struct InnerHandle {
    pub(crate) handle: Weak<Handle>,
    pub(crate) fh: Fh,
    /// Of which epoch of the body it is.
    pub(crate) epoch: u64,
    /// It was closed by a flush: to be opened again by its next user (`closed`).
    pub(crate) closed: bool,
    /// The file is there, but could not be opened like this again.
    pub(crate) refused: Option<Errno>,
}

/// What changes about a body.
pub(crate) struct FileState {
    pub(crate) phase: Phase,
    /// Counts losses: handles below of an earlier epoch are of no use.
    pub(crate) epoch: u64,
    /// When requests were lost last.
    pub(crate) lost_at: Option<Instant>,
    /// How often it was tried to open it again, and how the last time ended if it went wrong.
    pub(crate) attempts: u64,
    pub(crate) last_error: Option<Errno>,
    /// What it is called; `None` when the name is gone or another file's.
    pub(crate) path: Option<RemotePath>,
    /// What it may be called as well: a rename is under way, or was lost.
    pub(crate) pending_path: Option<RemotePath>,
    /// How often either has changed.
    pub(crate) path_version: u64,
    pub(crate) expected: ExpectedAttrs,
    /// An open of it has been answered: it is known what it looks like.
    pub(crate) has_attrs: bool,
    pub(crate) log: ChangeLog,
    /// What was read at its end.
    tail: Option<Tail>,
    /// By the number of our handle.
    pub(crate) inner_handles: HashMap<u64, InnerHandle>,
    pub(crate) unstable: UnstableWrites,
    /// The run of the server in which the unsynced writes were acknowledged.
    pub(crate) write_verifier: Option<Bytes>,
    /// The permissions that it is to have again, if it was given more to open it again.
    pub(crate) mode_to_restore: Option<u32>,
    /// To be told by the next write or fsync: what was acknowledged is lost.
    pub(crate) deferred_error: Option<Errno>,
    /// Those who wait for their turn to change it, and who has it.
    pub(crate) queued: usize,
    /// Changes that have got their answers, or were given up, but for those that are sent again: what
    /// was seen of the file before the last of them does not count.
    pub(crate) answered_changes: u64,
    /// It was changed through us since it was opened.
    changed: bool,
}

/// What the handles of one path have in common.
pub(crate) struct OpenFile {
    state: Mutex<FileState>,
    /// Notified when an attempt to open it again has ended.
    pub(crate) attempt_ended: Notify,
    /// The queue of those who wait for their turn to change it (`queue`).
    pub(crate) queue: tokio::sync::Mutex<()>,
    /// Held by who opens a handle again that was closed (`closed`).
    reopening: tokio::sync::Mutex<()>,
    core: Weak<Core>,
}

impl OpenFile {
    fn new(path: RemotePath, core: Weak<Core>) -> Arc<OpenFile> {
        let state = FileState {
            phase: Phase::Open,
            epoch: 0,
            lost_at: None,
            attempts: 0,
            last_error: None,
            path: Some(path),
            pending_path: None,
            path_version: 0,
            expected: ExpectedAttrs::created(FileKind::Regular),
            has_attrs: false,
            log: ChangeLog::default(),
            tail: None,
            inner_handles: HashMap::new(),
            unstable: UnstableWrites::default(),
            write_verifier: None,
            mode_to_restore: None,
            deferred_error: None,
            queued: 0,
            answered_changes: 0,
            changed: false,
        };
        let (queue, reopening) = (tokio::sync::Mutex::new(()), tokio::sync::Mutex::new(()));
        Arc::new(OpenFile {
            state: Mutex::new(state),
            attempt_ended: Notify::new(),
            queue,
            reopening,
            core,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle below of this epoch was found to be of no use.
    pub(crate) fn mark_lost(&self, epoch: u64) {
        let mut state = self.lock();
        if state.epoch == epoch && state.phase == Phase::Open {
            state.phase = Phase::Lost;
            state.epoch += 1;
            state.lost_at = Some(Instant::now());
            drop(state);
            if let Some(core) = self.core.upgrade() {
                core.write_verifier.invalidate();
            }
        }
    }

    /// The name does not lead to it any more.
    pub(crate) fn mark_removed(&self) {
        let mut state = self.lock();
        state.path = None;
        state.pending_path = None;
    }

    /// No name leads to it, as far as this mount has changed it.
    pub(crate) fn has_no_path(&self) -> bool {
        let state = self.lock();
        state.path.is_none() && state.pending_path.is_none()
    }

    /// Unanswered entries, their bytes, and whether something is to be synced.
    pub(crate) fn pending(&self) -> (usize, u64, bool) {
        let state = self.lock();
        let (entries, bytes) = state.log.unanswered();
        (entries, bytes, !state.unstable.is_empty())
    }

    fn is_future(&self) -> impl Fn(base::Timestamp) -> bool + use<> {
        let core = self.core.clone();
        move |time| core.upgrade().is_some_and(|core| core.clock.is_future(time))
    }

    /// What it may look like now.
    pub(crate) fn expected(&self) -> ExpectedAttrs {
        let is_future = self.is_future();
        let state = self.lock();
        let mut expected = state.expected;
        state.log.apply_unanswered(&mut expected, &is_future);
        expected
    }

    /// An entry of the log was acknowledged. `false` when that does not count, since it is being
    /// sent again.
    pub(crate) fn acknowledged(
        &self,
        core: &Arc<Core>,
        number: u64,
        digest: Option<Digest>,
    ) -> bool {
        let write_verifier = core.write_verifier.current(core);
        let is_future = self.is_future();
        let ended = {
            let mut state = self.lock();
            if !state.log.is_sent(number) {
                return false;
            }
            let Some(ended) = state.log.end(number, true) else { return false };
            state.answered_changes += 1;
            let digest = digest.filter(|_| !ended.overtaken.content);
            let before = state.expected;
            state.happened(
                number,
                &ended.change,
                digest,
                write_verifier,
                core.write_verifier.may_be_available(),
                &is_future,
            );
            if ended.overtaken.attrs {
                state.expected = before;
                ended.change.may_have_happened(&mut state.expected, &is_future);
            }
            ended
        };
        drop(ended);
        true
    }

    /// A change that was in the log under this number has happened, in another way than it stood
    /// there.
    pub(crate) fn happened_as(&self, core: &Arc<Core>, number: u64, change: &Change) {
        let write_verifier = core.write_verifier.current(core);
        let is_future = self.is_future();
        let track_unstable = core.write_verifier.may_be_available();
        let mut state = self.lock();
        state.answered_changes += 1;
        state.happened(number, change, None, write_verifier, track_unstable, &is_future);
    }

    /// An entry's caller has given up, or has its answer.
    pub(crate) fn withdraw(&self, number: u64) {
        let is_future = self.is_future();
        let ended: Option<EndedEntry> = {
            let mut state = self.lock();
            let ended = state.log.end(number, false);
            if let Some(ended) = ended.as_ref().filter(|ended| ended.may_have_arrived) {
                state.answered_changes += 1;
                state.may_have_happened(number, &ended.change, &is_future);
            }
            ended
        };
        drop(ended);
    }
}

impl FileState {
    /// A rename is about to be sent.
    pub(crate) fn begin_rename(&mut self, path: RemotePath) {
        self.path_version += 1;
        self.pending_path = Some(path);
    }

    /// It was renamed.
    pub(crate) fn set_path(&mut self, path: RemotePath) {
        self.path_version += 1;
        (self.path, self.pending_path) = (Some(path), None);
    }

    /// A change has happened at the server.
    pub(crate) fn happened(
        &mut self,
        number: u64,
        change: &Change,
        digest: Option<Digest>,
        write_verifier: Option<Bytes>,
        track_unstable: bool,
        is_future: crate::expected_attrs::IsFuture<'_>,
    ) {
        let end = self.expected.size();
        change.happened(&mut self.expected, is_future);
        self.changed = true;
        if matches!(change, Change::SetAttr(set) | Change::SetAttrByPath(set) if set.perm.is_some())
        {
            self.mode_to_restore = None;
        }
        self.write_verifier = self.write_verifier.take().or(write_verifier);
        if !track_unstable {
            return;
        }
        match change {
            Change::Write { offset, data } => {
                let range = *offset..offset.saturating_add(data.len() as u64);
                self.unstable.record(number, range, digest);
            }
            Change::Append { data, arrived } => match end {
                Some(end) => {
                    let range = end..end + (data.len() - arrived) as u64;
                    self.unstable.record(number, range, digest);
                }
                None => self.unstable.mark_incomparable(number),
            },
            Change::Copy(_) => self.unstable.mark_incomparable(number),
            Change::SetAttr(change) | Change::SetAttrByPath(change) => {
                if let Some(size) = change.size {
                    self.unstable.truncate(number, size);
                }
            }
        }
    }

    /// A change may have happened at the server, or a part of it.
    pub(crate) fn may_have_happened(
        &mut self,
        number: u64,
        change: &Change,
        is_future: crate::expected_attrs::IsFuture<'_>,
    ) {
        change.may_have_happened(&mut self.expected, is_future);
        self.changed = true;
        if !self.unstable.is_empty()
            && !matches!(change, Change::SetAttr(set) if set.size.is_none())
        {
            self.unstable.mark_incomparable(number);
        }
    }

    /// It was looked at while nothing was on its way.
    pub(crate) fn observed(&mut self, attr: &Attr) {
        self.expected = ExpectedAttrs::of(attr);
    }
}

impl Drop for OpenFile {
    /// What is known of the file outlives its handles, for those who look at its name.
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(path)) = (state.changed && state.has_attrs, state.path.take()) {
            core.history.record(&path, NameState::Present(state.expected));
        }
    }
}
