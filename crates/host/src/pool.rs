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
//! A login that is refused is repeated after a minute, and after the third one in a row it is the
//! user's turn ([`Refusals`]); that is counted for all places together but the first.
//!
//! The lock of a place is never held across an await.

pub(crate) mod status;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Errno;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::config::Config;
use crate::connector::{Cause, Connector, Role};
use crate::error::Error;
use crate::gate::{MAX_SLOTS, Slots};
use crate::gates::Gates;
use crate::growth;
use crate::session::Session;

/// Time to the next attempt after a failed one; after one that was turned away, it doubles with each
/// failure. It is the delay with which a link that is back is noticed. OpenSSH has a penalty of 1 s for
/// each connection that ends before the login (`PerSourcePenalties`), and acts from 15 s on; at this
/// pace one mount does not reach that.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Failures, about those of an outage of one minute, after which attempts are less frequent. Each
/// attempt starts a process.
const QUICK_RETRIES: u32 = 60;

/// Longest time between attempts.
const LAST_RETRY: Duration = Duration::from_secs(4);

/// The time after a failure that lasts.
const LASTING_RETRY: Duration = Duration::from_secs(30);

/// The time after a login that was refused. Each is a failed login in the server's log, for which
/// OpenSSH has a penalty of 5 s and others lock the account or the address after a few in minutes.
const REFUSED_RETRY: Duration = Duration::from_secs(60);

/// Logins that may be refused one after the other before it is the user's turn.
const REFUSALS: u32 = 3;

/// The time after the last of them. Seldom enough for any lock, and a key that was loaded
/// meanwhile is used at last.
const USERS_TURN: Duration = Duration::from_secs(60 * 60);

/// Bounds of the time between attempts that are turned away before the login. They are drawn at
/// random, so that many that came at once do not come at once again.
const TURNED_AWAY_PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

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

/// Logins that were refused one after the other.
#[derive(Default)]
struct Refusals {
    times: u32,
    /// There must be no login before this.
    until: Option<(Instant, Error)>,
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
    /// Logins that were refused: of the first session, and of further ones.
    refusals: [Mutex<Refusals>; 2],
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
            refusals: Default::default(),
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
        // Of another place of the same kind.
        if let Some((until, why)) = &self.refusals(slot).until
            && *until > Instant::now()
        {
            return Step::Sleep { until: *until, why: why.clone() };
        }
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
        let attempt = attempt.map_err(|why| self.note_refusal(slot, why));
        let place = &self.places[slot];
        let mut state = place.lock();
        *state = match attempt {
            Ok(session) => {
                *self.refusals(slot) = Refusals::default();
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
                let doubled = FIRST_RETRY.saturating_mul(1 << failures.min(16));
                let pause = match (why.cause(), &why) {
                    (_, Error::Refused { .. }) => USERS_TURN,
                    (Cause::Refused, _) => REFUSED_RETRY,
                    (Cause::Lasting, _) => LASTING_RETRY,
                    (Cause::Passing, _) if failures < QUICK_RETRIES => FIRST_RETRY,
                    (Cause::Passing | Cause::TurnedAway, _) => doubled.min(LAST_RETRY),
                };
                let failures = failures.saturating_add(1);
                State::Down { why, failures, retry_at: Instant::now() + pause }
            }
        };
        drop(state);
        place.settled.notify_waiters();
    }

    fn refusals(&self, slot: usize) -> MutexGuard<'_, Refusals> {
        self.refusals[slot.min(1)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a login that was refused; gives what is to be said of it.
    fn note_refusal(&self, slot: usize, why: Error) -> Error {
        if why.cause() != Cause::Refused {
            return why;
        }
        let mut refusals = self.refusals(slot);
        refusals.times = refusals.times.saturating_add(1);
        let times = refusals.times;
        let (pause, why) = match times < REFUSALS {
            true => (REFUSED_RETRY, why),
            false => (USERS_TURN, Error::Refused { why: Box::new(why), times }),
        };
        refusals.until = Some((Instant::now() + pause, why.clone()));
        why
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
        let is_first = slot == 0 && !self.connected_once.load(Ordering::Relaxed);
        let role = match slot {
            0 if is_first => Role::Metadata,
            0 => Role::Again,
            slot => Role::Bulk(slot),
        };
        let attempt = self.until_let_in(role, slot);
        // The very first one may have to wait for somebody who types a password.
        if is_first {
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
    /// Begins a session, once more for as long as the server turns it away before the login.
    async fn until_let_in(&self, role: Role, slot: usize) -> Result<Arc<Session>, Error> {
        let began = Instant::now();
        let [mut most, last] = TURNED_AWAY_PAUSES;
        loop {
            let begun = match self.connector.connect(role).await {
                Ok(connection) => Session::begin(connection, slot, &self.config).await,
                Err(error) => Err(error.into()),
            };
            let Err(why) = begun else { return begun };
            let pause = most.mul_f64(0.5 + random());
            let is_late = began.elapsed() + pause > self.connector.patience().await;
            if why.cause() != Cause::TurnedAway || is_late {
                return Err(why);
            }
            tracing::debug!(session = slot, "turned away, once more in {pause:?}");
            tokio::time::sleep(pause).await;
            most = (most * 2).min(last);
        }
    }
}

/// From 0 to 1, another one in each process and at each call.
fn random() -> f64 {
    f64::from(RandomState::new().hash_one(0) as u32) / f64::from(u32::MAX)
}
