//! Extended attributes that a run copies by itself: where both remotes have requests for them.
//!
//! Elsewhere only streams carry them. A run then requests directories from a stream, too, and sets
//! their attributes when everything in them is done: a default access list would change entries
//! that are created later.

use base::{Attr, Errno, FileKind, Remote, RemotePath, Result, SetXattr};

use crate::options::Xattrs;
use crate::run::{Core, is_lost};
use crate::step::Action;

/// Names and values.
pub(crate) type List = Vec<(Vec<u8>, Vec<u8>)>;

/// Bound on the extended attributes of all directories together in which more is to come.
pub(crate) const KEPT_LIMIT_BYTES: usize = 16 << 20;

/// The bytes of all names and values.
pub(crate) fn bytes(list: &List) -> usize {
    list.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Whether the extended attributes of a directory are copied with this action: they come with the
/// content, and the time of a directory is that of its content.
pub(crate) fn come_with(action: &Action) -> bool {
    match action {
        Action::MakeDir => true,
        Action::SetAttr(change) => change.mtime.is_some(),
        _ => false,
    }
}

/// The extended attributes of an entry of a source that are to be copied.
///
/// # Errors
/// Those of the requests.
pub(crate) async fn read(
    core: &Core,
    source: usize,
    path: &RemotePath,
    attr: &Attr,
) -> Result<List> {
    let may_have = match attr.kind {
        FileKind::Regular | FileKind::Directory => true,
        _ => core.job.options.xattrs == Xattrs::All,
    };
    if !may_have || attr.inode.is_some_and(|inode| inode.xattrs == Some(false)) {
        return Ok(List::new());
    }
    let tree = &core.job.sources[source].tree;
    let remote = &tree.remote;
    let names = match remote.listxattr(path).await {
        // The file system has none. One of several servers may be unable to say so.
        Err(Errno::EOPNOTSUPP)
            if attr.inode.is_some() || tree.lists_all() || core.here[source].is_some() =>
        {
            return Ok(List::new());
        }
        names => names?,
    };
    let mut list = List::new();
    for name in names.iter().filter(|name| core.job.options.xattrs.sends(name)) {
        match remote.getxattr(path, name).await {
            Ok(value) => list.push((name.to_vec(), value.to_vec())),
            // Removed meanwhile.
            Err(Errno::ENODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(list)
}

/// Sets extended attributes of the entry at `path`. Returns how many were refused.
///
/// # Errors
/// If the remote is lost.
pub(crate) async fn write(remote: &dyn Remote, path: &RemotePath, list: &List) -> Result<usize> {
    let mut refused = 0;
    for (name, value) in list {
        match remote.setxattr(path, name, value.clone().into(), SetXattr::Either).await {
            Ok(()) => {}
            Err(errno) if is_lost(remote, errno) => return Err(errno),
            Err(errno) => {
                tracing::debug!("{path}: {} is refused: {errno}", name.escape_ascii());
                refused += 1;
            }
        }
    }
    Ok(refused)
}
