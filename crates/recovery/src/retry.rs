//! One call that was lost, and its patience.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::{Errno, Result};
use tokio::time::Instant;

use crate::Core;
use crate::RetryPolicy;
use crate::connection::{WaitGuard, is_loss};

/// Losses of one call that follow each other without a pause, if there is a connection in between:
/// a connection that breaks twice is nothing special.
const FAST_RETRIES: u32 = 4;

/// The pause after that; doubles with each loss. A request at which a server breaks down is not to
/// be sent to it in a tight loop.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// Longest such pause.
const MAX_BACKOFF: Duration = Duration::from_secs(4);

/// A connection that was lost, and is made anew, stands within this time. If not, and if no smallest
/// question is answered in as long again, it counts as missing.
const RECONNECT_TIME: Duration = Duration::from_secs(2);

/// Handles of one call that may be stale as soon as they are opened, in a row, before that is the
/// answer.
pub(crate) const MAX_STALE: u32 = 8;

/// A future of the remote below.
pub(crate) type RemoteCall<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The trouble of one call, from its first loss (or from when it found no connection) to its end.
pub(crate) struct Retry<'a> {
    core: &'a Arc<Core>,
    deadline: Option<Instant>,
    losses: u32,
    /// The last of them.
    last_error: Errno,
    consecutive_stale: u32,
    _wait: WaitGuard<'a>,
}

impl<'a> Retry<'a> {
    pub(crate) fn new(core: &'a Arc<Core>) -> Retry<'a> {
        let deadline = match core.config.retry_policy {
            RetryPolicy::Soft(limit) => Some(Instant::now() + limit),
            RetryPolicy::Hard | RetryPolicy::None => None,
        };
        let wait = core.connection.begin_wait();
        let (losses, last_error) = (0, Errno::EHOSTDOWN);
        Retry { core, deadline, losses, last_error, consecutive_stale: 0, _wait: wait }
    }

    /// The call was lost with `errno`. `Ok` when it may go on, which may take its time.
    pub(crate) async fn after_loss(&mut self, errno: Errno) -> Result<()> {
        if self.core.config.retry_policy == RetryPolicy::None {
            self.core.connection.set_disconnected(self.core, errno);
            return Err(errno);
        }
        self.losses += 1;
        self.last_error = errno;
        self.consecutive_stale = 0;
        // The first may be over at once: another gateway, or a connection that is made anew.
        if self.losses.is_multiple_of(2) {
            self.core.connection.set_disconnected(self.core, errno);
        }
        self.wait_connected().await?;
        self.backoff().await
    }

    /// A handle below is of no use any more, though there may be a connection.
    async fn after_stale(&mut self) -> Result<()> {
        self.losses += 1;
        self.consecutive_stale += 1;
        if self.consecutive_stale > MAX_STALE {
            return Err(Errno::ESTALE);
        }
        self.wait_connected().await?;
        self.backoff().await
    }

    /// After a loss of any kind, or none yet.
    pub(crate) async fn before_attempt(&mut self, lost: Option<Errno>) -> Result<()> {
        match lost {
            None => self.wait_connected().await,
            Some(errno) if is_loss(errno) => self.after_loss(errno).await,
            Some(_) => self.after_stale().await,
        }
    }

    async fn backoff(&self) -> Result<()> {
        let Some(doublings) = self.losses.checked_sub(FAST_RETRIES) else { return Ok(()) };
        let backoff = FIRST_BACKOFF.saturating_mul(1 << doublings.min(16)).min(MAX_BACKOFF);
        self.within_deadline(async {
            tokio::time::sleep(backoff).await;
            Ok(())
        })
        .await
    }

    /// Returns when there is a connection, as far as it is known.
    pub(crate) async fn wait_connected(&self) -> Result<()> {
        if !self.core.connection.is_disconnected() {
            return Ok(());
        }
        if self.core.config.retry_policy == RetryPolicy::None {
            self.core.connection.note_waiter();
            return Err(Errno::EHOSTDOWN);
        }
        let connected = async {
            self.core.connection.connected().await;
            Ok(())
        };
        self.within_deadline(connected).await
    }

    /// What comes of `call`, if it comes in time; else `ETIMEDOUT`, and the patience
    /// [is over](Retry::has_expired).
    pub(crate) async fn within_deadline<T>(
        &self,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let call = async {
            tokio::select! {
                biased;
                answer = call => answer,
                never = self.probe_when_slow() => match never {},
            }
        };
        match self.deadline {
            None => call.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, call).await {
                Ok(answer) => answer,
                Err(_) => Err(Errno::ETIMEDOUT),
            },
        }
    }

    /// Looks whether there is a connection at all, when what was asked after a loss takes its time:
    /// those who can do without need not wait until that has failed as well, which may take as long
    /// as the remote below tries to connect.
    async fn probe_when_slow(&self) -> Infallible {
        if self.losses > 0 {
            tokio::time::sleep(RECONNECT_TIME).await;
            self.core.connection.probe(self.core, RECONNECT_TIME, self.last_error).await;
        }
        std::future::pending().await
    }

    /// Whether the call has to end now, with what it has.
    pub(crate) fn has_expired(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Whether `errno` is a loss after which there is time to go on.
    pub(crate) fn is_retryable(&self, errno: Errno) -> bool {
        is_loss(errno) && !self.has_expired()
    }
}

impl Core {
    /// What `call` gives, which may be made as often as need be.
    pub(crate) async fn with_retry<'a, T: Send>(
        self: &'a Arc<Core>,
        call: impl Fn() -> RemoteCall<'a, T> + Send + Sync,
    ) -> Result<T> {
        let mut lost = None;
        if !self.connection.is_disconnected() {
            match call().await {
                Err(errno) if is_loss(errno) => lost = Some(errno),
                answer => return answer,
            }
        }
        // Boxed, so that a call which goes well is not as large as this.
        Box::pin(self.retry_until_done(lost, call)).await
    }

    async fn retry_until_done<'a, T: Send>(
        self: &'a Arc<Core>,
        mut lost: Option<Errno>,
        call: impl Fn() -> RemoteCall<'a, T> + Send + Sync,
    ) -> Result<T> {
        let mut retry = Retry::new(self);
        loop {
            retry.before_attempt(lost).await?;
            match retry.within_deadline(call()).await {
                Err(errno) if retry.is_retryable(errno) => lost = Some(errno),
                answer => return answer,
            }
        }
    }

    /// Waits for a connection if it is known that there is none, before anything is sent.
    pub(crate) async fn wait_connected(self: &Arc<Core>) -> Result<()> {
        match self.connection.is_disconnected() {
            false => Ok(()),
            true => Box::pin(async { Retry::new(self).wait_connected().await }).await,
        }
    }
}
