//! Where system calls are made that may wait.
//!
//! They run on tokio's threads for that, a bounded number at a time, so that a file system which
//! has stopped answering leaves those threads to others. A caller who gives up is free at once;
//! his call goes on, and what it brings is dropped.

use std::sync::Arc;

use base::{Errno, Result};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::unconstrained;

/// System calls at a time: more than disks answer at once, and an eighth of tokio's threads.
const MAX_CALLS: usize = 64;

/// The calls of one local directory.
#[derive(Clone, Debug)]
pub(crate) struct Threads(Arc<Semaphore>);

impl Threads {
    pub(crate) fn new() -> Threads {
        Threads(Arc::new(Semaphore::new(MAX_CALLS)))
    }

    /// Makes `call` where it may wait.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // Not slowed down by the budget of the task around: the place in the queue is taken in
        // the first poll.
        let permit = unconstrained(self.0.clone().acquire_owned()).await;
        let made = tokio::task::spawn_blocking(move || {
            let result = call();
            drop(permit);
            result
        });
        match made.await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is being shut down.
                Err(_) => Err(Errno::ECANCELED),
            },
        }
    }

    /// Makes `call`, which nobody waits for.
    pub(crate) fn unattended(&self, call: impl FnOnce() + Send + 'static) {
        match Handle::try_current() {
            Ok(runtime) => {
                let permits = self.0.clone();
                match permits.clone().try_acquire_owned() {
                    Ok(permit) => drop(runtime.spawn_blocking(move || {
                        call();
                        drop(permit);
                    })),
                    Err(_) => drop(runtime.spawn(async move {
                        let permit = permits.acquire_owned().await;
                        let made = tokio::task::spawn_blocking(move || {
                            call();
                            drop(permit);
                        });
                        drop(made);
                    })),
                }
            }
            // Without a runtime nobody else has to be served meanwhile.
            Err(_) => call(),
        }
    }
}
