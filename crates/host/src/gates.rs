//! One [`Gate`] for each direction: what is read and what is written fill the two ways of a link
//! independently, so neither waits for the other.

use std::sync::Arc;
use std::time::Duration;

use crate::gate::{Carried, Gate, Slots};

/// The gates of all sessions of one host.
#[derive(Clone)]
pub(crate) struct Gates {
    /// For what comes.
    pub(crate) read: Arc<Gate>,
    /// For what goes.
    pub(crate) write: Arc<Gate>,
}

impl Gates {
    pub(crate) fn new(slots: usize) -> Gates {
        Gates { read: Arc::new(Gate::new(slots)), write: Arc::new(Gate::new(slots)) }
    }

    /// The gate of requests that change a file, or of others.
    pub(crate) fn of(&self, changes: bool) -> &Arc<Gate> {
        if changes { &self.write } else { &self.read }
    }

    /// See [`Gate::set_window`].
    pub(crate) fn set_window(&self, bytes: u64) {
        self.read.set_window(bytes);
        self.write.set_window(bytes);
    }

    /// See [`Gate::window`].
    pub(crate) fn window(&self) -> u64 {
        self.read.window()
    }

    /// See [`Gate::take_carried`]; of reads, and of writes.
    pub(crate) fn take_carried(&self) -> (Carried, Carried) {
        (self.read.take_carried(), self.write.take_carried())
    }

    /// See [`Gate::idle_for`].
    pub(crate) fn idle_for(&self, slots: Slots, limit: Duration) -> Slots {
        self.read.idle_for(slots, limit).both(self.write.idle_for(slots, limit))
    }

    /// See [`Gate::opened`].
    pub(crate) fn opened(&self, slot: usize) {
        self.read.opened(slot);
        self.write.opened(slot);
    }

    /// See [`Gate::something_passes`].
    pub(crate) async fn something_passes(&self) {
        tokio::select! {
            () = self.read.something_passes() => {}
            () = self.write.something_passes() => {}
        }
    }
}
