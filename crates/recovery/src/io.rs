//! Operations of an open file that do not change it, and copies between two open files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Allocation, Attr, Errno, Fh, Mutex, Result};

use crate::Core;
use crate::change::PendingChange;
use crate::change_log::Change;
use crate::file::{Handle, UsableHandle};
use crate::reopen;
use crate::retry::{RemoteCall, Retry};

/// The inner handles, if all of them may be used.
fn usable<const N: usize>(handles: [&Arc<Handle>; N]) -> Result<Option<[UsableHandle; N]>> {
    let (mut below, mut all_usable) = ([UsableHandle { fh: Fh(0), epoch: 0 }; N], true);
    for (below, handle) in below.iter_mut().zip(handles) {
        match handle.usable()? {
            Some(usable) => *below = usable,
            None => all_usable = false,
        }
    }
    Ok(all_usable.then_some(below))
}

/// Whether an error of a call through these inner handles means that one of them is unusable; then
/// the loss is noted. Reopening shows which of them was lost.
fn note_if_lost<const N: usize>(
    errno: Errno,
    handles: [&Arc<Handle>; N],
    below: [UsableHandle; N],
) -> bool {
    let pairs = handles.into_iter().zip(below);
    let is_lost = errno.is_loss()
        || pairs.clone().any(|(handle, UsableHandle { fh, epoch })| {
            handle.is_stale(fh, errno) || handle.is_reopened_since(epoch)
        });
    if is_lost {
        pairs.for_each(|(handle, below)| handle.note_loss(errno, below.epoch));
    }
    is_lost
}

impl Core {
    /// Returns the result of `call`, which is idempotent, through the inner handles.
    pub(crate) async fn retry_with_handles<'a, const N: usize, T: Send>(
        self: &'a Arc<Core>,
        handles: [&Arc<Handle>; N],
        call: impl Fn([Fh; N]) -> RemoteCall<'a, T> + Send + Sync,
    ) -> Result<T> {
        let mut lost = None;
        if let Some(below) = usable(handles)? {
            match call(below.map(|below| below.fh)).await {
                Err(errno) if note_if_lost(errno, handles, below) => lost = Some(errno),
                answer => return answer,
            }
        }
        // Boxed, so that the future of a call without a loss stays small.
        Box::pin(self.retry_reopened(handles, lost, call)).await
    }

    async fn retry_reopened<'a, const N: usize, T: Send>(
        self: &'a Arc<Core>,
        handles: [&Arc<Handle>; N],
        mut lost: Option<Errno>,
        call: impl Fn([Fh; N]) -> RemoteCall<'a, T> + Send + Sync,
    ) -> Result<T> {
        let mut retry = Retry::new(self);
        loop {
            retry.before_attempt(lost.take()).await?;
            for handle in handles {
                lost = self.reopen(&retry, handle).await?;
                if lost.is_some() {
                    break;
                }
            }
            let Some(below) = usable(handles)? else { continue };
            match retry.within_deadline(call(below.map(|below| below.fh))).await {
                Err(errno) if !retry.has_expired() && note_if_lost(errno, handles, below) => {
                    lost = Some(errno);
                }
                answer => return answer,
            }
        }
    }

    /// Reopens the file if necessary. Returns the error after which to try again.
    async fn reopen(
        self: &Arc<Core>,
        retry: &Retry<'_>,
        handle: &Arc<Handle>,
    ) -> Result<Option<Errno>> {
        match retry.within_deadline(reopen::attempt(self, &handle.file)).await {
            Ok(()) => {}
            Err(errno) if retry.may_reopen_after(errno) => return Ok(Some(errno)),
            Err(errno) => return Err(errno),
        }
        match retry.within_deadline(self.reopen_closed(handle)).await {
            Ok(()) => Ok(None),
            Err(errno) if retry.is_retryable(errno) => Ok(Some(errno)),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) async fn fstat(self: &Arc<Core>, fh: Fh) -> Result<Attr> {
        let handle = self.files.handle(fh)?;
        self.wait_for_queue(&handle.file).await?;
        self.fstat_unqueued(&handle).await
    }

    /// As [`Core::fstat`], without waiting for the changes in the queue.
    pub(crate) async fn fstat_unqueued(self: &Arc<Core>, handle: &Arc<Handle>) -> Result<Attr> {
        let file = &handle.file;
        let request = Mutex::new(None);
        let attr = self
            .retry_with_handles([handle], |[fh]| {
                *request.lock() = file.attr_request(handle);
                self.inner.fstat(fh)
            })
            .await?;
        let request = *request.lock();
        if let Some(request) = request {
            file.lock().observed_by(request, &attr);
        }
        Ok(attr)
    }

    /// Also requests the attributes if this mount has changed the file since they were observed:
    /// after a loss they show whether it is the same file. They are sent behind the fsync and take
    /// no further round trip.
    pub(crate) async fn fsync(self: &Arc<Core>, fh: Fh) -> Result<()> {
        let handle = self.files.handle(fh)?;
        let file = &handle.file;
        self.wait_for_queue(file).await?;
        file.lock().take_deferred_error()?;
        let next = AtomicU64::new(0);
        let synced = self.retry_with_handles([&handle], |[fh]| {
            next.store(file.lock().log.next(), Ordering::Relaxed);
            let request = file.attr_request(&handle).filter(|_| file.lacks_attrs());
            let Some(request) = request else { return self.inner.fsync(fh) };
            Box::pin(async move {
                let (synced, attr) = tokio::join!(self.inner.fsync(fh), self.inner.fstat(fh));
                if let Ok(attr) = attr {
                    file.lock().observed_by(request, &attr);
                }
                synced
            })
        });
        synced.await?;
        let mut state = file.lock();
        state.take_deferred_error()?;
        state.unstable.mark_synced_before(next.into_inner());
        Ok(())
    }

    /// Closes a handle and returns the server's answer, unless a flush has already closed it.
    pub(crate) async fn finish(self: &Arc<Core>, fh: Fh) -> Result<()> {
        let handle = self.files.take(fh)?;
        let file = &handle.file;
        self.wait_for_queue(file).await?;
        let finished = match handle.is_closed_by_flush() {
            true => Ok(()),
            false => self.finish_inner(&handle, false).await,
        };
        let deferred = file.lock().take_deferred_error();
        finished.and(deferred)
    }

    /// Reserving and freeing space is idempotent.
    pub(crate) async fn fallocate(
        self: &Arc<Core>,
        fh: Fh,
        how: Allocation,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let handle = self.files.handle(fh)?;
        let end = offset.saturating_add(len);
        let (zeros, keep_size) = match how {
            Allocation::Reserve { keep_size } => (0..0, keep_size),
            Allocation::PunchHole => (offset..end, true),
            Allocation::Zero { keep_size } => (offset..end, keep_size),
        };
        let change = Change::Allocate { zeros, min_size: if keep_size { 0 } else { end } };
        self.wait_for_queue(&handle.file).await?;
        let pending = PendingChange::begin_without_handle(self, &handle.file, change).await?;
        let call = |[fh]: [Fh; 1]| self.inner.fallocate(fh, how, offset, len);
        let allocated = self.retry_with_handles([&handle], call).await;
        match allocated {
            Ok(()) => pending.happened(self),
            Err(errno) => pending.refused(errno),
        }
        allocated
    }

    pub(crate) async fn copy(
        self: &Arc<Core>,
        (from, from_offset): (Fh, u64),
        (to, to_offset): (Fh, u64),
        len: u64,
    ) -> Result<u64> {
        let (source, target) = (self.files.handle(from)?, self.files.handle(to)?);
        let range = to_offset..to_offset.saturating_add(len);
        self.wait_for_queue(&source.file).await?;
        let pending =
            PendingChange::begin_without_handle(self, &target.file, Change::Copy(range)).await?;
        let call = |[from, to]: [Fh; 2]| self.inner.copy((from, from_offset), (to, to_offset), len);
        let copied = self.retry_with_handles([&source, &target], call).await;
        match copied {
            Ok(copied) => {
                let range = to_offset..to_offset.saturating_add(copied);
                pending.happened_as(self, &Change::Copy(range));
            }
            Err(errno) => pending.refused(errno),
        }
        copied
    }
}
