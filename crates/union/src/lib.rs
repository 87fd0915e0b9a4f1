//! Several [`base::Remote`]s as one tree: merged over each other in an order, or each in a place of
//! its own.
//!
//! # What is shown
//!
//! - The answer for a name is that of the first branch, in the order given, which has it. All are
//!   asked at once, but the order of their replies never matters. Directories of the same name are
//!   merged, with the attributes of the first and the latest time of last change of all; anything
//!   else hides what later branches have of that name, with all that is below it (`query.rs`).
//! - Only that a name is absent lets the search go on. Any other error of a branch before the one
//!   that has the name is the answer. So is a required branch that cannot be reached; an optional
//!   one is left out at once, which the [status](Union::status) and the log tell. When none is left
//!   that could have a name, the answer is `EHOSTDOWN`, never that it is absent, and the listing of
//!   such a place is not empty but fails.
//! - A place is a directory whatever branches further up have there, and lies over what they have
//!   in it. Directories on the way to a place are there without a branch; they cannot be changed
//!   unless one has them, and never be removed or renamed: `EBUSY` (`tree.rs`).
//!
//! # What is changed
//!
//! - Something new is made on the branch that the [policy](CreatePolicy) chooses; no other one is
//!   tried when that fails (`create.rs`). A branch that is [`Mode::NoCreate`] or [`Mode::Ro`] is
//!   never chosen.
//! - What was removed does not come back from a later branch after a success (`remove.rs`), and
//!   after a rename nothing has the old name, and the new name is what the old one was
//!   (`rename.rs`); with [`ActionPolicy::First`] where that needs no other branch to be changed, with
//!   [`ActionPolicy::All`] on all that have the name. What an optional branch has that is left out
//!   comes back with it.
//! - A branch is changed by its own server only: what would have to go from one to another is
//!   `EXDEV`, or `EOPNOTSUPP` for a copy.
//! - An open file is a file of one branch. It stays open when that is taken out of the tree, and
//!   when it goes away, for as long as the branch says.
//!
//! # What it costs
//!
//! A look-up is one round trip, with one small request to each branch. What makes or changes a name
//! is two: all branches are asked before one is changed. A path that only one branch leads to costs
//! what that branch costs, and nothing more.
//!
//! Nothing here waits for anything but the branches, tries anything again, or keeps what files are.
#![forbid(unsafe_code)]

mod branch;
mod change;
mod create;
mod error;
mod fan;
mod find;
mod handles;
mod known;
mod listing;
mod policy;
mod query;
mod remote;
mod remove;
mod rename;
mod space;
mod steps;
mod tree;
mod union;
mod view;

pub use branch::{Branch, Mode, Presence};
pub use error::{Error, UnknownWord};
pub use policy::{ActionPolicy, CreatePolicy, Policies};
pub use tree::MAX_BRANCHES;
pub use union::{BranchStatus, Changed, Status, Union};
