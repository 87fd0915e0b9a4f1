//! Making files, directories and symbolic links: where, by the policy, and how.
//!
//! The name must be free on all branches; so it is asked for first, on all at once, which costs a
//! round trip. What the chosen branch then answers is the answer: when it has no room, no other
//! one is tried.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use base::{Attr, AttrChange, Create, Errno, OpenFlags, RemotePath, Result};

use crate::branch::{Live, Mode};
use crate::fan::{Call, Fan};
use crate::find;
use crate::handles::InnerFile;
use crate::policy::CreatePolicy;
use crate::steps::Steps;
use crate::tree::Tree;
use crate::view::{View, in_set};

/// How often an open looks again when the file that was found is gone when it is opened. Somebody
/// who replaces a file all the time by removing it first is given up on.
const ATTEMPTS: usize = 4;

/// Opens the file that the tree shows at `path`, or makes it.
pub(crate) async fn open(
    tree: &Tree,
    path: &RemotePath,
    flags: OpenFlags,
    policy: CreatePolicy,
) -> Result<(InnerFile, Attr)> {
    if tree.is_fixed(path) {
        let exclusive = matches!(flags.create, Create::Exclusive(_));
        return Err(if exclusive { Errno::EEXIST } else { Errno::EISDIR });
    }
    if let Some((live, at)) = tree.only(path) {
        return live.act(open_alone(live, &at, flags)).await;
    }
    if flags.create == Create::Never && !flags.truncate {
        return find::open(tree, path, flags).await;
    }
    for _ in 1..ATTEMPTS {
        match open_or_make(tree, path, flags, policy).await {
            Err(Errno::ENOENT) if flags.create != Create::Never => {}
            result => return result,
        }
    }
    open_or_make(tree, path, flags, policy).await
}

/// The same on the only branch that the path leads to.
async fn open_alone(
    live: &Arc<Live>,
    at: &RemotePath,
    flags: OpenFlags,
) -> Result<(InnerFile, Attr)> {
    if live.mode() == Mode::Rw {
        return InnerFile::open(live, at, flags).await;
    }
    if let Create::Exclusive(_) = flags.create {
        return match live.remote.lstat(at).await {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Err(Errno::EROFS),
            Err(errno) => Err(errno),
        };
    }
    if (flags.access.writes() || flags.truncate) && !live.writable() {
        return Err(match live.remote.lstat(at).await {
            Ok(attr) => find::not_to_be_written(attr.kind),
            Err(Errno::ENOENT) if flags.create != Create::Never => Errno::EROFS,
            Err(errno) => errno,
        });
    }
    match InnerFile::open(live, at, OpenFlags { create: Create::Never, ..flags }).await {
        Err(Errno::ENOENT) if flags.create != Create::Never => Err(Errno::EROFS),
        result => result,
    }
}

async fn open_or_make(
    tree: &Tree,
    path: &RemotePath,
    flags: OpenFlags,
    policy: CreatePolicy,
) -> Result<(InnerFile, Attr)> {
    let view = View::of(tree, path).await?;
    let steps = Steps::new(path);
    if let Some(shown) = view.shown() {
        if let Create::Exclusive(_) = flags.create {
            return Err(Errno::EEXIST);
        }
        let live = tree.branch(shown.slot);
        if (flags.access.writes() || flags.truncate) && !live.writable() {
            return Err(find::not_to_be_written(shown.attr.kind));
        }
        let at = steps.inside(live.depth, steps.depth());
        // Never made here: this branch need not be the one for new files.
        let flags = OpenFlags { create: Create::Never, ..flags };
        return live.act(InnerFile::open(live, &at, flags)).await;
    }
    if flags.create == Create::Never {
        return Err(view.must_show().err().unwrap_or(Errno::ENOENT));
    }
    let (live, at) = place(tree, &steps, &view, policy).await?;
    live.act(InnerFile::open(live, &at, flags)).await
}

/// Makes a directory.
pub(crate) async fn mkdir(
    tree: &Tree,
    path: &RemotePath,
    perm: u32,
    policy: CreatePolicy,
) -> Result<()> {
    let _change = tree.known.change(path);
    let (live, at) = free_name(tree, path, policy).await?;
    live.act(live.remote.mkdir(&at, perm)).await
}

/// Makes a symbolic link.
pub(crate) async fn symlink(
    tree: &Tree,
    target: &[u8],
    path: &RemotePath,
    policy: CreatePolicy,
) -> Result<()> {
    let (live, at) = free_name(tree, path, policy).await?;
    live.act(live.remote.symlink(target, &at)).await
}

/// The branch on which something new at `path` is made, and where; `EEXIST` when something is
/// there on any.
async fn free_name<'t>(
    tree: &'t Tree,
    path: &RemotePath,
    policy: CreatePolicy,
) -> Result<(&'t Arc<Live>, RemotePath)> {
    if tree.is_fixed(path) {
        return Err(Errno::EEXIST);
    }
    if let Some((live, at)) = tree.only(path) {
        if live.mode() == Mode::Rw {
            return Ok((live, at));
        }
        return match live.act(live.remote.lstat(&at)).await {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Err(Errno::EROFS),
            Err(errno) => Err(errno),
        };
    }
    let view = View::of(tree, path).await?;
    if view.shown().is_some() {
        return Err(Errno::EEXIST);
    }
    place(tree, &Steps::new(path), &view, policy).await
}

/// Chooses a branch for a new name, and makes the directories above it there if the policy is for
/// that.
async fn place<'t>(
    tree: &'t Tree,
    steps: &Steps<'_>,
    view: &View,
    policy: CreatePolicy,
) -> Result<(&'t Arc<Live>, RemotePath)> {
    let slot = choose(tree, steps, view, policy).await?;
    let live = tree.branch(slot);
    if !in_set(view.parents, slot) {
        make_parents(tree, steps, live).await?;
    }
    Ok((live, steps.inside(live.depth, steps.depth())))
}

/// The slot of the branch for a new name.
async fn choose(
    tree: &Tree,
    steps: &Steps<'_>,
    view: &View,
    policy: CreatePolicy,
) -> Result<usize> {
    let for_new = tree.covering(steps.path()).map(|(slot, live)| (slot, live.mode()));
    let for_new = for_new.filter(|(_, mode)| *mode == Mode::Rw).map(|(slot, _)| slot);
    let (away, here): (Vec<usize>, Vec<usize>) =
        for_new.partition(|slot| in_set(view.left_out, *slot));
    let fitting = if policy.keeps_paths() { view.parents } else { view.possible };
    let eligible: Vec<usize> = here.into_iter().filter(|slot| in_set(fitting, *slot)).collect();
    if eligible.is_empty() {
        // A branch that cannot be reached might have been the one.
        return Err(if away.is_empty() { Errno::EROFS } else { Errno::EHOSTDOWN });
    }
    match policy {
        CreatePolicy::EpFf | CreatePolicy::Ff => Ok(eligible[0]),
        CreatePolicy::EpMfs | CreatePolicy::Mfs => most_free(tree, steps, view, &eligible).await,
        CreatePolicy::Rand => {
            let draw = RandomState::new().build_hasher().finish();
            Ok(eligible[(draw % eligible.len() as u64) as usize])
        }
    }
}

/// The one of these with most space for unprivileged users, the first of equal ones. One that does
/// not tell, or has none, cannot be chosen: `ENOSPC` if that is all.
async fn most_free(
    tree: &Tree,
    steps: &Steps<'_>,
    view: &View,
    eligible: &[usize],
) -> Result<usize> {
    let asked = eligible.iter().map(|slot| -> Call<'_, Result<u64>> {
        let live = tree.branch(*slot);
        let has_parent = in_set(view.parents, *slot);
        let at =
            if has_parent { steps.inside(live.depth, steps.above()) } else { RemotePath::root() };
        Box::pin(async move {
            let figures = live.act(live.remote.statvfs(&at)).await?;
            let free = figures.blocks_available.saturating_mul(figures.fragment_size);
            Ok(if figures.read_only { 0 } else { free })
        })
    });
    let asked: Fan<'_, Result<u64>> = asked.collect();
    let mut most = (0, None);
    for (slot, free) in eligible.iter().zip(asked.all().await) {
        match free {
            Ok(free) if free > most.0 => most = (free, Some(*slot)),
            Err(errno @ (Errno::EHOSTDOWN | Errno::ETIMEDOUT))
                if !tree.branch(*slot).is_optional() =>
            {
                return Err(errno);
            }
            _ => {}
        }
    }
    most.1.ok_or(Errno::ENOSPC)
}

/// Makes what is missing on a branch of the directories above a path, with permissions and owner
/// of those that the tree shows.
async fn make_parents(tree: &Tree, steps: &Steps<'_>, live: &Arc<Live>) -> Result<()> {
    for count in live.depth + 1..=steps.above() {
        let at = steps.inside(live.depth, count);
        match live.act(live.remote.lstat(&at)).await {
            Ok(attr) if attr.is_dir() => continue,
            Ok(_) => return Err(Errno::ENOTDIR),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        let path = steps.inside(0, count);
        let _change = tree.known.change(&path);
        let shown = find::lstat(tree, &path).await?;
        match live.act(live.remote.mkdir(&at, shown.perm)).await {
            // Somebody else has made it just now, as it is to be.
            Err(Errno::EEXIST) => continue,
            made => made?,
        }
        make_alike(live, &at, &shown).await?;
    }
    Ok(())
}

/// Gives a new directory the permissions and the owner of another one. Only the superuser can give
/// it to somebody else; without that it belongs to whoever made it.
async fn make_alike(live: &Arc<Live>, at: &RemotePath, shown: &Attr) -> Result<()> {
    let made = live.act(live.remote.lstat(at)).await?;
    if (made.uid, made.gid) != (shown.uid, shown.gid) {
        let owner =
            AttrChange { uid: Some(shown.uid), gid: Some(shown.gid), ..AttrChange::default() };
        match live.act(live.remote.setattr(at, owner)).await {
            Ok(()) | Err(Errno::EPERM | Errno::EACCES) => {}
            Err(errno) => return Err(errno),
        }
    }
    if made.perm != shown.perm {
        let perm = AttrChange { perm: Some(shown.perm), ..AttrChange::default() };
        live.act(live.remote.setattr(at, perm)).await?;
    }
    Ok(())
}
