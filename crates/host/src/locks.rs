//! Locks, at servers with `lock@sshoal`.
//!
//! The locks of a session end with it, and all are set through the first handle of a file, which is
//! on the metadata session. That session is never closed while the host is in use, and when it is
//! lost, the handle is lost with it.
//!
//! The server waits for a lock for a moment only; then the request is repeated. So a silent server
//! is noticed as usual.

use std::sync::Arc;
use std::time::Duration;

use base::{Errno, Fh, LockKind, LockOwner, LockRange, Result};
use sftp::Extension;
use tokio::time::Instant;

use crate::errno;
use crate::handles::OpenFile;
use crate::host::Host;
use crate::range_lock::WHOLE_FILE;

/// Longest wait of one request. Shorter than the time after which a server counts as silent for a
/// caller that has got a signal.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// Part of the stall limit that a request may wait.
const WAITS_PER_STALL_LIMIT: u32 = 4;

/// Requests of a host that wait at the server at the same time; further callers wait here. The
/// helper permits twice as many.
pub(crate) const MAX_WAITING: usize = 32;

impl Host {
    async fn file_with_locks(&self, fh: Fh) -> Result<Arc<OpenFile>> {
        let file = self.live_file(fh).await?;
        match file.open.session.offers(Extension::Lock) {
            true => Ok(file),
            false => Err(Errno::EOPNOTSUPP),
        }
    }

    pub(crate) fn offers_locks(&self) -> bool {
        self.pool.live(0).is_some_and(|session| session.offers(Extension::Lock))
    }

    pub(crate) async fn set_lock(
        &self,
        fh: Fh,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
        wait: bool,
    ) -> Result<()> {
        // First without waiting: this keeps the order of the first polls.
        match self.request_lock(fh, owner, range, Some(kind), Duration::ZERO).await {
            Err(Errno::EAGAIN) if wait => {}
            set => return set,
        }
        let longest = (self.config().stall_limit / WAITS_PER_STALL_LIMIT).min(MAX_WAIT);
        loop {
            // The semaphore is never closed.
            let _turn = self.lock_waiters.acquire().await;
            let began = Instant::now();
            match self.request_lock(fh, owner, range, Some(kind), longest).await {
                Err(Errno::EAGAIN) => {}
                set => return set,
            }
            // A server that has no room for another waiting request answers at once.
            tokio::time::sleep_until(began + longest / 2).await;
        }
    }

    pub(crate) async fn remove_lock(
        &self,
        fh: Fh,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<()> {
        self.request_lock(fh, owner, range, None, Duration::ZERO).await
    }

    async fn request_lock(
        &self,
        fh: Fh,
        owner: LockOwner,
        range: LockRange,
        kind: Option<LockKind>,
        wait: Duration,
    ) -> Result<()> {
        let file = self.file_with_locks(fh).await?;
        let open = &file.open;
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let call = open.session.client.lock(&open.handle, owner, range, kind, wait_ms);
        let answer = file.behind_changes(call).await;
        answer.map_err(|error| errno::from_handle(&error))
    }

    pub(crate) async fn find_lock(
        &self,
        fh: Fh,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<(LockRange, LockKind)>> {
        let file = self.file_with_locks(fh).await?;
        let open = &file.open;
        let call = open.session.client.test_lock(&open.handle, owner, range, kind);
        file.behind_changes(call).await.map_err(|error| errno::from_handle(&error))
    }
}

impl OpenFile {
    /// Sends `call` behind all earlier operations on the file, on any session. Later operations do
    /// not wait for its reply.
    async fn behind_changes<T>(&self, mut call: sftp::Call<T>) -> sftp::Result<T> {
        if self.open_path.may_change() {
            let ticket = self.enter(WHOLE_FILE, true, Some(self.open.session.slot));
            ticket.ready().await;
            std::future::poll_fn(|context| call.poll_send(context)).await;
        }
        call.await
    }
}
