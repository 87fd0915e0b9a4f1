//! Retries of one call after a loss: waiting for the connection, backoff, deadline.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::{Errno, Result};
use tokio::time::Instant;

use crate::connection::WaitGuard;
use crate::{Core, RetryPolicy};

/// Losses of one call that are retried without a backoff while the connection comes back in
/// between. A connection that breaks twice is nothing unusual.
const FAST_RETRIES: u32 = 4;

/// First backoff after [`FAST_RETRIES`] losses; it doubles with each loss. A request that crashes
/// the server must not be sent in a tight loop.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// Longest backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(4);

/// Time within which a lost connection is usually re-established. A retry that takes longer starts
/// a probe; if the probe gets no reply within the same time, the state becomes disconnected. A
/// shorter limit of the calls shortens both, so that this is noticed before they give up.
const RECONNECT_TIME: Duration = Duration::from_secs(2);

/// Reopened handles of one call that may be stale in a row before the call returns `ESTALE`, and
/// [temporary](is_temporary) refusals of a reopening before it returns their error.
pub(crate) const MAX_STALE: u32 = 8;

/// Whether a server that refuses to open or to read a file with this error may do it soon: it lacks
/// file descriptors or memory, or its disk did not answer.
pub(crate) fn is_temporary(errno: Errno) -> bool {
    matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EIO)
}

/// A call of the inner remote.
pub(crate) type RemoteCall<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The retries of one call, from its first loss (or from finding no connection) to its end.
pub(crate) struct Retry<'a> {
    core: &'a Arc<Core>,
    deadline: Option<Instant>,
    /// [`RECONNECT_TIME`], or less.
    reconnect_time: Duration,
    losses: u32,
    /// The error of the last loss.
    last_error: Errno,
    consecutive_stale: u32,
    _wait: WaitGuard<'a>,
}

impl<'a> Retry<'a> {
    pub(crate) fn new(core: &'a Arc<Core>) -> Retry<'a> {
        let (deadline, reconnect_time) = match core.retry_policy() {
            RetryPolicy::Soft(limit) => {
                (Some(Instant::now() + limit), RECONNECT_TIME.min(limit / 4))
            }
            RetryPolicy::Hard | RetryPolicy::None => (None, RECONNECT_TIME),
        };
        let wait = core.connection.begin_wait();
        let (losses, last_error) = (0, Errno::EHOSTDOWN);
        let consecutive_stale = 0;
        Retry { core, deadline, reconnect_time, losses, last_error, consecutive_stale, _wait: wait }
    }

    /// Handles a loss with `errno`: returns `Ok` when the call may be retried, after waiting for
    /// the connection and the backoff.
    pub(crate) async fn after_loss(&mut self, errno: Errno) -> Result<()> {
        if self.core.retry_policy() == RetryPolicy::None {
            self.core.connection.set_disconnected(self.core, errno);
            return Err(errno);
        }
        self.losses += 1;
        self.last_error = errno;
        self.consecutive_stale = 0;
        // One loss may be over at once, with another gateway or a new connection.
        if self.losses.is_multiple_of(2) {
            self.core.connection.set_disconnected(self.core, errno);
        }
        self.wait_connected().await?;
        self.backoff().await
    }

    /// Handles an inner handle that became stale, possibly while there is a connection, or a
    /// temporary refusal.
    async fn after_stale(&mut self, errno: Errno) -> Result<()> {
        if self.core.retry_policy() == RetryPolicy::None && is_temporary(errno) {
            return Err(errno);
        }
        self.losses += 1;
        self.consecutive_stale += 1;
        if self.consecutive_stale > MAX_STALE {
            return Err(if is_temporary(errno) { errno } else { Errno::ESTALE });
        }
        self.wait_connected().await?;
        self.backoff().await
    }

    /// Waits until the next attempt may start. `lost` is the error of the previous attempt, `None`
    /// before the first one.
    pub(crate) async fn before_attempt(&mut self, lost: Option<Errno>) -> Result<()> {
        match lost {
            None => self.wait_connected().await,
            Some(errno) if errno.is_loss() => self.after_loss(errno).await,
            Some(errno) => self.after_stale(errno).await,
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

    /// Returns when the state is connected.
    pub(crate) async fn wait_connected(&self) -> Result<()> {
        if !self.core.connection.is_disconnected() {
            return Ok(());
        }
        if self.core.retry_policy() == RetryPolicy::None {
            self.core.connection.note_waiter();
            return Err(Errno::EHOSTDOWN);
        }
        let connected = async {
            self.core.connection.connected().await;
            Ok(())
        };
        self.within_deadline(connected).await
    }

    /// Returns the result of `call`, or `ETIMEDOUT` after the deadline; then the retry [has
    /// expired](Retry::has_expired).
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
                Err(_) => {
                    if let RetryPolicy::Soft(limit) = self.core.retry_policy() {
                        self.core.connection.note_given_up(&self.core.config.name, limit);
                    }
                    Err(Errno::ETIMEDOUT)
                }
            },
        }
    }

    /// Probes the connection if a retry takes long. Callers that can do without the server then
    /// need not wait for a second failure, which may take as long as the inner remote tries to
    /// connect.
    async fn probe_when_slow(&self) -> Infallible {
        if self.losses > 0 {
            let time = self.reconnect_time;
            tokio::time::sleep(time).await;
            self.core.connection.probe(self.core, time, self.last_error).await;
        }
        std::future::pending().await
    }

    /// Whether the deadline is over: the call must return its last result.
    pub(crate) fn has_expired(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Whether `errno` is a loss and the deadline is not over.
    pub(crate) fn is_retryable(&self, errno: Errno) -> bool {
        errno.is_loss() && !self.has_expired()
    }

    /// The same for the error of a reopening, which may also be temporary.
    pub(crate) fn may_reopen_after(&self, errno: Errno) -> bool {
        (errno.is_loss() || is_temporary(errno)) && !self.has_expired()
    }
}

impl Core {
    /// Returns the result of `call`, which is idempotent: it is repeated after each loss.
    pub(crate) async fn with_retry<'a, T: Send>(
        self: &'a Arc<Core>,
        call: impl Fn() -> RemoteCall<'a, T> + Send + Sync,
    ) -> Result<T> {
        let mut lost = None;
        if !self.connection.is_disconnected() {
            match call().await {
                Err(errno) if errno.is_loss() => lost = Some(errno),
                answer => return answer,
            }
        }
        // Boxed, so that the future of a call without a loss stays small.
        Box::pin(self.retry_until_done(lost, call)).await
    }

    /// As [`Core::with_retry`], after an attempt that has `lost` its reply.
    pub(crate) async fn retry_until_done<'a, T: Send>(
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

    /// Waits for a connection, before anything is sent, if the state is disconnected.
    pub(crate) async fn wait_connected(self: &Arc<Core>) -> Result<()> {
        match self.connection.is_disconnected() {
            false => Ok(()),
            true => Box::pin(async { Retry::new(self).wait_connected().await }).await,
        }
    }
}
