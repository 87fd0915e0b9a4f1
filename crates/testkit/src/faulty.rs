//! A [`Remote`] around a [`Remote`] whose calls fail, wait and get lost when a test says so.
//!
//! Four instruments:
//!
//! - [`fail`](FaultyRemote::fail) and its kin: the Nth call from now fails, before it reached the
//!   remote or after it took effect there (the answer was lost).
//! - [`hold`](FaultyRemote::hold): the Nth call from now stops at a [`Gate`], before it reached the
//!   remote or with its answer in hand. The test waits until it is there, does what it wants to
//!   race with it, and lets it go.
//! - [`hold_each`](FaultyRemote::hold_each): every call from now on stops, before it reaches the
//!   remote and with its answer in hand, until a [`Turnstile`] lets it go. `interleave` builds on it.
//! - [`cut`](FaultyRemote::cut): the link is down. All calls under way and all further ones fail
//!   with `EHOSTDOWN` until [`restore`](FaultyRemote::restore). Meanwhile it [is
//!   away](Remote::is_disconnected). [`stall`](FaultyRemote::stall) is the same of a remote that waits for
//!   its link: further calls wait and do not fail.
//!
//! Invariants:
//! 1. Without instructions it does what the inner remote does, in the same poll.
//! 2. Calls on one handle reach the inner remote in the order of their first polls, also when one
//!    of them is held: those behind it queue, as behind a packet on the wire. A call that is
//!    dropped or fails leaves the queue.
//! 3. A handle whose answer is dropped, failed or cut off is closed in the inner remote.
//!
//! One mutex guards the instructions; it is never held over an await or a call to the inner
//! remote.

mod fault;
mod gate;
mod plan;
mod remote;
mod turnstile;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Dh, Errno, Fh, Remote};
use bytes::Bytes;
use tokio::sync::{Notify, watch};

use crate::call::{Call, Counters};
pub use fault::Fault;
pub use gate::Gate;
pub use plan::Which;
use plan::{Moment, Plan};
pub use turnstile::Turnstile;

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
    /// Handles that did not survive a cut, and what they answer now.
    stale: HashMap<Handle, Errno>,
    /// Behind whom the next call on a handle has to queue: each receiver ends when the call that
    /// owns its sender has reached the inner remote, or never will. All of them and not the last
    /// alone, since that one may give up while those before it still wait.
    queues: HashMap<Handle, Vec<watch::Receiver<()>>>,
    write_verifier: Option<Bytes>,
    turnstile: Option<Turnstile>,
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
    /// Further calls wait until it is not.
    stalled: bool,
    /// How often it was cut, so that a call under way sees a cut that is over already.
    cuts: u64,
}

impl Link {
    fn is_away(&self) -> bool {
        self.down || self.stalled
    }
}

impl<R: Remote + ?Sized> FaultyRemote<R> {
    /// A faithful one around `inner`, which the caller may keep a share of.
    #[must_use]
    pub fn new(inner: Arc<R>) -> FaultyRemote<R> {
        FaultyRemote {
            inner,
            state: Mutex::default(),
            link: watch::Sender::new(Link::default()),
            calls: Counters::default(),
        }
    }

    /// The remote inside.
    #[must_use]
    pub fn inner(&self) -> &R {
        &self.inner
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked while it held the lock has failed already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the `nth` of these calls from now (1 is the next) fail without reaching the remote.
    pub fn fail(&self, which: impl Into<Which>, nth: u64, errno: Errno) {
        self.state().plan.fail(which.into(), nth, 1, Moment::Before, errno);
    }

    /// Lets the `nth` of these calls from now take effect and then fail, as when its answer is
    /// lost. A call that failed by itself keeps its own errno.
    pub fn fail_after(&self, which: impl Into<Which>, nth: u64, errno: Errno) {
        self.state().plan.fail(which.into(), nth, 1, Moment::After, errno);
    }

    /// Lets all of these calls fail from now on, until [`FaultyRemote::clear`].
    pub fn fail_always(&self, which: impl Into<Which>, errno: Errno) {
        self.state().plan.fail(which.into(), 1, u64::MAX, Moment::Before, errno);
    }

    /// Stops the `nth` of these calls from now before it reaches the remote.
    pub fn hold(&self, which: impl Into<Which>, nth: u64) -> Gate {
        self.state().plan.hold(which.into(), nth, Moment::Before)
    }

    /// Stops the `nth` of these calls from now when it has taken effect, with its answer in hand.
    pub fn hold_answer(&self, which: impl Into<Which>, nth: u64) -> Gate {
        self.state().plan.hold(which.into(), nth, Moment::After)
    }

    /// Stops every call from now on that costs a round trip, before it reaches the remote and again
    /// with its answer in hand. Only one turnstile can be in force: a second one opens the first.
    pub fn hold_each(&self) -> Turnstile {
        self.hold_each_with(Arc::default())
    }

    /// As [`FaultyRemote::hold_each`]; `bell` is notified when a call comes to a stop.
    pub(crate) fn hold_each_with(&self, bell: Arc<Notify>) -> Turnstile {
        let turnstile = Turnstile::new(bell);
        let before = self.state().turnstile.replace(turnstile.clone());
        if let Some(before) = before {
            before.open();
        }
        turnstile
    }

    /// Forgets all faults and gates that no call has reached.
    pub fn clear(&self) {
        self.state().plan = Plan::default();
    }

    /// How many faults and gates no call has reached yet. A sweep over N ends when the Nth fault
    /// is still here afterwards; a single test proves with 0 that it hit what it wanted to.
    #[must_use]
    pub fn not_reached(&self) -> usize {
        self.state().plan.not_reached()
    }

    /// Cuts the link: every call under way fails with `EHOSTDOWN`, whether or not it took effect,
    /// and so does every further one.
    pub fn cut(&self) {
        self.link.send_modify(|link| {
            link.down = true;
            link.cuts += 1;
        });
    }

    /// As [`FaultyRemote::cut`], and the remote closes all handles, as a server does at the end of a
    /// session.
    pub fn end_session(&self) {
        self.cut();
        for handle in self.state().handles.drain().collect::<Vec<_>>() {
            match handle {
                Handle::File(fh) => self.inner.close(fh),
                Handle::Directory(dh) => self.inner.closedir(dh),
            }
        }
    }

    /// The remote is away, and every further call waits for it.
    pub fn stall(&self) {
        self.link.send_modify(|link| link.stalled = true);
    }

    /// Ends a [`FaultyRemote::cut`] or a [`FaultyRemote::stall`]. Handles from before it are good
    /// again, as with a remote that reopens them.
    pub fn restore(&self) {
        self.link.send_modify(|link| {
            link.down = false;
            link.stalled = false;
        });
    }

    /// Ends a [`FaultyRemote::cut`]. Handles from before it answer `errno` for good, as with a
    /// remote that cannot reopen them.
    pub fn restore_without_handles(&self, errno: Errno) {
        {
            let mut state = self.state();
            let lost: Vec<Handle> = state.handles.iter().copied().collect();
            state.stale.extend(lost.into_iter().map(|handle| (handle, errno)));
        }
        self.restore();
    }

    /// What [`Remote::write_verifier`] tells from now on, in the place of what the inner remote does.
    pub fn set_write_verifier(&self, run: impl Into<Bytes>) {
        self.state().write_verifier = Some(run.into());
    }

    /// How often `call` was made, with those that failed here.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.calls.of(call)
    }

    /// How many calls were made that cost a round trip, with those that failed here.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.calls.round_trips()
    }

    /// Starts counting anew. Faults and gates count for themselves.
    pub fn reset_calls(&self) {
        self.calls.reset();
    }
}
