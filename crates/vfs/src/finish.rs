//! What the server answers when a file that was written is closed there.
//!
//! Where the server's file system writes back late (NFS, quotas), a failed write shows only in the
//! answer to CLOSE. The first close of a descriptor through which something was written sends it right
//! behind the writes ([`Remote::flush`]), and returns the answer. Most files are closed once. Where
//! there is another user (a descriptor that was duplicated or inherited), the file is opened again for
//! that one, and then stays open: what is written later is finished when the last user is gone.
//! No application waits for that, so an error is for the log, for the next fsync of others who have
//! the file open, and for the exit code of the mount. The same holds for the answer to a close that
//! nobody waits for any more.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll};

use base::{Errno, Fh, Lent, Remote, Result};
use tokio::sync::Notify;

use crate::inode::Inode;
use crate::shared::Shared;

/// The handles that are being finished.
#[derive(Default)]
pub(crate) struct Closing {
    under_way: AtomicUsize,
    less: Notify,
}

impl Closing {
    fn begin(self: &Arc<Closing>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.clone())
    }

    /// Returns when none is left.
    pub(crate) async fn none(&self) {
        loop {
            let less = self.less.notified();
            tokio::pin!(less);
            // Registered before the look, so that nothing in between is missed.
            less.as_mut().enable();
            if self.under_way.load(Ordering::SeqCst) == 0 {
                return;
            }
            less.await;
        }
    }
}

/// One of them; over when dropped.
struct UnderWay(Arc<Closing>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.less.notify_waiters();
    }
}

/// A file was written through a handle; what it takes to finish that.
pub(crate) struct Written {
    shared: Weak<Shared>,
    inode: Weak<Inode>,
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

impl Written {
    pub(crate) fn new(shared: Weak<Shared>, inode: &Arc<Inode>) -> Written {
        Written { shared, inode: Arc::downgrade(inode) }
    }

    /// Finishes the handle in the background.
    pub(crate) fn finish(self, remote: &Arc<dyn Remote>, fh: Fh) {
        let lent = Lent::new(remote.clone(), fh);
        self.in_background(async move { lent.finish().await });
    }

    /// Waits for the server's answer where no application does.
    fn in_background(self, asked: impl Future<Output = Result<()>> + Send + 'static) {
        // Without these the mount is over, and the handle is closed when this is dropped.
        let (Some(shared), Ok(_)) = (self.shared.upgrade(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let under_way = shared.closing.begin();
        shared.background.start(async move {
            if let Err(error) = asked.await {
                self.failed(error);
            }
            drop(under_way);
        });
    }

    /// Has the server close the file, as `asked`, and returns its answer.
    pub(crate) fn close_there(
        self,
        asked: impl Future<Output = Result<()>> + Send + 'static,
    ) -> ClosingThere {
        ClosingThere { asked: Some(Box::pin(asked)), is_sent: false, written: Some(self) }
    }

    /// Logs the answer of the server. The error that it reports, if it does report one.
    fn answered(&self, answer: Result<()>) -> Option<Errno> {
        // Where it does not close the file earlier, it is finished later.
        let error = answer.err().filter(|error| *error != Errno::EOPNOTSUPP)?;
        let shared = self.shared.upgrade()?;
        let inode = self.inode.upgrade();
        let path = inode.as_ref().and_then(|inode| shared.path(inode.ino).ok());
        let path = path.map_or_else(|| "a removed file".to_owned(), |path| path.to_string());
        if matches!(error, Errno::EHOSTDOWN | Errno::ETIMEDOUT | Errno::ESTALE) {
            // Every write was acknowledged; only this answer is missing.
            tracing::warn!("{path}: the server's answer to its close is not known: {error}");
            return None;
        }
        tracing::error!("{path}: the server reports at its close that writes have failed: {error}");
        if let Some(inode) = inode {
            inode.state().write_failed(error);
        }
        Some(error)
    }

    /// The same where no application can be told.
    fn failed(&self, error: Errno) {
        if let (Some(error), Some(shared)) = (self.answered(Err(error)), self.shared.upgrade()) {
            *shared.lost_write.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }
}

type Asked = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A close on its way to the server, which is seen through when this is dropped.
pub(crate) struct ClosingThere {
    asked: Option<Asked>,
    is_sent: bool,
    written: Option<Written>,
}

impl Future for ClosingThere {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.is_sent = true;
        let Some(asked) = &mut self.asked else { return Poll::Ready(Ok(())) };
        let Poll::Ready(answer) = asked.as_mut().poll(context) else { return Poll::Pending };
        self.asked = None;
        let error = self.written.take().and_then(|written| written.answered(answer));
        Poll::Ready(error.map_or(Ok(()), Err))
    }
}

impl Drop for ClosingThere {
    fn drop(&mut self) {
        let (Some(asked), true) = (self.asked.take(), self.is_sent) else { return };
        let Some(written) = self.written.take() else { return };
        written.in_background(asked);
    }
}
