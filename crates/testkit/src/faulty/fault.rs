//! Random faults of a link during an operation.

use std::time::Duration;

use base::{Errno, Remote};

use super::{FaultyRemote, Which};

/// A fault of one operation.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// No fault.
    None,
    /// The nth call from now is not executed.
    Unsent(u64),
    /// The reply of the nth call from now is lost.
    Unanswered(u64),
    /// After this number of scheduler yields the link is cut, for this number of seconds; earlier
    /// handles are stale then.
    Cut(usize, u64),
    /// [`Fault::Cut`] and [`Fault::Unanswered`]: the reply to the query about the call's effect is
    /// lost too.
    CutAndUnanswered(usize, u64),
}

impl Fault {
    /// Injects the fault into `link`. Returns when a cut is over, or when the call to fail is
    /// determined.
    pub async fn happen<R: Remote + ?Sized>(self, link: &FaultyRemote<R>) {
        let (turns, secs) = match self {
            Fault::None => return,
            Fault::Unsent(nth) => return link.fail(Which::Any, nth, Errno::EHOSTDOWN),
            Fault::Unanswered(nth) => return link.fail_after(Which::Any, nth, Errno::ETIMEDOUT),
            Fault::Cut(turns, secs) => (turns, secs),
            Fault::CutAndUnanswered(turns, nth) => {
                link.fail_after(Which::Any, nth, Errno::EHOSTDOWN);
                (turns, 0)
            }
        };
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        link.cut();
        tokio::time::sleep(Duration::from_secs(secs)).await;
        link.restore_without_handles(Errno::ESTALE);
    }
}
