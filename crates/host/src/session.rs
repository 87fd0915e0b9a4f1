//! One SFTP session: its client, where its root is, and the watch over it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Errno, RemotePath};
use sftp::{Client, Extension, Options};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::config::Config;
use crate::connector::{Connection, Diagnosis};
use crate::error::Error;

/// Longest path that is sent, in bytes: Linux's `PATH_MAX` without the NUL. OpenSSH's server would
/// answer `BAD_MESSAGE`.
const MAX_PATH_BYTES: usize = 4095;

/// How many times the stall limit is allowed while the server does something slow.
const SLOW_FACTOR: u32 = 10;

/// How often within a stall limit the watchdog looks.
const LOOKS: u32 = 8;

/// A living or dead session.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// Its place in the pool.
    pub(crate) slot: usize,
    /// What stands before every path; empty for where the session begins.
    root: Vec<u8>,
    diagnosis: Diagnosis,
    pub(crate) began: Instant,
    /// Longest READ and WRITE, in bytes.
    pub(crate) max_read: u32,
    pub(crate) max_write: u32,
    /// What tells its machine from others, once it was asked for.
    pub(crate) machine: OnceCell<Option<Box<[u8]>>>,
}

impl Session {
    /// Begins a session and finds the root.
    pub(crate) async fn begin(
        connection: Connection,
        slot: usize,
        config: &Config,
    ) -> Result<Arc<Session>, Error> {
        let Connection { reader, writer, diagnosis } = connection;
        let client = match Client::connect_halves(reader, writer, Options::default()).await {
            Ok(client) => client,
            Err(source) => return Err(Error::Session { source, diagnosis: diagnosis() }),
        };
        let root = expand(&client, &config.base).await?;
        let cap = |server: u32, ours: Option<u32>| ours.map_or(server, |ours| ours.min(server));
        let session = Arc::new(Session {
            slot,
            root,
            diagnosis,
            began: Instant::now(),
            max_read: cap(client.server().max_read, config.max_read).max(1),
            max_write: cap(client.server().max_write, config.max_write).max(1),
            client,
            machine: OnceCell::new(),
        });
        tokio::spawn(watch(Arc::downgrade(&session), config.stall_limit));
        Ok(session)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.client.end().is_none()
    }

    /// Why a session that is over is so.
    pub(crate) fn lost(&self) -> Error {
        let reason = || sftp::Error::Disconnected("it has ended".into());
        let source = self.client.end().unwrap_or_else(reason);
        Error::Session { source, diagnosis: (self.diagnosis)() }
    }

    pub(crate) fn offers(&self, extension: Extension) -> bool {
        self.client.server().extensions.has(extension)
    }

    /// The path on the server.
    pub(crate) fn path(&self, path: &RemotePath) -> Result<Vec<u8>, Errno> {
        let full = match (self.root.as_slice(), path.as_bytes()) {
            (b"", b"") => b".".to_vec(),
            (b"", path) => path.to_vec(),
            (root, b"") => root.to_vec(),
            (root, path) if root.ends_with(b"/") => [root, path].concat(),
            (root, path) => [root, b"/", path].concat(),
        };
        if full.len() > MAX_PATH_BYTES { Err(Errno::ENAMETOOLONG) } else { Ok(full) }
    }
}

/// The base as the server takes it in paths: `~` is not known in those.
async fn expand(client: &Client, base: &[u8]) -> Result<Vec<u8>, Error> {
    if base.first() != Some(&b'~') {
        return Ok(base.to_vec());
    }
    let path = base.escape_ascii().to_string();
    let end_of_tilde = base.iter().position(|byte| *byte == b'/').unwrap_or(base.len());
    let (tilde, below) = base.split_at(end_of_tilde);
    if client.server().extensions.has(Extension::ExpandPath) {
        // Only the tilde, since what is below need not exist when the root is not checked.
        return match client.expand_path(tilde).await {
            Ok(expanded) => Ok([&expanded, below].concat()),
            Err(source) => Err(Error::Root { path, source }),
        };
    }
    // Sessions begin at home.
    match tilde {
        b"~" => Ok(below.strip_prefix(b"/").unwrap_or_default().to_vec()),
        _ => Err(Error::RootNotExpanded { path }),
    }
}

/// The watchdog: gives a session up that does not answer, and logs the end of any.
async fn watch(session: Weak<Session>, stall_limit: Duration) {
    let Some(closed) = session.upgrade().map(|session| session.client.closed()) else { return };
    tokio::pin!(closed);
    let look = (stall_limit / LOOKS).max(Duration::from_millis(1));
    loop {
        let ended = tokio::time::timeout(look, &mut closed).await;
        let Some(session) = session.upgrade() else { return };
        if let Ok(why) = ended {
            let words = (session.diagnosis)().unwrap_or_default();
            tracing::warn!(session = session.slot, "session ended: {why} {words}");
            return;
        }
        let activity = session.client.activity();
        let slow = activity.slow_in_flight > 0;
        let limit = if slow { stall_limit.saturating_mul(SLOW_FACTOR) } else { stall_limit };
        if activity.silent >= limit {
            session.client.abort(sftp::Error::Stalled(activity.silent));
        }
    }
}
