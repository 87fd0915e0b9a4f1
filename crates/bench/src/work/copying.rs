//! Copies between this machine and a place, in the way that a subject has: a mount by an ordinary
//! program, a copier by itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::failure::Failure;
use crate::results::Measured;
use crate::step::StepContext;
use crate::subject::Access;

/// A path in a place that nobody has seen before, and of which no client can have cached anything.
pub(super) fn fresh(prefix: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// Whether a subject that is used so can copy a file.
pub(super) fn copies_files(access: &Access<'_>) -> bool {
    !matches!(access, Access::Sftp(_))
}

/// Whether it can copy a tree.
pub(super) fn copies_trees(access: &Access<'_>) -> bool {
    matches!(access, Access::Directory(_) | Access::Copier(_))
}

/// Copies `from` of the place to the local path `to`; `on_mount` makes the command for a mount.
pub(super) fn pull(
    context: &mut StepContext<'_>,
    from: &Path,
    to: &Path,
    on_mount: impl Fn(&Path, &Path) -> Command,
) -> Result<Measured, Failure> {
    let command = match context.access() {
        Access::Directory(dir) => Some(on_mount(&dir.join(from), to)),
        Access::Copier(copier) | Access::Stream(copier) => copier.pull(from, to),
        Access::Sftp(_) => None,
    };
    Ok(context.timed(command.ok_or_else(cannot)?)?.1)
}

/// The other way. What the subject writes back later than it says is waited for, and counted.
pub(super) fn push(
    context: &mut StepContext<'_>,
    from: &Path,
    to: &Path,
    on_mount: impl Fn(&Path, &Path) -> Command,
) -> Result<Measured, Failure> {
    let command = match context.access() {
        Access::Directory(dir) => Some(on_mount(from, &dir.join(to))),
        Access::Copier(copier) | Access::Stream(copier) => copier.push(from, to),
        Access::Sftp(_) => None,
    };
    let mut measured = context.timed(command.ok_or_else(cannot)?)?.1;
    settle(context, &mut measured)?;
    Ok(measured)
}

/// Waits until what was written is at the place, and counts that.
pub(super) fn settle(
    context: &mut StepContext<'_>,
    measured: &mut Measured,
) -> Result<(), Failure> {
    let begin = Instant::now();
    context.session.settle(context.executor)?;
    measured.seconds += begin.elapsed().as_secs_f64();
    Ok(())
}

/// Does what writes to `path` in the place, and removes that whatever comes of it.
pub(super) fn removed_after<T>(
    context: &mut StepContext<'_>,
    path: &Path,
    write: impl FnOnce(&mut StepContext<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let written = write(context);
    let removed = context.subject.place().remove(path);
    let value = written?;
    removed?;
    Ok(value)
}

fn cannot() -> Failure {
    Failure::failed("it has no way to copy this")
}
