//! The renames under way: what is opened by such a name may be what had it before, or what has it
//! now, and the answer does not tell which.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::RemotePath;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct ActiveRenames {
    state: Mutex<State>,
    /// One is over.
    ended: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    active: Vec<(u64, [RemotePath; 2])>,
}

/// One that is under way; over when dropped.
pub(crate) struct RenameGuard<'a> {
    renames: &'a ActiveRenames,
    number: u64,
}

impl ActiveRenames {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, from: &RemotePath, to: &RemotePath) -> RenameGuard<'_> {
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        state.active.push((number, [from.clone(), to.clone()]));
        RenameGuard { renames: self, number }
    }

    /// Whether what `path` leads to is being renamed or replaced.
    pub(crate) fn affects(&self, path: &RemotePath) -> bool {
        let state = self.lock();
        state.active.iter().flat_map(|(_, names)| names).any(|name| path.is_within(name))
    }

    /// Returns when [none concerns](ActiveRenames::affects) `path`.
    pub(crate) async fn wait_until_ended(&self, path: &RemotePath) {
        loop {
            let mut ended = pin!(self.ended.notified());
            // Registered before the look, so that nothing in between is missed.
            ended.as_mut().enable();
            if !self.affects(path) {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for RenameGuard<'_> {
    fn drop(&mut self) {
        self.renames.lock().active.retain(|(number, _)| *number != self.number);
        self.renames.ended.notify_waiters();
    }
}
