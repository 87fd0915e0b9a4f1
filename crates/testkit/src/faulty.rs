//! A [`Remote`] around a [`Remote`] whose calls fail, wait or get lost as a test instructs.
//!
//! Three instruments:
//!
//! - [`fail`](FaultyRemote::fail) and similar: the Nth call from now fails, before it reaches the
//!   remote or after it took effect there (the reply was lost).
//! - [`hold`](FaultyRemote::hold): the Nth call from now stops at a [`Gate`], before it reaches the
//!   remote or with its reply received. The test waits until it is there, does what shall race with
//!   it, and releases it.
//! - [`cut`](FaultyRemote::cut): the link is down. All calls in flight and all further ones fail
//!   with `EHOSTDOWN` until [`restore`](FaultyRemote::restore). Meanwhile it [is
//!   away](Remote::is_disconnected). [`stall`](FaultyRemote::stall) models a remote that waits for
//!   its link: further calls wait and do not fail.
//!
//! Invariants:
//! 1. Without instructions it behaves as the inner remote, in the same poll.
//! 2. Calls on one handle reach the inner remote in the order of their first polls, also if one of
//!    them is held: later ones queue behind it, as behind a packet on the wire. A call that is
//!    dropped or fails leaves the queue.
//! 3. A handle whose reply is dropped, failed or cut off is closed in the inner remote.
//!
//! One mutex guards the instructions; it is never held over an await or a call to the inner
//! remote.

mod fault;
mod gate;
mod plan;
mod remote;
mod stepper;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base::{Dh, Errno, Fh, Mutex, Remote};
use bytes::Bytes;
use tokio::sync::{Notify, watch};

use crate::call::{Call, Counters};
pub use fault::Fault;
pub use gate::Gate;
pub use plan::Which;
use plan::{Moment, Plan};
pub(crate) use stepper::Stepper;

/// A remote with faults. See the [module](self).
#[derive(Debug)]
pub struct FaultyRemote<R: ?Sized> {
    inner: Arc<R>,
    state: Mutex<State>,
    link: watch::Sender<Link>,
    calls: Counters,
}

#[derive(Debug, Default)]
struct State {
    plan: Plan,
    handles: HashSet<Handle>,
    /// Handles that did not survive a cut, and their errors.
    stale: HashMap<Handle, Errno>,
    /// The calls behind which the next call on a handle queues: each receiver ends when the call
    /// with its sender has reached the inner remote, or never will. All of them and not only the
    /// last, since the last may be dropped while earlier ones still wait.
    queues: HashMap<Handle, Vec<watch::Receiver<()>>>,
    write_verifier: Option<Bytes>,
    withholds_write_verifier: bool,
    write_verifier_error: Option<Errno>,
    write_verifier_calls: u64,
    reads_files: Option<bool>,
    why_disconnected: Option<String>,
    stepper: Option<Stepper>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Handle {
    File(Fh),
    Directory(Dh),
}

/// The state of the link to the inner remote.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    down: bool,
    /// Further calls wait until this is false.
    stalled: bool,
    /// Number of cuts, so that a call in flight detects a cut that is over already.
    cuts: u64,
}

impl Link {
    fn is_disconnected(&self) -> bool {
        self.down || self.stalled
    }
}

impl<R: Remote + ?Sized> FaultyRemote<R> {
    /// A remote around `inner` without faults; the caller may keep a reference to `inner`.
    pub fn new(inner: Arc<R>) -> FaultyRemote<R> {
        FaultyRemote {
            inner,
            state: Mutex::default(),
            link: watch::Sender::new(Link::default()),
            calls: Counters::default(),
        }
    }

    /// The inner remote.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// Makes the `nth` of these calls from now (1 is the next) fail without reaching the remote.
    pub fn fail(&self, which: impl Into<Which>, nth: u64, errno: Errno) {
        self.state.lock().plan.fail(which.into(), nth, 1, Moment::Before, errno);
    }

    /// Makes the `nth` of these calls from now take effect and then fail, as if its reply was lost.
    /// A call that fails by itself keeps its own errno.
    pub fn fail_after(&self, which: impl Into<Which>, nth: u64, errno: Errno) {
        self.state.lock().plan.fail(which.into(), nth, 1, Moment::After, errno);
    }

    /// Makes all of these calls fail from now on, until [`FaultyRemote::clear`].
    pub fn fail_always(&self, which: impl Into<Which>, errno: Errno) {
        self.state.lock().plan.fail(which.into(), 1, u64::MAX, Moment::Before, errno);
    }

    /// Stops the `nth` of these calls from now before it reaches the remote.
    pub fn hold(&self, which: impl Into<Which>, nth: u64) -> Gate {
        self.state.lock().plan.hold(which.into(), nth, Moment::Before)
    }

    /// Stops the `nth` of these calls from now after it took effect, with its reply received.
    pub fn hold_answer(&self, which: impl Into<Which>, nth: u64) -> Gate {
        self.state.lock().plan.hold(which.into(), nth, Moment::After)
    }

    /// Stops every call from now on that costs a round trip, before it reaches the remote and again
    /// with its reply received; `arrivals` is notified then. Only one stepper is active: a second
    /// one opens the first.
    pub(crate) fn hold_each(&self, arrivals: Arc<Notify>) -> Stepper {
        let stepper = Stepper::new(arrivals);
        let before = self.state.lock().stepper.replace(stepper.clone());
        if let Some(before) = before {
            before.open();
        }
        stepper
    }

    /// Removes all faults and gates that no call has reached.
    pub fn clear(&self) {
        self.state.lock().plan = Plan::default();
    }

    /// Number of faults and gates that no call has reached yet. A loop over N ends when the Nth
    /// fault is still here afterwards; a single test asserts 0 to prove that its fault was hit.
    pub fn not_reached(&self) -> usize {
        self.state.lock().plan.not_reached()
    }

    /// Cuts the link: every call in flight fails with `EHOSTDOWN`, whether or not it took effect,
    /// and so does every further one.
    pub fn cut(&self) {
        self.link.send_modify(|link| {
            link.down = true;
            link.cuts += 1;
        });
    }

    /// Cuts the link like [`FaultyRemote::cut`], and closes all handles of the remote, as a server
    /// does at the end of a session.
    pub fn end_session(&self) {
        self.cut();
        for handle in self.state.lock().handles.drain().collect::<Vec<_>>() {
            match handle {
                Handle::File(fh) => self.inner.close(fh),
                Handle::Directory(dh) => self.inner.closedir(dh),
            }
        }
    }

    /// Makes the remote unreachable; every further call waits for it.
    pub fn stall(&self) {
        self.link.send_modify(|link| link.stalled = true);
    }

    /// Ends a [`FaultyRemote::cut`] or a [`FaultyRemote::stall`]. Earlier handles are valid again,
    /// as with a remote that reopens them.
    pub fn restore(&self) {
        self.link.send_modify(|link| {
            link.down = false;
            link.stalled = false;
        });
    }

    /// Ends a [`FaultyRemote::cut`]. Earlier handles fail with `errno` from now on, as with a
    /// remote that cannot reopen them.
    pub fn restore_without_handles(&self, errno: Errno) {
        self.lose_handles(errno);
        self.restore();
    }

    /// All handles fail with `errno` from now on, also while the link is cut, as those of a session
    /// that is known to have ended.
    pub fn lose_handles(&self, errno: Errno) {
        let mut state = self.state.lock();
        let lost: Vec<Handle> = state.handles.iter().copied().collect();
        state.stale.extend(lost.into_iter().map(|handle| (handle, errno)));
    }

    /// Sets the value of [`Remote::write_verifier`], instead of the inner remote's. It is not
    /// returned at the first poll.
    pub fn set_write_verifier(&self, run: impl Into<Bytes>) {
        self.state.lock().write_verifier = Some(run.into());
    }

    /// Makes further calls of [`Remote::write_verifier`] fail.
    pub fn fail_write_verifier(&self, errno: Errno) {
        self.state.lock().write_verifier_error = Some(errno);
    }

    /// The number of calls of [`Remote::write_verifier`].
    pub fn write_verifier_calls(&self) -> u64 {
        self.state.lock().write_verifier_calls
    }

    /// Makes further calls of [`Remote::write_verifier`] wait for ever.
    pub fn withhold_write_verifier(&self) {
        self.state.lock().withholds_write_verifier = true;
    }

    /// Sets the value of [`Remote::reads_files`], instead of the inner remote's.
    pub fn set_reads_files(&self, reads_files: bool) {
        self.state.lock().reads_files = Some(reads_files);
    }

    /// Sets the value of [`Remote::why_disconnected`], instead of the inner remote's.
    pub fn set_why_disconnected(&self, why: &str) {
        self.state.lock().why_disconnected = Some(why.to_owned());
    }

    /// Number of calls of `call`, including failed ones.
    pub fn calls(&self, call: Call) -> u64 {
        self.calls.of(call)
    }

    /// Number of calls that cost a round trip, including failed ones.
    pub fn round_trips(&self) -> u64 {
        self.calls.round_trips()
    }

    /// Resets the counters. Faults and gates count for themselves.
    pub fn reset_calls(&self) {
        self.calls.reset();
    }
}
