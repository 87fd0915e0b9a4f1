//! [`Union`]: the set of branches, changes of it, and its status.

use std::sync::Arc;

use base::{Errno, Location, RemotePath, Table, Window};
use tokio::sync::watch;

use crate::branch::{Branch, Mode, Presence, TreeBranch};
use crate::error::Error;
use crate::handles::BranchFile;
use crate::listing::Listing;
use crate::policy::Policies;
use crate::tree::{SharedTree, Tree};
use crate::view::View;
use crate::watches::UnionWatches;

/// Bound on the bytes in flight that are suggested for all branches together: more than two fast,
/// long links take, and little enough to keep in memory.
const MAX_WINDOW_BYTES: u64 = 128 << 20;

/// Several remotes as one tree. See the [crate] for the rules.
pub struct Union {
    tree: SharedTree,
    pub(crate) watches: Arc<UnionWatches>,
    /// Incremented by changes of the set of branches, for futures that wait for one.
    changed: watch::Sender<u64>,
    pub(crate) policies: Policies,
    pub(crate) files: Table<BranchFile>,
    pub(crate) directories: Table<Listing>,
}

/// The part of the tree that a change of the set of branches affects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "what is cached of this part of the tree is not true any more"]
pub struct Changed {
    /// Everything at and below this path may have changed. So may the directories above it, which
    /// exist because of it.
    pub below: RemotePath,
}

/// The present state of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The branches in the order given.
    pub branches: Vec<BranchStatus>,
    /// The policies.
    pub policies: Policies,
}

/// The present state of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchStatus {
    /// Its name and its host, as written by the user.
    pub location: Location,
    /// The directory of the tree at which its root appears; empty for the root of the tree.
    pub place: RemotePath,
    /// What may be changed in it.
    pub mode: Mode,
    /// What happens when it cannot be reached.
    pub presence: Presence,
    /// It is known to be unreachable.
    pub away: bool,
    /// It is optional, and was unreachable at the last call or is known to be now: the tree is
    /// shown without it.
    pub left_out: bool,
    /// Files that are open on it.
    pub open_files: usize,
}

impl Union {
    /// The tree of these branches, searched in this order.
    ///
    /// # Errors
    ///
    /// When there is no branch, when there are more than [`MAX_BRANCHES`](crate::MAX_BRANCHES), and
    /// when two have the same name.
    pub fn new(branches: Vec<Branch>, policies: Policies) -> Result<Union, Error> {
        let given = branches.into_iter().map(|branch| Arc::new(TreeBranch::new(branch)));
        let tree = SharedTree::new(Tree::new(given.collect())?);
        Ok(Union {
            watches: UnionWatches::new(tree.clone()),
            tree,
            changed: watch::Sender::new(0),
            policies,
            files: Table::default(),
            directories: Table::default(),
        })
    }

    /// The present set of branches. An operation that began with it ends with it.
    pub(crate) fn tree(&self) -> Arc<Tree> {
        self.tree.get()
    }

    /// Replaces the set of branches by one made from it.
    fn replace<T>(
        &self,
        change: impl FnOnce(&Tree) -> Result<(Tree, T), Error>,
    ) -> Result<T, Error> {
        let result = self.tree.replace(change)?;
        self.watches.lose_all(&self.tree());
        self.changed.send_modify(|changes| *changes += 1);
        Ok(result)
    }

    /// Adds a branch, the last in the order of search.
    ///
    /// # Errors
    ///
    /// When there are too many branches, or one of that name exists.
    pub fn add(&self, branch: Branch) -> Result<Changed, Error> {
        let below = RemotePath::from_names(&branch.place);
        self.replace(|tree| Ok((tree.with(branch)?, Changed { below })))
    }

    /// Takes out the branch of that name. Files open on it work until they are closed.
    ///
    /// # Errors
    ///
    /// When no branch has that name, and when it is the last one.
    pub fn remove(&self, name: &str) -> Result<Changed, Error> {
        self.replace(|tree| {
            let (left, removed) = tree.without(name)?;
            Ok((left, Changed { below: removed.place.clone() }))
        })
    }

    /// Changes what may be changed in the branch of that name. Files open for writing stay
    /// writable.
    ///
    /// # Errors
    ///
    /// When no branch has that name.
    pub fn set_mode(&self, name: &str, mode: Mode) -> Result<(), Error> {
        self.tree().find(name)?.set_mode(mode);
        Ok(())
    }

    /// Changes what happens when the branch of that name cannot be reached. Calls in flight are not
    /// affected.
    ///
    /// # Errors
    ///
    /// When no branch has that name.
    pub fn set_presence(&self, name: &str, presence: Presence) -> Result<(), Error> {
        self.tree().find(name)?.set_presence(presence);
        // Whether a required branch is unreachable may have changed.
        self.changed.send_modify(|changes| *changes += 1);
        Ok(())
    }

    /// Whether an optional branch is back that was left out of an answer since the last call: what
    /// is cached of such answers is not true any more. To be called from time to time where cached
    /// answers do not expire, since no request may show it.
    pub fn take_returned(&self) -> bool {
        let tree = self.tree();
        tree.given().iter().filter(|branch| branch.take_return()).count() > 0
    }

    /// The present state of the tree, without a request.
    pub fn status(&self) -> Status {
        let open_files = |branch: &Arc<TreeBranch>| {
            let mut count = 0;
            self.files.each(|file| count += usize::from(Arc::ptr_eq(&file.branch, branch)));
            count
        };
        let branch = |branch: &Arc<TreeBranch>| BranchStatus {
            location: Location { source: branch.name.clone(), host: branch.host.clone() },
            place: branch.place.clone(),
            mode: branch.mode(),
            presence: branch.presence(),
            away: branch.remote.is_disconnected(),
            left_out: branch.is_left_out(),
            open_files: open_files(branch),
        };
        let branches = self.tree().given().iter().map(branch).collect();
        Status { branches, policies: self.policies }
    }

    /// What each source that could have an entry at `path` has there, in the order of search: the
    /// number of the source ([`WatchedChange::source`](base::WatchedChange::source)), and whether
    /// its entry is a directory. The first entry is shown. A directory that exists because of a
    /// place is one of source 0, which comes first. Empty if only one source could have an entry.
    pub async fn entries(&self, path: &RemotePath) -> base::Result<Vec<(u64, Option<bool>)>> {
        let tree = self.tree();
        if tree.sole_branch(path).is_some() {
            return Ok(Vec::new());
        }
        let view = match View::of(&tree, path).await {
            // The directory was removed.
            Err(Errno::ENOENT | Errno::ENOTDIR) => View::default(),
            view => view?,
        };
        let entry = |slot| {
            let holder = view.holders.iter().find(|holder| holder.slot == slot);
            holder.map(|holder| holder.attr.is_dir())
        };
        let fixed = tree.is_fixed(path).then_some((0, Some(true)));
        let entries = tree.covering(path).map(|(slot, branch)| (branch.number, entry(slot)));
        Ok(fixed.into_iter().chain(entries).collect())
    }

    /// The sum of the windows of all reachable branches, since their links differ; and the smallest
    /// request size of them.
    pub(crate) fn window(&self) -> Window {
        let tree = self.tree();
        let reachable = tree.given().iter().filter(|branch| !branch.remote.is_disconnected());
        let windows = reachable.map(|branch| branch.remote.suggested_window());
        let both = windows.reduce(|one, other| Window {
            bytes: one.bytes.saturating_add(other.bytes).min(MAX_WINDOW_BYTES.max(one.bytes)),
            request_bytes: one.request_bytes.min(other.request_bytes),
        });
        both.unwrap_or_default()
    }

    /// Whether a required branch is unreachable, of those that have a part of what is at `path`, or
    /// of all.
    pub(crate) fn is_required_away(&self, path: Option<&RemotePath>) -> bool {
        required(&self.tree(), path).any(|branch| branch.remote.is_disconnected())
    }

    /// Returns when [`Union::is_required_away`] becomes true.
    pub(crate) async fn required_away(&self, path: Option<&RemotePath>) {
        let mut changed = self.changed.subscribe();
        while !self.is_required_away(path) {
            let tree = self.tree();
            let mut gone: Vec<_> =
                required(&tree, path).map(|branch| branch.remote.disconnected()).collect();
            let any_gone = std::future::poll_fn(|context| {
                let ready = gone.iter_mut().any(|gone| gone.as_mut().poll(context).is_ready());
                if ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            });
            tokio::select! {
                biased;
                () = any_gone => return,
                // The sender belongs to this union, so this is a change and not the end of the
                // channel.
                _ = changed.changed() => {}
            }
        }
    }
}

/// Whether a branch at `place` may have a part of what is at `path`. A directory shows the attributes
/// of the branches that are placed in it.
pub fn may_have(place: &RemotePath, path: &RemotePath) -> bool {
    path.is_within(place) || place.parent().as_ref() == Some(path)
}

/// The required branches that may have a part of what is at `path`, or all.
fn required<'t>(
    tree: &'t Tree,
    path: Option<&RemotePath>,
) -> impl Iterator<Item = &'t Arc<TreeBranch>> {
    let concerns = move |branch: &TreeBranch| path.is_none_or(|path| may_have(&branch.place, path));
    tree.given().iter().filter(move |branch| !branch.is_optional() && concerns(branch))
}
