//! What a mount holds of writes that were acknowledged and are not at the server yet: bounded, and
//! counted. Changes of attributes that were acknowledged so are only counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, Semaphore};

/// The bytes of one mount.
pub(crate) struct Dirty {
    room: Semaphore,
    most: u32,
    bytes: AtomicU64,
    changes: AtomicU64,
    /// Notified when there are less.
    less: Notify,
}

impl Dirty {
    /// At most so many at one time; a write of more counts as so many.
    pub(crate) fn new(most: u32) -> Arc<Dirty> {
        let room = Semaphore::new(most as usize);
        let (bytes, changes) = Default::default();
        Arc::new(Dirty { room, most, bytes, changes, less: Notify::new() })
    }

    /// Room for `bytes`, when there is some.
    pub(crate) async fn take(self: &Arc<Dirty>, bytes: u32) -> Share {
        let bytes = bytes.min(self.most);
        // It is never closed.
        if let Ok(permit) = self.room.acquire_many(bytes).await {
            permit.forget();
        }
        self.bytes.fetch_add(bytes.into(), Ordering::Relaxed);
        Share { dirty: self.clone(), bytes }
    }

    /// How many there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts one more change of attributes, until what it returns is dropped.
    pub(crate) fn change(self: &Arc<Dirty>) -> DirtyChange {
        self.changes.fetch_add(1, Ordering::Relaxed);
        DirtyChange(self.clone())
    }

    /// How many changes of attributes there are.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Waits until there are neither bytes nor changes.
    pub(crate) async fn gone(&self) {
        loop {
            let mut less = std::pin::pin!(self.less.notified());
            // Registered before the look, so that nothing in between is missed.
            less.as_mut().enable();
            if self.bytes() == 0 && self.changes() == 0 {
                return;
            }
            less.await;
        }
    }
}

/// What one write holds of it, given back when dropped.
pub(crate) struct Share {
    dirty: Arc<Dirty>,
    bytes: u32,
}

/// One change of attributes that was acknowledged and is not at the server yet.
pub(crate) struct DirtyChange(Arc<Dirty>);

impl Drop for DirtyChange {
    fn drop(&mut self) {
        self.0.changes.fetch_sub(1, Ordering::Relaxed);
        self.0.less.notify_waiters();
    }
}

impl Share {
    /// Takes over what `other` holds.
    pub(crate) fn merge(&mut self, mut other: Share) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.dirty.bytes.fetch_sub(self.bytes.into(), Ordering::Relaxed);
            self.dirty.room.add_permits(self.bytes as usize);
            self.dirty.less.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn what_is_given_back_shows_also_while_somebody_waits() {
        let dirty = Dirty::new(10);
        let mut one = dirty.take(4).await;
        one.merge(dirty.take(2).await);
        let two = dirty.take(3).await;
        let gone = dirty.gone();
        tokio::pin!(gone);
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, &mut gone).await.is_err());
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
        gone.await;
    }
}
