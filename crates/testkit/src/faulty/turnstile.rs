//! Where each call waits in turn until the test lets it go.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::gate::{Gate, gate_with};
use super::plan::Orders;
use crate::call::Call;

/// The test's side of all calls of a remote. Its clones are the same turnstile.
#[derive(Clone, Debug)]
pub struct Turnstile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    line: Mutex<Line>,
    /// A call has come to a stop.
    bell: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Line {
    is_open: bool,
    calls: Vec<(Call, Gate)>,
}

impl Turnstile {
    pub(super) fn new(bell: Arc<Notify>) -> Turnstile {
        Turnstile(Arc::new(Inner { line: Mutex::default(), bell }))
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a call that is made now its two stops.
    pub(super) fn stop(&self, call: Call, orders: &mut Orders) {
        let mut line = self.line();
        if line.is_open || !call.is_round_trip() {
            return;
        }
        line.calls.retain(|(_, gate)| !gate.is_over());
        for order in [&mut orders.before, &mut orders.after] {
            let (gate, barrier) = gate_with(self.0.bell.clone());
            order.barriers.push(barrier);
            line.calls.push((call, gate));
        }
    }

    /// How many calls stand here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.line().calls.iter().filter(|(_, gate)| gate.is_waiting()).count()
    }

    /// Lets one of the calls that stand here go on: the one of this number, in the order in which
    /// the calls were made. `None` when there are fewer.
    pub fn release(&self, number: usize) -> Option<Call> {
        let line = self.line();
        let mut waiting = line.calls.iter().filter(|(_, gate)| gate.is_waiting());
        let (call, gate) = waiting.nth(number)?;
        gate.release();
        Some(*call)
    }

    /// Waits until a call has come to a stop since this was called the last time.
    pub async fn arrival(&self) {
        self.0.bell.notified().await;
    }

    /// Lets all calls go, those that stand here and all further ones.
    pub fn open(&self) {
        let mut line = self.line();
        line.is_open = true;
        // A gate that is dropped lets its call go.
        line.calls.clear();
    }
}
