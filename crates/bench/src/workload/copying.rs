//! Copies between this machine and a storage: on a mount by an ordinary program, otherwise by the
//! subject's own program. Trees are compared with [`Expected`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::corpus;
use crate::corpus::tree::{Tally, survey};
use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::results::Measured;
use crate::step::StepContext;
use crate::storage::SCRIPT_LIMIT;
use crate::subject::{Access, Direction};

use super::program;

/// What a copy of a tree has to be; kept in a file of the corpus.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Expected(pub(super) Tally);

impl Expected {
    /// The file for a tree of the corpus.
    fn file(corpus: &Path, tree: &str) -> PathBuf {
        corpus.join(format!("{tree}.json"))
    }

    /// Surveys a tree of the corpus, for [`Expected::load`].
    pub(super) fn save(corpus: &Path, tree: &str) -> Result<()> {
        save(&Expected(survey(&corpus.join(tree))?), &Expected::file(corpus, tree))
    }

    pub(super) fn load(corpus: &Path, tree: &str) -> Result<Expected> {
        load(&Expected::file(corpus, tree))
    }

    /// Completes a verified sample.
    pub(super) fn fill(&self, measured: Measured) -> Measured {
        Measured {
            bytes: self.0.bytes,
            operations: self.0.files + self.0.directories,
            verified: true,
            ..measured
        }
    }
}

/// Copies a tree of this machine to a path that does not exist.
pub(super) fn copy_local(from: &Path, to: &Path, executor: &Executor) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut copy = program("cp");
    copy.arg("-a").arg("--").arg(from.join(".")).arg(to);
    executor.succeed(copy, SCRIPT_LIMIT).map(drop)
}

/// Writes a value to a file of the corpus.
pub(super) fn save(value: &impl Serialize, file: &Path) -> Result<()> {
    let text = serde_json::to_vec(value).map_err(|error| Failure::failed(error.to_string()))?;
    Ok(fs::write(file, text)?)
}

/// Reads a value that [`save`] has written.
pub(super) fn load<T: DeserializeOwned>(file: &Path) -> Result<T> {
    serde_json::from_slice(&fs::read(file)?).map_err(|error| Failure::failed(error.to_string()))
}

/// A path in a storage that no client can have cached.
pub(super) fn fresh(prefix: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// The command by which a mount copies, from and to a path.
pub(super) type OnMount = fn(&Path, &Path) -> Command;

/// Copies `source`, which is in the storage and in the corpus, to a path of the other side. Data
/// that the subject writes back later are waited for, within the measured time.
fn copy(
    context: &mut StepContext<'_>,
    direction: Direction,
    source: &str,
    to: &Path,
    on_mount: OnMount,
) -> Result<Measured> {
    let original = context.corpus.join(source);
    let (stored, local) = match direction {
        Direction::Out => (Path::new(source), to),
        Direction::In => (to, &*original),
    };
    let command = match context.access() {
        Access::Directory(dir) => {
            let shown = dir.join(stored);
            let [from, to] = direction.sorted(&*shown, local);
            on_mount(from, to)
        }
        Access::Copier(copier) | Access::Stream(copier) => {
            copier.copy(direction, original.is_dir(), stored, local)
        }
        Access::Sftp(_) | Access::Nfs { .. } => {
            return Err(Failure::failed("the subject cannot copy this"));
        }
    };
    let mut measured = context.timed(command)?.1;
    if direction == Direction::In {
        context.settle(&mut measured)?;
    }
    Ok(measured)
}

/// Copies `sources`, which are trees, archives or files, one after the other to one new target, and
/// compares the digest of the last copy, which is the measured one. New targets in the storage
/// begin with `prefix`.
pub(super) fn copy_all(
    context: &mut StepContext<'_>,
    direction: Direction,
    sources: &[&str],
    prefix: &str,
    on_mount: OnMount,
    expected: &str,
) -> Result<Measured> {
    let check = |digest: &str| same(digest, expected, "the copy differs from the original");
    let mut measured = Measured::default();
    if direction == Direction::Out {
        let to = context.scratch.join("out");
        for source in sources {
            measured = copy(context, direction, source, &to, on_mount)?;
        }
        check(&corpus::digest(&to)?)?;
        return Ok(measured);
    }
    let to = fresh(prefix);
    removed_after(context, &to, |context| {
        for source in sources {
            measured = copy(context, direction, source, &to, on_mount)?;
        }
        check(&context.subject.storage().digest(&to)?)?;
        Ok(measured)
    })
}

/// Copies trees or archives; the last copy must be the tree `expected` of the corpus.
pub(super) fn copy_trees(
    context: &mut StepContext<'_>,
    direction: Direction,
    sources: &[&str],
    prefix: &str,
    expected: &str,
    on_mount: OnMount,
) -> Result<Measured> {
    let expected = Expected::load(context.corpus, expected)?;
    let digest = &expected.0.digest;
    let measured = copy_all(context, direction, sources, prefix, on_mount, digest)?;
    Ok(expected.fill(measured))
}

/// Runs `write`, which writes to `path` in the storage, and removes that after any result.
pub(super) fn removed_after<T>(
    context: &mut StepContext<'_>,
    path: &Path,
    write: impl FnOnce(&mut StepContext<'_>) -> Result<T>,
) -> Result<T> {
    let written = write(context);
    removed(context, path, written)
}

/// Removes `path` from the storage after any result; of two failures the first one is returned.
///
/// After a time-out nothing is removed from a storage that only the subject or a link leads to,
/// since that would time out as well. It is removed with the storage.
pub(super) fn removed<T>(context: &StepContext<'_>, path: &Path, written: Result<T>) -> Result<T> {
    let storage = context.subject.storage();
    if matches!(written, Err(Failure::TimedOut { .. })) && storage.local().is_none() {
        return written;
    }
    let removed = storage.remove(path);
    let value = written?;
    removed?;
    Ok(value)
}

/// Compares digests; `why` is what it means when they differ.
pub(super) fn same(digest: &str, expected: &str, why: &str) -> Result<()> {
    if digest == expected { Ok(()) } else { Err(Failure::wrong(why)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::files::Files;
    use crate::workload::tests::world::{Use, World, tiny};

    fn outcomes() -> [Result<(), Failure>; 3] {
        [Ok(()), Err(Failure::wrong("a byte")), Err(Failure::timed_out(Default::default()))]
    }

    #[test]
    fn what_was_written_is_removed_but_not_where_it_would_hang_again() {
        let local = World::of(&Files, tiny());
        let mounted = World::of(&Files, tiny()).mounted();
        for (world, is_left) in [(local, [false, false, false]), (mounted, [false, false, true])] {
            for (outcome, is_left) in outcomes().into_iter().zip(is_left) {
                let path = world.storage().join("written");
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
    fn of_two_failures_the_first_is_returned() {
        let world = World::of(&Files, tiny());
        // It is not below the storage.
        let told = |outcome| {
            world.with(Use::Target, |context| removed(context, Path::new("../x"), outcome))
        };
        let wrong = Failure::wrong("a byte");
        assert_eq!(told(Err(wrong.clone())), Err(wrong));
        assert!(matches!(told(Ok(())), Err(Failure::Failed { .. })));
    }
}
