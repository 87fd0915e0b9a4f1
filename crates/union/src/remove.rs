//! Removing names, so that what was removed does not come back from another branch.

use std::sync::Arc;

use base::{Errno, RemotePath, Result};

use crate::branch::Live;
use crate::handles::InnerDir;
use crate::policy::ActionPolicy;
use crate::steps::Steps;
use crate::tree::Tree;
use crate::view::{Holder, View};

/// Removes the name `path` that is no directory's.
///
/// What is hidden behind it goes too, before it, with [`ActionPolicy::All`]; with
/// [`ActionPolicy::First`] it is `EBUSY`. A directory that is hidden behind a file never goes.
pub(crate) async fn unlink(tree: &Tree, path: &RemotePath, policy: ActionPolicy) -> Result<()> {
    if tree.is_fixed(path) {
        return Err(Errno::EISDIR);
    }
    if let Some((live, at)) = tree.only(path) {
        live.check_writable()?;
        return live.act(live.remote.unlink(&at)).await;
    }
    let view = View::of(tree, path).await?;
    let shown = view.must_show()?;
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
    remove_all(tree, path, &view.holders, Kind::Name).await
}

/// Removes the directory `path`, which must be empty on all branches, from all of them.
///
/// A merged directory is one directory to whoever removes it, whatever the policy is. A file that
/// is hidden behind it is not removed: `EBUSY`.
pub(crate) async fn rmdir(tree: &Tree, path: &RemotePath) -> Result<()> {
    if tree.is_fixed(path) {
        return Err(Errno::EBUSY);
    }
    let _change = tree.known.change(path);
    if let Some((live, at)) = tree.only(path) {
        live.check_writable()?;
        return live.act(live.remote.rmdir(&at)).await;
    }
    let view = View::of(tree, path).await?;
    if !view.must_show()?.attr.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    let directories: Vec<Holder> =
        view.holders.iter().filter(|holder| holder.attr.is_dir()).copied().collect();
    if directories.len() > 1 || directories.len() < view.holders.len() {
        // The server refuses to remove one that is not empty; but not before others are gone.
        check_empty(tree, path, &directories).await?;
    }
    check_all_writable(tree, &directories)?;
    if directories.len() < view.holders.len() {
        return Err(would_reappear(tree, path, &view));
    }
    remove_all(tree, path, &directories, Kind::Directory).await
}

/// `EBUSY`, with the reason in the log: an application can only show the number.
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

/// What is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Name,
    Directory,
}

/// Removes it from the last branch first, so that at no time something else is shown. An error
/// leaves what is shown in its place.
async fn remove_all(tree: &Tree, path: &RemotePath, holders: &[Holder], kind: Kind) -> Result<()> {
    let steps = Steps::new(path);
    for (index, holder) in holders.iter().enumerate().rev() {
        let live = tree.branch(holder.slot);
        let at = steps.inside(live.depth, steps.depth());
        let removed = match kind {
            Kind::Name => live.act(live.remote.unlink(&at)).await,
            Kind::Directory => live.act(live.remote.rmdir(&at)).await,
        };
        match removed {
            // Somebody else has removed a hidden one just now.
            Err(Errno::ENOENT) if index > 0 => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// `ENOTEMPTY` unless the directory is empty on all these branches.
pub(crate) async fn check_empty(tree: &Tree, path: &RemotePath, holders: &[Holder]) -> Result<()> {
    let steps = Steps::new(path);
    for holder in holders {
        let live = tree.branch(holder.slot);
        let at = steps.inside(live.depth, steps.depth());
        if !live.act(is_empty(live, &at)).await? {
            return Err(Errno::ENOTEMPTY);
        }
    }
    Ok(())
}

async fn is_empty(live: &Arc<Live>, at: &RemotePath) -> Result<bool> {
    let dir = InnerDir::open(live, at).await?;
    Ok(live.remote.readdir(dir.dh).await?.is_none())
}
