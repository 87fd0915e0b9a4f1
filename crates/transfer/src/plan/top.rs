//! The start of a plan: the target itself, and the kind of each source.

use std::sync::Arc;

use base::{Attr, Errno, FileKind, RemotePath};
use tokio::sync::mpsc;

use super::compare::{self, file_system, last, need};
use super::{Found, Pair};
use crate::dir::{Dir, DirDone, Place};
use crate::job::JobError;
use crate::outcome::{Doing, Problem};
use crate::run::{Core, differing};
use crate::step::{Action, Step};

/// What the walk begins with.
pub(crate) struct Top {
    pub(crate) found: Found,
}

impl Top {
    /// Looks at the target and at the sources.
    pub(crate) async fn look(
        core: &Arc<Core>,
        over: mpsc::UnboundedSender<DirDone>,
    ) -> Result<Top, JobError> {
        let target = &core.job.target;
        let there = match target.remote.lstat(&target.path).await {
            Ok(attr) if attr.is_dir() => Some(attr),
            Ok(_) => return Err(JobError::TargetNoDirectory),
            Err(Errno::ENOENT) if !target.path.is_root() => None,
            Err(errno) => return Err(JobError::Target(errno)),
        };
        let mut found = Found::default();
        // One that becomes the target itself is the only one (`Job::check`).
        if core.job.sources[0].to.is_root() {
            whole(core, there, over, &mut found).await;
            return Ok(Top { found });
        }
        let place = Place {
            name: RemotePath::root(),
            path: target.path.clone(),
            need: need(there.as_ref()),
            parent: None,
            last: None,
        };
        let root = Dir::new(place, target.remote.clone(), over);
        for index in 0..core.job.sources.len() {
            one(core, index, &root, there.is_some(), &mut found).await;
        }
        Ok(Top { found })
    }
}

/// The attributes of a source; a problem if there are none.
async fn source(core: &Core, index: usize) -> Option<Attr> {
    let source = &core.job.sources[index];
    match source.tree.remote.lstat(&source.tree.path).await {
        Ok(attr) => Some(attr),
        Err(errno) => {
            let name = source.to.clone();
            core.problem(&Problem::Failed { name, doing: Doing::LookSource, errno });
            None
        }
    }
}

/// A source whose entries become the target's own.
async fn whole(
    core: &Arc<Core>,
    there: Option<Attr>,
    over: mpsc::UnboundedSender<DirDone>,
    found: &mut Found,
) {
    let Some(attr) = source(core, 0).await else {
        return;
    };
    let name = RemotePath::root();
    if attr.kind != FileKind::Directory {
        let errno = Errno::ENOTDIR;
        return core.problem(&Problem::Failed { name, doing: Doing::ListSource, errno });
    }
    let action = match &there {
        None => Action::MakeDir,
        Some(there) => match differing(core, &attr, there) {
            change if change.is_empty() => Action::Nothing,
            change => Action::SetAttr(change),
        },
    };
    let from = core.job.sources[0].tree.path.clone();
    let target = &core.job.target;
    let step = |dir: Arc<Dir>, own| Step {
        source: 0,
        from: from.clone(),
        name: name.clone(),
        attr,
        there,
        action: action.clone(),
        partials: Vec::new(),
        dir,
        own,
        identity: None,
        names: None,
    };
    let place = |last| Place {
        name: name.clone(),
        path: target.path.clone(),
        need: need(there.as_ref()),
        parent: None,
        last,
    };
    let outside = Dir::new(place(None), target.remote.clone(), over.clone());
    let last = last(&step(outside, None));
    let own = Dir::new(place(Some(last)), target.remote.clone(), over);
    found.steps.push(step(own.clone(), Some(own.clone())));
    let file_system = file_system(core, 0).await;
    found.pairs.push(Pair { source: 0, from, own, there: there.is_some(), file_system });
}

/// A source that becomes an entry of the target.
async fn one(core: &Arc<Core>, index: usize, root: &Arc<Dir>, root_there: bool, found: &mut Found) {
    let Some(attr) = source(core, index).await else {
        return;
    };
    let name = core.job.sources[index].to.clone();
    if core.job.options.filter.excludes(&name, attr.is_dir()) {
        return;
    }
    let there = match root_there {
        false => Ok(None),
        true => match core.job.target.remote.lstat(&core.job.target.path_of(&name)).await {
            Ok(there) => Ok(Some(there)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        },
    };
    let there = match there {
        Ok(there) => there,
        Err(errno) => {
            return core.problem(&Problem::Failed { name, doing: Doing::LookTarget, errno });
        }
    };
    compare::single(core, index, root, (name, attr, there), found).await;
}
