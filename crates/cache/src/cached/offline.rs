//! What could not be answered since the remote cannot be asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::{Errno, RemotePath};
use tokio::time::Instant;

/// One line of a kind in so much time. Who goes through a tree that is not here would fill the
/// log otherwise.
const PAUSE: Duration = Duration::from_secs(30);

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Misses {
    told: Mutex<HashMap<&'static str, Instant>>,
    count: AtomicU64,
}

impl Misses {
    /// `what` of `path` is not here. The error that says so.
    pub(crate) fn tell(&self, what: &'static str, path: &RemotePath) -> Errno {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let now = Instant::now();
        let due = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let due = told.get(what).is_none_or(|last| now.duration_since(*last) >= PAUSE);
            if due {
                told.insert(what, now);
            }
            due
        };
        if due {
            tracing::warn!(
                "{path}: {what} not in the cache, and the server is not asked: EIO ({count} so \
                 far); 'sshoal warm' fetches what is to be used offline"
            );
        }
        Errno::EIO
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}
