//! The order of changes of one file that must not be in flight together.
//!
//! An append is never in flight together with another change that may move the end of the file
//! ([`ChangeLog::admits`](crate::change_log::ChangeLog::admits)), and begins only when the end of
//! the file is known. So after a loss, the bytes behind that end are the part of the appends that
//! has arrived.
//!
//! Most changes are admitted at once and do not enter the queue. A change that is not admitted, or
//! whose handle a flush has closed, waits in the queue. Later operations on the file queue behind
//! it, so the operations through one handle keep their order.
//!
//! A waiter polls nothing but its own wait: other callers complete the changes that it waits for.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use base::{Result, until};
use tokio::sync::MutexGuard;

use crate::Core;
use crate::change_log::EofEffect;
use crate::file::{FileState, Handle, OpenFile, Phase};
use crate::retry::Retry;

/// Permission to begin a change: no other waiter of the queue is admitted while this exists.
#[must_use]
pub(crate) struct ChangePermit<'a> {
    _lock: MutexGuard<'a, ()>,
    _queued: Queued<'a>,
}

/// A member of the queue.
struct Queued<'a>(&'a OpenFile);

impl<'a> Queued<'a> {
    fn new(file: &'a OpenFile) -> Queued<'a> {
        file.lock().queued += 1;
        Queued(file)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.lock().queued -= 1;
    }
}

impl FileState {
    /// Whether a change with this effect may begin, apart from the queue.
    fn admits(&self, effect: EofEffect) -> bool {
        self.log.admits(effect) && (effect != EofEffect::Append || self.expected.size().is_some())
    }

    /// Whether a change with this effect may begin now, without queuing.
    pub(crate) fn may_begin_now(&self, effect: EofEffect) -> bool {
        self.queued == 0 && self.admits(effect)
    }

    /// Whether a change without a handle may begin now. It may not while the file is reopened and
    /// compared.
    pub(crate) fn may_begin_without_handle(&self, effect: EofEffect) -> bool {
        self.may_begin_now(effect) && self.phase != Phase::Reopening
    }
}

impl Core {
    /// Waits in the queue until a change with this `effect` may begin. The change must be begun
    /// before the permit is dropped. An append first fetches the size through `handle`, if it is
    /// unknown; `None` for a change without a handle.
    pub(crate) async fn change_permit<'a>(
        self: &Arc<Core>,
        file: &'a OpenFile,
        effect: EofEffect,
        handle: Option<&Arc<Handle>>,
    ) -> Result<ChangePermit<'a>> {
        let queued = Queued::new(file);
        let lock = self.bounded_wait(file.queue.lock()).await?;
        self.bounded_wait(file.wait_admitted(effect, handle.is_none())).await?;
        if let Some(handle) = handle {
            self.reopen_if_closed(handle).await?;
        }
        if let (EofEffect::Append, Some(handle)) = (effect, handle)
            && file.lock().expected.size().is_none()
        {
            // If this fails, a later loss makes the outcome of the append unknown; the append
            // returns the error then.
            let _ = self.fstat_unqueued(handle).await;
        }
        Ok(ChangePermit { _lock: lock, _queued: queued })
    }

    /// Waits for the changes that are queued now, if there are any.
    pub(crate) async fn wait_for_queue(self: &Arc<Core>, file: &OpenFile) -> Result<()> {
        if file.lock().queued == 0 {
            return Ok(());
        }
        Box::pin(async {
            let _queued = Queued::new(file);
            self.bounded_wait(file.queue.lock()).await.map(drop)
        })
        .await
    }

    /// Waits for `waiting`, which itself may wait for a connection, at most as long as the retry
    /// policy allows.
    pub(crate) async fn bounded_wait<T>(
        self: &Arc<Core>,
        waiting: impl Future<Output = T>,
    ) -> Result<T> {
        let mut waiting = pin!(waiting);
        tokio::select! {
            biased;
            done = &mut waiting => return Ok(done),
            () = self.connection.disconnected() => {}
        }
        Retry::new(self).within_deadline(async { Ok(waiting.await) }).await
    }
}

impl OpenFile {
    /// Returns when no change is in flight that excludes one with this `effect`.
    async fn wait_admitted(&self, effect: EofEffect, without_handle: bool) {
        let changed = self.lock().log.changed();
        let check = || self.may_begin_after_wait(effect, without_handle).then_some(());
        until(&changed, check).await;
    }

    /// Whether the changes in flight admit the change. To learn the end of the file, none may be in
    /// flight.
    fn may_begin_after_wait(&self, effect: EofEffect, without_handle: bool) -> bool {
        let state = self.lock();
        if without_handle && state.phase == Phase::Reopening {
            return false;
        }
        let end_is_known = effect != EofEffect::Append || state.expected.size().is_some();
        state.log.admits(effect) && (end_is_known || state.log.is_idle())
    }
}
