//! Connects `host` to `ssh`: opens the byte streams of a host's sessions.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use host::{ConnectError, Connection, Connector, Explanation, Role};

use cli::{Problem, printable};

/// What the user can do when a login needs an answer that is not kept.
pub const TYPE_AGAIN: &str = "to log in again, unmount with `sshoal umount` and mount again";

/// Connections that were opened ahead of the requests for them. Each is handed out once.
#[derive(Clone, Default)]
pub struct Begun(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    first: Option<Connection>,
    further: Vec<(Connection, ssh::Diagnosis)>,
}

impl Begun {
    /// Sets the connection for the first session.
    pub fn set_first(&self, first: Connection) {
        self.lock().first = Some(first);
    }

    fn take(&self, role: Role) -> Option<Connection> {
        match role {
            Role::Metadata | Role::Reconnect => self.lock().first.take(),
            Role::Bulk(_) => self.living().further.pop().map(|(connection, _)| connection),
        }
    }

    fn further(&self) -> usize {
        self.living().further.len()
    }

    /// Removes connections whose ssh has ended: a login may have been refused, or lost while unused.
    fn living(&self) -> MutexGuard<'_, Waiting> {
        let mut waiting = self.lock();
        waiting.further.retain(|(_, diagnosis)| diagnosis.status().is_none());
        waiting
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts one ssh per session.
pub struct SshConnector {
    dialer: Arc<ssh::Dialer>,
    may_ask: AtomicBool,
    /// Connections that are open already.
    begun: Begun,
    /// Why the last ssh ended, as far as this was queried.
    last: Arc<Mutex<Option<ssh::Cause>>>,
}

impl SshConnector {
    /// ssh's messages go to standard error as they arrive: to the terminal while mounting, to the log
    /// afterwards.
    pub fn new(config: ssh::Config) -> Result<SshConnector, Problem> {
        let hook = Arc::new(crate::log::pass_on);
        let dialer = ssh::Dialer::new(config, hook).map_err(|error| {
            let problem = Problem::new("ssh", error.to_string());
            match error.hint() {
                Some(hint) => problem.hint(hint),
                None => problem,
            }
        })?;
        let (may_ask, begun) = (AtomicBool::new(true), Begun::default());
        let dialer = Arc::new(dialer);
        Ok(SshConnector { dialer, may_ask, begun, last: Arc::default() })
    }

    /// Uses the connections in `begun` before an ssh is started.
    pub fn beginning_with(mut self, begun: Begun) -> SshConnector {
        self.begun = begun;
        self
    }

    /// Opens a connection for a later further session.
    pub async fn begin(&self, slot: usize, begun: &Begun) -> Result<(), ConnectError> {
        let further = self.dial(Role::Bulk(slot)).await?;
        begun.lock().further.push(further);
        Ok(())
    }

    async fn dial(&self, role: Role) -> Result<(Connection, ssh::Diagnosis), ConnectError> {
        let connected = match role {
            Role::Metadata if self.may_ask.load(Ordering::Relaxed) => self.dialer.connect().await,
            Role::Reconnect => self.dialer.connect_again().await,
            Role::Metadata | Role::Bulk(_) => self.dialer.connect_unasked().await,
        };
        let connection = connected.map_err(|error| ConnectError {
            message: error.to_string(),
            permanent: !error.is_transient(),
        })?;
        let (reader, writer) = connection.stream.into_split();
        let diagnosis = connection.diagnosis;
        let (last, told, dialer) = (self.last.clone(), diagnosis.clone(), self.dialer.clone());
        let explain = move || {
            let explanation = explain(&told, &last)?;
            if explanation.cause == host::Cause::Refused && dialer.login_refused() {
                let name = printable(dialer.config().destination.to_string());
                tracing::warn!(
                    "{name}: the password that was typed was refused and is forgotten; {TYPE_AGAIN}"
                );
            }
            Some(explanation)
        };
        Ok((Connection::from_halves(reader, writer, Box::new(explain)), diagnosis))
    }

    /// Sets whether the ssh of a later first session may prompt for passwords and host keys on the
    /// terminal. If not, its messages are only in the error.
    pub fn set_asking(&self, may_ask: bool) {
        self.may_ask.store(may_ask, Ordering::Relaxed);
    }

    /// The settings of the connections.
    pub fn config(&self) -> &ssh::Config {
        self.dialer.config()
    }

    /// ssh and its options for a command at this host; see [`ssh::Dialer::command`].
    pub async fn command(&self) -> Option<Vec<OsString>> {
        self.dialer.command().await
    }

    /// The identity of this login at this host; see [`ssh::Dialer::identity`].
    pub async fn identity(&self) -> String {
        self.dialer.identity().await
    }

    /// Whether the prompts of the first login can be answered again.
    pub fn password_state(&self) -> ssh::PasswordState {
        self.dialer.password_state()
    }

    /// Whether the last attempt failed because ssh was not allowed to prompt the user.
    pub fn wants_answer(&self) -> bool {
        let was_silent =
            !self.may_ask.load(Ordering::Relaxed) && self.dialer.config().password.is_none();
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let could_help = matches!(
            last,
            Some(
                ssh::Cause::PermissionDenied
                    | ssh::Cause::TooManyFailures
                    | ssh::Cause::HostKeyUnknown
                    | ssh::Cause::PasswordExpired
                    | ssh::Cause::Other
            )
        );
        was_silent && could_help
    }
}

#[async_trait]
impl Connector for SshConnector {
    async fn connect(&self, role: Role) -> Result<Connection, ConnectError> {
        if let Some(begun) = self.begun.take(role) {
            return Ok(begun);
        }
        self.dial(role).await.map(|(connection, _)| connection)
    }

    fn logged_in(&self) {
        self.dialer.login_succeeded();
    }

    fn ready(&self) -> usize {
        self.begun.further()
    }

    async fn retry_limit(&self) -> Duration {
        self.dialer.connect_limit().await
    }
}

/// ssh's message about its end, with a hint. Its cause is stored in `last`.
fn explain(diagnosis: &ssh::Diagnosis, last: &Mutex<Option<ssh::Cause>>) -> Option<Explanation> {
    let summary = diagnosis.summary()?;
    let (cause, _) = ssh::Cause::of(&diagnosis.words(), diagnosis.status());
    *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
    let text = match cause.hint() {
        Some(hint) => format!("{summary}\n  {hint}"),
        None => summary,
    };
    Some(Explanation { text, cause: for_the_next_attempt(cause) })
}

fn for_the_next_attempt(cause: ssh::Cause) -> host::Cause {
    use ssh::Cause;
    match cause {
        Cause::ClosedEarly => host::Cause::TurnedAway,
        Cause::PermissionDenied | Cause::TooManyFailures | Cause::PasswordExpired => {
            host::Cause::Refused
        }
        cause if cause.is_transient() => host::Cause::Transient,
        _ => host::Cause::Permanent,
    }
}

#[cfg(test)]
mod tests;
