//! ssh as what a host gets its byte streams from.

use std::io::Write;
use std::sync::Arc;

use async_trait::async_trait;
use host::{ConnectError, Connection, Connector, Role};

use crate::report::Problem;

/// Starts an ssh for each session.
pub struct SshConnector {
    dialer: ssh::Dialer,
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
        Ok(SshConnector { dialer })
    }
}

#[async_trait]
impl Connector for SshConnector {
    async fn connect(&self, role: Role) -> Result<Connection, ConnectError> {
        let connected = match role {
            Role::Metadata => self.dialer.connect().await,
            Role::Bulk(_) => self.dialer.connect_unasked().await,
        };
        let connection = connected.map_err(|error| ConnectError {
            message: error.to_string(),
            lasting: !error.is_transient(),
        })?;
        let (reader, writer) = connection.stream.into_split();
        let diagnosis = connection.diagnosis;
        Ok(Connection::from_halves(reader, writer, Box::new(move || explain(&diagnosis))))
    }
}

/// ssh's words about its end, and what the user can do about it.
fn explain(diagnosis: &ssh::Diagnosis) -> Option<String> {
    let summary = diagnosis.summary()?;
    let (cause, _) = ssh::Cause::of(&diagnosis.words(), diagnosis.status());
    Some(match cause.hint() {
        Some(hint) => format!("{summary}\n  {hint}"),
        None => summary,
    })
}
