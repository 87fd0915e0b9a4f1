//! A session: negotiation, readers, operations, end.
//!
//! One or two reader tasks read requests from the channel as it becomes readable, and poll each
//! operation once in place ([`base::task::Task::start`]); only an operation that has to wait
//! becomes a task. The thread that completes an operation writes its reply. With io_uring the
//! threads of its queues read the requests instead ([`crate::ring`]), except FORGET and INTERRUPT;
//! [`origin`] is the seam.
//!
//! Invariants:
//! 1. Each request but FORGET, BATCH_FORGET and INTERRUPT gets exactly one reply, sent by the
//!    [`Reply`](reply::Reply) that its future owns: at its end, with `EINTR` when it is dropped
//!    before ([`interrupts`] decides when), with `EIO` when it panics.
//! 2. A request is in the table of [`pending`] from before its first poll until its reply was
//!    written, and undone if it could not be delivered.
//! 3. No lock is held while a future is polled or dropped, or a packet is read or written.
//! 4. INTERRUPT is never answered: `ENOSYS` would switch interrupts off for the mount, and
//!    `EAGAIN` makes the kernel send it again at once.
//!
//! Deliberately not here: deadlines (the file system knows what it waits for), cloned descriptors
//! for requests (a reply must use the descriptor of its request; no gain was measured), splice, the
//! kernel's write-back cache.

mod accounting;
mod buffers;
mod config;
mod dispatch;
mod interrupts;
mod negotiation;
mod operations;
mod origin;
mod pending;
mod reader;
mod reply;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::channel::{Channel, Readiness};
use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::mount::Mount;
use crate::notify::Notifier;
use crate::passthrough::Passthrough;
use crate::ring::{Prepared, Ring};
use buffers::Buffers;
use pending::Pending;

pub use accounting::{Counters, Finished, OperationCounts};
pub use config::{Config, Negotiated};

/// How long the end of a session waits for the unmounting, which takes some milliseconds: enough for
/// a busy machine, and little of the time that a service manager leaves to a process.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(10);

/// Passed to a file system when its session begins.
#[derive(Clone, Debug)]
pub struct Started {
    /// The result of the negotiation with the kernel.
    pub negotiated: Negotiated,
    /// Sends invalidations to the kernel.
    pub notifier: Notifier,
    /// Registers backing files; `None` if passthrough was not negotiated.
    pub passthrough: Option<Passthrough>,
}

/// Why a session ended.
#[derive(Debug)]
pub enum Cause {
    /// The file system was unmounted, or the connection aborted.
    Unmounted,
    /// [`Stopper::stop`] was called.
    Stopped,
    /// Reading from the kernel failed.
    Failed(io::Error),
}

/// The end of a session.
#[derive(Debug)]
pub struct End {
    /// Why.
    pub cause: Cause,
    /// Operations that were still running after [`Config::drain_limit`], and were dropped.
    pub abandoned: usize,
}

/// Stops a session from another task.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Notify>);

impl Stopper {
    /// Makes [`Session::run`] unmount, answer new requests with `ENOTCONN`, and finish running
    /// operations. A second call ends the wait for both.
    pub fn stop(&self) {
        // Stores a permit if nothing waits yet.
        self.0.notify_one();
    }
}

/// State shared by all parts of a session.
struct Inner<F> {
    channel: Arc<dyn Channel>,
    filesystem: Arc<F>,
    pending: Pending,
    counters: Arc<Counters>,
    buffers: Arc<Buffers>,
    runtime: Handle,
    /// With `allow_root`: the only user except root that is admitted.
    only_user: Option<u32>,
    /// The session is ending: new operations are rejected.
    is_ending: AtomicBool,
}

/// A mounted file system that is ready to [`run`](Session::run).
///
/// Dropping it, also during its run, drops running operations and unmounts it, unless that has
/// already happened.
pub struct Session<F: Filesystem> {
    inner: Arc<Inner<F>>,
    readiness: Arc<AsyncFd<Readiness>>,
    /// The queues of io_uring, if it is used.
    ring: Option<Prepared>,
    started: Started,
    stop: Arc<Notify>,
    config: Config,
    /// Last, so that it is unmounted after everything else was dropped.
    mount: Option<Mount>,
}

impl<F: Filesystem> std::fmt::Debug for Session<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("mount", &self.mount).finish_non_exhaustive()
    }
}

impl<F: Filesystem> Session<F> {
    /// Negotiates with the kernel and calls [`Filesystem::init`].
    ///
    /// Must be called within the tokio runtime on which the operations will run. On an error the
    /// file system is unmounted.
    pub async fn start(mount: Mount, filesystem: Arc<F>, config: Config) -> Result<Session<F>> {
        let channel: Arc<dyn Channel> = mount.channel();
        let only_user = mount.only_user();
        Session::begin(channel, filesystem, config, only_user, Some(mount)).await
    }

    /// Starts like [`Session::start`], over any channel.
    pub async fn over(
        channel: Arc<dyn Channel>,
        filesystem: Arc<F>,
        config: Config,
    ) -> Result<Session<F>> {
        Session::begin(channel, filesystem, config, None, None).await
    }

    async fn begin(
        channel: Arc<dyn Channel>,
        filesystem: Arc<F>,
        config: Config,
        only_user: Option<u32>,
        mount: Option<Mount>,
    ) -> Result<Session<F>> {
        let config = config.effective();
        let readiness = Readiness::register(channel.clone());
        let readiness = readiness.map_err(Error::Session)?;
        let buffers = Buffers::new(config.buffer_size());
        let (negotiated, ring) =
            negotiation::negotiate(&readiness, &mut buffers.get(), &config).await?;
        let notifier = Notifier::start(&channel, &negotiated).map_err(Error::Session)?;
        let passthrough = negotiated.passthrough().then(|| Passthrough::new(&channel));
        let started = Started { negotiated, notifier, passthrough };
        filesystem.init(&started);
        let inner = Arc::new(Inner {
            channel,
            filesystem,
            pending: match ring {
                Some(_) => Pending::over_io_uring(),
                None => Pending::new(config.readers > 1),
            },
            counters: Arc::default(),
            buffers,
            runtime: Handle::current(),
            only_user,
            is_ending: AtomicBool::new(false),
        });
        let readiness = Arc::new(readiness);
        Ok(Session { inner, readiness, ring, started, stop: Arc::default(), config, mount })
    }

    /// The result of the negotiation, and the handles for notifications and passthrough.
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// The counters of its requests.
    pub fn counters(&self) -> Arc<Counters> {
        self.inner.counters.clone()
    }

    /// A handle that can stop the session.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Serves requests until the file system is unmounted or stopped; then waits for running
    /// operations, up to [`Config::drain_limit`], and for [`Filesystem::destroy`].
    ///
    /// A stopped file system is first detached from the file tree. Programs that still use it do
    /// not hang: requests are read until the end, so that signals can free callers and files can be
    /// closed, and all new operations are answered with `ENOTCONN`.
    ///
    /// Dropping this future drops the session, without waiting for either.
    pub async fn run(mut self) -> End {
        let inner = self.inner.clone();
        let mut ring = self.ring.take().map(|it| it.start(|| origin::ring_handler(&inner)));
        // With io_uring, no caller waits for a reply through /dev/fuse.
        let poll_limit = if ring.is_some() { Duration::ZERO } else { self.config.poll_limit };
        let mut readers = JoinSet::new();
        for _ in 0..self.config.readers {
            let (inner, readiness) = (self.inner.clone(), self.readiness.clone());
            readers.spawn(reader::read_requests(inner, readiness, poll_limit));
        }
        let cause = tokio::select! {
            ended = readers.join_next() => match ended {
                Some(Ok(cause)) => cause,
                // A panic of the session's own code; those of operations are caught before.
                _ => Cause::Failed(io::Error::other("a reader panicked")),
            },
            error = failed(&mut ring) => Cause::Failed(error),
            () = self.stop.notified() => Cause::Stopped,
        };
        if matches!(cause, Cause::Stopped) {
            self.inner.is_ending.store(true, Ordering::Relaxed);
            self.detach().await;
        } else {
            // The queues of io_uring may still get requests.
            self.inner.is_ending.store(true, Ordering::Relaxed);
            // A reader is suspended only between two requests.
            readers.shutdown().await;
        }
        tokio::select! {
            _ = tokio::time::timeout(self.config.drain_limit, self.inner.pending.idle()) => {}
            () = self.stop.notified() => {}
        }
        let abandoned = self.inner.pending.len();
        self.inner.pending.cancel_all();
        self.inner.filesystem.destroy().await;
        readers.shutdown().await;
        if let Some(ring) = ring {
            ring.end().await;
        }
        self.inner.pending.cancel_all();
        if let Some(mount) = self.mount.take() {
            // May run fusermount3, which blocks.
            let dropped = tokio::task::spawn_blocking(move || drop(mount));
            let _ = tokio::time::timeout(UNMOUNT_LIMIT, dropped).await;
        }
        End { cause, abandoned }
    }

    /// Detaches the mount from the file tree. Current users can continue to use it. If that takes too
    /// long, or a stop is requested meanwhile, it goes on in the background.
    async fn detach(&mut self) {
        let Some(mut mount) = self.mount.take() else { return };
        // May run fusermount3, or wait for the file system that contains the mount point.
        let detached = tokio::task::spawn_blocking(move || {
            mount.detach();
            mount
        });
        tokio::select! {
            detached = detached => self.mount = detached.ok(),
            () = tokio::time::sleep(UNMOUNT_LIMIT) => tracing::warn!("the unmounting hangs"),
            // It ends the following wait, too.
            () = self.stop.notified() => self.stop.notify_one(),
        }
    }
}

impl<F: Filesystem> Drop for Session<F> {
    fn drop(&mut self) {
        // A waiting operation would keep the session's state alive, including the descriptor, and
        // so its caller would wait forever.
        self.inner.pending.cancel_all();
        self.started.notifier.end();
    }
}

/// Returns when io_uring has failed.
async fn failed(ring: &mut Option<Ring>) -> io::Error {
    match ring {
        Some(ring) => ring.failed().await,
        None => std::future::pending().await,
    }
}
