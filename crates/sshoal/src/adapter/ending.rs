//! The end of a mount that has data not yet written to the server.
//!
//! Such data remains only of writers that were killed, or whose close was interrupted; other
//! writers have waited. Errors can no longer be returned to a caller, and the user does not see a
//! daemon that waits for a lost link. So the daemon waits while writes make progress, then gives up
//! and reports it.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::Vfs;

use crate::quantity::count;

/// Maximum wait for the next acknowledged write. Together with the time-out of calls in progress
/// (30 s) it is less than the 90 s after which a system that shuts down kills processes.
pub const PATIENCE: Duration = Duration::from_secs(45);

/// After this time a message reports what is being waited for.
const NOTICE_AFTER: Duration = Duration::from_secs(10);

/// Interval between two checks of the progress.
const LOOK: Duration = Duration::from_millis(500);

/// The state of the end of a mount.
#[derive(Default)]
pub struct Ending {
    /// A signal has requested it.
    asked: AtomicBool,
    /// It has begun, for any reason.
    begun: AtomicBool,
    hurry: Notify,
    /// The data that was given up.
    given_up: OnceLock<Left>,
}

impl Ending {
    /// Records a request for the end. If it is not the first one, or the end has begun, the waiting
    /// stops.
    pub fn requested(&self) {
        if self.asked.swap(true, Ordering::SeqCst) || self.begun.load(Ordering::SeqCst) {
            self.hurry.notify_one();
        }
    }

    /// Waits until the waiting is to stop. From then on this returns at once.
    pub async fn hurried(&self) {
        self.hurry.notified().await;
        // For those that wait later.
        self.hurry.notify_one();
    }

    /// Whether a signal has requested the end, or it has begun for another reason.
    pub fn is_requested(&self) -> bool {
        self.asked.load(Ordering::SeqCst) || self.begun.load(Ordering::SeqCst)
    }

    /// The acknowledged data that was not written to the server, in words.
    pub fn lost(&self, vfs: &Vfs) -> Option<String> {
        if let Some(error) = vfs.lost_write() {
            return Some(format!("a file that was closed could not be written: {error}"));
        }
        let left = self.given_up.get()?;
        Some(format!("{left} of killed or interrupted writers were not written to the server"))
    }

    /// Waits until all data is on the server, or until there was no progress for too long.
    pub(super) async fn drain(&self, vfs: &Vfs) {
        self.begun.store(true, Ordering::SeqCst);
        let why = tokio::select! {
            biased;
            () = vfs.drain() => return,
            () = self.hurried() => "interrupted by a signal".to_owned(),
            () = standstill(vfs) => format!("no reply for {} s", PATIENCE.as_secs()),
        };
        let left = Left::of(vfs);
        if left == Left::default() {
            // Every write was acknowledged.
            tracing::warn!("the server's answers to the last closes are not known: {why}");
            return;
        }
        // The mount ends once.
        let _ = self.given_up.set(left);
        tracing::error!("gave up {left} that were not written to the server: {why}");
    }
}

/// Acknowledged data that is not on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Left {
    bytes: u64,
    /// Attribute changes.
    changes: u64,
}

impl Left {
    fn of(vfs: &Vfs) -> Left {
        let figures = vfs.stats();
        Left { bytes: figures.dirty_bytes, changes: figures.dirty_changes }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Left { bytes, changes } = *self;
        let words = (count(bytes, "byte"), count(changes, "attribute change"));
        match (words, bytes, changes) {
            ((bytes, _), _, 0) => f.write_str(&bytes),
            ((_, changes), 0, _) => f.write_str(&changes),
            ((bytes, changes), ..) => write!(f, "{bytes} and {changes}"),
        }
    }
}

/// Returns when no write was acknowledged for too long.
async fn standstill(vfs: &Vfs) {
    let began = Instant::now();
    let (mut left, mut since, mut is_told) = (Left::of(vfs), began, false);
    while since.elapsed() < PATIENCE {
        tokio::time::sleep(LOOK).await;
        let now = Left::of(vfs);
        // No data is added any more.
        if now != left {
            (left, since) = (now, Instant::now());
        }
        if !is_told && left != Left::default() && began.elapsed() >= NOTICE_AFTER {
            is_told = true;
            let limit = PATIENCE.as_secs();
            tracing::warn!(
                "{left} are still to be written; gives up after {limit} s without a reply of the \
                 server, or by a signal"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_request_stops_every_wait() {
        let ending = Ending::default();
        let is_hurried = async || {
            tokio::select! {
                biased;
                () = ending.hurried() => true,
                () = std::future::ready(()) => false,
            }
        };
        ending.requested();
        assert!(!is_hurried().await);
        ending.requested();
        assert!(is_hurried().await && is_hurried().await);
    }

    #[test]
    fn remaining_data_is_described() {
        let said = |bytes, changes| Left { bytes, changes }.to_string();
        assert_eq!(said(7, 0), "7 bytes");
        assert_eq!(said(1, 1), "1 byte and 1 attribute change");
        assert_eq!(said(0, 1), "1 attribute change");
        assert_eq!(said(7, 2), "7 bytes and 2 attribute changes");
    }
}
