//! Tasks and threads: their ends, and many of them at once.

use tokio::task::{JoinError, JoinHandle, JoinSet};

/// A task that is aborted when this is dropped.
pub(crate) struct AbortOnDrop<T>(pub(crate) JoinHandle<T>);

impl<T> AbortOnDrop<T> {
    /// Waits for the task, and returns its result. A panic of the task becomes one of the caller.
    pub(crate) async fn join(mut self) -> T {
        ended((&mut self.0).await).await
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs `call` on a thread that may block. A panic becomes one of the caller.
pub(crate) async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    ended(tokio::task::spawn_blocking(call).await).await
}

/// The result of a task that is not aborted. A panic of the task becomes one of the caller.
pub(crate) async fn ended<T>(end: Result<T, JoinError>) -> T {
    match returned(end) {
        Some(result) => result,
        // The runtime is shutting down, and the caller with it.
        None => std::future::pending().await,
    }
}

/// The result of a task; `None` if it was aborted. A panic of the task becomes one of the caller.
pub(crate) fn returned<T>(end: Result<T, JoinError>) -> Option<T> {
    match end {
        Ok(result) => Some(result),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}

/// Runs all of `works` as tasks, at most `limit` at a time, and returns their results in the order
/// in which they end. Dropping the future aborts the tasks.
pub(crate) async fn at_most<T: Send + 'static>(
    limit: usize,
    works: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let (mut tasks, mut results) = (JoinSet::new(), Vec::new());
    for work in works {
        if tasks.len() >= limit
            && let Some(end) = tasks.join_next().await
        {
            results.extend(returned(end));
        }
        tasks.spawn(work);
    }
    while let Some(end) = tasks.join_next().await {
        results.extend(returned(end));
    }
    results
}
