//! The one interface between layers: a file system somewhere else, in POSIX's terms.
//!
//! A host, a cache around it, a union of several, the in-memory one of the tests: all are a
//! [`Remote`], and all pass the same conformance suite (`testkit::conformance`).
//!
//! Rules that hold for every implementation:
//!
//! 1. **Dropping a future is cancellation.** The caller is free at once; whether the operation
//!    still happens is unknown, but nothing leaks: a handle that arrives late is closed.
//! 2. Operations on one handle take effect in the order of their first poll.
//! 3. No operation returns bytes that were never in the file: a short read means end of file,
//!    nothing else.
//! 4. Symbolic links are never followed in the last component, except where a method says so.
//! 5. A remote that cannot be reached answers `EHOSTDOWN`, or `ETIMEDOUT` when it stopped
//!    answering; never `ENOENT`, and never an empty result.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Attr, AttrChange, Errno, Name, RemotePath, Result, StatVfs};

/// A handle of an open file, valid with the [`Remote`] that gave it until it is closed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fh(pub u64);

/// A handle of an open directory, valid with the [`Remote`] that gave it until it is closed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dh(pub u64);

/// What an open file may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `O_RDONLY`
    Read,
    /// `O_WRONLY`
    Write,
    /// `O_RDWR`
    ReadWrite,
}

impl Access {
    /// Whether reads are allowed.
    #[must_use]
    pub fn reads(self) -> bool {
        self != Access::Write
    }

    /// Whether writes are allowed.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

/// What to do when the file to open is not there, and when it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// It must be there.
    Never,
    /// Made with these permission bits when it is not there (`O_CREAT`).
    IfAbsent(u32),
    /// Made with these permission bits; `EEXIST` when it is there (`O_CREAT | O_EXCL`).
    Exclusive(u32),
}

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFlags {
    /// Reading, writing or both.
    pub access: Access,
    /// Whether to make it.
    pub create: Create,
    /// Cut to nothing at open (`O_TRUNC`).
    pub truncate: bool,
    /// Each write goes to the end, whatever offset it names (`O_APPEND`).
    pub append: bool,
}

impl OpenFlags {
    /// Opens what is there, with nothing changed.
    #[must_use]
    pub fn existing(access: Access) -> OpenFlags {
        OpenFlags { access, create: Create::Never, truncate: false, append: false }
    }
}

/// An opened file.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// To be given back with [`Remote::close`].
    pub fh: Fh,
    /// The attributes at the time of the open. They are never newer than the content which the
    /// handle shows: data read through it may be kept as the content that these attributes name,
    /// at the risk of keeping too little, never of keeping it for too long.
    pub attr: Attr,
}

/// Bytes that were read, as the pieces in which they arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data(Vec<Bytes>);

impl Data {
    /// No bytes: the end of the file.
    #[must_use]
    pub fn new() -> Data {
        Data::default()
    }

    /// Adds `bytes` at the end.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.0.push(bytes);
        }
    }

    /// Adds all of `other` at the end.
    pub fn append(&mut self, mut other: Data) {
        self.0.append(&mut other.0);
    }

    /// Cuts off everything past the first `len` bytes.
    pub fn truncate(&mut self, mut len: usize) {
        self.0.retain_mut(|piece| {
            piece.truncate(len);
            len -= piece.len();
            !piece.is_empty()
        });
    }

    /// The bytes of `range`, which must not go past the end. Nothing is copied.
    #[must_use]
    pub fn slice(&self, range: std::ops::Range<usize>) -> Data {
        let mut slice = Data::new();
        let mut at = 0;
        for piece in &self.0 {
            let here = at..at + piece.len();
            at = here.end;
            let (start, end) = (range.start.max(here.start), range.end.min(here.end));
            if start < end {
                slice.push(piece.slice(start - here.start..end - here.start));
            }
        }
        debug_assert!(range.end <= at, "a slice past the end");
        slice
    }

    /// The pieces in order, none of them empty.
    #[must_use]
    pub fn pieces(&self) -> &[Bytes] {
        &self.0
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All bytes in one place; copies.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.concat()
    }
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Data {
        let mut data = Data::new();
        data.push(bytes);
        data
    }
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Never `.` or `..`.
    pub name: Name,
    /// As `lstat` has it, where the listing tells.
    pub attr: Option<Attr>,
}

/// What a rename does when the new name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it in one step, as `rename(2)`.
    Replace,
    /// Fails with `EEXIST` (`RENAME_NOREPLACE`).
    NoReplace,
}

/// How much of a remote's content is worth having on its way at once. Only advice: more waits in
/// the remote, less leaves the way to it unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Bytes that all who read, or all who write, in sequence should have on their way together.
    pub bytes: u64,
    /// Longest read or write that goes as one request. Longer ones are cut into several, and many
    /// much shorter ones cost more.
    pub request_bytes: u32,
}

impl Default for Window {
    /// What one session over a short way carries: 1 MiB, in requests of 128 KiB.
    fn default() -> Window {
        Window { bytes: 1 << 20, request_bytes: 128 << 10 }
    }
}

/// Where a name is, in words for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The source as the user wrote it: `gw1:/project`, `local:/srv`.
    pub source: String,
    /// The machine, as the user calls it; `localhost` for this one.
    pub host: String,
}

/// How a digest of a file's content is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DigestKind {
    /// 16 bytes
    Md5,
    /// 20 bytes
    Sha1,
    /// 32 bytes
    Sha256,
    /// 32 bytes, without a key
    Blake3,
}

/// What may be done to learn a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestEffort {
    /// Nothing is asked of anybody else; what is kept here may be read.
    Known,
    /// The content may be read.
    Compute,
}

/// A file system somewhere else. See the [module](self) for the rules.
#[async_trait]
pub trait Remote: Send + Sync + 'static {
    /// The attributes of what `path` names, of the link itself if it is one.
    async fn lstat(&self, path: &RemotePath) -> Result<Attr>;

    /// The target of a symbolic link, as stored; `EINVAL` when it is none.
    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>>;

    /// Opens a directory for listing.
    async fn opendir(&self, path: &RemotePath) -> Result<Dh>;

    /// The next entries in the remote's own order, `None` at the end. Entries with invalid names
    /// are left out and logged. A batch is never empty.
    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>>;

    /// Gives a directory handle back. Waits for nothing.
    fn closedir(&self, dh: Dh);

    /// Opens a regular file, following no link in the last component. `EISDIR` for a directory.
    /// A file made here has the permission bits that were asked for, or fewer if the remote
    /// insists.
    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened>;

    /// The attributes of the open file, wherever its name has gone.
    async fn fstat(&self, fh: Fh) -> Result<Attr>;

    /// Up to `len` bytes from `offset`; fewer only at the end of the file.
    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data>;

    /// Writes all of `data` at `offset`, or at the end for a handle opened with `append`.
    /// `Ok` when the server has it (not: on its disk). After an error any part may be written.
    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()>;

    /// Returns when everything written so far is on the server's disk. `EOPNOTSUPP` when the
    /// server has no such call.
    async fn fsync(&self, fh: Fh) -> Result<()>;

    /// As [`Remote::fsync`], for the entries of a directory.
    async fn fsyncdir(&self, path: &RemotePath) -> Result<()>;

    /// Gives a file handle back. Waits for nothing, and does not report what the server answers:
    /// for handles through which nothing was written.
    fn close(&self, fh: Fh);

    /// Gives a file handle back behind all operations that have begun through it, and returns what
    /// the server answers. Some servers report only here that a write has failed: where a quota is
    /// exceeded, or where the file is on a network file system. The handle is given back from the
    /// first poll on, also if the future is dropped then.
    async fn finish(&self, fh: Fh) -> Result<()>;

    /// Returns what the server answers when the file is closed there, behind all operations that have
    /// begun through the handle, as [`Remote::finish`] does, and keeps the handle: the file is opened
    /// again when something is asked through it. So it can be called at each close of a descriptor,
    /// while others may go on with the same handle. `EOPNOTSUPP` where a file is not opened again.
    async fn flush(&self, _fh: Fh) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Changes attributes, of a link itself where the remote can (else `EOPNOTSUPP`).
    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()>;

    /// Changes attributes of an open file.
    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()>;

    /// Makes a directory with these permission bits.
    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()>;

    /// Removes an empty directory.
    async fn rmdir(&self, path: &RemotePath) -> Result<()>;

    /// Removes a name that is no directory's.
    async fn unlink(&self, path: &RemotePath) -> Result<()>;

    /// Makes a symbolic link at `path`.
    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()>;

    /// Makes `new` a second name of `existing`.
    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()>;

    /// Gives `from` the name `to`.
    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()>;

    /// Figures of the file system that holds `path`.
    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs>;

    /// Copies up to `len` bytes between two different open files without moving them over the
    /// network, and tells how many. `EOPNOTSUPP` when the remote cannot.
    async fn copy(
        &self,
        from: Fh,
        from_offset: u64,
        to: Fh,
        to_offset: u64,
        len: u64,
    ) -> Result<u64>;

    /// How much to have on its way now. Changes as the remote learns about the way to it: what it
    /// would like to try next is in it. Cheap, to be asked before each read ahead.
    fn suggested_window(&self) -> Window {
        Window::default()
    }

    /// Where what `path` names is. The first place is the one that is shown; the others hold the
    /// same name behind it. `EOPNOTSUPP` from a remote that has no words for itself.
    async fn locate(&self, _path: &RemotePath) -> Result<Vec<Location>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The digest of the content that the regular file at `path` has with these attributes;
    /// `None` when it is not known, and always when there is doubt. Costs no round trip unless
    /// `effort` allows it.
    async fn digest(
        &self,
        _path: &RemotePath,
        _attr: &Attr,
        _kind: DigestKind,
        _effort: DigestEffort,
    ) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// A file of this machine that has the whole content of the open file, for as long as the
    /// handle is open and longer. It must not be written to. `None` where there is none.
    fn backing(&self, _fh: Fh) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Whether it is known now that it cannot be reached: what is asked of it waits for that to
    /// change, or fails. Cheap.
    fn is_disconnected(&self) -> bool {
        false
    }

    /// Returns when [`Remote::is_disconnected`] has become true, at once if it is.
    async fn disconnected(&self) {
        std::future::pending().await
    }

    /// What tells this run of the server's machine from all others: what was written and not
    /// synced in another run may be lost. `None` where nothing tells.
    async fn write_verifier(&self) -> Result<Option<Bytes>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_keeps_order_and_cuts_at_a_byte() {
        let mut data = Data::from(Bytes::from_static(b"abc"));
        data.push(Bytes::new());
        data.append(Data::from(Bytes::from_static(b"defg")));
        assert_eq!((data.len(), data.pieces().len()), (7, 2));
        data.truncate(4);
        assert_eq!(data.to_vec(), b"abcd");
        assert_eq!(data.slice(1..4).to_vec(), b"bcd");
        assert_eq!(data.slice(3..4).pieces().len(), 1);
        assert!(data.slice(2..2).is_empty());
        data.truncate(3);
        assert_eq!(data.pieces().len(), 1);
        data.truncate(0);
        assert!(data.is_empty());
    }
}
