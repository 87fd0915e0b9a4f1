//! Copies between this machine and a place, in the way that a subject has: a mount by an ordinary
//! program, a copier by itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

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
    context.settle(&mut measured)?;
    Ok(measured)
}

/// Does what writes to `path` in the place, and removes that whatever comes of it.
pub(super) fn removed_after<T>(
    context: &mut StepContext<'_>,
    path: &Path,
    write: impl FnOnce(&mut StepContext<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let written = write(context);
    removed(context, path, written)
}

/// Removes what was written to `path` in the place, whatever came of it; of two failures the first
/// one is told.
///
/// What hangs would hang once more: after a step that was not done in time nothing is removed from
/// a place to which only the subject, or a link, leads. It goes with the place itself.
pub(super) fn removed<T>(
    context: &StepContext<'_>,
    path: &Path,
    written: Result<T, Failure>,
) -> Result<T, Failure> {
    let place = context.subject.place();
    if matches!(written, Err(Failure::TimedOut { .. })) && place.local().is_none() {
        return written;
    }
    let removed = place.remove(path);
    let value = written?;
    removed?;
    Ok(value)
}

fn cannot() -> Failure {
    Failure::failed("it has no way to copy this")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::files::Files;
    use crate::work::testing::{Use, World, tiny};

    fn outcomes() -> [Result<(), Failure>; 3] {
        [Ok(()), Err(Failure::wrong("a byte")), Err(Failure::timed_out(Default::default()))]
    }

    #[test]
    fn what_was_written_is_removed_but_not_where_it_would_hang_again() {
        let local = World::of(&Files, tiny());
        let mounted = World::of(&Files, tiny()).mounted();
        for (world, is_left) in [(local, [false, false, false]), (mounted, [false, false, true])] {
            for (outcome, is_left) in outcomes().into_iter().zip(is_left) {
                let path = world.place().join("written");
                std::fs::write(&path, "").unwrap();
                let told = world.with(Use::Target, |context| {
                    removed(context, Path::new("written"), outcome.clone())
                });
                assert_eq!(told, outcome);
                assert_eq!(path.exists(), is_left, "{outcome:?}");
            }
        }
    }

    #[test]
    fn of_two_failures_the_first_is_told() {
        let world = World::of(&Files, tiny());
        // It is not below the place.
        let told = |outcome| {
            world.with(Use::Target, |context| removed(context, Path::new("../x"), outcome))
        };
        let wrong = Failure::wrong("a byte");
        assert_eq!(told(Err(wrong.clone())), Err(wrong));
        assert!(matches!(told(Ok(())), Err(Failure::Failed { .. })));
    }
}
