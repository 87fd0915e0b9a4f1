//! Any bytes as a configuration file, and as the answer of a `digest_command`.
//!
//! The program has no library, so this is the root of another program with the same modules: all of
//! them, since they depend on each other. It is the target `program` of `fuzz/Cargo.toml`, not part
//! of this package.
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "a target uses little of the program")]

#[macro_use]
mod messages;

mod adapter;
mod allocator;
mod attributes;
mod autofs;
mod background;
mod branch;
mod cache_command;
mod command;
mod companion;
mod completion;
mod config_file;
mod connector;
mod doctor;
mod helper;
mod inotify;
mod log;
mod login;
mod manual;
mod mount;
mod open_modes;
mod process;
mod profile;
mod program;
mod progress;
mod quantity;
mod run;
mod sources;
mod stack;
mod stats;
mod status;
mod systemd;
mod transfer;
mod trusted_file;
mod umount;
mod unit;
mod warm;
mod where_command;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    config_file::fuzz(data);
    stack::fuzz_digest_lines(data);
});
