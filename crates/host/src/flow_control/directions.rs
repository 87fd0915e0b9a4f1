//! One [`FlowControl`] for each direction: reads and writes fill the two directions of a link
//! independently, so neither waits for the other.

use std::sync::Arc;
use std::time::Duration;

use super::{FlowControl, Slots, Throughput};

/// The flow control of both directions, for all sessions of one host.
#[derive(Clone)]
pub(crate) struct Directions {
    /// For READ.
    pub(crate) read: Arc<FlowControl>,
    /// For WRITE.
    pub(crate) write: Arc<FlowControl>,
}

impl Directions {
    pub(crate) fn new(slots: usize) -> Directions {
        Directions {
            read: Arc::new(FlowControl::new(slots)),
            write: Arc::new(FlowControl::new(slots)),
        }
    }

    /// The flow control of requests that change a file, or of those that do not.
    pub(crate) fn of(&self, changes: bool) -> &Arc<FlowControl> {
        if changes { &self.write } else { &self.read }
    }

    /// See [`FlowControl::set_window`].
    pub(crate) fn set_window(&self, bytes: u64) {
        self.read.set_window(bytes);
        self.write.set_window(bytes);
    }

    /// See [`FlowControl::window_bytes`].
    pub(crate) fn window_bytes(&self) -> u64 {
        self.read.window_bytes()
    }

    /// See [`FlowControl::take_throughput`]; returns reads and writes.
    pub(crate) fn take_throughput(&self) -> (Throughput, Throughput) {
        (self.read.take_throughput(), self.write.take_throughput())
    }

    /// See [`FlowControl::idle_for`].
    pub(crate) fn idle_for(&self, slots: Slots, limit: Duration) -> Slots {
        self.read.idle_for(slots, limit).intersection(self.write.idle_for(slots, limit))
    }

    /// See [`FlowControl::note_opened`].
    pub(crate) fn note_opened(&self, slot: usize) {
        self.read.note_opened(slot);
        self.write.note_opened(slot);
    }

    /// See [`FlowControl::wait_for_traffic`].
    pub(crate) async fn wait_for_traffic(&self) {
        tokio::select! {
            () = self.read.wait_for_traffic() => {}
            () = self.write.wait_for_traffic() => {}
        }
    }
}
