//! Stops at which every call waits until the test releases it.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::Mutex;

use tokio::sync::{Notify, oneshot};

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
    /// Number of calls so far.
    calls: u64,
    /// The stopped calls by their numbers, each with what releases it.
    stopped: BTreeMap<u64, (Call, oneshot::Sender<()>)>,
}

impl Line {
    /// The stopped calls that were not dropped.
    fn waiting(&mut self) -> &mut BTreeMap<u64, (Call, oneshot::Sender<()>)> {
        self.stopped.retain(|_, (_, release)| !release.is_closed());
        &mut self.stopped
    }
}

impl Stepper {
    pub(super) fn new(arrivals: Arc<Notify>) -> Stepper {
        Stepper(Arc::new(Inner { line: Mutex::default(), arrivals }))
    }

    /// The number of a new call.
    pub(super) fn number(&self) -> u64 {
        let mut line = self.0.line.lock();
        line.calls += 1;
        line.calls
    }

    /// Stops a call until it is released.
    pub(super) async fn stop(&self, number: u64, call: Call) {
        let (release, released) = oneshot::channel();
        {
            let mut line = self.0.line.lock();
            if line.is_open {
                return;
            }
            line.stopped.insert(number, (call, release));
        }
        self.0.arrivals.notify_one();
        // An error means that all calls are released.
        let _ = released.await;
    }

    /// Number of stopped calls.
    pub(crate) fn waiting(&self) -> usize {
        self.0.line.lock().waiting().len()
    }

    /// Releases one of the stopped calls: the one with this index, in the order in which the calls
    /// were made. `None` if there are fewer.
    pub(crate) fn release(&self, index: usize) -> Option<Call> {
        let mut line = self.0.line.lock();
        let waiting = line.waiting();
        let number = *waiting.keys().nth(index)?;
        let (call, release) = waiting.remove(&number)?;
        let _ = release.send(());
        Some(call)
    }

    /// Releases all calls, stopped and future ones.
    pub(crate) fn open(&self) {
        let mut line = self.0.line.lock();
        line.is_open = true;
        line.stopped.clear();
    }
}
