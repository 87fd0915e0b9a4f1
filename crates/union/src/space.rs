//! `statvfs` of several file systems as one.
//!
//! Two branches are on the same file system if they are on one host and its identifiers are equal;
//! on two hosts, or without an identifier, if all figures are equal: two gateways to one server.
//! Each file system is counted once.

use std::sync::Arc;

use base::{Errno, RemotePath, Result, StatVfs, stable_hash};

use crate::branch::TreeBranch;
use crate::fan_out::FanOut;
use crate::tree::Tree;
use crate::view::View;

/// The sum over the branches that have an entry at `path`, and those whose place is below it.
///
/// A branch of the second kind that is unreachable is not counted; one of the first kind is waited
/// for, or its error returned, unless it is optional.
pub(crate) async fn statvfs(tree: &Tree, path: &RemotePath) -> Result<StatVfs> {
    if let Some((branch, at)) = tree.sole_branch(path) {
        let space = branch.call(branch.remote.statvfs(&at)).await?;
        return Ok(StatVfs { fsid: fsid(tree), ..space });
    }
    let view = View::existing(tree, path).await?;
    let at_path = view.holders.iter().map(|holder| {
        let branch = tree.branch(holder.slot);
        (branch, branch.subpath(path), true)
    });
    let below = tree.placed_below(path).filter(|branch| !branch.remote.is_disconnected());
    let queried = at_path.chain(below.map(|branch| (branch, RemotePath::root(), false)));
    let calls = queried.map(async |(branch, at, required)| {
        match branch.call(branch.remote.statvfs(&at)).await {
            Ok(space) => Ok(Some(BranchSpace { branch, space })),
            Err(errno) if branch.is_lost(errno) && branch.is_optional() => Ok(None),
            // A branch without `statvfs` is not counted.
            Err(Errno::EOPNOTSUPP) => Ok(None),
            Err(_) if !required => Ok(None),
            Err(errno) => Err(errno),
        }
    });
    let spaces: Result<Vec<_>> = FanOut::of(calls).all().await.into_iter().collect();
    let spaces: Vec<BranchSpace<'_>> = spaces?.into_iter().flatten().collect();
    let sum = sum(&spaces).ok_or_else(|| no_figures(tree, path))?;
    Ok(StatVfs { fsid: fsid(tree), ..sum })
}

/// The error if no branch has figures: an unreachable one might have some.
fn no_figures(tree: &Tree, path: &RemotePath) -> Errno {
    let at_path = tree.covering(path).map(|(_, branch)| branch);
    let mut queried = at_path.chain(tree.placed_below(path));
    match queried.any(|branch| branch.is_left_out() || branch.remote.is_disconnected()) {
        true => Errno::EHOSTDOWN,
        false => Errno::EOPNOTSUPP,
    }
}

/// The figures of one branch.
struct BranchSpace<'t> {
    branch: &'t Arc<TreeBranch>,
    space: StatVfs,
}

impl BranchSpace<'_> {
    fn is_same(&self, other: &BranchSpace<'_>) -> bool {
        let (one, two) = (&self.space, &other.space);
        let same_id = one.fsid == two.fsid;
        let on_one_host = self.branch.host == other.branch.host;
        if on_one_host && one.fsid != 0 { same_id } else { one == two }
    }
}

/// An identifier of the tree, constant while the sources are the same.
fn fsid(tree: &Tree) -> u64 {
    let names =
        tree.given().iter().flat_map(|branch| [branch.place.as_bytes(), branch.name.as_bytes()]);
    stable_hash(names.flat_map(|part| part.iter().chain(&[0])))
}

fn sum(spaces: &[BranchSpace<'_>]) -> Option<StatVfs> {
    let is_first = |(at, one): &(usize, &BranchSpace<'_>)| {
        !spaces[..*at].iter().any(|other| one.is_same(other))
    };
    let distinct = spaces.iter().enumerate().filter(is_first).map(|(_, one)| one);
    let distinct: Vec<&StatVfs> = distinct.map(|one| &one.space).collect();
    let unit = distinct.iter().map(|space| space.fragment_size.max(1)).min()?;
    let mut sum = StatVfs { fragment_size: unit, name_max: u64::MAX, ..StatVfs::default() };
    if spaces.iter().all(|one| one.space.is_read_only() || !one.branch.writable()) {
        sum.flags = StatVfs::READ_ONLY;
    }
    for space in distinct {
        // Rounded down, by less than one unit of the smallest.
        let scaled = |fragments: u64| {
            let bytes = u128::from(fragments) * u128::from(space.fragment_size.max(1));
            u64::try_from(bytes / u128::from(unit)).unwrap_or(u64::MAX)
        };
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut sum.blocks, scaled(space.blocks));
        add(&mut sum.blocks_free, scaled(space.blocks_free));
        add(&mut sum.blocks_available, scaled(space.blocks_available));
        add(&mut sum.files, space.files);
        add(&mut sum.files_free, space.files_free);
        add(&mut sum.files_available, space.files_available);
        sum.block_size = sum.block_size.max(space.block_size);
        sum.name_max = sum.name_max.min(space.name_max);
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Branch, Mode, Presence};
    use testkit::MemRemote;

    fn branch(host: &str, mode: Mode) -> Arc<TreeBranch> {
        Arc::new(TreeBranch::new(Branch {
            name: format!("{host}:/d"),
            host: host.to_owned(),
            place: Vec::new(),
            remote: Arc::new(MemRemote::new()),
            mode,
            presence: Presence::Required,
        }))
    }

    fn space(fsid: u64, fragment_size: u64, blocks: u64) -> StatVfs {
        StatVfs {
            block_size: fragment_size,
            fragment_size,
            blocks,
            blocks_free: blocks / 2,
            blocks_available: blocks / 4,
            files: 10,
            files_free: 5,
            files_available: 5,
            fsid,
            name_max: 255,
            flags: 0,
        }
    }

    fn blocks(of: &[(&Arc<TreeBranch>, StatVfs)]) -> u64 {
        let spaces: Vec<BranchSpace<'_>> =
            of.iter().map(|(branch, space)| BranchSpace { branch, space: *space }).collect();
        sum(&spaces).unwrap().blocks
    }

    #[test]
    fn each_file_system_is_included_once() {
        let (one, same, other) =
            (branch("a", Mode::Rw), branch("a", Mode::Rw), branch("b", Mode::Rw));
        let fs = |fsid, blocks| space(fsid, 4_096, blocks);
        // By the identifier on one host, although data was written between the two requests.
        assert_eq!(blocks(&[(&one, fs(7, 100)), (&same, fs(7, 100))]), 100);
        let mut later = fs(7, 100);
        later.blocks_free -= 1;
        assert_eq!(blocks(&[(&one, fs(7, 100)), (&same, later)]), 100);
        assert_eq!(blocks(&[(&one, fs(7, 100)), (&same, fs(8, 100))]), 200);
        // Cloned machines have equal identifiers, but not the same free space.
        assert_eq!(blocks(&[(&one, fs(7, 100)), (&other, later)]), 200);
        assert_eq!(blocks(&[(&one, fs(7, 100)), (&other, fs(7, 100))]), 100);
        // Without an identifier by all figures.
        assert_eq!(blocks(&[(&one, fs(0, 100)), (&same, fs(0, 100))]), 100);
        assert_eq!(blocks(&[(&one, fs(0, 100)), (&same, fs(0, 101))]), 201);
    }

    #[test]
    fn units_and_limits_are_made_common() {
        let (one, other) = (branch("a", Mode::Rw), branch("b", Mode::Ro));
        let (small, mut large) = (space(1, 512, 1_000), space(2, 4_096, 1_000));
        large.name_max = 143;
        let spaces = [
            BranchSpace { branch: &one, space: small },
            BranchSpace { branch: &other, space: large },
        ];
        let all = sum(&spaces).unwrap();
        assert_eq!((all.fragment_size, all.block_size, all.name_max), (512, 4_096, 143));
        assert_eq!((all.blocks, all.blocks_free, all.blocks_available), (9_000, 4_500, 2_250));
        assert_eq!((all.files, all.files_free), (20, 10));
        assert!(!all.is_read_only() && sum(&spaces[1..]).unwrap().is_read_only());
        assert!(sum(&[]).is_none());
        let huge = space(3, 1 << 20, u64::MAX);
        assert_eq!(blocks(&[(&one, small), (&other, huge)]), u64::MAX);
    }
}
