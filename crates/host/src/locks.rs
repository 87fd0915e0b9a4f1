//! Locks, at servers with `lock@sshoal`.
//!
//! The locks of a session end with it, and all are set through the first handle of a file, which is
//! on the metadata session. That session is never closed while the host is in use, and when it is
//! lost, the handle is lost with it.
//!
//! While any lock is held, a task sends a request from time to time, as it has promised to the
//! server ([`LEASE`]): if this machine loses its power or its link, the server ends the session,
//! and others get the locks. Without locks nothing is sent. The promise is made before the first
//! lock of a session is requested, because the server may set it when this machine is gone.
//!
//! The server waits for a lock for a moment only; then the request is repeated. So a silent server
//! is noticed as usual.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Errno, Fh, Lock, LockKind, LockOwner, LockRange, Mutex, Result};
use sftp::{Call, Extension};
use tokio::time::Instant;

use crate::errno;
use crate::handles::{OpenFile, OpenPath};
use crate::host::Host;
use crate::pipelined::send_now;
use crate::range_lock::WHOLE_FILE;
use crate::session::Session;

/// Longest wait of one request. Shorter than the time after which a server counts as silent for a
/// caller that has got a signal.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The time without a request after which the server ends a session with locks. Longer than most
/// interruptions of a link; `recovery` waits a little longer for the locks of a former session.
const LEASE: Duration = Duration::from_secs(45);

/// Requests within a lease.
const RENEWALS: u32 = 4;

/// Part of the stall limit that a request may wait.
const WAITS_PER_STALL_LIMIT: u32 = 4;

/// Requests of a host that wait at the server at the same time; further callers wait here. The
/// helper permits twice as many.
pub(crate) const MAX_WAITING: usize = 32;

/// The owners that hold locks, by file.
#[derive(Default)]
pub(crate) struct LockHolders(Mutex<Vec<(Weak<OpenPath>, LockOwner)>>);

impl LockHolders {
    fn add(&self, path: &Arc<OpenPath>, owner: LockOwner) {
        self.remove(path, owner);
        self.0.lock().push((Arc::downgrade(path), owner));
    }

    fn remove(&self, path: &Arc<OpenPath>, owner: LockOwner) {
        let is_it = |(of, by): &(Weak<OpenPath>, LockOwner)| {
            *by == owner && std::ptr::eq(of.as_ptr(), Arc::as_ptr(path))
        };
        self.0.lock().retain(|holder| !is_it(holder));
    }

    fn is_empty(&self) -> bool {
        let mut holders = self.0.lock();
        holders.retain(|(path, _)| path.strong_count() > 0);
        holders.is_empty()
    }
}

/// The request that promises a lease, or renews it.
fn lease(session: &Session) -> Call<()> {
    session.client.lock_lease(u32::try_from(LEASE.as_secs()).unwrap_or(u32::MAX))
}

/// Promises a lease before the first lock is requested. If there is no room for the request now,
/// the task that renews it makes up for that.
fn promise_lease(session: &Session) {
    if !session.has_lease.swap(true, Ordering::SeqCst) && send_now(lease(session)).is_none() {
        session.has_lease.store(false, Ordering::SeqCst);
    }
}

/// Sends requests while there are locks.
async fn renew_lease(session: Weak<Session>, holders: Weak<LockHolders>) {
    loop {
        let Some(session) = session.upgrade() else { return };
        let Some(holders) = holders.upgrade() else { return };
        if holders.is_empty() {
            session.renews_lease.store(false, Ordering::SeqCst);
            // A lock that was set at this moment has found this task.
            if holders.is_empty() || session.renews_lease.swap(true, Ordering::SeqCst) {
                return;
            }
        }
        drop(holders);
        if lease(&session).await.is_err() {
            return;
        }
        drop(session);
        tokio::time::sleep(LEASE / RENEWALS).await;
    }
}

impl Host {
    async fn file_with_locks(&self, fh: Fh) -> Result<Arc<OpenFile>> {
        let file = self.live_file(fh).await?;
        match file.open.session.offers(Extension::Lock) {
            true => Ok(file),
            false => Err(Errno::EOPNOTSUPP),
        }
    }

    pub(crate) async fn set_lock(&self, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        let Lock { owner, range, kind } = lock;
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

    pub(crate) async fn request_lock(
        &self,
        fh: Fh,
        owner: LockOwner,
        range: LockRange,
        kind: Option<LockKind>,
        wait: Duration,
    ) -> Result<()> {
        let file = self.file_with_locks(fh).await?;
        let open = &file.open;
        if kind.is_some() {
            promise_lease(&open.session);
        }
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let call = open.session.client.lock(&open.handle, owner, range, kind, wait_ms);
        file.behind_changes(call).await.map_err(|error| errno::from_handle(&error))?;
        match kind {
            Some(_) => {
                self.lock_holders.add(&file.open_path, owner);
                if !open.session.renews_lease.swap(true, Ordering::SeqCst) {
                    let holders = Arc::downgrade(&self.lock_holders);
                    tokio::spawn(renew_lease(Arc::downgrade(&open.session), holders));
                }
            }
            None if range == LockRange::WHOLE => self.lock_holders.remove(&file.open_path, owner),
            None => {}
        }
        Ok(())
    }

    pub(crate) async fn find_lock(
        &self,
        fh: Fh,
        Lock { owner, range, kind }: Lock,
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
    async fn behind_changes<T>(&self, mut call: Call<T>) -> sftp::Result<T> {
        if self.open_path.may_change() {
            let ticket = self.enter(WHOLE_FILE, true, Some(self.open.session.slot));
            ticket.ready().await;
            std::future::poll_fn(|context| call.poll_send(context)).await;
        }
        call.await
    }
}
