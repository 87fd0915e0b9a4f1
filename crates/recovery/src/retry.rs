//! One call that was lost, and its patience.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::{Errno, Result};
use tokio::time::Instant;

use crate::Core;
use crate::config::Patience;
use crate::link::{Waiting, is_loss};

/// Losses of one call that follow each other without a pause, if there is a connection in between:
/// a connection that breaks twice is nothing special.
const QUICK_LOSSES: u32 = 4;

/// The pause after that; doubles with each loss. A request at which a server breaks down is not to
/// be sent to it in a tight loop.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest such pause.
const LAST_PAUSE: Duration = Duration::from_secs(4);

/// A connection that was lost, and is made anew, stands within this time. If not, and if no smallest
/// question is answered in as long again, it counts as missing.
const SOON: Duration = Duration::from_secs(2);

/// Handles of one call that may be stale as soon as they are opened, in a row, before that is the
/// answer.
pub(crate) const MAX_STALE: u32 = 8;

/// A future of the remote below.
pub(crate) type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The trouble of one call, from its first loss (or from when it found no connection) to its end.
pub(crate) struct Trouble<'a> {
    core: &'a Arc<Core>,
    deadline: Option<Instant>,
    losses: u32,
    /// The last of them.
    why: Errno,
    stale_in_a_row: u32,
    _waiting: Waiting<'a>,
}

impl<'a> Trouble<'a> {
    pub(crate) fn new(core: &'a Arc<Core>) -> Trouble<'a> {
        let deadline = match core.config.patience {
            Patience::Soft(limit) => Some(Instant::now() + limit),
            Patience::Hard | Patience::None => None,
        };
        let waiting = core.link.begin_waiting();
        let (losses, why) = (0, Errno::EHOSTDOWN);
        Trouble { core, deadline, losses, why, stale_in_a_row: 0, _waiting: waiting }
    }

    /// The call was lost with `errno`. `Ok` when it may go on, which may take its time.
    pub(crate) async fn lost(&mut self, errno: Errno) -> Result<()> {
        if self.core.config.patience == Patience::None {
            self.core.link.lost(self.core, errno);
            return Err(errno);
        }
        self.losses += 1;
        self.why = errno;
        self.stale_in_a_row = 0;
        // The first may be over at once: another gateway, or a connection that is made anew.
        if self.losses.is_multiple_of(2) {
            self.core.link.lost(self.core, errno);
        }
        self.connected().await?;
        self.pause().await
    }

    /// A handle below is of no use any more, though there may be a connection.
    async fn stale(&mut self) -> Result<()> {
        self.losses += 1;
        self.stale_in_a_row += 1;
        if self.stale_in_a_row > MAX_STALE {
            return Err(Errno::ESTALE);
        }
        self.connected().await?;
        self.pause().await
    }

    /// After a loss of any kind, or none yet.
    pub(crate) async fn after(&mut self, lost: Option<Errno>) -> Result<()> {
        match lost {
            None => self.connected().await,
            Some(errno) if is_loss(errno) => self.lost(errno).await,
            Some(_) => self.stale().await,
        }
    }

    async fn pause(&self) -> Result<()> {
        let Some(doublings) = self.losses.checked_sub(QUICK_LOSSES) else { return Ok(()) };
        let pause = FIRST_PAUSE.saturating_mul(1 << doublings.min(16)).min(LAST_PAUSE);
        self.within(async {
            tokio::time::sleep(pause).await;
            Ok(())
        })
        .await
    }

    /// Returns when there is a connection, as far as it is known.
    pub(crate) async fn connected(&self) -> Result<()> {
        if !self.core.link.is_away() {
            return Ok(());
        }
        if self.core.config.patience == Patience::None {
            self.core.link.miss();
            return Err(Errno::EHOSTDOWN);
        }
        let up = async {
            self.core.link.up().await;
            Ok(())
        };
        self.within(up).await
    }

    /// What comes of `asked`, if it comes in time; else `ETIMEDOUT`, and the patience
    /// [is over](Trouble::is_over).
    pub(crate) async fn within<T>(&self, asked: impl Future<Output = Result<T>>) -> Result<T> {
        let asked = async {
            tokio::select! {
                biased;
                answer = asked => answer,
                never = self.doubt() => match never {},
            }
        };
        match self.deadline {
            None => asked.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, asked).await {
                Ok(answer) => answer,
                Err(_) => Err(Errno::ETIMEDOUT),
            },
        }
    }

    /// Looks whether there is a connection at all, when what was asked after a loss takes its time:
    /// those who can do without need not wait until that has failed as well, which may take as long
    /// as the remote below tries to connect.
    async fn doubt(&self) -> Infallible {
        if self.losses > 0 {
            tokio::time::sleep(SOON).await;
            self.core.link.look_soon(self.core, SOON, self.why).await;
        }
        std::future::pending().await
    }

    /// Whether the call has to end now, with what it has.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Whether `errno` is a loss after which there is time to go on.
    pub(crate) fn goes_on_after(&self, errno: Errno) -> bool {
        is_loss(errno) && !self.is_over()
    }
}

impl Core {
    /// What `call` gives, which may be made as often as need be.
    pub(crate) async fn repeated<'a, T: Send>(
        self: &'a Arc<Core>,
        call: impl Fn() -> Asked<'a, T> + Send + Sync,
    ) -> Result<T> {
        let mut lost = None;
        if !self.link.is_away() {
            match call().await {
                Err(errno) if is_loss(errno) => lost = Some(errno),
                answer => return answer,
            }
        }
        // Boxed, so that a call which goes well is not as large as this.
        Box::pin(self.repeat(lost, call)).await
    }

    async fn repeat<'a, T: Send>(
        self: &'a Arc<Core>,
        mut lost: Option<Errno>,
        call: impl Fn() -> Asked<'a, T> + Send + Sync,
    ) -> Result<T> {
        let mut trouble = Trouble::new(self);
        loop {
            trouble.after(lost).await?;
            match trouble.within(call()).await {
                Err(errno) if trouble.goes_on_after(errno) => lost = Some(errno),
                answer => return answer,
            }
        }
    }

    /// Waits for a connection if it is known that there is none, before anything is sent.
    pub(crate) async fn connected(self: &Arc<Core>) -> Result<()> {
        match self.link.is_away() {
            false => Ok(()),
            true => Box::pin(async { Trouble::new(self).connected().await }).await,
        }
    }
}
