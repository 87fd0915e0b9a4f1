//! The end of a mount with writes that are not at the server yet.
//!
//! There are some when a writer was killed, or had no patience with his close: the others have
//! waited. Nobody can be told of them in the usual way any more, and nobody sees that a process
//! still waits for a link that is away. So it waits for as long as something gets on, then gives up,
//! and says so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// Bytes that were given up.
    unwritten: AtomicU64,
}

impl Ending {
    /// Somebody asks for the end. `false` if nobody has before, and it has not begun, and is to be
    /// begun; otherwise it waits for nothing from now on.
    pub fn hurries(&self) -> bool {
        let again = self.asked.swap(true, Ordering::SeqCst) || self.begun.load(Ordering::SeqCst);
        if again {
            self.hurry.notify_one();
        }
        again
    }

    /// Bytes that were acknowledged to who wrote them, and given up.
    pub fn unwritten_bytes(&self) -> u64 {
        self.unwritten.load(Ordering::SeqCst)
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
        let bytes = vfs.figures().dirty_bytes;
        self.unwritten.store(bytes, Ordering::SeqCst);
        tracing::error!("{bytes} bytes that were written were given up {why}");
    }
}

/// Returns when no write was answered for too long.
async fn standstill(vfs: &Vfs) {
    let began = Instant::now();
    let (mut left, mut since, mut is_told) = (vfs.figures().dirty_bytes, began, false);
    while since.elapsed() < PATIENCE {
        tokio::time::sleep(LOOK).await;
        let now = vfs.figures().dirty_bytes;
        if now < left {
            (left, since) = (now, Instant::now());
        }
        if !is_told && began.elapsed() >= NOTICE_AFTER {
            is_told = true;
            let limit = PATIENCE.as_secs();
            tracing::warn!(
                "{left} bytes are still to be written; they are given up after {limit} s without \
                 an answer, or by a signal"
            );
        }
    }
}
