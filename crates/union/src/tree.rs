//! The branches as they are put together: which of them a path leads to, and the directories that
//! are there because places are.
//!
//! **The order.** At a path the branches are searched whose place is at or above it, those of the
//! deepest place first, and those of one place in the order in which they were given. So what
//! stands in a place lies over what a branch further up has there, as a mounted file system lies
//! over the directory that it is mounted on.
//!
//! **Fixed paths** are the places and all directories above them. They are directories whatever a
//! branch has there, and cannot be removed or renamed. One that no branch has is made up: with
//! mode 0755, the owner of this process, and the time when the set of branches was changed last.

use std::sync::Arc;

use base::{Attr, FileKind, Name, RemotePath, Timestamp};

use crate::branch::Live;
use crate::known::Known;
use crate::steps::Steps;
use crate::{Branch, Error};

/// Branches in one tree, at most: each look-up asks all, and sets of them are kept in 64 bits.
pub const MAX_BRANCHES: usize = 64;

/// One set of branches. Whoever looks something up does so in one of these, while the next one
/// may already be in use.
pub(crate) struct Tree {
    /// As given.
    given: Vec<Arc<Live>>,
    /// In the order of search.
    branches: Vec<Arc<Live>>,
    pub(crate) known: Known,
    made_at: Timestamp,
}

impl Tree {
    pub(crate) fn new(given: Vec<Arc<Live>>) -> Result<Tree, Error> {
        if given.is_empty() {
            return Err(Error::NoBranch);
        }
        if given.len() > MAX_BRANCHES {
            return Err(Error::TooMany(given.len()));
        }
        for (index, live) in given.iter().enumerate() {
            if given[..index].iter().any(|other| other.name == live.name) {
                return Err(Error::Duplicate(live.name.clone()));
            }
        }
        let mut branches = given.clone();
        branches.sort_by_key(|live| std::cmp::Reverse(live.depth));
        Ok(Tree { given, branches, known: Known::default(), made_at: Timestamp::now() })
    }

    /// All branches as they were given.
    pub(crate) fn given(&self) -> &[Arc<Live>] {
        &self.given
    }

    /// With one more, the last in order.
    pub(crate) fn with(&self, branch: Branch) -> Result<Tree, Error> {
        let mut given = self.given.clone();
        given.push(Arc::new(Live::new(branch)));
        Tree::new(given)
    }

    /// Without the branch of that name, and that one.
    pub(crate) fn without(&self, name: &str) -> Result<(Tree, Arc<Live>), Error> {
        let live = self.find(name)?;
        let left = self.given.iter().filter(|other| !Arc::ptr_eq(other, &live));
        Ok((Tree::new(left.cloned().collect())?, live))
    }

    pub(crate) fn find(&self, name: &str) -> Result<Arc<Live>, Error> {
        let live = self.given.iter().find(|live| live.name == name);
        live.cloned().ok_or_else(|| Error::Unknown(name.escape_debug().to_string()))
    }

    /// The branch at a place in the order of search.
    pub(crate) fn branch(&self, slot: usize) -> &Arc<Live> {
        &self.branches[slot]
    }

    /// The branches whose place is at or above `path`, in the order of search.
    pub(crate) fn covering(&self, path: &RemotePath) -> impl Iterator<Item = (usize, &Arc<Live>)> {
        let branches = self.branches.iter().enumerate();
        branches.filter(|(_, live)| path.is_within(&live.place))
    }

    /// The branches whose place is below `path`.
    pub(crate) fn placed_below(&self, path: &RemotePath) -> impl Iterator<Item = &Arc<Live>> {
        let below = |live: &&Arc<Live>| live.place.is_below(path);
        self.branches.iter().filter(below)
    }

    /// The branch that everything at `path` is of, if there is just one, and neither `path` nor a
    /// directory above it is fixed inside that branch: then nothing is merged or made up, and the
    /// branch alone answers. Of such a path, and of all below it, nothing is ever in `known`.
    pub(crate) fn only(&self, path: &RemotePath) -> Option<(&Arc<Live>, RemotePath)> {
        let mut covering = self.covering(path);
        let (_, live) = covering.next()?;
        if covering.next().is_some() || self.is_fixed(path) || self.fixed(path) > live.depth {
            return None;
        }
        let steps = Steps::new(path);
        Some((live, steps.inside(live.depth, steps.depth())))
    }

    /// How many names from the beginning of the path lead through fixed directories.
    pub(crate) fn fixed(&self, path: &RemotePath) -> usize {
        let common = |live: &Arc<Live>| {
            live.place.names().zip(path.names()).take_while(|(one, other)| one == other).count()
        };
        self.branches.iter().map(common).max().unwrap_or(0)
    }

    pub(crate) fn is_fixed(&self, path: &RemotePath) -> bool {
        self.branches.iter().any(|live| live.place.is_within(path))
    }

    /// Names in the directory at `path` that are there because a place is at or below them, each
    /// once.
    pub(crate) fn fixed_names(&self, path: &RemotePath) -> Vec<Name> {
        let depth = path.names().count();
        let mut names = Vec::new();
        for live in self.placed_below(path) {
            let name = live.place.names().nth(depth).and_then(|name| Name::new(name).ok());
            names.extend(name.filter(|name| !names.contains(name)));
        }
        names
    }

    /// The attributes of a fixed directory that no branch has.
    pub(crate) fn made_up(&self) -> Attr {
        Attr {
            kind: FileKind::Directory,
            perm: 0o755,
            size: 0,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            atime: self.made_at,
            mtime: self.made_at,
        }
    }
}
