//! What the sources do not have: deleted at the target when all else is done, or not at all.
//!
//! While the run goes on the names are only gathered, each with its directory, whose times are set
//! when nothing is to be deleted in it any more. What the filter excludes is never deleted, and
//! neither is a directory that has some of it.

use std::sync::Arc;

use base::{AttrChange, Errno, FileKind, RemotePath, Result};
use tokio::task::JoinSet;

use crate::dir::Dir;
use crate::outcome::{Doing, Problem};
use crate::plan::list;
use crate::run::Core;
use crate::step::Step;

/// Names that are removed at once.
const AT_ONCE: usize = 64;

/// Something to be deleted, with all below it.
#[derive(Clone)]
pub(crate) struct Deletion {
    pub(crate) dir: Arc<Dir>,
    /// Relative to the target.
    pub(crate) name: RemotePath,
    pub(crate) kind: FileKind,
}

/// What waits for everything else to be done.
#[derive(Default)]
pub(crate) struct Late {
    pub(crate) deletions: Vec<Deletion>,
    /// Steps for which a directory must go first.
    pub(crate) steps: Vec<Step>,
}

/// Deletes, if nothing has failed. Gives the steps that could not be carried out before.
pub(crate) async fn carry_out(core: &Arc<Core>) -> Vec<Step> {
    let Late { deletions, steps } =
        std::mem::take(&mut *core.late.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    if deletions.is_empty() {
        return steps;
    }
    if core.stop_reason().is_some() || core.has_problems() {
        return withhold(core, deletions.len() as u64, steps);
    }
    if let Some(most) = core.job.options.max_delete {
        let mut count = 0;
        for deletion in &deletions {
            count += count_tree(core, &deletion.name, deletion.kind, most + 1 - count).await;
            if count > most {
                return withhold(core, count, steps);
            }
        }
    }
    let mut tasks = JoinSet::new();
    for deletion in deletions {
        if tasks.len() >= AT_ONCE {
            tasks.join_next().await;
        }
        let core = core.clone();
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = core.stopped() => core.withheld(1),
                () = delete(&core, &deletion) => {}
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    steps
}

/// Notes that nothing is deleted, and that what waits for it cannot be done.
fn withhold(core: &Core, deletions: u64, steps: Vec<Step>) -> Vec<Step> {
    core.withheld(deletions);
    if core.stop_reason().is_none() {
        for step in steps {
            let name = step.name.clone();
            core.ended(&step, Err(Problem::DirectoryInTheWay { name }));
        }
    }
    Vec::new()
}

async fn delete(core: &Arc<Core>, deletion: &Deletion) {
    let ready = match core.job.options.dry_run {
        true => Ok(()),
        false => deletion.dir.ready_for_change().await,
    };
    match ready {
        Ok(()) => drop(remove_tree(core, &deletion.name, deletion.kind).await),
        Err(errno) => {
            let name = deletion.name.clone();
            let problem = Problem::Failed { name, doing: Doing::Delete, errno };
            core.deleted(&deletion.name, deletion.kind, Err(&problem));
        }
    }
}

/// How many entries a deletion takes away, counted up to `most`. What cannot be listed counts one.
async fn count_tree(core: &Core, name: &RemotePath, kind: FileKind, most: u64) -> u64 {
    let mut count = 1;
    let mut dirs = vec![name.clone()];
    while kind == FileKind::Directory
        && count < most
        && let Some(dir) = dirs.pop()
    {
        let target = &core.job.target;
        for (entry, attr) in list(&target.remote, &target.path_of(&dir)).await.unwrap_or_default() {
            let below = dir.join(&entry);
            if !core.job.options.filter.excludes(&below, attr.is_dir()) {
                count += 1;
                if attr.is_dir() {
                    dirs.push(below);
                }
            }
        }
    }
    count
}

/// Removes what is at `name`, from the bottom up; tells whether all of it is gone.
async fn remove_tree(core: &Arc<Core>, name: &RemotePath, kind: FileKind) -> bool {
    if kind != FileKind::Directory {
        return remove(core, name, kind).await;
    }
    let path = core.job.target.path_of(name);
    let entries = match list(&core.job.target.remote, &path).await {
        Ok(entries) => entries,
        Err(Errno::ENOENT) => return true,
        Err(errno) => {
            let problem = Problem::Failed { name: name.clone(), doing: Doing::Delete, errno };
            core.deleted(name, kind, Err(&problem));
            return false;
        }
    };
    let mut empty = true;
    let mut tasks = JoinSet::new();
    for (entry, attr) in entries {
        let below = name.join(&entry);
        if core.job.options.filter.excludes(&below, attr.is_dir()) {
            empty = false;
            continue;
        }
        if attr.is_dir() {
            // One after the other, so that what is open is as much as the tree is deep.
            empty &= Box::pin(remove_tree(core, &below, attr.kind)).await;
            continue;
        }
        if tasks.len() >= AT_ONCE {
            empty &= tasks.join_next().await.is_some_and(|gone| gone.unwrap_or(false));
        }
        let core = core.clone();
        tasks.spawn(async move { remove(&core, &below, attr.kind).await });
    }
    while let Some(gone) = tasks.join_next().await {
        empty &= gone.unwrap_or(false);
    }
    empty && remove(core, name, kind).await
}

/// Removes one entry, a directory only when it is empty.
async fn remove(core: &Core, name: &RemotePath, kind: FileKind) -> bool {
    let removed = match core.job.options.dry_run {
        true => Ok(()),
        false => remove_at(core, &core.job.target.path_of(name), kind).await,
    };
    match removed {
        Ok(()) | Err(Errno::ENOENT) => core.deleted(name, kind, Ok(())),
        Err(errno) => {
            let problem = Problem::Failed { name: name.clone(), doing: Doing::Delete, errno };
            core.deleted(name, kind, Err(&problem));
            return false;
        }
    }
    true
}

async fn remove_at(core: &Core, path: &RemotePath, kind: FileKind) -> Result<()> {
    match (remove_once(core, path, kind).await, path.parent()) {
        // Its directory may keep its owner out, and is about to be deleted itself.
        (Err(Errno::EACCES), Some(parent)) => {
            let change = AttrChange { perm: Some(0o700), ..AttrChange::default() };
            let widened = core.job.target.remote.setattr(&parent, change).await;
            widened.map_err(|_| Errno::EACCES)?;
            remove_once(core, path, kind).await
        }
        (removed, _) => removed,
    }
}

async fn remove_once(core: &Core, path: &RemotePath, kind: FileKind) -> Result<()> {
    let target = &core.job.target.remote;
    match kind {
        FileKind::Directory => target.rmdir(path).await,
        _ => target.unlink(path).await,
    }
}
