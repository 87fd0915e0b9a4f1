//! Whether acknowledged but unsynced writes may be lost with a gateway.
//!
//! When only a connection has ended, none are lost: the gateway's machine has the data that it
//! acknowledged. They are lost if the machine was restarted; a gateway reports its boot when it is
//! back ([`Remote::write_verifier`](base::Remote::write_verifier)). So a gateway that is lost with
//! unsynced writes is in doubt, which is resolved when a caller needs to know. A gateway that is
//! not back by then, or cannot report its boot, may have lost them; and another gateway may show
//! the files without them meanwhile. A gateway that was lost before it was queried for its boot,
//! and is back so soon, was most likely only disconnected.
//!
//! A gateway may reconnect by itself before any request fails. So each caller that needs to know
//! queries the boots of all usable gateways.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use base::Mutex;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::gateways::Gateways;
use crate::member::Member;
use crate::status::Reason;

/// How long a gateway in doubt is waited for: most connections are up again by then. A writer waits
/// for it once, when its gateway is lost for good.
const RECONNECT_WAIT: Duration = Duration::from_secs(3);

/// The boot that a gateway has reported since it was last lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Epoch {
    #[default]
    Unknown,
    /// The gateway cannot report it.
    Unsupported,
    Known(Bytes),
}

/// The epoch of a gateway.
#[derive(Default)]
pub(crate) struct ServerEpoch {
    epoch: Mutex<Epoch>,
    in_doubt: AtomicBool,
    /// Open files with acknowledged writes that were not synced.
    open_unsynced: AtomicUsize,
    /// There were such files in this epoch whose handles were lost or finished: their callers may
    /// open them again to sync them.
    former_unsynced: AtomicBool,
}

impl ServerEpoch {
    /// An open file has its first unsynced write.
    pub(crate) fn begin_unsynced(&self) {
        self.open_unsynced.fetch_add(1, Ordering::SeqCst);
    }

    /// An open file has no unsynced writes any more, or was closed for good.
    pub(crate) fn end_unsynced(&self) {
        self.open_unsynced.fetch_sub(1, Ordering::SeqCst);
    }

    /// An open file with unsynced writes is about to be finished.
    pub(crate) fn note_finished(&self) {
        self.former_unsynced.store(true, Ordering::SeqCst);
    }

    /// The handle of an open file with unsynced writes was lost.
    pub(crate) fn note_lost_handle(&self) {
        self.former_unsynced.store(true, Ordering::SeqCst);
        self.in_doubt.store(true, Ordering::SeqCst);
    }

    /// The gateway was lost. Without unsynced writes, its epoch after the loss does not matter.
    pub(crate) fn note_lost(&self) {
        if self.has_unsynced() {
            self.note_lost_handle();
        } else if !self.in_doubt.load(Ordering::SeqCst) {
            *self.epoch.lock() = Epoch::Unknown;
        }
    }

    fn has_unsynced(&self) -> bool {
        self.open_unsynced.load(Ordering::SeqCst) > 0 || self.former_unsynced.load(Ordering::SeqCst)
    }

    fn needs_query(&self) -> bool {
        !self.in_doubt.load(Ordering::SeqCst) && *self.epoch.lock() == Epoch::Unknown
    }

    /// Takes the doubt of the gateway, to resolve it.
    fn take_doubt(&self) -> Option<Doubt<'_>> {
        let in_doubt = self.in_doubt.swap(false, Ordering::SeqCst);
        in_doubt.then(|| {
            // From here on the epoch is that of the gateway after its return.
            let before = std::mem::take(&mut *self.epoch.lock());
            Doubt { of: self, before, is_resolved: false }
        })
    }

    /// Records that the usable gateway is in the epoch `now`. Returns whether a restart has lost
    /// unsynced writes.
    fn observe(&self, now: Epoch) -> bool {
        if now == Epoch::Unknown {
            return false;
        }
        let before = std::mem::replace(&mut *self.epoch.lock(), now.clone());
        matches!(before, Epoch::Known(_)) && before != now && self.has_unsynced()
    }
}

/// A doubt that is being resolved. If it is dropped before, the gateway is in doubt again: a caller
/// may be cancelled while it waits.
struct Doubt<'a> {
    of: &'a ServerEpoch,
    /// The epoch before the gateway was lost.
    before: Epoch,
    is_resolved: bool,
}

impl Doubt<'_> {
    /// The gateway is in the epoch `now`, as far as that is known. Returns whether it is the former
    /// epoch.
    fn resolve(mut self, now: Epoch) -> bool {
        self.is_resolved = true;
        let is_same = match &now {
            Epoch::Unknown | Epoch::Unsupported => false,
            Epoch::Known(_) => self.before == Epoch::Unknown || self.before == now,
        };
        *self.of.epoch.lock() = now;
        is_same
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.is_resolved {
            *self.of.epoch.lock() = std::mem::take(&mut self.before);
            self.of.in_doubt.store(true, Ordering::SeqCst);
        }
    }
}

/// How often writes may have been lost.
#[derive(Default)]
pub(crate) struct Losses {
    count: AtomicU64,
    /// The number was requested, so epochs are worth querying.
    is_requested: AtomicBool,
    /// Held during the query; other callers wait for its result.
    query_lock: tokio::sync::Mutex<()>,
}

impl Gateways {
    /// How often acknowledged but unsynced writes may have been lost so far. May wait for gateways
    /// in doubt, up to a limit.
    pub(crate) async fn losses(&self) -> u64 {
        self.losses.is_requested.store(true, Ordering::SeqCst);
        let _alone = self.losses.query_lock.lock().await;
        let deadline = Instant::now() + RECONNECT_WAIT;
        for member in &self.members {
            let is_lost = match member.epoch.take_doubt() {
                Some(doubt) => !doubt.resolve(self.epoch_after_loss(member, deadline).await),
                None => {
                    member.is_usable()
                        && member.epoch.observe(self.query_epoch(member, deadline).await)
                }
            };
            if is_lost {
                member.epoch.former_unsynced.store(false, Ordering::SeqCst);
                self.losses.count.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.losses.count.load(Ordering::SeqCst)
    }

    /// Records the epoch of a gateway that has just come back, if it will be needed.
    pub(crate) async fn record_epoch(&self, member: &Member) {
        if !self.losses.is_requested.load(Ordering::SeqCst) {
            return;
        }
        while member.is_usable() && member.epoch.needs_query() {
            let run = self.query_epoch(member, Instant::now() + RECONNECT_WAIT).await;
            // The query that resolves a doubt sets it itself.
            let mut epoch = member.epoch.epoch.lock();
            if *epoch == Epoch::Unknown {
                *epoch = run;
            }
        }
    }

    /// The epoch of a gateway that was lost, if it is back by the deadline.
    async fn epoch_after_loss(&self, member: &Member, deadline: Instant) -> Epoch {
        let mut now = Epoch::Unknown;
        while now == Epoch::Unknown && Instant::now() < deadline {
            self.wait_until(deadline, |_| member.is_usable()).await;
            if member.is_usable() {
                // It may be lost once more meanwhile.
                now = self.query_epoch(member, deadline).await;
            }
        }
        now
    }

    async fn query_epoch(&self, member: &Member, deadline: Instant) -> Epoch {
        // Not measured: a gateway may answer from memory.
        let answer = tokio::select! {
            biased;
            answer = timeout_at(deadline, member.remote.write_verifier()) => answer,
            () = member.left_out() => return Epoch::Unknown,
        };
        match answer {
            Ok(Ok(Some(run))) => Epoch::Known(run),
            Ok(Err(errno)) if errno.is_loss() => {
                self.leave_out(member, Reason::Failed(errno));
                Epoch::Unknown
            }
            Ok(Ok(None) | Err(_)) => Epoch::Unsupported,
            Err(_) => Epoch::Unknown,
        }
    }
}
