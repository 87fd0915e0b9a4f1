//! The file system over in-memory remotes.

mod behind;
mod behind_parts;
mod digests;
mod flush;
mod foreign;
mod identities;
mod invalidate;
mod kept;
mod locks;
mod moves;
mod names;
mod opens;
mod promises;
mod readahead;
mod regressions;
mod revalidation;
mod sources;
mod stage;
mod stale;
mod times;
mod waits;
mod watched;
mod write_behind;
mod xattrs;
