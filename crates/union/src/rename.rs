//! Renaming and linking within one branch. An operation across two branches is `EXDEV`, upon which
//! the caller copies.
//!
//! After a successful rename the tree shows nothing under the old name, and the renamed entry under
//! the new one. [`plan`] decides whether that is possible before anything is changed:
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
//! | a branch after that one shows the new name | its entry, hidden then, is removed there |
//! | a branch that would have to be changed, or that shows the old name, is read-only | `EROFS` |
//! | an exchange of entries of two branches, or of a directory with others of its name | `EXDEV` |

use std::sync::Arc;

use base::{Attr, Errno, RemotePath, RenameMode, Result};

use crate::policy::ActionPolicy;
use crate::remove::{check_all_writable, check_empty, would_reappear};
use crate::tree::Tree;
use crate::view::{Holder, View};

/// Renames `from` to `to`. See the [module](self).
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
    if let (Some((branch, from_at)), Some((other, to_at))) =
        (tree.sole_branch(from), tree.sole_branch(to))
    {
        if !Arc::ptr_eq(branch, other) {
            return Err(Errno::EXDEV);
        }
        branch.check_writable()?;
        return branch.call(branch.remote.rename(&from_at, &to_at, mode)).await;
    }
    let (old, new) = tokio::join!(View::of(tree, from), View::of(tree, to));
    let (old, new) = (old?, new?);
    if mode == RenameMode::Exchange {
        return exchange(tree, from, to, &old, &new).await;
    }
    let paths = Paths { from, to, mode };
    let plan = match plan(&paths, &old, &new, policy) {
        Ok(plan) => plan,
        Err(Refusal::Reappears) => {
            // It could not be renamed without the others either.
            check_all_writable(tree, &old.holders[..1])?;
            return Err(would_reappear(tree, from, &old));
        }
        // Only an empty directory may be replaced, on any branch.
        Err(Refusal::Errno(Errno::EXDEV)) if old.require_shown()?.attr.is_dir() => {
            let directories = new.holders.iter().filter(|holder| holder.attr.is_dir());
            check_empty(tree, to, &directories.copied().collect::<Vec<_>>()).await?;
            return Err(Errno::EXDEV);
        }
        Err(Refusal::Errno(errno)) => return Err(errno),
    };
    check_all_writable(tree, &plan.renamed)?;
    check_all_writable(tree, &plan.replaced)?;
    let is_directory = plan.renamed.iter().any(|holder| holder.attr.is_dir());
    let _change = is_directory.then(|| tree.dir_cache.begin_change(None));
    execute(tree, &paths, &plan).await
}

/// Exchanges two names on one branch. Entries of other branches stay hidden behind the exchanged
/// ones; but directories would merge with other ones.
async fn exchange(
    tree: &Tree,
    from: &RemotePath,
    to: &RemotePath,
    old: &View,
    new: &View,
) -> Result<()> {
    let (one, other) = (old.require_shown()?, new.require_shown()?);
    let is_any_dir = one.attr.is_dir() || other.attr.is_dir();
    let hides_dir = [old, new].into_iter().flat_map(View::others).any(|it| it.attr.is_dir());
    if one.slot != other.slot || is_any_dir && hides_dir {
        return Err(Errno::EXDEV);
    }
    tree.branch(one.slot).check_writable()?;
    let _change = is_any_dir.then(|| tree.dir_cache.begin_change(None));
    rename_on(tree, one.slot, from, to, RenameMode::Exchange).await
}

/// The arguments of a rename.
struct Paths<'p> {
    from: &'p RemotePath,
    to: &'p RemotePath,
    mode: RenameMode,
}

/// The changes that make up a rename.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// Renamed on these branches, the last one first.
    renamed: Vec<Holder>,
    /// Of those, the branches on which an entry of the new name is overwritten, which cannot be
    /// restored.
    overwritten: Vec<usize>,
    /// Of those, the branches on which both names may lead to one file.
    linked: Vec<usize>,
    /// Entries of the new name on other branches, hidden after the rename, to be removed.
    replaced: Vec<Holder>,
}

/// Why a rename is refused.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// An entry hidden under the old name would appear.
    Reappears,
    Errno(Errno),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal::Errno(errno)
    }
}

/// The checks of `rename(2)` in its order, then those of the tree. `old` and `new` are the entries
/// of all branches under both names.
fn plan(
    paths: &Paths<'_>,
    old: &View,
    new: &View,
    policy: ActionPolicy,
) -> std::result::Result<Plan, Refusal> {
    let &Paths { from, to, mode } = paths;
    let source = old.require_shown()?;
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
    if renamed.iter().any(|holder| !new.parents.contains(holder.slot)) {
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
    // The entry that was shown is removed, as `rename(2)` removes the entry it replaces. Entries
    // hidden before stay hidden, or are removed under `All`.
    let goes = |(index, _): &(usize, &Holder)| *index == 0 || policy == ActionPolicy::All;
    let replaced = new.holders.iter().enumerate().filter(goes).map(|(_, target)| target);
    let replaced = replaced.filter(elsewhere).filter(|target| !target.attr.is_dir());
    let other_name = |holder: &&Holder| {
        let mut targets = in_place.iter().filter(|target| target.slot == holder.slot);
        targets.any(|target| may_be_one(&holder.attr, &target.attr))
    };
    Ok(Plan {
        replaced: replaced.copied().collect(),
        linked: renamed.iter().filter(other_name).map(|holder| holder.slot).collect(),
        overwritten: in_place.iter().map(|target| target.slot).collect(),
        renamed,
    })
}

/// Renames on the last branch first, so that the old name exists until all is done. If one fails,
/// the branches renamed before are renamed back, unless an entry was overwritten there.
async fn execute(tree: &Tree, paths: &Paths<'_>, plan: &Plan) -> Result<()> {
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
        if *holder != plan.renamed[0] && plan.linked.contains(&holder.slot) {
            remove_second_name(tree, holder, paths.from).await?;
        }
        done.push(holder.slot);
    }
    for holder in plan.replaced.iter().rev() {
        let branch = tree.branch(holder.slot);
        let at = branch.subpath(paths.to);
        if let Err(errno) = branch.call(branch.remote.unlink(&at)).await {
            tracing::warn!(
                "{} was replaced, but stays hidden in {}: {errno}",
                paths.to,
                branch.name
            );
        }
    }
    Ok(())
}

/// `rename(2)` of one name of a file to another name of it does nothing: the old name of a hidden
/// copy would appear. A file that another client has created there since is left alone.
async fn remove_second_name(tree: &Tree, holder: &Holder, from: &RemotePath) -> Result<()> {
    let branch = tree.branch(holder.slot);
    let at = branch.subpath(from);
    let removed = match branch.call(branch.remote.lstat(&at)).await {
        Ok(attr) if may_be_one(&holder.attr, &branch.translated(attr)) => {
            branch.call(branch.remote.unlink(&at)).await
        }
        seen => seen.map(drop),
    };
    match removed {
        Err(Errno::ENOENT) => Ok(()),
        removed => removed,
    }
}

/// Whether both may be attributes of one file that was not changed in between.
fn may_be_one(one: &Attr, other: &Attr) -> bool {
    let fields = |attr: &Attr| (attr.kind, attr.size, attr.mtime, attr.uid, attr.gid);
    one.is_same_file(other).unwrap_or_else(|| fields(one) == fields(other))
}

async fn rename_on(
    tree: &Tree,
    slot: usize,
    from: &RemotePath,
    to: &RemotePath,
    mode: RenameMode,
) -> Result<()> {
    let branch = tree.branch(slot);
    let (from, to) = (branch.subpath(from), branch.subpath(to));
    branch.call(branch.remote.rename(&from, &to, mode)).await
}

/// Creates `new` as a hard link to the entry shown at `existing`, on its branch.
pub(crate) async fn link(tree: &Tree, existing: &RemotePath, new: &RemotePath) -> Result<()> {
    if tree.is_fixed(existing) {
        return Err(Errno::EPERM);
    }
    if tree.is_fixed(new) {
        return Err(Errno::EEXIST);
    }
    if let (Some((branch, existing)), Some((other, new))) =
        (tree.sole_branch(existing), tree.sole_branch(new))
    {
        if !Arc::ptr_eq(branch, other) {
            return Err(Errno::EXDEV);
        }
        branch.check_writable()?;
        return branch.call(branch.remote.link(&existing, &new)).await;
    }
    let (old, free) = tokio::join!(View::of_shown(tree, existing), View::of(tree, new));
    let source = old?.require_shown()?;
    let free = free?;
    if free.shown().is_some() {
        return Err(Errno::EEXIST);
    }
    if source.attr.is_dir() {
        return Err(Errno::EPERM);
    }
    if !free.parents.contains(source.slot) {
        return Err(Errno::EXDEV);
    }
    let branch = tree.branch(source.slot);
    branch.check_writable()?;
    let (existing, new) = (branch.subpath(existing), branch.subpath(new));
    branch.call(branch.remote.link(&existing, &new)).await
}
