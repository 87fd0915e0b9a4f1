//! The write verifier of the server ([`Remote::write_verifier`](base::Remote::write_verifier)),
//! which changes when the server may have lost unstable writes.
//!
//! It is requested in the background when a file is opened or reopened for writing, because the
//! connection may be another one since the last request, and no call may have noticed that. The
//! inner remote keeps its answer for each connection, so most requests are answered at once. An
//! acknowledged write records the verifier for its file.
//!
//! Each open of a file that has unstable writes compares the verifiers (`reopen::verify`). A handle
//! does not survive a restart, so a write or fsync through any handle finds what was lost before
//! that handle was opened.

use std::sync::Arc;

use base::Mutex;
use base::task::Task;
use bytes::Bytes;

use crate::Core;

/// The state of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Value {
    /// Not requested since the last loss.
    #[default]
    NotRequested,
    /// Requested, and not answered yet.
    Requested,
    /// The request has failed; repeated at the next open, not at each write.
    Failed,
    /// The server has no verifier.
    Unavailable,
    /// The current verifier.
    Known(Bytes),
}

#[derive(Debug, Default)]
struct State {
    value: Value,
    /// Number of losses: a reply to a request from before the last one is ignored.
    losses: u64,
}

/// The write verifier of the current connection.
#[derive(Debug, Default)]
pub(crate) struct WriteVerifier(Mutex<State>);

impl WriteVerifier {
    /// A connection was lost, and the next one may have another verifier.
    pub(crate) fn invalidate(&self) {
        let mut state = self.0.lock();
        state.losses += 1;
        state.value = Value::NotRequested;
    }

    /// Whether unstable writes are worth recording.
    pub(crate) fn may_be_available(&self) -> bool {
        self.0.lock().value != Value::Unavailable
    }

    /// The verifier, if it is known; requests it if necessary.
    pub(crate) fn current(&self, core: &Arc<Core>) -> Option<Bytes> {
        match &self.0.lock().value {
            Value::Known(write_verifier) => return Some(write_verifier.clone()),
            Value::Requested | Value::Failed | Value::Unavailable => return None,
            Value::NotRequested => {}
        }
        self.request(core);
        None
    }

    /// Requests the verifier.
    pub(crate) fn request(&self, core: &Arc<Core>) {
        let losses = {
            let mut state = self.0.lock();
            if state.value == Value::Requested {
                return;
            }
            state.value = Value::Requested;
            state.losses
        };
        let core = core.clone();
        // Runs on by itself if it is not answered at once.
        let _ = Task::start(async move {
            let answer = core.lifetime.run(core.inner.write_verifier());
            let Some(answer) = answer.await else { return };
            let value = match answer {
                Ok(Some(write_verifier)) => Value::Known(write_verifier),
                Ok(None) => Value::Unavailable,
                Err(_) => Value::Failed,
            };
            core.write_verifier.store(value, losses);
        });
    }

    fn store(&self, value: Value, losses: u64) {
        let mut state = self.0.lock();
        if state.losses == losses {
            state.value = value;
        }
    }
}
