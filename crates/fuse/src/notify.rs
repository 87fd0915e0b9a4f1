//! Notifications: invalidations of the kernel's caches.
//!
//! A notification may block in the kernel on a lock that one of this session's requests holds (a
//! page that is being read, a directory in which a name is looked up). So notifications are queued
//! to a thread of their own, [`apart`] from the descriptors of the process, if that is
//! possible. Only [`Notifier::settled`] waits for that thread. The thread ends with the last
//! [`Notifier`], or with the session. [`Notifier::inval_attributes`] and
//! [`Notifier::expire_all_names`] take no such lock and are not queued.
//! [`Notifier::inval_data`] has a thread for each call, so that it waits for nothing but its file.

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::abi::{self, OutHeader, Wire, opcode};
use crate::apart;
use crate::channel::{Channel, Device};
use crate::session::Negotiated;

/// Maximum number of queued notifications. Each has some 300 bytes, so the queue takes about a
/// megabyte; the number is that of the changes that a large checkout on the server makes in the
/// time for which the kernel may block. Beyond it the caller gets `false`.
const QUEUE: usize = 4096;

/// How long [`Notifier::settled`] waits: longer than a reply of a server that works, which a
/// notification may wait for.
const SETTLING_LIMIT: Duration = Duration::from_secs(5);

/// A queued notification.
enum Notification {
    Packet {
        /// The bytes after the header.
        body: Vec<u8>,
        code: i32,
    },
    /// Answered when all earlier notifications were delivered.
    Barrier(mpsc::Sender<()>),
    /// The session has ended.
    End,
}

/// Sends notifications to the kernel. Cheap to clone; does not keep the session alive.
///
/// Methods return at once; `false` means that the queue is full: the kernel does not learn of that
/// change and keeps its cache until it expires. Entries that the kernel has not cached are not an
/// error, nor is a session that has ended.
#[derive(Clone)]
pub struct Notifier {
    queue: SyncSender<Notification>,
    channel: Weak<dyn Channel>,
    /// The session has ended. A clone of `/dev/fuse` must not outlive it: users of a detached mount
    /// would wait.
    is_ended: Arc<AtomicBool>,
    epochs: bool,
    prunes: bool,
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notifier")
    }
}

impl Notifier {
    /// Starts the thread.
    pub(crate) fn start(
        channel: &Arc<dyn Channel>,
        negotiated: &Negotiated,
    ) -> io::Result<Notifier> {
        let (queue, notifications) = sync_channel(QUEUE);
        let is_ended = Arc::<AtomicBool>::default();
        let is_over = is_ended.clone();
        spawn("fuse-notify", channel, move |sender| {
            while let Ok(notification) = notifications.recv()
                && !is_over.load(Ordering::Relaxed)
            {
                match notification {
                    Notification::Packet { body, code } => sender.send(code, &body),
                    // The waiter may have been dropped.
                    Notification::Barrier(done) => drop(done.send(())),
                    Notification::End => return,
                }
            }
        })?;
        let Negotiated { epochs, prunes, .. } = *negotiated;
        Ok(Notifier { queue, channel: Arc::downgrade(channel), is_ended, epochs, prunes })
    }

    /// Ends the thread: the session is over.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
        // If the queue is full, the thread does not wait for it.
        let _ = self.queue.try_send(Notification::End);
    }

    /// Invalidates the attributes of `ino` before it returns, and no data. For an inode that the
    /// kernel has in use, such as that of a request in progress: the end of its last use may block.
    pub fn inval_attributes(&self, ino: u64) {
        let Some(channel) = self.channel.upgrade() else { return };
        let mut body = Vec::with_capacity(abi::NotifyInvalInode::SIZE);
        abi::NotifyInvalInode { ino, off: -1, len: 0 }.put(&mut body);
        send(&*channel, opcode::NOTIFY_INVAL_INODE, &body);
    }

    /// Invalidates the attributes of `ino` and all of its cached data, and returns when the kernel
    /// has done that. It may have to wait for pages of the file that are being read or written, and
    /// waits for nothing else. No operation may await it for which the kernel holds a lock of a page
    /// or of the file; for SETLK it holds none.
    pub async fn inval_data(&self, ino: u64) {
        let Some(channel) = self.channel.upgrade() else { return };
        let mut body = Vec::with_capacity(abi::NotifyInvalInode::SIZE);
        abi::NotifyInvalInode { ino, off: 0, len: 0 }.put(&mut body);
        let drop_data = move || {
            let (done, is_done) = mpsc::channel::<()>();
            let sent = body.clone();
            let invalidate = move |sender: Sender| {
                sender.send(opcode::NOTIFY_INVAL_INODE, &sent);
                drop(done);
            };
            match spawn("fuse-inval", &channel, invalidate) {
                Ok(()) => {
                    drop(channel);
                    // An error: the thread has done it.
                    let _ = is_done.recv();
                }
                // No thread can be started.
                Err(_) => send(&*channel, opcode::NOTIFY_INVAL_INODE, &body),
            }
        };
        // It fails only with the runtime.
        let _ = tokio::task::spawn_blocking(drop_data).await;
    }

    /// Invalidates the attributes of `ino`, and its cached data from `offset` on: `len` bytes, or
    /// all if zero. A negative `offset` keeps the data.
    pub fn inval_inode(&self, ino: u64, offset: i64, len: i64) -> bool {
        self.packet(
            opcode::NOTIFY_INVAL_INODE,
            &abi::NotifyInvalInode { ino, off: offset, len },
            &[],
        )
    }

    /// Drops a cached name, also a negative one. A file or directory in use is shown as deleted
    /// then, and mounts below it are detached.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> bool {
        self.entry(parent, name, 0)
    }

    /// Expires a cached name, also a negative one: the next lookup is a request. Nothing in use is
    /// affected. Before Linux 6.2 it is the same as [`inval_entry`](Notifier::inval_entry).
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> bool {
        self.entry(parent, name, abi::flags::EXPIRE_ONLY)
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> bool {
        let body = abi::NotifyInvalEntry { parent, namelen: name.len() as u32, flags };
        self.packet(opcode::NOTIFY_INVAL_ENTRY, &body, name)
    }

    /// Expires all names that the kernel has cached, including negative ones, before it returns.
    /// `false` if the kernel does not support this (before Linux 6.16).
    pub fn expire_all_names(&self) -> bool {
        if self.epochs
            && let Some(channel) = self.channel.upgrade()
        {
            send(&*channel, opcode::NOTIFY_INC_EPOCH, &[]);
        }
        self.epochs
    }

    /// Whether the kernel supports [`prune`](Notifier::prune) (Linux 6.18).
    pub fn prunes(&self) -> bool {
        self.prunes
    }

    /// Asks the kernel to forget those of `inos` that are unused, with their names and cached data.
    /// Open files, working directories and directories with cached names are kept. Nothing becomes
    /// invalid. Also `false` if the kernel does not support this.
    pub fn prune(&self, inos: &[u64]) -> bool {
        let Ok(count) = u32::try_from(inos.len()) else { return false };
        let mut body = Vec::with_capacity(abi::NotifyPrune::SIZE + size_of_val(inos));
        abi::NotifyPrune { count, padding: 0, spare: 0 }.put(&mut body);
        inos.iter().for_each(|ino| body.extend_from_slice(&ino.to_ne_bytes()));
        self.prunes && self.send(body, opcode::NOTIFY_PRUNE)
    }

    /// Waits until all notifications queued so far were delivered, the session has ended, or five
    /// seconds have passed: the kernel may be waiting for a server that does not reply.
    ///
    /// No operation may await it for which the kernel holds a lock of a page, a file or a directory:
    /// the kernel may be waiting for that operation.
    pub async fn settled(&self) {
        let deadline = Instant::now() + SETTLING_LIMIT;
        let (done, all_done) = mpsc::channel();
        let mut barrier = Notification::Barrier(done);
        // A full queue is rare enough to be retried after a pause.
        while let Err(TrySendError::Full(again)) = self.queue.try_send(barrier) {
            if Instant::now() >= deadline {
                return;
            }
            barrier = again;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The thread cannot wake a task. An error means that it has ended, or that time is up.
        let wait = move || {
            let _ = all_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        };
        let _ = tokio::task::spawn_blocking(wait).await;
    }

    fn packet(&self, code: i32, fixed: &impl Wire, name: &[u8]) -> bool {
        if name.len() > base::Name::MAX_BYTES || name.contains(&0) {
            // The kernel cannot have cached such a name.
            return true;
        }
        let mut body = Vec::with_capacity(32 + name.len());
        fixed.put(&mut body);
        if !name.is_empty() {
            body.extend_from_slice(name);
            body.push(0);
        }
        self.send(body, code)
    }

    fn send(&self, body: Vec<u8>, code: i32) -> bool {
        match self.queue.try_send(Notification::Packet { body, code }) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => true,
            Err(TrySendError::Full(_)) => false,
        }
    }
}

/// What a thread sends notifications with.
enum Sender {
    /// A descriptor of its own, and no other one: not even for the log.
    Own(Device),
    Shared(Weak<dyn Channel>),
}

impl Sender {
    fn send(&self, code: i32, body: &[u8]) {
        match self {
            Sender::Own(device) => drop(write(device, code, body)),
            Sender::Shared(channel) => {
                if let Some(channel) = channel.upgrade() {
                    send(&*channel, code, body);
                }
            }
        }
    }
}

/// Starts a thread that sends notifications.
fn spawn(
    name: &str,
    channel: &Arc<dyn Channel>,
    body: impl FnOnce(Sender) + Send + 'static,
) -> io::Result<()> {
    match channel.duplicate() {
        Ok(fd) => apart::spawn_with(name, fd, |fd| body(Sender::Own(Device(fd)))),
        Err(_) => {
            let channel = Arc::downgrade(channel);
            let run = move || body(Sender::Shared(channel));
            thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
        }
    }
}

fn send(channel: &dyn Channel, code: i32, body: &[u8]) {
    if let Err(error) = write(channel, code, body)
        && error.raw_os_error() != Some(libc::ENOENT)
    {
        tracing::debug!(code, %error, "the kernel refused a notification");
    }
}

fn write(channel: &dyn Channel, code: i32, body: &[u8]) -> io::Result<()> {
    let len = OutHeader::SIZE + body.len();
    let mut header = Vec::with_capacity(OutHeader::SIZE);
    OutHeader { len: len as u32, error: code, unique: 0 }.put(&mut header);
    channel.send(&[IoSlice::new(&header), IoSlice::new(body)])
}
