//! The sessions of one host: opened on demand, opened anew when lost. Which of the further ones are
//! used, and when they are opened and closed, is decided in `growth`.
//!
//! Each place of the pool is in one of these states:
//!
//! - `Vacant`: never connected. → `Connecting` by the first who needs it.
//! - `Connecting`: a task of its own connects; callers wait for it and may give up waiting, it
//!   goes on for as long as there is a host. → `Up` or `Down`.
//! - `Up`: a session, alive or not. When it is found dead → `Connecting`, where reconnecting is
//!   on, but not within a second of its beginning. When nobody needs it → `Vacant`.
//! - `Down`: the last attempt failed. Before `retry_at` callers are told so at once, or wait when
//!   that is near; after it → `Connecting`.
//!
//! The lock of a place is never held across an await.

pub(crate) mod status;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Errno;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::config::Config;
use crate::connector::{Connector, Role};
use crate::error::Error;
use crate::gate::{MAX_SLOTS, Slots};
use crate::gates::Gates;
use crate::growth;
use crate::session::Session;

/// Time to the second attempt after a failed one; doubles with each failure.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Longest time between attempts: what a link that is back is noticed late. OpenSSH punishes who
/// comes without logging in (`PerSourcePenalties`), each time for 1 s, and acts from 15 s on; at this
/// pace that is never reached.
const LAST_RETRY: Duration = Duration::from_secs(4);

/// The time after a failure that lasts. For a failed login OpenSSH's penalty is 5 s.
const LASTING_RETRY: Duration = Duration::from_secs(30);

/// An attempt nearer than this is waited for rather than answered with an error.
const PATIENCE: Duration = Duration::from_secs(2);

enum State {
    Vacant,
    Connecting,
    Up(Arc<Session>),
    Down { why: Error, failures: u32, retry_at: Instant },
}

struct Place {
    state: Mutex<State>,
    /// Notified when an attempt is over.
    settled: Notify,
}

impl Place {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be done to get a session.
enum Step {
    Have(Arc<Session>),
    /// It is gone for good.
    Lost,
    /// The caller has to start an attempt, after so many that failed.
    Connect {
        failures: u32,
    },
    /// An attempt is under way.
    Wait,
    /// There must be no attempt before this.
    Sleep {
        until: Instant,
        why: Error,
    },
}

/// Why there is no session now.
#[derive(Debug)]
pub(crate) enum Unavailable {
    /// The last one is gone and none is made anew.
    Lost,
    /// The last attempt failed.
    Failed(Error),
}

impl From<Unavailable> for Errno {
    fn from(_: Unavailable) -> Errno {
        Errno::EHOSTDOWN
    }
}

/// The sessions of one host.
pub(crate) struct Pool {
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) config: Config,
    places: Vec<Place>,
    /// The user has been let in before, so connecting takes no typing.
    connected_once: AtomicBool,
    /// Closed when the host is dropped.
    pub(crate) wanted: watch::Receiver<()>,
    pub(crate) gates: Gates,
    /// Why the last attempt to have the first session has failed; `None` once one has gone well.
    trouble: watch::Sender<Option<String>>,
    /// The sessions that carry content; none as long as the first one does everything.
    active: AtomicU64,
    /// What a caller should have on its way, in bytes.
    suggested_bytes: AtomicU64,
    /// Longest request that every session takes, in bytes; zero before the first session.
    request_bytes: AtomicU32,
}

impl Pool {
    /// Attempts to connect end when the other side of `wanted` is dropped.
    pub(crate) fn new(
        connector: Arc<dyn Connector>,
        config: Config,
        wanted: watch::Receiver<()>,
    ) -> Arc<Pool> {
        let places: Vec<_> = (0..config.max_conns.clamp(1, MAX_SLOTS))
            .map(|_| Place { state: Mutex::new(State::Vacant), settled: Notify::new() })
            .collect();
        let gates = Gates::new(places.len());
        Arc::new(Pool {
            connector,
            config,
            places,
            connected_once: AtomicBool::new(false),
            wanted,
            gates,
            trouble: watch::Sender::new(None),
            active: AtomicU64::new(0),
            suggested_bytes: AtomicU64::new(growth::suggested(1, growth::window_for(None))),
            request_bytes: AtomicU32::new(0),
        })
    }

    /// The sessions beside the first that carry content now.
    pub(crate) fn active(&self) -> Slots {
        Slots::from_bits(self.active.load(Ordering::Relaxed))
    }

    pub(crate) fn set_active(&self, slots: Slots) {
        self.active.store(slots.bits(), Ordering::Relaxed);
    }

    /// Takes lost sessions out of those that carry content.
    pub(crate) fn drop_dead(&self) {
        let living = self.active().iter().filter(|slot| self.living(*slot).is_some());
        self.set_active(living.fold(Slots::default(), Slots::with));
    }

    /// What the way to the server takes there and back, as far as it is known.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.living(0)?.client.round_trip()
    }

    pub(crate) fn suggest(&self, bytes: u64) {
        self.suggested_bytes.store(bytes, Ordering::Relaxed);
    }

    /// What [`base::Remote::suggested_window`] says.
    pub(crate) fn suggestion(&self) -> base::Window {
        let default = base::Window::default();
        let request_bytes = match self.request_bytes.load(Ordering::Relaxed) {
            0 => default.request_bytes,
            // A power of two, so that requests begin where pages do.
            most => 1 << most.ilog2(),
        };
        base::Window { bytes: self.suggested_bytes.load(Ordering::Relaxed), request_bytes }
    }

    /// Gives up a session that nobody uses.
    pub(crate) fn vacate(&self, slot: usize) {
        let mut state = self.places[slot].lock();
        if let State::Up(_) = &*state {
            let left = std::mem::replace(&mut *state, State::Vacant);
            drop(state);
            // Closed without the lock.
            drop(left);
        }
    }

    /// Number of places.
    pub(crate) fn size(&self) -> usize {
        self.places.len()
    }

    /// The living session of a place, if it has one now.
    pub(crate) fn living(&self, slot: usize) -> Option<Arc<Session>> {
        match &*self.places[slot].lock() {
            State::Up(session) if session.is_alive() => Some(session.clone()),
            _ => None,
        }
    }

    /// A living session in this place, connecting if need be.
    pub(crate) async fn session(
        self: &Arc<Pool>,
        slot: usize,
    ) -> Result<Arc<Session>, Unavailable> {
        loop {
            let settled = self.places[slot].settled.notified();
            match self.next_step(slot) {
                Step::Have(session) => return Ok(session),
                Step::Lost => return Err(Unavailable::Lost),
                // The first session is what everything depends on; others are only better.
                Step::Sleep { until, .. } if slot == 0 && until <= Instant::now() + PATIENCE => {
                    tokio::time::sleep_until(until).await;
                    continue;
                }
                Step::Sleep { why, .. } => return Err(Unavailable::Failed(why)),
                Step::Connect { failures } => {
                    tokio::spawn(self.clone().connect(slot, failures));
                    settled.await;
                }
                Step::Wait => settled.await,
            }
            // Those who waited for the attempt share its outcome.
            if let State::Down { why, .. } = &*self.places[slot].lock() {
                return Err(Unavailable::Failed(why.clone()));
            }
        }
    }

    fn next_step(&self, slot: usize) -> Step {
        let mut state = self.places[slot].lock();
        let failures = match &*state {
            State::Vacant => 0,
            State::Connecting => return Step::Wait,
            State::Up(session) if session.is_alive() => return Step::Have(session.clone()),
            State::Up(_) if !self.config.reconnect => return Step::Lost,
            State::Up(session) => {
                // A server that lets in and throws out at once is not to be asked in a tight loop.
                let until = session.began + FIRST_RETRY;
                if until > Instant::now() {
                    let why = session.lost();
                    return Step::Sleep { until, why };
                }
                0
            }
            State::Down { why, failures, retry_at } => {
                if *retry_at > Instant::now() {
                    return Step::Sleep { until: *retry_at, why: why.clone() };
                }
                *failures
            }
        };
        *state = State::Connecting;
        Step::Connect { failures }
    }

    /// The task that connects.
    async fn connect(self: Arc<Pool>, slot: usize, failures: u32) {
        let mut wanted = self.wanted.clone();
        let attempt = tokio::select! {
            attempt = self.attempt(slot) => attempt,
            // A login that waits for its user must not outlive what it was for.
            _ = wanted.changed() => return,
        };
        let place = &self.places[slot];
        let mut state = place.lock();
        *state = match attempt {
            Ok(session) => {
                let most = session.max_read.min(session.max_write);
                self.request_bytes.store(most, Ordering::Relaxed);
                if slot == 0 {
                    self.trouble.send_replace(None);
                }
                State::Up(session)
            }
            Err(why) => {
                if slot == 0 {
                    self.failed(&why);
                }
                let lasting = matches!(&why, Error::Connect(error) if error.lasting);
                let doubled = FIRST_RETRY.saturating_mul(1 << failures.min(16));
                let pause = if lasting { LASTING_RETRY } else { doubled.min(LAST_RETRY) };
                let failures = failures.saturating_add(1);
                State::Down { why, failures, retry_at: Instant::now() + pause }
            }
        };
        drop(state);
        place.settled.notify_waiters();
    }

    /// The first session could not be had.
    fn failed(&self, why: &Error) {
        let words = why.to_string();
        let is_new = self.trouble.borrow().as_deref() != Some(words.as_str());
        // The very first failure is the caller's to tell; what becomes of the further sessions is
        // told by whoever opens them. What has been said is not said again every few seconds.
        if is_new && self.connected_once.load(Ordering::Relaxed) {
            tracing::warn!("{words}");
        }
        self.trouble.send_replace(Some(words));
    }

    /// Why the last attempt to have the first session has failed, as long as none has gone well
    /// since.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// Whether the first session cannot be had now.
    pub(crate) fn is_away(&self) -> bool {
        self.trouble.borrow().is_some() || self.has_ended()
    }

    /// It is lost, and none is made anew.
    fn has_ended(&self) -> bool {
        let lost = |state: &State| matches!(state, State::Up(session) if !session.is_alive());
        !self.config.reconnect && lost(&self.places[0].lock())
    }

    /// Returns when the first session cannot be had.
    pub(crate) async fn gone(&self) {
        let mut trouble = self.trouble.subscribe();
        loop {
            if self.is_away() {
                return;
            }
            let living = self.living(0);
            let ended = async {
                match living {
                    Some(session) if !self.config.reconnect => {
                        session.client.closed().await;
                    }
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ended => {}
                // Also when a session has come, whose end is then what is waited for.
                _ = trouble.changed() => {}
            }
        }
    }

    async fn attempt(&self, slot: usize) -> Result<Arc<Session>, Error> {
        let role = if slot == 0 { Role::Metadata } else { Role::Bulk(slot) };
        let attempt = async {
            let connection = self.connector.connect(role).await?;
            Session::begin(connection, slot, &self.config).await
        };
        // The very first one may have to wait for somebody who types a password.
        if slot == 0 && !self.connected_once.load(Ordering::Relaxed) {
            let session = attempt.await?;
            self.connected_once.store(true, Ordering::Relaxed);
            return Ok(session);
        }
        let limit = self.config.stall_limit;
        match tokio::time::timeout(limit, attempt).await {
            Ok(result) => result,
            Err(_) => Err(Error::Session { source: sftp::Error::Stalled(limit), diagnosis: None }),
        }
    }
}
