//! The server's answer to the close of a written file.
//!
//! If the server's file system writes back late (NFS, quotas), a failed write shows only in the
//! answer to CLOSE. The first close of a descriptor with writes sends CLOSE right behind the writes
//! ([`Remote::flush`]), and returns the answer. Most files are closed once. If there is another
//! user (a duplicated or inherited descriptor), the file is opened again for it, and then stays
//! open: later writes are finished when the last user is gone. No application waits for that, so an
//! error goes to the log, to the next fsync of other open files of the inode, and into the exit
//! code of the mount. The same holds for the answer to a close that has stopped waiting.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use base::task::Task;
use base::{Errno, Fh, OwnedFh, Remote, Result};
use tokio::sync::{Notify, oneshot};

use crate::inode::Inode;
use crate::shared::Shared;

/// The closes in flight.
#[derive(Default)]
pub(crate) struct PendingCloses {
    pending: AtomicUsize,
    less: Notify,
}

impl PendingCloses {
    fn begin(self: &Arc<PendingCloses>) -> PendingClose {
        self.pending.fetch_add(1, Ordering::SeqCst);
        PendingClose(self.clone())
    }

    /// Returns when none is in flight.
    pub(crate) async fn drained(&self) {
        loop {
            let less = self.less.notified();
            tokio::pin!(less);
            // Registered before the check, so that no notification is missed.
            less.as_mut().enable();
            if self.pending.load(Ordering::SeqCst) == 0 {
                return;
            }
            less.await;
        }
    }
}

/// One close in flight; ends when dropped.
struct PendingClose(Arc<PendingCloses>);

impl Drop for PendingClose {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::SeqCst);
        self.0.less.notify_waiters();
    }
}

/// A handle with writes, and what is needed to close it.
pub(crate) struct WrittenHandle {
    shared: Weak<Shared>,
    inode: Weak<Inode>,
}

impl fmt::Debug for WrittenHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

impl WrittenHandle {
    pub(crate) fn new(shared: Weak<Shared>, inode: &Arc<Inode>) -> WrittenHandle {
        WrittenHandle { shared, inode: Arc::downgrade(inode) }
    }

    /// Closes the handle in the background.
    pub(crate) fn finish(self, remote: &Arc<dyn Remote>, fh: Fh) {
        let lent = OwnedFh::new(remote.clone(), fh);
        self.start(async move { lent.finish().await }, None);
    }

    /// Has the server close the file with `close_call`, and returns its answer. The call completes
    /// even if the caller stops waiting.
    pub(crate) async fn close_at_server(
        self,
        close_call: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        self.start(close_call, Some(answer));
        // The sender is dropped without an answer only with its runtime.
        answered.await.unwrap_or(Ok(()))
    }

    /// Sends the request now. Its answer goes to `caller`, if any.
    fn start(
        self,
        close_call: impl Future<Output = Result<()>> + Send + 'static,
        caller: Option<oneshot::Sender<Result<()>>>,
    ) {
        // Without these the mount has ended, and the handle is closed when this is dropped.
        let (Some(shared), Ok(_)) = (self.shared.upgrade(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let pending = shared.closing.begin();
        let lost_write = shared.lost_write.clone();
        // Not background work, which ends before the remaining data is written.
        Task::start(async move {
            let answer = close_call.await.or_else(|error| self.failed(error));
            let unreported = match caller {
                Some(caller) => caller.send(answer).err().unwrap_or(Ok(())),
                None => answer,
            };
            if let Err(error) = unreported {
                *lost_write.lock() = Some(error);
            }
            drop(pending);
        });
    }

    /// Logs an error of the server. `Ok` if it does not mean that writes have failed.
    fn failed(&self, error: Errno) -> Result<()> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        if error == Errno::EOPNOTSUPP {
            // If the file cannot be closed early, the server reports at the final close.
            return Ok(());
        }
        let inode = self.inode.upgrade();
        let path = inode.as_ref().and_then(|inode| shared.path(inode.ino).ok());
        let path = path.map_or_else(|| "a removed file".to_owned(), |path| path.to_string());
        if matches!(error, Errno::EHOSTDOWN | Errno::ETIMEDOUT | Errno::ESTALE) {
            // Every write was acknowledged; only this answer is missing.
            tracing::warn!("{path}: the server's answer to its close is not known: {error}");
            return Ok(());
        }
        tracing::error!("{path}: the server reports at its close that writes have failed: {error}");
        if let Some(inode) = inode {
            inode.state().write_failed(error);
            shared.drop_pages(&inode);
        }
        Err(error)
    }
}
