//! A caching Remote around a Remote: contents are kept on the local disk, by digest.
//!
//! Two halves, of which the second does not know the first: [`cached`] decides which requests are
//! sent to the remote, and whether cached state is valid; [`store`] keeps contents and records of
//! names, and returns exactly what was stored, or nothing.

#![forbid(unsafe_code)]

pub mod cached;
mod codec;
pub mod digest;
mod dir_fd;
mod index;
pub mod metadata;
mod object;
mod partial;
pub mod store;

pub use cached::{
    Cached, CachedConfig, CachedStatus, DigestSource, Mode, Presence, RemoteDigests, SubTrees,
    Warmed,
};
pub use digest::{Digest, Digests};
pub use metadata::{KnownAttr, KnownFile, KnownLink, Listing, RACY_SECS, SourceId, Validator};
pub use object::{CHUNK_BYTES, Damaged, Object};
pub use partial::{Partial, Unfinished};
pub use store::{Sample, SampleLimits, Store, StoreConfig, StoreError};
