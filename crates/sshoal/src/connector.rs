//! Connects `host` to `ssh`: opens the byte streams of a host's sessions.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use base::Mutex;
use host::{ConnectError, Connection, Connector, Explanation, Role};

use cli::{Problem, printable};
use sftp::Client;

pub use ssh::SSH_FAILED;

use crate::helper::{install, place, record};
use crate::transfer::shell::SshShell;

/// What the user can do when a login needs an answer that is not kept.
pub const TYPE_AGAIN: &str = "a key logs in without it (ssh-copy-id), `sshoal login` takes a password \
    that may be kept (not with keep_password=no)";

/// As [`TYPE_AGAIN`], for a mount that keeps no passwords.
const MOUNT_AGAIN: &str = "a key logs in without it (ssh-copy-id); with keep_password=no, only a new \
    mount takes a password";

/// How long a login with a password that was given to the running mount may take.
const LOGIN_LIMIT: Duration = Duration::from_secs(60);

/// An error of ssh, with its hint.
pub fn problem(what: impl Into<String>, error: &ssh::Error) -> Problem {
    Problem::new(what, error.to_string()).hint_if(error.hint())
}

/// Why there is no SFTP client.
pub enum LoginError {
    Ssh(ssh::Error),
    /// The server says something other than SFTP.
    Sftp(sftp::Error),
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoginError::Ssh(error) => error.fmt(f),
            LoginError::Sftp(error) => error.fmt(f),
        }
    }
}

/// Logs in as a mount does. ssh may ask on the terminal, if it is `asked`.
pub async fn log_in(dialer: &ssh::Dialer, asked: bool) -> Result<Client, LoginError> {
    let connection = match asked {
        true => dialer.connect().await,
        false => dialer.connect_unasked().await,
    };
    let ssh::Connection { reader, writer, diagnosis, .. } = connection.map_err(LoginError::Ssh)?;
    match Client::connect_halves(reader, writer, sftp::Options::default()).await {
        Ok(client) => Ok(client),
        Err(sftp::Error::Disconnected(_)) => Err(LoginError::Ssh(diagnosis.explain().await)),
        Err(error) => Err(LoginError::Sftp(error)),
    }
}

/// Connections that were opened ahead of the requests for them. Each is handed out once.
#[derive(Clone, Default)]
pub struct Begun(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    first: Option<Connection>,
    further: Vec<Further>,
    /// The path of the helper that serves the sessions; `None` while it is plain SFTP.
    helper: Option<String>,
    /// A connection was begun that is plain SFTP, and so all sessions are.
    is_plain: bool,
}

struct Further {
    connection: Connection,
    diagnosis: ssh::Diagnosis,
    helper: Option<String>,
}

impl Begun {
    /// Sets the connection for the first session.
    pub fn set_first(&self, first: Connection) {
        let mut waiting = self.0.lock();
        waiting.first = Some(first);
        waiting.is_plain = true;
    }

    /// Sets that the helper at this path serves the sessions.
    pub fn set_helper(&self, path: &str) {
        self.0.lock().helper = Some(path.to_owned());
    }

    /// A connection that the same program serves.
    fn take(&self, role: Role, helper: Option<&str>) -> Option<Connection> {
        match role {
            Role::Metadata | Role::Reconnect if helper.is_none() => self.0.lock().first.take(),
            Role::Metadata | Role::Reconnect | Role::Trial => None,
            Role::Bulk(_) => {
                let further = &mut self.living().further;
                let at = further.iter().rposition(|it| it.helper.as_deref() == helper)?;
                Some(further.swap_remove(at).connection)
            }
        }
    }

    fn further(&self) -> usize {
        let waiting = self.living();
        waiting.further.iter().filter(|it| it.helper == waiting.helper).count()
    }

    /// Removes connections whose ssh has ended: a login may have been refused, or lost while
    /// unused.
    fn living(&self) -> MutexGuard<'_, Waiting> {
        let mut waiting = self.0.lock();
        waiting.further.retain(|further| further.diagnosis.status().is_none());
        waiting
    }
}

/// Starts one ssh per session.
pub struct SshConnector {
    pub dialer: Arc<ssh::Dialer>,
    may_ask: AtomicBool,
    /// Connections that are open already.
    begun: Begun,
    /// Why the last ssh ended, as far as this was queried.
    last: Arc<Mutex<Option<ssh::Cause>>>,
}

impl SshConnector {
    /// ssh's messages go to standard error as they arrive: to the terminal while mounting, to the
    /// log afterwards.
    pub fn new(config: ssh::Config) -> Result<SshConnector, Problem> {
        let hook = Arc::new(crate::log::pass_on);
        let dialer = ssh::Dialer::new(config, hook).map_err(|error| problem("ssh", &error))?;
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
        let helper = {
            let mut waiting = begun.0.lock();
            waiting.is_plain |= waiting.helper.is_none();
            waiting.helper.clone()
        };
        let role = Role::Bulk(slot);
        let (connection, diagnosis) = match &helper {
            None => self.dial(&self.dialer, role).await?,
            Some(path) => self.dial(&self.helper_dialer(path)?, role).await?,
        };
        begun.0.lock().further.push(Further { connection, diagnosis, helper });
        Ok(())
    }

    async fn dial(
        &self,
        dialer: &Arc<ssh::Dialer>,
        role: Role,
    ) -> Result<(Connection, ssh::Diagnosis), ConnectError> {
        let connected = match role {
            Role::Metadata if self.may_ask.load(Ordering::Relaxed) => dialer.connect().await,
            Role::Reconnect => dialer.connect_again().await,
            Role::Metadata | Role::Trial | Role::Bulk(_) => dialer.connect_unasked().await,
        };
        let connection = connected.map_err(|error| ConnectError {
            message: match error.hint() {
                Some(hint) => format!("{error}\n  {hint}"),
                None => error.to_string(),
            },
            permanent: !error.is_transient(),
        })?;
        let ssh::Connection { reader, writer, diagnosis, link, password_number } = connection;
        let (last, told, dialer) = (self.last.clone(), diagnosis.clone(), dialer.clone());
        let explain = move || {
            let explanation = explain(&told, &last)?;
            if explanation.cause == host::Cause::Refused && dialer.login_refused(password_number) {
                let name = name_of(&dialer);
                tracing::warn!(
                    "{name}: the password that was typed was refused and is forgotten; {TYPE_AGAIN}"
                );
            }
            Some(explanation)
        };
        let mut connection = Connection::from_halves(reader, writer, Box::new(explain));
        connection.link = link.map(|link| Arc::new(link) as Arc<dyn host::Link>);
        let compression = self.dialer.setting("compression").await;
        connection.is_compressed = compression.as_deref() == Some("yes");
        Ok((connection, diagnosis))
    }

    /// Another connector to the same host, which never asks the user, but knows the password that
    /// was typed for this one.
    pub fn again(&self) -> SshConnector {
        let (may_ask, begun) = (AtomicBool::new(false), Begun::default());
        SshConnector { dialer: self.dialer.clone(), may_ask, begun, last: Arc::default() }
    }

    /// The shell at the host, which never asks the user.
    pub fn shell(&self) -> Arc<dyn transfer::Shell> {
        Arc::new(SshShell::new(self.dialer.for_server(String::new()), false))
    }

    /// Whether a second login may start the helper: nothing is begun that would be given up, and
    /// the login needs no answer that only the user can give.
    fn may_try_helper(&self) -> bool {
        !self.begun.0.lock().is_plain && self.dialer.password_state() != ssh::PasswordState::Needed
    }

    /// Starts the helper at `path`.
    fn helper_dialer(&self, path: &str) -> Result<Arc<ssh::Dialer>, ConnectError> {
        let command = place::command(path).ok_or_else(|| ConnectError {
            message: format!("{}: not a path for every login shell", printable(path)),
            permanent: true,
        })?;
        Ok(Arc::new(self.dialer.for_server(command)))
    }

    /// Logs in with a password, once.
    pub async fn try_password(&self, password: &ssh::Password) -> Result<(), Problem> {
        let (name, config) = (self.name(), self.dialer.config());
        if config.transport != ssh::Transport::Ssh
            || config.typed_password == ssh::TypedPassword::Noted
        {
            return Err(Problem::new(
                name,
                "no password is kept for it: keep_password=no, or it is not reached by ssh",
            ));
        }
        let dialer = self.dialer.with_password(password.clone());
        let attempt = async {
            match log_in(&dialer, false).await {
                Ok(_) => Ok(()),
                Err(LoginError::Ssh(error)) => Err(problem(&name, &error)),
                Err(LoginError::Sftp(error)) => Err(Problem::new(&name, error.to_string())),
            }
        };
        let late = |_| Err(Problem::new(&name, "the login has not succeeded in a minute"));
        tokio::time::timeout(LOGIN_LIMIT, attempt).await.unwrap_or_else(late)
    }

    /// Sets whether the ssh of a later first session may prompt for passwords and host keys on the
    /// terminal. If not, its messages are only in the error.
    pub fn set_asking(&self, may_ask: bool) {
        self.may_ask.store(may_ask, Ordering::Relaxed);
    }

    /// What the user can do when the login needs an answer that is not kept.
    pub fn type_again(&self) -> &'static str {
        match self.dialer.config().typed_password {
            ssh::TypedPassword::Noted => MOUNT_AGAIN,
            ssh::TypedPassword::Kept | ssh::TypedPassword::Unseen => TYPE_AGAIN,
        }
    }

    /// The host in messages.
    pub fn name(&self) -> String {
        name_of(&self.dialer)
    }

    /// Whether the last attempt failed because ssh was not allowed to prompt the user.
    pub fn wants_answer(&self) -> bool {
        let was_silent =
            !self.may_ask.load(Ordering::Relaxed) && self.dialer.config().password.is_none();
        let last = *self.last.lock();
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
        if let Some(begun) = self.begun.take(role, None) {
            return Ok(begun);
        }
        self.dial(&self.dialer, role).await.map(|(connection, _)| connection)
    }

    async fn connect_to_helper(&self, role: Role, path: &str) -> Result<Connection, ConnectError> {
        if let Some(begun) = self.begun.take(role, Some(path)) {
            return Ok(begun);
        }
        self.dial(&self.helper_dialer(path)?, role).await.map(|(connection, _)| connection)
    }

    fn helper_places(&self) -> Vec<String> {
        if self.may_try_helper() { place::all().to_vec() } else { Vec::new() }
    }

    async fn known_helper(&self) -> Option<String> {
        if self.begun.0.lock().is_plain {
            return None;
        }
        let known = record::read(self.dialer.place().await?).await;
        // Sessions that are begun ahead are served by it, too.
        self.begun.0.lock().helper.clone_from(&known);
        known
    }

    async fn record_helper(&self, path: Option<&str>) {
        self.begun.0.lock().helper = path.map(str::to_owned);
        if let Some(place) = self.dialer.place().await {
            record::write(place, path.map(str::to_owned)).await;
        }
    }

    async fn install_helper(&self) -> Option<String> {
        if !self.may_try_helper() {
            return None;
        }
        let name = self.name();
        let installed =
            install::install(&Arc::new(self.again()), None, std::future::pending()).await;
        match installed {
            Ok(installed) => Some(installed.path),
            Err(problem) => {
                tracing::warn!("{name}: the helper is not installed: {problem}");
                None
            }
        }
    }

    fn logged_in(&self) {
        self.dialer.login_succeeded();
    }

    fn ready(&self) -> usize {
        self.begun.further()
    }

    async fn retry_limit(&self) -> Duration {
        self.dialer.answer_limit().await
    }
}

fn name_of(dialer: &ssh::Dialer) -> String {
    printable(dialer.config().destination.to_string())
}

/// ssh's message about its end, with a hint. Its cause is stored in `last`.
fn explain(diagnosis: &ssh::Diagnosis, last: &Mutex<Option<ssh::Cause>>) -> Option<Explanation> {
    let summary = diagnosis.summary()?;
    let (cause, _) = ssh::Cause::of(&diagnosis.words(), diagnosis.status());
    *last.lock() = Some(cause);
    let text = match cause.hint() {
        Some(hint) => format!("{summary}\n  {hint}"),
        None => summary,
    };
    let logged_in = ran_program(diagnosis);
    Some(Explanation { text, cause: for_the_next_attempt(cause), logged_in })
}

/// ssh's message if the server starts no programs for this login; its status is [`SSH_FAILED`].
pub const REFUSED_PROGRAM: &str = "exec request failed";

/// Whether the login succeeded, and the program at the server ended or was not started.
fn ran_program(diagnosis: &ssh::Diagnosis) -> bool {
    match diagnosis.status().and_then(|status| status.code()) {
        Some(SSH_FAILED) => diagnosis.words().contains(REFUSED_PROGRAM),
        code => code.is_some(),
    }
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
