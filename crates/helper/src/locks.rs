//! Locks: those of the client's owners, and the requests that wait for one.
//!
//! A request that cannot be granted leaves the schedule and waits here. One thread repeats those for
//! local file systems, and another one all others, which may never be answered: after pauses that
//! grow to a tenth of a second, and at once after an unlock by this client. A request is answered
//! after the time that the client has set, at most [`MAX_WAIT`]; the client then repeats it, so that
//! neither side waits for a dead peer.
//!
//! A client may cancel a request whose answer it has not read. So the last grants are remembered
//! with what they have replaced.
//!
//! A client may have gone without an end of the stream. One with a lease sends a request within
//! that time, and takes replies; otherwise the session ends, if it has locks, and they with it
//! (`session.rs`).
//!
//! Locking: the state's lock is never held during a system call. A waiter's lock is held while it
//! is tried, and taken before that of the state.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::{Duration, Instant};

use base::{Lock, LockKind, LockOwner, LockRange, Mutex};
use local::{LockUndo, lock_pause};
use rustix::io::Errno;
use sftp::codec::{LockFound, LockRequest, Reply};

use crate::handles;
use crate::schedule::Resource;
use crate::server::Server;
use crate::service_thread::ServiceThread;
use crate::status::{BAD_HANDLE, Failure, Result, success};

/// Longest wait of one request.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Requests that wait at the same time. Further ones are answered as if their time was over.
const MAX_WAITING: usize = 64;

/// Grants that can be cancelled: more than a client has in flight in a moment.
const MAX_GRANTED: usize = 256;

/// A request for a lock.
#[derive(Debug)]
struct Wanted {
    /// The request id.
    id: u32,
    handle: Vec<u8>,
    owner: LockOwner,
    range: LockRange,
    kind: LockKind,
    /// Of a file on a local file system.
    is_local: bool,
}

/// A request that waits.
#[derive(Debug)]
struct Waiter {
    wanted: Wanted,
    until: Instant,
    progress: Mutex<Progress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Waiting,
    Cancelled,
    Answered,
}

#[derive(Debug)]
struct Scheduled {
    waiter: Arc<Waiter>,
    attempts: u32,
    next: Instant,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Scheduled>,
    granted: VecDeque<(u32, LockUndo)>,
    /// How long the client may send nothing while it has locks.
    lease: Option<Duration>,
    /// Requests for locks that are being executed.
    executing: usize,
    is_ending: bool,
}

/// See [`Locks::execute`].
pub(crate) struct Executing<'a>(&'a Locks);

impl Drop for Executing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().executing -= 1;
    }
}

/// The locks of a client. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Locks {
    held: local::Locks,
    /// Serves waiting requests for files on local file systems.
    local_thread: ServiceThread,
    /// Serves all others.
    other_thread: ServiceThread,
    state: Mutex<State>,
    /// A request has begun to wait or is to be tried, or the session ends.
    changed: Condvar,
}

impl Locks {
    /// How long the client may send nothing while it has locks, if it has promised to send a
    /// request within some time.
    pub(crate) fn lease(&self) -> Option<Duration> {
        self.state.lock().lease
    }

    /// How long the client may send nothing from now on: it has a lease, and locks.
    pub(crate) fn silence_limit(&self) -> Option<Duration> {
        self.lease().filter(|_| !self.held.is_empty())
    }

    /// For how long the client may take no reply: as [`Locks::silence_limit`], but also while a lock
    /// is requested, which may be set while a write waits.
    pub(crate) fn write_limit(&self) -> Option<Duration> {
        let (lease, is_requested) = {
            let state = self.state.lock();
            (state.lease, state.executing > 0 || !state.waiting.is_empty())
        };
        lease.filter(|_| is_requested || !self.held.is_empty())
    }

    /// A request for a lock is being executed until this is dropped.
    pub(crate) fn execute(&self) -> Executing<'_> {
        self.state.lock().executing += 1;
        Executing(self)
    }

    /// What serves the waiting requests for files on local file systems, or all others.
    pub(crate) fn thread(&self, is_local: bool) -> &ServiceThread {
        if is_local { &self.local_thread } else { &self.other_thread }
    }

    /// The files in which the client has locks.
    pub(crate) fn files(&self) -> Vec<Resource> {
        let files = self.held.files().into_iter();
        files.map(|(device, number)| Resource::Inode(device, number)).collect()
    }

    /// A handle was closed.
    pub(crate) fn closed(&self, handle: &[u8]) {
        if let Ok(number) = handles::number(handle)
            && !self.held.is_empty()
        {
            self.held.close(number);
            self.try_all();
        }
    }

    /// Whether the client has locks in the file, and the session goes on.
    pub(crate) fn protect(&self, file: Resource) -> bool {
        !self.state.lock().is_ending && self.files().contains(&file)
    }

    /// The session ends.
    pub(crate) fn end(&self) {
        self.state.lock().is_ending = true;
        self.changed.notify_all();
    }

    /// The locks in these files end, and no lock is set any more.
    pub(crate) fn release(&self, files: &[Resource]) {
        self.held.end(|(device, number)| files.contains(&Resource::Inode(device, number)));
    }

    /// Tries all waiting requests now.
    fn try_all(&self) {
        let now = Instant::now();
        self.state.lock().waiting.iter_mut().for_each(|scheduled| scheduled.next = now);
        self.changed.notify_all();
    }

    /// Lets a request wait. `false` if it cannot.
    fn wait(&self, wanted: Wanted, wait_ms: u32) -> bool {
        let wait = Duration::from_millis(wait_ms.into()).min(MAX_WAIT);
        let mut state = self.state.lock();
        let thread = self.thread(wanted.is_local);
        if wait.is_zero() || !thread.is_there() || state.waiting.len() >= MAX_WAITING {
            return false;
        }
        let now = Instant::now();
        let progress = Mutex::new(Progress::Waiting);
        let waiter = Arc::new(Waiter { wanted, until: now + wait, progress });
        state.waiting.push(Scheduled { waiter, attempts: 1, next: now + lock_pause(1) });
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Undoes the request with this id: it ends if it waits, and what it has set is removed.
    fn cancel(&self, id: u32) {
        let waiter = {
            let mut state = self.state.lock();
            let scheduled = state.waiting.iter_mut().find(|it| it.waiter.wanted.id == id);
            scheduled.map(|scheduled| {
                scheduled.next = Instant::now();
                scheduled.waiter.clone()
            })
        };
        if let Some(waiter) = waiter {
            let mut progress = waiter.progress.lock();
            if *progress == Progress::Waiting {
                *progress = Progress::Cancelled;
                self.changed.notify_all();
                return;
            }
        }
        let undo = {
            let mut state = self.state.lock();
            let at = state.granted.iter().position(|(granted, _)| *granted == id);
            at.and_then(|at| state.granted.remove(at))
        };
        if let Some((_, undo)) = undo {
            self.held.undo(&undo);
            self.try_all();
        }
    }

    /// Waits until requests of the kind are due. `None` at the end of the session.
    fn due(&self, is_local: bool) -> Option<Vec<Arc<Waiter>>> {
        let mut state = self.state.lock();
        loop {
            if state.is_ending {
                return None;
            }
            let now = Instant::now();
            let all = || state.waiting.iter().filter(|it| it.waiter.wanted.is_local == is_local);
            let due = all().filter(|scheduled| scheduled.next <= now);
            let due: Vec<_> = due.map(|scheduled| scheduled.waiter.clone()).collect();
            if !due.is_empty() {
                return Some(due);
            }
            let next = all().map(|scheduled| scheduled.next).min();
            state = match next {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(next) => {
                    let pause = next.saturating_duration_since(now);
                    let waited = self.changed.wait_timeout(state, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn try_again(&self, waiter: &Arc<Waiter>) {
        let mut state = self.state.lock();
        let scheduled = state.waiting.iter_mut().find(|it| Arc::ptr_eq(&it.waiter, waiter));
        if let Some(scheduled) = scheduled {
            scheduled.attempts += 1;
            scheduled.next = Instant::now() + lock_pause(scheduled.attempts);
        }
    }
}

/// Whether another owner has a lock that excludes the requested one.
fn is_excluded<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Failure::System(Errno::AGAIN)))
}

impl Server {
    /// Executes a request about locks. `None` if it waits, and is answered later.
    pub(crate) fn lock(
        &self,
        id: u32,
        handle: &[u8],
        request: LockRequest,
    ) -> Result<Option<Reply>> {
        let locks = &self.locks;
        // From now on the id is that of this request.
        locks.state.lock().granted.retain(|(granted, _)| *granted != id);
        match request {
            LockRequest::Set { owner, range, kind: None, .. } => {
                let file = self.handles.file(handle)?;
                locks.held.unlock(&file.fd, owner, range)?;
                locks.try_all();
            }
            LockRequest::Set { owner, range, kind: Some(kind), wait_ms } => {
                let is_local = self.handles.file(handle)?.file_system.is_none();
                let handle = handle.to_vec();
                let wanted = Wanted { id, handle, owner, range, kind, is_local };
                let set = self.try_lock(&wanted);
                if is_excluded(&set) && locks.wait(wanted, wait_ms) {
                    return Ok(None);
                }
                set?;
            }
            LockRequest::Test { owner, range, kind } => {
                let file = self.handles.file(handle)?;
                let found = locks.held.test(&file.fd, Lock { owner, range, kind })?;
                return Ok(Some(Reply::extended(&LockFound(found))));
            }
            LockRequest::Cancel { id } => locks.cancel(id),
            LockRequest::Lease { seconds } => {
                let lease = Duration::from_secs(seconds.into());
                locks.state.lock().lease = (!lease.is_zero()).then_some(lease);
            }
        }
        Ok(Some(success()))
    }

    fn try_lock(&self, wanted: &Wanted) -> Result<()> {
        let Wanted { id, handle, owner, range, kind, .. } = wanted;
        let (number, file) = (handles::number(handle)?, self.handles.file(handle)?);
        let undo = self.locks.held.set(number, &file.fd, Lock::new(*owner, *range, *kind))?;
        if self.handles.file(handle).is_err() {
            // Closed in the meantime, which may not have ended this lock.
            self.locks.held.undo(&undo);
            return Err(BAD_HANDLE);
        }
        self.has_set_lock(&file);
        let mut state = self.locks.state.lock();
        if state.granted.len() >= MAX_GRANTED {
            state.granted.pop_front();
        }
        state.granted.push_back((*id, undo));
        Ok(())
    }

    /// Serves the requests of the kind that wait, until the session ends.
    pub(crate) fn wait_for_locks(&self, is_local: bool, answer: impl Fn(u32, &Reply)) {
        while let Some(due) = self.locks.due(is_local) {
            for waiter in due {
                let mut progress = waiter.progress.lock();
                let result = match *progress {
                    Progress::Answered => continue,
                    Progress::Cancelled => Err(Errno::INTR.into()),
                    Progress::Waiting => self.try_lock(&waiter.wanted),
                };
                if is_excluded(&result) && Instant::now() < waiter.until {
                    drop(progress);
                    self.locks.try_again(&waiter);
                    continue;
                }
                *progress = Progress::Answered;
                // The answer may wait for the client.
                drop(progress);
                self.locks.state.lock().waiting.retain(|it| !Arc::ptr_eq(&it.waiter, &waiter));
                let reply = result.map_or_else(|failure| failure.reply(), |()| success());
                answer(waiter.wanted.id, &reply);
            }
        }
    }
}
