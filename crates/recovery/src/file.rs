//! Open files: the outer handles, and the state that all handles of one file share.
//!
//! An [`OpenFile`] holds the current path of a file, its expected attributes and its log of
//! changes. It is in one of these phases:
//!
//! - `Open`: its inner handles are usable as far as is known. → `Lost` when a call finds one that
//!   is not ([`OpenFile::mark_lost`]).
//! - `Lost`: no inner handle may be used. → `Reopening` by the first caller that needs one
//!   (`reopen`).
//! - `Reopening`: one task reopens the file, compares it and replays the log. → `Open`, `Lost`
//!   (another loss, or another error), or `Dead`.
//! - `Dead`: the path no longer leads to this file. Final. A later open of the path is of another
//!   `OpenFile`.
//!
//! An `OpenFile` is in the table before its first open is sent, so that overlapping opens of one
//! file share it (`identity`). Its attributes are unknown until an open was answered.
//!
//! The inner handle of a [`Handle`] is closed when the caller has closed the outer one, and no call
//! and no log entry uses it any more. A flush closes it earlier (`flush`).

mod flush;
mod handle;
mod identity;
pub(crate) mod locks;
mod table;
mod tail;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

use base::{Attr, Errno, Fh, Mutex, RemotePath, Result};
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
pub(crate) use tail::{OwnWrite, Tail};

/// The phases of an [`OpenFile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Open,
    Lost,
    Reopening,
    Dead,
}

/// The inner handle of one outer handle.
#[derive(Clone, Debug)]
pub(crate) struct InnerHandle {
    pub(crate) handle: Weak<Handle>,
    pub(crate) fh: Fh,
    /// The epoch of the file in which it was opened.
    pub(crate) epoch: u64,
    /// A flush has closed it; its next user reopens it (`flush`).
    pub(crate) closed: bool,
    /// The file exists, but could not be reopened with the flags of this handle.
    pub(crate) refused: Option<Errno>,
    /// It was open when a lock was lost (`locks`).
    pub(crate) had_locks: bool,
}

/// A request for the attributes through a handle, when all unanswered changes were sent through
/// that handle: the answer shows their effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttrRequest {
    /// The number of the next change.
    next: u64,
    epoch: u64,
}

/// The mutable state of an [`OpenFile`].
#[derive(Default)]
pub(crate) struct FileState {
    pub(crate) phase: Phase,
    /// Incremented by each loss: inner handles of an earlier epoch are unusable.
    pub(crate) epoch: u64,
    /// When requests were lost last.
    pub(crate) lost_at: Option<Instant>,
    /// Attempts to reopen the file so far; `last_error` is the error of the last one, if it failed.
    pub(crate) attempts: u64,
    pub(crate) last_error: Option<Errno>,
    /// The current path; `None` when the name was removed or belongs to another file.
    pub(crate) path: Option<RemotePath>,
    /// A second possible path, while a rename is in flight or its outcome is unknown.
    pub(crate) pending_path: Option<RemotePath>,
    /// The path that belongs to another file because another client has renamed or removed this
    /// one: it may still be in that directory.
    pub(crate) former_path: Option<RemotePath>,
    /// Incremented by each change of either path.
    pub(crate) path_version: u64,
    pub(crate) expected: ExpectedAttrs,
    /// An open was answered: `expected` is valid.
    pub(crate) has_attrs: bool,
    pub(crate) log: ChangeLog,
    /// The last bytes of the file.
    tail: Option<Tail>,
    /// The last bytes that were written through this mount.
    own_write: Option<OwnWrite>,
    /// Attributes that were observed before the answers to earlier changes.
    observed_early: Option<(AttrRequest, Attr)>,
    /// By the number of the outer handle.
    pub(crate) inner_handles: HashMap<u64, InnerHandle>,
    pub(crate) unstable: UnstableWrites,
    /// The write verifier under which the unstable writes were acknowledged.
    pub(crate) write_verifier: Option<Bytes>,
    /// The permission bits to restore, if some were added to reopen the file.
    pub(crate) mode_to_restore: Option<u32>,
    /// Error of the next write or fsync: acknowledged data was lost.
    pub(crate) deferred_error: Option<Errno>,
    /// Members of the queue for changes, the admitted one included.
    pub(crate) queued: usize,
    /// Changes that were answered or cancelled, except replayed ones. Attributes observed before
    /// the last of them are outdated.
    pub(crate) answered_changes: u64,
    /// This mount has changed the file since it was opened.
    changed: bool,
    /// Requests in flight that remove or replace its name: meanwhile no flush closes the file, and
    /// it is not reopened after a loss.
    pub(crate) removals: usize,
    /// By owner.
    pub(crate) locks: Vec<locks::OwnerLocks>,
    /// Requests for locks in flight.
    pub(crate) lock_calls: usize,
}

/// The state that all handles of one file share.
pub(crate) struct OpenFile {
    state: Mutex<FileState>,
    /// Notified when an attempt to reopen the file has ended, or a removal of its name.
    pub(crate) attempt_ended: Notify,
    /// The queue for changes that are not admitted at once (`change_queue`).
    pub(crate) queue: tokio::sync::Mutex<()>,
    /// Held while a handle that a flush has closed is reopened (`flush`).
    reopening: tokio::sync::Mutex<()>,
    /// Changes in the log as sent that are about to be sent.
    unsent: AtomicUsize,
    core: Weak<Core>,
}

impl OpenFile {
    fn new(path: RemotePath, core: Weak<Core>) -> Arc<OpenFile> {
        let state = FileState { path: Some(path), ..FileState::default() };
        Arc::new(OpenFile {
            state: Mutex::new(state),
            attempt_ended: Notify::new(),
            queue: tokio::sync::Mutex::default(),
            reopening: tokio::sync::Mutex::default(),
            unsent: AtomicUsize::new(0),
            core,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock()
    }

    /// A change is in the log as sent, and its call is about to be polled for the first time.
    pub(crate) fn begin_sending(&self) {
        self.unsent.fetch_add(1, Ordering::Relaxed);
    }

    /// The call was polled.
    pub(crate) fn sent(&self) {
        self.unsent.fetch_sub(1, Ordering::Release);
    }

    /// A request for the attributes through this handle, to be sent now. `None` if the answer may
    /// lack the effect of changes that are unanswered.
    pub(crate) fn attr_request(&self, handle: &Handle) -> Option<AttrRequest> {
        let state = self.lock();
        let is_behind_all =
            self.unsent.load(Ordering::Acquire) == 0 && state.log.is_idle_but(handle.number);
        is_behind_all.then(|| AttrRequest { next: state.log.next(), epoch: state.epoch })
    }

    /// Whether the attributes are worth a request: they identify the file, and are not known since
    /// the last change.
    pub(crate) fn lacks_attrs(&self) -> bool {
        let state = self.lock();
        state.expected.regular_id().is_none()
            && !(state.log.is_idle() && state.expected.has_exact_mtime())
    }

    /// An inner handle of this epoch was found to be unusable.
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

    pub(crate) fn is_dead(&self) -> bool {
        self.lock().phase == Phase::Dead
    }

    /// The path no longer leads to this file.
    pub(crate) fn mark_removed(&self) {
        let mut state = self.lock();
        state.path_version += 1;
        (state.path, state.pending_path) = (None, None);
    }

    /// Another file, which this mount has not put there, has the path.
    pub(crate) fn mark_replaced(&self) {
        let former = self.lock().path.clone();
        self.mark_removed();
        self.lock().former_path = former;
    }

    /// Whether every name of the file that this mount knows was removed or belongs to another file.
    pub(crate) fn has_no_path(&self) -> bool {
        self.lock().has_no_path()
    }

    /// Unanswered entries, their bytes, and whether there are unstable writes.
    pub(crate) fn pending(&self) -> (usize, u64, bool) {
        let state = self.lock();
        let (entries, bytes) = state.log.unanswered();
        (entries, bytes, !state.unstable.is_empty())
    }

    fn is_future(&self) -> impl Fn(base::Timestamp) -> bool + use<> {
        let core = self.core.clone();
        move |time| core.upgrade().is_some_and(|core| core.clock.is_future(time))
    }

    /// The attributes that the file may have now.
    pub(crate) fn expected(&self) -> ExpectedAttrs {
        let is_future = self.is_future();
        let state = self.lock();
        let mut expected = state.expected;
        state.log.apply_unanswered(&mut expected, &is_future);
        expected
    }

    /// A log entry was acknowledged. `false` if that reply is void, because the change is being
    /// replayed.
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
            if ended.overtaken.content {
                state.own_write = None;
            }
            if let Some((request, attr)) = state.observed_early.take() {
                state.observed_by(request, &attr);
            }
            ended
        };
        drop(ended);
        true
    }

    /// The server has executed `change` instead of the entry with this number.
    pub(crate) fn happened_as(&self, core: &Arc<Core>, number: u64, change: &Change) {
        let write_verifier = core.write_verifier.current(core);
        let is_future = self.is_future();
        let track_unstable = core.write_verifier.may_be_available();
        let mut state = self.lock();
        state.answered_changes += 1;
        state.happened(number, change, None, write_verifier, track_unstable, &is_future);
    }

    /// Withdraws an entry: its caller was cancelled, or has the result.
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
    /// Reports a loss of data that was found when the file was reopened, once.
    pub(crate) fn take_deferred_error(&mut self) -> Result<()> {
        self.deferred_error.take().map_or(Ok(()), Err)
    }

    /// As [`OpenFile::has_no_path`].
    pub(crate) fn has_no_path(&self) -> bool {
        self.path.is_none() && self.pending_path.is_none()
    }

    /// A rename is about to be sent.
    pub(crate) fn begin_rename(&mut self, path: RemotePath) {
        self.path_version += 1;
        self.pending_path = Some(path);
    }

    /// The file was renamed.
    pub(crate) fn set_path(&mut self, path: RemotePath) {
        self.path_version += 1;
        (self.path, self.pending_path, self.former_path) = (Some(path), None, None);
    }

    /// The server has executed a change.
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
        match change {
            Change::Append { data, arrived, .. } => {
                // A part that had arrived before is in the size already.
                self.note_append(number, &data[*arrived..], self.expected.min_size());
            }
            Change::Write { offset, data } => self.note_write(number, data, *offset),
            Change::SetAcl => {}
            Change::SetAttr(set) | Change::SetAttrByPath(set) if set.size.is_none() => {}
            // It may remove or replace those bytes.
            _ => self.own_write = None,
        }
        change.happened(&mut self.expected, is_future);
        self.changed = true;
        let sets_perm = match change {
            Change::SetAttr(set) | Change::SetAttrByPath(set) => set.perm.is_some(),
            Change::SetAcl => true,
            _ => false,
        };
        if sets_perm {
            self.mode_to_restore = None;
        }
        // One from before a restart says nothing about later writes.
        let of_earlier = self.write_verifier.take().filter(|_| !self.unstable.is_empty());
        self.write_verifier = of_earlier.or(write_verifier);
        if !track_unstable {
            return;
        }
        match change {
            Change::Write { offset, data } => {
                let range = *offset..offset.saturating_add(data.len() as u64);
                self.unstable.record(number, range, digest);
            }
            Change::Append { data, arrived, .. } => match end {
                Some(end) => {
                    let range = end..end + (data.len() - arrived) as u64;
                    self.unstable.record_append(number, range, digest);
                }
                None => self.unstable.mark_incomparable(number),
            },
            Change::Copy(_) => self.unstable.mark_incomparable(number),
            Change::SetAcl => {}
            Change::Allocate { zeros, .. } => {
                if !zeros.is_empty() && !self.unstable.is_empty() {
                    self.unstable.mark_incomparable(number);
                }
            }
            Change::SetAttr(change) | Change::SetAttrByPath(change) => {
                if let Some(size) = change.size {
                    self.unstable.truncate(number, size);
                }
            }
        }
    }

    /// The server may have executed a change, or a part of it.
    pub(crate) fn may_have_happened(
        &mut self,
        number: u64,
        change: &Change,
        is_future: crate::expected_attrs::IsFuture<'_>,
    ) {
        change.may_have_happened(&mut self.expected, is_future);
        self.changed = true;
        (self.own_write, self.observed_early) = (None, None);
        if !self.unstable.is_empty()
            && !matches!(change, Change::SetAttr(set) if set.size.is_none())
        {
            self.unstable.mark_incomparable(number);
        }
    }

    /// The attributes were observed while no change was in flight.
    pub(crate) fn observed(&mut self, attr: &Attr) {
        // Others may have overwritten the bytes, or made the file shorter.
        self.own_write.take_if(|write| !write.is_appended || write.end() > attr.size);
        self.expected = ExpectedAttrs::of(attr);
    }

    /// This is the answer to `request`. It is valid if nothing was changed or lost since, and as
    /// soon as all changes are answered.
    pub(crate) fn observed_by(&mut self, request: AttrRequest, attr: &Attr) {
        if request != (AttrRequest { next: self.log.next(), epoch: self.epoch }) {
            return;
        }
        match self.log.is_idle() {
            true => self.observed(attr),
            false => self.observed_early = Some((request, *attr)),
        }
    }
}

impl Drop for OpenFile {
    /// The expected attributes outlive the handles: a later change of the name may need them. Not
    /// those of a dead file: the name is that of another one.
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        let state = self.state.get_mut();
        let is_known = state.changed && state.has_attrs && state.phase != Phase::Dead;
        if let (true, Some(path)) = (is_known, state.path.take()) {
            core.history.record(&path, NameState::Present(state.expected));
        }
    }
}
