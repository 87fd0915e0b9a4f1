//! A mounted file system at work: negotiation, readers, operations, end.
//!
//! One or two reader tasks read requests from the channel as it becomes readable, and poll each
//! operation once in place ([`base::task::Task::start`]); only what has to wait stays as a task.
//! Whoever finishes an operation writes its reply.
//!
//! Invariants:
//! 1. Each request but FORGET, BATCH_FORGET and INTERRUPT gets exactly one reply, sent by the
//!    [`Reply`](reply::Reply) that its future owns: at its end, with `EINTR` when it is dropped
//!    before ([`interrupts`] decides when), with `EIO` when it panics.
//! 2. A request is in the table of [`pending`] from before its first poll until its reply was
//!    written and what could not be delivered was undone.
//! 3. No lock is held while anything is polled, dropped, read or written.
//! 4. INTERRUPT is never answered: `ENOSYS` would switch interrupts off for the mount, and
//!    `EAGAIN` makes the kernel send it again at once.
//!
//! Deliberately not here: deadlines (the file system's, since it knows what it waits for), cloned
//! descriptors (a reply must go out where its request came in; no gain was measured), splice, the
//! kernel's write-back cache.

mod buffers;
mod config;
mod dispatch;
mod interrupts;
mod negotiation;
mod operations;
mod pending;
mod reader;
mod reply;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
use buffers::Buffers;
use pending::Pending;

pub use config::{Config, DataInvalidation, Negotiated};

/// What a file system gets to know when its session begins.
#[derive(Clone, Debug)]
pub struct Started {
    /// What was agreed on with the kernel.
    pub negotiated: Negotiated,
    /// Tells the kernel what changed.
    pub notifier: Notifier,
    /// Registers backing files; `None` when passthrough was not agreed on.
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

/// How a session ended.
#[derive(Debug)]
pub struct End {
    /// Why.
    pub cause: Cause,
    /// Operations that were still under way when [`Config::drain_limit`] was over, and were
    /// dropped.
    pub abandoned: usize,
}

/// Ends a session from elsewhere.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Notify>);

impl Stopper {
    /// Lets [`Session::run`] unmount, answer what is new with `ENOTCONN`, and finish what is under
    /// way. Called again, it does not wait for that any longer.
    pub fn stop(&self) {
        // Leaves a permit when nobody waits yet.
        self.0.notify_one();
    }
}

/// What all parts of a session share.
struct Inner<F> {
    channel: Arc<dyn Channel>,
    filesystem: Arc<F>,
    pending: Pending,
    buffers: Arc<Buffers>,
    runtime: Handle,
    /// With `allow_root`: the only user but root who gets in.
    only_user: Option<u32>,
    /// The end has begun: new operations are refused.
    is_ending: AtomicBool,
}

/// A file system that is mounted and ready to [`run`](Session::run).
///
/// When dropped, also in the middle of its run, it drops what is under way, and is unmounted unless
/// that has happened already.
pub struct Session<F: Filesystem> {
    inner: Arc<Inner<F>>,
    readiness: Arc<AsyncFd<Readiness>>,
    started: Started,
    stop: Arc<Notify>,
    config: Config,
    /// Last, so that it is unmounted when nothing else is left to be dropped.
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
    /// Must be called within a tokio runtime, the one on which operations will run. On an error
    /// the file system is unmounted.
    pub async fn start(mount: Mount, filesystem: Arc<F>, config: Config) -> Result<Session<F>> {
        let channel: Arc<dyn Channel> = mount.channel();
        let only_user = mount.only_user();
        Session::begin(channel, filesystem, config, only_user, Some(mount)).await
    }

    /// As [`Session::start`], over any channel.
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
        let negotiated = negotiation::negotiate(&readiness, &mut buffers.get(), &config).await?;
        let notifier = Notifier::start(&channel, &negotiated).map_err(Error::Session)?;
        let passthrough = negotiated.passthrough().then(|| Passthrough::new(&channel));
        let started = Started { negotiated, notifier, passthrough };
        filesystem.init(&started);
        let inner = Arc::new(Inner {
            channel,
            filesystem,
            pending: Pending::new(config.readers > 1),
            buffers,
            runtime: Handle::current(),
            only_user,
            is_ending: AtomicBool::new(false),
        });
        let readiness = Arc::new(readiness);
        Ok(Session { inner, readiness, started, stop: Arc::default(), config, mount })
    }

    /// What was agreed on with the kernel, and the handles to talk to it.
    #[must_use]
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// Something that can end the session.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Serves requests until the file system is unmounted or stopped; then waits for the
    /// operations under way, up to [`Config::drain_limit`], and for [`Filesystem::destroy`].
    ///
    /// When it is stopped, it is taken out of the tree of files first. Programs that use it still
    /// are not left waiting: requests are read until the end, so that callers can be freed by
    /// signals and files be closed, and all that is new is answered with `ENOTCONN`.
    ///
    /// Dropping this future drops the session, without waiting for either.
    pub async fn run(mut self) -> End {
        let mut readers = JoinSet::new();
        for _ in 0..self.config.readers {
            readers.spawn(reader::read_requests(self.inner.clone(), self.readiness.clone()));
        }
        let cause = tokio::select! {
            ended = readers.join_next() => match ended {
                Some(Ok(cause)) => cause,
                // A panic of the session's own code; those of operations do not get here.
                _ => Cause::Failed(io::Error::other("a reader panicked")),
            },
            () = self.stop.notified() => Cause::Stopped,
        };
        if matches!(cause, Cause::Stopped) {
            self.inner.is_ending.store(true, Ordering::Relaxed);
            self.detach().await;
        } else {
            // A reader is only ever suspended between two requests.
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
        self.inner.pending.cancel_all();
        if let Some(mount) = self.mount.take() {
            // May run fusermount3, which blocks.
            let _ = tokio::task::spawn_blocking(move || drop(mount)).await;
        }
        End { cause, abandoned }
    }

    /// Takes the mount out of the tree of files. What uses it can go on with it.
    async fn detach(&mut self) {
        let Some(mut mount) = self.mount.take() else { return };
        // May run fusermount3, which blocks.
        let detached = tokio::task::spawn_blocking(move || {
            mount.detach();
            mount
        });
        self.mount = detached.await.ok();
    }
}

impl<F: Filesystem> Drop for Session<F> {
    fn drop(&mut self) {
        // An operation that waits would keep the session's parts alive, the descriptor among
        // them, and so its caller would wait for ever.
        self.inner.pending.cancel_all();
    }
}
