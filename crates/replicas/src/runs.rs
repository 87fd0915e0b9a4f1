//! Whether what was written through a gateway and not synced may be lost with it.
//!
//! When only a connection has ended, nothing is: the gateway's machine has what it has acknowledged.
//! It is lost if the machine was started anew, which a gateway can be asked when it is back
//! ([`Remote::server_run`](base::Remote::server_run)). So for a gateway that is lost with unsynced
//! writes there is a doubt, which is looked into when somebody wants to know. One that does not come
//! back by then, or cannot tell its run, may have lost them; and what another one shows meanwhile
//! may be without them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::gateways::Gateways;
use crate::member::{Member, Weight};

/// How long a gateway that is in doubt is waited for: most connections stand again by then. Who
/// writes to a file waits for it once, when its gateway is lost for good.
const RETURN: Duration = Duration::from_secs(3);

/// What is known of a gateway's run.
#[derive(Default)]
pub(crate) struct Run {
    /// As it was told last.
    told: Mutex<Option<Bytes>>,
    in_doubt: AtomicBool,
}

impl Run {
    fn told(&self) -> MutexGuard<'_, Option<Bytes>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was lost with unsynced writes.
    pub(crate) fn doubt(&self) {
        self.in_doubt.store(true, Ordering::SeqCst);
    }
}

/// How often writes may have been lost.
#[derive(Default)]
pub(crate) struct Losses {
    count: AtomicU64,
    /// Held by whoever looks; others wait for what he finds.
    looking: tokio::sync::Mutex<()>,
}

impl Gateways {
    /// How often writes that were acknowledged and not synced may have been lost so far. May wait
    /// for gateways that are in doubt, but not for long.
    pub(crate) async fn losses(&self) -> u64 {
        let _alone = self.losses.looking.lock().await;
        let deadline = Instant::now() + RETURN;
        for member in &self.members {
            if member.run.in_doubt.swap(false, Ordering::SeqCst) {
                if !self.is_same_run(member, deadline).await {
                    self.losses.count.fetch_add(1, Ordering::SeqCst);
                }
            } else if member.is_usable() && member.run.told().is_none() {
                let run = self.ask_run(member, deadline).await;
                *member.run.told() = run;
            }
        }
        self.losses.count.load(Ordering::SeqCst)
    }

    /// Whether a gateway that was lost is back, in the run that it was in.
    async fn is_same_run(&self, member: &Member, deadline: Instant) -> bool {
        self.wait_until(deadline, |_| member.is_usable()).await;
        let now = match member.is_usable() {
            true => self.ask_run(member, deadline).await,
            false => None,
        };
        let before = std::mem::replace(&mut *member.run.told(), now.clone());
        now.is_some() && now == before
    }

    async fn ask_run(&self, member: &Member, deadline: Instant) -> Option<Bytes> {
        let asked = self.ask_while_usable(member, Weight::Small, member.remote.server_run());
        timeout_at(deadline, asked).await.ok()?.ok()?
    }
}
