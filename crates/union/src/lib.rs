//! Several [`base::Remote`]s as one tree: merged in an order of search, or each in a place of its
//! own.
//!
//! # What is shown
//!
//! - A name is answered by the first branch, in the order given, that has it. All are queried at
//!   once, but the order of their replies never matters. Directories of the same name are merged,
//!   with the attributes of the first and the latest mtime of all; any other entry hides the
//!   entries of that name on later branches, with everything below them (`query.rs`).
//! - Only an absent name lets the search continue. Any other error of a branch before the one that
//!   has the name is the answer, also that a required branch is unreachable. An optional one is
//!   left out at once, which the [status](Union::status) and the log show. When no branch that
//!   could have a name is left, the answer is `EHOSTDOWN`, never that the name is absent, and the
//!   listing of such a place fails instead of being empty.
//! - A place is a directory whatever branches further up have there, and covers their entries. The
//!   parent directories of a place exist without a branch; they cannot be changed unless a branch
//!   has them, and never be removed or renamed: `EBUSY` (`tree.rs`).
//! - A file has the identity that its branch reports, with the branch mixed in (`branch.rs`). A
//!   directory that may be merged has none: it stays the same while branches come and go.
//!
//! # What is changed
//!
//! - A new entry is created on the branch that the [policy](CreatePolicy) chooses; no other one is
//!   tried when that fails (`create.rs`). A branch that is [`Mode::NoCreate`] or [`Mode::Ro`] is
//!   never chosen.
//! - After a successful removal no later branch shows the name again (`remove.rs`). After a rename
//!   no branch shows the old name, and the new name is the entry that was renamed (`rename.rs`):
//!   with [`ActionPolicy::First`] where no other branch needs a change, with [`ActionPolicy::All`]
//!   on all branches that have the name. Entries of an optional branch that was left out come back
//!   with it.
//! - A branch is changed only by its own server: an operation across two branches is `EXDEV`, or
//!   `EOPNOTSUPP` for a copy.
//! - An open file is a file of one branch. It stays open when the branch is taken out of the tree,
//!   and while the branch is unreachable, for as long as the branch keeps it.
//!
//! # Costs
//!
//! A look-up is one round trip, with one small request to each branch. Creating or changing a name
//! is two: all branches are queried before one is changed. A path that leads to one branch only
//! costs what that branch costs.
//!
//! This crate waits for nothing but the branches, retries nothing, and caches no file attributes.
//! Tasks of its own only take the reports of watches (`watches.rs`).
#![forbid(unsafe_code)]

mod branch;
mod change;
mod components;
mod create;
mod dir_cache;
mod error;
mod fan_out;
mod handles;
mod listing;
mod lookup;
mod policy;
mod query;
mod remote;
mod remove;
mod rename;
mod space;
mod tree;
mod union;
mod view;
mod watches;
mod xattr;

pub use branch::{Branch, Mode, Presence};
pub use error::Error;
pub use policy::{ActionPolicy, CreatePolicy, Policies};
pub use tree::MAX_BRANCHES;
pub use union::{BranchStatus, Changed, Status, Union, may_have};
