//! One SFTP session: its client, its root, and its watchdog.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use base::{Errno, InvalidName, RemotePath};
use bytes::Bytes;
use sftp::codec::ExactAttrs;
use sftp::{Client, Counters, Extension, FileAttrs, OpenFlags, Options, StatusCode};
use tokio::sync::{Notify, OnceCell};
use tokio::time::Instant;

use crate::config::Config;
use crate::connector::{Connection, Diagnosis, Link};
use crate::error::Error;
use crate::handles::OpenHandle;

/// Longest path that is sent, in bytes: Linux's `PATH_MAX` without the NUL. OpenSSH's server
/// answers a longer one with `BAD_MESSAGE`.
const MAX_PATH_BYTES: usize = 4095;

/// Bytes of an invalid name that are logged.
const SHOWN_NAME_BYTES: usize = 300;

/// Factor of the stall limit while the server executes a slow request.
const SLOW_FACTOR: u32 = 10;

/// Checks of the watchdog within a stall limit.
const CHECKS_PER_LIMIT: u32 = 8;

/// Maximum time between two checks.
const LONGEST_INTERVAL: Duration = Duration::from_secs(2);

/// Time without a byte from the server, while requests wait, after which it is silent. The kernel
/// has sent data again several times by then, also on a slow link.
pub(crate) const SILENT: Duration = Duration::from_secs(4);

/// On Linux, identifies the running kernel. A machine without it cannot be told from another.
const BOOT_ID: &[u8] = b"/proc/sys/kernel/random/boot_id";

/// Longest read of the boot id in bytes: a UUID and a newline fit.
const BOOT_ID_BYTES: u32 = 64;

/// A session, alive or ended.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// Its slot in the pool.
    pub(crate) slot: usize,
    /// Prefix of every path; empty for the directory where the session begins.
    root: Vec<u8>,
    diagnosis: Diagnosis,
    link: Option<Arc<dyn Link>>,
    /// Of a direct session: the ssh session over which it was arranged.
    carrier: Option<Arc<Session>>,
    pub(crate) began: Instant,
    /// Longest READ and WRITE, in bytes.
    pub(crate) max_read: u32,
    pub(crate) max_write: u32,
    /// See [`Session::boot_id`]; set by the first call that gets an answer.
    boot_id: OnceCell<Option<Box<[u8]>>>,
    /// When its end was noticed.
    pub(crate) lost_at: OnceLock<Instant>,
    /// Notified again and again while the server is silent although requests wait.
    pub(crate) is_silent: Arc<Notify>,
    /// The server has the promise of a lease (`locks`).
    pub(crate) has_lease: AtomicBool,
    /// A task renews the lease of its locks.
    pub(crate) renews_lease: AtomicBool,
    /// An invalid name was logged.
    logged_invalid_name: AtomicBool,
}

impl Session {
    /// Begins a session and finds the root.
    pub(crate) async fn begin(
        connection: Connection,
        slot: usize,
        config: &Config,
        counters: &Arc<Counters>,
        uses_own_extensions: bool,
        carrier: Option<Arc<Session>>,
    ) -> Result<Arc<Session>, Error> {
        let exact_attrs = match config.inode_attrs {
            true => ExactAttrs::ALL,
            false => ExactAttrs::ATIME | ExactAttrs::MTIME,
        };
        let compresses = config.compresses && !connection.is_compressed;
        let options =
            Options { exact_attrs, uses_own_extensions, compresses, ..Options::default() };
        let Connection { reader, writer, diagnosis, link, .. } = connection;
        let counters = counters.clone();
        let client = match Client::connect_counted(reader, writer, options, counters).await {
            Ok(client) => client,
            Err(source) => return Err(Error::Session { source, diagnosis: diagnosis() }),
        };
        let root = expand(&client, &config.base).await?;
        let cap = |server: u32, ours: Option<u32>| ours.map_or(server, |ours| ours.min(server));
        let session = Arc::new(Session {
            slot,
            root,
            diagnosis,
            link,
            carrier,
            began: Instant::now(),
            max_read: cap(client.server().max_read, config.max_read).max(1),
            max_write: cap(client.server().max_write, config.max_write).max(1),
            client,
            boot_id: OnceCell::new(),
            lost_at: OnceLock::new(),
            is_silent: Arc::default(),
            has_lease: AtomicBool::new(false),
            renews_lease: AtomicBool::new(false),
            logged_invalid_name: AtomicBool::new(false),
        });
        tokio::spawn(watch(Arc::downgrade(&session), config.name.clone(), config.stall_limit));
        Ok(session)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.client.end().is_none()
    }

    /// The TCP connections below it, if anything is known of them.
    pub(crate) fn link(&self) -> Option<&Arc<dyn Link>> {
        self.link.as_ref()
    }

    /// Ends it because the server does not answer. Requests that have not left this machine never
    /// do, since they may be repeated over another session.
    pub(crate) async fn give_up(&self, silent: Duration) {
        if let Some(link) = self.link.clone() {
            // It reads tables of the kernel. An error is a panic, which is logged.
            let _ = tokio::task::spawn_blocking(move || link.discard()).await;
        }
        self.client.abort(sftp::Error::Stalled(silent));
    }

    /// Whether it goes over a direct connection.
    pub(crate) fn is_direct(&self) -> bool {
        self.carrier.is_some()
    }

    /// The carrier, by which it can be replaced without another login.
    pub(crate) fn live_carrier(&self) -> Option<&Arc<Session>> {
        self.carrier.as_ref().filter(|carrier| carrier.is_alive())
    }

    /// Why the session ended.
    pub(crate) fn lost(&self) -> Error {
        let reason = || sftp::Error::Disconnected("it has ended".into());
        let source = self.client.end().unwrap_or_else(reason);
        Error::Session { source, diagnosis: (self.diagnosis)() }
    }

    pub(crate) fn offers(&self, extension: Extension) -> bool {
        self.client.server().extensions.has(extension)
    }

    /// Whether the server offers any operation that makes a remote
    /// [exceed SFTP](base::Remote::may_exceed_sftp).
    pub(crate) fn exceeds_sftp(&self) -> bool {
        use Extension::{Fallocate, Getxattr, Lseek, Mknod, Renameat2};
        [Fallocate, Getxattr, Lseek, Mknod, Renameat2].into_iter().any(|it| self.offers(it))
    }

    /// Logs that the server listed an invalid name. Once for each session, so that a server cannot
    /// fill the log.
    pub(crate) fn log_invalid_name(&self, why: InvalidName, name: &[u8]) {
        if !self.logged_invalid_name.swap(true, Ordering::Relaxed) {
            let name = name[..name.len().min(SHOWN_NAME_BYTES)].escape_ascii();
            tracing::warn!(
                "the server listed {why}; it and others like it are left out: \"{name}\""
            );
        }
    }

    /// The beginning of a small file anywhere on the server, by one read.
    pub(crate) async fn read_small(
        self: &Arc<Session>,
        path: &[u8],
        len: u32,
    ) -> sftp::Result<Bytes> {
        let handle = self.client.open(path, OpenFlags::READ, FileAttrs::default()).await?;
        // Closed also if this future is dropped.
        let open = OpenHandle::new(self.clone(), handle);
        Ok(self.client.read(&open.handle, 0, len).await?.unwrap_or_default())
    }

    /// Identifies this boot of the server's machine; read once for the session. `None` if the
    /// server has none. An error if that is not known, because the connection was lost or the
    /// server cannot open another file at the moment.
    pub(crate) async fn boot_id(self: &Arc<Session>) -> sftp::Result<Option<&[u8]>> {
        let read = async || {
            let error = match self.read_small(BOOT_ID, BOOT_ID_BYTES).await {
                Ok(id) => return Ok((!id.is_empty()).then(|| id.as_ref().into())),
                Err(error) => error,
            };
            if error.ends_connection() {
                return Err(error);
            }
            // The status of each other reason. Some servers have it also for a file that is absent.
            if error.status() == Some(StatusCode::FAILURE) {
                match self.client.lstat(BOOT_ID).await {
                    Ok(_) => return Err(error),
                    Err(lost) if lost.ends_connection() => return Err(lost),
                    Err(_) => {}
                }
            }
            Ok(None)
        };
        Ok(self.boot_id.get_or_try_init(read).await?.as_deref())
    }

    /// Whether both sessions may be of one machine: their boot ids are equal, or a server has none.
    /// The errors are those of [`Session::boot_id`].
    ///
    /// A host name may stand for several machines (the login nodes of a cluster), and each
    /// connection may reach another one. They share a network file system then, on which a machine
    /// does not see at once what another has written. So one file is used only over sessions of
    /// one machine.
    pub(crate) async fn is_same_machine(
        self: &Arc<Session>,
        other: &Arc<Session>,
    ) -> sftp::Result<bool> {
        let (one, other) = tokio::try_join!(self.boot_id(), other.boot_id())?;
        Ok(one.is_none() || other.is_none() || one == other)
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

/// The base as the server accepts it in paths: `~` is not expanded there.
async fn expand(client: &Client, base: &[u8]) -> Result<Vec<u8>, Error> {
    if base.first() != Some(&b'~') {
        return Ok(base.to_vec());
    }
    let path = base.escape_ascii().to_string();
    let end_of_tilde = base.iter().position(|byte| *byte == b'/').unwrap_or(base.len());
    let (tilde, below) = base.split_at(end_of_tilde);
    if client.server().extensions.has(Extension::ExpandPath) {
        // Only the tilde, since the rest need not exist if the root is not checked.
        return match client.expand_path(tilde).await {
            Ok(expanded) => Ok([&expanded, below].concat()),
            Err(source) => Err(Error::Root { path, source }),
        };
    }
    // Sessions begin in the home directory.
    match tilde {
        b"~" => Ok(below.strip_prefix(b"/").unwrap_or_default().to_vec()),
        _ => Err(Error::RootNotExpanded { path }),
    }
}

/// The watchdog: ends a session that does not respond or whose carrier has ended, and logs the end
/// of any session and its first unexpected reply. It has a timer only while requests are in flight.
///
/// The helper may execute a request for as long as a file system of the server does not answer, and
/// answers others meanwhile. So after half of the limit it gets another request, for the root,
/// whose reply ends the silence. If it cannot answer that either, the session is of no use. Another
/// server answers one request after the other.
async fn watch(session: Weak<Session>, name: String, stall_limit: Duration) {
    let Some(closed) = session.upgrade().map(|session| session.client.closed()) else { return };
    tokio::pin!(closed);
    let unexpected = session.upgrade().map(|session| session.client.unexpected());
    let unexpected = async {
        match unexpected {
            Some(unexpected) => unexpected.await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(unexpected);
    let mut has_logged_unexpected = false;
    let carrier = session.upgrade().and_then(|session| session.carrier.clone());
    let carrier_closed = carrier.as_ref().map(|carrier| carrier.client.closed());
    drop(carrier);
    let carrier_closed = async {
        match carrier_closed {
            Some(closed) => closed.await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(carrier_closed);
    let interval = stall_limit / CHECKS_PER_LIMIT;
    let interval = interval.clamp(Duration::from_millis(1), LONGEST_INTERVAL);
    // Since the last reply.
    let mut is_probed = false;
    loop {
        let Some(busy) = session.upgrade().map(|session| session.client.busy()) else { return };
        let ended = tokio::select! {
            biased;
            why = &mut closed => Some(why),
            why = &mut carrier_closed => {
                let Some(session) = session.upgrade() else { return };
                session.client.abort(why);
                continue;
            }
            why = &mut unexpected, if !has_logged_unexpected => {
                has_logged_unexpected = true;
                tracing::warn!("{name}: {why}; only the requests with such replies fail");
                continue;
            }
            () = async {
                busy.await;
                tokio::time::sleep(interval).await;
            } => None,
        };
        let Some(session) = session.upgrade() else { return };
        if let Some(why) = ended {
            let reason = (session.diagnosis)().map(|it| format!("; {}", it.text));
            let reason = reason.unwrap_or_default();
            let _ = session.lost_at.set(Instant::now());
            if session.is_direct() {
                tracing::warn!(session = session.slot, "{name}: direct connection ended: {why}");
            } else {
                tracing::warn!(session = session.slot, "{name}: session ended: {why}{reason}");
            }
            return;
        }
        let activity = session.client.activity();
        let slow = activity.slow_in_flight > 0;
        let limit = if slow { stall_limit.saturating_mul(SLOW_FACTOR) } else { stall_limit };
        if activity.silent >= SILENT {
            session.is_silent.notify_one();
        }
        if activity.silent < stall_limit / 2 {
            is_probed = false;
        } else if session.is_helper()
            && !std::mem::replace(&mut is_probed, true)
            && let Ok(root) = session.path(&RemotePath::root())
        {
            session.client.probe(&root);
        }
        if activity.silent >= limit {
            session.give_up(activity.silent).await;
        }
    }
}
