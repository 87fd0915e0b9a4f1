//! Writes that were acknowledged to the application and are on their way to the server.
//!
//! Invariants:
//! 1. Whoever asks the server for content or attributes of a file first waits for the writes that
//!    could change the answer, so a mount always reads what it has written.
//! 2. A write's error is kept until the handle it came through reports it, once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The writes of one inode.
#[derive(Default)]
pub(crate) struct Writes {
    on_their_way: Mutex<OnTheirWay>,
    finished: Notify,
}

#[derive(Default)]
struct OnTheirWay {
    next: u64,
    by_number: BTreeMap<u64, Write>,
}

struct Write {
    /// The number of the handle it goes through.
    handle: u64,
    bytes: Range<u64>,
    /// It has been given to the remote, so that what is asked through its handle comes after it.
    sent: bool,
}

impl Writes {
    /// A write begins. To be followed by [`Writes::end`].
    pub(crate) fn begin(&self, handle: u64, bytes: Range<u64>) -> u64 {
        let mut writes = self.lock();
        let number = writes.next;
        writes.next += 1;
        writes.by_number.insert(number, Write { handle, bytes, sent: false });
        number
    }

    /// The write has been given to the remote.
    pub(crate) fn sent(&self, number: u64) {
        if let Some(write) = self.lock().by_number.get_mut(&number) {
            write.sent = true;
        }
    }

    /// How many writes are on their way through `handle` that have been given to the remote.
    pub(crate) fn sent_through(&self, handle: u64) -> usize {
        let writes = self.lock();
        writes.by_number.values().filter(|write| write.handle == handle && write.sent).count()
    }

    pub(crate) fn end(&self, number: u64) {
        self.lock().by_number.remove(&number);
        self.finished.notify_waiters();
    }

    /// Waits until all writes that have begun by now are over.
    pub(crate) async fn drained(&self) {
        let before = self.lock().next;
        self.until(|writes| writes.by_number.range(..before).next().is_none()).await;
    }

    /// The same, of those that go through another handle than `handle`.
    pub(crate) async fn drained_but(&self, handle: u64) {
        let before = self.lock().next;
        self.until(|writes| {
            writes.by_number.range(..before).all(|(_, write)| write.handle == handle)
        })
        .await;
    }

    /// The same, of those that go through `handle`.
    pub(crate) async fn drained_of(&self, handle: u64) {
        let before = self.lock().next;
        self.until(|writes| {
            writes.by_number.range(..before).all(|(_, write)| write.handle != handle)
        })
        .await;
    }

    /// Waits until no write that has begun by now is on its way to any of `bytes`, save those
    /// through `handle`, after which a read through it is answered anyway.
    pub(crate) async fn clear_of(&self, handle: u64, bytes: Range<u64>) {
        let before = self.lock().next;
        self.until(|writes| {
            writes.by_number.range(..before).all(|(_, write)| {
                let range = &write.bytes;
                write.handle == handle || range.end <= bytes.start || bytes.end <= range.start
            })
        })
        .await;
    }

    async fn until(&self, reached: impl Fn(&OnTheirWay) -> bool) {
        loop {
            if reached(&self.lock()) {
                return;
            }
            let finished = self.finished.notified();
            tokio::pin!(finished);
            // Registered before the second look, so that no end in between is missed.
            finished.as_mut().enable();
            if reached(&self.lock()) {
                return;
            }
            finished.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, OnTheirWay> {
        self.on_their_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    fn is_ready(future: impl Future<Output = ()>) -> bool {
        let mut future = std::pin::pin!(future);
        future.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn only_what_concerns_one_is_waited_for() {
        let writes = Writes::default();
        assert!(is_ready(writes.drained()));
        let number = writes.begin(1, 100..200);
        assert!(!is_ready(writes.drained()));
        assert!(is_ready(writes.drained_but(1)));
        assert!(!is_ready(writes.drained_but(2)));
        assert!(!is_ready(writes.drained_of(1)));
        assert!(is_ready(writes.drained_of(2)));
        assert_eq!(writes.sent_through(1), 0);
        writes.sent(number);
        assert_eq!((writes.sent_through(1), writes.sent_through(2)), (1, 0));
        assert!(is_ready(writes.clear_of(2, 0..100)));
        assert!(is_ready(writes.clear_of(2, 200..201)));
        assert!(!is_ready(writes.clear_of(2, 199..201)));
        assert!(is_ready(writes.clear_of(1, 199..201)));
        writes.end(number);
        assert_eq!(writes.sent_through(1), 0);
        assert!(is_ready(writes.drained()));
    }

    #[tokio::test]
    async fn writes_that_begin_later_are_not_waited_for() {
        let writes = Arc::new(Writes::default());
        let first = writes.begin(1, 0..1);
        let waiting = tokio::spawn({
            let writes = writes.clone();
            async move { writes.drained().await }
        });
        tokio::task::yield_now().await;
        writes.begin(1, 0..1);
        writes.end(first);
        waiting.await.unwrap();
        assert!(!is_ready(writes.drained()));
    }
}
