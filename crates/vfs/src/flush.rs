//! flush: a close of a file, and how long it waits.
//!
//! A close waits until all writes are at the server, since its caller gets their result. Some
//! callers cannot use the result, and most of these get no signal that would free them: a process
//! that exits closes its files, and so does one that calls execve(2) ([`Caller::Exiting`],
//! [`Caller::Killed`]). Their closes wait too, since the data should be at the server when a
//! program has ended. But they do not wait for a remote that is unreachable or makes no progress,
//! and a killed process waits for a moment only.
//!
//! Invariants:
//! 1. A close that stops waiting loses nothing. Its writes stay in flight and are bounded as
//!    before, the remote handle stays open for them, and their error is reported by the next call
//!    on the file, or logged if there is none. The next close waits for the same answers.
//! 2. An error is reported to a caller that can use it. A child process that was forked while the
//!    file was open closes it in its execve(2), perhaps before its parent does: the error is kept
//!    for the parent.

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use tokio::time::Instant;

use crate::open::OpenFile;
use crate::{Handle, Vfs};

/// The state of the process whose file is being closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// It runs on and gets the result of the close, or its state is unknown. A signal cancels the
    /// close by dropping its future.
    Alive,
    /// It is exiting, or executing another program. It gets no result.
    Exiting,
    /// It was killed.
    Killed,
}

/// A close waits for this long before the state of its caller is queried: most closes are over by
/// then, and a killed process should be gone within a second.
const GRACE: Duration = Duration::from_millis(500);

/// The remote makes no progress if it has answered no write of the file for this long: more than an
/// answer takes behind any working link, and about what people wait before they get impatient.
const STALL: Duration = Duration::from_secs(1);

/// Time between two checks of a close that waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl Vfs {
    /// A descriptor of this open file is being closed. Returns when its writes are at the server,
    /// or the error of one that failed.
    pub async fn flush(&self, handle: Handle) -> Result<()> {
        self.flush_and_unlock(handle, None, || std::future::ready(Caller::Alive)).await
    }

    /// Like [`Vfs::flush`], for a caller that may not get the result. `caller` returns the state of
    /// the process; it is called only if a write has failed, or if the close takes longer than
    /// usual, and then repeatedly. Also ends the `fcntl(2)` locks that this process, by its number
    /// as a lock owner, has set on the file.
    pub async fn flush_and_unlock<F>(
        &self,
        handle: Handle,
        lock_owner: Option<u64>,
        caller: impl Fn() -> F,
    ) -> Result<()>
    where
        F: Future<Output = Caller>,
    {
        let file = self.files.get(handle.0)?;
        let locks = self.locks_of_close(&file, lock_owner);
        let flushing = async {
            // An error for which another close waits may concern this one, too.
            let _alone = file.flushing.lock().await;
            let written = file.take_written();
            let unfinished = Unfinished { file: &file, written };
            let result = self.flush_file(&file, written, &caller).await;
            std::mem::forget(unfinished);
            locks.end().await;
            result
        };
        tokio::select! {
            biased;
            result = flushing => result,
            () = self.abandoned(&file, &caller) => {
                tracing::debug!(ino = file.inode.ino.0, "a close stopped waiting for its writes");
                Ok(())
            }
        }
    }

    async fn flush_file<F>(
        &self,
        file: &Arc<OpenFile>,
        written: bool,
        caller: impl Fn() -> F,
    ) -> Result<()>
    where
        F: Future<Output = Caller>,
    {
        match written {
            true => self.flush_to_server(file).await,
            // The close of another descriptor of this open file may have been interrupted, with
            // writes still in flight.
            false => file.inode.writes.drained_of(file.number).await,
        }
        if let Some(twin) = file.twin.get() {
            let unfinished = Unfinished { file: twin, written: twin.take_written() };
            if unfinished.written {
                self.flush_to_server(twin).await;
            }
            std::mem::forget(unfinished);
            // Also the error of a write for which no caller has waited.
            if let Err(error) = twin.take_error() {
                file.keep_error(error);
            }
        }
        let Some(error) = file.error() else { return Ok(()) };
        if caller().await == Caller::Alive {
            file.clear_error();
        }
        Err(error)
    }

    /// Waits for the writes of `file`'s inode, records the resulting attributes, and has the server
    /// close the file. Both requests are sent right behind the writes, so that one round trip is
    /// enough. Errors are kept in `file`.
    async fn flush_to_server(&self, file: &Arc<OpenFile>) {
        let inode = &file.inode;
        inode.writes.drained_but(file.number).await;
        let (changes_begun, all_sent) = {
            let state = inode.state();
            let (sent, all_sent) = inode.writes.sent_through(file.number);
            // The attributes do not reflect writes through other handles, or writes that are not
            // sent yet.
            let alone = state.changes_in_flight() as usize == sent;
            if all_sent {
                file.expect_server_close();
            }
            (alone.then(|| state.changes_begun()), all_sent)
        };
        let (seq, requested_at) = (self.change_counter.now(), Instant::now());
        let stat = async { self.remote.fstat(file.fh().await?).await };
        let closed = async {
            // Not before writes that are not sent yet: those of a process that shares the open
            // file, whose own close follows.
            if all_sent {
                file.close_at_server(&self.remote).await;
            }
        };
        let (attr, (), ()) = tokio::join!(stat, closed, inode.writes.drained());
        let (Ok(attr), Some(changes_begun)) = (attr, changes_begun) else { return };
        if inode.writes.exceed(attr.size) {
            // Some servers answer before they have executed the writes; or another client has cut
            // the file.
            inode.writes.forget_end();
        } else {
            let mut state = inode.state();
            // Another client may change the file before the server answers the close.
            let is_overtaken =
                state.is_reported_since(seq) || state.has_overtaken(&attr, requested_at);
            if state.no_change_since_count(changes_begun) && !is_overtaken {
                self.store_attr(&mut state, inode, &attr, Instant::now(), requested_at);
                state.pages_written(&attr);
            }
        }
    }

    /// Returns when the close of `file` should stop waiting; in most cases, never.
    async fn abandoned<F>(&self, file: &Arc<OpenFile>, caller: impl Fn() -> F)
    where
        F: Future<Output = Caller>,
    {
        let remote = self.serving(file.remote.opened());
        let mut progress = Progress::new(file.inode.writes.answered(), Instant::now());
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let answered = file.inode.writes.answered();
            let wait = progress.check(answered, remote.is_disconnected(), Instant::now());
            if wait == Wait::Brief {
                continue;
            }
            match caller().await {
                Caller::Killed => return,
                Caller::Exiting if wait == Wait::Stalled => return,
                Caller::Exiting | Caller::Alive => {}
            }
        }
    }
}

/// A close that has not returned the result of the writes. If it is dropped, the next close has to.
struct Unfinished<'a> {
    file: &'a OpenFile,
    written: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.written {
            self.file.note_write();
        }
    }
}

/// The progress of a close that has to wait.
struct Progress {
    changes_begun: Instant,
    answered: u64,
    answered_at: Instant,
}

/// The state of a close that has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// It may be over soon.
    Brief,
    /// It is slow.
    Slow,
    /// The remote makes no progress.
    Stalled,
}

impl Progress {
    fn new(answered: u64, now: Instant) -> Progress {
        Progress { changes_begun: now, answered, answered_at: now }
    }

    /// `answered` is the number of writes that have ended; `away`: the remote is unreachable.
    fn check(&mut self, answered: u64, away: bool, now: Instant) -> Wait {
        if answered != self.answered {
            (self.answered, self.answered_at) = (answered, now);
        }
        if away || now.duration_since(self.answered_at) >= STALL {
            Wait::Stalled
        } else if now.duration_since(self.changes_begun) >= GRACE {
            Wait::Slow
        } else {
            Wait::Brief
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_remote_that_makes_progress_is_waited_for() {
        let changes_begun = Instant::now();
        let at = |ms| changes_begun + Duration::from_millis(ms);
        let mut progress = Progress::new(7, changes_begun);
        assert_eq!(progress.check(7, true, at(1)), Wait::Stalled, "it is away");
        assert_eq!(progress.check(7, false, at(499)), Wait::Brief);
        assert_eq!(progress.check(7, false, at(500)), Wait::Slow);
        assert_eq!(progress.check(7, false, at(1_000)), Wait::Stalled);
        assert_eq!(progress.check(8, false, at(1_100)), Wait::Slow, "it gets on");
        assert_eq!(progress.check(8, false, at(2_099)), Wait::Slow);
        assert_eq!(progress.check(8, false, at(2_100)), Wait::Stalled);
    }
}
