//! Connections to one destination, one after another or many at once.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use crate::command::{self, our_options, users_options};
use crate::config::{Config, Transport};
use crate::diagnosis::Diagnosis;
use crate::effective::Effective;
use crate::error::{Error, Result};
use crate::password::Askers;
use crate::stream::Stream;
use crate::{child, socket};

/// Gets ssh's stderr while it is written: banners, warnings, reasons. A server can write there, so
/// it is escaped for a terminal, with its lines as they are. The reason for ssh's end is left out:
/// it is in the [`Diagnosis`]. ssh's own questions go to `/dev/tty` and not here. Must not block for long, since nothing else is done for that child meanwhile.
pub type StderrHook = Arc<dyn Fn(&str) + Send + Sync>;

/// A stream, and where to learn why it ended.
#[derive(Debug)]
pub struct Connection {
    /// The bytes.
    pub stream: Stream,
    /// ssh's words and how it ended.
    pub diagnosis: Diagnosis,
}

/// Makes connections to one destination.
pub struct Dialer {
    config: Config,
    /// The words of the ssh command, the first of them the program.
    command: Vec<OsString>,
    hook: StderrHook,
    /// Learned at the first connection; `None` when ssh did not tell.
    effective: OnceCell<Option<Effective>>,
}

impl Dialer {
    /// Checks the configuration. Relative names of files in it count from the current directory.
    ///
    /// # Errors
    /// [`Error::EmptyCommand`]; [`Error::Local`] when there is no current directory.
    pub fn new(mut config: Config, hook: StderrHook) -> Result<Dialer> {
        let mut words = command::split(&config.ssh_command)?;
        let directory = std::env::current_dir()
            .map_err(|source| Error::Local { what: "find the current directory", source })?;
        // A name with a slash is no business of PATH's, and ssh is started elsewhere.
        if Path::new(&words[0]).components().count() > 1 {
            words[0] = directory.join(&words[0]).into_os_string();
        }
        config.args = command::with_absolute_files(&config.args, &directory);
        Ok(Dialer { config, command: words, hook, effective: OnceCell::new() })
    }

    /// The configuration, with absolute names of files.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Makes a connection. ssh may ask on the terminal. Must be called within a tokio runtime, which serves it from then on.
    ///
    /// With ssh this returns when the child is started, before it has logged in, since only the
    /// server's answer to an SFTP message tells that it has: send one, and when the stream ends
    /// instead, ask [`Diagnosis::explain`].
    ///
    /// # Errors
    /// [`Error::Spawn`], [`Error::Connect`], [`Error::Local`], [`Error::PassiveUsed`].
    pub async fn connect(&self) -> Result<Connection> {
        self.dial(true, true).await
    }

    /// As [`Dialer::connect`], for a connection in the place of one that was lost: nobody sits at
    /// the terminal to be asked any more. Without one ssh would answer a question for a password
    /// by itself, with an empty one, and each time that is a failed login.
    ///
    /// # Errors
    /// As [`Dialer::connect`].
    pub async fn connect_again(&self) -> Result<Connection> {
        self.dial(command::has_askpass(), true).await
    }

    /// As [`Dialer::connect`], for a connection that is only a convenience: ssh asks nobody
    /// anything and rather fails, unless a password is there to be given, and what it says is only
    /// in the [`Diagnosis`].
    ///
    /// # Errors
    /// As [`Dialer::connect`].
    pub async fn connect_unasked(&self) -> Result<Connection> {
        self.dial(false, false).await
    }

    /// ssh asks if it `asks`; the hook hears it if it is `heard`.
    async fn dial(&self, asks: bool, heard: bool) -> Result<Connection> {
        let stream = match self.config.transport {
            Transport::Ssh => {
                let words = self.words(asks).await;
                tracing::debug!("starting {words:?}");
                let askers = Askers::by(self.effective().await);
                let password = self.config.password.clone().map(|password| (password, askers));
                let hook: StderrHook = match heard {
                    true => self.hook.clone(),
                    false => Arc::new(|_: &str| {}),
                };
                let (stream, diagnosis) = child::start(&words, password, hook)?;
                return Ok(Connection { stream, diagnosis });
            }
            Transport::DirectPort(port) => {
                socket::tcp(self.config.destination.host(), port).await?
            }
            Transport::Vsock { cid, port } => socket::vsock(cid, port).await?,
            Transport::Passive => socket::passive()?,
        };
        Ok(Connection { stream, diagnosis: Diagnosis::default() })
    }

    /// For how long ssh waits for a server that does not greet.
    pub async fn connect_limit(&self) -> Duration {
        let effective = self.effective().await;
        command::connect_limit(effective)
    }

    /// What the user's configuration comes to; `None` where ssh does not tell. Asked for once.
    pub(crate) async fn effective(&self) -> Option<&Effective> {
        let users = users_options(&self.config);
        let (program, prefix) = self.command.split_first().expect("split gives at least one word");
        let destination = self.config.destination.to_string();
        let query = || Effective::query(program, prefix, &users, &destination);
        self.effective.get_or_init(query).await.as_ref()
    }

    /// The program and all its arguments.
    async fn words(&self, asks: bool) -> Vec<OsString> {
        let mut users = users_options(&self.config);
        let ours = our_options(&self.config, self.effective().await, command::processor_has_aes());
        if !asks && self.config.password.is_none() {
            users.push(command::ASK_NOTHING.into());
        }
        [&self.command[..], &users, &ours, &command::target(&self.config)].concat()
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("config", &self.config).finish_non_exhaustive()
    }
}
