//! The branches whose entries have the extended attributes of a path.
//!
//! A branch without extended attributes says so without checking whether it has the path. So all
//! branches are queried for the entry first.

use std::sync::Arc;

use base::{Errno, RemotePath, Result};

use crate::branch::TreeBranch;
use crate::policy::ActionPolicy;
use crate::tree::Tree;
use crate::view::{Holder, View};

/// The branch whose entry is shown at `path`, and the path there. `EOPNOTSUPP` for a directory that
/// no branch has.
pub(crate) async fn shown<'t>(
    tree: &'t Tree,
    path: &RemotePath,
) -> Result<(&'t Arc<TreeBranch>, RemotePath)> {
    let all = holders(tree, path, ActionPolicy::First).await?;
    all.into_iter().next().map(|(branch, at, _)| (branch, at)).ok_or(Errno::EOPNOTSUPP)
}

/// The branches to change, the one that is shown last: as for other attributes, that one alone or
/// all that have an entry of the same kind.
pub(crate) async fn changed<'t>(
    tree: &'t Tree,
    path: &RemotePath,
    policy: ActionPolicy,
) -> Result<Vec<(&'t Arc<TreeBranch>, RemotePath)>> {
    let mut all = holders(tree, path, policy).await?;
    // A directory that no branch has is on none that could store the change.
    let kind = all.first().ok_or(Errno::EROFS)?.2.map(|holder| holder.attr.kind);
    match policy {
        ActionPolicy::First => all.truncate(1),
        ActionPolicy::All => all.retain(|(_, _, it)| it.map(|holder| holder.attr.kind) == kind),
    }
    all.iter().try_for_each(|(branch, ..)| branch.check_writable())?;
    Ok(all.into_iter().rev().map(|(branch, at, _)| (branch, at)).collect())
}

/// The branches that have an entry at `path`, in the order of search, and the entries, unless only
/// one branch could have it. Those hidden by a file may be missing if the policy does not change
/// them.
async fn holders<'t>(
    tree: &'t Tree,
    path: &RemotePath,
    policy: ActionPolicy,
) -> Result<Vec<(&'t Arc<TreeBranch>, RemotePath, Option<Holder>)>> {
    if let Some((branch, at)) = tree.sole_branch(path) {
        return Ok(vec![(branch, at, None)]);
    }
    let entries = View::to_change(tree, path, policy).await?.holders.into_iter().map(|holder| {
        let branch = tree.branch(holder.slot);
        (branch, branch.subpath(path), Some(holder))
    });
    Ok(entries.collect())
}
