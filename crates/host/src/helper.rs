//! Which program serves the sessions of a host: the SFTP server of its sshd, or the helper,
//! sshoal's own server, which is started by a command.
//!
//! The first session decides, before an operation uses it:
//!
//! | what is known | first session |
//! |---|---|
//! | the helper is required ([`Helper::At`]) | the helper's, or none |
//! | the helper served an earlier login | the helper's; if that fails because of the helper, as below |
//! | nothing | plain SFTP, whose first requests include the places where the helper may be. If it is there, a second login starts it, and replaces the first session if the helper answers and starts in the same directory |
//!
//! Invariants:
//! 1. The decision is never changed ([`Program`]). All later sessions are served by the same
//!    program; if the helper does not start any more, they fail ([`Error::HelperGone`]). A helper
//!    that appears later is not used.
//! 2. Only [`Extension::Attrs`] in the VERSION reply proves that the helper answers.
//! 3. A program that is found on the server is started only if no user but the login and root could
//!    write it then. It is not checked again for later logins, which would take them a round trip,
//!    and a program that the user names is not checked.
//!
//! Not here: how a program is started, what is remembered and where ([`Connector`]).
//!
//! [`Connector`]: crate::Connector

use std::sync::Arc;
use std::time::Duration;

use base::{Errno, FileKind, RemotePath};
use bytes::Bytes;
use sftp::{Extension, FileAttrs};

use crate::config::Helper;
use crate::connector::Role;
use crate::error::Error;
use crate::host::Host;
use crate::login::login_ids;
use crate::pool::Pool;
use crate::pool::status::Server;
use crate::session::Session;
use crate::{attr, pipelined};

/// Time for the second login, in which the helper answers. A login over a slow link with a jump
/// host takes three seconds. The mount waits for it once.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

const ANOTHER_SERVER: &str = "another SFTP server answered";

/// Characters of a server's version that are shown.
const SHOWN_VERSION_CHARS: usize = 40;

const EXECUTABLE: u32 = 0o111;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// What serves all sessions of a host.
#[derive(Debug)]
pub(crate) enum Program {
    /// The SFTP server of its sshd. If that becomes the helper, it is used as any other.
    Plain,
    /// The helper, which is the SFTP server of its sshd.
    Subsystem,
    /// The helper at this path, started by a command.
    At(String),
}

/// The answers to the first requests about the root.
pub(crate) struct RootAnswers {
    pub(crate) attrs: sftp::Result<FileAttrs>,
    /// The root as an absolute path without links.
    pub(crate) real: sftp::Result<Bytes>,
}

/// The server's answers to the first requests of a session, sent together.
struct Greeting {
    root: Option<RootAnswers>,
    /// The attributes of the places, in their order.
    places: Vec<sftp::Result<FileAttrs>>,
}

/// Why the helper is not used although it is there.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("others than its owner may write it")]
    Writable,
    #[error("it belongs to user {0}")]
    Foreign(u32),
    #[error("{0}")]
    Failed(String),
    #[error("no answer within {} s", TRIAL_LIMIT.as_secs())]
    Late,
    #[error("it starts in another directory than the SFTP server")]
    Elsewhere,
}

impl Unfit {
    fn failed(error: Error) -> Unfit {
        Unfit::Failed(match error {
            Error::NoHelper { why, .. } => why,
            error => first_line(&error),
        })
    }
}

impl Session {
    /// Whether the helper serves it.
    pub(crate) fn is_helper(&self) -> bool {
        self.offers(Extension::Attrs)
    }

    /// The program that serves it.
    pub(crate) fn server(&self) -> Server {
        let product = self.client.product();
        Server {
            is_helper: self.is_helper(),
            version: product.map(|it| it.version.chars().take(SHOWN_VERSION_CHARS).collect()),
            extensions: self.client.server().extensions.iter().map(Extension::name).collect(),
        }
    }
}

impl Pool {
    /// Begins the first session of the host.
    pub(crate) async fn begin_first(&self) -> Result<Arc<Session>, Error> {
        let known = match &self.config.helper {
            Helper::No => None,
            Helper::At(path) => {
                let session = self.begin_with_retries(Role::Metadata, 0, Some(path)).await?;
                return Ok(self.adopt(session, path).await);
            }
            Helper::Auto | Helper::Install => self.connector.known_helper().await,
        };
        if let Some(path) = &known {
            let begun = self.begin_with_retries(Role::Metadata, 0, Some(path));
            // The user may have to type a password, so this is no time for a login alone.
            let limit = self.config.stall_limit;
            let why = match tokio::time::timeout(limit, begun).await {
                Ok(Ok(session)) => return Ok(self.adopt(session, path).await),
                Ok(Err(Error::NoHelper { why, .. })) => why,
                Ok(Err(error)) => return Err(error),
                Err(_) => format!("no answer within {} s", limit.as_secs()),
            };
            self.log_unfit(path, &why);
            self.connector.record_helper(None).await;
        }
        let session = self.begin_with_retries(Role::Metadata, 0, None).await?;
        let is_wanted = self.config.helper != Helper::No && !session.is_helper();
        let mut places = if is_wanted { self.connector.helper_places() } else { Vec::new() };
        places.retain(|place| Some(place) != known.as_ref());
        let greeting = self.greet(&session, &places).await;
        let found = first_program(places, greeting.places);
        let better = match found {
            Some((place, attrs)) => {
                self.replace(&session, place, Some(attrs), &greeting.root).await
            }
            None if is_wanted && self.config.helper == Helper::Install => {
                match self.connector.install_helper().await {
                    Some(place) => self.replace(&session, place, None, &greeting.root).await,
                    None => None,
                }
            }
            None => None,
        };
        self.note_root(greeting.root);
        let program = if session.is_helper() { Program::Subsystem } else { Program::Plain };
        Ok(better.unwrap_or_else(|| {
            let _ = self.program.set(program);
            session
        }))
    }

    /// Begins a session that the same program serves as the first one.
    pub(crate) async fn begin_later(&self, role: Role, slot: usize) -> Result<Arc<Session>, Error> {
        let program = self.program.get();
        let path = match program {
            Some(Program::At(path)) => Some(path.as_str()),
            _ => None,
        };
        match (self.begin_with_retries(role, slot, path).await, program) {
            (Err(Error::NoHelper { path, why }), _) => Err(Error::HelperGone { path, why }),
            (Ok(session), Some(Program::Subsystem)) if !session.is_helper() => {
                let path = "(the SFTP subsystem)".to_owned();
                Err(Error::HelperGone { path, why: ANOTHER_SERVER.to_owned() })
            }
            (begun, _) => begun,
        }
    }

    /// Whether a session may use what only the helper offers.
    pub(crate) fn uses_own_extensions(&self) -> bool {
        !matches!(self.program.get(), Some(Program::Plain))
    }

    /// Uses the first session, which the helper at `path` serves.
    async fn adopt(&self, session: Arc<Session>, path: &str) -> Arc<Session> {
        self.note_root(self.greet(&session, &[]).await.root);
        let _ = self.program.set(Program::At(path.to_owned()));
        session
    }

    /// Keeps the answers about the root: `Host::connect` checks them, unless it did not wait.
    fn note_root(&self, root: Option<RootAnswers>) {
        if let Some(RootAnswers { real: Ok(real), .. }) = &root {
            let _ = self.real_root.set(real.to_vec());
        }
        *self.root_answers.lock() = root;
    }

    /// The first requests, sent together.
    async fn greet(&self, session: &Session, places: &[String]) -> Greeting {
        let client = &session.client;
        let places = base::join_in_order(places.iter().map(|place| client.stat(place.as_bytes())));
        let root = async {
            let path = session.path(&RemotePath::root()).ok()?;
            // The root may be a link to a directory.
            let (attrs, real) = pipelined::both(client.stat(&path), client.realpath(&path)).await;
            Some(RootAnswers { attrs, real })
        };
        let (root, places) = tokio::join!(root, places);
        Greeting { root, places }
    }

    /// The session that replaces `session`, served by the helper at `path`. `None`, and the reason
    /// in the log, if it does not serve.
    async fn replace(
        &self,
        session: &Arc<Session>,
        path: String,
        attrs: Option<FileAttrs>,
        root: &Option<RootAnswers>,
    ) -> Option<Arc<Session>> {
        let allowed = match attrs {
            Some(attrs) => may_be_started(session, &attrs).await,
            None => Ok(()),
        };
        let tried = match allowed {
            Ok(()) => self.try_helper(session, &path, root).await,
            Err(unfit) => Err(unfit),
        };
        match tried {
            Ok(better) => {
                self.connector.record_helper(Some(&path)).await;
                let _ = self.program.set(Program::At(path));
                Some(better)
            }
            Err(unfit) => {
                self.log_unfit(&path, &unfit.to_string());
                None
            }
        }
    }

    /// Starts the helper in a second login.
    async fn try_helper(
        &self,
        session: &Session,
        path: &str,
        root: &Option<RootAnswers>,
    ) -> Result<Arc<Session>, Unfit> {
        let trial = async {
            let trial = self.begin_with_retries(Role::Trial, 0, Some(path));
            let better = trial.await.map_err(Unfit::failed)?;
            let start =
                pipelined::both(session.client.realpath(b"."), better.client.realpath(b"."));
            let ((before, after), greeting) = tokio::join!(start, self.greet(&better, &[]));
            let real = |root: &Option<RootAnswers>| root.as_ref()?.real.as_ref().ok().cloned();
            let same_root = greeting.root.is_none() || real(&greeting.root) == real(root);
            match (before, after) {
                (Ok(before), Ok(after)) if before == after && same_root => Ok(better),
                _ => Err(Unfit::Elsewhere),
            }
        };
        tokio::time::timeout(TRIAL_LIMIT, trial).await.unwrap_or(Err(Unfit::Late))
    }

    fn log_unfit(&self, path: &str, why: &str) {
        let name = &self.config.name;
        tracing::warn!("{name}: the helper {path} is not used, but plain SFTP: {why}");
    }
}

/// The result of an attempt to begin a session that the helper at `path` serves.
pub(crate) fn served_by(
    path: &str,
    begun: Result<Arc<Session>, Error>,
) -> Result<Arc<Session>, Error> {
    let why = match begun {
        Ok(session) if session.is_helper() => return Ok(session),
        Ok(_) => ANOTHER_SERVER.to_owned(),
        Err(error) if error.is_of_program() => first_line(&error),
        Err(error) => return Err(error),
    };
    Err(Error::NoHelper { path: path.to_owned(), why })
}

impl Host {
    /// The first of these places where a program is, and the reason why it is not started, if there
    /// is one.
    ///
    /// # Errors
    /// When there is no session.
    pub async fn find_helper(
        &self,
        places: &[String],
    ) -> Result<Option<(String, Option<String>)>, Errno> {
        let session = self.metadata().await?;
        let stat = places.iter().map(|place| session.client.stat(place.as_bytes()));
        let answers = base::join_in_order(stat).await;
        let Some((place, attrs)) = first_program(places.to_vec(), answers) else { return Ok(None) };
        let unfit = may_be_started(&session, &attrs).await.err();
        Ok(Some((place, unfit.map(|unfit| unfit.to_string()))))
    }
}

/// The first of these places whose attributes are those of a program.
fn first_program(
    places: Vec<String>,
    answers: Vec<sftp::Result<FileAttrs>>,
) -> Option<(String, FileAttrs)> {
    places.into_iter().zip(answers).find_map(|(place, answer)| {
        let attrs = answer.ok()?;
        is_program(&attrs).then_some((place, attrs))
    })
}

/// The error without hints, which are about plain SFTP.
fn first_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

fn is_program(attrs: &FileAttrs) -> bool {
    let is_executable = attrs.permissions.is_some_and(|mode| mode & EXECUTABLE != 0);
    attr::kind(attrs) == Some(FileKind::Regular) && is_executable
}

/// Whether only the login and root can have written the program.
async fn may_be_started(session: &Arc<Session>, attrs: &FileAttrs) -> Result<(), Unfit> {
    if attrs.permissions.is_none_or(|mode| mode & WRITABLE_BY_OTHERS != 0) {
        return Err(Unfit::Writable);
    }
    match attrs.owner.map(|owner| owner.uid) {
        None | Some(0) => Ok(()),
        Some(owner) => match login_ids(session).await {
            Ok((login, _)) if login == owner => Ok(()),
            _ => Err(Unfit::Foreign(owner)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_regular_file_that_can_be_executed() {
        let attrs = |mode| FileAttrs { permissions: Some(mode), ..FileAttrs::default() };
        assert!(is_program(&attrs(0o100_755)) && is_program(&attrs(0o100_700)));
        for mode in [0o100_644, 0o040_755, 0o120_777, 0o755] {
            assert!(!is_program(&attrs(mode)), "{mode:o}");
        }
        assert!(!is_program(&FileAttrs::default()));
    }
}
