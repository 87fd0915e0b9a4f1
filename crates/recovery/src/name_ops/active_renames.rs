//! Renames in flight. The reply to an open of such a name does not show whether the file from
//! before or after the rename was opened.

use base::{Mutex, RemotePath, until};
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct ActiveRenames {
    state: Mutex<State>,
    /// Notified when a rename has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    active: Vec<(u64, [RemotePath; 2])>,
}

/// A rename in flight; ended by drop.
#[must_use]
pub(crate) struct RenameGuard<'a> {
    renames: &'a ActiveRenames,
    number: u64,
}

impl ActiveRenames {
    pub(crate) fn begin(&self, from: &RemotePath, to: &RemotePath) -> RenameGuard<'_> {
        let mut state = self.state.lock();
        state.next += 1;
        let number = state.next;
        state.active.push((number, [from.clone(), to.clone()]));
        RenameGuard { renames: self, number }
    }

    /// Whether `path` is being renamed or replaced, itself or with a directory above it.
    pub(crate) fn affects(&self, path: &RemotePath) -> bool {
        let state = self.state.lock();
        state.active.iter().flat_map(|(_, names)| names).any(|name| path.is_within(name))
    }

    /// Returns when no rename [affects](ActiveRenames::affects) `path`.
    pub(crate) async fn wait_until_ended(&self, path: &RemotePath) {
        until(&self.ended, || (!self.affects(path)).then_some(())).await;
    }
}

impl Drop for RenameGuard<'_> {
    fn drop(&mut self) {
        self.renames.state.lock().active.retain(|(number, _)| *number != self.number);
        self.renames.ended.notify_waiters();
    }
}
