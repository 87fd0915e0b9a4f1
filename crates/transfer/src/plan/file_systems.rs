//! The file systems that a run stays on (`-x`). At the source it enters no directory of another
//! one. At the target it deletes nothing on another one: what is mounted there is kept, with its
//! mount point.

use std::sync::Arc;

use base::{Attr, Errno, Remote, RemotePath, Result};

use crate::job::Source;
use crate::outcome::{Doing, Fault, Problem};
use crate::run::Core;

/// The ids of the file systems of a source and of what it becomes; `None` where others do not
/// matter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileSystems {
    pub(crate) source: Option<u64>,
    pub(crate) target: Option<u64>,
}

impl FileSystems {
    /// Those of the source of this number, with its attributes. If the target's is not known, this
    /// is a problem, so that nothing is deleted.
    pub(super) async fn of(core: &Core, index: usize, attr: &Attr) -> FileSystems {
        let options = &core.job.options;
        let mut own = FileSystems::default();
        if !options.one_file_system {
            return own;
        }
        let Source { tree, to } = &core.job.sources[index];
        if attr.is_dir() {
            let found = id(&tree.remote, &tree.path).await;
            match found {
                Ok(0) => core.problem(&Fault::SourceFileSystems.of(to)),
                Ok(_) => {}
                Err(errno) => core.problem(&Problem::failed(to, Doing::LookSource)(errno)),
            }
            own.source = found.ok();
        }
        if options.delete && !options.is_stage {
            let target = &core.job.target;
            // A directory that is in the way of a file is deleted out of the one above it.
            let top = if attr.is_dir() { target.path_of(to) } else { target.path.clone() };
            match id(&target.remote, &top).await {
                Ok(0) => core.problem(&Fault::TargetFileSystems.of(to)),
                Ok(found) => own.target = Some(found),
                // There is nothing to delete.
                Err(Errno::ENOENT) => {}
                Err(errno) => core.problem(&Problem::failed(to, Doing::LookTarget)(errno)),
            }
        }
        own
    }
}

/// The id of the file system of a directory; 0 if it is not known.
async fn id(remote: &Arc<dyn Remote>, path: &RemotePath) -> Result<u64> {
    match remote.statvfs(path).await {
        Err(Errno::EOPNOTSUPP) => Ok(0),
        figures => figures.map(|figures| figures.fsid),
    }
}

/// Whether a directory is on another file system than `own`.
pub(crate) async fn is_foreign(
    remote: &Arc<dyn Remote>,
    path: &RemotePath,
    own: Option<u64>,
) -> Result<bool> {
    match own {
        None => Ok(false),
        Some(own) => Ok(id(remote, path).await? != own),
    }
}
