//! Temporary files of an earlier run: claiming them, and how much of each can be trusted.
//!
//! A temporary file is continued if
//!
//! 1. it is a regular file of this login's user, and only its owner may read it; on this machine it
//!    also has one name, and no other run writes it (`flock`);
//! 2. it could be renamed to a name of this run, which only one run can do;
//! 3. everything before the point of continuation equals the source. If it was written in the
//!    current boot of the machine, its length and the span prove that it has no holes
//!    (`temporary`), and [`SAMPLES`] of it are compared. If not, or if that is not known, holes may
//!    be anywhere, since data that was not synced may be lost with the power. Then, and where the
//!    user wants files compared by digest, the digests of the whole part must be equal.
//!
//! A file that fails any of these is removed, and copied from its beginning.

use base::{Access, Errno, FileKind, OpenFlags, OwnedFh, RenameMode};

use super::large::span;
use super::{Copy, Outcome, Temporary};
use crate::digest;
use crate::outcome::is_refusal;
use crate::run::Core;
use crate::sink::Lock;
use crate::task::{at_most, blocking};
use crate::temporary::{self, MachineRun, Partial};

/// Pieces that are compared with the source, evenly distributed, the last one just before the point
/// of continuing: enough to find another content, and as much as a link carries in no time.
const SAMPLES: u64 = 16;
const SAMPLE_BYTES: u64 = 64 << 10;

/// Continuing begins at a multiple of this, in bytes.
const ALIGNMENT_BYTES: u64 = 4096;

/// A large file that is to be filled.
pub(super) struct Begun {
    pub(super) made: Temporary,
    /// All before this is there.
    pub(super) start: u64,
    pub(super) span: u8,
    /// Its length.
    pub(super) length: u64,
}

/// Locks the file `path` of the target: the lock, or none where the target has no locks; `None`
/// where the file is not to be touched.
pub(super) async fn lock(core: &Core, path: &base::RemotePath) -> Option<Option<Lock>> {
    let Some(sink) = core.sink.clone() else { return Some(None) };
    let path = path.clone();
    blocking(move || sink.lock(&path)).await.ok()?.map(Some)
}

impl<'a> Copy<'a> {
    /// Continues what an earlier run has left, if it can be relied on, or makes the file anew.
    pub(super) async fn begin(&self) -> Outcome<Begun> {
        let (tag, span) = (temporary::tag(&self.name, &self.attr), span(self.attr.size));
        let machine = self.core.target_run().await;
        let path = self.beside(&temporary::name(&self.name, &self.attr, span, machine));
        self.left.set(Some(path.clone()));
        let mut made = self.make(path).await?;
        // Where another run was quicker to remove it, the check of its name will find that.
        made.lock = lock(self.core, &made.path).await.flatten();
        let fitting = |partial: &&Partial| {
            partial.tag == tag && partial.uid == made.uid && partial.size <= self.attr.size
        };
        let best = self.step.partials.iter().filter(fitting);
        if self.may_resume
            && let Some(partial) = best.max_by_key(|partial| partial.reliable())
            && let Some(begun) = self.go_on(partial, machine, made.uid).await
        {
            let _ = self.target().unlink(&made.path).await;
            return Ok(begun);
        }
        self.left.set(None);
        Ok(Begun { made, start: 0, span, length: 0 })
    }

    /// Makes what an earlier run has left this run's own, and compares it with the source. `None`
    /// when it is not worth it, or not right.
    async fn go_on(&self, partial: &Partial, machine: MachineRun, uid: u32) -> Option<Begun> {
        let start = partial.reliable() / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
        if start == 0 {
            return None;
        }
        let remote = self.target();
        let found = self.beside(&partial.file);
        let lock = lock(self.core, &found).await?;
        if lock.as_ref().is_some_and(|lock| lock.uid() != Ok(uid)) {
            return None;
        }
        let own = temporary::name(&self.name, &self.attr, partial.span, machine);
        let path = self.beside(&own);
        if self.core.job.options.no_partial {
            self.left.add(path.clone());
        }
        match remote.rename(&found, &path, RenameMode::Replace).await {
            Ok(()) => {}
            // No run can continue it, and each one would leave another.
            Err(errno) if is_refusal(errno) => {
                let _ = remote.unlink(&found).await;
                return None;
            }
            Err(_) => return None,
        }
        let begun = self.continued(partial, machine, path.clone(), start, lock).await;
        if begun.is_none() {
            let _ = remote.unlink(&path).await;
        }
        begun
    }

    /// Opens what is this run's own now.
    async fn continued(
        &self,
        partial: &Partial,
        machine: MachineRun,
        path: base::RemotePath,
        start: u64,
        lock: Option<Lock>,
    ) -> Option<Begun> {
        let remote = self.target();
        let flags = OpenFlags::existing(Access::ReadWrite);
        let opened = remote.open(&path, flags).await.ok()?;
        let file = OwnedFh::new(remote.clone(), opened.fh);
        let attr = opened.attr;
        let made = Temporary { path, file, uid: attr.uid, lock };
        // As it was when it was listed, or longer.
        if (attr.kind, attr.perm, attr.uid) != (FileKind::Regular, 0o600, partial.uid)
            || !(start..=self.attr.size).contains(&attr.size)
            || !self.is_own(&made).await
        {
            return None;
        }
        let by_length = partial.machine.is_same(machine) && !self.core.job.options.checksum;
        let is_right = match by_length {
            true => self.samples_are_equal(&made, start).await,
            false => self.digests_are_equal(&made, start).await,
        };
        is_right.then_some(Begun { made, start, span: partial.span, length: attr.size })
    }

    async fn samples_are_equal(&self, made: &Temporary, start: u64) -> bool {
        let Ok((source, from)) = self.source() else { return false };
        let len = start.min(SAMPLE_BYTES);
        let samples = (1..=SAMPLES).map(|at| {
            let offset = (start - len) * at / SAMPLES;
            let (left, left_fh) = (self.target().clone(), made.file.fh());
            let (right, right_fh) = (source.clone(), from);
            async move {
                let len = len as u32;
                let (left, right) = tokio::join!(
                    left.read(left_fh, offset, len),
                    right.read(right_fh, offset, len)
                );
                matches!((left, right), (Ok(left), Ok(right))
                    if left.len() == len as usize && left.to_vec() == right.to_vec())
            }
        });
        at_most(SAMPLES as usize, samples).await.into_iter().all(|is_equal| is_equal)
    }

    async fn digests_are_equal(&self, made: &Temporary, start: u64) -> bool {
        let source = &self.core.job.sources[self.step.source].tree;
        let (read, left) = tokio::join!(
            digest::of_first(source, &self.step.from, start),
            digest::of_first(&self.core.job.target, &made.path, start),
        );
        read.is_some() && read == left
    }

    /// Whether the file is still this run's: it has the name that only this run uses.
    pub(super) async fn is_own(&self, made: &Temporary) -> bool {
        match (&made.lock, &self.core.sink) {
            (Some(lock), Some(sink)) => {
                // A `stat` of a name in a directory that is open.
                sink.names(&made.path, lock).unwrap_or(true)
            }
            // What cannot be learned is decided by the rename.
            _ => self.target().lstat(&made.path).await != Err(Errno::ENOENT),
        }
    }
}
