//! Errors of a set of branches.

use thiserror::Error;

use crate::tree::MAX_BRANCHES;

/// Why a set of branches is invalid, or a change of it was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// No branch, or the last one was to be removed.
    #[error("a tree needs a source: give at least one")]
    NoBranch,
    /// More than [`MAX_BRANCHES`].
    #[error(
        "{0} sources are too many: at most {MAX_BRANCHES} go into one tree, since each look-up \
         queries them all"
    )]
    TooMany(usize),
    /// Two branches of the same name.
    #[error("the source {0} is in the tree twice: give each only once")]
    Duplicate(String),
    /// No branch of that name.
    #[error("no source of the tree is called {0}: the status lists the sources")]
    Unknown(String),
}
