//! Querying all branches for one path, and resolving their answers.
//!
//! **What a tree shows.** A directory of the tree consists of the directories of its branches. A
//! name in it is that of the first of these branches, in the order of search, that has the name. If
//! that entry is a directory, the directories of the same name on the other branches are merged
//! with it, and other entries of that name are hidden. If it is not a directory, it hides the
//! entries of all others, with everything below them.
//!
//! So a branch takes part in a path only if each parent directory is a directory on that branch
//! too, and is not hidden. Servers follow symbolic links in the middle of a path, so a hidden link
//! could lead elsewhere; this is why the parent directories are queried, unless they are in the
//! [cache](crate::dir_cache). All requests are sent at once: a look-up is one round trip, for any
//! number of branches and any depth of the path.

use std::sync::Arc;

use base::{Attr, Errno, RemotePath, Result};

use crate::branch::TreeBranch;
use crate::components::Components;
use crate::dir_cache::{Report, Route};
use crate::fan_out::{Call, FanOut};
use crate::tree::Tree;

/// The request to a branch for the path itself: takes the path inside the branch, and whether it is
/// known to be a directory.
pub(crate) trait Leaf<T>:
    Fn(&Arc<TreeBranch>, RemotePath, bool) -> Call<'static, Result<T>> + Sync
{
}

impl<T, F: Fn(&Arc<TreeBranch>, RemotePath, bool) -> Call<'static, Result<T>> + Sync> Leaf<T>
    for F
{
}

/// Requests the attributes, as those of the tree.
pub(crate) fn lstat_leaf(
    branch: &Arc<TreeBranch>,
    at: RemotePath,
    _: bool,
) -> Call<'static, Result<Attr>> {
    let branch = branch.clone();
    Box::pin(async move { Ok(branch.translated(branch.remote.lstat(&at).await?)) })
}

/// How much of the directory cache may replace requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// All entries.
    Cached,
    /// All but the entry of the parent directory.
    ExceptParent,
}

/// The answer of one branch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<T> {
    /// The number of leading names that are directories, at most all but the last.
    pub(crate) dirs: usize,
    pub(crate) outcome: Outcome<T>,
}

/// What a branch has at the end of the path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome<T> {
    /// The entry exists.
    Found(T),
    /// The name after the directories is absent.
    Absent,
    /// The name after the directories is not a directory, though more names follow.
    NoDirectory,
    /// The branch returned an error.
    Failed(Errno),
    /// The branch is left out at present.
    LeftOut,
}

impl<T> Answer<T> {
    /// At a fixed path, an entry that is not a directory is hidden.
    pub(crate) fn hide_unless(mut self, is_directory: impl FnOnce(&T) -> bool) -> Answer<T> {
        if let Outcome::Found(found) = &self.outcome
            && !is_directory(found)
        {
            self.outcome = Outcome::Absent;
        }
        self
    }
}

/// A request for one path to all branches that it leads to.
pub(crate) struct Query<'t> {
    pub(crate) tree: &'t Tree,
    pub(crate) components: Components<'t>,
    pub(crate) fixed: bool,
    /// The number of leading names, at most all but the last, that are fixed directories.
    fixed_above: usize,
    targets: Vec<Target<'t>>,
    generation: u64,
}

/// A branch and its route.
#[derive(Clone, Copy)]
struct Target<'t> {
    slot: usize,
    branch: &'t Arc<TreeBranch>,
    route: Route,
}

impl<'t> Query<'t> {
    pub(crate) fn new(tree: &'t Tree, path: &'t RemotePath, trust: Trust) -> Query<'t> {
        let components = Components::new(path);
        let most = match trust {
            Trust::Cached => components.parent_depth(),
            Trust::ExceptParent => components.parent_depth().saturating_sub(1),
        };
        let covering: Vec<_> = tree.covering(path).collect();
        let places = covering.iter().map(|(slot, branch)| (*slot, branch.depth));
        let (generation, routes) = tree.dir_cache.routes(&components, places, most);
        let targets = covering.into_iter().zip(routes);
        let targets =
            targets.map(|((slot, branch), route)| Target { slot, branch, route }).collect();
        let fixed_above = tree.fixed_depth(path).min(components.parent_depth());
        Query { tree, fixed: tree.is_fixed(path), components, fixed_above, targets, generation }
    }

    /// The branch of the `index`th answer.
    pub(crate) fn branch(&self, index: usize) -> (usize, &'t Arc<TreeBranch>) {
        let Target { slot, branch, .. } = &self.targets[index];
        (*slot, branch)
    }

    /// The generation of the directory cache at the time of the request.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Queries all branches.
    pub(crate) fn send<'q, T: Send + 'static>(
        &'q self,
        leaf: &'q impl Leaf<T>,
    ) -> FanOut<'q, Answer<T>> {
        FanOut::of(self.targets.iter().map(async |Target { branch, route, .. }| {
            match branch.attempt(self.walk(branch, *route, leaf)).await {
                Some(Ok(answer)) => answer,
                Some(Err(errno)) => Answer { dirs: 0, outcome: Outcome::Failed(errno) },
                None => Answer { dirs: 0, outcome: Outcome::LeftOut },
            }
        }))
    }

    async fn walk<T: Send + 'static>(
        &self,
        branch: &Arc<TreeBranch>,
        route: Route,
        leaf: &impl Leaf<T>,
    ) -> Result<Answer<T>> {
        let Route { mut trusted, missing, mut directory } = route;
        let from_place = branch.depth.min(self.components.parent_depth());
        if missing {
            let at = self.components.subpath(branch.depth, trusted + 1);
            match branch.remote.lstat(&at).await {
                Ok(attr) if attr.is_dir() => trusted += 1,
                Ok(_) => return Ok(Answer { dirs: trusted, outcome: Outcome::NoDirectory }),
                Err(Errno::ENOENT) => {
                    return Ok(Answer { dirs: trusted, outcome: Outcome::Absent });
                }
                Err(Errno::ENOTDIR) => trusted = from_place,
                Err(errno) => return Err(errno),
            }
        }
        loop {
            if let Some(answer) = self.walk_from(branch, trusted, directory, leaf).await? {
                return Ok(answer);
            }
            // A parent is not a directory, though the cache says so.
            if trusted == from_place && !directory {
                return Ok(Answer {
                    dirs: self.components.parent_depth(),
                    outcome: Outcome::Absent,
                });
            }
            (trusted, directory) = (from_place, false);
        }
    }

    /// `None` if an entry that was taken for a directory is not one.
    async fn walk_from<T: Send + 'static>(
        &self,
        branch: &Arc<TreeBranch>,
        trusted: usize,
        directory: bool,
        leaf: &impl Leaf<T>,
    ) -> Result<Option<Answer<T>>> {
        let (skip, above) = (branch.depth, self.components.parent_depth());
        let leaf = leaf(branch, self.components.subpath(skip, self.components.depth()), directory);
        let parents = FanOut::of((trusted + 1..=above).map(async |count| {
            let at = self.components.subpath(skip, count);
            branch.remote.lstat(&at).await
        }));
        // All requests are sent at once, and those that turn out not to be needed are not waited
        // for.
        let (parents, outcome) = if trusted < above {
            tokio::join!(parents.all(), leaf)
        } else {
            (Vec::new(), leaf.await)
        };
        for (dirs, attr) in (trusted..).zip(parents) {
            let outcome = match attr {
                Ok(attr) if attr.is_dir() => continue,
                Ok(_) => Outcome::NoDirectory,
                Err(Errno::ENOENT) => Outcome::Absent,
                Err(Errno::ENOTDIR) => return Ok(None),
                Err(errno) => return Err(errno),
            };
            return Ok(Some(Answer { dirs, outcome }));
        }
        let outcome = match outcome {
            Ok(found) => Outcome::Found(found),
            Err(Errno::ENOENT) => Outcome::Absent,
            Err(Errno::ENOTDIR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        Ok(Some(Answer { dirs: above, outcome }))
    }

    pub(crate) fn resolver(&self) -> Resolver {
        Resolver {
            above: self.components.parent_depth(),
            dirs: self.fixed_above,
            answered: self.targets.is_empty(),
        }
    }

    /// Which names of the path are directories by the answer at `index`, if it was given.
    /// `is_directory` classifies a found value.
    pub(crate) fn report<T>(
        &self,
        index: usize,
        answer: &Answer<T>,
        is_directory: impl Fn(&T) -> bool,
    ) -> Option<Report> {
        let Target { slot, branch, .. } = self.targets[index];
        let leaf = match &answer.outcome {
            Outcome::Found(found) => Some(is_directory(found)),
            Outcome::Absent => Some(false),
            Outcome::NoDirectory => None,
            Outcome::Failed(_) | Outcome::LeftOut => return None,
        };
        Some(Report { slot, place_depth: branch.depth, dirs: answer.dirs, leaf })
    }

    /// Records the directories in the answers.
    pub(crate) fn record(&self, reports: &[Report]) {
        let all_known = self
            .targets
            .iter()
            .all(|target| target.route.trusted == self.components.parent_depth());
        if !all_known || reports.iter().any(|report| report.leaf == Some(true)) {
            self.tree.dir_cache.record(self.generation, &self.components, reports);
        }
    }
}

/// The answers so far, added in the order of search.
#[derive(Debug)]
pub(crate) struct Resolver {
    /// The number of names but the last.
    above: usize,
    /// The number of leading names that are shown as directories.
    dirs: usize,
    /// A branch has answered, or the path leads to no branch.
    answered: bool,
}

impl Resolver {
    /// Adds the next answer. `Some` is the final result, unless it is a directory, with which the
    /// directories of later branches are merged.
    pub(crate) fn add<T>(&mut self, answer: Answer<T>) -> Option<Result<T>> {
        let Answer { dirs, outcome } = answer;
        self.answered |= !matches!(outcome, Outcome::LeftOut);
        match outcome {
            Outcome::LeftOut => None,
            Outcome::Failed(errno) => Some(Err(errno)),
            Outcome::Absent => {
                self.dirs = self.dirs.max(dirs);
                None
            }
            // The first branch that has the name, so its entry is shown.
            Outcome::NoDirectory if dirs >= self.dirs => Some(Err(Errno::ENOTDIR)),
            Outcome::NoDirectory => None,
            Outcome::Found(found) => {
                self.dirs = self.above;
                Some(Ok(found))
            }
        }
    }

    /// Whether the parent directory is shown.
    pub(crate) fn has_parent(&self) -> bool {
        self.dirs == self.above
    }

    /// The error when no branch has the name. Unreachable branches have not denied it.
    pub(crate) fn not_found(&self) -> Errno {
        if self.answered { Errno::ENOENT } else { Errno::EHOSTDOWN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(above: usize, fixed: usize, answers: Vec<(usize, Outcome<u32>)>) -> Result<u32> {
        let mut resolver = Resolver { above, dirs: fixed, answered: false };
        for (dirs, outcome) in answers {
            if let Some(result) = resolver.add(Answer { dirs, outcome }) {
                return result;
            }
        }
        Err(resolver.not_found())
    }

    use Outcome::{Absent, Failed, Found, LeftOut, NoDirectory};

    #[test]
    fn the_first_in_order_that_has_the_name_is_shown() {
        assert_eq!(
            shown(2, 0, vec![(2, Absent), (0, Absent), (2, Found(3)), (2, Found(4))]),
            Ok(3)
        );
        assert_eq!(shown(0, 0, vec![(0, Found(1))]), Ok(1));
        assert_eq!(shown(1, 0, vec![(1, Absent), (0, Absent)]), Err(Errno::ENOENT));
    }

    #[test]
    fn a_file_hides_what_later_branches_have_below_its_name() {
        assert_eq!(shown(2, 0, vec![(1, NoDirectory), (2, Found(1))]), Err(Errno::ENOTDIR));
        assert_eq!(shown(2, 0, vec![(0, NoDirectory), (2, Found(1))]), Err(Errno::ENOTDIR));
        // But not where an earlier branch has a directory of that name, or a place is below it.
        assert_eq!(shown(2, 0, vec![(1, Absent), (0, NoDirectory), (2, Found(1))]), Ok(1));
        assert_eq!(
            shown(2, 0, vec![(1, Absent), (1, NoDirectory), (2, Found(1))]),
            Err(Errno::ENOTDIR)
        );
        assert_eq!(shown(2, 1, vec![(0, NoDirectory), (2, Found(1))]), Ok(1));
    }

    #[test]
    fn an_error_of_an_earlier_branch_is_the_answer() {
        assert_eq!(
            shown(0, 0, vec![(0, Failed(Errno::EACCES)), (0, Found(1))]),
            Err(Errno::EACCES)
        );
        assert_eq!(shown(0, 0, vec![(0, Found(1)), (0, Failed(Errno::EACCES))]), Ok(1));
        assert_eq!(shown(0, 0, vec![(0, LeftOut), (0, Found(1))]), Ok(1));
        assert_eq!(shown(0, 0, vec![(0, LeftOut), (0, Absent)]), Err(Errno::ENOENT));
        assert_eq!(shown(0, 0, vec![(0, LeftOut), (0, LeftOut)]), Err(Errno::EHOSTDOWN));
    }
}
