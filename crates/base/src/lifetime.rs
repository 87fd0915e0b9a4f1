//! Work that ends with its owner.

use std::future::Future;

use tokio::sync::watch;

/// Kept by an owner of work: its [`Lifetime`]s are over when this is dropped.
#[derive(Debug, Default)]
pub struct Owner(watch::Sender<()>);

impl Owner {
    /// How long the owner exists.
    pub fn lifetime(&self) -> Lifetime {
        Lifetime(self.0.subscribe())
    }
}

/// How long an [`Owner`] exists.
#[derive(Clone, Debug)]
pub struct Lifetime(watch::Receiver<()>);

impl Lifetime {
    /// The result of `work`; `None` if the owner was dropped before.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut owner = self.0.clone();
        tokio::select! {
            biased;
            result = work => Some(result),
            // No value is ever sent: this is the end of the channel.
            _ = owner.changed() => None,
        }
    }
}
