//! Notifications: invalidations of the kernel's caches.
//!
//! A notification may block in the kernel on a lock that one of this session's requests holds (a
//! page that is being read, a directory in which a name is looked up). So notifications are queued
//! to a thread of their own. Only [`Notifier::settled`] waits for that thread, and no operation may
//! await it for which the kernel holds such a lock. The thread ends with the last [`Notifier`], or
//! with the first notification after the session. [`Notifier::inval_attributes`] takes no such lock
//! and is not queued.

use std::io::IoSlice;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::{io, thread};

use tokio::sync::oneshot;

use crate::abi::{self, OutHeader, Wire, opcode};
use crate::channel::Channel;
use crate::session::Negotiated;

/// Maximum number of queued notifications. Each has some 300 bytes, so the queue takes about a
/// megabyte; the number is that of the changes that a large checkout on the server makes in the
/// time for which the kernel may block. Beyond it the caller gets `false`.
const QUEUE: usize = 4096;

/// Longest name in a notification.
const NAME_MAX: usize = 1024;

/// A queued notification.
enum Notification {
    Packet {
        /// The bytes after the header.
        body: Vec<u8>,
        code: i32,
    },
    /// Answered when all earlier notifications were delivered.
    Barrier(oneshot::Sender<()>),
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
        let channel = Arc::downgrade(channel);
        let own = channel.clone();
        thread::Builder::new()
            .name("fuse-notify".to_owned())
            .spawn(move || deliver(&notifications, &own))?;
        let Negotiated { epochs, prunes, .. } = *negotiated;
        Ok(Notifier { queue, channel, epochs, prunes })
    }

    /// Invalidates the attributes of `ino` before it returns, and no data. For an inode that the
    /// kernel has in use, such as that of a request in progress: the end of its last use may block.
    pub fn inval_attributes(&self, ino: u64) {
        let Some(channel) = self.channel.upgrade() else { return };
        let mut body = Vec::with_capacity(abi::NotifyInvalInode::SIZE);
        abi::NotifyInvalInode { ino, off: -1, len: 0 }.put(&mut body);
        send(&*channel, opcode::NOTIFY_INVAL_INODE, &body);
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

    /// Expires all names that the kernel has cached, including negative ones. Also `false` if the
    /// kernel does not support this (before Linux 6.16).
    pub fn expire_all_names(&self) -> bool {
        self.epochs && self.send(Vec::new(), opcode::NOTIFY_INC_EPOCH)
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

    /// Waits until all notifications queued so far were delivered, or the session has ended.
    ///
    /// An operation for which the kernel holds a lock of a page, a file or a directory must never
    /// await it: the kernel may be waiting for that operation. For SETLK it holds none.
    pub async fn settled(&self) {
        let (done, all_done) = oneshot::channel();
        let mut barrier = Notification::Barrier(done);
        // A full queue is rare enough to be retried after a pause.
        while let Err(TrySendError::Full(again)) = self.queue.try_send(barrier) {
            barrier = again;
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        // An error means that the thread has ended, and so has the session.
        let _ = all_done.await;
    }

    fn packet(&self, code: i32, fixed: &impl Wire, name: &[u8]) -> bool {
        if name.len() > NAME_MAX || name.contains(&0) {
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

/// The thread's body.
fn deliver(notifications: &Receiver<Notification>, channel: &Weak<dyn Channel>) {
    while let Ok(notification) = notifications.recv() {
        let Some(channel) = channel.upgrade() else { return };
        match notification {
            Notification::Packet { body, code } => send(&*channel, code, &body),
            // The waiter may have been dropped.
            Notification::Barrier(done) => drop(done.send(())),
        }
    }
}

fn send(channel: &dyn Channel, code: i32, body: &[u8]) {
    let len = OutHeader::SIZE + body.len();
    let mut header = Vec::with_capacity(OutHeader::SIZE);
    OutHeader { len: len as u32, error: code, unique: 0 }.put(&mut header);
    let packet = [IoSlice::new(&header), IoSlice::new(body)];
    if let Err(error) = channel.send(&packet)
        && error.raw_os_error() != Some(libc::ENOENT)
    {
        tracing::debug!(code, %error, "the kernel refused a notification");
    }
}
