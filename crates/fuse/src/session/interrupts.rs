//! What happens to an operation whose caller gets a signal while it waits.
//!
//! POSIX programs expect `EINTR` of few calls on files, and ordinary file systems never return it.
//! But a caller must not wait for a dead server after its end was requested. So an INTERRUPT alone
//! cancels nothing: [`decide`] does, by the caller's signals, at the INTERRUPT and again every
//! [`CHECK_INTERVAL`], since the kernel does not report further signals.
//!
//! One task, [`examine`], checks all interrupted requests that wait. It is started with the first
//! and ends with the last. Through io_uring the kernel sends no INTERRUPT for a signal that arrives
//! before the thread of the queue has taken over the request (Linux 6.18), and no signal after that
//! reaches the caller. So there the task runs while any request waits, and [at times](CALLER_ROUNDS)
//! checks the callers of those without an INTERRUPT: a signal that would have an effect is treated
//! as one.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::Inner;
use super::dispatch::guarded;
use super::pending::Waiting;
use crate::caller::signals::Signals;
use crate::filesystem::Filesystem;
use crate::operation::{LockRequest, Operation};

/// Time between two checks of a caller. A check costs some 20 us; a killed process has to be freed
/// within a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Over io_uring, all callers are checked once in this many checks of interrupted requests: one that
/// was killed has to be freed within a second.
pub(super) const CALLER_ROUNDS: u64 = 4;

/// Time without a reply after which the server is considered silent. Longer than any reply takes
/// over a working link; users, and programs that wait for the end of a process, wait longer.
const SILENCE_LIMIT: Duration = Duration::from_secs(1);

/// The effect of a signal on an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// The operation changes nothing, or only what a repetition would change to the same: `EINTR`
    /// does no harm if the server is silent.
    Repeatable,
    /// The operation may already have changed something, and a caller with `EINTR` cannot know.
    Changing,
    /// The operation waits for another process without a limit: any signal ends it (`F_SETLKW`).
    Lock,
    /// The kernel does not expect the operation to end early.
    Uninterruptible,
}

impl Policy {
    /// The policy of an operation.
    pub(super) fn of(operation: &Operation<'_>) -> Policy {
        match operation {
            Operation::Setlk(LockRequest { wait: true, .. }) => Policy::Lock,
            // A dropped one leaves the locks as they were.
            Operation::Setlk(LockRequest { kind: Some(_), .. }) => Policy::Repeatable,
            Operation::Release { .. } | Operation::Releasedir { .. } => Policy::Uninterruptible,
            Operation::Open(open) if open.flags & libc::O_TRUNC == 0 && !open.kill_suidgid => {
                Policy::Repeatable
            }
            // The kernel moves the file's offset after the reply, so a repetition writes the same
            // bytes to the same place. Pages of a mapping are dropped after an error.
            Operation::Write(write, _) if write.flags & libc::O_APPEND == 0 && !write.cached => {
                Policy::Repeatable
            }
            Operation::Lookup { .. }
            | Operation::Getattr
            | Operation::Statx
            | Operation::Readlink
            | Operation::Read(_)
            | Operation::Flush { .. }
            | Operation::Fsync { .. }
            | Operation::Opendir
            | Operation::Readdir { .. }
            | Operation::Fsyncdir
            | Operation::Statfs
            | Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Access { .. }
            | Operation::Getlk(_)
            | Operation::Lseek { .. } => Policy::Repeatable,
            _ => Policy::Changing,
        }
    }
}

/// The decision about an interrupted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The caller gets `EINTR`.
    Cancel,
    /// The operation continues, and its caller is checked again.
    Wait,
}

/// Whether these signals interrupt a request of this policy, of which the kernel has not reported
/// any.
pub(super) fn interrupts(signals: Signals, policy: Policy) -> bool {
    match signals {
        Signals::Fatal | Signals::Terminating => true,
        Signals::Handled => policy == Policy::Lock,
        Signals::Other | Signals::Unreadable => false,
    }
}

/// Decides about an operation. `pending` is the time since such signals were first seen, `silent`
/// the time without a reply of the server.
pub(super) fn decide(
    signals: Signals,
    pending: Duration,
    silent: Duration,
    policy: Policy,
) -> Verdict {
    let cancel = match (policy, signals) {
        (Policy::Uninterruptible, _) => false,
        (Policy::Lock, _) | (_, Signals::Fatal) => true,
        (_, Signals::Unreadable) => pending >= SILENCE_LIMIT,
        (Policy::Repeatable, Signals::Terminating) => {
            pending >= SILENCE_LIMIT && silent >= SILENCE_LIMIT
        }
        (Policy::Changing, Signals::Terminating) | (_, Signals::Handled | Signals::Other) => false,
    };
    if cancel { Verdict::Cancel } else { Verdict::Wait }
}

impl<F: Filesystem> Inner<F> {
    /// Handles the kernel's report that the caller of a request got a signal.
    pub(super) fn interrupted(self: &Arc<Self>, unique: u64) {
        if self.pending.interrupt(unique) {
            self.examine_interrupted();
        }
    }

    /// Starts the examiner.
    pub(super) fn examine_interrupted(self: &Arc<Self>) {
        self.runtime.spawn(examine(Arc::downgrade(self)));
    }
}

/// Checks the callers of requests until there are none to check.
async fn examine<F: Filesystem>(session: Weak<Inner<F>>) {
    let mut next = Instant::now();
    loop {
        let Some(inner) = session.upgrade() else { return };
        let is_due = Instant::now() >= next;
        if is_due {
            next = Instant::now() + CHECK_INTERVAL;
        }
        let Some(callers) = inner.pending.to_examine(is_due) else { return };
        let signals = |it: Waiting| (it, Signals::of(it.tid));
        let seen = match callers.is_empty() {
            true => Vec::new(),
            false => {
                let check = move || callers.into_iter().map(signals).collect();
                tokio::task::spawn_blocking(check).await.unwrap_or_default()
            }
        };
        for (Waiting { unique, ino, .. }, signals) in seen {
            // Dropping the state of an operation runs code of the file system, which may panic.
            guarded("interrupt", || {
                inner.pending.examined(unique, signals, inner.filesystem.silent_for(ino));
            });
        }
        let new_interrupt = inner.pending.interrupt_notified();
        // This task must not keep the session alive.
        drop(inner);
        let _ = timeout_at(next, new_interrupt.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Create, Open, Write};
    use base::{LockFamily, LockKind, LockOwner, LockRange};

    #[test]
    fn what_a_signal_does_depends_on_the_signal_the_server_and_the_operation() {
        use Policy::{Changing, Lock, Repeatable, Uninterruptible};
        use Signals::{Fatal, Other, Terminating, Unreadable};
        use Verdict::{Cancel, Wait};
        let ms = Duration::from_millis;
        for (signals, pending, silent, repeatable, changing) in [
            (Fatal, 0, 0, Cancel, Cancel),
            (Terminating, 0, 5_000, Wait, Wait),
            (Terminating, 999, 999, Wait, Wait),
            (Terminating, 1_000, 999, Wait, Wait),
            (Terminating, 1_000, 1_000, Cancel, Wait),
            (Terminating, 100_000, 0, Wait, Wait),
            (Terminating, 100_000, 100_000, Cancel, Wait),
            (Other, 100_000, 100_000, Wait, Wait),
            (Unreadable, 999, 999, Wait, Wait),
            (Unreadable, 1_000, 0, Cancel, Cancel),
        ] {
            let case = format!("{signals:?} {pending} {silent}");
            let decide = |policy| decide(signals, ms(pending), ms(silent), policy);
            assert_eq!(decide(Repeatable), repeatable, "{case}");
            assert_eq!(decide(Changing), changing, "{case}");
            assert_eq!(decide(Lock), Cancel, "{case}");
            assert_eq!(decide(Uninterruptible), Wait, "{case}");
        }
    }

    #[test]
    fn changing_operations_are_not_cancelled_early() {
        let open = |flags, kill_suidgid| Policy::of(&Operation::Open(Open { flags, kill_suidgid }));
        assert_eq!(open(libc::O_RDWR | libc::O_CREAT, false), Policy::Repeatable);
        assert_eq!(open(libc::O_WRONLY | libc::O_TRUNC, false), Policy::Changing);
        assert_eq!(open(libc::O_WRONLY, true), Policy::Changing);
        let write = |flags, cached| {
            let write = Write { fh: 0, offset: 0, flags, cached, kill_suidgid: false };
            Policy::of(&Operation::Write(write, b""))
        };
        assert_eq!(write(libc::O_WRONLY, false), Policy::Repeatable);
        assert_eq!(write(libc::O_WRONLY | libc::O_APPEND, false), Policy::Changing);
        assert_eq!(write(libc::O_RDWR, true), Policy::Changing);
        let lock = |kind, wait| {
            let owner = LockOwner { family: LockFamily::Posix, number: 1 };
            let range = LockRange::new(0, 1);
            Policy::of(&Operation::Setlk(LockRequest { fh: 1, owner, range, kind, wait }))
        };
        assert_eq!(lock(Some(LockKind::Write), true), Policy::Lock);
        assert_eq!(lock(Some(LockKind::Read), false), Policy::Repeatable);
        assert_eq!(lock(None, false), Policy::Changing);
        let create = Create { flags: libc::O_RDWR, mode: 0, umask: 0, kill_suidgid: false };
        let name = b"name";
        for (operation, policy) in [
            (Operation::Release { fh: 1 }, Policy::Uninterruptible),
            (Operation::Releasedir { fh: 1 }, Policy::Uninterruptible),
            (Operation::Create { name, create }, Policy::Changing),
            (Operation::Mkdir { name, mode: 0, umask: 0 }, Policy::Changing),
            (Operation::Unlink { name }, Policy::Changing),
            (Operation::Rmdir { name }, Policy::Changing),
            (Operation::Rename { name, new_parent: 1, new_name: name, flags: 0 }, Policy::Changing),
            (Operation::Link { ino: 2, new_name: name }, Policy::Changing),
            (Operation::Symlink { name, target: name }, Policy::Changing),
            (Operation::Fallocate { fh: 1, offset: 0, len: 1, mode: 0 }, Policy::Changing),
            (Operation::Setxattr { name, value: b"", flags: 0 }, Policy::Changing),
            (Operation::Lookup { name }, Policy::Repeatable),
            (Operation::Fsync { fh: 1 }, Policy::Repeatable),
            (Operation::Flush { fh: 1, lock_owner: 0 }, Policy::Repeatable),
            (Operation::Opendir, Policy::Repeatable),
        ] {
            assert_eq!(Policy::of(&operation), policy, "{operation:?}");
        }
    }
}
