//! Requests that could not be answered offline.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::{Errno, RemotePath};
use tokio::time::Instant;

/// Time between two log lines of a kind. A walk through a tree that is not cached would fill the
/// log otherwise.
const PAUSE: Duration = Duration::from_secs(30);

/// See the [module](self).
#[derive(Default)]
pub(crate) struct OfflineMisses {
    logged_at: Mutex<HashMap<&'static str, Instant>>,
    count: AtomicU64,
}

impl OfflineMisses {
    /// Counts and logs that `what` of `path` is not cached; returns the error for it.
    pub(crate) fn report(&self, what: &'static str, path: &RemotePath) -> Errno {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let now = Instant::now();
        let due = {
            let mut logged_at = self.logged_at.lock().unwrap_or_else(PoisonError::into_inner);
            let due = logged_at.get(what).is_none_or(|last| now.duration_since(*last) >= PAUSE);
            if due {
                logged_at.insert(what, now);
            }
            due
        };
        if due {
            tracing::warn!(
                "{path}: {what} not in the cache, and the server is not queried: EIO ({count} so \
                 far); 'sshoal warm' fetches files for offline use"
            );
        }
        Errno::EIO
    }

    /// The number of such requests.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}
