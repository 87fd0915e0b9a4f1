//! The wire format of SFTP version 3 with OpenSSH's extensions: bytes in, value out, and back.
//!
//! Both directions are here, since a server is to be built on this too. Nothing in this module
//! does I/O or keeps state, so it can be fuzzed as it is.
//!
//! Bounds: a decoder allocates in proportion to the bytes that it was given, never to a number
//! that they contain. Decoding demands that a packet is used up to its last byte.
//!
//! Sources: draft-ietf-secsh-filexfer-02, and OpenSSH's `PROTOCOL` for the extensions and for the
//! order of SYMLINK's arguments, which is the reverse of the draft's.

mod attrs;
mod extension;
mod frame;
mod reply;
mod request;
mod status;
mod wire;

pub use attrs::{FileAttrs, Owner, Times};
pub use extension::{Extension, Extensions, Limits, StatVfs, UsersGroups, Version};
pub use frame::{HEADER_BYTES, MAX_PACKET_BYTES, packet_length};
pub use reply::{NameEntry, RemoteHandle, Reply};
pub use request::{OpenFlags, Request, decode_init, encode_init};
pub use status::StatusCode;
pub use wire::Malformed;

/// The protocol version that is spoken here, and the only one.
pub const VERSION: u32 = 3;
