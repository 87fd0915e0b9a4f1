//! [`Union`]: the set of branches, changes of it, and what it shows of itself.

use std::sync::{Arc, PoisonError, RwLock};

use base::{Location, RemotePath, Table, Window};
use tokio::sync::watch;

use crate::branch::{Branch, Live, Mode, Presence};
use crate::error::Error;
use crate::handles::InnerFile;
use crate::listing::Listing;
use crate::policy::Policies;
use crate::tree::Tree;

/// The most that is advised to be on its way in all branches together, in bytes: more than two
/// fast and long ways take, and little enough to wait in memory.
const MAX_WINDOW_BYTES: u64 = 128 << 20;

/// Several remotes as one tree. See the [crate](crate) for the rules.
pub struct Union {
    tree: RwLock<Arc<Tree>>,
    /// Counts changes of the set of branches, for those who wait for one.
    changed: watch::Sender<u64>,
    pub(crate) policies: Policies,
    pub(crate) files: Table<InnerFile>,
    pub(crate) directories: Table<Listing>,
}

/// What a change of the set of branches has touched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "what is cached of this part of the tree is not true any more"]
pub struct Changed {
    /// Everything at and below this path may be something else than before. So may the
    /// directories above it, which come and go with it.
    pub below: RemotePath,
}

/// What a tree is made of now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The branches as they were given.
    pub branches: Vec<BranchStatus>,
    /// The policies.
    pub policies: Policies,
}

/// What one branch is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchStatus {
    /// Its name and its host, as the user wrote them.
    pub location: Location,
    /// The directory of the tree in which its root is; the root of the tree is empty.
    pub place: RemotePath,
    /// What may be done in it.
    pub mode: Mode,
    /// What happens when it cannot be reached.
    pub presence: Presence,
    /// It is known now that it cannot be reached.
    pub away: bool,
    /// It is optional, could not be reached when it was asked last, or is known to be away: the
    /// tree is shown without it.
    pub left_out: bool,
    /// Files that are open on it.
    pub open_files: usize,
}

impl Union {
    /// The tree of these branches, searched in this order.
    ///
    /// # Errors
    ///
    /// When there is none, when there are more than [`MAX_BRANCHES`](crate::MAX_BRANCHES), and
    /// when two have the same name.
    pub fn new(branches: Vec<Branch>, policies: Policies) -> Result<Union, Error> {
        let given = branches.into_iter().map(|branch| Arc::new(Live::new(branch)));
        Ok(Union {
            tree: RwLock::new(Arc::new(Tree::new(given.collect())?)),
            changed: watch::Sender::new(0),
            policies,
            files: Table::default(),
            directories: Table::default(),
        })
    }

    /// The branches as they are now. What began with them ends with them.
    pub(crate) fn tree(&self) -> Arc<Tree> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another set of branches in, made of the one there is.
    fn replace<T>(
        &self,
        change: impl FnOnce(&Tree) -> Result<(Tree, T), Error>,
    ) -> Result<T, Error> {
        let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        let (new, result) = change(&tree)?;
        *tree = Arc::new(new);
        drop(tree);
        self.changed.send_modify(|changes| *changes += 1);
        Ok(result)
    }

    /// Adds a branch, the last in the order of search.
    ///
    /// # Errors
    ///
    /// As [`Union::new`].
    pub fn add(&self, branch: Branch) -> Result<Changed, Error> {
        let below = RemotePath::from_names(&branch.place);
        self.replace(|tree| Ok((tree.with(branch)?, Changed { below })))
    }

    /// Takes out the branch of that name. What is open on it goes on until it is closed.
    ///
    /// # Errors
    ///
    /// When there is none of that name, and when it is the last one.
    pub fn remove(&self, name: &str) -> Result<Changed, Error> {
        self.replace(|tree| {
            let (left, removed) = tree.without(name)?;
            Ok((left, Changed { below: removed.place.clone() }))
        })
    }

    /// Changes what may be done in the branch of that name. What is open for writing goes on.
    ///
    /// # Errors
    ///
    /// When there is none of that name.
    pub fn set_mode(&self, name: &str, mode: Mode) -> Result<(), Error> {
        self.tree().find(name)?.set_mode(mode);
        Ok(())
    }

    /// Changes what happens when the branch of that name cannot be reached. What is on its way
    /// goes on as it began.
    ///
    /// # Errors
    ///
    /// When there is none of that name.
    pub fn set_presence(&self, name: &str, presence: Presence) -> Result<(), Error> {
        self.tree().find(name)?.set_presence(presence);
        // Whether a required branch is away may have changed.
        self.changed.send_modify(|changes| *changes += 1);
        Ok(())
    }

    /// What the tree is made of now. Asks nobody.
    #[must_use]
    pub fn status(&self) -> Status {
        let open_files = |live: &Arc<Live>| {
            let mut count = 0;
            self.files.each(|file| count += usize::from(Arc::ptr_eq(&file.live, live)));
            count
        };
        let branch = |live: &Arc<Live>| BranchStatus {
            location: Location { source: live.name.clone(), host: live.host.clone() },
            place: live.place.clone(),
            mode: live.mode(),
            presence: live.presence(),
            away: live.remote.is_disconnected(),
            left_out: live.is_left_out(),
            open_files: open_files(live),
        };
        let branches = self.tree().given().iter().map(branch).collect();
        Status { branches, policies: self.policies }
    }

    /// The windows of all branches that are there, since their ways are different ones; and what
    /// each of them takes as one request.
    pub(crate) fn window(&self) -> Window {
        let tree = self.tree();
        let here = tree.given().iter().filter(|live| !live.remote.is_disconnected());
        let windows = here.map(|live| live.remote.suggested_window());
        let both = windows.reduce(|one, other| Window {
            bytes: one.bytes.saturating_add(other.bytes).min(MAX_WINDOW_BYTES.max(one.bytes)),
            request_bytes: one.request_bytes.min(other.request_bytes),
        });
        both.unwrap_or_default()
    }

    /// Whether a required branch is away.
    pub(crate) fn misses_any(&self) -> bool {
        self.tree().given().iter().any(|live| !live.is_optional() && live.remote.is_disconnected())
    }

    /// Returns when a required branch is away.
    pub(crate) async fn missing(&self) {
        let mut changed = self.changed.subscribe();
        while !self.misses_any() {
            let tree = self.tree();
            let required = tree.given().iter().filter(|live| !live.is_optional());
            let mut gone: Vec<_> = required.map(|live| live.remote.disconnected()).collect();
            let any_gone = std::future::poll_fn(|context| {
                let ready = gone.iter_mut().any(|gone| gone.as_mut().poll(context).is_ready());
                if ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            });
            tokio::select! {
                biased;
                () = any_gone => return,
                // The sender is ours, so this is a change.
                _ = changed.changed() => {}
            }
        }
    }
}
