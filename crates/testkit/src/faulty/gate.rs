//! A gate at which a call waits until the test releases it.

use tokio::sync::watch;

/// Progress of the call at a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The call was not made yet.
    Expected,
    /// The call is at the gate or has passed it.
    Arrived,
    /// The call was answered or dropped.
    Over,
}

/// The test's side of a held call. Dropping it releases the call.
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
}

/// Both sides of a gate.
pub(super) fn gate() -> (Gate, Barrier) {
    let (phase, seen_phase) = watch::channel(Phase::Expected);
    let (release, seen_release) = watch::channel(false);
    (Gate { phase: seen_phase, release }, Barrier { phase, release: seen_release })
}

impl Gate {
    /// Waits until the call is at the gate.
    ///
    /// # Panics
    ///
    /// If the gate was [cleared](super::FaultyRemote::clear), or the call ended before the gate (it
    /// failed, was cut off or dropped), and so never arrives.
    pub async fn arrived(&self) {
        let mut phase = self.phase.clone();
        match phase.wait_for(|phase| *phase != Phase::Expected).await {
            Ok(phase) => assert!(*phase == Phase::Arrived, "the held call is over already"),
            Err(_) => panic!("no call came to the gate, and none will"),
        }
    }

    /// Whether the call is at the gate, or has passed it and is not over.
    pub fn has_arrived(&self) -> bool {
        *self.phase.borrow() == Phase::Arrived
    }

    /// Releases the call.
    pub fn release(&self) {
        self.release.send_replace(true);
    }

    /// Waits until the call is over: answered, failed, or dropped by its caller.
    pub async fn over(&self) {
        let mut phase = self.phase.clone();
        // An error means that the barrier was dropped, which happens only after the call.
        let _ = phase.wait_for(|phase| *phase == Phase::Over).await;
    }
}

impl Barrier {
    /// Waits at the gate until the test releases the call.
    pub(super) async fn pass(&self) {
        self.phase.send_replace(Phase::Arrived);
        let mut release = self.release.clone();
        // An error means that the test has dropped the gate.
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
