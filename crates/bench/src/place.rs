//! Where a subject's files really are: how works lay out their data and check what arrived.
//!
//! All paths are relative to the place's own directory, made for the run and removed with it.
//! Nothing here goes through a subject, but for a target, of which nothing but its mounted
//! directory is known.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::Failure;

/// Longest time for one errand, a big file through a slow link.
pub const ERRAND_LIMIT: Duration = Duration::from_secs(1800);

/// A directory in which a run may write.
pub trait Place: Send + Sync {
    /// Unique in the run: works prepare each place once.
    fn name(&self) -> &str;

    /// The directory as the machine that has it names it.
    fn root(&self) -> &Path;

    /// The same directory where this machine can reach it without a subject.
    fn local(&self) -> Option<PathBuf>;

    /// Puts a local file or tree there under a new name, parents made.
    fn put(&self, from: &Path, to: &Path) -> Result<(), Failure>;

    /// Makes a directory and its parents; it may be there.
    fn make_dir(&self, path: &Path) -> Result<(), Failure>;

    /// Removes a file or tree; it may be gone.
    fn remove(&self, path: &Path) -> Result<(), Failure>;

    /// SHA-256 in hexadecimal of a file, or of the sorted list `digest  name` of all files of a
    /// tree with links as `link target  name` (see [`crate::corpus::tree_digest`]).
    fn digest(&self, path: &Path) -> Result<String, Failure>;

    /// Reads all of it into the page cache of the machine that has it.
    fn warm(&self, path: &Path) -> Result<(), Failure>;

    /// Bytes that may still be written.
    fn free_bytes(&self) -> Result<u64, Failure>;
}
