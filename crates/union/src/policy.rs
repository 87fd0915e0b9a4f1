//! The branch for new entries, and the branches that a change applies to.

use std::fmt;

use crate::branch::words;

/// The branch on which files, directories and symbolic links are created. Only
/// [`Rw`](crate::Mode::Rw) branches are chosen. If the chosen one has no space, the operation
/// fails; no other one is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CreatePolicy {
    /// The first that has the parent directory.
    #[default]
    EpFf,
    /// The first; parent directories are created there as needed.
    Ff,
    /// Of the branches with the parent directory the one with most free space.
    EpMfs,
    /// The one with most free space; parent directories are created there as needed.
    Mfs,
    /// A random one; parent directories are created there as needed.
    Rand,
}

words! {
    CreatePolicy:
    "epff" => EpFf,
    "ff" => Ff,
    "epmfs" => EpMfs,
    "mfs" => Mfs,
    "rand" => Rand,
}

impl CreatePolicy {
    /// Whether only branches with the parent directory are chosen.
    pub(crate) fn needs_parent(self) -> bool {
        matches!(self, CreatePolicy::EpFf | CreatePolicy::EpMfs)
    }
}

/// Which copies are changed, renamed or removed when several branches have the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActionPolicy {
    /// The shown one. `EBUSY` where another branch's file would appear in its place.
    #[default]
    First,
    /// The shown one and all that it hides, or none.
    All,
}

words! { ActionPolicy: "first" => First, "all" => All }

/// The policies of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies {
    /// Where new entries are created.
    pub create: CreatePolicy,
    /// Which copies are changed and removed.
    pub action: ActionPolicy,
}
