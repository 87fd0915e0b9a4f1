//! Symbolic links, devices and pipes, and further names of a file.

use std::sync::Arc;

use base::{Errno, RemotePath, RenameMode};

use super::{ATTEMPTS, Outcome, Unfinished, failed, remove_obstacle, remove_stale, taken};
use crate::outcome::{Doing, Fault, Problem, Refused, is_refusal};
use crate::run::{Copied, Core, attributes};
use crate::step::Step;
use crate::temporary::{self, MachineRun};
use crate::xattr;

/// Makes a symbolic link, in the place of what has its name.
pub(crate) async fn symlink(core: &Core, step: &Step, left: &Unfinished) -> Outcome<()> {
    let source = &core.job.sources[step.source].tree.remote;
    let leads_to = match source.readlink(&step.from).await {
        Err(Errno::ENOENT) => return Err(Fault::Vanished.of(&step.name)),
        read => read.map_err(failed(step, Doing::Read))?,
    };
    own(core, step, left, &Made::Link { leads_to }).await
}

/// Makes a device or a pipe, in the place of what has its name.
pub(crate) async fn special(core: &Core, step: &Step, left: &Unfinished) -> Outcome<()> {
    own(core, step, left, &Made::Special).await
}

/// Makes an entry of its own, with all of its attributes.
async fn own(core: &Core, step: &Step, left: &Unfinished, made: &Made) -> Outcome<()> {
    let refused = replacing(core, step, left, made).await?;
    remove_stale(core, step).await;
    refused.of(&step.name)
}

/// Makes the step's name a further one of the file that `first` has become.
pub(crate) async fn hard_link(
    core: &Arc<Core>,
    step: &Step,
    first: &RemotePath,
    left: &Unfinished,
) -> Outcome<Copied> {
    if !step.names.as_ref().is_some_and(|names| names.is_done()) {
        let words = format!("not linked, since \"{first}\", the same file, was not copied");
        return Err(Fault::Other { words }.of(&step.name));
    }
    let existing = core.job.target.path_of(first);
    let linked = replacing(core, step, left, &Made::Name { existing }).await;
    match linked {
        Ok(_) => {
            remove_stale(core, step).await;
            Ok(Copied::default())
        }
        Err(Problem { fault: Fault::Failed { errno, .. }, .. }) if makes_none(errno) => {
            super::file(core, step, left).await
        }
        Err(problem) => Err(problem),
    }
}

/// Whether the target makes no hard links, no more of this file, or none between these directories:
/// a copy takes more room. A file system without hard links returns `EPERM`, which OpenSSH's server
/// does not distinguish from `EACCES`; without permission, the copy fails, too.
fn makes_none(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENOSYS
            | Errno::EOPNOTSUPP
            | Errno::EPERM
            | Errno::EACCES
            | Errno::EMLINK
            | Errno::EXDEV
    )
}

/// What takes one call to make.
enum Made {
    Link { leads_to: Vec<u8> },
    Special,
    Name { existing: RemotePath },
}

/// Makes something under a temporary name, and gives it its own. Where another run takes it away
/// meanwhile, it is made again. Returns what was refused.
async fn replacing(core: &Core, step: &Step, left: &Unfinished, made: &Made) -> Outcome<Refused> {
    let to = core.job.target.path_of(&step.name);
    let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
        return Err(failed(step, Doing::Make)(Errno::EEXIST));
    };
    for _ in 0..ATTEMPTS {
        let path = parent.join(&temporary::name(&name, &step.attr, 0, MachineRun::UNKNOWN));
        left.set(Some(path.clone()));
        let end = put(core, step, made, &path, &to).await;
        if !matches!(end, Ok(Some(_))) || matches!(made, Made::Name { .. }) {
            // A rename between two names of one file does nothing, and leaves both.
            left.remove(core).await;
        }
        left.set(None);
        if let Some(refused) = end? {
            return Ok(refused);
        }
    }
    Err(taken(step))
}

/// Makes it as `path`, and renames it; `None` where another run has taken it away. Returns what was
/// refused.
async fn put(
    core: &Core,
    step: &Step,
    made: &Made,
    path: &RemotePath,
    to: &RemotePath,
) -> Outcome<Option<Refused>> {
    let target = &core.job.target.remote;
    match made {
        Made::Link { leads_to } => target.symlink(leads_to, path).await,
        Made::Special => {
            let device = match (&step.attr.inode, &core.here[step.source]) {
                (None, Some(here)) => here.device(&step.from).map_err(failed(step, Doing::Read))?,
                (inode, _) => inode.map_or((0, 0), |inode| inode.rdev),
            };
            // With no rights before it has its owner.
            target.mknod(path, step.attr.kind, 0, device).await
        }
        Made::Name { existing } => target.link(existing, path).await,
    }
    .map_err(failed(step, Doing::Make))?;
    let mut refused = Refused::default();
    if !matches!(made, Made::Name { .. }) {
        if core.copies_xattrs(step.source) {
            let list = xattr::read(core, step.source, &step.from, &step.attr).await;
            let list = list.map_err(failed(step, Doing::Read))?;
            let set = xattr::write(&**target, path, &list).await;
            refused.xattrs = set.map_err(failed(step, Doing::SetAttr))?;
        }
        match core.set_by_name(path, &step.attr, attributes(core, &step.attr)).await {
            Err(Errno::ENOENT) => return Ok(None),
            // It is there for all with any mode, and its times are all that it lacks.
            Err(errno) if matches!(made, Made::Link { .. }) && is_refusal(errno) => {
                refused.attributes = Some(errno);
            }
            applied => applied.map_err(failed(step, Doing::SetAttr))?,
        }
    }
    remove_obstacle(core, step, to).await?;
    match target.rename(path, to, RenameMode::Replace).await {
        Err(Errno::ENOENT) => Ok(None),
        renamed => renamed.map(|()| Some(refused)).map_err(failed(step, Doing::Rename)),
    }
}
