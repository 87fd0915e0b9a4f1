//! The state of the connection as this crate sees it, and the one task that probes a lost
//! connection.
//!
//! - `Connected`: the initial state. → `Disconnected` after two losses of one call in a row
//!   ([`ConnectionMonitor::set_disconnected`]), or after one loss if a probe gets no reply within
//!   some seconds ([`ConnectionMonitor::probe`]). That starts the task that probes.
//! - `Disconnected`: with the start and the error of the outage. Calls wait for its end. →
//!   `Connected` by the task, when the inner remote replies, with any result.
//!
//! The inner remote reconnects by itself when it receives a request, and limits how often it tries.
//! So frequent probes cost nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use base::{Errno, OnDrop, RemotePath};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::{Config, Core};

/// Time between the first probe without a reply and the second one; doubles with each probe.
const FIRST_PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Longest time between probes while a call waits: the delay with which a restored link is noticed.
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time between probes while no call waits.
const IDLE_PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// The state of the connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum State {
    #[default]
    Connected,
    Disconnected(Outage),
}

/// A lost connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    began: Instant,
    pub(crate) since: SystemTime,
    pub(crate) error: Errno,
}

/// The connection of one [`Recovering`](crate::Recovering).
#[derive(Default)]
pub(crate) struct ConnectionMonitor {
    state: watch::Sender<State>,
    /// Whether `state` is `Disconnected`, for a cheap check.
    is_down: AtomicBool,
    /// Calls that wait or are retried.
    waiting_calls: AtomicUsize,
    /// Since the last probe, a call has begun to wait or was refused.
    has_new_waiter: AtomicBool,
    new_waiter: Notify,
    /// A call of this outage has given up, which is logged once.
    has_given_up: AtomicBool,
    /// [`ConnectionMonitor::probe`] is waiting for a reply.
    is_probing: AtomicBool,
}

impl ConnectionMonitor {
    pub(crate) fn is_disconnected(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> State {
        *self.state.borrow()
    }

    pub(crate) fn waiting_calls(&self) -> usize {
        self.waiting_calls.load(Ordering::Relaxed)
    }

    /// Counts a waiting call until the returned guard is dropped.
    pub(crate) fn begin_wait(&self) -> WaitGuard<'_> {
        self.waiting_calls.fetch_add(1, Ordering::Relaxed);
        self.note_waiter();
        WaitGuard(self)
    }

    /// A call needs a connection: the next probe is sent sooner.
    pub(crate) fn note_waiter(&self) {
        if !self.has_new_waiter.swap(true, Ordering::Relaxed) {
            self.new_waiter.notify_one();
        }
    }

    /// Returns when the state is connected.
    pub(crate) async fn connected(&self) {
        self.wait_for_state(|state| matches!(state, State::Connected)).await;
    }

    /// Returns when the state is disconnected.
    pub(crate) async fn disconnected(&self) {
        self.wait_for_state(|state| matches!(state, State::Disconnected(_))).await;
    }

    async fn wait_for_state(&self, wanted: impl FnMut(&State) -> bool) {
        // The receiver lives as long as the sender, which `self` owns.
        let _ = self.state.subscribe().wait_for(wanted).await;
    }

    /// The connection was lost with this error.
    pub(crate) fn set_disconnected(&self, core: &Arc<Core>, error: Errno) {
        let is_new = self.state.send_if_modified(|state| {
            let is_new = matches!(state, State::Connected);
            if is_new {
                let (began, since) = (Instant::now(), SystemTime::now());
                *state = State::Disconnected(Outage { began, since, error });
                self.is_down.store(true, Ordering::Relaxed);
            }
            is_new
        });
        if is_new {
            tracing::debug!(name = core.config.name, "connection lost: {error}");
            tokio::spawn(reconnect(Arc::downgrade(core)));
        }
    }

    /// Sends an lstat of the root, unless another probe is waiting for its reply. Without a reply
    /// within `time_limit` the state becomes disconnected.
    pub(crate) async fn probe(&self, core: &Arc<Core>, time_limit: Duration, error: Errno) {
        if self.is_disconnected() || self.is_probing.swap(true, Ordering::Relaxed) {
            return;
        }
        let _probing = OnDrop(|| self.is_probing.store(false, Ordering::Relaxed));
        let root = RemotePath::root();
        match tokio::time::timeout(time_limit, core.inner.lstat(&root)).await {
            Ok(Err(errno)) if errno.is_loss() => self.set_disconnected(core, errno),
            Ok(_) => {}
            Err(_) => self.set_disconnected(core, error),
        }
    }

    /// Logs, once for each outage, that calls fail after waiting for `limit`.
    pub(crate) fn note_given_up(&self, name: &str, limit: Duration) {
        if !self.has_given_up.swap(true, Ordering::Relaxed) {
            let secs = limit.as_secs_f64();
            tracing::warn!("{name}: no answer; calls that waited for {secs} s fail (soft)");
        }
    }

    fn set_connected(&self) {
        self.has_given_up.store(false, Ordering::Relaxed);
        self.state.send_modify(|state| {
            *state = State::Connected;
            self.is_down.store(false, Ordering::Relaxed);
        });
    }

    /// Waits until the next probe is due: `pause` after the last one while a call waits, else up to
    /// [`IDLE_PROBE_INTERVAL`].
    async fn pause(&self, pause: Duration) {
        let last_probe = Instant::now();
        let has_waiter = || self.waiting_calls() > 0 || self.has_new_waiter.load(Ordering::Relaxed);
        if !has_waiter() {
            let new_waiter = tokio::time::timeout(IDLE_PROBE_INTERVAL, self.new_waiter.notified());
            let _ = new_waiter.await;
        }
        tokio::time::sleep_until(last_probe + pause).await;
        self.has_new_waiter.store(false, Ordering::Relaxed);
    }
}

/// A waiting call.
#[must_use]
pub(crate) struct WaitGuard<'a>(&'a ConnectionMonitor);

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.waiting_calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Probes until there is a reply, and logs a long outage.
async fn reconnect(core: Weak<Core>) {
    let Some(lifetime) = core.upgrade().map(|core| core.lifetime.clone()) else { return };
    lifetime.run(probe_until_answered(core)).await;
}

async fn probe_until_answered(core: Weak<Core>) {
    let Some(core) = core.upgrade() else { return };
    let State::Disconnected(outage) = core.connection.state() else { return };
    let Config { name, notice_after, .. } = &core.config;
    let mut is_logged = false;
    let probing = async {
        let mut pause = FIRST_PROBE_INTERVAL;
        while let Err(errno) = core.inner.lstat(&RemotePath::root()).await
            && errno.is_loss()
        {
            core.connection.pause(pause).await;
            pause = (pause * 2).min(MAX_PROBE_INTERVAL);
        }
    };
    tokio::pin!(probing);
    if tokio::time::timeout_at(outage.began + *notice_after, &mut probing).await.is_err() {
        is_logged = true;
        let why = core.inner.why_disconnected().unwrap_or_else(|| outage.error.to_string());
        // The hints on further lines are in the log of the attempts to connect.
        let why = why.lines().next().unwrap_or_default();
        tracing::warn!("{name}: not responding, still trying ({why})");
        probing.await;
    }
    core.connection.set_connected();
    if is_logged {
        tracing::warn!("{name}: OK, after {} s", outage.began.elapsed().as_secs());
    }
}
