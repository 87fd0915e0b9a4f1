//! Measures sshoal, its peers and the floor: the same work, in turn, in one run.
//!
//! It uses programs and mounted directories only from outside.
//!
//! Terms: a *subject* is what is measured (a file system to mount, a program that copies, a
//! mounted directory, the bare transport). A *session* is a subject at work. A
//! *place* is where a subject's files really are. A *work* is a family of *steps*; each step
//! yields one *measure* of one subject. A *sample* is one measurement; a *run* is all of them.
//!
//! Invariants:
//! 1. This process never touches what a subject shows: every step is a child process with a
//!    deadline, so that a subject that hangs costs a step and nothing else.
//! 2. The data that a subject has read or written is compared with the expected data. Wrong data
//!    is a failure of that sample.
//! 3. However the run ends, the sessions and the server are stopped, all written data is removed,
//!    and the samples so far are kept.
#![forbid(unsafe_code)]

pub mod account;
pub mod advise;
pub mod compare;
pub mod corpus;
pub mod environment;
pub mod executor;
pub mod failure;
pub mod link;
pub mod measure;
mod mount_table;
pub mod plan;
pub mod progress;
pub mod published;
mod quoting;
pub mod report;
pub mod results;
pub mod run;
pub mod server;
pub mod size;
pub mod stats;
pub mod step;
pub mod storage;
pub mod subject;
pub mod units;
pub mod worker;
pub mod workload;
