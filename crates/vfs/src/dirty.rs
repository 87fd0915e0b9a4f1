//! The bytes that were written and not yet acknowledged by the server, counted and bounded for the
//! mount. Attribute changes that have returned and are in flight are only counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use base::until;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// The dirty bytes and changes of one mount.
pub(crate) struct Dirty {
    room: Semaphore,
    max_bytes: AtomicU32,
    bytes: AtomicU64,
    changes: AtomicU64,
    /// Notified when there are fewer.
    decreased: Notify,
    /// Notified when the bound is changed.
    bounded: Notify,
}

impl Dirty {
    /// At most `max_bytes` at one time; a larger write counts as that many.
    pub(crate) fn new(max_bytes: u32) -> Arc<Dirty> {
        let room = Semaphore::new(max_bytes as usize);
        let (bytes, changes) = Default::default();
        let max_bytes = max_bytes.into();
        let (decreased, bounded) = Default::default();
        Arc::new(Dirty { room, max_bytes, bytes, changes, decreased, bounded })
    }

    /// Waits until there is room for `bytes`.
    pub(crate) async fn take(self: &Arc<Dirty>, bytes: u32) -> DirtyBytes {
        let bytes = loop {
            let share = bytes.min(self.max_bytes());
            let is_too_much = || (self.max_bytes() < share).then_some(());
            tokio::select! {
                biased;
                permit = self.room.acquire_many(share) => {
                    // The semaphore is never closed.
                    permit.into_iter().for_each(SemaphorePermit::forget);
                    break share;
                }
                () = until(&self.bounded, is_too_much) => {}
            }
        };
        self.bytes.fetch_add(bytes.into(), Ordering::Relaxed);
        DirtyBytes { dirty: self.clone(), bytes }
    }

    /// The bound.
    pub(crate) fn max_bytes(&self) -> u32 {
        self.max_bytes.load(Ordering::Relaxed)
    }

    /// Changes the bound. A smaller one takes effect as writes are acknowledged.
    pub(crate) fn set_max_bytes(self: &Arc<Dirty>, max_bytes: u32) {
        let before = self.max_bytes.swap(max_bytes, Ordering::Relaxed);
        // A write that waits for more room than there will be.
        self.bounded.notify_waiters();
        match max_bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => self.room.add_permits(more as usize),
            None => {
                let dirty = self.clone();
                tokio::spawn(async move {
                    if let Ok(permit) = dirty.room.acquire_many(before - max_bytes).await {
                        permit.forget();
                    }
                });
            }
        }
    }

    /// The number of dirty bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts an attribute change until the result is dropped.
    pub(crate) fn change(self: &Arc<Dirty>) -> DirtyChange {
        self.changes.fetch_add(1, Ordering::Relaxed);
        DirtyChange(self.clone())
    }

    /// The number of attribute changes in flight.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Waits until there are neither dirty bytes nor attribute changes in flight.
    pub(crate) async fn drained(&self) {
        let check = || (self.bytes() == 0 && self.changes() == 0).then_some(());
        until(&self.decreased, check).await;
    }
}

/// The dirty bytes of one write, given back when dropped.
pub(crate) struct DirtyBytes {
    dirty: Arc<Dirty>,
    bytes: u32,
}

/// One attribute change in flight that has returned.
pub(crate) struct DirtyChange(Arc<Dirty>);

impl Drop for DirtyChange {
    fn drop(&mut self) {
        self.0.changes.fetch_sub(1, Ordering::Relaxed);
        self.0.decreased.notify_waiters();
    }
}

impl DirtyBytes {
    /// Takes over the bytes of `other`.
    pub(crate) fn merge(&mut self, mut other: DirtyBytes) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for DirtyBytes {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.dirty.bytes.fetch_sub(self.bytes.into(), Ordering::Relaxed);
            self.dirty.room.add_permits(self.bytes as usize);
            self.dirty.decreased.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn the_bound_can_be_changed() {
        let dirty = Dirty::new(10);
        let one = dirty.take(8).await;
        let soon = Duration::from_secs(1);
        dirty.set_max_bytes(4);
        // The task takes what room there is.
        tokio::task::yield_now().await;
        assert!(tokio::time::timeout(soon, dirty.take(2)).await.is_err());
        dirty.set_max_bytes(20);
        drop(tokio::time::timeout(soon, dirty.take(12)).await.unwrap());
        dirty.set_max_bytes(4);
        tokio::task::yield_now().await;
        drop(one);
        let four = tokio::time::timeout(soon, dirty.take(100)).await.unwrap();
        assert_eq!(dirty.bytes(), 4);
        assert!(tokio::time::timeout(soon, dirty.take(1)).await.is_err());
        drop(four);
    }

    #[tokio::test(start_paused = true)]
    async fn a_smaller_bound_is_valid_for_a_writer_that_waits() {
        let dirty = Dirty::new(10);
        let one = dirty.take(8).await;
        let mut waiting = std::pin::pin!(dirty.take(6));
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, &mut waiting).await.is_err());
        dirty.set_max_bytes(4);
        assert!(tokio::time::timeout(soon, &mut waiting).await.is_err());
        drop(one);
        let _four = tokio::time::timeout(soon, waiting).await.unwrap();
        assert_eq!(dirty.bytes(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn released_bytes_are_visible_while_a_writer_waits() {
        let dirty = Dirty::new(10);
        let mut one = dirty.take(4).await;
        one.merge(dirty.take(2).await);
        let two = dirty.take(3).await;
        let drained = dirty.drained();
        tokio::pin!(drained);
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, &mut drained).await.is_err());
        let waiting = dirty.take(100);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(soon, &mut waiting).await.is_err());
        assert_eq!(dirty.bytes(), 9);
        drop(one);
        assert_eq!(dirty.bytes(), 3);
        drop(two);
        let all = waiting.await;
        assert_eq!(dirty.bytes(), 10, "as much as there may be");
        drop(all);
        drained.await;
    }
}
