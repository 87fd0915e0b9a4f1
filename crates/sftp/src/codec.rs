//! The wire format of SFTP version 3 with OpenSSH's extensions: bytes in, value out, and back.
//!
//! Both directions are implemented, so that a server can be built on this too. The module has no
//! I/O and no state, so it can be fuzzed.
//!
//! Bounds: a decoder allocates in proportion to its input, never to a number in it; a compressed
//! packet expands to at most the longest one. A packet with bytes after its last field is an error.
//!
//! Sources: draft-ietf-secsh-filexfer-02, and OpenSSH's `PROTOCOL` for the extensions and for the
//! order of SYMLINK's arguments, which is the reverse of the draft's.

mod attrs;
mod direct;
mod extension;
mod lock;
mod packed;
mod reply;
mod request;
mod status;
mod watch;
mod wire;

pub use attrs::{ExactAttrs, FileAttrs, Owner, Times};
pub use direct::{DirectAddress, DirectRequest, KEY_DIGEST_BYTES};
pub use extension::{
    DigestAlgorithm, Extension, Extensions, FileContent, FileDigest, Limits, MAX_XATTR_BYTES,
    Product, SeekOffset, UsersGroups, Version, XattrNames, XattrValue,
};
pub use lock::{LockFound, LockRequest};
pub use packed::{MIN_PACKED_BYTES, pack, unpack};
pub use reply::{Body, NameEntry, RemoteHandle, Reply};
pub use request::{
    FallocateMode, KINDS, Kind, OpenFlags, RenameFlags, Request, Whence, XattrFlags, decode_init,
    encode_init,
};
pub use status::StatusCode;
pub use watch::{WatchEvent, WatchEvents, WatchId, WatchRequest};
pub use wire::{HEADER_BYTES, MAX_PACKET_BYTES, Malformed, packet_length};

/// The supported protocol version.
pub const VERSION: u32 = 3;
