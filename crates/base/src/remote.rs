//! [`Remote`], the contract between the layers: a file system elsewhere, in the terms of POSIX.
//!
//! A host, a cache around it, a union of several, and the in-memory one of the tests all implement
//! [`Remote`], and all pass the same conformance suite (`testkit::conformance`).
//!
//! Every implementation keeps these rules:
//!
//! 1. **Dropping a future cancels the operation.** The caller is free at once. Whether the
//!    operation is still executed is unknown, but nothing leaks: a handle that arrives later is
//!    closed.
//! 2. Operations on one handle take effect in the order of their first polls.
//! 3. A read returns only bytes that were in the file. A short read means end of file and nothing
//!    else.
//! 4. A symbolic link in the last component is not followed, unless the method says so.
//! 5. A remote that cannot be reached returns `EHOSTDOWN`, or `ETIMEDOUT` if it stopped answering.
//!    It never returns `ENOENT` or an empty result instead.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    Attr, AttrChange, Errno, FileKind, Lock, LockKind, LockOwner, LockRange, Name, RemotePath,
    Result, StatVfs, Watches,
};

/// A handle of an open file, valid at the [`Remote`] that returned it until it is closed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fh(pub u64);

/// A handle of an open directory, valid at the [`Remote`] that returned it until it is closed
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dh(pub u64);

/// The access mode of an open file.
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
    pub fn reads(self) -> bool {
        self != Access::Write
    }

    /// Whether writes are allowed.
    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

/// Whether an open creates the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// The file must exist.
    Never,
    /// The file is created with these permission bits if it does not exist (`O_CREAT`).
    IfAbsent(u32),
    /// The file is created with these permission bits; `EEXIST` if it exists (`O_CREAT | O_EXCL`).
    Exclusive(u32),
}

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFlags {
    /// Reading, writing or both.
    pub access: Access,
    /// Whether to create the file.
    pub create: Create,
    /// Truncates the file to length 0 (`O_TRUNC`).
    pub truncate: bool,
    /// Each write goes to the end of the file, whatever its offset (`O_APPEND`).
    pub append: bool,
}

impl OpenFlags {
    /// Opens an existing file without changing it.
    pub fn existing(access: Access) -> OpenFlags {
        OpenFlags { access, create: Create::Never, truncate: false, append: false }
    }
}

/// An opened file.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The handle, which the caller closes with [`Remote::close`] or [`Remote::finish`].
    pub fh: Fh,
    /// The attributes at the time of the open, never newer than the content that is read through
    /// the handle. So a cache may store that content under these attributes: if the file changes
    /// between the two, a later validation drops current content, but never keeps stale content.
    pub attr: Attr,
}

/// Bytes that were read, as a list of buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data(Vec<Bytes>);

impl Data {
    /// No bytes, which means end of file.
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

    /// Removes all bytes behind the first `len`.
    pub fn truncate(&mut self, mut len: usize) {
        self.0.retain_mut(|piece| {
            piece.truncate(len);
            len -= piece.len();
            !piece.is_empty()
        });
    }

    /// The bytes of `range`, which must be within the data. Nothing is copied.
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

    /// The buffers in order; none is empty.
    pub fn pieces(&self) -> &[Bytes] {
        &self.0
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies all bytes into one vector.
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

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Never `.` or `..`.
    pub name: Name,
    /// The attributes as of `lstat`, if the listing contains them.
    pub attr: Option<Attr>,
}

/// What a rename does if the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces the new name atomically, as `rename(2)`.
    Replace,
    /// Fails with `EEXIST` (`RENAME_NOREPLACE`).
    NoReplace,
    /// Exchanges the two names, which must both exist (`RENAME_EXCHANGE`). `EINVAL` if the remote
    /// cannot do that.
    Exchange,
}

impl RenameMode {
    /// The new path of an entry that was within one of two renamed paths; `None` if it was
    /// replaced, or within neither.
    pub fn moved(
        self,
        path: &RemotePath,
        from: &RemotePath,
        to: &RemotePath,
    ) -> Option<RemotePath> {
        let back = || if self == RenameMode::Exchange { path.moved(to, from) } else { None };
        path.moved(from, to).or_else(back)
    }

    /// Moves what is kept by its path, and removes what was replaced. `moved` gets each of these,
    /// with the new path.
    pub fn move_entries<T>(
        self,
        entries: &mut HashMap<RemotePath, T>,
        from: &RemotePath,
        to: &RemotePath,
        mut moved: impl FnMut(&T, Option<&RemotePath>),
    ) {
        let is_touched = |path: &RemotePath| path.is_within(from) || path.is_within(to);
        let touched: Vec<_> = entries.extract_if(|path, _| is_touched(path)).collect();
        for (path, entry) in touched {
            let path = self.moved(&path, from, to);
            moved(&entry, path.as_ref());
            entries.extend(path.map(|path| (path, entry)));
        }
    }
}

/// What setting an extended attribute does if it exists, or if it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Creates or replaces it.
    Either,
    /// Fails with `EEXIST` if it exists (`XATTR_CREATE`).
    Create,
    /// Fails with `ENODATA` if it does not exist (`XATTR_REPLACE`).
    Replace,
}

/// What `fallocate(2)` does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Reserves space for it. The file grows to its end, unless the size is kept.
    Reserve {
        /// `FALLOC_FL_KEEP_SIZE`
        keep_size: bool,
    },
    /// Makes it a hole within the size of the file (`FALLOC_FL_PUNCH_HOLE`).
    PunchHole,
    /// Makes it zeros, and reserves space for it (`FALLOC_FL_ZERO_RANGE`).
    Zero {
        /// `FALLOC_FL_KEEP_SIZE`
        keep_size: bool,
    },
}

/// The kind of position that `lseek(2)` searches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next data (`SEEK_DATA`).
    Data,
    /// The next hole (`SEEK_HOLE`); the end of the file is one.
    Hole,
}

/// How many bytes to keep in flight. Advice only: with more, requests queue in the remote; with
/// less, the link is not used fully.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Bytes in flight of all sequential readers together, and of all sequential writers together.
    pub bytes: u64,
    /// Longest read or write that is sent as one request. Longer ones are split, and many much
    /// shorter ones cost more.
    pub request_bytes: u32,
}

impl Default for Window {
    /// What one session over a short link carries: 1 MiB, in requests of 128 KiB.
    fn default() -> Window {
        Window { bytes: 1 << 20, request_bytes: 128 << 10 }
    }
}

/// The location of a name, as text for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The source as the user wrote it: `gw1:/project`, `local:/srv`.
    pub source: String,
    /// The host, as the user calls it; `localhost` for this machine.
    pub host: String,
}

/// The algorithm of a digest of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DigestKind {
    /// MD5, 16 bytes.
    Md5,
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
    /// BLAKE3 without a key, 32 bytes.
    Blake3,
}

/// The permitted cost of obtaining a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestEffort {
    /// No request to another machine; local copies may be read.
    Known,
    /// The content may be read, on the server as well.
    Compute,
}

/// A file system elsewhere. See the [module](self) for the rules.
#[async_trait]
pub trait Remote: Send + Sync + 'static {
    /// The attributes of the entry at `path`; a symbolic link is not followed.
    async fn lstat(&self, path: &RemotePath) -> Result<Attr>;

    /// The target of a symbolic link, as stored; `EINVAL` if the entry is not a link.
    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>>;

    /// Opens a directory for listing.
    async fn opendir(&self, path: &RemotePath) -> Result<Dh>;

    /// The next entries, in the remote's own order; `None` at the end. Entries with invalid names
    /// are omitted and logged. A batch is never empty.
    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>>;

    /// Closes a directory handle, without waiting for the server.
    fn closedir(&self, dh: Dh);

    /// Opens a regular file. A symbolic link in the last component is not followed. `EISDIR` for a
    /// directory. A created file has the requested permission bits, or fewer if the remote removes
    /// some.
    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened>;

    /// Opens a file to read it without a request, if its content is stored on this machine. The
    /// caller knows its present attributes, since [`Remote::watches`] reports changes.
    async fn open_stored(&self, _path: &RemotePath, _attr: &Attr) -> Option<Opened> {
        None
    }

    /// The attributes of an open file, even if it was renamed or removed.
    async fn fstat(&self, fh: Fh) -> Result<Attr>;

    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data>;

    /// Writes all of `data` at `offset`, or at the end for a handle opened with `append`: then
    /// `offset` is where the caller assumes the end to be, for servers that do not append. `Ok`
    /// means that the server has received the data, not that it is on the server's disk. After an
    /// error any part of it may have been written; after `ESTALE` none, unless locks of the file
    /// were lost: the handle was lost before.
    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()>;

    /// Returns when all data written so far is on the server's disk. `EOPNOTSUPP` if the server has
    /// no such request.
    async fn fsync(&self, fh: Fh) -> Result<()>;

    /// Returns when the entries of a directory are on the server's disk. `EOPNOTSUPP` if the server
    /// has no such request.
    async fn fsyncdir(&self, path: &RemotePath) -> Result<()>;

    /// Closes a file handle, without waiting for the server, and ignores the server's answer. For
    /// handles through which nothing was written.
    fn close(&self, fh: Fh);

    /// Closes a file handle after all operations that have begun through it, and returns the
    /// server's answer. Some servers report a failed write only here: when a quota is exceeded, or
    /// for a file on a network file system. The handle is invalid from the first poll on, even if
    /// the future is then dropped.
    async fn finish(&self, fh: Fh) -> Result<()>;

    /// Closes the file on the server as [`Remote::finish`] does, and returns the server's answer,
    /// but keeps the handle: the next operation through it opens the file again. So this may be
    /// called at each close of a descriptor while other descriptors still use the handle.
    /// `EOPNOTSUPP` if the remote cannot open the file again.
    async fn flush(&self, _fh: Fh) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Sets attributes of the entry at `path`. A symbolic link is not followed: its own attributes
    /// are set, or `EOPNOTSUPP` is returned.
    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()>;

    /// Sets attributes of an open file. `ESTALE` is as for [`Remote::write`].
    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()>;

    /// Creates a directory with these permission bits.
    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()>;

    /// Creates a directory with the permission bits that the server gives to new directories: those
    /// of 0777 that its umask leaves. Only copies need it; layers of mounts have the default.
    async fn mkdir_default(&self, path: &RemotePath) -> Result<()> {
        self.mkdir(path, 0o777).await
    }

    /// Removes an empty directory.
    async fn rmdir(&self, path: &RemotePath) -> Result<()>;

    /// Removes a name that does not lead to a directory.
    async fn unlink(&self, path: &RemotePath) -> Result<()>;

    /// Creates a symbolic link at `path`.
    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()>;

    /// Creates a hard link `new` to the file at `existing`.
    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()>;

    /// Renames `from` to `to`.
    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()>;

    /// Size and free space of the file system that contains `path`.
    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs>;

    /// Copies up to `len` bytes between two different open files, each with an offset, without moving
    /// them over the network. Returns the number of bytes copied. `EOPNOTSUPP` if the remote cannot do that.
    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64>;

    /// Whether the remote may support what SFTP has no requests for: the operations from
    /// [`Remote::mknod`] to [`Remote::removexattr`], and [`RenameMode::Exchange`]. `false` only if
    /// all of them are certain to fail until the remote is connected again. Cheap.
    fn may_exceed_sftp(&self) -> bool {
        false
    }

    /// Creates a FIFO, a socket or a device at `path`, with at most these permission bits. `device`
    /// is major and minor number of a device. `EOPNOTSUPP` if the remote cannot do that.
    async fn mknod(
        &self,
        _path: &RemotePath,
        _kind: FileKind,
        _perm: u32,
        _device: (u32, u32),
    ) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Reserves or frees `len` bytes at `offset` of a file open for writing. `EOPNOTSUPP` if the
    /// remote or its file system cannot do that.
    async fn fallocate(&self, _fh: Fh, _how: Allocation, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The next data or hole of an open file at or after `offset`; `ENXIO` if there is none.
    /// `EOPNOTSUPP` if the remote does not know.
    async fn seek(&self, _fh: Fh, _offset: u64, _what: Seek) -> Result<u64> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The value of an extended attribute; `ENODATA` if there is none of that name.
    async fn getxattr(&self, _path: &RemotePath, _name: &[u8]) -> Result<Bytes> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The names of the extended attributes that the login may see.
    async fn listxattr(&self, _path: &RemotePath) -> Result<Vec<Bytes>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The entries of a directory that may have extended attributes: all others have none. A
    /// listing of many entries then needs no request for each. `EOPNOTSUPP` if the remote does not
    /// know without such requests.
    async fn entries_with_xattrs(&self, _dir: &RemotePath) -> Result<Vec<Name>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Sets an extended attribute. An access list (`system.posix_acl_access`) also changes the
    /// permission bits.
    async fn setxattr(
        &self,
        _path: &RemotePath,
        _name: &[u8],
        _value: Bytes,
        _mode: SetXattr,
    ) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Removes an extended attribute; `ENODATA` if there is none of that name.
    async fn removexattr(&self, _path: &RemotePath, _name: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// How many bytes to keep in flight now. The value changes while the remote measures its link,
    /// and includes the next value that the remote wants to try. Cheap enough to be called before
    /// each readahead.
    fn suggested_window(&self) -> Window {
        Window::default()
    }

    /// The locations of the entry at `path`. The first one is shown; the others are hidden behind
    /// it. `EOPNOTSUPP` from a remote without a location of its own.
    async fn locate(&self, _path: &RemotePath) -> Result<Vec<Location>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The digest of the content that the regular file at `path` has with these attributes. `None`
    /// if it is unknown or in doubt. Costs no round trip unless `effort` permits it.
    async fn digest(
        &self,
        _path: &RemotePath,
        _attr: &Attr,
        _kind: DigestKind,
        _effort: DigestEffort,
    ) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// Attributes and content of the regular file at `path`, in one round trip; `None` if it is
    /// longer than `max_bytes`, or was changed meanwhile. `EOPNOTSUPP` if that takes more requests.
    async fn read_file(&self, _path: &RemotePath, _max_bytes: u32) -> Result<Option<(Attr, Data)>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Whether [`Remote::read_file`] is supported now. Cheap.
    fn reads_files(&self) -> bool {
        false
    }

    /// A local file with the complete content of the open file. It stays valid at least until the
    /// handle is closed, and must not be written to. `None` if there is none.
    fn backing(&self, _fh: Fh) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Whether the remote is known to be unreachable now. Operations then wait until it is
    /// reachable, or fail. Cheap.
    fn is_disconnected(&self) -> bool {
        false
    }

    /// Why the remote is unreachable, in words for the user, if it knows more than the errors of its
    /// operations say: why the last attempt to connect failed, or else why the connection ended.
    /// May contain messages of the server; not escaped. Cheap.
    fn why_disconnected(&self) -> Option<String> {
        None
    }

    /// Whether `EHOSTDOWN` and `ETIMEDOUT` mean that the remote cannot be reached. If not, they are
    /// errors of single entries: those of a network file system that is mounted in a local
    /// directory. Cheap.
    fn may_be_lost(&self) -> bool {
        true
    }

    /// Returns when [`Remote::is_disconnected`] becomes true; at once if it is true already.
    async fn disconnected(&self) {
        std::future::pending().await
    }

    /// Like [`Remote::is_disconnected`], for what has the entry at `path` or an entry in the
    /// directory there: several remotes that are shown as one may be reachable in part. Cheap.
    fn is_disconnected_at(&self, _path: &RemotePath) -> bool {
        self.is_disconnected()
    }

    /// Returns when [`Remote::is_disconnected_at`] becomes true; at once if it is true already.
    async fn disconnected_at(&self, _path: &RemotePath) {
        self.disconnected().await;
    }

    /// The remote that has the open file, if several are shown as one. Cheap.
    fn serving(&self, _fh: Fh) -> Option<Arc<dyn Remote>> {
        None
    }

    /// The watches of directories, by which this remote reports changes; `None` if it does not.
    fn watches(&self) -> Option<Arc<dyn Watches>> {
        None
    }

    /// A value that changes when the server may have lost data that it had acknowledged and that
    /// was not synced. NFS calls it the write verifier; Linux's boot ID is one. `None` if the
    /// server has none.
    async fn write_verifier(&self) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// Whether all files can be locked against other clients and the programs of the server now.
    /// Cheap. Without, [`Remote::lock`] and the methods below it return `EOPNOTSUPP`.
    fn has_locks(&self) -> bool {
        false
    }

    /// Sets a lock on a file, in place of what its owner has locked in this range. The locks of an
    /// owner end with an unlock, or when the last handle is closed through which it has set one in
    /// this file. A dropped call leaves the locks as they were before it, unless a conversion was
    /// excluded.
    ///
    /// # Errors
    /// `EAGAIN` if another owner has a lock that excludes it, unless the caller waits: then this
    /// returns when the lock is set, without detection of deadlocks. In both cases, if it was to
    /// convert a lock of [`Flock`](crate::LockFamily::Flock), the old lock is removed at once, as by
    /// the system. `EBADF` if the handle does not permit reading (for a read lock of
    /// [`Posix`](crate::LockFamily::Posix)) or writing (for a write lock of it). `ENOLCK` if there
    /// are too many locks, or the file system has none. `EIO` if a lock of this owner was lost with
    /// a connection, until the owner has unlocked all of the file.
    async fn lock(&self, _fh: Fh, _lock: Lock, _wait: bool) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Removes what `owner` has locked in this range, through any handle of the file.
    async fn unlock(&self, _fh: Fh, _owner: LockOwner, _range: LockRange) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// A lock of another owner that excludes this one; `None` if it could be set.
    async fn test_lock(&self, _fh: Fh, _lock: Lock) -> Result<Option<(LockRange, LockKind)>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns when a lock on the file of this handle was lost with a connection: from then on
    /// reads and writes through the handles of the file fail with `EIO`, until its owner has
    /// unlocked all of the file. Caches above must not answer them instead.
    async fn lost_lock(&self, _fh: Fh) {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_keeps_order_and_is_truncated_at_a_byte() {
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
