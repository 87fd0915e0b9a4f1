//! What asks an open file without changing it, and copies between two.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Attr, AttrChange, Data, Errno, Fh, Result};
use bytes::Bytes;

use crate::Core;
use crate::call::{Asked, Trouble};
use crate::change::Ticket;
use crate::file::{Handle, Usable};
use crate::link::is_loss;
use crate::log::Change;
use crate::recover;

/// Stands for a moment at which something was on its way.
const BUSY: u64 = u64::MAX;

/// Whether an error of a call through this handle below says that it is of no use.
fn is_lost(errno: Errno, handle: &Handle, Usable { fh, epoch }: Usable) -> bool {
    is_loss(errno) || handle.is_stale(fh, errno) || handle.is_newer_than(epoch)
}

impl Core {
    /// What `call` gives through the handle below, which may be made as often as need be.
    pub(crate) async fn through<'a, T: Send>(
        self: &'a Arc<Core>,
        handle: &Arc<Handle>,
        call: impl Fn(Fh) -> Asked<'a, T> + Send + Sync,
    ) -> Result<T> {
        let mut lost = None;
        if let Some(below) = handle.usable()? {
            match call(below.fh).await {
                Err(errno) if is_lost(errno, handle, below) => {
                    handle.body.lost(below.epoch);
                    lost = Some(errno);
                }
                answer => return answer,
            }
        }
        Box::pin(self.through_again(handle, lost, call)).await
    }

    async fn through_again<'a, T: Send>(
        self: &'a Arc<Core>,
        handle: &Arc<Handle>,
        mut lost: Option<Errno>,
        call: impl Fn(Fh) -> Asked<'a, T> + Send + Sync,
    ) -> Result<T> {
        let mut trouble = Trouble::new(self);
        loop {
            trouble.after(lost.take()).await?;
            let Some(below) = self.opened_again(&trouble, handle, &mut lost).await? else {
                continue;
            };
            match trouble.within(call(below.fh)).await {
                Err(errno) if !trouble.is_over() && is_lost(errno, handle, below) => {
                    handle.body.lost(below.epoch);
                    lost = Some(errno);
                }
                answer => return answer,
            }
        }
    }

    /// The handle below of a file that was opened again if need be; `None` when it is `lost` again.
    async fn opened_again(
        self: &Arc<Core>,
        trouble: &Trouble<'_>,
        handle: &Arc<Handle>,
        lost: &mut Option<Errno>,
    ) -> Result<Option<Usable>> {
        let opened = async {
            recover::attempt(self, &handle.body).await?;
            self.open_closed(handle).await
        };
        match trouble.within(opened).await {
            Ok(()) => handle.usable(),
            Err(errno) if trouble.goes_on_after(errno) => {
                *lost = Some(errno);
                Ok(None)
            }
            Err(errno) => Err(errno),
        }
    }

    pub(crate) async fn read(self: &Arc<Core>, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        let handle = self.files.handle(fh)?;
        self.behind(&handle.body).await?;
        let data = self.through(&handle, |fh| self.inner.read(fh, offset, len)).await?;
        handle.body.lock().has_read(&data, offset);
        Ok(data)
    }

    pub(crate) async fn fstat(self: &Arc<Core>, fh: Fh) -> Result<Attr> {
        let handle = self.files.handle(fh)?;
        self.behind(&handle.body).await?;
        self.fstat_first(&handle).await
    }

    /// As [`Core::fstat`], before those who wait for their turn to change the file.
    pub(crate) async fn fstat_first(self: &Arc<Core>, handle: &Arc<Handle>) -> Result<Attr> {
        let body = &handle.body;
        // The number of the next change, if nothing was on its way when it was asked.
        let quiet = AtomicU64::new(BUSY);
        let attr = self
            .through(handle, |fh| {
                let state = body.lock();
                let next = if state.log.is_idle() { state.log.next() } else { BUSY };
                quiet.store(next, Ordering::Relaxed);
                drop(state);
                self.inner.fstat(fh)
            })
            .await?;
        let mut state = body.lock();
        if state.log.next() == quiet.into_inner() {
            state.seen(&attr);
        }
        Ok(attr)
    }

    pub(crate) async fn fsync(self: &Arc<Core>, fh: Fh) -> Result<()> {
        let handle = self.files.handle(fh)?;
        let body = &handle.body;
        self.behind(body).await?;
        let kept = || body.lock().kept_error.take().map_or(Ok(()), Err);
        kept()?;
        let next = AtomicU64::new(0);
        let synced = self.through(&handle, |fh| {
            next.store(body.lock().log.next(), Ordering::Relaxed);
            self.inner.fsync(fh)
        });
        synced.await?;
        // What was found to be lost when the file was opened again.
        kept()?;
        body.lock().unsynced.synced_before(next.into_inner());
        Ok(())
    }

    /// Gives a handle back, and returns what the server answers, unless a flush has done so.
    pub(crate) async fn finish(self: &Arc<Core>, fh: Fh) -> Result<()> {
        let handle = self.files.take(fh)?;
        let body = &handle.body;
        self.behind(body).await?;
        let finished = match handle.is_closed() {
            true => Ok(()),
            false => self.finish_below(&handle).await,
        };
        // What was found to be lost when the file was opened again.
        let kept = body.lock().kept_error.take();
        finished.and(kept.map_or(Ok(()), Err))
    }

    pub(crate) async fn write(self: &Arc<Core>, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        let appends = self.files.handle(fh)?.flags.append;
        let change = match appends {
            true => Change::Append { data, told: 0 },
            false => Change::Write { offset, data },
        };
        self.change(fh, change).await
    }

    pub(crate) async fn fsetattr(self: &Arc<Core>, fh: Fh, change: AttrChange) -> Result<()> {
        self.change(fh, Change::Set(change)).await
    }

    pub(crate) async fn copy(
        self: &Arc<Core>,
        from: Fh,
        from_offset: u64,
        to: Fh,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let (source, target) = (self.files.handle(from)?, self.files.handle(to)?);
        let range = to_offset..to_offset.saturating_add(len);
        self.behind(&source.body).await?;
        let ticket = Ticket::elsewhere(self, &target.body, Change::Copy(range)).await?;
        let call = |from, to| self.inner.copy(from, from_offset, to, to_offset, len);
        match self.between(&source, &target, call).await {
            Ok(copied) => {
                let range = to_offset..to_offset.saturating_add(copied);
                ticket.happened_as(self, &Change::Copy(range));
                Ok(copied)
            }
            Err(errno) => {
                // These are found out before anything is copied.
                if matches!(errno, Errno::EOPNOTSUPP | Errno::EBADF | Errno::EINVAL) {
                    ticket.did_not_happen();
                }
                Err(errno)
            }
        }
    }

    /// What `call` gives through two handles below, which may be made as often as need be.
    async fn between<'a>(
        self: &'a Arc<Core>,
        one: &Arc<Handle>,
        other: &Arc<Handle>,
        call: impl Fn(Fh, Fh) -> Asked<'a, u64> + Send + Sync,
    ) -> Result<u64> {
        let mut lost = None;
        let mut trouble: Option<Trouble<'_>> = None;
        loop {
            if let (Some(first), Some(second)) = (one.usable()?, other.usable()?) {
                match call(first.fh, second.fh).await {
                    Err(errno) if is_lost(errno, one, first) || is_lost(errno, other, second) => {
                        // Which of them it was is found out by opening them.
                        one.body.lost(first.epoch);
                        other.body.lost(second.epoch);
                        lost = Some(errno);
                    }
                    answer => return answer,
                }
            }
            let trouble = trouble.get_or_insert_with(|| Trouble::new(self));
            trouble.after(lost.take()).await?;
            for handle in [one, other] {
                if self.opened_again(trouble, handle, &mut lost).await?.is_none() {
                    break;
                }
            }
        }
    }
}
