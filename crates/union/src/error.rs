//! What can be wrong with a set of branches, and with the words for them.

use thiserror::Error;

use crate::tree::MAX_BRANCHES;

/// Why branches cannot be put together, or their set not be changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// There is none, or the last one was to be removed.
    #[error("a tree needs a source: give at least one")]
    NoBranch,
    /// More than [`MAX_BRANCHES`].
    #[error(
        "{0} sources are too many: at most {MAX_BRANCHES} go into one tree, since each look-up \
         asks them all"
    )]
    TooMany(usize),
    /// Two of the same name.
    #[error("the source {0} is in the tree twice: give each only once")]
    Duplicate(String),
    /// None of that name.
    #[error("no source of the tree is called {0}: the status shows those that there are")]
    Unknown(String),
}

/// A word that means nothing where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{word}\" is none of {}", known.join(", "))]
pub struct UnknownWord {
    /// What was written, escaped.
    pub word: String,
    /// What could be.
    pub known: Vec<&'static str>,
}
