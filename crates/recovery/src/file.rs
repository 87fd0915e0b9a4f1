//! Open files: our handles, and what the handles of one path have in common.
//!
//! A [`Body`] is a file as we know it: its name now, what it must look like, its log. It is in one
//! of these phases:
//!
//! - `Open`: its handles below are good, as far as is known. → `Lost` by whoever finds one that is
//!   not ([`Body::lost`]).
//! - `Lost`: none of its handles below may be used. → `Opening` by the first who needs one
//!   (`recover`).
//! - `Opening`: one task opens it again, compares it, sends the log. → `Open`, `Lost` (the connection
//!   was lost once more, or another error), or `Dead`.
//! - `Dead`: it is not the file any more. For ever.
//!
//! It is in the table from before the first open is sent, so that all handles of a file share it
//! (`same`). Until an open has been answered nothing is known of it.
//!
//! A [`Handle`] is closed below when nobody uses it any more: the caller has closed it here, and no
//! call and no entry of the log goes through it. A flush closes it below earlier (`closed`).

mod closed;
mod handle;
mod same;
mod table;
mod tail;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use base::{Attr, Errno, Fh, FileKind, RemotePath};
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Core;
use crate::expect::Expect;
use crate::known::Seen;
use crate::log::{Change, Left, Log};
use crate::unsynced::{Digest, Unsynced};

pub(crate) use handle::{Handle, Usable, usable};
pub(crate) use table::Files;
pub(crate) use tail::Tail;

/// Where a body is between being open and being lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    Lost,
    Opening,
    Dead,
}

/// The handle below of one of our handles.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
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
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// Counts losses: handles below of an earlier epoch are of no use.
    pub(crate) epoch: u64,
    /// When requests were lost last.
    pub(crate) lost_at: Option<Instant>,
    /// How often it was tried to open it again, and how the last time ended if it went wrong.
    pub(crate) attempts: u64,
    pub(crate) why: Option<Errno>,
    /// What it is called; `None` when the name is gone or another file's.
    pub(crate) name: Option<RemotePath>,
    /// What it may be called as well: a rename is under way, or was lost.
    pub(crate) perhaps: Option<RemotePath>,
    /// How often either has changed.
    pub(crate) moves: u64,
    pub(crate) expect: Expect,
    /// An open of it has been answered: it is known what it looks like.
    pub(crate) is_seen: bool,
    pub(crate) log: Log,
    /// What was read at its end.
    tail: Option<Tail>,
    /// By the number of our handle.
    pub(crate) slots: HashMap<u64, Slot>,
    pub(crate) unsynced: Unsynced,
    /// The run of the server in which the unsynced writes were acknowledged.
    pub(crate) run: Option<Bytes>,
    /// The permissions that it is to have again, if it was given more to open it again.
    pub(crate) loosened: Option<u32>,
    /// To be told by the next write or fsync: what was acknowledged is lost.
    pub(crate) kept_error: Option<Errno>,
    /// Those who wait for their turn to change it, and who has it.
    pub(crate) queued: usize,
    /// Changes that have got their answers, or were given up, but for those that are sent again: what
    /// was seen of the file before the last of them does not count.
    pub(crate) ended: u64,
    /// It was changed through us since it was opened.
    changed: bool,
}

/// What the handles of one path have in common.
pub(crate) struct Body {
    state: Mutex<State>,
    /// Notified when an attempt to open it again has ended.
    pub(crate) settled: Notify,
    /// The queue of those who wait for their turn to change it (`turn`).
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Held by who opens a handle again that was closed (`closed`).
    reopening: tokio::sync::Mutex<()>,
    core: Weak<Core>,
}

impl Body {
    fn new(path: RemotePath, core: Weak<Core>) -> Arc<Body> {
        let state = State {
            phase: Phase::Open,
            epoch: 0,
            lost_at: None,
            attempts: 0,
            why: None,
            name: Some(path),
            perhaps: None,
            moves: 0,
            expect: Expect::made(FileKind::Regular),
            is_seen: false,
            log: Log::default(),
            tail: None,
            slots: HashMap::new(),
            unsynced: Unsynced::default(),
            run: None,
            loosened: None,
            kept_error: None,
            queued: 0,
            ended: 0,
            changed: false,
        };
        let (turn, reopening) = (tokio::sync::Mutex::new(()), tokio::sync::Mutex::new(()));
        Arc::new(Body { state: Mutex::new(state), settled: Notify::new(), turn, reopening, core })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle below of this epoch was found to be of no use.
    pub(crate) fn lost(&self, epoch: u64) {
        let mut state = self.lock();
        if state.epoch == epoch && state.phase == Phase::Open {
            state.phase = Phase::Lost;
            state.epoch += 1;
            state.lost_at = Some(Instant::now());
            drop(state);
            if let Some(core) = self.core.upgrade() {
                core.run.lost();
            }
        }
    }

    /// The name does not lead to it any more.
    pub(crate) fn is_removed(&self) {
        let mut state = self.lock();
        state.name = None;
        state.perhaps = None;
    }

    /// No name leads to it, as far as this mount has changed it.
    pub(crate) fn has_no_name(&self) -> bool {
        let state = self.lock();
        state.name.is_none() && state.perhaps.is_none()
    }

    /// Unanswered entries, their bytes, and whether something is to be synced.
    pub(crate) fn waiting(&self) -> (usize, u64, bool) {
        let state = self.lock();
        let (entries, bytes) = state.log.unanswered();
        (entries, bytes, !state.unsynced.is_empty())
    }

    fn ahead(&self) -> impl Fn(base::Timestamp) -> bool + use<> {
        let core = self.core.clone();
        move |time| core.upgrade().is_some_and(|core| core.clock.is_future(time))
    }

    /// What it may look like now.
    pub(crate) fn expect(&self) -> Expect {
        let ahead = self.ahead();
        let state = self.lock();
        let mut expect = state.expect;
        state.log.fold(&mut expect, &ahead);
        expect
    }

    /// An entry of the log was acknowledged. `false` when that does not count, since it is being
    /// sent again.
    pub(crate) fn acknowledged(
        &self,
        core: &Arc<Core>,
        number: u64,
        digest: Option<Digest>,
    ) -> bool {
        let run = core.run.now(core);
        let ahead = self.ahead();
        let left = {
            let mut state = self.lock();
            if !state.log.is_sent(number) {
                return false;
            }
            let Some(left) = state.log.end(number, true) else { return false };
            state.ended += 1;
            let digest = digest.filter(|_| !left.overtaken.content);
            let looks = state.expect;
            state.happened(number, &left.change, digest, run, core.run.may_be_told(), &ahead);
            if left.overtaken.looks {
                state.expect = looks;
                left.change.may_have_happened(&mut state.expect, &ahead);
            }
            left
        };
        drop(left);
        true
    }

    /// A change that was in the log under this number has happened, in another way than it stood
    /// there.
    pub(crate) fn happened_as(&self, core: &Arc<Core>, number: u64, change: &Change) {
        let run = core.run.now(core);
        let ahead = self.ahead();
        let told = core.run.may_be_told();
        let mut state = self.lock();
        state.ended += 1;
        state.happened(number, change, None, run, told, &ahead);
    }

    /// An entry's caller has given up, or has its answer.
    pub(crate) fn take_out(&self, number: u64) {
        let ahead = self.ahead();
        let left: Option<Left> = {
            let mut state = self.lock();
            let left = state.log.end(number, false);
            if let Some(left) = left.as_ref().filter(|left| left.may_have_arrived) {
                state.ended += 1;
                state.may_have_happened(number, &left.change, &ahead);
            }
            left
        };
        drop(left);
    }
}

impl State {
    /// A rename is about to be sent.
    pub(crate) fn may_be_called(&mut self, name: RemotePath) {
        self.moves += 1;
        self.perhaps = Some(name);
    }

    /// It was renamed.
    pub(crate) fn is_called(&mut self, name: RemotePath) {
        self.moves += 1;
        (self.name, self.perhaps) = (Some(name), None);
    }

    /// A change has happened at the server.
    pub(crate) fn happened(
        &mut self,
        number: u64,
        change: &Change,
        digest: Option<Digest>,
        run: Option<Bytes>,
        runs_are_told: bool,
        ahead: crate::expect::Ahead<'_>,
    ) {
        let end = self.expect.size();
        change.happened(&mut self.expect, ahead);
        self.changed = true;
        if matches!(change, Change::Set(set) | Change::SetByPath(set) if set.perm.is_some()) {
            self.loosened = None;
        }
        self.run = self.run.take().or(run);
        if !runs_are_told {
            return;
        }
        match change {
            Change::Write { offset, data } => {
                let range = *offset..offset.saturating_add(data.len() as u64);
                self.unsynced.wrote(number, range, digest);
            }
            Change::Append { data, told } => match end {
                Some(end) => {
                    let range = end..end + (data.len() - told) as u64;
                    self.unsynced.wrote(number, range, digest);
                }
                None => self.unsynced.cannot_compare(number),
            },
            Change::Copy(_) => self.unsynced.cannot_compare(number),
            Change::Set(change) | Change::SetByPath(change) => {
                if let Some(size) = change.size {
                    self.unsynced.cut(number, size);
                }
            }
        }
    }

    /// A change may have happened at the server, or a part of it.
    pub(crate) fn may_have_happened(
        &mut self,
        number: u64,
        change: &Change,
        ahead: crate::expect::Ahead<'_>,
    ) {
        change.may_have_happened(&mut self.expect, ahead);
        self.changed = true;
        if !self.unsynced.is_empty() && !matches!(change, Change::Set(set) if set.size.is_none()) {
            self.unsynced.cannot_compare(number);
        }
    }

    /// It was looked at while nothing was on its way.
    pub(crate) fn seen(&mut self, attr: &Attr) {
        self.expect = Expect::of(attr);
    }
}

impl Drop for Body {
    /// What is known of the file outlives its handles, for those who look at its name.
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(name)) = (state.changed && state.is_seen, state.name.take()) {
            core.known.note(&name, Seen::There(state.expect));
        }
    }
}
