//! SFTP version 3: the wire format ([`codec`]), and a client that keeps many requests in flight
//! over one byte stream ([`Client`]).
//!
//! Names, paths and handles are opaque bytes. This crate does not depend on ssh or local files, and
//! contains no retry policy.
#![forbid(unsafe_code)]

pub mod client;
pub mod codec;
pub mod error;

pub use client::{Activity, Call, Client, Counters, Options, Server};
pub use codec::{
    Extension, Extensions, FileAttrs, Limits, NameEntry, OpenFlags, Product, RemoteHandle,
    StatusCode, UsersGroups,
};
pub use error::{Error, Result};
