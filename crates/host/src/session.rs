//! One SFTP session: its client, where its root is, and the watch over it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Errno, InvalidName, RemotePath};
use bytes::Bytes;
use sftp::{Client, Extension, FileAttrs, OpenFlags, Options};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::config::Config;
use crate::connector::{Connection, Diagnosis};
use crate::error::Error;
use crate::handles::OpenHandle;

/// Longest path that is sent, in bytes: Linux's `PATH_MAX` without the NUL. OpenSSH's server would
/// answer `BAD_MESSAGE`.
const MAX_PATH_BYTES: usize = 4095;

/// How much of a name that no entry may have is logged, in bytes.
const SHOWN_NAME_BYTES: usize = 300;

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
    /// A name that no entry may have was logged.
    has_complained: AtomicBool,
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
            has_complained: AtomicBool::new(false),
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

    /// Logs that the server listed a name that no entry may have. Once for a session: a server
    /// must not be able to fill the log.
    pub(crate) fn complain_of(&self, why: InvalidName, name: &[u8]) {
        if !self.has_complained.swap(true, Ordering::Relaxed) {
            let name = name[..name.len().min(SHOWN_NAME_BYTES)].escape_ascii();
            tracing::warn!("the server listed {why}, left out, as are others like it: \"{name}\"");
        }
    }

    /// The beginning of a small file anywhere on the server, in one read; `None` where that cannot
    /// be had.
    pub(crate) async fn read_small(self: &Arc<Session>, path: &[u8], len: u32) -> Option<Bytes> {
        let open = self.client.open(path, OpenFlags::READ, FileAttrs::default());
        let handle = open.await.ok()?;
        // Closed also when this is given up.
        let open = OpenHandle::new(self.clone(), handle);
        Some(self.client.read(&open.handle, 0, len).await.ok()?.unwrap_or_default())
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
            let reason = (session.diagnosis)().map(|it| format!("; {}", it.text));
            let reason = reason.unwrap_or_default();
            tracing::warn!(session = session.slot, "session ended: {why}{reason}");
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
