//! One periodic timer for all calls that have to check a condition now and then.
//!
//! A timer for each call would cost too much for calls that wait only briefly, and these are nearly
//! all. So all calls share one, which runs only while there are subscribers.

use std::sync::Arc;
use std::time::Duration;

use base::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::background::Background;

/// Time between two ticks: a check costs some microseconds, and this delay is not noticed.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Ticker {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    ticked: Notify,
}

#[derive(Default)]
struct State {
    subscribers: usize,
    /// The timer's task is running.
    is_running: bool,
}

/// A subscription, until it is dropped.
#[must_use]
pub(crate) struct Subscription {
    inner: Arc<Inner>,
}

impl Ticker {
    /// Subscribes a caller. Must be called within a tokio runtime.
    pub(crate) fn subscribe(&self, background: &Background) -> Subscription {
        let subscription = Subscription { inner: self.inner.clone() };
        let starts = {
            let mut state = self.inner.state.lock();
            state.subscribers += 1;
            !std::mem::replace(&mut state.is_running, true)
        };
        if starts {
            let inner = self.inner.clone();
            background.start(async move { inner.run().await });
        }
        subscription
    }
}

impl Inner {
    /// Ticks while there are subscribers.
    async fn run(&self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            {
                let mut state = self.state.lock();
                if state.subscribers == 0 {
                    state.is_running = false;
                    return;
                }
            }
            self.ticked.notify_waiters();
        }
    }
}

impl Subscription {
    /// Completes with the next tick after this call.
    pub(crate) fn tick(&self) -> Notified<'_> {
        self.inner.ticked.notified()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.inner.state.lock().subscribers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn it_ticks_for_all_subscribers_and_only_while_there_are_some() {
        let (ticker, background) = (Ticker::default(), Background::default());
        let (first, second) = (ticker.subscribe(&background), ticker.subscribe(&background));
        assert_eq!(background.len(), 1);
        let begun = Instant::now();
        tokio::join!(first.tick(), second.tick());
        assert_eq!(begun.elapsed(), INTERVAL);
        drop(first);
        second.tick().await;
        assert_eq!(begun.elapsed(), 2 * INTERVAL);
        drop(second);
        sleep(2 * INTERVAL).await;
        assert_eq!(background.len(), 0);
        // It starts again.
        let third = ticker.subscribe(&background);
        third.tick().await;
        drop(third);
        // A new subscriber before the task has noticed that there are none: the task goes on.
        let fourth = ticker.subscribe(&background);
        assert_eq!(background.len(), 1);
        fourth.tick().await;
    }
}
