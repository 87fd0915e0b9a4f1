//! Files of many pieces, which are in flight at the same time and arrive in any order.
//!
//! No piece is requested that lies further than the span after the first byte that is not written
//! yet, so that an interrupted copy can be continued (`temporary`).

use std::collections::BTreeMap;
use std::pin::Pin;

use base::{Fh, RemotePath};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::resume::Begun;
use super::{Attempt, Copy, Outcome, Temporary, pieces};
use crate::events::Progress;
use crate::outcome::{Doing, Fault, Problem};
use crate::run::Copied;
use crate::task::ended;
use crate::temporary::Partial;

/// The span in bits of the number of bytes: a quarter of the file, which is what an interruption
/// costs at most, and 1 to 64 MiB, as wide as the window of a remote gets (`flow`).
const SPAN_BITS: std::ops::RangeInclusive<u8> = 20..=26;

/// Bytes after which it is checked again that no other run has taken the file away.
const CHECK_BYTES: u64 = 64 << 20;

/// What became of one piece.
enum Piece {
    Written {
        offset: u64,
        len: u64,
    },
    /// The source has less than it had.
    Short,
}

/// The span for a file of this size: how far ahead pieces are sent, as an exponent of 2.
pub(super) fn span(size: u64) -> u8 {
    let quarter = (size / 4).max(1).ilog2() as u8;
    quarter.clamp(*SPAN_BITS.start(), *SPAN_BITS.end())
}

/// Room that is waited for. Kept while other things happen, so that the place in the queue is.
type Room<'a> = Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send + 'a>>;

impl<'a> Copy<'a> {
    /// Copies the file in pieces, from where an earlier run has come to.
    pub(super) async fn large(&self) -> Outcome<Attempt> {
        let Begun { made, start, span, length } = self.begin().await?;
        let path = made.path.clone();
        self.left.set(self.core.job.options.no_partial.then(|| path.clone()));
        Progress::add(&self.core.progress.bytes_done, start);
        let mut done = start;
        let end = match self.transfer(&made, start, 1 << span, length, &mut done).await {
            Ok(None) => self.complete(made, start).await,
            Ok(Some(fault)) => Ok(fault),
            Err(problem) => Err(problem),
        };
        let worthless = match &end {
            Ok(Attempt::Done(_) | Attempt::Taken) => false,
            Ok(Attempt::Changed) => true,
            Err(problem) => self.is_worthless(problem, &path).await,
        };
        if matches!(end, Ok(Attempt::Changed | Attempt::Taken)) {
            self.core.progress.again(done);
        }
        if worthless {
            self.left.set(Some(path));
            self.left.remove(self.core).await;
        }
        self.left.set(None);
        end
    }

    /// Whether what there is must not be continued, is not to be kept, or is so little that the
    /// next run would begin anew.
    async fn is_worthless(&self, problem: &Problem, path: &RemotePath) -> bool {
        if matches!(problem.fault, Fault::Differs { .. }) || self.core.job.options.no_partial {
            return true;
        }
        if self.core.loss(problem).is_some() {
            return false;
        }
        let (Some(name), Ok(attr)) = (path.file_name(), self.target().lstat(path).await) else {
            return false;
        };
        Partial::parse(&name, &attr).is_none_or(|(_, partial)| partial.reliable() == 0)
    }

    /// Everything was written: checks the source again, and gives the file its name.
    async fn complete(&self, made: Temporary, start: u64) -> Outcome<Attempt> {
        let size = self.core.job.options.sparse.then_some(self.attr.size);
        let (source, from) = self.source()?;
        let (now, applied, is_own) =
            tokio::join!(source.fstat(from), self.apply_metadata(&made, size), self.is_own(&made));
        if !is_own {
            return Ok(Attempt::Taken);
        }
        if !self.is_unchanged(&now.map_err(self.failed(Doing::Read))?) {
            return Ok(Attempt::Changed);
        }
        if !self.place(made, &applied?).await? {
            return Ok(Attempt::Taken);
        }
        let bytes = self.attr.size - start;
        Ok(Attempt::Done(Copied { bytes, resumed: start }))
    }

    /// Brings all from `start` over. The file at the target has `length` bytes: where there is
    /// anything, no hole is left for zeros. Adds to `done` what was written. Returns what was found
    /// wrong, if anything.
    async fn transfer(
        &self,
        made: &Temporary,
        start: u64,
        span: u64,
        length: u64,
        done: &mut u64,
    ) -> Outcome<Option<Attempt>> {
        let (flow, size) = (&self.core.flow, self.attr.size);
        let (_, from) = self.source()?;
        let mut tasks: JoinSet<Result<Piece, Fault>> = JoinSet::new();
        let mut written = Written { all_before: start, further: BTreeMap::new() };
        let mut next = start;
        let (mut check, mut check_at) = (None, start + CHECK_BYTES);
        let mut room: Option<Room<'_>> = None;
        while written.all_before < size {
            let len = flow.piece_bytes().min(size - next);
            let wanted = len > 0 && next + len <= written.all_before.saturating_add(span);
            if wanted && room.is_none() {
                room = Some(Box::pin(flow.room(len)));
            }
            let asked = len;
            if check.is_none() && written.all_before >= check_at {
                check_at = written.all_before + CHECK_BYTES;
                check = Some(Box::pin(self.is_own(made)));
            }
            tokio::select! {
                biased;
                is_own = async { check.as_mut().expect("it is under way").await },
                    if check.is_some() =>
                {
                    check = None;
                    if !is_own {
                        return Ok(Some(Attempt::Taken));
                    }
                }
                Some(end) = tasks.join_next(), if !tasks.is_empty() => match ended(end).await {
                    Ok(Piece::Written { offset, len }) => {
                        Progress::add(&self.core.progress.bytes_done, len);
                        *done += len;
                        written.add(offset, len);
                    }
                    Ok(Piece::Short) => return Ok(Some(Attempt::Changed)),
                    Err(fault) => return Err(fault.of(&self.step.name)),
                },
                permit = async { room.as_mut().expect("it is wanted").await },
                    if wanted =>
                {
                    room = None;
                    let sparse = self.core.job.options.sparse && next >= length;
                    let piece = self.piece(from, made.file.fh(), next, asked, (sparse, permit));
                    tasks.spawn(piece);
                    next += asked;
                }
            }
        }
        Ok(None)
    }

    /// Reads a piece and writes it.
    fn piece(
        &self,
        from: Fh,
        to: Fh,
        offset: u64,
        len: u64,
        (sparse, room): (bool, OwnedSemaphorePermit),
    ) -> impl Future<Output = Result<Piece, Fault>> + Send + 'static {
        let (core, source) = (self.core.clone(), self.step.source);
        async move {
            let data = core.job.sources[source].tree.remote.read(from, offset, len as u32).await;
            let data = data.map_err(|errno| Fault::Failed { doing: Doing::Read, errno })?;
            if data.len() as u64 != len {
                return Ok(Piece::Short);
            }
            let wrote = pieces::write(&*core.job.target.remote, to, offset, &data, sparse).await;
            wrote.map_err(|errno| Fault::Failed { doing: Doing::Write, errno })?;
            drop(room);
            Ok(Piece::Written { offset, len })
        }
    }
}

/// What of a file is written.
struct Written {
    /// All before this.
    all_before: u64,
    /// Pieces behind it, by their offset.
    further: BTreeMap<u64, u64>,
}

impl Written {
    fn add(&mut self, offset: u64, len: u64) {
        self.further.insert(offset, len);
        while let Some(len) = self.further.remove(&self.all_before) {
            self.all_before += len;
        }
    }
}
