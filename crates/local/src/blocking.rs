//! The threads for system calls that may block.
//!
//! They are tokio's blocking threads, at most [`MAX_CALLS`] at a time, so that a file system which
//! has stopped answering leaves threads to others. Dropping the future frees the caller at once;
//! the system call goes on, and its result is dropped.

use std::sync::Arc;

use base::{Errno, Result};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::unconstrained;

/// System calls in flight: more than disks serve in parallel, and an eighth of tokio's threads.
const MAX_CALLS: usize = 64;

/// Runs the system calls of one local directory.
#[derive(Clone, Debug)]
pub(crate) struct BlockingPool(Arc<Semaphore>);

impl BlockingPool {
    pub(crate) fn new() -> BlockingPool {
        BlockingPool(Arc::new(Semaphore::new(MAX_CALLS)))
    }

    /// Runs `call` on a blocking thread.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // Outside the task's budget: the place in the queue has to be taken in the first poll.
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
                // The runtime is shutting down.
                Err(_) => Err(Errno::ECANCELED),
            },
        }
    }

    /// Runs `call` on a blocking thread without waiting for it.
    pub(crate) fn run_detached(&self, call: impl FnOnce() + Send + 'static) {
        match Handle::try_current() {
            Ok(runtime) => {
                let pool = self.clone();
                drop(runtime.spawn(async move {
                    let _ = pool
                        .run(|| {
                            call();
                            Ok(())
                        })
                        .await;
                }));
            }
            // Without a runtime there are no other tasks that could be held up.
            Err(_) => call(),
        }
    }
}
