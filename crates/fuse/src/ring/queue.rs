//! One queue: the ring, its thread's loop, and what other threads see of it.
//!
//! The ring defers its work to the calls of its thread (`DEFER_TASKRUN`), so the kernel copies a
//! request only when the thread waits for one, and interrupts nothing else.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use base::{Mutex, task};
use io_uring::opcode::{PollAdd, UringCmd80};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, squeue};
use rustix::event::{EventfdFlags, eventfd};

use super::memory::{Lent, Memory};
use super::slot::Slot;
use crate::channel::Channel;

/// `FUSE_IO_URING_CMD_REGISTER`
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`
const COMMIT_AND_FETCH: u32 = 2;

/// Offset of `len` in `struct io_uring_sqe`.
const SQE_LEN: usize = 24;

/// The `user_data` of the poll for wake-ups; that of an entry is its index.
const WAKE: u64 = u64::MAX;

/// Maximum number of requests handled before their replies are committed, and the packets of their
/// operations are sent, since neither must wait for long.
const MAX_BATCH: usize = 8;

/// A reply that is in its entry.
#[derive(Clone, Copy)]
struct Commit {
    index: u16,
    id: u64,
}

#[derive(Default)]
struct State {
    /// Replies to commit.
    commits: Vec<Commit>,
    /// The thread waits for the kernel, or is about to, and has to be woken.
    is_asleep: bool,
    /// The thread has to end.
    is_stopped: bool,
    /// The thread has ended.
    has_ended: bool,
    /// Entries that hold requests for locks.
    locks: u16,
}

/// What other threads see of a queue.
pub(super) struct Queue {
    state: Mutex<State>,
    wake: OwnedFd,
    max_locks: u16,
}

impl Queue {
    /// The queue of a thread that is not running yet.
    pub(super) fn new(depth: u16) -> io::Result<Queue> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Queue { state: Mutex::default(), wake, max_locks: depth / 2 })
    }

    /// Hands over a reply to the thread. Returns `false` if the thread has ended.
    pub(super) fn commit(&self, index: u16, id: u64) -> bool {
        let mut state = self.state.lock();
        if state.has_ended {
            return false;
        }
        state.commits.push(Commit { index, id });
        let is_asleep = std::mem::take(&mut state.is_asleep);
        drop(state);
        if is_asleep {
            self.wake();
        }
        true
    }

    /// Makes the thread end.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.wake();
    }

    /// Counts a request for a lock, unless there are too many.
    pub(super) fn admit_lock(&self) -> bool {
        let mut state = self.state.lock();
        let may = state.locks < self.max_locks;
        state.locks += u16::from(may);
        may
    }

    /// A request that was counted by [`Queue::admit_lock`] has ended.
    pub(super) fn lock_ended(&self) {
        self.state.lock().locks -= 1;
    }

    fn wake(&self) {
        // It fails only if the counter is full, and then the thread is woken already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Moves the replies to `commits`; returns whether the thread has to end.
    fn take(&self, commits: &mut Vec<Commit>, is_asleep: bool) -> bool {
        let mut state = self.state.lock();
        std::mem::swap(&mut state.commits, commits);
        state.is_asleep = is_asleep;
        state.is_stopped
    }
}

/// The state of an entry.
#[derive(Clone, Copy, PartialEq)]
enum Entry {
    /// Registered, without a request so far.
    Unused,
    /// Has had a request.
    Used,
    /// The kernel has given it up.
    Gone,
}

/// The thread's side of a queue.
pub(super) struct Server {
    /// Before the memory, which is unmapped only after the ring was closed.
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    memory: Arc<Memory>,
    queue: Arc<Queue>,
    number: u16,
    device: Arc<dyn Channel>,
    entries: Vec<Entry>,
}

impl Server {
    /// The ring of a queue. The calling thread has to be the one that serves it.
    pub(super) fn new(
        queue: Arc<Queue>,
        number: u16,
        device: Arc<dyn Channel>,
        depth: u16,
        memory: Memory,
    ) -> io::Result<Server> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            // All entries, and the poll for wake-ups.
            .build(u32::from(depth) + 1)?;
        let entries = vec![Entry::Unused; depth.into()];
        Ok(Server { ring, memory: Arc::new(memory), queue, number, device, entries })
    }

    /// Registers the entries and serves them until the queue is stopped.
    pub(super) fn serve(&mut self, handler: &mut dyn FnMut(Slot)) -> io::Result<()> {
        self.watch_wake()?;
        for index in 0..self.entries.len() as u16 {
            self.command(REGISTER, index, 0)?;
        }
        let (mut commits, mut received) = (Vec::new(), Vec::with_capacity(MAX_BATCH));
        loop {
            let is_idle = self.ring.completion().is_empty();
            let is_stopped = self.queue.take(&mut commits, is_idle);
            let has_commits = !commits.is_empty();
            for Commit { index, id } in commits.drain(..) {
                self.command(COMMIT_AND_FETCH, index, id)?;
            }
            if is_stopped {
                return self.enter(0);
            }
            if is_idle {
                self.enter(1)?;
                // Replies of this thread need no wake-up.
                self.queue.state.lock().is_asleep = false;
            } else if has_commits {
                self.enter(0)?;
            }
            received.extend(self.ring.completion().take(MAX_BATCH));
            // Other operations that these complete are finished here too, and their packets are
            // sent together.
            task::batch(|| {
                received.drain(..).try_for_each(|entry| self.complete(&entry, handler))
            })?;
        }
    }

    /// Handles what the kernel has completed.
    fn complete(
        &mut self,
        completed: &cqueue::Entry,
        handler: &mut dyn FnMut(Slot),
    ) -> io::Result<()> {
        if completed.user_data() == WAKE {
            return if cqueue::more(completed.flags()) { Ok(()) } else { self.watch_wake() };
        }
        let index = completed.user_data() as u16;
        let entry = &mut self.entries[usize::from(index)];
        let before = std::mem::replace(entry, Entry::Used);
        if completed.result() >= 0 {
            // SAFETY: the index is that of a registered entry. The kernel has completed its
            // command and uses its memory again only after the next one, which is submitted when
            // the slot has dropped this.
            let lent = unsafe { Lent::new(self.memory.clone(), index) };
            handler(Slot::new(lent, self.queue.clone(), index));
            return Ok(());
        }
        *entry = Entry::Gone;
        match -completed.result() {
            // The file system was unmounted, or the connection aborted.
            libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => Ok(()),
            errno if before == Entry::Unused => {
                // Without an entry in each queue the kernel goes on with /dev/fuse.
                let error = io::Error::from_raw_os_error(errno);
                tracing::warn!("io_uring: the kernel refused an entry: {error}");
                Ok(())
            }
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Submits a command about an entry.
    fn command(&mut self, operation: u32, index: u16, commit_id: u64) -> io::Result<()> {
        // `struct fuse_uring_cmd_req`: flags, commit_id, qid
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        request[16..18].copy_from_slice(&self.number.to_ne_bytes());
        let mut command = UringCmd80::new(Fd(self.device.as_fd().as_raw_fd()), operation);
        command = command.cmd(request);
        if operation == REGISTER {
            command = command.addr(Some(self.memory.vectors(index)));
        }
        let mut entry = command.build().user_data(index.into());
        if operation == REGISTER {
            // The number of vectors, for which the crate has no method.
            // SAFETY: the type is `repr(C)` and begins with a `struct io_uring_sqe` of 64 bytes,
            // whose `len` is at this place.
            unsafe {
                (&raw mut entry).cast::<u8>().add(SQE_LEN).cast::<u32>().write_unaligned(2);
            }
        }
        self.push(&entry)
    }

    /// Submits the poll for wake-ups, which completes with each.
    fn watch_wake(&mut self) -> io::Result<()> {
        let poll = PollAdd::new(Fd(self.queue.wake.as_raw_fd()), libc::POLLIN as u32);
        self.push(&poll.multi(true).build().user_data(WAKE).into())
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: the descriptors, and the memory of the entries and their vectors, are kept until
        // the ring was closed.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // Each entry has one command at a time, for which there is room.
        pushed.map_err(io::Error::other)
    }

    /// Submits what was pushed, and waits for this number of completions.
    fn enter(&self, wanted: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(wanted) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Tried again by the next call.
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.queue.state.lock().has_ended = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_size_that_the_kernel_expects() {
        assert_eq!(size_of::<squeue::Entry128>(), 128);
    }

    #[test]
    fn locks_take_half_of_the_entries() {
        let queue = Queue::new(4).unwrap();
        assert!(queue.admit_lock());
        assert!(queue.admit_lock());
        assert!(!queue.admit_lock());
        queue.lock_ended();
        assert!(queue.admit_lock());
    }

    #[test]
    fn a_reply_wakes_a_thread_that_sleeps() {
        let queue = Queue::new(4).unwrap();
        let woken = || {
            let mut count = [0; 8];
            rustix::io::read(&queue.wake, &mut count).is_ok()
        };
        let mut commits = Vec::new();
        assert!(queue.commit(1, 7));
        assert!(!woken());
        assert!(!queue.take(&mut commits, true));
        assert_eq!((commits[0].index, commits[0].id), (1, 7));
        commits.clear();
        assert!(queue.commit(2, 8));
        assert!(queue.commit(3, 9));
        assert!(woken());
        assert!(!queue.take(&mut commits, true));
        assert_eq!(commits.len(), 2);
        assert!(!woken());
        queue.stop();
        assert!(woken());
        assert!(queue.take(&mut Vec::new(), true));
        queue.state.lock().has_ended = true;
        assert!(!queue.commit(1, 10));
    }
}
