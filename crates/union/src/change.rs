//! Changing attributes, and syncing directories.

use base::{Attr, AttrChange, Errno, RemotePath, Result};

use crate::fan_out::FanOut;
use crate::policy::ActionPolicy;
use crate::tree::Tree;
use crate::view::{Holder, View};

/// Changes the attributes of the entry shown at `path`.
///
/// [`ActionPolicy::First`] changes the branch that is shown. The mtime of a merged directory is the
/// latest of all its branches, so it is also set on branches with a later one.
/// [`ActionPolicy::All`] changes the entries of the same kind on all branches.
pub(crate) async fn setattr(
    tree: &Tree,
    path: &RemotePath,
    change: AttrChange,
    policy: ActionPolicy,
) -> Result<()> {
    if let Some((branch, at)) = tree.sole_branch(path) {
        branch.check_writable()?;
        return branch.call(branch.remote.setattr(&at, change)).await;
    }
    let view = View::to_change(tree, path, policy).await?;
    // A synthetic directory is on no branch that could store the change.
    let shown = view.shown().ok_or(Errno::EROFS)?;
    let mut changes = vec![(shown, change)];
    for other in view.others().iter().filter(|other| other.attr.kind == shown.attr.kind) {
        changes.extend(
            other_change(&shown.attr, &other.attr, change, policy).map(|change| (*other, change)),
        );
    }
    for (Holder { slot, .. }, _) in &changes {
        tree.branch(*slot).check_writable()?;
    }
    // The shown entry is changed last: an error before that has changed nothing visible.
    for (Holder { slot, .. }, change) in changes.into_iter().rev() {
        let branch = tree.branch(slot);
        let at = branch.subpath(path);
        branch.call(branch.remote.setattr(&at, change)).await?;
    }
    Ok(())
}

/// The change for a branch that is not shown.
fn other_change(
    shown: &Attr,
    other: &Attr,
    change: AttrChange,
    policy: ActionPolicy,
) -> Option<AttrChange> {
    if policy == ActionPolicy::All {
        return Some(change);
    }
    let is_later = shown.is_dir() && change.mtime.is_some_and(|mtime| other.mtime > mtime);
    let AttrChange { mtime, touch, .. } = change;
    is_later.then_some(AttrChange { mtime, touch, ..AttrChange::default() })
}

/// Syncs the directory on all writable branches that have it.
pub(crate) async fn fsyncdir(tree: &Tree, path: &RemotePath) -> Result<()> {
    if let Some((branch, at)) = tree.sole_branch(path) {
        return branch.call(branch.remote.fsyncdir(&at)).await;
    }
    let view = View::existing(tree, path).await?;
    if view.shown().is_some_and(|shown| !shown.attr.is_dir()) {
        return Err(Errno::ENOTDIR);
    }
    let directories = view.holders.iter().filter(|holder| holder.attr.is_dir());
    let written =
        directories.map(|holder| tree.branch(holder.slot)).filter(|branch| branch.writable());
    let synced = written.map(async |branch| {
        let at = branch.subpath(path);
        branch.call(branch.remote.fsyncdir(&at)).await
    });
    FanOut::of(synced).all().await.into_iter().collect()
}
