//! Finds the precise errno by further requests if SFTP reports too little.
//!
//! OpenSSH's server answers FAILURE for most errors, NO_SUCH_FILE also for `ENOTDIR`, and
//! BAD_MESSAGE for `ENAMETOOLONG`. After such a reply, and only then, the paths and their file
//! systems are queried. Other clients may change them meanwhile; then the errno is the one at the
//! time of the query. A server that sends the errno with the reply is not queried.

use std::sync::Arc;

use base::{AttrChange, Errno, FileKind, RemotePath, StatVfs};
use sftp::{Error, FileAttrs, OpenFlags, RemoteHandle, StatusCode};

use crate::handles::OpenHandle;
use crate::session::Session;
use crate::{attr, errno};

/// Longest name if the server does not report it, in bytes: the limit of nearly all Unix systems.
const DEFAULT_NAME_MAX: usize = 255;

/// Handles that OpenSSH's server needs for itself beyond those it counts.
const SPARE_HANDLES: u64 = 2;

/// A file system with less than this available, in bytes, is considered full if a request that
/// needs room failed without a reason. Block allocators reserve the last blocks: ext4 and XFS
/// refuse while some are available, and a directory of XFS wants up to 50 blocks at once.
const SLACK_BYTES: u64 = 1 << 20;

/// The smallest limit of file size in use today, in bytes: that of vfat. A file system extends a
/// file without allocating; so if only that failed beyond this size, the size is the reason.
const SMALLEST_LIMIT_BYTES: u64 = u32::MAX as u64;

/// The resources that a failed request needed.
#[derive(Clone, Copy)]
enum Need {
    /// Room for this number of bytes.
    Bytes(u64),
    /// A new inode, and room for its directory entry.
    Inode,
}

/// What exists at a path.
pub(crate) enum AtPath {
    /// Nothing exists.
    Nothing,
    /// Something exists, of this type.
    Something(Option<FileKind>),
    /// Unknown.
    Unknown,
}

impl AtPath {
    fn new(answer: sftp::Result<FileAttrs>) -> AtPath {
        match answer {
            Ok(attrs) => AtPath::Something(attr::kind(&attrs)),
            Err(error) if error.status() == Some(StatusCode::NO_SUCH_FILE) => AtPath::Nothing,
            Err(_) => AtPath::Unknown,
        }
    }

    fn exists(&self) -> bool {
        matches!(self, AtPath::Something(_))
    }

    fn is_dir(&self) -> bool {
        matches!(self, AtPath::Something(Some(FileKind::Directory)))
    }

    fn is_other_than_dir(&self) -> bool {
        self.exists() && !self.is_dir()
    }
}

/// What a failed request has found in a directory.
enum Entries {
    /// There are some.
    Some,
    /// There are none, or it is not known.
    NoneFound,
    /// The login may not list the directory.
    Hidden,
}

/// Finds the causes of failures of one session.
#[derive(Clone, Copy)]
pub(crate) struct Probe<'a>(pub(crate) &'a Arc<Session>);

impl Probe<'_> {
    /// The errno if nothing better was found. If the session was lost, the probe has found nothing,
    /// and the errno is that of a lost session, so that the caller repeats the request over a new
    /// connection.
    fn unless_lost(self, errno: Errno) -> Errno {
        self.0.client.end().map_or(errno, |why| errno::from_sftp(&why))
    }

    async fn lstat(self, path: &RemotePath) -> AtPath {
        match self.0.path(path) {
            Ok(full) => AtPath::new(self.0.client.lstat(&full).await),
            Err(_) => AtPath::Unknown,
        }
    }

    async fn statvfs(self, path: &RemotePath) -> Option<StatVfs> {
        let full = self.0.path(path).ok()?;
        self.0.client.statvfs(&full).await.ok()
    }

    /// STATVFS of the file system that holds the name `path`.
    async fn statvfs_of_parent(self, path: &RemotePath) -> Option<StatVfs> {
        self.statvfs(&path.parent()?).await
    }

    /// Errors that any operation on `path` may have: a component that is not a directory, or is too
    /// long. Only after a reply of the server.
    pub(crate) async fn general(self, error: &Error, path: &RemotePath) -> Errno {
        match error.bare_status() {
            Some(StatusCode::NO_SUCH_FILE) => self.missing(path).await,
            Some(StatusCode::BAD_MESSAGE) if self.has_long_name(path).await => Errno::ENAMETOOLONG,
            _ => errno::from_sftp(error),
        }
    }

    /// `ENOTDIR` if an ancestor of `path` exists and is not a directory, otherwise `ENOENT`.
    async fn missing(self, path: &RemotePath) -> Errno {
        let mut above = path.parent();
        while let Some(dir) = above {
            match self.lstat(&dir).await {
                AtPath::Nothing => above = dir.parent(),
                // An ancestor that is a link may not lead to a directory. The server has reported
                // that the path does not exist; nothing more is known.
                AtPath::Something(Some(FileKind::Directory | FileKind::Symlink) | None)
                | AtPath::Unknown => return self.unless_lost(Errno::ENOENT),
                AtPath::Something(_) => return Errno::ENOTDIR,
            }
        }
        self.unless_lost(Errno::ENOENT)
    }

    async fn has_long_name(self, path: &RemotePath) -> bool {
        let longest = path.names().map(<[u8]>::len).max().unwrap_or(0);
        if longest > DEFAULT_NAME_MAX {
            return true;
        }
        let statvfs = self.statvfs_of_parent(path).await;
        statvfs.is_some_and(|statvfs| statvfs.name_max > 0 && longest as u64 > statvfs.name_max)
    }

    /// After the creation of the name `path` failed.
    pub(crate) async fn create(self, error: &Error, path: &RemotePath) -> Errno {
        if path.is_root() {
            return Errno::EEXIST;
        }
        match error.bare_status() {
            Some(StatusCode::FAILURE) => {
                if self.lstat(path).await.exists() {
                    return Errno::EEXIST;
                }
                let found = self.full_or_read_only(path, Need::Inode).await;
                found.unwrap_or_else(|| self.unless_lost(Errno::EPERM))
            }
            _ => self.general(error, path).await,
        }
    }

    /// After the creation of a file that was to be opened failed, with `open_handles` open.
    pub(crate) async fn create_open(
        self,
        error: &Error,
        path: &RemotePath,
        open_handles: usize,
    ) -> Errno {
        match error.bare_status() {
            Some(StatusCode::FAILURE) if self.is_out_of_handles(open_handles) => Errno::EMFILE,
            _ => self.create(error, path).await,
        }
    }

    fn is_out_of_handles(self, open_handles: usize) -> bool {
        let most = self.0.client.server().max_handles;
        most.is_some_and(|most| open_handles as u64 + SPARE_HANDLES >= most)
    }

    /// Whether the file system that holds the name `path` is read-only or has no room.
    async fn full_or_read_only(self, path: &RemotePath, need: Need) -> Option<Errno> {
        no_room(&self.statvfs_of_parent(path).await?, need)
    }

    /// After the open of an existing file failed, with `open_handles` open.
    pub(crate) async fn open(self, error: &Error, path: &RemotePath, open_handles: usize) -> Errno {
        match error.bare_status() {
            Some(StatusCode::FAILURE) => {
                if self.is_out_of_handles(open_handles) {
                    return Errno::EMFILE;
                }
                match self.lstat(path).await {
                    AtPath::Something(Some(FileKind::Directory)) => Errno::EISDIR,
                    AtPath::Something(Some(FileKind::Symlink)) => Errno::ELOOP,
                    AtPath::Something(Some(FileKind::Regular) | None) | AtPath::Unknown => {
                        match self.statvfs(path).await {
                            Some(statvfs) if statvfs.is_read_only() => Errno::EROFS,
                            _ => self.unless_lost(Errno::EPERM),
                        }
                    }
                    AtPath::Something(_) => Errno::ENXIO,
                    AtPath::Nothing => Errno::ENOENT,
                }
            }
            _ => self.general(error, path).await,
        }
    }

    /// After OPENDIR failed.
    pub(crate) async fn opendir(
        self,
        error: &Error,
        path: &RemotePath,
        open_handles: usize,
    ) -> Errno {
        match error.bare_status() {
            Some(status @ (StatusCode::NO_SUCH_FILE | StatusCode::FAILURE)) => {
                match self.lstat(path).await {
                    there if there.is_other_than_dir() => Errno::ENOTDIR,
                    there if there.is_dir() && status == StatusCode::FAILURE => {
                        match self.is_out_of_handles(open_handles) {
                            true => Errno::EMFILE,
                            false => self.unless_lost(Errno::EIO),
                        }
                    }
                    _ => self.open(error, path, open_handles).await,
                }
            }
            _ => self.general(error, path).await,
        }
    }

    /// After a failed REMOVE.
    pub(crate) async fn unlink(self, error: &Error, path: &RemotePath) -> Errno {
        match error.bare_status() {
            Some(StatusCode::FAILURE | StatusCode::PERMISSION_DENIED) => {
                if self.lstat(path).await.is_dir() {
                    return Errno::EISDIR;
                }
                self.read_only_or(errno::from_sftp(error), path).await
            }
            _ => self.general(error, path).await,
        }
    }

    /// After a failed RMDIR.
    pub(crate) async fn rmdir(self, error: &Error, path: &RemotePath) -> Errno {
        match error.bare_status() {
            Some(StatusCode::NO_SUCH_FILE) => match self.lstat(path).await {
                there if there.is_other_than_dir() => Errno::ENOTDIR,
                _ => self.general(error, path).await,
            },
            Some(StatusCode::FAILURE) => match self.lstat(path).await {
                there if there.is_other_than_dir() => Errno::ENOTDIR,
                _ => match self.entries(path).await {
                    Entries::Some => Errno::ENOTEMPTY,
                    Entries::Hidden => self.read_only_or(Errno::ENOTEMPTY, path).await,
                    Entries::NoneFound => self.read_only_or(errno::from_sftp(error), path).await,
                },
            },
            _ => self.general(error, path).await,
        }
    }

    async fn read_only_or(self, errno: Errno, path: &RemotePath) -> Errno {
        match self.statvfs_of_parent(path).await {
            Some(statvfs) if statvfs.is_read_only() => Errno::EROFS,
            _ => self.unless_lost(errno),
        }
    }

    async fn entries(self, path: &RemotePath) -> Entries {
        let Ok(full) = self.0.path(path) else { return Entries::NoneFound };
        let open = match self.0.client.opendir(&full).await {
            Ok(handle) => OpenHandle::new(self.0.clone(), handle),
            Err(error) if is_denied(&error) => return Entries::Hidden,
            Err(_) => return Entries::NoneFound,
        };
        let is_entry = |name: &[u8]| !matches!(name, b"." | b"..");
        match self.0.client.readdir(&open.handle).await {
            // `.` and `..` are two entries, and are in the first batch.
            Ok(Some(names)) if names.iter().any(|entry| is_entry(&entry.name)) => Entries::Some,
            // OpenSSH leaves out what it may not stat: all of a directory without search permission.
            Ok(None) => match self.0.client.lstat(&[&full[..], b"/."].concat()).await {
                Err(error) if is_denied(&error) => Entries::Hidden,
                _ => Entries::NoneFound,
            },
            _ => Entries::NoneFound,
        }
    }

    /// After a failed hard link.
    pub(crate) async fn link(
        self,
        error: &Error,
        existing: &RemotePath,
        new: &RemotePath,
    ) -> Errno {
        match error {
            Error::Unsupported(_) => return Errno::ENOSYS,
            Error::Status { errno: Some(_), .. } => return errno::from_sftp(error),
            error if error.bare_status() == Some(StatusCode::OP_UNSUPPORTED) => {
                return Errno::ENOSYS;
            }
            _ => {}
        }
        match error.bare_status() {
            Some(StatusCode::FAILURE) => {
                if self.lstat(new).await.exists() {
                    return Errno::EEXIST;
                }
                if self.are_apart(existing, new).await {
                    return Errno::EXDEV;
                }
                let found = self.full_or_read_only(new, Need::Bytes(0)).await;
                found.unwrap_or_else(|| self.unless_lost(Errno::EPERM))
            }
            Some(StatusCode::PERMISSION_DENIED) => match self.lstat(existing).await {
                there if there.is_dir() => Errno::EPERM,
                _ => self.unless_lost(Errno::EACCES),
            },
            Some(StatusCode::NO_SUCH_FILE) => match self.lstat(existing).await {
                there if there.exists() => self.missing(new).await,
                _ => self.missing(existing).await,
            },
            _ if self.has_long_name(new).await => self.general(error, new).await,
            _ => self.general(error, existing).await,
        }
    }

    /// Whether two names are on different file systems.
    async fn are_apart(self, one: &RemotePath, other: &RemotePath) -> bool {
        let statvfs = (self.statvfs_of_parent(one).await, self.statvfs_of_parent(other).await);
        matches!(statvfs, (Some(one), Some(other)) if one.fsid != other.fsid)
    }

    /// After a rename that may replace its target failed.
    pub(crate) async fn rename(
        self,
        error: &Error,
        from: &RemotePath,
        to: &RemotePath,
        unexplained: Errno,
    ) -> Errno {
        match error.bare_status() {
            Some(StatusCode::NO_SUCH_FILE | StatusCode::FAILURE) => {}
            _ if self.is_long_in_either(error, from, to).await => return Errno::ENAMETOOLONG,
            _ => return errno::from_sftp(error),
        }
        let (source, target) = (self.lstat(from).await, self.lstat(to).await);
        match (source, target) {
            (AtPath::Nothing, _) => self.missing(from).await,
            (source, AtPath::Nothing) => match self.missing_parent(to).await {
                Some(errno) => errno,
                None => self.rename_between(error, &source, from, to, unexplained).await,
            },
            (source, target) if source.is_dir() && target.is_other_than_dir() => Errno::ENOTDIR,
            (source, target) if source.is_other_than_dir() && target.is_dir() => Errno::EISDIR,
            (source, target) => {
                let entries =
                    if target.is_dir() { self.entries(to).await } else { Entries::NoneFound };
                let unexplained = match entries {
                    Entries::Some => return Errno::ENOTEMPTY,
                    Entries::Hidden => Errno::ENOTEMPTY,
                    Entries::NoneFound => unexplained,
                };
                self.rename_between(error, &source, from, to, unexplained).await
            }
        }
    }

    async fn is_long_in_either(self, error: &Error, from: &RemotePath, to: &RemotePath) -> bool {
        error.bare_status() == Some(StatusCode::BAD_MESSAGE)
            && (self.has_long_name(from).await || self.has_long_name(to).await)
    }

    /// The error of the parent directory of `path`, if there is one.
    async fn missing_parent(self, path: &RemotePath) -> Option<Errno> {
        match self.lstat(&path.parent()?).await {
            AtPath::Nothing => Some(self.missing(path).await),
            AtPath::Something(Some(FileKind::Directory | FileKind::Symlink) | None)
            | AtPath::Unknown => None,
            AtPath::Something(_) => Some(Errno::ENOTDIR),
        }
    }

    /// The error between two names that are valid by themselves.
    async fn rename_between(
        self,
        error: &Error,
        source: &AtPath,
        from: &RemotePath,
        to: &RemotePath,
        unexplained: Errno,
    ) -> Errno {
        // The server reports EINVAL as FAILURE.
        if source.is_dir() && to != from && to.is_below(from) {
            return Errno::EINVAL;
        }
        if self.are_apart(from, to).await {
            return Errno::EXDEV;
        }
        match error.bare_status() {
            Some(StatusCode::FAILURE) => {
                let found = self.full_or_read_only(to, Need::Bytes(0)).await;
                found.unwrap_or_else(|| self.unless_lost(unexplained))
            }
            _ => self.unless_lost(errno::from_sftp(error)),
        }
    }

    /// After a change of attributes by path failed; of the size only, if there is a new one.
    pub(crate) async fn setattr(
        self,
        error: &Error,
        path: &RemotePath,
        change: &AttrChange,
    ) -> Errno {
        match error.bare_status() {
            Some(StatusCode::FAILURE) => match (self.statvfs(path).await, change.size) {
                (Some(statvfs), _) if statvfs.is_read_only() => Errno::EROFS,
                (_, Some(size)) if self.is_too_large(size, path).await => Errno::EFBIG,
                (Some(statvfs), Some(_)) => {
                    let found = no_room(&statvfs, Need::Bytes(0));
                    found.unwrap_or_else(|| self.unless_lost(Errno::EPERM))
                }
                _ => self.unless_lost(Errno::EPERM),
            },
            // Only the owner may; except for the size, there is no other cause.
            Some(StatusCode::PERMISSION_DENIED) if change.size.is_none() => {
                match change.touch && self.refuses_writes(path).await {
                    true => Errno::EACCES,
                    false => Errno::EPERM,
                }
            }
            _ => self.general(error, path).await,
        }
    }

    /// Whether the login may not write a regular file. Nothing else is opened: the open of a FIFO
    /// could wait. Where the login may, programs that watch the file at the server see an open and a
    /// close (`IN_CLOSE_WRITE`).
    async fn refuses_writes(self, path: &RemotePath) -> bool {
        let is_file = matches!(self.lstat(path).await, AtPath::Something(Some(FileKind::Regular)));
        let Some(full) = self.0.path(path).ok().filter(|_| is_file) else { return false };
        match self.0.client.open(&full, OpenFlags::WRITE, FileAttrs::default()).await {
            Ok(handle) => {
                drop(OpenHandle::new(self.0.clone(), handle));
                false
            }
            Err(error) => is_denied(&error),
        }
    }

    /// Whether a file that did not grow to `size` is shorter, and `size` exceeds the limit of some
    /// file systems.
    async fn is_too_large(self, size: u64, path: &RemotePath) -> bool {
        let Ok(full) = self.0.path(path) else { return false };
        size > SMALLEST_LIMIT_BYTES && is_shorter(self.0.client.stat(&full).await, size)
    }

    /// After the size of an open file could not be changed to `size`.
    pub(crate) async fn resize(
        self,
        error: &Error,
        handle: &RemoteHandle,
        name: Option<RemotePath>,
        size: u64,
    ) -> Errno {
        match self.handle(error, handle, name, 0).await {
            // Growing a file needs no room.
            Errno::EIO | Errno::ENOSPC
                if error.bare_status() == Some(StatusCode::FAILURE)
                    && size > SMALLEST_LIMIT_BYTES
                    && is_shorter(self.0.client.fstat(handle).await, size) =>
            {
                Errno::EFBIG
            }
            errno => errno,
        }
    }

    /// After a write of `bytes` at `offset` failed; `None` for the end of the file.
    ///
    /// OpenSSH's server seeks before it writes, and Linux refuses a seek past the largest size of a
    /// file with `EINVAL`, which is BAD_MESSAGE.
    pub(crate) async fn write(
        self,
        error: &Error,
        (handle, name): (&RemoteHandle, Option<RemotePath>),
        offset: Option<u64>,
        bytes: u64,
    ) -> Errno {
        match (error.bare_status(), offset) {
            (Some(StatusCode::BAD_MESSAGE), Some(offset)) if offset > SMALLEST_LIMIT_BYTES => {
                Errno::EFBIG
            }
            _ => self.handle(error, handle, name, bytes).await,
        }
    }

    /// After CLOSE of a handle of the file `name` returned an error. The handle is closed
    /// nevertheless.
    pub(crate) async fn close(self, error: &Error, name: Option<RemotePath>) -> Errno {
        match (error.bare_status(), name) {
            (Some(StatusCode::FAILURE), Some(name)) => {
                let found = self.full_or_read_only(&name, Need::Bytes(0)).await;
                found.unwrap_or_else(|| self.unless_lost(Errno::EIO))
            }
            _ => errno::from_handle(error),
        }
    }

    /// After a request through a handle of the file `name` failed that may need room for `bytes`.
    pub(crate) async fn handle(
        self,
        error: &Error,
        handle: &RemoteHandle,
        name: Option<RemotePath>,
        bytes: u64,
    ) -> Errno {
        if error.bare_status() != Some(StatusCode::FAILURE) {
            return errno::from_handle(error);
        }
        let statvfs = match (self.0.client.fstatvfs(handle).await, name) {
            (Ok(statvfs), _) => Some(statvfs),
            // CLOSE of the handle may have been sent behind the failed request.
            (Err(error), Some(name)) if !error.ends_connection() => {
                self.statvfs_of_parent(&name).await
            }
            (Err(_), _) => None,
        };
        match statvfs {
            Some(statvfs) => no_room(&statvfs, Need::Bytes(bytes)).unwrap_or(Errno::EIO),
            None => self.unless_lost(Errno::EIO),
        }
    }
}

/// Whether a file has less than `size` bytes.
fn is_shorter(answer: sftp::Result<FileAttrs>, size: u64) -> bool {
    answer.is_ok_and(|attrs| attrs.size.is_some_and(|now| now < size))
}

fn is_denied(error: &Error) -> bool {
    error.bare_status() == Some(StatusCode::PERMISSION_DENIED)
}

/// `EROFS`, or `ENOSPC` if the resource that the request needed has run out. A file system that
/// does not count inodes reports a total of zero.
fn no_room(statvfs: &StatVfs, need: Need) -> Option<Errno> {
    let (bytes, inode) = match need {
        Need::Bytes(bytes) => (bytes, false),
        Need::Inode => (0, true),
    };
    let unit = [statvfs.fragment_size, statvfs.block_size, 4096];
    let unit = unit.into_iter().find(|bytes| *bytes > 0).unwrap_or(1);
    let available_bytes = statvfs.blocks_available.saturating_mul(unit);
    let no_inodes = inode && statvfs.files > 0 && statvfs.files_available == 0;
    if statvfs.is_read_only() {
        Some(Errno::EROFS)
    } else if available_bytes < bytes.saturating_add(SLACK_BYTES) || no_inodes {
        Some(Errno::ENOSPC)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_full_a_little_before_its_last_block() {
        let room = StatVfs {
            block_size: 1 << 20,
            fragment_size: 4096,
            blocks_available: 512,
            files: 9,
            files_available: 1,
            ..StatVfs::default()
        };
        let full = Some(Errno::ENOSPC);
        let blocks = |blocks_available| StatVfs { blocks_available, ..room };
        for (statvfs, need, errno) in [
            (room, Need::Inode, None),
            (room, Need::Bytes(0), None),
            (room, Need::Bytes(1 << 20), None),
            (room, Need::Bytes((1 << 20) + 1), full),
            (blocks(255), Need::Bytes(0), full),
            (blocks(255), Need::Inode, full),
            (blocks(u64::MAX), Need::Bytes(u64::MAX - SLACK_BYTES), None),
            (StatVfs { files_available: 0, ..room }, Need::Inode, full),
            // A write to an existing file needs no inode.
            (StatVfs { files_available: 0, ..room }, Need::Bytes(0), None),
            (StatVfs { files: 0, files_available: 0, ..room }, Need::Inode, None),
            (StatVfs { fragment_size: 0, ..blocks(1) }, Need::Bytes(0), None),
        ] {
            assert_eq!(no_room(&statvfs, need), errno, "{statvfs:?}");
        }
        let read_only = StatVfs { flags: StatVfs::READ_ONLY, ..StatVfs::default() };
        assert_eq!(no_room(&read_only, Need::Inode), Some(Errno::EROFS));
    }
}
