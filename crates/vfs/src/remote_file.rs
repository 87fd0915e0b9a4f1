//! The remote handle behind an open file, which may be opened later than the file.
//!
//! Many files are opened and closed without a request to the remote in between: their data is in
//! the kernel's pages or was prefetched. So the handle of an open file either exists from the
//! beginning, or is opened by the first call that needs it.
//!
//! Invariants:
//! 1. At most one handle is opened for a [`RemoteFile`], even if several calls need it at the same
//!    time. All of them get the error of an attempt that failed; a later call tries again.
//! 2. An open that has begun completes, even if its caller was cancelled.
//! 3. An open handle is closed when the last reference to the [`RemoteFile`] is dropped, even if it
//!    was opened too late for its callers; if there were writes through it, it is closed as a
//!    [written](crate::server_close) handle, unless a flush has done so.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use base::task::Task;
use base::{Errno, Fh, Mutex, Remote, Result};
use tokio::sync::watch;

use crate::server_close::WrittenHandle;

/// An open in flight.
pub(crate) type Opening = Pin<Box<dyn Future<Output = Result<Fh>> + Send>>;

/// Begins to open the file. The [`RemoteFile`] closes the handle.
pub(crate) type Opener = Box<dyn Fn() -> Opening + Send + Sync>;

/// See the [module](self).
pub(crate) struct RemoteFile {
    remote: Arc<dyn Remote>,
    opened: OnceLock<Fh>,
    /// `None` if it was open from the beginning.
    deferred: Option<Mutex<Deferred>>,
    /// Set if there were writes through this handle.
    written: OnceLock<WrittenHandle>,
    /// A flush has requested the server's answer to all writes.
    is_flushed: AtomicBool,
}

struct Deferred {
    opener: Opener,
    /// The attempt in flight, and its result.
    attempt: Option<watch::Receiver<Option<Result<Fh>>>>,
}

impl RemoteFile {
    /// A handle that is open already.
    pub(crate) fn open(remote: Arc<dyn Remote>, fh: Fh) -> Arc<RemoteFile> {
        Arc::new(RemoteFile {
            remote,
            opened: OnceLock::from(fh),
            deferred: None,
            written: OnceLock::new(),
            is_flushed: AtomicBool::new(false),
        })
    }

    /// A handle that `opener` opens when it is needed.
    pub(crate) fn deferred(remote: Arc<dyn Remote>, opener: Opener) -> Arc<RemoteFile> {
        let deferred = Some(Mutex::new(Deferred { opener, attempt: None }));
        let (opened, written) = (OnceLock::new(), OnceLock::new());
        Arc::new(RemoteFile {
            remote,
            opened,
            deferred,
            written,
            is_flushed: AtomicBool::new(false),
        })
    }

    /// A write goes through this handle: the answer to its close matters.
    pub(crate) fn note_write(&self, written: impl FnOnce() -> WrittenHandle) {
        self.written.get_or_init(written);
        self.is_flushed.store(false, Ordering::Release);
    }

    /// A flush is about to request the answer to the close, or (`false`) has learned that the
    /// server cannot give it.
    pub(crate) fn set_flushed(&self, is_flushed: bool) {
        self.is_flushed.store(is_flushed, Ordering::Release);
    }

    /// Whether a flush has requested the server's answer, and there were no writes since.
    pub(crate) fn is_flushed(&self) -> bool {
        self.is_flushed.load(Ordering::Acquire)
    }

    /// The handle, if it is open.
    pub(crate) fn opened(&self) -> Option<Fh> {
        self.opened.get().copied()
    }

    /// The handle; opened now if necessary. The open begins in the call itself, so that it is sent
    /// before the caller's next request.
    pub(crate) fn fh(self: &Arc<Self>) -> impl Future<Output = Result<Fh>> + Send + use<> {
        let ready = self.opened().map(Ok);
        let attempt = if ready.is_none() { self.attempt() } else { None };
        let file = self.clone();
        async move {
            let Some(mut attempt) = attempt else {
                return ready.or_else(|| file.opened().map(Ok)).unwrap_or(Err(Errno::EBADF));
            };
            match attempt.wait_for(Option::is_some).await {
                Ok(result) => result.unwrap_or(Err(Errno::EIO)),
                // The attempt was dropped with its runtime.
                Err(_) => Err(Errno::EIO),
            }
        }
    }

    /// The attempt in flight, or a new one. `None` if the handle is open.
    fn attempt(self: &Arc<Self>) -> Option<watch::Receiver<Option<Result<Fh>>>> {
        let deferred = self.deferred.as_ref()?;
        let (opening, done, attempt) = {
            let mut deferred = deferred.lock();
            if let Some(attempt) = &deferred.attempt {
                return Some(attempt.clone());
            }
            if self.opened().is_some() {
                return None;
            }
            let (done, attempt) = watch::channel(None);
            deferred.attempt = Some(attempt.clone());
            ((deferred.opener)(), done, attempt)
        };
        let file = self.clone();
        Task::start(async move {
            let result = opening.await;
            if let Ok(fh) = result {
                // Only one attempt at a time, so it is not set yet.
                let _ = file.opened.set(fh);
            }
            if let Some(deferred) = &file.deferred {
                deferred.lock().attempt = None;
            }
            done.send_replace(Some(result));
        });
        Some(attempt)
    }
}

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteFile").field(&self.opened()).finish()
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        let Some(fh) = self.opened() else { return };
        match self.written.take().filter(|_| !self.is_flushed()) {
            Some(written) => written.finish(&self.remote, fh),
            None => self.remote.close(fh),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Access, OpenFlags};
    use testkit::{Call, FaultyRemote, MemRemote, path};

    fn deferred(remote: &Arc<FaultyRemote<MemRemote>>) -> Arc<RemoteFile> {
        let opening = remote.clone();
        let opener = move || -> Opening {
            let remote = opening.clone();
            Box::pin(async move {
                let flags = OpenFlags::existing(Access::Read);
                remote.open(&path("f"), flags).await.map(|opened| opened.fh)
            })
        };
        RemoteFile::deferred(remote.clone(), Box::new(opener))
    }

    fn remote() -> Arc<FaultyRemote<MemRemote>> {
        let remote = MemRemote::new();
        remote.put_file("f", "x");
        Arc::new(FaultyRemote::new(Arc::new(remote)))
    }

    async fn pending<T>(future: &mut (impl Future<Output = T> + Unpin)) -> bool {
        std::future::poll_fn(|context| {
            let polled = Pin::new(&mut *future).poll(context);
            std::task::Poll::Ready(polled.is_pending())
        })
        .await
    }

    #[tokio::test]
    async fn an_unused_handle_is_never_opened() {
        let remote = remote();
        drop(deferred(&remote));
        assert_eq!((remote.calls(Call::Open), remote.calls(Call::Close)), (0, 0));
    }

    #[tokio::test]
    async fn all_callers_share_one_open() {
        let remote = remote();
        let file = deferred(&remote);
        let gate = remote.hold(Call::Open, 1);
        let mut first = Box::pin(file.fh());
        let mut second = Box::pin(file.fh());
        assert!(pending(&mut first).await && pending(&mut second).await);
        gate.release();
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert_eq!(first, second);
        assert_eq!(file.fh().await, Ok(first));
        drop(file);
        assert_eq!((remote.calls(Call::Open), remote.inner().open_handles()), (1, 0));
    }

    #[tokio::test]
    async fn an_open_completes_after_its_caller_was_cancelled() {
        let remote = remote();
        let file = deferred(&remote);
        let gate = remote.hold(Call::Open, 1);
        let mut first = Box::pin(file.fh());
        assert!(pending(&mut first).await);
        drop(first);
        let second = file.fh();
        gate.release();
        assert!(second.await.is_ok());
        assert_eq!(remote.calls(Call::Open), 1);
    }

    #[tokio::test]
    async fn a_handle_that_comes_too_late_is_closed() {
        let remote = remote();
        let file = deferred(&remote);
        let gate = remote.hold_answer(Call::Open, 1);
        drop(file.fh());
        drop(file);
        gate.release();
        gate.over().await;
        while remote.calls(Call::Close) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(remote.inner().open_handles(), 0);
    }

    #[tokio::test]
    async fn an_open_that_failed_is_tried_again_by_the_next() {
        let remote = remote();
        let file = deferred(&remote);
        remote.fail(Call::Open, 1, Errno::EHOSTDOWN);
        assert_eq!(file.fh().await, Err(Errno::EHOSTDOWN));
        assert!(file.fh().await.is_ok());
    }
}
