//! Programs that nobody made for this file system, which have to give on it what they give on a
//! local one.
//!
//! From Debian: gcc, git, make, rsync, sqlite3.

mod big;
mod building;
mod copying;
mod database;
mod git;
pub mod tree;
