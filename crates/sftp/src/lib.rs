//! SFTP version 3: what goes over the wire ([`codec`]) and a client that keeps many requests in
//! flight over one byte stream ([`Client`]).
//!
//! Names, paths and handles are bytes here and are never looked into. Nothing in this crate knows
//! ssh, files of this machine, or how often something may be tried again.
#![forbid(unsafe_code)]

pub mod client;
pub mod codec;
pub mod error;

pub use client::{Activity, Call, Client, Options, Server};
pub use codec::{
    Extension, Extensions, FileAttrs, Limits, NameEntry, OpenFlags, RemoteHandle, StatVfs,
    StatusCode, UsersGroups,
};
pub use error::{Error, Result};
