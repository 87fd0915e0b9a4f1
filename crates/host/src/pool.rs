//! The sessions of one host: opened on demand, reopened when lost. `scaling` decides which further
//! sessions are used, and when they are opened and closed.
//!
//! Each slot of the pool is in one of these states:
//!
//! - `Vacant`: never connected. → `Connecting` by the first caller.
//! - `Connecting`: a separate task connects. Callers wait for it and may stop waiting; the task
//!   continues until the host is dropped. → `Up` or `Down`.
//! - `Up`: a session, alive or lost. When it is found lost → `Connecting` if reconnecting is on,
//!   but not within a second of its beginning. When it is idle → `Vacant`.
//! - `Down`: the last attempt failed. Before `retry_at`, callers get this error at once, or wait if
//!   the time is near; after it → `Connecting`.
//!
//! A refused login is retried after a minute, and after three in a row only hourly, with a message
//! that asks the user to act ([`Refusals`]). All slots but the first are counted together.
//!
//! The lock of a slot is never held across an await.

pub(crate) mod status;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::Duration;

use base::{Errno, Lifetime, Mutex};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::config::Config;
use crate::connector::{Cause, ConnectError, Connector, Role};
use crate::cut;
use crate::direct::DirectState;
use crate::error::Error;
use crate::flow_control::directions::Directions;
use crate::flow_control::{MAX_SLOTS, MIN_WINDOW_BYTES, Slots};
use crate::helper::{Program, RootAnswers, served_by};
use crate::scaling;
use crate::session::Session;

/// Time from a failed attempt to the next; after an attempt that was turned away, it doubles with
/// each failure. This is the delay until a restored link is noticed. OpenSSH has a penalty of 1 s
/// for each connection that ends before the login (`PerSourcePenalties`), and acts from 15 s on;
/// one mount does not reach that at this rate.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Failures, about those of an outage of one minute, after which attempts become less frequent.
/// Each attempt starts a process.
const QUICK_RETRIES: u32 = 60;

/// Maximum time between attempts.
const LAST_RETRY: Duration = Duration::from_secs(4);

/// Most that a login may take: the first one, for which a user may have to type a password (sshd
/// allows two minutes for that), and one after attempts that did not end in time.
const LONGEST_LOGIN: Duration = Duration::from_secs(5 * 60);

/// Time to the next attempt after a permanent failure.
const PERMANENT_RETRY: Duration = Duration::from_secs(30);

/// Time to the next attempt after a refused login. Each is a failed login in the server's log, for
/// which OpenSSH has a penalty of 5 s; other servers lock the account or the address after a few
/// within minutes.
const REFUSED_RETRY: Duration = Duration::from_secs(60);

/// Refused logins in a row after which the user has to act.
const MAX_REFUSALS: u32 = 3;

/// Time to the next attempt after [`MAX_REFUSALS`]. Rare enough for any lockout rule; a key loaded
/// in the meantime is used eventually.
const LAST_REFUSED_RETRY: Duration = Duration::from_secs(60 * 60);

/// Bounds of the time between attempts that were turned away before the login. The time is random,
/// so that clients that were turned away together do not return together.
const TURNED_AWAY_PAUSE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// The attempt turned away after which a message says that more follow.
const TOLD_ATTEMPT: u32 = 3;

/// A caller waits for an attempt that is due within this time, and gets an error otherwise.
const MAX_WAIT_FOR_RETRY: Duration = Duration::from_secs(2);

enum State {
    Vacant,
    Connecting {
        /// [`Pool::retry_now`] was called meanwhile, so a failure is out of date.
        is_outdated: bool,
    },
    Up(Arc<Session>),
    Down {
        why: Error,
        failures: u32,
        retry_at: Instant,
    },
}

struct Slot {
    state: Mutex<State>,
    /// Notified when an attempt has ended, and when no pause is left before the next one.
    settled: Notify,
}

/// What a caller has to do to get a session.
enum Step {
    Have(Arc<Session>),
    /// The session is lost and is not reopened.
    Lost,
    /// The caller has to start an attempt.
    Connect {
        /// Attempts that have failed since the last success.
        failures: u32,
        /// How long this one may take.
        limit: Duration,
    },
    /// An attempt is in progress.
    Wait,
    /// No attempt is allowed before `until`.
    Sleep {
        until: Instant,
        why: Error,
    },
}

/// Why there is no session now.
#[derive(Debug)]
pub(crate) enum Unavailable {
    /// The session was lost and is not reopened.
    Lost,
    /// The last attempt failed.
    Failed(Error),
}

impl From<Unavailable> for Errno {
    fn from(_: Unavailable) -> Errno {
        Errno::EHOSTDOWN
    }
}

/// Refused logins in a row.
#[derive(Default)]
struct Refusals {
    times: u32,
    /// No login is allowed before this time.
    until: Option<(Instant, Error)>,
}

/// A running attempt to connect. It fails if it panics, so that its callers do not wait for ever.
struct Attempt<'a> {
    pool: &'a Pool,
    slot: usize,
    failures: u32,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = "internal error (a panic, see the log)".to_owned();
            let error = ConnectError { message, permanent: false };
            self.pool.attempt_ended(self.slot, self.failures, Err(error.into()));
        }
    }
}

/// The sessions of one host.
pub(crate) struct Pool {
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) config: Config,
    slots: Vec<Slot>,
    /// Slots from this number on are not used.
    max_sessions: AtomicUsize,
    /// A login has succeeded before, so connecting needs no user input.
    connected_once: AtomicBool,
    /// That of the host.
    pub(crate) lifetime: Lifetime,
    pub(crate) flow: Directions,
    /// Of all sessions, also of those that have ended.
    counters: Arc<sftp::Counters>,
    /// Why the last attempt to open the first session failed; `None` after a success.
    connection_error: watch::Sender<Option<String>>,
    /// When and why the first session was lost that has no successor yet.
    lost: Mutex<Option<(Instant, String)>>,
    /// Refused logins: of the first session, and of all others.
    refusals: [Mutex<Refusals>; 2],
    /// The sessions that carry content; empty while the first one carries everything.
    active: AtomicU64,
    /// Bytes that a caller should have in flight.
    suggested_bytes: AtomicU64,
    /// Longest request that all sessions accept, in bytes; zero before the first session. Only a
    /// suggestion: a new first session may raise it above the limit of a further one.
    request_bytes: AtomicU32,
    /// What serves the sessions; set by the first one.
    pub(crate) program: OnceLock<Program>,
    /// The first session's answers about the root, until they are checked.
    pub(crate) root_answers: Mutex<Option<RootAnswers>>,
    /// The root as an absolute path without links, once a first session has begun.
    pub(crate) real_root: Arc<OnceLock<Vec<u8>>>,
    /// The last first session offered no operation beyond those of OpenSSH's server.
    is_plain_sftp: AtomicBool,
    pub(crate) direct: DirectState,
}

impl Pool {
    /// Attempts to connect end with `lifetime`.
    pub(crate) fn new(
        connector: Arc<dyn Connector>,
        config: Config,
        lifetime: Lifetime,
    ) -> Arc<Pool> {
        let slots: Vec<_> = (0..MAX_SLOTS)
            .map(|_| Slot { state: Mutex::new(State::Vacant), settled: Notify::new() })
            .collect();
        let flow = Directions::new(slots.len());
        let max_sessions = AtomicUsize::new(config.max_conns.clamp(1, MAX_SLOTS));
        Arc::new(Pool {
            connector,
            config,
            slots,
            max_sessions,
            connected_once: AtomicBool::new(false),
            lifetime,
            flow,
            counters: Arc::default(),
            connection_error: watch::Sender::new(None),
            lost: Mutex::default(),
            refusals: Default::default(),
            active: AtomicU64::new(0),
            suggested_bytes: AtomicU64::new(scaling::suggested(1, MIN_WINDOW_BYTES)),
            request_bytes: AtomicU32::new(0),
            program: OnceLock::new(),
            root_answers: Mutex::default(),
            real_root: Arc::default(),
            is_plain_sftp: AtomicBool::new(false),
            direct: DirectState::default(),
        })
    }

    /// The sessions beside the first that carry content now.
    pub(crate) fn active(&self) -> Slots {
        Slots::from_bits(self.active.load(Ordering::Relaxed))
    }

    pub(crate) fn set_active(&self, slots: Slots) {
        self.active.store(slots.bits(), Ordering::Relaxed);
    }

    /// Removes lost sessions from those that carry content.
    pub(crate) fn deactivate_lost(&self) {
        let active = self.active().iter();
        self.set_active(active.filter(|slot| self.live(*slot).is_some()).collect());
    }

    /// Whether the server may have operations beyond those of OpenSSH's server: the last first
    /// session offered some, or there was none.
    pub(crate) fn may_exceed_sftp(&self) -> bool {
        !self.is_plain_sftp.load(Ordering::Relaxed)
    }

    /// The round trip to the server, if it was measured.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.live(0)?.client.round_trip()
    }

    pub(crate) fn suggest(&self, bytes: u64) {
        self.suggested_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The value of [`base::Remote::suggested_window`].
    pub(crate) fn suggestion(&self) -> base::Window {
        let default = base::Window::default();
        let request_bytes = match self.request_bytes.load(Ordering::Relaxed) {
            0 => default.request_bytes,
            // A power of two, so that requests begin at page boundaries.
            most => 1 << most.ilog2(),
        };
        base::Window { bytes: self.suggested_bytes.load(Ordering::Relaxed), request_bytes }
    }

    /// Closes an unused session.
    pub(crate) fn vacate(&self, slot: usize) {
        let mut state = self.slots[slot].state.lock();
        if let State::Up(_) = &*state {
            let left = std::mem::replace(&mut *state, State::Vacant);
            drop(state);
            // Closed without holding the lock.
            drop(left);
        }
    }

    /// Vacates the further slots whose sessions were lost: what ended them is over.
    fn vacate_lost(&self) {
        for slot in &self.slots[1..] {
            let mut state = slot.state.lock();
            let lost = match &*state {
                State::Up(session) if !session.is_alive() => {
                    std::mem::replace(&mut *state, State::Vacant)
                }
                _ => continue,
            };
            drop(state);
            // Closed without holding the lock.
            drop(lost);
        }
    }

    /// Maximum number of sessions.
    pub(crate) fn max_sessions(&self) -> usize {
        self.max_sessions.load(Ordering::Relaxed)
    }

    pub(crate) fn set_max_sessions(&self, number: usize) {
        self.max_sessions.store(number.clamp(1, MAX_SLOTS), Ordering::Relaxed);
    }

    /// The session of a slot, if it is alive.
    pub(crate) fn live(&self, slot: usize) -> Option<Arc<Session>> {
        match &*self.slots[slot].state.lock() {
            State::Up(session) if session.is_alive() => Some(session.clone()),
            _ => None,
        }
    }

    /// The session for metadata; connects if necessary.
    pub(crate) async fn metadata(self: &Arc<Pool>) -> Result<Arc<Session>, Unavailable> {
        match self.live(0) {
            Some(session) => Ok(session),
            None => self.session(0).await,
        }
    }

    /// A live session in this slot; connects if necessary.
    pub(crate) async fn session(
        self: &Arc<Pool>,
        slot: usize,
    ) -> Result<Arc<Session>, Unavailable> {
        loop {
            let settled = self.slots[slot].settled.notified();
            match self.next_step(slot) {
                Step::Have(session) => return Ok(session),
                Step::Lost => return Err(Unavailable::Lost),
                // Everything depends on the first session; the others only improve throughput.
                Step::Sleep { until, .. }
                    if slot == 0 && until <= Instant::now() + MAX_WAIT_FOR_RETRY =>
                {
                    tokio::select! {
                        () = tokio::time::sleep_until(until) => {}
                        () = settled => {}
                    }
                    continue;
                }
                Step::Sleep { why, .. } => return Err(Unavailable::Failed(why)),
                Step::Connect { failures, limit } => {
                    tokio::spawn(self.clone().connect(slot, failures, limit));
                    settled.await;
                }
                Step::Wait => settled.await,
            }
            // All callers that waited for the attempt share its result.
            if let State::Down { why, .. } = &*self.slots[slot].state.lock() {
                return Err(Unavailable::Failed(why.clone()));
            }
        }
    }

    fn next_step(&self, slot: usize) -> Step {
        let mut state = self.slots[slot].state.lock();
        let mut limit = self.config.stall_limit;
        let failures = match &*state {
            State::Vacant => 0,
            State::Connecting { .. } => return Step::Wait,
            State::Up(session) if session.is_alive() => return Step::Have(session.clone()),
            State::Up(session) if !self.is_replaced(session) => return Step::Lost,
            State::Up(session) => {
                // A server that accepts a login and then ends the session must not be retried in a
                // tight loop.
                let until = session.began + FIRST_RETRY;
                if until > Instant::now() {
                    let why = session.lost();
                    return Step::Sleep { until, why };
                }
                if slot == 0 {
                    let lost_at = session.lost_at.get().copied().unwrap_or_else(Instant::now);
                    *self.lost.lock() = Some((lost_at, session.lost().to_string()));
                }
                0
            }
            State::Down { why, failures, retry_at } => {
                if *retry_at > Instant::now() {
                    return Step::Sleep { until: *retry_at, why: why.clone() };
                }
                // The server may need more time than that for a login.
                if let Error::Session { source: sftp::Error::Stalled(limit_before), .. } = why {
                    limit = limit.max((*limit_before * 2).min(LONGEST_LOGIN));
                }
                *failures
            }
        };
        // Set by another slot of the same kind.
        if let Some((until, why)) = &self.refusals(slot).until
            && *until > Instant::now()
        {
            return Step::Sleep { until: *until, why: why.clone() };
        }
        *state = State::Connecting { is_outdated: false };
        Step::Connect { failures, limit }
    }

    /// The task that connects a slot. After the first login, an attempt ends at the `limit`.
    async fn connect(self: Arc<Pool>, slot: usize, failures: u32, limit: Duration) {
        let _attempt = Attempt { pool: &self, slot, failures };
        // A login that waits for user input must not outlive the host.
        let attempt = self.lifetime.run(self.attempt(slot, limit));
        let Some(result) = attempt.await else { return };
        if let Ok(session) = &result
            && self.config.reconnect
        {
            tokio::spawn(cut::watch(Arc::downgrade(&self), Arc::downgrade(session)));
        }
        self.attempt_ended(slot, failures, result);
    }

    /// Lets callers wait for the successor of the first session, which has been silent for this
    /// time. `false` if it is not the first one any more.
    pub(crate) fn retire(&self, session: &Arc<Session>, silent: Duration) -> bool {
        let mut state = self.slots[0].state.lock();
        let is_first = matches!(&*state, State::Up(it) if Arc::ptr_eq(it, session));
        if is_first {
            *state = State::Connecting { is_outdated: false };
            let why = sftp::Error::Stalled(silent).to_string();
            *self.lost.lock() = Instant::now().checked_sub(silent).map(|lost_at| (lost_at, why));
        }
        is_first
    }

    /// The attempt to connect a slot has this result.
    pub(crate) fn attempt_ended(
        &self,
        slot: usize,
        failures: u32,
        attempt: Result<Arc<Session>, Error>,
    ) {
        let entry = &self.slots[slot];
        let mut state = entry.state.lock();
        let is_outdated = matches!(*state, State::Connecting { is_outdated: true });
        let attempt = attempt.map_err(|why| match is_outdated {
            true => why,
            false => self.record_refusal(slot, why),
        });
        let is_connected = slot == 0 && attempt.is_ok();
        *state = match attempt {
            Ok(session) => {
                *self.refusals(slot) = Refusals::default();
                let most = session.max_read.min(session.max_write);
                if slot == 0 {
                    self.request_bytes.store(most, Ordering::Relaxed);
                } else {
                    self.request_bytes.fetch_min(most, Ordering::Relaxed);
                }
                if slot == 0 {
                    let is_plain_sftp = !session.exceeds_sftp();
                    self.is_plain_sftp.store(is_plain_sftp, Ordering::Relaxed);
                    self.connection_error.send_replace(None);
                    self.log_connected();
                }
                State::Up(session)
            }
            Err(why) => {
                if slot == 0 {
                    self.record_failure(&why);
                }
                let doubled = FIRST_RETRY.saturating_mul(1 << failures.min(16));
                let pause = match (why.cause(), &why) {
                    _ if is_outdated => Duration::ZERO,
                    (_, Error::Refused { .. }) => LAST_REFUSED_RETRY,
                    (Cause::Refused, _) => REFUSED_RETRY,
                    (Cause::Permanent, _) => PERMANENT_RETRY,
                    (Cause::Transient, _) if failures < QUICK_RETRIES => FIRST_RETRY,
                    (Cause::Transient | Cause::TurnedAway, _) => doubled.min(LAST_RETRY),
                };
                let failures = failures.saturating_add(1);
                State::Down { why, failures, retry_at: Instant::now() + pause }
            }
        };
        drop(state);
        if is_connected {
            self.vacate_lost();
        }
        entry.settled.notify_waiters();
    }

    fn refusals(&self, slot: usize) -> MutexGuard<'_, Refusals> {
        self.refusals[slot.min(1)].lock()
    }

    /// Counts a refused login; returns the error to report.
    fn record_refusal(&self, slot: usize, why: Error) -> Error {
        if why.cause() != Cause::Refused {
            return why;
        }
        let mut refusals = self.refusals(slot);
        refusals.times = refusals.times.saturating_add(1);
        let times = refusals.times;
        let (pause, why) = match times < MAX_REFUSALS {
            true => (REFUSED_RETRY, why),
            false => (LAST_REFUSED_RETRY, Error::Refused { why: Box::new(why), times }),
        };
        refusals.until = Some((Instant::now() + pause, why.clone()));
        why
    }

    /// Ends the pauses after failed attempts, and forgets refused logins: the next caller connects.
    pub(crate) fn retry_now(&self) {
        for slot in &self.slots {
            match &mut *slot.state.lock() {
                State::Down { retry_at, .. } => *retry_at = Instant::now(),
                State::Connecting { is_outdated } => *is_outdated = true,
                State::Vacant | State::Up(_) => {}
            }
        }
        // After the slots: an attempt that ends now has recorded its refusal, or records none.
        for refusals in &self.refusals {
            *refusals.lock() = Refusals::default();
        }
        for slot in &self.slots {
            slot.settled.notify_waiters();
        }
    }

    fn log_connected(&self) {
        let name = &self.config.name;
        match self.lost.lock().take() {
            None if self.config.delay_connect => tracing::info!("{name}: connected"),
            // The caller of `Host::connect` knows it.
            None => {}
            Some((lost_at, _)) => {
                let secs = lost_at.elapsed().as_secs_f64();
                tracing::info!("{name}: connected again, {secs:.1} s after the loss");
            }
        }
    }

    /// Records that the first session could not be opened.
    fn record_failure(&self, why: &Error) {
        let words = why.to_string();
        let is_new = self.connection_error.borrow().as_deref() != Some(words.as_str());
        // The caller reports the very first failure, and `scaling` those of further sessions. A
        // repeated failure is not logged again.
        if is_new && self.connected_once.load(Ordering::Relaxed) {
            tracing::warn!("{}: {words}", self.config.name);
        }
        self.connection_error.send_replace(Some(words));
    }

    /// Why the last attempt to open the first session failed; `None` after a success.
    pub(crate) fn connection_error(&self) -> Option<String> {
        self.connection_error.borrow().clone()
    }

    /// As [`base::Remote::why_disconnected`].
    pub(crate) fn why_disconnected(&self) -> Option<String> {
        let lost = || self.lost.lock().as_ref().map(|(_, why)| why.clone());
        self.connection_error().or_else(lost)
    }

    /// See [`Host::set_unreachable`](crate::Host::set_unreachable).
    pub(crate) fn set_unreachable(&self, why: String) {
        self.connection_error.send_replace(Some(why));
    }

    /// Whether there is no first session now and none can be opened.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.connection_error.borrow().is_some() || self.is_lost_for_good()
    }

    /// The first session was lost and is not reopened.
    fn is_lost_for_good(&self) -> bool {
        match &*self.slots[0].state.lock() {
            State::Up(session) => !session.is_alive() && !self.is_replaced(session),
            _ => false,
        }
    }

    /// The session that takes the place of the first one, if that is lost and was direct.
    fn carrier_of_lost(&self) -> Option<Arc<Session>> {
        match &*self.slots[0].state.lock() {
            State::Up(session) if !session.is_alive() => session.live_carrier().cloned(),
            _ => None,
        }
    }

    /// Whether another session takes the place of this one when it is lost.
    fn is_replaced(&self, session: &Session) -> bool {
        self.config.reconnect || session.live_carrier().is_some()
    }

    /// Returns when the first session is unavailable.
    pub(crate) async fn disconnected(&self) {
        let mut connection_error = self.connection_error.subscribe();
        loop {
            if self.is_disconnected() {
                return;
            }
            let live = self.live(0).or_else(|| self.carrier_of_lost());
            let ended = async {
                match live {
                    Some(session) if !self.config.reconnect => {
                        session.client.closed().await;
                    }
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ended => {}
                // A new session is a change too; the loop then waits for its end.
                _ = connection_error.changed() => {}
            }
        }
    }

    async fn attempt(&self, slot: usize, limit: Duration) -> Result<Arc<Session>, Error> {
        let is_first = slot == 0 && !self.connected_once.load(Ordering::Relaxed);
        // The first login may have to wait for a user who types a password.
        if is_first {
            let session = self.begin_first().await?;
            let session = self.prefer_direct(session).await?;
            self.connected_once.store(true, Ordering::Relaxed);
            return Ok(session);
        }
        let role = if slot == 0 { Role::Reconnect } else { Role::Bulk(slot) };
        // It has a limit of its own, behind which ssh is left.
        if let Some(session) = self.begin_direct(slot).await? {
            return Ok(session);
        }
        if slot == 0 && !self.config.reconnect {
            let source = sftp::Error::Disconnected("it was lost, and is not opened again".into());
            return Err(Error::Session { source, diagnosis: None });
        }
        let session = within(limit, self.begin_later(role, slot)).await?;
        if slot == 0 { self.prefer_direct(session).await } else { Ok(session) }
    }

    /// Begins a session, served by the helper at a path or by the SFTP server. Retries while the
    /// server turns the connection away before the login.
    pub(crate) async fn begin_with_retries(
        &self,
        role: Role,
        slot: usize,
        helper: Option<&str>,
    ) -> Result<Arc<Session>, Error> {
        let began = Instant::now();
        let [mut most, last] = TURNED_AWAY_PAUSE;
        let mut attempts = 0_u32;
        loop {
            attempts += 1;
            let connected = match helper {
                None => self.connector.connect(role).await,
                Some(path) => self.connector.connect_to_helper(role, path).await,
            };
            let own = self.uses_own_extensions();
            let mut begun = match connected {
                Ok(connection) => {
                    let begun =
                        Session::begin(connection, slot, &self.config, &self.counters, own, None);
                    within(LONGEST_LOGIN, begun).await
                }
                Err(error) => Err(error.into()),
            };
            if let Some(path) = helper {
                begun = served_by(path, begun);
            }
            if matches!(begun, Ok(_) | Err(Error::NoHelper { .. })) {
                self.connector.logged_in();
            }
            let Err(why) = begun else { return begun };
            let pause = most.mul_f64(0.5 + random());
            let limit = self.connector.retry_limit().await;
            let is_late = began.elapsed() + pause > limit;
            if why.cause() != Cause::TurnedAway || is_late {
                return Err(why);
            }
            tracing::debug!(session = slot, "turned away, retry in {pause:?}");
            // A busy server may turn one away. Further sessions are not needed.
            // In an outage, the end of an attempt is logged.
            if attempts == TOLD_ATTEMPT && slot == 0 && self.connection_error().is_none() {
                tracing::warn!(
                    "{}: the connection was closed before the login; trying again for {} s",
                    self.config.name,
                    limit.as_secs()
                );
            }
            tokio::time::sleep(pause).await;
            most = (most * 2).min(last);
        }
    }
}

/// The session, if it begins within the `limit`.
pub(crate) async fn within(
    limit: Duration,
    begin: impl Future<Output = Result<Arc<Session>, Error>>,
) -> Result<Arc<Session>, Error> {
    tokio::time::timeout(limit, begin).await.unwrap_or_else(|_| {
        Err(Error::Session { source: sftp::Error::Stalled(limit), diagnosis: None })
    })
}

/// A random number from 0 to 1, different in each process and for each call.
fn random() -> f64 {
    f64::from(RandomState::new().hash_one(0) as u32) / f64::from(u32::MAX)
}
