//! Copies trees between this machine and servers, safely and repeatably.
//!
//! A copy goes from [`base::Remote`]s to a [`base::Remote`]. A directory of this machine is a
//! remote, too (`local`), so pulling and pushing use the same engines.
//!
//! | module | contents |
//! |---|---|
//! | [`strategy`] | one copy of a command: which engines, in which order, over which logins |
//! | [`options`], [`filter`], [`job`] | what is copied |
//! | [`plan`] | compares the trees and emits [`Step`]s, in bounded memory |
//! | [`run`] | executes steps, counts, deletes last, and then sets the times of directories |
//! | [`engine`] | all steps over SFTP, except those that the tar engine takes for a stream |
//! | [`tar`] | whole new trees and many small files, in one stream through the server's `tar` |
//! | [`sink`] | files written into a local directory by system calls that cannot leave it |
//! | [`shell`], [`digest`] | commands at the server, and digests made by them |
//! | [`unseen`] | what a `find` at a server reports and SFTP does not |
//! | `xattr` | extended attributes that a run copies by itself |
//!
//! Invariants:
//! 1. A final name leads to the complete old file or to the complete new one. An incomplete file
//!    has a name of [`temporary`] that belongs to one run, and only its owner may read it. A later
//!    run that continues such a file first renames it to its own temporary name. Otherwise it
//!    removes the file.
//! 2. Nothing is deleted before everything was copied, and nothing at all if anything failed.
//! 3. Names from servers are [`base::Name`]s, and are passed on as paths in which the target's
//!    `Remote` must not follow links. If a symbolic link has the name of a directory to be copied,
//!    it is replaced by a directory and not followed.
//! 4. Each entry of the sources is counted once, in [`Counts`]; the sum is the number of entries.
//! 5. A failure is the [`Problem`] of one entry, and the run continues. Only a lost remote ends it.
//!
//! Not here: ssh, the command line, progress on a terminal.
#![forbid(unsafe_code)]

mod collisions;
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
pub mod fuzz_tests;
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
mod task;
pub mod temporary;
pub mod unseen;
mod xattr;

pub use events::{Entry, Events, Progress, Silent};
pub use filter::{Filter, FilterBuilder};
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzz_tests as fuzz;
pub use job::{Job, JobError, Source, Tree, below};
pub use options::{Options, Owners, Xattrs};
pub use outcome::{Counts, Doing, Fault, Outcome, Problem, Stop};
pub use run::{Run, Stopper};
pub use shell::{Running, Shell, ShellError};
pub use sink::{Finish, Incoming, Sink};
pub use step::{Action, Skip, Step, Why};
