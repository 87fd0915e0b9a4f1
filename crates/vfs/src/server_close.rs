//! The server's answer to the close of a written file.
//!
//! If the server's file system writes back late (NFS, quotas), a failed write shows only in the
//! answer to CLOSE. The first close of a descriptor with writes sends CLOSE right behind the writes
//! ([`Remote::flush`]), and returns the answer. Most files are closed once. If there is another
//! user (a duplicated or inherited descriptor), the file is opened again for it, and then stays
//! open: later writes are finished when the last user is gone. No application waits for that, so an
//! error goes to the log, to the next fsync of other open files of the inode, and into the exit
//! code of the mount. An answer for which a close has stopped waiting is waited for by the next
//! close of the open file; an error that none of them could report has no caller, either.

use std::fmt;
use std::sync::{Arc, Weak};

use base::task::Task;
use base::{Errno, Fh, OwnedFh, Remote, Result, Table, until};
use tokio::sync::{Notify, watch};

use crate::inode::Inode;
use crate::open::OpenFile;
use crate::shared::Shared;

/// The closes in flight, with the remotes that have the files.
#[derive(Default)]
pub(crate) struct PendingCloses {
    pending: Table<Arc<dyn Remote>>,
    less: Notify,
}

impl PendingCloses {
    fn begin(self: &Arc<PendingCloses>, remote: Arc<dyn Remote>) -> PendingClose {
        PendingClose { number: self.pending.add(remote), all: self.clone() }
    }

    /// Returns when all are answered whose remote is reachable, also those that begin meanwhile.
    pub(crate) async fn drained(&self) {
        loop {
            let mut pending = self.pending.entries().into_iter();
            let Some((number, remote)) = pending.find(|(_, remote)| !remote.is_disconnected())
            else {
                return;
            };
            let ended = || self.pending.get(number).is_err().then_some(());
            tokio::select! {
                () = until(&self.less, ended) => {}
                () = remote.disconnected() => {}
            }
        }
    }
}

/// One close in flight; ends when dropped.
struct PendingClose {
    number: u64,
    all: Arc<PendingCloses>,
}

impl Drop for PendingClose {
    fn drop(&mut self) {
        self.all.pending.remove(self.number);
        self.all.less.notify_waiters();
    }
}

/// The server's answer to a close of an open file.
#[derive(Clone)]
pub(crate) struct PendingAnswer(watch::Receiver<bool>);

impl PendingAnswer {
    /// Returns when the server has answered.
    pub(crate) async fn arrived(mut self) {
        // The sender is dropped without an answer only with its runtime.
        let _ = self.0.wait_for(|answered| *answered).await;
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
        self.start(fh, async move { lent.finish().await }, None);
    }

    /// Has the server close the file with `close_call`, which completes even if no caller waits for
    /// it. An error is kept in `file` for a call that can report it.
    pub(crate) fn close_at_server(
        self,
        fh: Fh,
        close_call: impl Future<Output = Result<()>> + Send + 'static,
        file: &Arc<OpenFile>,
    ) -> PendingAnswer {
        let (answered, answer) = watch::channel(false);
        let file = Arc::downgrade(file);
        self.start(fh, close_call, Some((file, answered)));
        PendingAnswer(answer)
    }

    /// Sends the request now. An error goes to the open file, if there is one that can report it.
    fn start(
        self,
        fh: Fh,
        close_call: impl Future<Output = Result<()>> + Send + 'static,
        caller: Option<(Weak<OpenFile>, watch::Sender<bool>)>,
    ) {
        // Without these the mount has ended, and the handle is closed when this is dropped.
        let (Some(shared), Ok(_)) = (self.shared.upgrade(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let pending = shared.closing.begin(shared.serving(Some(fh)));
        let lost_write = shared.lost_write.clone();
        // Not background work, which ends before the remaining data is written.
        Task::start(async move {
            let answer = close_call.await.or_else(|error| self.checked(error));
            if let Err(error) = answer {
                let file = caller.as_ref().and_then(|(file, _)| file.upgrade());
                self.failed(error, file.as_deref());
                if file.is_none() {
                    *lost_write.lock() = Some(error);
                }
            }
            if let Some((_, answered)) = caller {
                answered.send_replace(true);
            }
            drop(pending);
        });
    }

    /// Logs an error of the server. `Ok` if it does not mean that writes have failed.
    fn checked(&self, error: Errno) -> Result<()> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        if error == Errno::EOPNOTSUPP {
            // If the file cannot be closed early, the server reports at the final close.
            return Ok(());
        }
        let path = self.inode.upgrade().and_then(|inode| shared.path(inode.ino).ok());
        let path = path.map_or_else(|| "a removed file".to_owned(), |path| path.to_string());
        if error.is_loss() || error == Errno::ESTALE {
            // Every write was acknowledged; only this answer is missing.
            tracing::warn!("{path}: the server's answer to its close is not known: {error}");
            return Ok(());
        }
        tracing::error!("{path}: the server reports at its close that writes have failed: {error}");
        Err(error)
    }

    /// Writes have failed: all open files of the inode report it, `file` at its next close.
    fn failed(&self, error: Errno, file: Option<&OpenFile>) {
        let (Some(shared), Some(inode)) = (self.shared.upgrade(), self.inode.upgrade()) else {
            return;
        };
        match file {
            Some(file) => file.fail(error),
            None => inode.state().write_failed(error),
        }
        shared.drop_pages(&inode);
    }
}
