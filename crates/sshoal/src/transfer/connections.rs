//! Connections and commands of a copy: what [`transfer::strategy`] needs of ssh.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{Mutex, Owner, Remote};
use cli::{Problem, printable};
use host::{Direct, Helper};
use transfer::strategy::{ConnectError, Connection, Connector, Logins};
use transfer::{Running, Shell};

use super::operand::ParsedOperand;
use super::shell;
use super::show::Show;
use crate::connector::{Begun, SshConnector};
use crate::mount::request::MountRequest;
use crate::stack::{self, Stack};

/// Least time between two notes of a lost connection: a server may end again and again.
const NOTE_INTERVAL: Duration = Duration::from_secs(60);

/// How often the end of a longer outage is looked for.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The servers of one copy.
pub struct Connections {
    /// The connection's options, as those of a mount that is never made.
    request: MountRequest,
    operands: Mutex<Vec<ParsedOperand>>,
    /// Sessions of the only operand that were started before they are needed.
    begun: Begun,
    show: Arc<Show>,
    /// The password from standard input, when it was read.
    password: Mutex<Option<ssh::Password>>,
}

impl Connections {
    pub fn new(
        request: MountRequest,
        operands: Vec<ParsedOperand>,
        show: Arc<Show>,
    ) -> Connections {
        let begun = Begun::default();
        if let Helper::At(path) = &request.host.helper {
            begun.set_helper(path);
        }
        let (operands, password) = (Mutex::new(operands), Mutex::default());
        Connections { request, operands, begun, show, password }
    }

    /// What the options mean for the strategy.
    pub fn logins(&self) -> Logins {
        let request = &self.request;
        Logins {
            password_stdin: request.ssh.password_stdin,
            own_server: request.ssh.sftp_server.is_some()
                || matches!(request.host.helper, Helper::At(_))
                // A login of a stream is plain SFTP.
                || request.host.direct != Direct::No,
            own_view: request.host.follow_symlinks || request.disk.is_some(),
            max_sessions: request.host.max_conns,
        }
    }

    /// The password from standard input, which is read once for all connections.
    fn read_password(&self) -> Result<ssh::Password, Problem> {
        let mut password = self.password.lock();
        if password.is_none() {
            *password = Some(stack::read_password()?);
        }
        Ok(password.clone().expect("it was read"))
    }

    fn ssh_configs(&self, remote_index: usize) -> Result<Vec<ssh::Config>, Problem> {
        stack::ssh_configs(&self.request, &self.operands.lock()[remote_index].spec)
    }
}

#[async_trait]
impl Connector for Connections {
    async fn connect(
        &self,
        remote_index: usize,
        login: Option<Running>,
    ) -> Result<Connection, ConnectError> {
        // Sessions do not say which host they are of.
        let (operand, count) = {
            let operands = self.operands.lock();
            (operands[remote_index].clone(), operands.len())
        };
        let begun = match count {
            1 => self.begun.clone(),
            _ => Begun::default(),
        };
        if let Some(login) = login {
            begun.set_first(shell::session(login));
        }
        let mut request = self.request.clone();
        request.sources = vec![operand.in_directory()];
        request.source = operand.spec.name.clone();
        // The mount point of no mount: a directory that contains nothing.
        request.mountpoint = "/proc/self/fdinfo".into();
        let password = || self.read_password();
        let stack = Stack::build_on(&request, begun, password).await.map_err(failed)?;
        let remote = stack.remote.clone();
        let (owner, show) = (Owner::default(), self.show.clone());
        let (lifetime, name) = (owner.lifetime(), printable(&operand.spec.name));
        let noting = note_losses(remote.clone(), move || show.lost(&name));
        tokio::spawn(async move { lifetime.run(noting).await });
        Ok(Connection { remote, guard: Box::new((owner, stack)) })
    }

    fn shell(
        &self,
        remote_index: usize,
        may_ask: bool,
    ) -> Result<Option<Arc<dyn Shell>>, ConnectError> {
        Ok(shell::of(self.ssh_configs(remote_index).map_err(failed)?, may_ask))
    }

    fn enter(&self, remote_index: usize) {
        let operand = &mut self.operands.lock()[remote_index].operand;
        *operand = operand.entered();
    }

    fn start_sessions(&self, sessions: Range<usize>) {
        if self.request.host.direct != Direct::No {
            return;
        }
        let config = match self.ssh_configs(0).as_deref() {
            Ok([config]) if config.transport == ssh::Transport::Ssh => config.clone(),
            _ => return,
        };
        let Ok(connector) = SshConnector::new(config) else { return };
        let begun = self.begun.clone();
        tracing::debug!("{} further sessions are begun", sessions.len());
        tokio::spawn(async move {
            for session in sessions {
                // The connection that needs it tries again, and reports the error.
                if let Err(error) = connector.begin(session + 1, &begun).await {
                    tracing::debug!("no session ahead: {}", error.message);
                }
            }
        });
    }
}

/// Calls `note` for each outage, but not for one that begins soon after another.
async fn note_losses(remote: Arc<dyn Remote>, note: impl Fn()) {
    loop {
        remote.disconnected().await;
        note();
        tokio::time::sleep(NOTE_INTERVAL).await;
        while remote.is_disconnected() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

fn failed(problem: Problem) -> ConnectError {
    ConnectError { message: problem.to_string(), is_of_operand: problem.is_of_source() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use testkit::{FaultyRemote, MemRemote};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_is_noted_once_for_each_outage_and_not_all_the_time() {
        let remote = Arc::new(FaultyRemote::new(Arc::new(MemRemote::new())));
        let count = Arc::new(AtomicUsize::new(0));
        let noted = count.clone();
        let noting = note_losses(remote.clone(), move || {
            noted.fetch_add(1, Ordering::Relaxed);
        });
        let _noting = tokio::spawn(noting);
        let after = async |secs| {
            tokio::time::sleep(Duration::from_secs(secs)).await;
            count.load(Ordering::Relaxed)
        };
        assert_eq!(after(1000).await, 0);
        remote.cut();
        assert_eq!(after(1).await, 1);
        assert_eq!(after(1000).await, 1, "a long outage");
        remote.restore();
        assert_eq!(after(2).await, 1);
        for _ in 0..10 {
            remote.cut();
            assert_eq!(after(1).await, 2, "many short ones");
            remote.restore();
            assert_eq!(after(1).await, 2);
        }
        assert_eq!(after(100).await, 2);
        remote.cut();
        assert_eq!(after(1).await, 3);
    }
}
