//! Waiting for a condition whose changes are notified.

use std::pin::pin;

use tokio::sync::Notify;

/// The first result of `check`, which is repeated after each notification of all waiters.
pub async fn until<T>(notify: &Notify, mut check: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(result) = check() {
            return result;
        }
        let mut notified = pin!(notify.notified());
        // Registered before the second check, so that no notification is missed.
        notified.as_mut().enable();
        if let Some(result) = check() {
            return result;
        }
        notified.await;
    }
}
