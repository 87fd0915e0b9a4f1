//! A beat for those who wait and have to look at something now and then.
//!
//! A timer for each call would cost calls that wait for a moment only, and these are nearly all. So
//! there is one for all who wait, and it runs only as long as somebody does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::background::Background;

/// Time between two beats: a look costs some microseconds, and who waits for one does not notice so
/// little.
pub(crate) const BEAT: Duration = Duration::from_millis(100);

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Pulse {
    beats: Arc<Beats>,
}

#[derive(Default)]
struct Beats {
    state: Mutex<State>,
    beat: Notify,
}

#[derive(Default)]
struct State {
    waiting: usize,
    /// There is a task that beats.
    beats: bool,
}

/// Somebody who waits, until it is dropped.
pub(crate) struct Waiting {
    beats: Arc<Beats>,
}

impl Pulse {
    /// Somebody waits from now on. Must be called within a tokio runtime.
    pub(crate) fn wait(&self, background: &Background) -> Waiting {
        let waiting = Waiting { beats: self.beats.clone() };
        let begins = {
            let mut state = self.beats.lock();
            state.waiting += 1;
            !std::mem::replace(&mut state.beats, true)
        };
        if begins {
            let beats = self.beats.clone();
            background.start(async move { beats.run().await });
        }
        waiting
    }
}

impl Beats {
    /// Beats as long as somebody waits.
    async fn run(&self) {
        loop {
            tokio::time::sleep(BEAT).await;
            {
                let mut state = self.lock();
                if state.waiting == 0 {
                    state.beats = false;
                    return;
                }
            }
            self.beat.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Ends with the next beat after this call.
    pub(crate) fn beat(&self) -> Notified<'_> {
        self.beats.beat.notified()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.beats.lock().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn it_beats_for_all_who_wait_and_only_as_long() {
        let (pulse, background) = (Pulse::default(), Background::default());
        let (first, second) = (pulse.wait(&background), pulse.wait(&background));
        assert_eq!(background.len(), 1);
        let begun = Instant::now();
        tokio::join!(first.beat(), second.beat());
        assert_eq!(begun.elapsed(), BEAT);
        drop(first);
        second.beat().await;
        assert_eq!(begun.elapsed(), 2 * BEAT);
        drop(second);
        sleep(2 * BEAT).await;
        assert_eq!(background.len(), 0);
        // And again.
        let third = pulse.wait(&background);
        third.beat().await;
        drop(third);
        // Somebody comes before it has noticed that nobody waits: one goes on.
        let fourth = pulse.wait(&background);
        assert_eq!(background.len(), 1);
        fourth.beat().await;
    }
}
