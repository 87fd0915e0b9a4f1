//! flush: a close of a file, and whom it keeps waiting.
//!
//! A close waits until what was written is at the server, since its caller is told whether that
//! went well. Some callers cannot be told, and most of these get no signal either that would free
//! them: who ends closes what he has open, and so does who becomes another program
//! ([`Closer::Leaves`], [`Closer::Killed`]). They wait too, since what a program has written is to
//! be there when it has ended. But they do not wait for a remote that is away or does not get on,
//! and whoever was killed does not wait for anything.
//!
//! Invariant: who is let go leaves nothing undone. What he has written stays on its way and is
//! bounded as before, the remote's handle stays open for it, its error is the next holder's to
//! report, and the log's when there is none.

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use tokio::time::Instant;

use crate::open::OpenFile;
use crate::{Handle, Vfs};

/// What the caller of a close is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closer {
    /// To go on, with what the close tells; or it is not known. It may be freed by dropping the
    /// future.
    Stays,
    /// To end, or to become another program. He is told nothing.
    Leaves,
    /// To end, since he was killed.
    Killed,
}

/// Who closes is left alone for so long: most closes are over by then, and a process that was
/// killed is to be gone within a second.
const PATIENCE: Duration = Duration::from_millis(500);

/// The remote does not get on if it has answered no write of the file for so long: more than an
/// answer takes behind any link that works, and about what people wait before they get impatient.
const STALL: Duration = Duration::from_secs(1);

impl Vfs {
    /// One of the descriptors of this open file is being closed: what was written through it is
    /// at the server when this returns, or the error says why not.
    pub async fn flush(&self, handle: Handle) -> Result<()> {
        let file = self.files.get(handle.0)?;
        let written = file.take_written();
        self.flushed(&file, written).await
    }

    /// The same for a caller who perhaps cannot be told. `closer` says what he is about to do; it
    /// is asked only if he has to wait for longer than usual, and then again and again.
    pub async fn flush_for<F>(&self, handle: Handle, closer: impl Fn() -> F) -> Result<()>
    where
        F: Future<Output = Closer>,
    {
        let file = self.files.get(handle.0)?;
        let written = file.take_written();
        tokio::select! {
            biased;
            result = self.flushed(&file, written) => result,
            () = self.abandoned(&file, closer) => {
                if written {
                    file.note_write();
                }
                tracing::debug!(ino = file.inode.ino.0, "nobody waits for a close any more");
                Ok(())
            }
        }
    }

    async fn flushed(&self, file: &OpenFile, written: bool) -> Result<()> {
        let closed = match written {
            true => self.settle(file).await,
            false => {
                // Another descriptor of this open file may be being closed, or its close have been
                // interrupted, with writes still on their way.
                file.inode.writes.drained_of(file.number).await;
                Ok(())
            }
        };
        file.take_error().and(closed)
    }

    /// Waits for the writes of `file`'s inode, learns what they have made of it, and has the server
    /// close the file. Both go out right behind the writes, so that one round trip does for all.
    async fn settle(&self, file: &OpenFile) -> Result<()> {
        let inode = &file.inode;
        inode.writes.drained_but(file.number).await;
        // What comes of writes through other handles, or not sent yet, the answer cannot tell.
        let begun = {
            let state = inode.state();
            let ahead = inode.writes.sent_through(file.number);
            (state.changing() as usize == ahead).then(|| state.begun())
        };
        let asked_at = Instant::now();
        let told = async { self.remote.fstat(file.fh().await?).await };
        let closed = async {
            // Not before what is not sent yet.
            match begun {
                Some(_) => file.close_there(&self.remote).await,
                None => Ok(()),
            }
        };
        let (attr, closed, ()) = tokio::join!(told, closed, inode.writes.drained());
        if let (Ok(attr), Some(begun)) = (attr, begun) {
            let mut state = inode.state();
            if state.settled_since(begun) {
                self.take_over(&mut state, inode.kind, &attr, Instant::now(), asked_at);
                state.pages_written(&attr);
            }
        }
        closed
    }

    /// Returns when nobody is to be kept waiting any more who closes `file`; for the most part,
    /// never.
    async fn abandoned<F>(&self, file: &Arc<OpenFile>, closer: impl Fn() -> F)
    where
        F: Future<Output = Closer>,
    {
        let pulse = self.pulse.wait(&self.background);
        let mut progress = Progress::new(file.inode.writes.answered(), Instant::now());
        loop {
            pulse.beat().await;
            let answered = file.inode.writes.answered();
            let seen = progress.look(answered, self.remote.is_disconnected(), Instant::now());
            if seen == Seen::Patience {
                continue;
            }
            match closer().await {
                Closer::Killed => return,
                Closer::Leaves if seen == Seen::Standstill => return,
                Closer::Leaves | Closer::Stays => {}
            }
        }
    }
}

/// How a close gets on that has to wait.
struct Progress {
    begun: Instant,
    answered: u64,
    answered_at: Instant,
}

/// What is seen of it at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It may be over soon.
    Patience,
    /// It takes its time.
    Slow,
    /// There is no end in sight.
    Standstill,
}

impl Progress {
    fn new(answered: u64, now: Instant) -> Progress {
        Progress { begun: now, answered, answered_at: now }
    }

    /// `answered` counts the writes that are over; `away`: the remote cannot be reached.
    fn look(&mut self, answered: u64, away: bool, now: Instant) -> Seen {
        if answered != self.answered {
            (self.answered, self.answered_at) = (answered, now);
        }
        if away || now.duration_since(self.answered_at) >= STALL {
            Seen::Standstill
        } else if now.duration_since(self.begun) >= PATIENCE {
            Seen::Slow
        } else {
            Seen::Patience
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_remote_that_answers_is_waited_for() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut progress = Progress::new(7, begun);
        assert_eq!(progress.look(7, true, at(1)), Seen::Standstill, "it is away");
        assert_eq!(progress.look(7, false, at(499)), Seen::Patience);
        assert_eq!(progress.look(7, false, at(500)), Seen::Slow);
        assert_eq!(progress.look(7, false, at(1_000)), Seen::Standstill);
        assert_eq!(progress.look(8, false, at(1_100)), Seen::Slow, "it gets on");
        assert_eq!(progress.look(8, false, at(2_099)), Seen::Slow);
        assert_eq!(progress.look(8, false, at(2_100)), Seen::Standstill);
    }
}
