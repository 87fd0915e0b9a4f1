//! What happens to a link at random while an operation is under way.

use std::time::Duration;

use base::{Errno, Remote};

use super::{FaultyRemote, Which};

/// A fault of one operation.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// All is well.
    None,
    /// The nth call from now does not happen.
    Unsent(u64),
    /// The answer of the nth call from now is lost.
    Unanswered(u64),
    /// After so many turns of the scheduler the link breaks, for so many seconds; handles of before
    /// are stale then.
    Cut(usize, u64),
    /// [`Fault::Cut`] and [`Fault::Unanswered`]: what is asked to learn what became of the call is
    /// lost as well.
    CutAndUnanswered(usize, u64),
}

impl Fault {
    /// Makes it happen to `link`. Returns when a cut is over, or when the call that is to fail is
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
