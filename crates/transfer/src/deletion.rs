//! Entries that the sources do not have: deleted at the target after everything else, or not at
//! all.
//!
//! During the run they are only collected, each with its directory, whose times are set after the
//! last deletion in it. Entries that the filter excludes are never deleted, nor are directories
//! that contain some of them. With `-x` the same holds for what is mounted in the target, and for
//! the mount points.
//!
//! A listing does not prove that a name is absent: OpenSSH's server omits entries that it cannot
//! `lstat`, such as the mount point of a dead file system, and a name may be replaced meanwhile. So
//! each source is queried again for each name, and only `ENOENT` and `ENOTDIR` allow the deletion.
//! Any other answer is a problem, and with a problem nothing is deleted.

use std::sync::Arc;

use base::{Attr, AttrChange, Errno, FileKind, Remote, RemotePath, Result};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::collisions::NewNames;
use crate::dir::Dir;
use crate::outcome::{Doing, Fault, Problem};
use crate::plan::{Entries, is_foreign, list};
use crate::run::Core;
use crate::step::Step;
use crate::task::at_most;

/// Names that are removed at once.
const AT_ONCE: usize = 64;

/// Names that are queried at the sources at once.
const ASKED_AT_ONCE: usize = 256;

/// Something to be deleted, with all below it.
#[derive(Clone)]
pub(crate) struct Deletion {
    pub(crate) dir: Arc<Dir>,
    /// Relative to the target.
    pub(crate) name: RemotePath,
    pub(crate) attr: Attr,
    /// Where a source would have it. `None` where the source has something else of the name.
    pub(crate) absent: Option<Absent>,
    /// Directories of other file systems than this one stay, if there is one.
    pub(crate) file_system: Option<u64>,
}

/// A name that a source has not listed.
#[derive(Clone)]
pub(crate) struct Absent {
    /// The number of the source in the job.
    pub(crate) source: usize,
    /// In the source's remote.
    pub(crate) path: RemotePath,
    /// What the source has listed under this name in another case or form. A source that does not
    /// tell such names apart answers with it.
    pub(crate) alias: Option<Attr>,
}

/// What waits until everything else is done.
#[derive(Default)]
pub(crate) struct DeferredDeletions {
    pub(crate) deletions: Vec<Deletion>,
    /// Steps for which a directory must go first.
    pub(crate) steps: Vec<Step>,
    /// Names that are checked first (`collisions`).
    pub(crate) new_names: Vec<NewNames>,
}

/// Deletes, if nothing has failed. Returns the steps that could not be executed before.
pub(crate) async fn carry_out(core: &Arc<Core>) -> Vec<Step> {
    let DeferredDeletions { deletions, steps, .. } = std::mem::take(&mut *core.deferred.lock());
    if deletions.is_empty() {
        return steps;
    }
    let is_withheld = core.job.options.withhold_deletions;
    let may_go_on = || core.stop_reason().is_none() && !core.has_problems() && !is_withheld;
    if may_go_on() {
        ask_sources(core, &deletions).await;
    }
    if !may_go_on() {
        return withhold(core, deletions.len() as u64, steps);
    }
    if let Some(most) = core.job.options.max_delete {
        let mut count = 0;
        for deletion in &deletions {
            let more = most.saturating_sub(count).saturating_add(1);
            let counted = core.unless_stopped(count_tree(core, deletion, more)).await;
            match counted.transpose() {
                Ok(Some(counted)) => count += counted,
                stopped => {
                    if let Err(problem) = stopped {
                        core.problem(&problem);
                    }
                    return withhold(core, deletions.len() as u64, steps);
                }
            }
            if count > most {
                core.limit_deletions();
                return withhold(core, count, steps);
            }
        }
    }
    let works = deletions.into_iter().map(|deletion| {
        let core = core.clone();
        async move {
            match core.stop_reason() {
                Some(_) => core.withheld(1),
                None => delete(&core, &deletion).await,
            }
        }
    });
    at_most(AT_ONCE, works).await;
    steps
}

/// Asks the sources for what they did not list, and notes a problem for each name that is not
/// certainly absent.
async fn ask_sources(core: &Arc<Core>, deletions: &[Deletion]) {
    let absent = |deletion: &Deletion| Some((deletion.absent.clone()?, deletion.name.clone()));
    let asked: Vec<_> = deletions.iter().filter_map(absent).collect();
    let works = asked.into_iter().map(|(absent, name)| {
        let core = core.clone();
        async move {
            let source = &core.job.sources[absent.source].tree.remote;
            let Some(seen) = core.unless_stopped(source.lstat(&absent.path)).await else { return };
            match seen {
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                // Listing it may have set the time of access.
                Ok(attr) if is_alias(&absent, attr) => {}
                Ok(_) => core.problem(&Fault::Unlisted.of(&name)),
                Err(errno) => core.problem(&Problem::failed(&name, Doing::LookSource)(errno)),
            }
        }
    });
    at_most(ASKED_AT_ONCE, works).await;
}

/// Whether these are the attributes of the entry that has this name where case is folded.
fn is_alias(absent: &Absent, attr: Attr) -> bool {
    absent.alias.is_some_and(|alias| attr == Attr { atime: attr.atime, ..alias })
}

/// Notes that nothing is deleted, and that what waits for it cannot be done.
fn withhold(core: &Core, deletions: u64, steps: Vec<Step>) -> Vec<Step> {
    core.withheld(deletions);
    if core.stop_reason().is_none() {
        for step in steps {
            let name = step.name.clone();
            core.ended(&step, Err(Fault::DirectoryInTheWay.of(&name)));
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
        Ok(()) => {
            let Deletion { name, attr, file_system, .. } = deletion;
            remove_tree(core, name, *attr, *file_system, None).await;
        }
        Err(errno) => failed(core, &deletion.name, deletion.attr.kind, errno),
    }
}

/// The number of entries that a deletion removes, up to `most`.
///
/// # Errors
/// If a directory cannot be listed: only the deletion itself changes its mode.
async fn count_tree(
    core: &Core,
    deletion: &Deletion,
    most: u64,
) -> std::result::Result<u64, Problem> {
    let Deletion { name, attr, file_system, .. } = deletion;
    if !attr.is_dir() {
        return Ok(1);
    }
    let mut count = 0;
    let mut dirs = vec![name.clone()];
    while count < most
        && let Some(dir) = dirs.pop()
    {
        let target = &core.job.target;
        let entries = match list_own(&target.remote, &target.path_of(&dir), *file_system).await {
            Ok(Some(entries)) => entries,
            Ok(None) => continue,
            Err(Errno::ENOENT) => Vec::new(),
            Err(errno) => return Err(Problem::failed(&dir, Doing::ListTarget)(errno)),
        };
        count += 1;
        for (entry, attr) in entries {
            let below = dir.join(&entry);
            if core.job.options.keeps(&below, attr.is_dir()) {
                continue;
            }
            match attr.is_dir() {
                true => dirs.push(below),
                false => count += 1,
            }
        }
    }
    Ok(count)
}

/// Lists a directory; `None` if it is of another file system.
async fn list_own(
    remote: &Arc<dyn Remote>,
    path: &RemotePath,
    file_system: Option<u64>,
) -> Result<Option<Entries>> {
    match is_foreign(remote, path, file_system).await? {
        true => Ok(None),
        false => list(remote, path).await.map(Some),
    }
}

/// A directory that is being emptied. Its mode may keep its owner out: then it is changed once, and
/// is as it was if the directory stays.
struct Emptied {
    path: RemotePath,
    perm: u32,
    file_system: Option<u64>,
    widened: OnceCell<bool>,
}

impl Emptied {
    fn new(core: &Core, name: &RemotePath, perm: u32, file_system: Option<u64>) -> Emptied {
        let path = core.job.target.path_of(name);
        Emptied { path, perm, file_system, widened: OnceCell::new() }
    }

    /// Lets the owner in; whether that may help.
    async fn widen(&self, core: &Core) -> bool {
        if self.perm & 0o700 == 0o700 || core.job.options.dry_run {
            return false;
        }
        let widen = || async { set_perm(core, &self.path, self.perm | 0o700).await.is_ok() };
        *self.widened.get_or_init(widen).await
    }

    /// It stays.
    async fn restore(&self, core: &Core) {
        if self.widened.get() == Some(&true) && !core.job.target.remote.is_disconnected() {
            let restored = set_perm(core, &self.path, self.perm).await;
            tracing::debug!("{:?}: its mode is {:o} again: {restored:?}", self.path, self.perm);
        }
    }
}

async fn set_perm(core: &Core, path: &RemotePath, perm: u32) -> Result<()> {
    let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
    core.job.target.remote.setattr(path, change).await
}

/// Removes the tree `name`, from the bottom up; returns whether all of it was removed. It is in
/// `parent`, if that is removed too.
async fn remove_tree(
    core: &Arc<Core>,
    name: &RemotePath,
    attr: Attr,
    file_system: Option<u64>,
    parent: Option<&Arc<Emptied>>,
) -> bool {
    if !attr.is_dir() {
        return remove(core, name, attr.kind, parent).await;
    }
    let own = Arc::new(Emptied::new(core, name, attr.perm, file_system));
    let gone = empty(core, name, &own).await && remove(core, name, attr.kind, parent).await;
    if !gone {
        own.restore(core).await;
    }
    gone
}

/// Removes all that is in a directory; whether it is empty then.
async fn empty(core: &Arc<Core>, name: &RemotePath, own: &Arc<Emptied>) -> bool {
    let remote = &core.job.target.remote;
    let listed = async {
        match list_own(remote, &own.path, own.file_system).await {
            Err(Errno::EACCES) if own.widen(core).await => {
                list_own(remote, &own.path, own.file_system).await
            }
            listed => listed,
        }
    };
    let Some(listed) = core.unless_stopped(listed).await else { return false };
    let entries = match listed {
        Ok(Some(entries)) => entries,
        // As with an excluded entry, the directories above it stay, too.
        Ok(None) => return false,
        Err(Errno::ENOENT) => return true,
        Err(errno) => {
            failed(core, name, FileKind::Directory, errno);
            return false;
        }
    };
    let mut empty = true;
    let mut tasks = JoinSet::new();
    for (entry, attr) in entries {
        let below = name.join(&entry);
        if core.job.options.keeps(&below, attr.is_dir()) {
            empty = false;
            continue;
        }
        if attr.is_dir() {
            // One after the other, so that what is open is as much as the tree is deep.
            let removed = remove_tree(core, &below, attr, own.file_system, Some(own));
            empty &= Box::pin(removed).await;
            continue;
        }
        if tasks.len() >= AT_ONCE {
            empty &= tasks.join_next().await.is_some_and(|gone| gone.unwrap_or(false));
        }
        let (core, own) = (core.clone(), own.clone());
        tasks.spawn(async move { remove(&core, &below, attr.kind, Some(&own)).await });
    }
    while let Some(gone) = tasks.join_next().await {
        empty &= gone.unwrap_or(false);
    }
    empty
}

/// Removes one entry, a directory only when it is empty.
async fn remove(
    core: &Core,
    name: &RemotePath,
    kind: FileKind,
    parent: Option<&Arc<Emptied>>,
) -> bool {
    let path = core.job.target.path_of(name);
    let removed = match (core.stop_reason(), core.job.options.dry_run) {
        (Some(_), _) => return false,
        (None, true) => Ok(()),
        (None, false) => match core.unless_stopped(remove_at(core, &path, kind, parent)).await {
            Some(removed) => removed,
            None => return false,
        },
    };
    match removed {
        Ok(()) | Err(Errno::ENOENT) => core.deleted(name, kind, Ok(())),
        Err(errno) => {
            failed(core, name, kind, errno);
            return false;
        }
    }
    true
}

async fn remove_at(
    core: &Core,
    path: &RemotePath,
    kind: FileKind,
    parent: Option<&Arc<Emptied>>,
) -> Result<()> {
    match (remove_once(core, path, kind).await, parent) {
        (Err(Errno::EACCES), Some(parent)) if parent.widen(core).await => {
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

fn failed(core: &Core, name: &RemotePath, kind: FileKind, errno: Errno) {
    let problem = Problem::failed(name, Doing::Delete)(errno);
    core.deleted(name, kind, Err(&problem));
}
