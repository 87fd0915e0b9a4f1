//! Stops at which every call waits until the test releases it.

use std::sync::Arc;

use base::Mutex;

use tokio::sync::Notify;

use super::gate::{Gate, gate};
use super::plan::Orders;
use crate::call::Call;

/// The test's side of all calls of a remote. Its clones share one state.
#[derive(Clone, Debug)]
pub(crate) struct Stepper(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    line: Mutex<Line>,
    /// Notified when a call stops.
    arrivals: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Line {
    is_open: bool,
    calls: Vec<(Call, Gate)>,
}

impl Stepper {
    pub(super) fn new(arrivals: Arc<Notify>) -> Stepper {
        Stepper(Arc::new(Inner { line: Mutex::default(), arrivals }))
    }

    /// Gives a new call its two stops.
    pub(super) fn stop(&self, call: Call, orders: &mut Orders) {
        let mut line = self.0.line.lock();
        if line.is_open || !call.is_round_trip() {
            return;
        }
        line.calls.retain(|(_, gate)| !gate.is_over());
        for order in [&mut orders.before, &mut orders.after] {
            let (gate, barrier) = gate(Some(self.0.arrivals.clone()));
            order.barriers.push(barrier);
            line.calls.push((call, gate));
        }
    }

    /// Number of calls at a stop.
    pub(crate) fn waiting(&self) -> usize {
        self.0.line.lock().calls.iter().filter(|(_, gate)| gate.is_waiting()).count()
    }

    /// Releases one of the stopped calls: the one with this index, in the order in which the calls
    /// were made. `None` if there are fewer.
    pub(crate) fn release(&self, number: usize) -> Option<Call> {
        let line = self.0.line.lock();
        let mut waiting = line.calls.iter().filter(|(_, gate)| gate.is_waiting());
        let (call, gate) = waiting.nth(number)?;
        gate.release();
        Some(*call)
    }

    /// Releases all calls, stopped and future ones.
    pub(crate) fn open(&self) {
        let mut line = self.0.line.lock();
        line.is_open = true;
        // Dropping a gate releases its call.
        line.calls.clear();
    }
}
