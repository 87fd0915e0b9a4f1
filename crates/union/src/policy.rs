//! On which branch something new is made, and on how many something is changed.

use std::fmt;
use std::str::FromStr;

use crate::branch::words;

/// The branch on which files, directories and symbolic links are made. Only branches that are
/// [`Rw`](crate::Mode::Rw) are chosen; whether the one that is chosen has room is its own answer,
/// and no other is tried after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CreatePolicy {
    /// The first that has the parent directory.
    #[default]
    EpFf,
    /// The first; directories above are made there as needed.
    Ff,
    /// Of those that have the parent directory the one with most free space.
    EpMfs,
    /// The one with most free space; directories above are made there as needed.
    Mfs,
    /// Any; directories above are made there as needed.
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
    /// Whether only branches that have the parent directory are chosen.
    pub(crate) fn keeps_paths(self) -> bool {
        matches!(self, CreatePolicy::EpFf | CreatePolicy::EpMfs)
    }
}

/// What is changed, renamed or removed when several branches have the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActionPolicy {
    /// What is shown. `EBUSY` where that would make another branch's file appear in its place.
    #[default]
    First,
    /// What is shown and everything that it hides, or nothing.
    All,
}

words! { ActionPolicy: "first" => First, "all" => All }

/// Both policies of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies {
    /// Where something new is made.
    pub create: CreatePolicy,
    /// What is changed and removed.
    pub action: ActionPolicy,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, Presence};

    #[test]
    fn every_word_is_what_its_value_shows() {
        fn check<T: Copy + PartialEq + fmt::Debug + fmt::Display + FromStr>(words: &[(&str, T)]) {
            for (word, value) in words {
                assert_eq!(word.parse::<T>().ok(), Some(*value), "{word}");
                assert_eq!(value.to_string(), *word);
            }
        }
        check(CreatePolicy::WORDS);
        check(ActionPolicy::WORDS);
        check(Mode::WORDS);
        check(Presence::WORDS);
        let error = "newest\n".parse::<CreatePolicy>().unwrap_err();
        assert_eq!(error.to_string(), "\"newest\\n\" is none of epff, ff, epmfs, mfs, rand");
    }
}
