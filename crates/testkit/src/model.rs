//! Random operations, run against a reference model and a real file system.
//!
//! The [`Reference`] is a simple file system in memory that behaves as a local one does for a
//! process on Linux. A [`Subject`] is anything that should behave equally: a directory
//! ([`DirSubject`], also below a mount point) or a layer of the file system behind an adapter.
//! [`check`] runs a list of operations on both and compares every result, and then the whole tree,
//! once with the files still open and once after they were closed. [`run`] generates such lists
//! with proptest, and prints a failing one, shrunk, as the text of a regression test.
//!
//! The reference is verified against a local directory in `tests/model_local.rs`: a difference
//! there is an error of the reference.
//!
//! Compared are: errno, bytes, sizes, types, permission bits, mtimes in seconds, names in
//! directories, link targets, link counts if the subject has them. Not compared are: access times,
//! owners, sizes of directories, order of listings, inode numbers.

mod check;
mod dir;
mod generate;
mod journal;
mod killed;
mod op;
mod reference;
mod snapshot;
mod wrapper;

use base::{FileKind, OpenFlags, RenameMode, Result};

pub use check::{Divergence, check};
pub use dir::DirSubject;
pub use generate::{Lists, Runs, run, story};
pub use killed::{Aftermath, Loss, check_until_killed};
pub use op::Op;
pub(crate) use op::pattern;
pub use reference::Reference;
pub use wrapper::Wrapper;

/// Maximum number of files that a list of operations has open at once.
pub const FDS: usize = 4;

/// The slot used by the comparison of whole trees, and by no operation of a list.
const INSPECTION_FD: usize = FDS;

/// Accepted differences of a subject from a local Linux file system.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Whether `st_nlink` of non-directories is right. SFTP does not report it.
    pub link_counts: bool,
    /// Permission bits that new files do not get.
    pub umask: u32,
}

/// A file's attributes, as returned by [`Subject::stat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// File type.
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u32,
    /// Length in bytes; undefined for a directory.
    pub size: u64,
    /// Time of last change, in seconds since 1970.
    pub mtime: i64,
    /// Number of hard links; undefined for a directory.
    pub links: u64,
}

/// One entry of a listing.
pub type Entry = (Vec<u8>, FileKind);

/// A file system under test, as seen by a process.
///
/// Paths are relative to its root, names joined by `/`, the root itself is empty. Links inside a
/// path are followed; links at its end as documented for the method. `fd` is one of [`FDS`] + 1
/// slots for open files. An operation on an empty slot does nothing.
pub trait Subject {
    /// Accepted differences.
    fn features(&self) -> Features;

    /// Opens a regular file into an empty slot; links are followed unless `flags` say that the
    /// file must be new. `EISDIR` for a directory, also for reading.
    fn open(&mut self, fd: usize, path: &str, flags: OpenFlags) -> Result<()>;

    /// Closes a slot, and returns an error of earlier writes.
    fn close(&mut self, fd: usize) -> Result<()>;

    /// `pread(2)`, one call; a short result is compared as it is.
    fn pread(&mut self, fd: usize, offset: u64, len: usize) -> Result<Vec<u8>>;

    /// `pwrite(2)`, one call; for a file opened to append, at the end.
    fn pwrite(&mut self, fd: usize, offset: u64, data: &[u8]) -> Result<usize>;

    /// `ftruncate(2)`
    fn ftruncate(&mut self, fd: usize, size: u64) -> Result<()>;

    /// `fstat(2)`
    fn fstat(&mut self, fd: usize) -> Result<Stat>;

    /// `fsync(2)`
    fn fsync(&mut self, fd: usize) -> Result<()>;

    /// `fchmod(2)`
    fn fchmod(&mut self, fd: usize, perm: u32) -> Result<()>;

    /// `futimens(2)` with the same time for both.
    fn futimens(&mut self, fd: usize, secs: i64) -> Result<()>;

    /// `copy_file_range(2)`, repeated until the source's initial content was copied.
    fn copy_range(
        &mut self,
        from: usize,
        from_offset: u64,
        to: usize,
        to_offset: u64,
        len: usize,
    ) -> Result<usize>;

    /// `truncate(2)`, follows links.
    fn truncate(&mut self, path: &str, size: u64) -> Result<()>;

    /// `mkdir(2)`
    fn mkdir(&mut self, path: &str, perm: u32) -> Result<()>;

    /// `rmdir(2)`
    fn rmdir(&mut self, path: &str) -> Result<()>;

    /// `unlink(2)`
    fn unlink(&mut self, path: &str) -> Result<()>;

    /// `symlink(2)`
    fn symlink(&mut self, target: &str, path: &str) -> Result<()>;

    /// `readlink(2)`
    fn readlink(&mut self, path: &str) -> Result<Vec<u8>>;

    /// `link(2)`; of a link itself if `existing` is one.
    fn link(&mut self, existing: &str, new: &str) -> Result<()>;

    /// `renameat2(2)`
    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Result<()>;

    /// `chmod(2)`, follows links.
    fn chmod(&mut self, path: &str, perm: u32) -> Result<()>;

    /// `utimensat(2)` with the same time for both.
    fn utimens(&mut self, path: &str, secs: i64, follow: bool) -> Result<()>;

    /// `stat(2)` or `lstat(2)`
    fn stat(&mut self, path: &str, follow: bool) -> Result<Stat>;

    /// All entries of a directory except `.` and `..`, in any order; links are followed.
    fn readdir(&mut self, path: &str) -> Result<Vec<Entry>>;
}
