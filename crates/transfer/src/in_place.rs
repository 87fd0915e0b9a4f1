//! Work that goes on where its answers arrive ([`base::task`]).
//!
//! What many steps ask of one connection is then asked together: the thread that has read their
//! answers polls them one behind the other, and what they ask next goes out in one write. As tasks
//! of the runtime each would be woken by itself, and each request be a write of its own, a packet of
//! ssh's and a system call at each of the four processes on the way.
//!
//! Work must not block: it holds up whatever the connection has for others.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use base::task::Task;
use tokio::sync::oneshot;

/// The end of work that goes on in place. Dropped, it ends the work.
pub(crate) struct InPlace<T> {
    task: Option<Arc<Task>>,
    over: oneshot::Receiver<Result<T, Box<dyn Any + Send>>>,
}

/// Begins the work, here and now. A panic of it is its waiter's, and not that of the connection. To
/// be called within a tokio runtime.
pub(crate) fn in_place<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> InPlace<T> {
    let (told, over) = oneshot::channel();
    let task = Task::start(async move {
        let mut work = pin!(work);
        let end = poll_fn(|context| {
            match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
                Ok(polled) => polled.map(Ok),
                Err(panic) => Poll::Ready(Err(panic)),
            }
        });
        let _ = told.send(end.await);
    });
    InPlace { task, over }
}

impl<T> Future for InPlace<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match Pin::new(&mut self.over).poll(context) {
            Poll::Ready(Ok(Ok(end))) => Poll::Ready(end),
            Poll::Ready(Ok(Err(panic))) => resume_unwind(panic),
            // Only when the runtime ends, and whoever waits with it.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl<T> Drop for InPlace<T> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Notify;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn it_is_over_when_its_work_is() {
        assert_eq!(in_place(async { 1 }).await, 1);
        let go = Arc::new(Notify::new());
        let waiting = go.clone();
        let work = in_place(async move {
            waiting.notified().await;
            2
        });
        // What was begun waits for a word already.
        go.notify_waiters();
        assert_eq!(work.await, 2);
    }

    #[tokio::test]
    async fn its_panic_is_its_waiters() {
        let mut waiting = JoinSet::new();
        waiting.spawn(in_place(async {
            tokio::task::yield_now().await;
            panic!("so");
        }));
        let over: Result<(), _> = waiting.join_next().await.unwrap();
        let panic = over.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"so"));
    }

    #[tokio::test]
    async fn nobody_waits_any_more_and_it_ends() {
        let (held, gone) = oneshot::channel::<()>();
        let work = in_place(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        drop(work);
        assert!(gone.await.is_err());
    }

    #[tokio::test]
    async fn what_is_woken_in_a_batch_goes_on_on_that_thread() {
        let go = Arc::new(Notify::new());
        let waiting = go.clone();
        let work = in_place(async move {
            waiting.notified().await;
            std::thread::current().id()
        });
        let other = std::thread::spawn(move || {
            base::task::batch(|| go.notify_waiters());
            std::thread::current().id()
        });
        let other = other.join().unwrap();
        assert_eq!(work.await, other);
    }
}
