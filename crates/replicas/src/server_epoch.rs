//! Whether acknowledged but unsynced writes may be lost with a gateway.
//!
//! When only a connection has ended, none are lost: the gateway's machine has the data that it
//! acknowledged. They are lost if the machine was restarted; a gateway reports its boot when it is
//! back ([`Remote::write_verifier`](base::Remote::write_verifier)). So a gateway that is lost with unsynced
//! writes is in doubt, which is resolved when a caller needs to know. A gateway that is not back by
//! then, or cannot report its boot, may have lost them; and another gateway may show the files
//! without them meanwhile. A gateway that was lost before it was queried for its boot, and is back
//! so soon, was most likely only disconnected.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::Mutex;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::gateways::{Gateways, is_loss};
use crate::member::{Member, Weight};

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
}

impl ServerEpoch {
    /// The gateway was lost with unsynced writes.
    pub(crate) fn mark_in_doubt(&self) {
        self.in_doubt.store(true, Ordering::SeqCst);
    }

    /// The gateway was lost without unsynced writes: any epoch is as good when it is back.
    pub(crate) fn reset(&self) {
        if !self.in_doubt.load(Ordering::SeqCst) {
            *self.epoch.lock() = Epoch::Unknown;
        }
    }

    fn needs_query(&self) -> bool {
        !self.in_doubt.load(Ordering::SeqCst) && *self.epoch.lock() == Epoch::Unknown
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
            if member.epoch.in_doubt.swap(false, Ordering::SeqCst) {
                if !self.is_same_epoch(member, deadline).await {
                    self.losses.count.fetch_add(1, Ordering::SeqCst);
                }
            } else if member.is_usable() && member.epoch.needs_query() {
                let run = self.query_epoch(member, deadline).await;
                *member.epoch.epoch.lock() = run;
            }
        }
        self.losses.count.load(Ordering::SeqCst)
    }

    /// Records the epoch of a gateway that has just come back, if it will be needed.
    pub(crate) async fn record_epoch(&self, member: &Member) {
        if !self.losses.is_requested.load(Ordering::SeqCst) || !member.epoch.needs_query() {
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

    /// Whether a gateway that was lost is back, in its former epoch.
    async fn is_same_epoch(&self, member: &Member, deadline: Instant) -> bool {
        // From here on the epoch is that of the gateway after its return.
        let before = std::mem::take(&mut *member.epoch.epoch.lock());
        let mut now = Epoch::Unknown;
        while now == Epoch::Unknown && Instant::now() < deadline {
            self.wait_until(deadline, |_| member.is_usable()).await;
            if member.is_usable() {
                // It may be lost once more meanwhile.
                now = self.query_epoch(member, deadline).await;
            }
        }
        *member.epoch.epoch.lock() = now.clone();
        match now {
            Epoch::Unknown | Epoch::Unsupported => false,
            Epoch::Known(_) => before == Epoch::Unknown || before == now,
        }
    }

    async fn query_epoch(&self, member: &Member, deadline: Instant) -> Epoch {
        let asked = self.call_while_usable(member, Weight::Small, member.remote.write_verifier());
        match timeout_at(deadline, asked).await {
            Ok(Ok(Some(run))) => Epoch::Known(run),
            Ok(Err(errno)) if is_loss(errno) => Epoch::Unknown,
            Ok(Ok(None) | Err(_)) => Epoch::Unsupported,
            Err(_) => Epoch::Unknown,
        }
    }
}
