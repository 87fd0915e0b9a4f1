//! Which run of the server's machine the connection is of (see `Remote::write_verifier`).
//!
//! It is asked for in the background, when a file is opened for writing for the first time over a
//! connection, so nobody waits for it. A file takes it over with a write that was acknowledged after the answer,
//! through a handle that was open before: then all that was written through that handle was of this
//! run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::Core;

/// What is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Value {
    /// Nobody has asked since the last loss.
    #[default]
    NotRequested,
    /// Somebody asks.
    Requested,
    /// Nothing tells runs apart.
    Unavailable,
    /// This one.
    Known(Bytes),
}

#[derive(Debug, Default)]
struct State {
    value: Value,
    /// Losses so far: an answer to a question from before is not kept.
    losses: u64,
}

/// The run of the server, as it was when it was last asked for.
#[derive(Debug, Default)]
pub(crate) struct WriteVerifier(Mutex<State>);

impl WriteVerifier {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was lost, so the next one may be to another run.
    pub(crate) fn invalidate(&self) {
        let mut state = self.lock();
        state.losses += 1;
        state.value = Value::NotRequested;
    }

    /// Whether it is worth something to know what was written.
    pub(crate) fn may_be_available(&self) -> bool {
        self.lock().value != Value::Unavailable
    }

    /// The run, if it is known; asks for it if nobody has.
    pub(crate) fn current(&self, core: &Arc<Core>) -> Option<Bytes> {
        let losses = {
            let mut state = self.lock();
            match &state.value {
                Value::Known(write_verifier) => return Some(write_verifier.clone()),
                Value::Requested | Value::Unavailable => return None,
                Value::NotRequested => state.value = Value::Requested,
            }
            state.losses
        };
        let core = core.clone();
        tokio::spawn(async move {
            let mut shutdown = core.shutdown.clone();
            let answer = tokio::select! {
                answer = core.inner.write_verifier() => answer,
                _ = shutdown.changed() => return,
            };
            let value = match answer {
                Ok(Some(write_verifier)) => Value::Known(write_verifier),
                Ok(None) => Value::Unavailable,
                Err(_) => Value::NotRequested,
            };
            core.write_verifier.store(value, losses);
        });
        None
    }

    fn store(&self, value: Value, losses: u64) {
        let mut state = self.lock();
        if state.losses == losses {
            state.value = value;
        }
    }
}
