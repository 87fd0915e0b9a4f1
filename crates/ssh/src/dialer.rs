//! Opens connections to one destination, one after another or in parallel.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use crate::command::{self, our_options, users_options};
use crate::config::{Config, Password, Transport, TypedPassword};
use crate::diagnosis::Diagnosis;
use crate::effective::{self, Effective};
use crate::error::Result;
use crate::password::{Answers, Askers, Known};
use crate::relay::{Keeper, PasswordState, Relay};
use crate::stream::{Reader, Writer};
use crate::{child, socket};

/// Called with ssh's stderr as it is written: banners, warnings, errors. A server can write there,
/// so the text is escaped for a terminal, except the ends of lines. The reason for ssh's end is
/// left out: it is in the [`Diagnosis`]. ssh's prompts go to `/dev/tty`, not here. Must not block
/// for long, since the child is not served meanwhile.
pub type StderrHook = Arc<dyn Fn(&str) + Send + Sync>;

/// A byte stream, and the diagnosis of its end.
#[derive(Debug)]
pub struct Connection {
    /// The bytes from the server.
    pub reader: Reader,
    /// The bytes to the server.
    pub writer: Writer,
    /// ssh's messages and exit status.
    pub diagnosis: Diagnosis,
    /// The TCP connections of ssh; `None` without ssh.
    pub link: Option<tcp::Processes>,
    /// The number of the kept password that it uses, for [`Dialer::login_refused`].
    pub password_number: u64,
}

/// Who answers ssh's prompts, if no password is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    /// The user.
    User,
    /// An askpass program, if there is one.
    Askpass,
    /// There is no prompt, and ssh's messages are not shown either.
    Off,
}

/// Opens connections to one destination.
pub struct Dialer {
    config: Config,
    /// The words of the ssh command, the first of them the program.
    command: Vec<OsString>,
    hook: StderrHook,
    /// Queried at the first connection; `None` if ssh did not print it.
    effective: OnceCell<Option<Effective>>,
    /// The password that was typed on the terminal.
    keeper: Arc<Keeper>,
}

impl Dialer {
    /// # Errors
    /// [`Error::EmptyCommand`](crate::Error::EmptyCommand).
    pub fn new(config: Config, hook: StderrHook) -> Result<Dialer> {
        Ok(Dialer {
            command: command::split(&config.ssh_command)?,
            config,
            hook,
            effective: OnceCell::new(),
            keeper: Arc::default(),
        })
    }

    /// A dialer to the same destination for another SFTP server or command; see
    /// [`Config::sftp_server`]. Both use the password that was typed for one of them.
    pub fn for_server(&self, server: String) -> Dialer {
        self.configured(Config { sftp_server: Some(server), ..self.config.clone() })
    }

    /// A dialer to the same destination whose ssh also reports which keys it offers (`-v`). Both
    /// use the password that was typed for one of them.
    pub fn verbose(&self) -> Dialer {
        let mut config = self.config.clone();
        config.args.push("-v".into());
        self.configured(config)
    }

    fn configured(&self, config: Config) -> Dialer {
        Dialer {
            config,
            command: self.command.clone(),
            hook: self.hook.clone(),
            effective: self.effective.clone(),
            keeper: self.keeper.clone(),
        }
    }

    /// A dialer to the same destination that answers with this password, and keeps none.
    pub fn with_password(&self, password: Password) -> Dialer {
        Dialer {
            config: Config { password: Some(password), ..self.config.clone() },
            command: self.command.clone(),
            hook: self.hook.clone(),
            effective: self.effective.clone(),
            keeper: Arc::default(),
        }
    }

    /// Keeps a password with which [`Dialer::with_password`] has logged in, for all further
    /// connections.
    pub fn keep(&self, password: Password) {
        self.keeper.keep(Known { password, question: None });
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Opens a connection. ssh may prompt on the terminal, if there is one. Must be called within a
    /// tokio runtime, which serves the connection from then on.
    ///
    /// With ssh this returns when the child is started, before the login: only a reply to an SFTP
    /// message shows that the login succeeded. Send one; if the stream ends instead, call
    /// [`Diagnosis::explain`].
    ///
    /// # Errors
    /// Of [`Error`](crate::Error): `Spawn`, `Connect`, `Local`, `PassiveUsed`.
    pub async fn connect(&self) -> Result<Connection> {
        self.dial(Asking::User).await
    }

    /// Reconnects as [`Dialer::connect`] does, but without prompts on the terminal, which may be
    /// unattended or gone.
    ///
    /// # Errors
    /// As [`Dialer::connect`].
    pub async fn connect_again(&self) -> Result<Connection> {
        self.dial(Asking::Askpass).await
    }

    /// Opens an additional connection as [`Dialer::connect`] does, but ssh fails instead of
    /// prompting, unless the configuration has a password, and its messages are only in the
    /// [`Diagnosis`].
    ///
    /// # Errors
    /// As [`Dialer::connect`].
    pub async fn connect_unasked(&self) -> Result<Connection> {
        self.dial(Asking::Off).await
    }

    async fn dial(&self, asking: Asking) -> Result<Connection> {
        let (kept, password_number) = self.keeper.kept();
        let (reader, writer) = match self.config.transport {
            Transport::Ssh => {
                let given = self.config.password.clone();
                let given = given.map(|password| Known { password, question: None });
                // A password that was kept was accepted last.
                let known = kept.or(given);
                let asks = match asking {
                    Asking::User => self.may_prompt(),
                    Asking::Askpass => command::has_askpass(),
                    Asking::Off => false,
                };
                let words = self.words(asks, known.is_some()).await;
                tracing::debug!("starting {words:?}");
                let answers = match known {
                    Some(known) => Some(Answers::Known(known, self.askers().await)),
                    None if asking == Asking::User => self.relay().await.map(Answers::User),
                    None => None,
                };
                let hook: StderrHook = match asking {
                    Asking::User | Asking::Askpass => self.hook.clone(),
                    Asking::Off => Arc::new(|_: &str| {}),
                };
                let ((reader, writer), diagnosis, link) = child::start(&words, answers, hook)?;
                return Ok(Connection { reader, writer, diagnosis, link, password_number });
            }
            Transport::DirectPort(port) => {
                socket::tcp(self.config.destination.host(), port).await?
            }
            Transport::Vsock { cid, port } => socket::vsock(cid, port).await?,
            Transport::Passive => socket::passive()?,
        };
        let (diagnosis, link) = (Diagnosis::default(), None);
        Ok(Connection { reader, writer, diagnosis, link, password_number })
    }

    /// Whether a prompt of ssh can reach the user. Without a terminal and an askpass program, ssh
    /// would send an empty password at each prompt, which is a failed login each time. Another
    /// program may answer prompts itself, as `sshpass` does.
    fn may_prompt(&self) -> bool {
        !effective::is_ssh(self.program().0)
            || File::open("/dev/tty").is_ok()
            || command::may_use_askpass()
    }

    /// Passes on the prompts of the first connection, if the password is of interest and there is a
    /// terminal.
    async fn relay(&self) -> Option<Relay> {
        let keeps = match self.config.typed_password {
            TypedPassword::Unseen => return None,
            TypedPassword::Noted => false,
            TypedPassword::Kept => true,
        };
        let askers = match effective::is_ssh(self.program().0) {
            true => Askers::by(self.effective().await),
            false => Askers::default(),
        };
        Relay::open(&self.keeper, keeps, askers)
    }

    /// Call it when a login has succeeded: the password that was typed for it may now be used
    /// again.
    pub fn login_succeeded(&self) {
        self.keeper.succeeded();
    }

    /// Call it when a login was refused, with [`Connection::password_number`]: that password is
    /// forgotten, but not one that was kept since. Returns whether it was kept.
    pub fn login_refused(&self, password_number: u64) -> bool {
        self.keeper.refused(password_number)
    }

    /// Whether further connections can answer the prompts that the first one had.
    pub fn password_state(&self) -> PasswordState {
        self.keeper.state()
    }

    /// How long a server may take to answer: ssh's limit, without the time for a login at a jump
    /// host.
    pub async fn answer_limit(&self) -> Duration {
        let effective = self.effective().await;
        command::answer_limit(effective)
    }

    /// The value of a keyword, in lower case, in the user's effective configuration (`ssh -G`);
    /// `None` if ssh does not print it.
    pub async fn setting(&self, keyword: &str) -> Option<String> {
        self.effective().await?.get(keyword).map(str::to_owned)
    }

    /// The files that ssh may log in with, as `ssh -G` prints them, and whether the user has named
    /// them; `None` if ssh does not print its settings.
    pub async fn identity_files(&self) -> Option<(Vec<String>, bool)> {
        let settings = self.effective().await?;
        Some((settings.identity_files().to_vec(), settings.has_chosen_identities()))
    }

    /// The user's effective configuration; `None` if ssh does not print it. Queried once.
    pub(crate) async fn effective(&self) -> Option<&Effective> {
        self.effective.get_or_init(|| self.query()).await.as_ref()
    }

    async fn query(&self) -> Option<Effective> {
        let (program, prefix) = self.program();
        let destination = self.config.destination.to_string();
        Effective::query(program, prefix, &users_options(&self.config), &destination).await
    }

    /// Which prompts for a password are the destination's. Queried for each connection: a `Match
    /// exec` or a changed configuration may use a jump host that the first connection did not use.
    async fn askers(&self) -> Askers {
        if !effective::is_ssh(self.program().0) {
            return Askers::default();
        }
        Askers::by(self.query().await.as_ref())
    }

    /// The program, and the words of the ssh command after it.
    fn program(&self) -> (&OsString, &[OsString]) {
        self.command.split_first().expect("split gives at least one word")
    }

    /// The program and all its arguments.
    async fn words(&self, asks: bool, knows_password: bool) -> Vec<OsString> {
        let mut words = self.options().await;
        if knows_password {
            words.push(command::ASK_ONCE.into());
        } else if !asks {
            words.push(command::ASK_NOTHING.into());
        }
        words.extend(command::target(&self.config));
        words
    }

    /// The program and its options, as for a connection, for a command that a user runs: without
    /// the destination, and without a password. `None` if ssh is not used.
    pub async fn command(&self) -> Option<Vec<OsString>> {
        match self.config.transport {
            Transport::Ssh => Some(self.options().await),
            Transport::DirectPort(_) | Transport::Vsock { .. } | Transport::Passive => None,
        }
    }

    async fn options(&self) -> Vec<OsString> {
        let users = users_options(&self.config);
        let ours = our_options(&self.config, self.effective().await, base::processor::has_aes());
        [&self.command[..], &users, &ours].concat()
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("config", &self.config).finish_non_exhaustive()
    }
}
