//! Changes of an open file: each is sent at once, and kept in the log of the file until it is
//! answered.

use std::future::poll_fn;
use std::sync::Arc;

use base::{Errno, Fh, Remote, Result};

use crate::Core;
use crate::change_log::Change;
use crate::change_queue::ChangePermit;
use crate::file::{FileState, Handle, OpenFile, Phase, UsableHandle};
use crate::reopen;
use crate::retry::{RemoteCall, Retry};
use crate::unstable::Digest;

/// An entry in the log of a file; withdrawn on drop.
pub(crate) struct PendingChange {
    file: Arc<OpenFile>,
    number: u64,
    ended: bool,
}

impl PendingChange {
    /// Adds `change` through `handle` to the log, with the inner handle if it can be sent now.
    /// `None` if the change has to wait in the queue, or if a flush has closed the handle.
    fn begin(
        handle: &Arc<Handle>,
        change: &Change,
        permit: Option<&ChangePermit<'_>>,
    ) -> Result<Option<(PendingChange, Option<UsableHandle>)>> {
        let mut state = handle.file.lock();
        state.take_deferred_error()?;
        let usable = crate::file::usable(&state, handle.number)?;
        let may_begin = permit.is_some() || state.may_begin_now(change.eof_effect());
        if !may_begin || state.is_closed_by_flush(handle.number) {
            return Ok(None);
        }
        let number = state.log.begin(change.clone(), Some(handle.clone()), usable.is_some());
        if usable.is_some() {
            handle.file.begin_sending();
        }
        Ok(Some((PendingChange { file: handle.file.clone(), number, ended: false }, usable)))
    }

    /// Adds a change without a handle to the log, when it is admitted. The caller sends and retries
    /// it.
    pub(crate) async fn begin_without_handle(
        core: &Arc<Core>,
        file: &Arc<OpenFile>,
        change: Change,
    ) -> Result<PendingChange> {
        let take = |state: &mut FileState| {
            let number = state.log.begin(change.clone(), None, true);
            PendingChange { file: file.clone(), number, ended: false }
        };
        {
            let mut state = file.lock();
            if state.may_begin_without_handle(change.eof_effect()) {
                return Ok(take(&mut state));
            }
        }
        let _permit = Box::pin(core.change_permit(file, change.eof_effect(), None)).await?;
        Ok(take(&mut file.lock()))
    }

    /// The server has acknowledged the change. `false` if that reply is void, because the change is
    /// being replayed.
    fn acknowledged(&mut self, core: &Arc<Core>, digest: Option<Digest>) -> bool {
        self.ended = self.file.acknowledged(core, self.number, digest);
        self.ended
    }

    /// The server has acknowledged a change without a handle.
    pub(crate) fn happened(mut self, core: &Arc<Core>) {
        self.acknowledged(core, None);
    }

    /// The server has executed `change` instead of the change that was logged.
    pub(crate) fn happened_as(self, core: &Arc<Core>, change: &Change) {
        let (file, number) = (self.file.clone(), self.number);
        self.did_not_happen();
        file.happened_as(core, number, change);
    }

    /// The server has executed no part of the change.
    pub(crate) fn did_not_happen(mut self) {
        let ended_entry = self.file.lock().log.end(self.number, false);
        drop(ended_entry);
        self.ended = true;
    }

    /// The server has refused the change. It detects some errors before it changes anything.
    pub(crate) fn refused(self, errno: Errno) {
        if matches!(errno, Errno::EOPNOTSUPP | Errno::EBADF | Errno::EINVAL) {
            self.did_not_happen();
        }
    }

    /// Whether an error that the caller received is the final result: the change is not being
    /// replayed.
    fn is_final_error(&self) -> bool {
        self.file.lock().log.is_sent(self.number)
    }

    /// Removes a change that was not sent from the log, so that it can be retried. `false` if a
    /// newer change has begun since: then this one is replayed, which keeps the order.
    fn withdraw_newest(&mut self) -> bool {
        let mut state = self.file.lock();
        if state.log.next() != self.number + 1 || !state.log.is_sent(self.number) {
            return false;
        }
        let ended_entry = state.log.end(self.number, false);
        drop(state);
        drop(ended_entry);
        self.ended = true;
        true
    }

    fn lost(&self, may_have_arrived: bool) {
        self.file.lock().log.lost(self.number, may_have_arrived);
    }

    /// The result of the replay, if the change was replayed.
    fn answered(&mut self) -> Option<Result<()>> {
        let mut state = self.file.lock();
        let result = state.log.answered(self.number)?;
        let ended_entry = state.log.end(self.number, result.is_ok());
        drop(state);
        drop(ended_entry);
        self.ended = true;
        Some(result)
    }
}

impl Drop for PendingChange {
    fn drop(&mut self) {
        if !self.ended {
            self.file.withdraw(self.number);
        }
    }
}

/// Sends a change through an inner handle.
pub(crate) fn send<'a>(inner: &'a dyn Remote, fh: Fh, change: &Change) -> RemoteCall<'a, ()> {
    match change {
        Change::Write { offset, data } => inner.write(fh, *offset, data.clone()),
        Change::Append { end, data, arrived } => {
            inner.write(fh, end + *arrived as u64, data.slice(*arrived..))
        }
        Change::SetAttr(change) => inner.fsetattr(fh, *change),
        Change::SetAttrByPath(_) | Change::Copy(_) | Change::SetAcl | Change::Allocate { .. } => {
            Box::pin(async { Err(Errno::EOPNOTSUPP) })
        }
    }
}

impl Core {
    /// Changes a file through an outer handle.
    pub(crate) async fn change(self: &Arc<Core>, fh: Fh, change: Change) -> Result<()> {
        let handle = self.files.handle(fh)?;
        // Repeated if a flush closes the handle at this moment.
        let (pending, lost) = loop {
            let mut permit = None;
            let mut begun = PendingChange::begin(&handle, &change, None)?;
            if begun.is_none() {
                let effect = change.eof_effect();
                let granted = Box::pin(self.change_permit(&handle.file, effect, Some(&handle)));
                let granted = permit.insert(granted.await?);
                begun = PendingChange::begin(&handle, &change, Some(granted))?;
            }
            let Some((mut pending, usable)) = begun else { continue };
            let Some(UsableHandle { fh, epoch }) = usable else { break (pending, None) };
            let mut digest = None;
            let mut is_sent = false;
            let mut call = send(&*self.inner, fh, &change);
            let answer = poll_fn(|context| {
                let polled = call.as_mut().poll(context);
                if !std::mem::replace(&mut is_sent, true) {
                    handle.file.sent();
                    drop(permit.take());
                    // Computed after sending, while the content is still in the processor's caches.
                    digest =
                        self.write_verifier.may_be_available().then(|| change.digest()).flatten();
                }
                polled
            })
            .await;
            match answer {
                Ok(()) if pending.acknowledged(self, digest) => return Ok(()),
                Ok(()) => break (pending, None),
                Err(errno) if errno.is_loss() => {
                    pending.lost(true);
                    handle.file.mark_lost(epoch);
                    break (pending, Some(errno));
                }
                Err(errno) if handle.is_stale(fh, errno) => {
                    if errno == Errno::EBADF && pending.withdraw_newest() {
                        continue;
                    }
                    // See `is_stale`.
                    let may_have_arrived = errno == Errno::ESTALE && handle.file.lock().has_locks();
                    pending.lost(may_have_arrived);
                    handle.file.mark_lost(epoch);
                    break (pending, Some(Errno::ESTALE));
                }
                // Another change was lost, and this one is replayed with it.
                Err(_) if handle.is_reopened_since(epoch) => {
                    pending.lost(true);
                    break (pending, None);
                }
                Err(errno) if pending.is_final_error() => return Err(errno),
                Err(_) => break (pending, None),
            }
        };
        Box::pin(self.await_replay(&handle, pending, lost)).await
    }

    /// Waits until the file is reopened and the change was replayed.
    async fn await_replay(
        self: &Arc<Core>,
        handle: &Arc<Handle>,
        mut pending: PendingChange,
        mut lost: Option<Errno>,
    ) -> Result<()> {
        let mut retry = Retry::new(self);
        loop {
            retry.before_attempt(lost.take()).await?;
            let attempt = retry.within_deadline(reopen::attempt(self, &handle.file)).await;
            if let Some(result) = pending.answered() {
                return result;
            }
            match attempt {
                // The file is open, but the change has no result: the file could not be opened with
                // these flags, was closed by a flush, or was lost again.
                Ok(()) => {
                    handle.usable()?;
                    let open = {
                        let state = handle.file.lock();
                        (state.phase == Phase::Open).then_some(state.epoch)
                    };
                    if let Some(epoch) = open {
                        handle.file.mark_lost(epoch);
                        lost = Some(Errno::ESTALE);
                    }
                }
                Err(errno) if retry.may_reopen_after(errno) => lost = Some(errno),
                Err(errno) => return Err(errno),
            }
            if handle.file.lock().phase == Phase::Dead {
                return Err(Errno::ESTALE);
            }
        }
    }
}
