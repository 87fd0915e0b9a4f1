//! Whose turn it is to change a file, where that matters.
//!
//! Appends, and what else may move the end of a file, are never under way at once
//! ([`Log::admits`](crate::log::Log::admits)), and an append begins only when it is known where the
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
use crate::call::Trouble;
use crate::file::{Body, Handle, Phase, State};
use crate::log::End;

/// Nobody else who has to wait for his turn has it while this is there.
pub(crate) struct Turn<'a> {
    _first: MutexGuard<'a, ()>,
    _queued: Queued<'a>,
}

/// One in the queue.
struct Queued<'a>(&'a Body);

impl<'a> Queued<'a> {
    fn new(body: &'a Body) -> Queued<'a> {
        body.lock().queued += 1;
        Queued(body)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.lock().queued -= 1;
    }
}

impl State {
    /// Whether a change that does this may begin, but for those who have waited for longer.
    fn admits(&self, end: End) -> bool {
        self.log.admits(end) && (end != End::Appended || self.expect.size().is_some())
    }

    /// Whether a change that does this may begin now.
    pub(crate) fn is_free_for(&self, end: End) -> bool {
        self.queued == 0 && self.admits(end)
    }

    /// Whether a change by another way than a handle may begin now: not while the file is opened
    /// again and compared.
    pub(crate) fn is_free_elsewhere(&self, end: End) -> bool {
        self.is_free_for(end) && self.phase != Phase::Opening
    }
}

impl Core {
    /// Returns when a change of the file with such an `end` may begin, which has to be done before
    /// the turn is dropped. What an append needs is asked for through `handle`; without one it is a
    /// change by another way.
    pub(crate) async fn turn<'a>(
        self: &Arc<Core>,
        body: &'a Body,
        end: End,
        handle: Option<&Arc<Handle>>,
    ) -> Result<Turn<'a>> {
        let queued = Queued::new(body);
        let first = self.patiently(body.turn.lock()).await?;
        self.patiently(body.admitted(end, handle.is_none())).await?;
        if let Some(handle) = handle {
            self.opened_if_closed(handle).await?;
        }
        if let (End::Appended, Some(handle)) = (end, handle)
            && body.lock().expect.size().is_none()
        {
            // Without an answer it cannot be told later what has become of the append. That is said
            // when it comes to it.
            let _ = self.fstat_first(handle).await;
        }
        Ok(Turn { _first: first, _queued: queued })
    }

    /// Waits for those who have to wait for their turn, if there are any.
    pub(crate) async fn behind(self: &Arc<Core>, body: &Body) -> Result<()> {
        if body.lock().queued == 0 {
            return Ok(());
        }
        Box::pin(async {
            let _queued = Queued::new(body);
            self.patiently(body.turn.lock()).await.map(drop)
        })
        .await
    }

    /// Waits for somebody who may wait for a connection, no longer than one may who does.
    pub(crate) async fn patiently<T>(
        self: &Arc<Core>,
        waits: impl Future<Output = T>,
    ) -> Result<T> {
        let mut waits = pin!(waits);
        tokio::select! {
            biased;
            done = &mut waits => return Ok(done),
            () = self.link.gone() => {}
        }
        Trouble::new(self).within(async { Ok(waits.await) }).await
    }
}

impl Body {
    /// Returns when nothing is under way that a change with such an `end` must not go along with.
    async fn admitted(&self, end: End, is_elsewhere: bool) {
        let moved = self.lock().log.moved();
        loop {
            let mut next = pin!(moved.notified());
            // Registered before the look, so that nothing in between is missed.
            next.as_mut().enable();
            if self.may_begin(end, is_elsewhere) {
                return;
            }
            next.await;
        }
    }

    /// As far as that depends on what is under way. To learn where the file ends, nothing may be.
    fn may_begin(&self, end: End, is_elsewhere: bool) -> bool {
        let state = self.lock();
        if is_elsewhere && state.phase == Phase::Opening {
            return false;
        }
        let is_told = end != End::Appended || state.expect.size().is_some();
        state.log.admits(end) && (is_told || state.log.is_idle())
    }
}
