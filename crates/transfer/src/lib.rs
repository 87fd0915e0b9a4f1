//! Trees copied from and to other machines: what is needed of them, safely, and again.
//!
//! A copy goes from [`base::Remote`]s to a [`base::Remote`]; a directory of this machine is one
//! too (`local`), so that pulling and pushing are one engine.
//!
//! | module | what it is |
//! |---|---|
//! | [`options`], [`filter`], [`job`] | what is asked for |
//! | [`plan`] | compares the trees and gives out [`Step`]s, bounded in memory |
//! | [`run`] | carries steps out, counts, deletes last, sets the times of directories last of all |
//! | [`engine`] | all steps over SFTP; the tar engine takes files out of the steps and leaves the rest |
//! | [`tar`] | what is not there yet, in one stream by the server's `tar` |
//! | [`sink`] | files written into a local directory by system calls that cannot leave it |
//! | [`shell`], [`digest`] | commands on the server, and digests made by them |
//! | [`unseen`] | what a server cannot look at, and leaves out of its listings |
//!
//! Invariants:
//! 1. Under a final name there is the old file or the new one, whole. What is not whole has a name
//!    of [`temporary`] that one run alone uses, and can be read by its owner alone. A later run
//!    renames it to a name of its own before it continues it, or removes it.
//! 2. Nothing is deleted before everything was copied, and nothing at all if anything failed.
//! 3. Names come from servers as [`base::Name`], and go down as paths that the target's `Remote`
//!    must not follow links in; what is in the place of a directory is replaced, never gone through.
//! 4. Each entry of the sources is counted once, in [`Counts`]; the sum is the number of entries.
//! 5. What fails is one entry's [`Problem`]; the rest goes on. Only a lost remote ends a run.
//!
//! Not here: ssh, the command line, progress on a terminal.
#![forbid(unsafe_code)]

mod compress;
mod copy;
mod deletion;
pub mod digest;
mod dir;
pub mod engine;
pub mod events;
pub mod filter;
mod flow;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod job;
pub mod options;
pub mod outcome;
pub mod plan;
pub mod run;
mod setid;
pub mod shell;
pub mod sink;
pub mod step;
pub mod strategy;
pub mod tar;
pub mod temporary;
pub mod unseen;

pub use events::{Entry, Events, Progress, Silent};
pub use filter::{Filter, FilterBuilder};
pub use job::{Job, JobError, Source, Tree, below};
pub use options::{Options, Owners, Xattrs};
pub use outcome::{Counts, Doing, Outcome, Problem, Stop};
pub use run::{Run, Stopper};
pub use shell::{Running, Shell, ShellError};
pub use sink::{Finish, Incoming, Sink};
pub use step::{Action, Skip, Step, Why};
