//! A Remote around a Remote that keeps what was read on the local disk, by content.
//!
//! Two halves, and the second knows nothing of the first: [`cached`] decides what is asked of the
//! remote, and whether what is known still holds; [`store`] keeps contents and what is known of
//! names, and gives back what it was given or nothing.

#![forbid(unsafe_code)]

pub mod cached;
mod codec;
pub mod digest;
mod dir_fd;
mod in_flight;
mod index;
pub mod metadata;
mod object;
mod partial;
pub mod store;

pub use cached::{
    Cached, CachedConfig, CachedStatus, DigestSource, Mode, Presence, SubTrees, Warmed,
};
pub use digest::{Digest, Digests};
pub use metadata::{KnownAttr, KnownFile, KnownLink, Listing, RACY_SECS, SourceId, Validator};
pub use object::{CHUNK_BYTES, Damaged, Object};
pub use partial::{Partial, Unfinished};
pub use store::{Store, StoreConfig, StoreError};
