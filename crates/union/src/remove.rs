//! Removing names, so that no other branch shows the name afterwards.

use std::sync::Arc;

use base::{Errno, RemotePath, Result};

use crate::branch::TreeBranch;
use crate::handles::BranchDir;
use crate::policy::ActionPolicy;
use crate::tree::Tree;
use crate::view::{Holder, View};

/// Removes the name `path`, which is not a directory.
///
/// With [`ActionPolicy::All`] the hidden copies are removed first; with [`ActionPolicy::First`] a
/// hidden copy is `EBUSY`. A directory that is hidden by a file is never removed.
pub(crate) async fn unlink(tree: &Tree, path: &RemotePath, policy: ActionPolicy) -> Result<()> {
    if tree.is_fixed(path) {
        return Err(Errno::EISDIR);
    }
    if let Some((branch, at)) = tree.sole_branch(path) {
        branch.check_writable()?;
        return branch.call(branch.remote.unlink(&at)).await;
    }
    let view = View::of(tree, path).await?;
    let shown = view.require_shown()?;
    if shown.attr.is_dir() {
        return Err(Errno::EISDIR);
    }
    tree.branch(shown.slot).check_writable()?;
    let others = view.others();
    if others.iter().any(|other| other.attr.is_dir())
        || (policy == ActionPolicy::First && !others.is_empty())
    {
        return Err(would_reappear(tree, path, &view));
    }
    check_all_writable(tree, &view.holders)?;
    remove_all(tree, path, &view.holders).await
}

/// Removes the directory `path`, which must be empty on all branches, from all of them.
///
/// A merged directory is one directory to the user, under either policy. A file that it hides is
/// not removed: `EBUSY`.
pub(crate) async fn rmdir(tree: &Tree, path: &RemotePath) -> Result<()> {
    if tree.is_fixed(path) {
        return Err(Errno::EBUSY);
    }
    let _change = tree.dir_cache.begin_change(Some(path));
    if let Some((branch, at)) = tree.sole_branch(path) {
        branch.check_writable()?;
        return branch.call(branch.remote.rmdir(&at)).await;
    }
    let view = View::of(tree, path).await?;
    if !view.require_shown()?.attr.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    let directories: Vec<Holder> =
        view.holders.iter().filter(|holder| holder.attr.is_dir()).copied().collect();
    if directories.len() > 1 || directories.len() < view.holders.len() {
        // The servers refuse to remove a directory that is not empty, but by then others would be
        // removed.
        check_empty(tree, path, &directories).await?;
    }
    check_all_writable(tree, &directories)?;
    if directories.len() < view.holders.len() {
        return Err(would_reappear(tree, path, &view));
    }
    remove_all(tree, path, &directories).await
}

/// `EBUSY`, with the reason in the log, since an application shows only the errno.
pub(crate) fn would_reappear(tree: &Tree, path: &RemotePath, view: &View) -> Errno {
    tracing::warn!(
        "{path} is in several sources ({}), so without it another one would appear in its place: \
         remove it there, or use action=all, which removes every copy of a file",
        view.names(tree)
    );
    Errno::EBUSY
}

pub(crate) fn check_all_writable(tree: &Tree, holders: &[Holder]) -> Result<()> {
    holders.iter().try_for_each(|holder| tree.branch(holder.slot).check_writable())
}

/// Removes it from the last branch first, so that no other entry is shown in between. After an
/// error the shown entry is still there.
async fn remove_all(tree: &Tree, path: &RemotePath, holders: &[Holder]) -> Result<()> {
    for (index, holder) in holders.iter().enumerate().rev() {
        let branch = tree.branch(holder.slot);
        let at = branch.subpath(path);
        let removed = match holder.attr.is_dir() {
            false => branch.call(branch.remote.unlink(&at)).await,
            true => branch.call(branch.remote.rmdir(&at)).await,
        };
        match removed {
            // A hidden copy was removed by another client.
            Err(Errno::ENOENT) if index > 0 => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// `ENOTEMPTY` unless the directory is empty on all these branches.
pub(crate) async fn check_empty(tree: &Tree, path: &RemotePath, holders: &[Holder]) -> Result<()> {
    for holder in holders {
        let branch = tree.branch(holder.slot);
        let at = branch.subpath(path);
        if !branch.call(is_empty(branch, &at)).await? {
            return Err(Errno::ENOTEMPTY);
        }
    }
    Ok(())
}

async fn is_empty(branch: &Arc<TreeBranch>, at: &RemotePath) -> Result<bool> {
    let dir = BranchDir::open(branch, at).await?;
    Ok(branch.remote.readdir(dir.lent.dh()).await?.is_none())
}
