//! Whose turn it is to change a file, where that matters.
//!
//! Appends, and what else may move the end of a file, are never under way at once
//! ([`ChangeLog::admits`](crate::log::ChangeLog::admits)), and an append begins only when it is known where the
//! file ends. So when a connection is lost, what is behind that place is what has arrived of the
//! appends.
//!
//! Most changes find that so, and do not come here. One that does not, or whose handle was closed by a
//! flush, waits, and what comes after it for the same file waits behind it: what is done through one
//! handle is done in its order.
//!
//! Who waits here drives nothing: what it waits for is driven by its own callers.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use base::Result;
use tokio::sync::MutexGuard;

use crate::Core;
use crate::change_log::EofEffect;
use crate::file::{FileState, Handle, OpenFile, Phase};
use crate::retry::Retry;

/// Nobody else who has to wait for his turn has it while this is there.
pub(crate) struct ChangePermit<'a> {
    _lock: MutexGuard<'a, ()>,
    _queued: Queued<'a>,
}

/// One in the queue.
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
    /// Whether a change that does this may begin, but for those who have waited for longer.
    fn admits(&self, effect: EofEffect) -> bool {
        self.log.admits(effect) && (effect != EofEffect::Append || self.expected.size().is_some())
    }

    /// Whether a change that does this may begin now.
    pub(crate) fn may_begin_now(&self, effect: EofEffect) -> bool {
        self.queued == 0 && self.admits(effect)
    }

    /// Whether a change by another way than a handle may begin now: not while the file is opened
    /// again and compared.
    pub(crate) fn may_begin_without_handle(&self, effect: EofEffect) -> bool {
        self.may_begin_now(effect) && self.phase != Phase::Reopening
    }
}

impl Core {
    /// Returns when a change of the file with such an `end` may begin, which has to be done before
    /// the turn is dropped. What an append needs is asked for through `handle`; without one it is a
    /// change by another way.
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
            // Without an answer it cannot be told later what has become of the append. That is said
            // when it comes to it.
            let _ = self.fstat_unqueued(handle).await;
        }
        Ok(ChangePermit { _lock: lock, _queued: queued })
    }

    /// Waits for those who have to wait for their turn, if there are any.
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

    /// Waits for somebody who may wait for a connection, no longer than one may who does.
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
    /// Returns when nothing is under way that a change with such an `end` must not go along with.
    async fn wait_admitted(&self, effect: EofEffect, without_handle: bool) {
        let changed = self.lock().log.changed();
        loop {
            let mut notified = pin!(changed.notified());
            // Registered before the look, so that nothing in between is missed.
            notified.as_mut().enable();
            if self.may_begin_after_wait(effect, without_handle) {
                return;
            }
            notified.await;
        }
    }

    /// As far as that depends on what is under way. To learn where the file ends, nothing may be.
    fn may_begin_after_wait(&self, effect: EofEffect, without_handle: bool) -> bool {
        let state = self.lock();
        if without_handle && state.phase == Phase::Reopening {
            return false;
        }
        let end_is_known = effect != EofEffect::Append || state.expected.size().is_some();
        state.log.admits(effect) && (end_is_known || state.log.is_idle())
    }
}
