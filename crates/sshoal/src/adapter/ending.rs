//! The end of a mount with writes that are not at the server yet.
//!
//! There are some when a writer was killed, or had no patience with his close: the others have
//! waited. Nobody can be told of them in the usual way any more, and nobody sees that a process
//! still waits for a link that is away. So it waits for as long as something gets on, then gives up,
//! and says so.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::Vfs;

/// The end waits so long for one more answer to a write. With the time that calls under way have
/// (30 s) it is less than the 90 s after which a system that shuts down kills what is left.
pub const PATIENCE: Duration = Duration::from_secs(45);

/// After this time it is told that there is something to wait for.
const NOTICE_AFTER: Duration = Duration::from_secs(10);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// How the end of a mount gets on.
#[derive(Default)]
pub struct Ending {
    /// Somebody has asked for it.
    asked: AtomicBool,
    /// It has begun, whoever wanted it.
    begun: AtomicBool,
    hurry: Notify,
    /// What was given up.
    given_up: OnceLock<Left>,
}

impl Ending {
    /// Notes a request for the end. If it is not the first one, or the end is under way, the end
    /// waits for nothing from now on.
    pub fn requested(&self) {
        if self.asked.swap(true, Ordering::SeqCst) || self.begun.load(Ordering::SeqCst) {
            self.hurry.notify_one();
        }
    }

    /// What will not be at the server of all that was acknowledged to those who wrote it, in words.
    pub fn lost(&self, vfs: &Vfs) -> Option<String> {
        if let Some(error) = vfs.lost_write() {
            return Some(format!("a file that was closed could not be written: {error}"));
        }
        let left = self.given_up.get()?;
        Some(format!("{left} of killed or interrupted writers were given up"))
    }

    /// Waits until everything is at the server, or nothing gets on for too long.
    pub(super) async fn drain(&self, vfs: &Vfs) {
        self.begun.store(true, Ordering::SeqCst);
        let why = tokio::select! {
            biased;
            () = vfs.drain() => return,
            () = self.hurry.notified() => "by a signal".to_owned(),
            () = standstill(vfs) => format!("after {} s without an answer", PATIENCE.as_secs()),
        };
        let left = Left::of(vfs);
        // The mount ends once.
        let _ = self.given_up.set(left);
        tracing::error!("{left} that were written were given up {why}");
    }
}

/// What was acknowledged and is not at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    bytes: u64,
    /// Of attributes.
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
        let Left { bytes, changes } = self;
        if *changes == 0 {
            return write!(f, "{bytes} bytes");
        }
        let and = if *bytes > 0 { format!("{bytes} bytes and ") } else { String::new() };
        let plural = if *changes == 1 { "" } else { "s" };
        write!(f, "{and}{changes} change{plural} of attributes")
    }
}

/// Returns when no write was answered for too long.
async fn standstill(vfs: &Vfs) {
    let began = Instant::now();
    let (mut left, mut since, mut is_told) = (Left::of(vfs), began, false);
    while since.elapsed() < PATIENCE {
        tokio::time::sleep(LOOK).await;
        let now = Left::of(vfs);
        // Nothing is added any more.
        if now != left {
            (left, since) = (now, Instant::now());
        }
        if !is_told && began.elapsed() >= NOTICE_AFTER {
            is_told = true;
            let limit = PATIENCE.as_secs();
            tracing::warn!(
                "{left} are still to be written; they are given up after {limit} s without an \
                 answer, or by a signal"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_said_in_words() {
        let said = |bytes, changes| Left { bytes, changes }.to_string();
        assert_eq!(said(7, 0), "7 bytes");
        assert_eq!(said(0, 1), "1 change of attributes");
        assert_eq!(said(7, 2), "7 bytes and 2 changes of attributes");
    }
}
