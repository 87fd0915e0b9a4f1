//! Whether what was written through a gateway and not synced may be lost with it.
//!
//! When only a connection has ended, nothing is: the gateway's machine has what it has acknowledged.
//! It is lost if the machine was started anew, which a gateway can be asked when it is back
//! ([`Remote::write_verifier`](base::Remote::write_verifier)). So for a gateway that is lost with unsynced
//! writes there is a doubt, which is looked into when somebody wants to know. One that does not come
//! back by then, or cannot tell its run, may have lost them; and what another one shows meanwhile
//! may be without them. One that was lost before it was asked for its run, and is back so soon, was
//! most likely only cut off.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::gateways::{Gateways, is_loss};
use crate::member::{Member, Weight};

/// How long a gateway that is in doubt is waited for: most connections stand again by then. Who
/// writes to a file waits for it once, when its gateway is lost for good.
const RETURN: Duration = Duration::from_secs(3);

/// What a gateway has told of its run since it was lost last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    Nothing,
    /// That it cannot tell.
    Untellable,
    Is(Bytes),
}

/// What is known of a gateway's run.
#[derive(Default)]
pub(crate) struct Run {
    told: Mutex<Told>,
    in_doubt: AtomicBool,
}

impl Run {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was lost with unsynced writes.
    pub(crate) fn doubt(&self) {
        self.in_doubt.store(true, Ordering::SeqCst);
    }

    /// It was lost, and nothing with it: the run that it is in when it comes back is as good.
    pub(crate) fn forget(&self) {
        if !self.in_doubt.load(Ordering::SeqCst) {
            *self.told() = Told::Nothing;
        }
    }

    fn is_to_be_asked(&self) -> bool {
        !self.in_doubt.load(Ordering::SeqCst) && *self.told() == Told::Nothing
    }
}

/// How often writes may have been lost.
#[derive(Default)]
pub(crate) struct Losses {
    count: AtomicU64,
    /// Somebody has asked for it, so runs are worth to be known.
    is_wanted: AtomicBool,
    /// Held by whoever looks; others wait for what he finds.
    looking: tokio::sync::Mutex<()>,
}

impl Gateways {
    /// How often writes that were acknowledged and not synced may have been lost so far. May wait
    /// for gateways that are in doubt, but not for long.
    pub(crate) async fn losses(&self) -> u64 {
        self.losses.is_wanted.store(true, Ordering::SeqCst);
        let _alone = self.losses.looking.lock().await;
        let deadline = Instant::now() + RETURN;
        for member in &self.members {
            if member.run.in_doubt.swap(false, Ordering::SeqCst) {
                if !self.is_same_run(member, deadline).await {
                    self.losses.count.fetch_add(1, Ordering::SeqCst);
                }
            } else if member.is_usable() && member.run.is_to_be_asked() {
                let run = self.ask_run(member, deadline).await;
                *member.run.told() = run;
            }
        }
        self.losses.count.load(Ordering::SeqCst)
    }

    /// Learns in which run a gateway is that has just come back, if anybody will want to know.
    pub(crate) async fn learn_run(&self, member: &Member) {
        if !self.losses.is_wanted.load(Ordering::SeqCst) || !member.run.is_to_be_asked() {
            return;
        }
        while member.is_usable() && member.run.is_to_be_asked() {
            let run = self.ask_run(member, Instant::now() + RETURN).await;
            // Whoever looks into a doubt has asked by himself.
            let mut told = member.run.told();
            if *told == Told::Nothing {
                *told = run;
            }
        }
    }

    /// Whether a gateway that was lost is back, in the run that it was in.
    async fn is_same_run(&self, member: &Member, deadline: Instant) -> bool {
        // What is told from here on is of whoever comes back.
        let before = std::mem::take(&mut *member.run.told());
        let mut now = Told::Nothing;
        while now == Told::Nothing && Instant::now() < deadline {
            self.wait_until(deadline, |_| member.is_usable()).await;
            if member.is_usable() {
                // It may be lost once more meanwhile.
                now = self.ask_run(member, deadline).await;
            }
        }
        *member.run.told() = now.clone();
        match now {
            Told::Nothing | Told::Untellable => false,
            Told::Is(_) => before == Told::Nothing || before == now,
        }
    }

    async fn ask_run(&self, member: &Member, deadline: Instant) -> Told {
        let asked = self.ask_while_usable(member, Weight::Small, member.remote.write_verifier());
        match timeout_at(deadline, asked).await {
            Ok(Ok(Some(run))) => Told::Is(run),
            Ok(Err(errno)) if is_loss(errno) => Told::Nothing,
            Ok(Ok(None) | Err(_)) => Told::Untellable,
            Err(_) => Told::Nothing,
        }
    }
}
