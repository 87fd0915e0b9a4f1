//! The whole program: real mounts, by the kernel, of directories behind a private sshd.
//!
//! One test binary, so that it is linked once. Each test has a [`world::World`] of its own, so
//! that they may run side by side and stop or kill their servers as they like.
//!
//! They need /dev/fuse, and from Debian: openssh-server, fuse3, and what [`applications`] runs.
#![deny(unsafe_code)]
#![allow(
    unreachable_pub,
    reason = "in a test binary, `pub` says what a module offers to the others"
)]

mod applications;
mod bad_input;
mod behaviours;
mod bench;
mod cache;
mod connecting;
mod demo;
mod direct;
mod doctor;
#[path = "../../../fuse/tests/enabled/mod.rs"]
mod enabled;
mod everyday;
mod faults;
mod helper;
mod hosts;
mod idle;
mod inotify;
mod installed;
mod io_uring;
mod links;
mod logs;
mod many_hosts;
mod model;
mod mount;
mod passwords;
mod pools;
mod process;
mod semantics;
mod signals;
mod stats;
mod status;
mod suites;
mod transfer;
mod unions;
mod unprivileged;
mod watch;
mod workloads;
mod world;
