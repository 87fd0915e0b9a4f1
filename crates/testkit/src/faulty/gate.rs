//! Where a call waits until the test lets it go.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// How far the call has come for which a gate waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It was not made yet.
    Expected,
    /// It stands at the gate or has passed it.
    Arrived,
    /// It was answered or dropped.
    Over,
}

/// The test's side of a call that is held. Dropping it lets the call go.
#[derive(Debug)]
pub struct Gate {
    phase: watch::Receiver<Phase>,
    release: watch::Sender<bool>,
}

/// The call's side.
#[derive(Debug)]
pub(super) struct Barrier {
    phase: watch::Sender<Phase>,
    release: watch::Receiver<bool>,
    /// Notified when the call arrives.
    bell: Option<Arc<Notify>>,
}

pub(super) fn gate() -> (Gate, Barrier) {
    let (phase, seen_phase) = watch::channel(Phase::Expected);
    let (release, seen_release) = watch::channel(false);
    (Gate { phase: seen_phase, release }, Barrier { phase, release: seen_release, bell: None })
}

/// As [`gate`]; `bell` is notified when the call arrives.
pub(super) fn gate_with(bell: Arc<Notify>) -> (Gate, Barrier) {
    let (gate, mut barrier) = gate();
    barrier.bell = Some(bell);
    (gate, barrier)
}

impl Gate {
    /// Waits until the call stands at the gate.
    ///
    /// # Panics
    ///
    /// When the gate was [cleared](super::FaultyRemote::clear), or the call ended before it came
    /// here (it failed, was cut off or dropped): it never will.
    pub async fn arrived(&self) {
        let mut phase = self.phase.clone();
        match phase.wait_for(|phase| *phase != Phase::Expected).await {
            Ok(phase) => assert!(*phase == Phase::Arrived, "the held call is over already"),
            Err(_) => panic!("no call came to the gate, and none will"),
        }
    }

    /// Whether the call stands at the gate, or has passed it and is not over.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        *self.phase.borrow() == Phase::Arrived
    }

    /// Whether the call stands at the gate and was not released.
    pub(super) fn is_waiting(&self) -> bool {
        self.has_arrived() && self.phase.has_changed().is_ok() && !*self.release.borrow()
    }

    /// Whether the call is over, or will never come.
    pub(super) fn is_over(&self) -> bool {
        self.phase.has_changed().is_err() || *self.phase.borrow() == Phase::Over
    }

    /// Lets the call go on.
    pub fn release(&self) {
        self.release.send_replace(true);
    }

    /// Waits until the call is over: answered, failed, or dropped by its caller.
    pub async fn over(&self) {
        let mut phase = self.phase.clone();
        // An error says that the barrier is gone, which it is only after the call.
        let _ = phase.wait_for(|phase| *phase == Phase::Over).await;
    }
}

impl Barrier {
    /// Stands at the gate until the test lets go.
    pub(super) async fn pass(&self) {
        self.phase.send_replace(Phase::Arrived);
        if let Some(bell) = &self.bell {
            bell.notify_one();
        }
        let mut release = self.release.clone();
        // An error says that the test has dropped the gate.
        let _ = release.wait_for(|released| *released).await;
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        self.phase.send_if_modified(|phase| {
            let arrived = *phase == Phase::Arrived;
            if arrived {
                *phase = Phase::Over;
            }
            arrived
        });
    }
}
