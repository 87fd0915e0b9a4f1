//! ssh as what a host gets its byte streams from.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use host::{ConnectError, Connection, Connector, Role};

use crate::report::Problem;

/// Starts an ssh for each session.
pub struct SshConnector {
    dialer: ssh::Dialer,
    may_ask: AtomicBool,
    /// A connection that is there already, for who asks first.
    first: Mutex<Option<Connection>>,
    /// Why the last ssh ended, as far as its words were asked for.
    last: Arc<Mutex<Option<ssh::Cause>>>,
}

impl SshConnector {
    /// What ssh says goes to standard error as it comes: to the terminal while the mount is being
    /// made, to the log afterwards.
    pub fn new(config: ssh::Config) -> Result<SshConnector, Problem> {
        let hook = Arc::new(|words: &[u8]| {
            let _ = std::io::stderr().write_all(words);
        });
        let dialer = ssh::Dialer::new(config, hook).map_err(|error| {
            let problem = Problem::new("ssh", error.to_string());
            match error.hint() {
                Some(hint) => problem.hint(hint),
                None => problem,
            }
        })?;
        let (may_ask, first) = (AtomicBool::new(true), Mutex::default());
        Ok(SshConnector { dialer, may_ask, first, last: Arc::default() })
    }

    /// Gives `first` to who asks for the first session, before any ssh is started.
    pub fn beginning_with(mut self, first: Option<Connection>) -> SshConnector {
        self.first = Mutex::new(first);
        self
    }

    /// Whether the ssh of a first session may ask for passwords and host keys on the terminal, from
    /// the next on. If not, what it says is in the error only.
    pub fn set_asking(&self, may_ask: bool) {
        self.may_ask.store(may_ask, Ordering::Relaxed);
    }

    /// How the connections are made.
    pub fn config(&self) -> &ssh::Config {
        self.dialer.config()
    }

    /// What tells this login at this host from all others; see [`ssh::Dialer::identity`].
    pub async fn identity(&self) -> String {
        self.dialer.identity().await
    }

    /// Whether the last attempt failed in a way that an answer of the user could have helped, and
    /// nobody was asked.
    pub fn wants_answer(&self) -> bool {
        let nobody_was_asked =
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
        nobody_was_asked && could_help
    }
}

#[async_trait]
impl Connector for SshConnector {
    async fn connect(&self, role: Role) -> Result<Connection, ConnectError> {
        if role == Role::Metadata
            && let Some(first) = self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            return Ok(first);
        }
        let connected = match role {
            Role::Metadata if self.may_ask.load(Ordering::Relaxed) => self.dialer.connect().await,
            Role::Metadata | Role::Bulk(_) => self.dialer.connect_unasked().await,
        };
        let connection = connected.map_err(|error| ConnectError {
            message: error.to_string(),
            lasting: !error.is_transient(),
        })?;
        let (reader, writer) = connection.stream.into_split();
        let diagnosis = connection.diagnosis;
        let last = self.last.clone();
        let explain = move || explain(&diagnosis, &last);
        Ok(Connection::from_halves(reader, writer, Box::new(explain)))
    }
}

/// ssh's words about its end, and what the user can do about it. Its cause is kept in `last`.
fn explain(diagnosis: &ssh::Diagnosis, last: &Mutex<Option<ssh::Cause>>) -> Option<String> {
    let summary = diagnosis.summary()?;
    let (cause, _) = ssh::Cause::of(&diagnosis.words(), diagnosis.status());
    *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
    Some(match cause.hint() {
        Some(hint) => format!("{summary}\n  {hint}"),
        None => summary,
    })
}
