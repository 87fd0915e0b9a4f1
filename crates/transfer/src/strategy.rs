//! One copy of a command: which engines copy, in which order, over which logins.
//!
//! A tar stream goes first where one is possible: nothing of the tree is at the target yet, so
//! nothing has to be compared. A [`Run`](crate::Run) over SFTP then compares both sides and copies
//! what the stream did not copy. A stream that breaks therefore only leaves more work for the run.
//! SFTP connections are opened when the run needs them.
//!
//! The steps of both directions, of which an interruption or an error ends any:
//!
//! 1. One source, perhaps a file, and a target name that may be new: stream the source to that
//!    name. If it is not all there then, connect, and check what is a directory: for a push the
//!    target name, for a pull the source.
//! 2. Stream each source where that is possible.
//! 3. Connect to what is left.
//! 4. A push: complete the trees that broken streams have left, and rename them to their names.
//! 5. A run over all sources that are left.
//!
//! | module | contents |
//! |---|---|
//! | [`operand`] | sources and targets: a directory and a name in it |
//! | `context` | which engine may copy what; streams, connections and runs of both directions |
//! | `push`, `pull` | the steps |
//! | `stage` | completing a pushed tree that has not got its name |
//! | `sessions` | logins that start before they are needed |
//! | `results` | what the engines have done, as one outcome |
//!
//! Not here: the command line, ssh, the terminal. The program implements [`Connector`] and
//! [`Display`].

mod context;
pub mod operand;
mod pull;
mod push;
mod results;
mod sessions;
mod stage;

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use base::Remote;
use tokio::sync::watch;

use crate::events::{Events, Progress};
use crate::job::{JobError, check_names};
use crate::options::Options;
use crate::outcome::Outcome;
use crate::shell::{Running, Shell};
use crate::tar::{Compress, Method, PUSH_METHOD, Streaming, Unable};
use context::Context;
use operand::{LocalOperand, RemoteOperand};
use results::Results;

/// From which side to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From servers to this machine.
    Pull,
    /// From this machine to a server.
    Push,
}

impl Direction {
    /// The name of the command.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Pull => "pull",
            Direction::Push => "push",
        }
    }
}

/// Which engines a copy may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The fastest for each part of the copy.
    Auto,
    /// Tar streams; an error where none is possible.
    Tar,
    /// SFTP only.
    Sftp,
}

/// A copy, as the command line describes it.
#[derive(Clone, Debug)]
pub struct CopyRequest {
    /// From which side to which.
    pub direction: Direction,
    /// Which engines it may use.
    pub engine: Engine,
    /// Whether streams are compressed.
    pub compress: Compress,
    /// What is copied, and how.
    pub options: Options,
    /// The sources of a pull; the only target of a push.
    pub remote: Vec<RemoteOperand>,
    /// The sources of a push; the only target of a pull.
    pub local: Vec<LocalOperand>,
    /// The target was written with a slash at its end: it is a directory.
    pub target_is_directory: bool,
    /// What the options of the connection allow.
    pub logins: Logins,
}

/// What the options of the connection mean for further logins and their commands.
#[derive(Clone, Debug)]
pub struct Logins {
    /// The password comes from standard input. Only the connections get it: commands and sessions
    /// that start ahead cannot log in.
    pub password_stdin: bool,
    /// The user chose the SFTP server, so no shell may become another one.
    pub own_server: bool,
    /// The options of the connection change what SFTP lists, so a `find` of the server may list
    /// something else.
    pub own_view: bool,
    /// Sessions of one host, at most.
    pub max_sessions: usize,
}

/// Connections and commands at the servers of a [`CopyRequest`]. A `remote_index` is an index of
/// [`CopyRequest::remote`].
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// Connects to the directory of an operand for SFTP. `login`, if there is one, serves SFTP
    /// already and becomes the first session.
    ///
    /// # Errors
    /// See [`ConnectError`].
    async fn connect(
        &self,
        remote_index: usize,
        login: Option<Running>,
    ) -> Result<Connection, ConnectError>;

    /// The shell of the first gateway of an operand; `None` where no ssh leads there. Unless it
    /// `may_ask`, a login fails where ssh would have to ask the user for something.
    ///
    /// # Errors
    /// Where the options of the connection are wrong.
    fn shell(
        &self,
        remote_index: usize,
        may_ask: bool,
    ) -> Result<Option<Arc<dyn Shell>>, ConnectError>;

    /// Makes the operand itself the directory that the next connections lead to: it is a link to a
    /// directory, or a directory.
    fn enter(&self, remote_index: usize);

    /// Starts the logins of these further sessions of the only remote operand, for the connections
    /// made later. They must not ask the user for anything, and their failures are not reported:
    /// the connection tries again when it needs them. Sessions are numbered from 0, each starts
    /// once.
    fn start_sessions(&self, sessions: Range<usize>);
}

/// A connected operand: its directory is the root of `remote`.
pub struct Connection {
    /// The directory.
    pub remote: Arc<dyn Remote>,
    /// Dropped when the copy no longer needs `remote`.
    pub guard: Box<dyn Any + Send + Sync>,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConnectError {
    /// For the user: what failed, why, and a hint on a further line.
    pub message: String,
    /// The server answered, and refused the path: another login would get the same answer.
    pub is_of_operand: bool,
}

/// Shows a copy while it goes on.
pub trait Display: Events {
    /// Adds these counters to those that are shown.
    fn watch(&self, progress: Arc<Progress>);
}

/// How a copy ended.
#[derive(Clone, Debug)]
pub struct Copied {
    /// What became of the entries.
    pub outcome: Outcome,
    /// Names of the engines that have copied something.
    pub engines: Vec<&'static str>,
    /// Facts for the user that are no problems.
    pub notes: Vec<String>,
}

/// Why a copy could not start, or not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// There is no connection.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The login failed, and another one would fail, too.
    #[error("{hosts}: {why}")]
    NoLogin {
        /// Names of the gateways.
        hosts: String,
        /// ssh's reason.
        why: String,
    },
    /// The SFTP server sent no answer.
    #[error(
        "{hosts}: its SFTP server has not answered within {seconds} s\n  does `sftp` of OpenSSH \
         get an answer there?"
    )]
    Silent {
        /// Names of the gateways.
        hosts: String,
        /// How long the copy waited.
        seconds: u64,
    },
    /// The user wants streams only, and there is none.
    #[error("--engine tar: {0}\n  leave --engine out, and what can is used")]
    NoStream(String),
    /// The user wants a compression that a push does not have.
    #[error("--compress {}: a push is compressed by gzip only", .0.name())]
    PushMethod(Method),
    /// A source, the target, or a name at the target cannot be used.
    #[error("{what}: {why}")]
    Failed {
        /// What cannot be used, as messages name it.
        what: String,
        /// The reason, perhaps with a hint.
        why: String,
    },
    /// The options, or the sources, do not go together.
    #[error("copy: {0}")]
    Job(JobError),
}

impl From<Unable> for CopyError {
    fn from(unable: Unable) -> CopyError {
        CopyError::failed(format!("target '{}'", operand::printable(&unable.place)), unable.errno)
    }
}

impl CopyError {
    fn failed(what: String, why: impl ToString) -> CopyError {
        CopyError::Failed { what, why: why.to_string() }
    }
}

impl CopyRequest {
    /// Checks what is known before anything is connected.
    ///
    /// # Errors
    /// [`CopyError::NoStream`] where [`Engine::Tar`] cannot do what the options ask for,
    /// [`CopyError::PushMethod`], and [`CopyError::Job`] where two sources have one name at the
    /// target.
    pub fn check(&self) -> Result<(), CopyError> {
        // For all sources together: a stream copies one source without the others.
        let to: Vec<_> = match self.direction {
            Direction::Pull => self.remote.iter().map(RemoteOperand::path).collect(),
            Direction::Push => self.local.iter().map(LocalOperand::relative).collect(),
        };
        check_names(&to).map_err(CopyError::Job)?;
        if let (Direction::Push, Compress::Always(method)) = (self.direction, self.compress)
            && method != PUSH_METHOD
        {
            return Err(CopyError::PushMethod(method));
        }
        match (self.engine, Streaming::unsuited(&self.options, false, false)) {
            (Engine::Tar, Some(option)) => {
                Err(CopyError::NoStream(format!("it cannot do {option}")))
            }
            _ => Ok(()),
        }
    }
}

/// Copies. When `stop` becomes true, the copy ends in order, and its outcome is
/// [`Stop::Asked`](crate::Stop::Asked).
///
/// # Errors
/// When it cannot start, or not go on. What fails for an entry is in the outcome.
pub async fn copy(
    request: CopyRequest,
    connector: Arc<dyn Connector>,
    display: Arc<dyn Display>,
    stop: watch::Receiver<bool>,
) -> Result<Copied, CopyError> {
    request.check()?;
    let direction = request.direction;
    let mut context = Context::new(request, connector, display, stop);
    let mut results = Results::default();
    loop {
        let ended = match direction {
            Direction::Pull => pull::Pulling::new(&context, &mut results).run().await,
            Direction::Push => push::Pushing::new(&context, &mut results).run().await,
        };
        match ended {
            Ok(()) => {}
            Err(Halt::Interrupted) => results.interrupted(),
            Err(Halt::TargetLeadsOut) => {
                context.enter_target();
                results.compared_again();
                continue;
            }
            Err(Halt::Failed(error)) => return Err(error),
        }
        return Ok(results.copied());
    }
}

/// Why a copy ends before its last step.
#[derive(Debug)]
enum Halt {
    /// The user asked for the end.
    Interrupted,
    /// The target of a push is a link out of its directory: the copy begins again with the
    /// directory that it leads to.
    TargetLeadsOut,
    /// It cannot go on.
    Failed(CopyError),
}

impl<E: Into<CopyError>> From<E> for Halt {
    fn from(error: E) -> Halt {
        Halt::Failed(error.into())
    }
}
