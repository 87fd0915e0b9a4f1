//! The start of a plan: the target itself, and the kind of each source.

use std::sync::Arc;

use base::{Attr, Errno, FileKind, RemotePath};
use tokio::sync::mpsc;

use super::compare::{self, left_of};
use super::decide::Verdict;
use super::{FileSystems, Found};
use crate::dir::{Dir, DirDone, Need, Place};
use crate::job::JobError;
use crate::outcome::{Doing, Problem};
use crate::run::Core;
use crate::step::{Action, Step};

/// Looks at the target and at the sources: what the walk begins with.
pub(crate) async fn look(
    core: &Arc<Core>,
    over: mpsc::UnboundedSender<DirDone>,
) -> Result<Found, JobError> {
    let target = &core.job.target;
    let there = match target.remote.lstat(&target.path).await {
        Ok(attr) if attr.is_dir() => Some(attr),
        Ok(_) => return Err(JobError::TargetNoDirectory),
        Err(Errno::ENOENT) if !target.path.is_root() => None,
        Err(errno) => return Err(JobError::Target(errno)),
    };
    // The user's own directory keeps its mode, unless the one source gives it another (`whole`).
    let need = if there.is_some() { Need::Nothing } else { Need::Make };
    let path = target.path.clone();
    let place = Place { path, need, ..Place::default() };
    let root = Dir::new(place, target.remote.clone(), over);
    let mut found = Found::default();
    for index in 0..core.job.sources.len() {
        // One that becomes the target itself is the only one (`Job::check`).
        let looked = match core.job.sources[index].to.is_root() {
            true => whole(core, &root, there, &mut found).await,
            false => one(core, index, &root, there.is_some(), &mut found).await,
        };
        if let Err(problem) = looked {
            core.problem(&problem);
        }
    }
    compare::note_new_names(core, &root, &found.steps, false);
    Ok(found)
}

/// The attributes of a source.
async fn source(core: &Core, index: usize) -> Result<Attr, Problem> {
    let source = &core.job.sources[index];
    let attr = source.tree.remote.lstat(&source.tree.path).await;
    attr.map_err(Problem::failed(&source.to, Doing::LookSource))
}

/// A source whose entries become the target's own.
async fn whole(
    core: &Arc<Core>,
    root: &Arc<Dir>,
    there: Option<Attr>,
    found: &mut Found,
) -> Result<(), Problem> {
    let attr = source(core, 0).await?;
    let name = RemotePath::root();
    if attr.kind != FileKind::Directory {
        return Err(Problem::failed(&name, Doing::ListSource)(Errno::ENOTDIR));
    }
    let paths = (core.job.sources[0].tree.path.clone(), name);
    let mut step = Step::new(0, paths, attr, there, root.clone());
    step.action = match &there {
        None => Action::MakeDir,
        there => compare::action(core, &attr, there.as_ref(), Verdict::SameContent),
    };
    let file_systems = FileSystems::of(core, 0, &attr).await;
    // Nothing above it is of this run, also not `root`, which is the same directory.
    compare::enter_dir(core, step, None, file_systems, found).await;
    Ok(())
}

/// A source that becomes an entry of the target.
async fn one(
    core: &Arc<Core>,
    index: usize,
    root: &Arc<Dir>,
    root_there: bool,
    found: &mut Found,
) -> Result<(), Problem> {
    let attr = source(core, index).await?;
    let name = core.job.sources[index].to.clone();
    if core.job.options.filter.excludes(&name, attr.is_dir()) {
        return Ok(());
    }
    let mut there = None;
    if root_there {
        there = match core.job.target.remote.lstat(&core.job.target.path_of(&name)).await {
            Err(Errno::ENOENT) => None,
            seen => Some(seen.map_err(Problem::failed(&name, Doing::LookTarget))?),
        };
    }
    let file = name.file_name().filter(|_| attr.kind == FileKind::Regular && root.is_there());
    let paths = (core.job.sources[index].tree.path.clone(), name);
    let mut step = Step::new(index, paths, attr, there, root.clone());
    if let Some(file) = file {
        step.partials = left_of(core, root, &file).await;
    }
    let file_systems = FileSystems::of(core, index, &attr).await;
    for (step, verdict) in compare::settle(core, vec![step]).await {
        compare::enter(core, file_systems, step, verdict, found).await;
    }
    Ok(())
}
