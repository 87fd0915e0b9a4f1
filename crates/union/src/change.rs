//! Changing attributes, and syncing directories.

use base::{Attr, AttrChange, Errno, RemotePath, Result};

use crate::fan::{Call, Fan};
use crate::policy::ActionPolicy;
use crate::steps::Steps;
use crate::tree::Tree;
use crate::view::{Holder, View};

/// Changes the attributes of what the tree shows at `path`.
///
/// With [`ActionPolicy::First`] that is on the branch which is shown. The time of last change of a
/// merged directory is the latest of all its branches, so it is set on those too which have a later
/// one. With [`ActionPolicy::All`] all that have the same kind of thing there are changed.
pub(crate) async fn setattr(
    tree: &Tree,
    path: &RemotePath,
    change: AttrChange,
    policy: ActionPolicy,
) -> Result<()> {
    if let Some((live, at)) = tree.only(path) {
        live.check_writable()?;
        return live.act(live.remote.setattr(&at, change)).await;
    }
    let mut view = View::of(tree, path).await?;
    let fixed = tree.is_fixed(path);
    if fixed {
        view.holders.retain(|holder| holder.attr.is_dir());
    }
    let Some(shown) = view.shown() else {
        // A directory that is made up has nobody who could keep it.
        return Err(if fixed {
            Errno::EROFS
        } else {
            view.must_show().err().unwrap_or(Errno::ENOENT)
        });
    };
    let mut changes = vec![(shown, change)];
    for other in view.others().iter().filter(|other| other.attr.kind == shown.attr.kind) {
        changes.extend(
            other_change(&shown.attr, &other.attr, change, policy).map(|change| (*other, change)),
        );
    }
    for (Holder { slot, .. }, _) in &changes {
        tree.branch(*slot).check_writable()?;
    }
    let steps = Steps::new(path);
    // What is shown changes last: an error before that has changed nothing which can be seen.
    for (Holder { slot, .. }, change) in changes.into_iter().rev() {
        let live = tree.branch(slot);
        let at = steps.inside(live.depth, steps.depth());
        live.act(live.remote.setattr(&at, change)).await?;
    }
    Ok(())
}

/// What has to be changed on a branch besides the one that is shown.
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
    is_later.then_some(AttrChange { mtime: change.mtime, ..AttrChange::default() })
}

/// Syncs the entries of the directory on all branches that have it and may be changed.
pub(crate) async fn fsyncdir(tree: &Tree, path: &RemotePath) -> Result<()> {
    if let Some((live, at)) = tree.only(path) {
        return live.act(live.remote.fsyncdir(&at)).await;
    }
    let fixed = tree.is_fixed(path);
    let view = View::of(tree, path).await?;
    if !fixed && !view.must_show()?.attr.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    let steps = Steps::new(path);
    let directories = view.holders.iter().filter(|holder| holder.attr.is_dir());
    let written = directories.map(|holder| tree.branch(holder.slot)).filter(|live| live.writable());
    let synced = written.map(|live| -> Call<'_, Result<()>> {
        let at = steps.inside(live.depth, steps.depth());
        Box::pin(async move { live.act(live.remote.fsyncdir(&at)).await })
    });
    let synced: Fan<'_, Result<()>> = synced.collect();
    synced.all().await.into_iter().collect()
}
