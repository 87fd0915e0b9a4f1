//! Renames in flight. The reply to an open of such a name does not show whether the file from
//! before or after the rename was opened.

use base::{Mutex, OnDrop, RemotePath, until};
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

impl ActiveRenames {
    /// A rename is in flight until the result is dropped.
    pub(crate) fn begin<'a>(
        &'a self,
        from: &RemotePath,
        to: &RemotePath,
    ) -> OnDrop<impl FnMut() + use<'a>> {
        let mut state = self.state.lock();
        state.next += 1;
        let number = state.next;
        state.active.push((number, [from.clone(), to.clone()]));
        OnDrop(move || {
            self.state.lock().active.retain(|(active, _)| *active != number);
            self.ended.notify_waiters();
        })
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
