//! Commands on the far side, each by an ssh of its own.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use transfer::shell::Exit;
use transfer::{Running, Shell, ShellError};

use crate::report::Problem;

/// Exit status with which ssh tells of itself.
const SSH_FAILED: i32 = 255;

/// Runs commands by ssh. The first host that answers is the one that is used.
pub struct SshShell {
    config: ssh::Config,
}

impl SshShell {
    /// The shell of the host that this configuration leads to.
    pub fn new(config: ssh::Config) -> SshShell {
        SshShell { config }
    }
}

#[async_trait]
impl Shell for SshShell {
    async fn start(&self, command: &[u8]) -> Result<Running, ShellError> {
        let text = String::from_utf8(command.to_vec())
            .map_err(|_| ShellError::Refused("a name in the command is not UTF-8".to_owned()))?;
        // `ssh` takes a word without a slash for the name of a subsystem.
        let text = if text.contains('/') { text } else { format!(": /; {text}") };
        let config = ssh::Config { sftp_server: Some(text), ..self.config.clone() };
        // ssh asks its questions on the terminal; what the command says is for its caller.
        let dialer = ssh::Dialer::new(config, Arc::new(|_: &[u8]| {}))
            .map_err(|error| ShellError::Refused(error.to_string()))?;
        let connection =
            dialer.connect().await.map_err(|error| ShellError::Lost(error.to_string()))?;
        let (reader, writer) = connection.stream.into_split();
        let diagnosis = connection.diagnosis;
        let exit = Box::pin(async move {
            diagnosis.ended().await;
            let status = diagnosis.status().and_then(|status| status.code());
            match status {
                Some(SSH_FAILED) => Err(ShellError::Lost(
                    diagnosis.summary().unwrap_or_else(|| "ssh ended".to_owned()),
                )),
                status => Ok(Exit { status, stderr: diagnosis.words().into_bytes() }),
            }
        });
        Ok(Running { stdin: Box::new(writer), stdout: Box::new(reader), exit })
    }
}

/// The end of a command, as far as it is known.
enum End {
    Awaited(Pin<Box<dyn Future<Output = Result<Exit, ShellError>> + Send>>),
    /// What is to be said of it.
    Told(String),
}

/// A command that serves SFTP, as what a host gets for its first session.
pub fn session(running: Running) -> host::Connection {
    let Running { stdin, stdout, exit } = running;
    let end = Mutex::new(End::Awaited(exit));
    let explain = move || {
        let mut end = end.lock().unwrap_or_else(PoisonError::into_inner);
        if let End::Awaited(exit) = &mut *end {
            // It is asked for when the session has ended, and so has the command.
            let polled = exit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(ended) = polled else { return None };
            let words = match ended {
                Ok(Exit { stderr, .. }) => String::from_utf8_lossy(&stderr).trim().to_owned(),
                Err(error) => error.to_string(),
            };
            *end = End::Told(words);
        }
        match &*end {
            End::Told(words) if !words.is_empty() => Some(words.clone()),
            _ => None,
        }
    };
    host::Connection::from_halves(stdout, stdin, Box::new(explain))
}

/// The shell of a source's first gateway; `None` where no ssh leads there.
pub fn of(configs: Vec<ssh::Config>) -> Result<Option<Arc<dyn Shell>>, Problem> {
    let config = configs.into_iter().next();
    let config = config.filter(|config| config.transport == ssh::Transport::Ssh);
    Ok(config.map(|config| Arc::new(SshShell::new(config)) as Arc<dyn Shell>))
}
