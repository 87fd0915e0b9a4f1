//! Programs that copy a tree or change it.

use std::path::Path;
use std::process::Command;

use crate::corpus::tree::{Listing, digest};
use crate::failure::Failure;
use crate::measure::{Cache, Measure};
use crate::results::Measured;
use crate::step::StepContext;
use crate::subject::Access;
use crate::work::Step;
use crate::work::copying::{copies_trees, fresh, pull, push, removed_after};
use crate::work::script::{program, script};

use super::expected::Expected;
use super::{ARCHIVE, DEADLINE_FACTOR, EXPECTED, SOURCE, measure};

/// A program that copies the tree or changes one.
pub(super) struct Copy {
    pub(super) way: Way,
}

/// Which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the place to a local disk.
    Out,
    /// From a local disk to the place.
    In,
    /// The same by `cp`, on a mount.
    CopyIn,
    /// The archive, unpacked on a mount.
    Unpack,
    /// Away with it, on a mount.
    Remove,
}

impl Step for Copy {
    fn measure(&self) -> Measure {
        let (id, title, cache) = match self.way {
            Way::Out => ("copy_out", "tree copied out (a mount: rsync -a)", Cache::Cold),
            Way::In => ("copy_in", "tree copied in (a mount: rsync -a)", Cache::None),
            Way::CopyIn => ("cp_in", "tree copied in, cp -r", Cache::None),
            Way::Unpack => ("extract", "tree unpacked, tar xf", Cache::None),
            Way::Remove => ("rm", "tree removed, rm -rf", Cache::Cold),
        };
        Measure { id: format!("tree.{id}"), ..measure(id, title, cache) }
    }

    fn deadline_factor(&self) -> f64 {
        DEADLINE_FACTOR
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        match self.way {
            Way::Out | Way::In => copies_trees(access),
            Way::CopyIn | Way::Unpack | Way::Remove => matches!(access, Access::Directory(_)),
        }
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let expected = Expected::load(&context.corpus.join(EXPECTED))?;
        let mut measured = match self.way {
            Way::Out => copy_out(context, &expected)?,
            Way::In => copy_in(context, &expected, SOURCE, sync)?,
            Way::CopyIn => copy_in(context, &expected, SOURCE, copy)?,
            Way::Unpack => copy_in(context, &expected, ARCHIVE, unpack)?,
            Way::Remove => remove(context)?,
        };
        expected.fill(&mut measured);
        Ok(measured)
    }
}

fn copy_out(context: &mut StepContext<'_>, expected: &Expected) -> Result<Measured, Failure> {
    let copy = context.scratch.join("out");
    let mounted = matches!(context.access(), Access::Directory(_));
    let measured = pull(context, Path::new(SOURCE), &copy, sync)?;
    expected.check(&digest(&copy)?, mounted)?;
    Ok(measured)
}

fn copy_in(
    context: &mut StepContext<'_>,
    expected: &Expected,
    from: &str,
    on_mount: fn(&Path, &Path) -> Command,
) -> Result<Measured, Failure> {
    let to = fresh("tree/in");
    let mounted = matches!(context.access(), Access::Directory(_));
    removed_after(context, &to, |context| {
        let from = context.corpus.join(from);
        let measured = push(context, &from, &to, on_mount)?;
        expected.check(&context.subject.place().digest(&to)?, mounted)?;
        Ok(measured)
    })
}

/// The tree to be removed is put there behind the client's back, which is why this is cold: a
/// client that has listed the directory above may rightly say that there is no such tree. What has
/// no back, a target or the disk itself, has all of it cached then, and forgets it again.
fn remove(context: &mut StepContext<'_>) -> Result<Measured, Failure> {
    let above = fresh("tree/rm");
    removed_after(context, &above, |context| {
        let tree = above.join("source");
        context.subject.place().put(&context.corpus.join(SOURCE), &tree)?;
        if context.subject.info().is_there() {
            context.session.forget(context.executor)?;
        }
        let Access::Directory(dir) = context.access() else {
            return Err(Failure::failed("it has no directory to remove something from"));
        };
        let mut command = program("rm");
        command.arg("-rf").arg(dir.join(&tree));
        let mut measured = context.timed(command)?.1;
        context.settle(&mut measured)?;
        if context.subject.place().digest(&above)? != Listing::default().digest() {
            return Err(Failure::wrong("rm: what was removed is still there"));
        }
        Ok(measured)
    })
}

fn sync(from: &Path, to: &Path) -> Command {
    script(r#"rsync -a "$1/" "$2/""#, &[from, to])
}

fn copy(from: &Path, to: &Path) -> Command {
    let mut command = program("cp");
    command.arg("-r").arg(from).arg(to);
    command
}

/// As a user: not with the owners that the archive has.
fn unpack(from: &Path, to: &Path) -> Command {
    script(r#"mkdir "$2" && tar --no-same-owner -C "$2" -xf "$1""#, &[from, to])
}
