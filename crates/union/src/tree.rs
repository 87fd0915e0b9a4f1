//! The set of branches in the order of search, and the directories that exist because of places.
//!
//! **The order.** At a path the branches whose place is at or above it are searched, the deepest
//! place first, and branches of one place in the order given. So the contents of a place cover the
//! entries that a branch further up has there, as a mounted file system covers its mount point.
//!
//! **Fixed paths** are the places and all directories above them. They are directories whatever a
//! branch has there, and cannot be removed or renamed. One that no branch has is synthetic: with
//! mode 0755, the owner of this process, and the time when the set of branches was last changed.

use std::sync::{Arc, PoisonError, RwLock};

use base::{Attr, FileKind, Name, RemotePath, SmallSet, Timestamp};

use crate::branch::TreeBranch;
use crate::dir_cache::DirCache;
use crate::{Branch, Error};

/// Bound on the branches of a tree: each look-up queries all, and a set of them is a small one.
pub const MAX_BRANCHES: usize = SmallSet::LIMIT;

/// One set of branches. An operation uses one of these to its end, while the next one may already
/// be in use.
pub(crate) struct Tree {
    /// In the order given.
    given: Vec<Arc<TreeBranch>>,
    /// In the order of search.
    branches: Vec<Arc<TreeBranch>>,
    pub(crate) dir_cache: DirCache,
    created_at: Timestamp,
}

/// The present set of branches.
#[derive(Clone)]
pub(crate) struct SharedTree(Arc<RwLock<Arc<Tree>>>);

impl SharedTree {
    pub(crate) fn new(tree: Tree) -> SharedTree {
        SharedTree(Arc::new(RwLock::new(Arc::new(tree))))
    }

    pub(crate) fn get(&self) -> Arc<Tree> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the set by one made from it.
    pub(crate) fn replace<T>(
        &self,
        change: impl FnOnce(&Tree) -> Result<(Tree, T), Error>,
    ) -> Result<T, Error> {
        let mut tree = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let (new, result) = change(&tree)?;
        *tree = Arc::new(new);
        Ok(result)
    }
}

impl Tree {
    pub(crate) fn new(given: Vec<Arc<TreeBranch>>) -> Result<Tree, Error> {
        if given.is_empty() {
            return Err(Error::NoBranch);
        }
        if given.len() > MAX_BRANCHES {
            return Err(Error::TooMany(given.len()));
        }
        for (index, branch) in given.iter().enumerate() {
            if given[..index].iter().any(|other| other.name == branch.name) {
                return Err(Error::Duplicate(branch.name.clone()));
            }
        }
        let mut branches = given.clone();
        branches.sort_by_key(|branch| std::cmp::Reverse(branch.depth));
        Ok(Tree { given, branches, dir_cache: DirCache::default(), created_at: Timestamp::now() })
    }

    /// All branches in the order given.
    pub(crate) fn given(&self) -> &[Arc<TreeBranch>] {
        &self.given
    }

    /// This set with one more branch, the last in order.
    pub(crate) fn with(&self, branch: Branch) -> Result<Tree, Error> {
        let mut given = self.given.clone();
        given.push(Arc::new(TreeBranch::new(branch)));
        Tree::new(given)
    }

    /// This set without the branch of that name, and that branch.
    pub(crate) fn without(&self, name: &str) -> Result<(Tree, Arc<TreeBranch>), Error> {
        let branch = self.find(name)?;
        let left = self.given.iter().filter(|other| !Arc::ptr_eq(other, &branch));
        Ok((Tree::new(left.cloned().collect())?, branch))
    }

    pub(crate) fn find(&self, name: &str) -> Result<Arc<TreeBranch>, Error> {
        let branch = self.given.iter().find(|branch| branch.name == name);
        branch.cloned().ok_or_else(|| Error::Unknown(name.escape_debug().to_string()))
    }

    /// The branch at an index in the order of search.
    pub(crate) fn branch(&self, slot: usize) -> &Arc<TreeBranch> {
        &self.branches[slot]
    }

    /// The branches whose place is at or above `path`, in the order of search.
    pub(crate) fn covering(
        &self,
        path: &RemotePath,
    ) -> impl Iterator<Item = (usize, &Arc<TreeBranch>)> {
        let branches = self.branches.iter().enumerate();
        branches.filter(|(_, branch)| path.is_within(&branch.place))
    }

    /// The branches whose place is below `path`.
    pub(crate) fn placed_below(&self, path: &RemotePath) -> impl Iterator<Item = &Arc<TreeBranch>> {
        let below = |branch: &&Arc<TreeBranch>| branch.place.is_below(path);
        self.branches.iter().filter(below)
    }

    /// The branch that serves everything at `path`, if there is just one, and neither `path` nor a
    /// directory above it is fixed inside that branch: then nothing is merged or synthetic, and the
    /// branch alone answers. Such a path, and everything below it, is never in `dir_cache`.
    pub(crate) fn sole_branch(&self, path: &RemotePath) -> Option<(&Arc<TreeBranch>, RemotePath)> {
        let mut covering = self.covering(path);
        let (_, branch) = covering.next()?;
        if covering.next().is_some() || self.is_fixed(path) || self.fixed_depth(path) > branch.depth
        {
            return None;
        }
        Some((branch, branch.subpath(path)))
    }

    /// Whether directories in `dir` may be merged of several branches.
    pub(crate) fn merges_in(&self, dir: &RemotePath) -> bool {
        let mut covering = self.covering(dir);
        match (covering.next(), covering.next()) {
            (Some((_, only)), None) => self.fixed_depth(dir) > only.depth,
            _ => true,
        }
    }

    /// The number of leading names that are fixed directories.
    pub(crate) fn fixed_depth(&self, path: &RemotePath) -> usize {
        let common = |branch: &Arc<TreeBranch>| {
            branch.place.names().zip(path.names()).take_while(|(one, other)| one == other).count()
        };
        self.branches.iter().map(common).max().unwrap_or(0)
    }

    pub(crate) fn is_fixed(&self, path: &RemotePath) -> bool {
        self.branches.iter().any(|branch| branch.place.is_within(path))
    }

    /// Names in the directory at `path` that exist because a place is at or below them, each once.
    pub(crate) fn fixed_names(&self, path: &RemotePath) -> Vec<Name> {
        let depth = path.names().count();
        let mut names = Vec::new();
        for branch in self.placed_below(path) {
            let name = branch.place.names().nth(depth).and_then(|name| Name::new(name).ok());
            names.extend(name.filter(|name| !names.contains(name)));
        }
        names
    }

    /// The attributes of a fixed directory that no branch has.
    pub(crate) fn synthetic_attr(&self) -> Attr {
        Attr {
            kind: FileKind::Directory,
            perm: 0o755,
            size: 0,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            atime: self.created_at,
            mtime: self.created_at,
            inode: None,
        }
    }
}
