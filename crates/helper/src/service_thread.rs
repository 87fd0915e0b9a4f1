//! A thread of a session that is started for the first request that needs it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the thread was started. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct ServiceThread(AtomicBool);

impl ServiceThread {
    /// Whether it has to be started now. True once.
    pub(crate) fn is_needed(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// It could not be started: no request waits for it.
    pub(crate) fn has_failed(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Whether a request may wait for it.
    pub(crate) fn is_there(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
