//! Renaming and linking within one branch; what would have to go from one branch to another is
//! `EXDEV`, and whoever asked copies it.
//!
//! After a rename that succeeded the tree shows nothing under the old name, and under the new name
//! what the old one was. [`plan`] finds out whether that can be had, before anything is changed:
//!
//! | case | answer |
//! |---|---|
//! | the directory of the new name is not on the branch of the old one | `EXDEV` |
//! | a branch before that one has the new name, and would still show its own | `EXDEV` |
//! | a file that hides others, `first` | `EBUSY`: one of them would appear |
//! | a file that hides others, `all` | all are renamed, the last first |
//! | a file that hides a directory, or a directory that hides a file | `EBUSY` |
//! | a directory on several branches, `first` | `EXDEV` |
//! | a directory on several branches, `all`, and no branch has the new name | all are renamed |
//! | a directory, and another branch has a directory of the new name | `EXDEV`: they would merge |
//! | a branch after that one shows the new name | that one is removed there when it is hidden |
//! | any branch that would have to be changed is not to be | `EROFS` |

use std::sync::Arc;

use base::{Errno, RemotePath, RenameMode, Result};

use crate::policy::ActionPolicy;
use crate::remove::{check_all_writable, check_empty, would_reappear};
use crate::steps::Steps;
use crate::tree::Tree;
use crate::view::{Holder, View, in_set};

/// Gives `from` the name `to`. See the [module](self).
pub(crate) async fn rename(
    tree: &Tree,
    from: &RemotePath,
    to: &RemotePath,
    mode: RenameMode,
    policy: ActionPolicy,
) -> Result<()> {
    if tree.is_fixed(from) || tree.is_fixed(to) {
        return Err(Errno::EBUSY);
    }
    if let (Some((live, from_at)), Some((other, to_at))) = (tree.only(from), tree.only(to)) {
        if !Arc::ptr_eq(live, other) {
            return Err(Errno::EXDEV);
        }
        live.check_writable()?;
        return live.act(live.remote.rename(&from_at, &to_at, mode)).await;
    }
    let (old, new) = tokio::join!(View::of(tree, from), View::of(tree, to));
    let (old, new) = (old?, new?);
    let paths = Paths { from, to, mode };
    let plan = match plan(&paths, &old, &new, policy) {
        Ok(plan) => plan,
        Err(Refusal::Reappears) => return Err(would_reappear(tree, from, &old)),
        // Only an empty directory is replaced, wherever it is.
        Err(Refusal::Errno(Errno::EXDEV)) if old.must_show()?.attr.is_dir() => {
            let there = new.holders.iter().filter(|holder| holder.attr.is_dir());
            check_empty(tree, to, &there.copied().collect::<Vec<_>>()).await?;
            return Err(Errno::EXDEV);
        }
        Err(Refusal::Errno(errno)) => return Err(errno),
    };
    check_all_writable(tree, &plan.renamed)?;
    check_all_writable(tree, &plan.replaced)?;
    let is_directory = plan.renamed.iter().any(|holder| holder.attr.is_dir());
    let _change = is_directory.then(|| tree.known.change_all());
    carry_out(tree, &paths, &plan).await
}

/// What is asked for.
struct Paths<'p> {
    from: &'p RemotePath,
    to: &'p RemotePath,
    mode: RenameMode,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// On these branches, the last one first.
    renamed: Vec<Holder>,
    /// Those of them that have something of the new name, which cannot be brought back.
    overwritten: Vec<usize>,
    /// What these have under the new name is then hidden, and removed.
    replaced: Vec<Holder>,
}

/// Why it is not done.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// What the old name hides would appear.
    Reappears,
    Errno(Errno),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal::Errno(errno)
    }
}

/// The checks of `rename(2)` in its order, then those of the tree. `old` and `new` are what the
/// branches have under both names.
fn plan(
    paths: &Paths<'_>,
    old: &View,
    new: &View,
    policy: ActionPolicy,
) -> std::result::Result<Plan, Refusal> {
    let &Paths { from, to, mode } = paths;
    let source = old.must_show()?;
    let is_dir = source.attr.is_dir();
    if mode == RenameMode::NoReplace && new.shown().is_some() {
        return Err(Errno::EEXIST.into());
    }
    if to.is_below(from) {
        return Err(Errno::EINVAL.into());
    }
    if from.is_below(to) {
        return Err(Errno::ENOTEMPTY.into());
    }
    if from == to {
        return Ok(Plan::default());
    }
    match new.shown() {
        Some(target) if is_dir && !target.attr.is_dir() => return Err(Errno::ENOTDIR.into()),
        Some(target) if !is_dir && target.attr.is_dir() => return Err(Errno::EISDIR.into()),
        _ => {}
    }
    if old.others().iter().any(|other| other.attr.is_dir() != is_dir) {
        return Err(Refusal::Reappears);
    }
    if policy == ActionPolicy::First && !old.others().is_empty() {
        return Err(if is_dir { Errno::EXDEV.into() } else { Refusal::Reappears });
    }
    let renamed = old.holders.clone();
    if renamed.iter().any(|holder| !in_set(new.parents, holder.slot)) {
        return Err(Errno::EXDEV.into());
    }
    let is_renamed = |slot: usize| renamed.iter().any(|holder| holder.slot == slot);
    let elsewhere = |target: &&Holder| !is_renamed(target.slot);
    let stays_shown = new.holders.iter().any(|target| target.slot < source.slot);
    let merges = is_dir
        && (new.holders.iter().any(|target| elsewhere(&target))
            || (renamed.len() > 1 && !new.holders.is_empty()));
    if stays_shown || merges {
        return Err(Errno::EXDEV.into());
    }
    let in_place: Vec<Holder> =
        new.holders.iter().filter(|target| is_renamed(target.slot)).copied().collect();
    if in_place.iter().any(|target| target.attr.is_dir() != is_dir) {
        return Err(Errno::EBUSY.into());
    }
    // The one that was shown goes, as what a rename replaces does. What was hidden before stays
    // hidden, or goes with everything else that is changed.
    let goes = |(index, _): &(usize, &Holder)| *index == 0 || policy == ActionPolicy::All;
    let replaced = new.holders.iter().enumerate().filter(goes).map(|(_, target)| target);
    let replaced = replaced.filter(elsewhere).filter(|target| !target.attr.is_dir());
    Ok(Plan {
        replaced: replaced.copied().collect(),
        overwritten: in_place.iter().map(|target| target.slot).collect(),
        renamed,
    })
}

/// Renames on the last branch first, so that the old name is there until all is done. What was
/// renamed before one fails is renamed back, where it has not replaced anything.
async fn carry_out(tree: &Tree, paths: &Paths<'_>, plan: &Plan) -> Result<()> {
    let mut done: Vec<usize> = Vec::new();
    for holder in plan.renamed.iter().rev() {
        if let Err(errno) = rename_on(tree, holder.slot, paths.from, paths.to, paths.mode).await {
            for slot in done.into_iter().rev().filter(|slot| !plan.overwritten.contains(slot)) {
                let back = rename_on(tree, slot, paths.to, paths.from, RenameMode::NoReplace).await;
                if let Err(errno) = back {
                    let Paths { from, to, .. } = paths;
                    tracing::warn!(
                        "{from} was renamed to {to} only in {}: {errno}",
                        tree.branch(slot).name
                    );
                }
            }
            return Err(errno);
        }
        if *holder != plan.renamed[0] && plan.overwritten.contains(&holder.slot) {
            remove_second_name(tree, holder.slot, paths.from).await?;
        }
        done.push(holder.slot);
    }
    for holder in plan.replaced.iter().rev() {
        let live = tree.branch(holder.slot);
        let steps = Steps::new(paths.to);
        let at = steps.inside(live.depth, steps.depth());
        if let Err(errno) = live.act(live.remote.unlink(&at)).await {
            tracing::warn!("{} was replaced, but stays hidden in {}: {errno}", paths.to, live.name);
        }
    }
    Ok(())
}

/// Two names of one file are both still there after one was renamed to the other: the old one of a
/// hidden copy would appear.
async fn remove_second_name(tree: &Tree, slot: usize, from: &RemotePath) -> Result<()> {
    let live = tree.branch(slot);
    let steps = Steps::new(from);
    let at = steps.inside(live.depth, steps.depth());
    match live.act(live.remote.unlink(&at)).await {
        Err(Errno::ENOENT) => Ok(()),
        removed => removed,
    }
}

async fn rename_on(
    tree: &Tree,
    slot: usize,
    from: &RemotePath,
    to: &RemotePath,
    mode: RenameMode,
) -> Result<()> {
    let live = tree.branch(slot);
    let (from, to) = (Steps::new(from), Steps::new(to));
    let from = from.inside(live.depth, from.depth());
    let to = to.inside(live.depth, to.depth());
    live.act(live.remote.rename(&from, &to, mode)).await
}

/// Makes `new` a second name of what the tree shows at `existing`, on its branch.
pub(crate) async fn link(tree: &Tree, existing: &RemotePath, new: &RemotePath) -> Result<()> {
    if tree.is_fixed(existing) {
        return Err(Errno::EPERM);
    }
    if tree.is_fixed(new) {
        return Err(Errno::EEXIST);
    }
    if let (Some((live, existing)), Some((other, new))) = (tree.only(existing), tree.only(new)) {
        if !Arc::ptr_eq(live, other) {
            return Err(Errno::EXDEV);
        }
        live.check_writable()?;
        return live.act(live.remote.link(&existing, &new)).await;
    }
    let (old, free) = tokio::join!(View::of(tree, existing), View::of(tree, new));
    let source = old?.must_show()?;
    let free = free?;
    if free.shown().is_some() {
        return Err(Errno::EEXIST);
    }
    if source.attr.is_dir() {
        return Err(Errno::EPERM);
    }
    if !in_set(free.parents, source.slot) {
        return Err(Errno::EXDEV);
    }
    let live = tree.branch(source.slot);
    live.check_writable()?;
    let (existing, new) = (Steps::new(existing), Steps::new(new));
    let existing = existing.inside(live.depth, existing.depth());
    let new = new.inside(live.depth, new.depth());
    live.act(live.remote.link(&existing, &new)).await
}
