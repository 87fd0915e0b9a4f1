//! Whether there is a connection, as far as it is known here, and the one task that asks for it.
//!
//! - `Up`: nothing says otherwise. → `Away` by a call that was lost twice in a row ([`Link::lost`]),
//!   or once, and nothing was answered for some seconds since ([`Link::look_soon`]). That starts the
//!   task that probes.
//! - `Away`: since when, and why. Calls wait for its end. → `Up` by that task, when the remote below
//!   answers, with whatever it be.
//!
//! The remote below connects anew by itself when it is asked something; how often it does so is its
//! own decision, so to ask it often costs nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use base::{Errno, RemotePath};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::Core;
use crate::config::Config;

/// Time to the second question after one that was not answered; doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest time between questions while somebody waits: what a link that is back is noticed late.
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// The same while nobody does.
const IDLE_PAUSE: Duration = Duration::from_secs(10);

/// How it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    Up,
    Away(Away),
}

/// A connection that is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Away {
    began: Instant,
    pub(crate) since: SystemTime,
    pub(crate) why: Errno,
}

/// The connection of one [`Steady`](crate::Steady).
pub(crate) struct Link {
    state: watch::Sender<State>,
    /// The same, for a look that costs nothing.
    away: AtomicBool,
    /// Calls that wait or try again.
    waiting: AtomicUsize,
    /// Somebody was turned away, or began to wait, since the last question.
    is_missed: AtomicBool,
    missed: Notify,
    /// Somebody asks whether it is still there.
    is_asked: AtomicBool,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            state: watch::Sender::new(State::Up),
            away: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            is_missed: AtomicBool::new(false),
            missed: Notify::new(),
            is_asked: AtomicBool::new(false),
        }
    }
}

/// Whether an error says that the connection was lost.
pub(crate) fn is_loss(errno: Errno) -> bool {
    errno == Errno::EHOSTDOWN || errno == Errno::ETIMEDOUT
}

impl Link {
    pub(crate) fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> State {
        *self.state.borrow()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Somebody begins to wait, until the returned value is dropped.
    pub(crate) fn begin_waiting(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.miss();
        Waiting(self)
    }

    /// Somebody would have liked a connection.
    pub(crate) fn miss(&self) {
        if !self.is_missed.swap(true, Ordering::Relaxed) {
            self.missed.notify_one();
        }
    }

    /// Returns when there is a connection, as far as it is known.
    pub(crate) async fn up(&self) {
        self.is(|state| matches!(state, State::Up)).await;
    }

    /// Returns when there is none.
    pub(crate) async fn gone(&self) {
        self.is(|state| matches!(state, State::Away(_))).await;
    }

    async fn is(&self, wanted: impl FnMut(&State) -> bool) {
        // It lives as long as the sender, which is ours.
        let _ = self.state.subscribe().wait_for(wanted).await;
    }

    /// The connection was lost, for this reason.
    pub(crate) fn lost(&self, core: &Arc<Core>, why: Errno) {
        let begun = self.state.send_if_modified(|state| {
            let begun = matches!(state, State::Up);
            if begun {
                let (began, since) = (Instant::now(), SystemTime::now());
                *state = State::Away(Away { began, since, why });
                self.away.store(true, Ordering::Relaxed);
            }
            begun
        });
        if begun {
            tracing::debug!(name = core.config.name, "no connection: {why}");
            tokio::spawn(probe(Arc::downgrade(core)));
        }
    }

    /// Asks the smallest question, unless somebody does. Without an answer `in_time` the connection
    /// counts as lost.
    pub(crate) async fn look_soon(&self, core: &Arc<Core>, in_time: Duration, why: Errno) {
        /// Somebody asks.
        struct Asking<'a>(&'a AtomicBool);
        impl Drop for Asking<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Relaxed);
            }
        }
        if self.is_away() || self.is_asked.swap(true, Ordering::Relaxed) {
            return;
        }
        let _asking = Asking(&self.is_asked);
        let root = RemotePath::root();
        match tokio::time::timeout(in_time, core.inner.lstat(&root)).await {
            Ok(Err(errno)) if is_loss(errno) => self.lost(core, errno),
            Ok(_) => {}
            Err(_) => self.lost(core, why),
        }
    }

    fn back(&self) {
        self.state.send_modify(|state| {
            *state = State::Up;
            self.away.store(false, Ordering::Relaxed);
        });
    }

    /// Waits until the next question is due, `pause` after the last one, or sooner if somebody
    /// misses an answer.
    async fn pause(&self, pause: Duration) {
        let asked = Instant::now();
        let is_wanted = || self.waiting() > 0 || self.is_missed.load(Ordering::Relaxed);
        if !is_wanted() {
            let missed = tokio::time::timeout(IDLE_PAUSE, self.missed.notified());
            let _ = missed.await;
        }
        tokio::time::sleep_until(asked + pause).await;
        self.is_missed.store(false, Ordering::Relaxed);
    }
}

/// A call that waits.
pub(crate) struct Waiting<'a>(&'a Link);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Asks until there is an answer, and says in the log when that takes long.
async fn probe(core: Weak<Core>) {
    let Some(mut wanted) = core.upgrade().map(|core| core.wanted.clone()) else { return };
    tokio::select! {
        () = ask_until_answered(core) => {}
        _ = wanted.changed() => {}
    }
}

async fn ask_until_answered(core: Weak<Core>) {
    let Some(core) = core.upgrade() else { return };
    let State::Away(away) = core.link.state() else { return };
    let Config { name, notice_after, .. } = &core.config;
    let mut noticed = false;
    let asking = async {
        let mut pause = FIRST_PAUSE;
        while let Err(errno) = core.inner.lstat(&RemotePath::root()).await
            && is_loss(errno)
        {
            core.link.pause(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    };
    tokio::pin!(asking);
    if tokio::time::timeout_at(away.began + *notice_after, &mut asking).await.is_err() {
        noticed = true;
        tracing::warn!("{name}: not responding, still trying ({})", away.why);
        asking.await;
    }
    core.link.back();
    if noticed {
        tracing::warn!("{name}: OK, after {} s", away.began.elapsed().as_secs());
    }
}
