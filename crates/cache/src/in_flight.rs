//! A counter of operations in flight, and waiting for it to become zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The number of operations in flight. Clones share one counter. Cheap to change, since each read
/// does it; waiting is rare.
#[derive(Clone, Default)]
pub(crate) struct InFlight(Arc<Inner>);

#[derive(Default)]
struct Inner {
    count: AtomicU64,
    none: Notify,
}

impl InFlight {
    /// Counts an operation.
    pub(crate) fn begin(&self) {
        self.0.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends an operation that was counted.
    pub(crate) fn end(&self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
        }
    }

    /// The number of operations in flight.
    pub(crate) fn count(&self) -> u64 {
        self.0.count.load(Ordering::Acquire)
    }

    /// Returns when no operation is in flight.
    pub(crate) async fn wait_until_none(&self) {
        loop {
            // Created before the check: an end after that notifies it.
            let ended = self.0.none.notified();
            if self.count() == 0 {
                return;
            }
            ended.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn the_end_of_the_last_is_told() {
        let in_flight = InFlight::default();
        in_flight.wait_until_none().await;
        in_flight.begin();
        in_flight.begin();
        let mut waiting = Box::pin(in_flight.wait_until_none());
        let mut is_pending = async || {
            std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await
        };
        assert!(is_pending().await);
        in_flight.end();
        assert!(is_pending().await);
        in_flight.end();
        assert!(!is_pending().await);
    }
}
