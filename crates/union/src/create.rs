//! Creating files, directories and symbolic links on the branch that the policy chooses.
//!
//! The name must be free on all branches: all are queried first, in parallel, which costs one round
//! trip. If one shows a file of that name, later ones are not waited for. The answer of the chosen
//! branch is final: if it has no space, no other branch is tried.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use base::{Attr, AttrChange, Create, Errno, FileKind, OpenFlags, RemotePath, Result};

use crate::branch::{Mode, TreeBranch};
use crate::components::Components;
use crate::fan_out::FanOut;
use crate::handles::BranchFile;
use crate::lookup;
use crate::policy::CreatePolicy;
use crate::tree::Tree;
use crate::view::View;

/// Attempts of an open that finds the file but gets `ENOENT` on opening it. A process that keeps
/// replacing the file by removing it first makes the open fail.
const ATTEMPTS: usize = 4;

/// Opens the file shown at `path`, or creates it.
pub(crate) async fn open(
    tree: &Tree,
    path: &RemotePath,
    flags: OpenFlags,
    policy: CreatePolicy,
) -> Result<(BranchFile, Attr)> {
    if tree.is_fixed(path) {
        let exclusive = matches!(flags.create, Create::Exclusive(_));
        return Err(if exclusive { Errno::EEXIST } else { Errno::EISDIR });
    }
    if let Some((branch, at)) = tree.sole_branch(path) {
        return branch.call(open_on_sole_branch(branch, &at, flags)).await;
    }
    if flags.create == Create::Never && !flags.truncate {
        return lookup::open(tree, path, flags).await;
    }
    for _ in 1..ATTEMPTS {
        match open_or_create(tree, path, flags, policy).await {
            Err(Errno::ENOENT) if flags.create != Create::Never => {}
            result => return result,
        }
    }
    open_or_create(tree, path, flags, policy).await
}

/// Opens or creates a file where the path leads to one branch only.
async fn open_on_sole_branch(
    branch: &Arc<TreeBranch>,
    at: &RemotePath,
    flags: OpenFlags,
) -> Result<(BranchFile, Attr)> {
    if branch.mode() == Mode::Rw {
        return BranchFile::open(branch, at, flags).await;
    }
    if let Create::Exclusive(_) = flags.create {
        return Err(creation_error(branch, at).await);
    }
    if (flags.access.writes() || flags.truncate) && !branch.writable() {
        return Err(match branch.remote.lstat(at).await {
            Ok(attr) => lookup::read_only_error(attr.kind),
            Err(Errno::ENOENT) if flags.create != Create::Never => Errno::EROFS,
            Err(errno) => errno,
        });
    }
    match BranchFile::open(branch, at, OpenFlags { create: Create::Never, ..flags }).await {
        Err(Errno::ENOENT) if flags.create != Create::Never => Err(Errno::EROFS),
        result => result,
    }
}

/// The error of creating an entry on a branch that takes no new ones.
async fn creation_error(branch: &TreeBranch, at: &RemotePath) -> Errno {
    match branch.call(branch.remote.lstat(at)).await {
        Ok(_) => Errno::EEXIST,
        Err(Errno::ENOENT) => Errno::EROFS,
        Err(errno) => errno,
    }
}

async fn open_or_create(
    tree: &Tree,
    path: &RemotePath,
    flags: OpenFlags,
    policy: CreatePolicy,
) -> Result<(BranchFile, Attr)> {
    let view = View::of_shown(tree, path).await?;
    let components = Components::new(path);
    if let Some(shown) = view.shown() {
        if let Create::Exclusive(_) = flags.create {
            return Err(Errno::EEXIST);
        }
        let branch = tree.branch(shown.slot);
        if (flags.access.writes() || flags.truncate) && !branch.writable() {
            return Err(lookup::read_only_error(shown.attr.kind));
        }
        let at = components.subpath(branch.depth, components.depth());
        // Not created here: the policy may choose another branch for new files.
        let flags = OpenFlags { create: Create::Never, ..flags };
        return branch.call(BranchFile::open(branch, &at, flags)).await;
    }
    if flags.create == Create::Never {
        return Err(view.require_shown().err().unwrap_or(Errno::ENOENT));
    }
    let (branch, at) = create_target(tree, &components, &view, policy).await?;
    branch.call(BranchFile::open(branch, &at, flags)).await
}

/// Creates a directory.
pub(crate) async fn mkdir(
    tree: &Tree,
    path: &RemotePath,
    perm: u32,
    policy: CreatePolicy,
) -> Result<()> {
    let _change = tree.dir_cache.begin_change(Some(path));
    let (branch, at) = target_for_new(tree, path, policy).await?;
    branch.call(branch.remote.mkdir(&at, perm)).await
}

/// Creates a symbolic link.
pub(crate) async fn symlink(
    tree: &Tree,
    target: &[u8],
    path: &RemotePath,
    policy: CreatePolicy,
) -> Result<()> {
    let (branch, at) = target_for_new(tree, path, policy).await?;
    branch.call(branch.remote.symlink(target, &at)).await
}

/// Creates a FIFO, a socket or a device.
pub(crate) async fn mknod(
    tree: &Tree,
    path: &RemotePath,
    (kind, perm, device): (FileKind, u32, (u32, u32)),
    policy: CreatePolicy,
) -> Result<()> {
    let (branch, at) = target_for_new(tree, path, policy).await?;
    branch.call(branch.remote.mknod(&at, kind, perm, device)).await
}

/// The branch for a new entry at `path`, and its path there; `EEXIST` when any branch has the name.
async fn target_for_new<'t>(
    tree: &'t Tree,
    path: &RemotePath,
    policy: CreatePolicy,
) -> Result<(&'t Arc<TreeBranch>, RemotePath)> {
    if tree.is_fixed(path) {
        return Err(Errno::EEXIST);
    }
    if let Some((branch, at)) = tree.sole_branch(path) {
        if branch.mode() == Mode::Rw {
            return Ok((branch, at));
        }
        return Err(creation_error(branch, &at).await);
    }
    let view = View::of(tree, path).await?;
    if view.shown().is_some() {
        return Err(Errno::EEXIST);
    }
    create_target(tree, &Components::new(path), &view, policy).await
}

/// Chooses a branch for a new entry, and creates the parent directories there if the policy says
/// so.
async fn create_target<'t>(
    tree: &'t Tree,
    components: &Components<'_>,
    view: &View,
    policy: CreatePolicy,
) -> Result<(&'t Arc<TreeBranch>, RemotePath)> {
    let slot = choose(tree, components, view, policy).await?;
    let branch = tree.branch(slot);
    if !view.parents.contains(slot) {
        create_parents(tree, components, branch).await?;
    }
    Ok((branch, branch.subpath(components.path())))
}

/// The slot of the branch for a new name.
async fn choose(
    tree: &Tree,
    components: &Components<'_>,
    view: &View,
    policy: CreatePolicy,
) -> Result<usize> {
    let for_new = tree.covering(components.path()).map(|(slot, branch)| (slot, branch.mode()));
    let for_new = for_new.filter(|(_, mode)| *mode == Mode::Rw).map(|(slot, _)| slot);
    let (unreachable, reachable): (Vec<usize>, Vec<usize>) =
        for_new.partition(|slot| view.left_out.contains(*slot));
    let fitting = if policy.needs_parent() { view.parents } else { view.possible };
    let eligible: Vec<usize> =
        reachable.into_iter().filter(|slot| fitting.contains(*slot)).collect();
    if eligible.is_empty() {
        // An unreachable branch could have been the one.
        return Err(if unreachable.is_empty() { Errno::EROFS } else { Errno::EHOSTDOWN });
    }
    match policy {
        CreatePolicy::EpFf | CreatePolicy::Ff => Ok(eligible[0]),
        CreatePolicy::EpMfs | CreatePolicy::Mfs => {
            most_free(tree, components, view, &eligible).await
        }
        CreatePolicy::Rand => {
            let draw = RandomState::new().build_hasher().finish();
            Ok(eligible[(draw % eligible.len() as u64) as usize])
        }
    }
}

/// The branch with the most space for unprivileged users, the first of equal ones. If none has
/// space, the first whose server cannot report its space is chosen. One that fails to report it for
/// another reason, or has none, is not: `ENOSPC` if that is true of all.
async fn most_free(
    tree: &Tree,
    components: &Components<'_>,
    view: &View,
    eligible: &[usize],
) -> Result<usize> {
    let calls = eligible.iter().map(async |slot| {
        let branch = tree.branch(*slot);
        let at = if view.parents.contains(*slot) {
            components.subpath(branch.depth, components.parent_depth())
        } else {
            RemotePath::root()
        };
        let space = branch.call(branch.remote.statvfs(&at)).await?;
        let free = space.blocks_available.saturating_mul(space.fragment_size);
        Result::Ok(if space.is_read_only() { 0 } else { free })
    });
    let calls = FanOut::of(calls);
    let is_needed =
        |branch: &TreeBranch, errno: Errno| branch.is_lost(errno) && !branch.is_optional();
    let (mut most, mut unknown) = ((0, None), None);
    for (slot, free) in eligible.iter().zip(calls.all().await) {
        match free {
            Ok(free) if free > most.0 => most = (free, Some(*slot)),
            Err(Errno::EOPNOTSUPP) => unknown = unknown.or(Some(*slot)),
            Err(errno) if is_needed(tree.branch(*slot), errno) => return Err(errno),
            _ => {}
        }
    }
    most.1.or(unknown).ok_or(Errno::ENOSPC)
}

/// Creates the missing parent directories of a path on a branch, with the permissions and the owner
/// that the tree shows.
async fn create_parents(
    tree: &Tree,
    components: &Components<'_>,
    branch: &Arc<TreeBranch>,
) -> Result<()> {
    for count in branch.depth + 1..=components.parent_depth() {
        let at = components.subpath(branch.depth, count);
        match branch.call(branch.remote.lstat(&at)).await {
            Ok(attr) if attr.is_dir() => continue,
            Ok(_) => return Err(Errno::ENOTDIR),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        let path = components.subpath(0, count);
        let _change = tree.dir_cache.begin_change(Some(&path));
        let shown = lookup::lstat(tree, &path).await?;
        match branch.call(branch.remote.mkdir(&at, shown.perm)).await {
            // Created by another client at the same moment.
            Err(Errno::EEXIST) => continue,
            made => made?,
        }
        copy_ownership(branch, &at, &shown).await?;
    }
    Ok(())
}

/// Gives a new directory the permissions and the owner of another one. Only the superuser can set
/// the owner; without that right it stays the user who created it.
async fn copy_ownership(branch: &Arc<TreeBranch>, at: &RemotePath, shown: &Attr) -> Result<()> {
    let made = branch.call(branch.remote.lstat(at)).await?;
    if (made.uid, made.gid) != (shown.uid, shown.gid) {
        let owner =
            AttrChange { uid: Some(shown.uid), gid: Some(shown.gid), ..AttrChange::default() };
        match branch.call(branch.remote.setattr(at, owner)).await {
            Ok(()) | Err(Errno::EPERM | Errno::EACCES) => {}
            Err(errno) => return Err(errno),
        }
    }
    if made.perm != shown.perm {
        let perm = AttrChange { perm: Some(shown.perm), ..AttrChange::default() };
        branch.call(branch.remote.setattr(at, perm)).await?;
    }
    Ok(())
}
