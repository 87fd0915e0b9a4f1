//! Which run of the server's machine the connection is of (see `Remote::server_run`).
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
pub(crate) enum Known {
    /// Nobody has asked since the last loss.
    #[default]
    Unasked,
    /// Somebody asks.
    Asked,
    /// Nothing tells runs apart.
    Untold,
    /// This one.
    Is(Bytes),
}

#[derive(Debug, Default)]
struct State {
    known: Known,
    /// Losses so far: an answer to a question from before is not kept.
    losses: u64,
}

/// The run of the server, as it was when it was last asked for.
#[derive(Debug, Default)]
pub(crate) struct Run(Mutex<State>);

impl Run {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was lost, so the next one may be to another run.
    pub(crate) fn lost(&self) {
        let mut state = self.lock();
        state.losses += 1;
        state.known = Known::Unasked;
    }

    /// Whether it is worth something to know what was written.
    pub(crate) fn may_be_told(&self) -> bool {
        self.lock().known != Known::Untold
    }

    /// The run, if it is known; asks for it if nobody has.
    pub(crate) fn now(&self, core: &Arc<Core>) -> Option<Bytes> {
        let losses = {
            let mut state = self.lock();
            match &state.known {
                Known::Is(run) => return Some(run.clone()),
                Known::Asked | Known::Untold => return None,
                Known::Unasked => state.known = Known::Asked,
            }
            state.losses
        };
        let core = core.clone();
        tokio::spawn(async move {
            let mut wanted = core.wanted.clone();
            let answer = tokio::select! {
                answer = core.inner.server_run() => answer,
                _ = wanted.changed() => return,
            };
            let known = match answer {
                Ok(Some(run)) => Known::Is(run),
                Ok(None) => Known::Untold,
                Err(_) => Known::Unasked,
            };
            core.run.keep(known, losses);
        });
        None
    }

    fn keep(&self, known: Known, losses: u64) {
        let mut state = self.lock();
        if state.losses == losses {
            state.known = known;
        }
    }
}
