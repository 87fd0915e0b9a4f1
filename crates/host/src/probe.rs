//! What went wrong, found out by asking further where SFTP says too little.
//!
//! OpenSSH's server answers FAILURE for most errors, NO_SUCH_FILE for `ENOTDIR` too, and
//! BAD_MESSAGE for `ENAMETOOLONG`. After such an answer, and only then, the paths and their file
//! systems are looked at. The answers can be overtaken by what others do on the server; then the
//! errno is the one that held when it was looked at.

use std::sync::Arc;

use base::{Errno, FileKind, RemotePath};
use sftp::{Error, FileAttrs, RemoteHandle, StatVfs, StatusCode};

use crate::handles::OpenHandle;
use crate::session::Session;
use crate::{attr, errno};

/// Longest name where the server does not say, in bytes: what nearly all of Unix has.
const DEFAULT_NAME_MAX: usize = 255;

/// Handles that OpenSSH's server needs for itself beyond those it counts.
const SPARE_HANDLES: u64 = 2;

/// A file system with less than this available, in bytes, is full for a request that needs room
/// and failed for no reason that is told. Block allocators keep the last blocks back: ext4 and XFS
/// refuse while some are available, and a directory of XFS wants up to 50 blocks at once.
const SLACK_BYTES: u64 = 1 << 20;

/// The smallest limit of a file's size that is in use today, in bytes: that of vfat. A file system
/// makes a file longer without allocating anything; so where only that failed, past this size, the
/// size is the reason.
const SMALLEST_LIMIT_BYTES: u64 = u32::MAX as u64;

/// What a failed request needed of its file system.
#[derive(Clone, Copy)]
enum Need {
    /// Room for these bytes.
    Bytes(u64),
    /// A new inode, and room for it in a directory.
    Inode,
}

/// What is at a path now.
pub(crate) enum There {
    /// Nothing.
    Nothing,
    /// Something of this kind.
    Something(Option<FileKind>),
    /// It cannot be told.
    Unknown,
}

impl There {
    fn new(answer: sftp::Result<FileAttrs>) -> There {
        match answer {
            Ok(attrs) => There::Something(attr::kind(&attrs)),
            Err(error) if error.status() == Some(StatusCode::NO_SUCH_FILE) => There::Nothing,
            Err(_) => There::Unknown,
        }
    }

    fn is_something(&self) -> bool {
        matches!(self, There::Something(_))
    }

    fn is_dir(&self) -> bool {
        matches!(self, There::Something(Some(FileKind::Directory)))
    }

    fn is_other_than_dir(&self) -> bool {
        self.is_something() && !self.is_dir()
    }
}

/// Looks into failures of one session.
#[derive(Clone, Copy)]
pub(crate) struct Probe<'a>(pub(crate) &'a Arc<Session>);

impl Probe<'_> {
    /// What is to be said when nothing better was found: a probe that was cut off has found nothing,
    /// and whoever asks again over a new connection is told what holds there.
    fn unless_lost(self, errno: Errno) -> Errno {
        self.0.client.end().map_or(errno, |why| errno::from_sftp(&why))
    }

    async fn look(self, path: &RemotePath) -> There {
        match self.0.path(path) {
            Ok(full) => There::new(self.0.client.lstat(&full).await),
            Err(_) => There::Unknown,
        }
    }

    async fn figures(self, path: &RemotePath) -> Option<StatVfs> {
        let full = self.0.path(path).ok()?;
        self.0.client.statvfs(&full).await.ok()
    }

    /// The file system that holds the name `path`.
    async fn figures_of_parent(self, path: &RemotePath) -> Option<StatVfs> {
        self.figures(&path.parent()?).await
    }

    /// What any operation on `path` may meet: a component that is no directory or too long. To be
    /// asked only after an answer of the server.
    pub(crate) async fn general(self, error: &Error, path: &RemotePath) -> Errno {
        match error.status() {
            Some(StatusCode::NO_SUCH_FILE) => self.missing(path).await,
            Some(StatusCode::BAD_MESSAGE) if self.has_long_name(path).await => Errno::ENAMETOOLONG,
            _ => errno::from_sftp(error),
        }
    }

    /// `ENOTDIR` when what should be a directory on the way to `path` is none, else `ENOENT`.
    async fn missing(self, path: &RemotePath) -> Errno {
        let mut above = path.parent();
        while let Some(dir) = above {
            match self.look(&dir).await {
                There::Nothing => above = dir.parent(),
                // A link on the way may lead to no directory; the server has said that the
                // path is not there, and that is all that can be told.
                There::Something(Some(FileKind::Directory | FileKind::Symlink) | None)
                | There::Unknown => return self.unless_lost(Errno::ENOENT),
                There::Something(_) => return Errno::ENOTDIR,
            }
        }
        self.unless_lost(Errno::ENOENT)
    }

    async fn has_long_name(self, path: &RemotePath) -> bool {
        let longest = path.names().map(<[u8]>::len).max().unwrap_or(0);
        if longest > DEFAULT_NAME_MAX {
            return true;
        }
        let figures = self.figures_of_parent(path).await;
        figures.is_some_and(|figures| figures.name_max > 0 && longest as u64 > figures.name_max)
    }

    /// After a failed creation of the name `path`.
    pub(crate) async fn create(self, error: &Error, path: &RemotePath) -> Errno {
        if path.is_root() {
            return Errno::EEXIST;
        }
        match error.status() {
            Some(StatusCode::FAILURE) => {
                if self.look(path).await.is_something() {
                    return Errno::EEXIST;
                }
                let found = self.full_or_read_only(path, Need::Inode).await;
                found.unwrap_or_else(|| self.unless_lost(Errno::EPERM))
            }
            _ => self.general(error, path).await,
        }
    }

    /// As [`Probe::create`], of a file that was to be open, where `open_handles` were open.
    pub(crate) async fn create_open(
        self,
        error: &Error,
        path: &RemotePath,
        open_handles: usize,
    ) -> Errno {
        match error.status() {
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
        no_room(&self.figures_of_parent(path).await?, need)
    }

    /// After a failed opening of what is there, of which `open_handles` were open.
    pub(crate) async fn open(self, error: &Error, path: &RemotePath, open_handles: usize) -> Errno {
        match error.status() {
            Some(StatusCode::FAILURE) => {
                if self.is_out_of_handles(open_handles) {
                    return Errno::EMFILE;
                }
                match self.look(path).await {
                    There::Something(Some(FileKind::Directory)) => Errno::EISDIR,
                    There::Something(Some(FileKind::Symlink)) => Errno::ELOOP,
                    There::Something(Some(FileKind::Regular) | None) | There::Unknown => {
                        match self.figures(path).await {
                            Some(figures) if is_read_only(&figures) => Errno::EROFS,
                            _ => self.unless_lost(Errno::EPERM),
                        }
                    }
                    There::Something(_) => Errno::ENXIO,
                    There::Nothing => Errno::ENOENT,
                }
            }
            _ => self.general(error, path).await,
        }
    }

    /// After a failed opening of a directory.
    pub(crate) async fn opendir(self, error: &Error, path: &RemotePath) -> Errno {
        match error.status() {
            Some(StatusCode::NO_SUCH_FILE | StatusCode::FAILURE) => match self.look(path).await {
                there if there.is_other_than_dir() => Errno::ENOTDIR,
                _ => self.open(error, path, 0).await,
            },
            _ => self.general(error, path).await,
        }
    }

    /// After a failed REMOVE.
    pub(crate) async fn unlink(self, error: &Error, path: &RemotePath) -> Errno {
        match error.status() {
            Some(StatusCode::FAILURE | StatusCode::PERMISSION_DENIED) => {
                if self.look(path).await.is_dir() {
                    return Errno::EISDIR;
                }
                self.read_only_or(error, path).await
            }
            _ => self.general(error, path).await,
        }
    }

    /// After a failed RMDIR.
    pub(crate) async fn rmdir(self, error: &Error, path: &RemotePath) -> Errno {
        match error.status() {
            Some(StatusCode::NO_SUCH_FILE) => match self.look(path).await {
                there if there.is_other_than_dir() => Errno::ENOTDIR,
                _ => self.general(error, path).await,
            },
            Some(StatusCode::FAILURE) => match self.look(path).await {
                there if there.is_other_than_dir() => Errno::ENOTDIR,
                _ if self.has_entries(path).await => Errno::ENOTEMPTY,
                _ => self.read_only_or(error, path).await,
            },
            _ => self.general(error, path).await,
        }
    }

    async fn read_only_or(self, error: &Error, path: &RemotePath) -> Errno {
        match self.figures_of_parent(path).await {
            Some(figures) if is_read_only(&figures) => Errno::EROFS,
            _ => self.unless_lost(errno::from_sftp(error)),
        }
    }

    /// Whether a directory has entries.
    async fn has_entries(self, path: &RemotePath) -> bool {
        let Ok(full) = self.0.path(path) else { return false };
        let Ok(handle) = self.0.client.opendir(&full).await else { return false };
        let open = OpenHandle::new(self.0.clone(), handle);
        let is_entry = |name: &[u8]| !matches!(name, b"." | b"..");
        match self.0.client.readdir(&open.handle).await {
            // `.` and `..` are two, and come first or at least in the same part.
            Ok(Some(names)) => names.iter().any(|entry| is_entry(&entry.name)),
            _ => false,
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
            error if error.status() == Some(StatusCode::OP_UNSUPPORTED) => return Errno::ENOSYS,
            _ => {}
        }
        match error.status() {
            Some(StatusCode::FAILURE) => {
                if self.look(new).await.is_something() {
                    return Errno::EEXIST;
                }
                if self.are_apart(existing, new).await {
                    return Errno::EXDEV;
                }
                let found = self.full_or_read_only(new, Need::Bytes(0)).await;
                found.unwrap_or_else(|| self.unless_lost(Errno::EPERM))
            }
            Some(StatusCode::PERMISSION_DENIED) => match self.look(existing).await {
                there if there.is_dir() => Errno::EPERM,
                _ => self.unless_lost(Errno::EACCES),
            },
            Some(StatusCode::NO_SUCH_FILE) => match self.look(existing).await {
                there if there.is_something() => self.missing(new).await,
                _ => self.missing(existing).await,
            },
            _ if self.has_long_name(new).await => self.general(error, new).await,
            _ => self.general(error, existing).await,
        }
    }

    /// Whether two names are on different file systems.
    async fn are_apart(self, one: &RemotePath, other: &RemotePath) -> bool {
        let figures = (self.figures_of_parent(one).await, self.figures_of_parent(other).await);
        matches!(figures, (Some(one), Some(other)) if one.fsid != other.fsid)
    }

    /// After a failed rename that was to replace.
    pub(crate) async fn rename(
        self,
        error: &Error,
        from: &RemotePath,
        to: &RemotePath,
        unexplained: Errno,
    ) -> Errno {
        match error.status() {
            Some(StatusCode::NO_SUCH_FILE | StatusCode::FAILURE) => {}
            _ if self.is_long_in_either(error, from, to).await => return Errno::ENAMETOOLONG,
            _ => return errno::from_sftp(error),
        }
        let (source, target) = (self.look(from).await, self.look(to).await);
        match (source, target) {
            (There::Nothing, _) => self.missing(from).await,
            (source, There::Nothing) => match self.missing_parent(to).await {
                Some(errno) => errno,
                None => self.rename_between(error, &source, from, to, unexplained).await,
            },
            (source, target) if source.is_dir() && target.is_other_than_dir() => Errno::ENOTDIR,
            (source, target) if source.is_other_than_dir() && target.is_dir() => Errno::EISDIR,
            (_, target) if target.is_dir() && self.has_entries(to).await => Errno::ENOTEMPTY,
            (source, _) => self.rename_between(error, &source, from, to, unexplained).await,
        }
    }

    async fn is_long_in_either(self, error: &Error, from: &RemotePath, to: &RemotePath) -> bool {
        error.status() == Some(StatusCode::BAD_MESSAGE)
            && (self.has_long_name(from).await || self.has_long_name(to).await)
    }

    /// What is wrong with the directory in which `path` is to be.
    async fn missing_parent(self, path: &RemotePath) -> Option<Errno> {
        match self.look(&path.parent()?).await {
            There::Nothing => Some(self.missing(path).await),
            There::Something(Some(FileKind::Directory | FileKind::Symlink) | None)
            | There::Unknown => None,
            There::Something(_) => Some(Errno::ENOTDIR),
        }
    }

    /// What stands between two names that both could be.
    async fn rename_between(
        self,
        error: &Error,
        source: &There,
        from: &RemotePath,
        to: &RemotePath,
        unexplained: Errno,
    ) -> Errno {
        // A server that reports EINVAL as FAILURE.
        if source.is_dir() && to != from && to.is_below(from) {
            return Errno::EINVAL;
        }
        if self.are_apart(from, to).await {
            return Errno::EXDEV;
        }
        match error.status() {
            Some(StatusCode::FAILURE) => {
                let found = self.full_or_read_only(to, Need::Bytes(0)).await;
                found.unwrap_or_else(|| self.unless_lost(unexplained))
            }
            _ => self.unless_lost(errno::from_sftp(error)),
        }
    }

    /// After a failed change of attributes by path; of the size to `new_size`, if there is one.
    pub(crate) async fn setattr(
        self,
        error: &Error,
        path: &RemotePath,
        new_size: Option<u64>,
    ) -> Errno {
        match error.status() {
            Some(StatusCode::FAILURE) => match (self.figures(path).await, new_size) {
                (Some(figures), _) if is_read_only(&figures) => Errno::EROFS,
                (_, Some(size)) if self.is_too_large(size, path).await => Errno::EFBIG,
                (Some(figures), Some(_)) => {
                    let found = no_room(&figures, Need::Bytes(0));
                    found.unwrap_or_else(|| self.unless_lost(Errno::EPERM))
                }
                _ => self.unless_lost(Errno::EPERM),
            },
            // Only the owner may, and nothing else stands behind it but for the size.
            Some(StatusCode::PERMISSION_DENIED) if new_size.is_none() => Errno::EPERM,
            _ => self.general(error, path).await,
        }
    }

    /// Whether a file that did not grow to `size` is shorter, and this is more than some file
    /// systems have.
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
            // Where it grows, no room is needed.
            Errno::EIO | Errno::ENOSPC
                if error.status() == Some(StatusCode::FAILURE)
                    && size > SMALLEST_LIMIT_BYTES
                    && is_shorter(self.0.client.fstat(handle).await, size) =>
            {
                Errno::EFBIG
            }
            errno => errno,
        }
    }

    /// After `bytes` could not be written at `offset`; `None` for the end of the file.
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
        match (error.status(), offset) {
            (Some(StatusCode::BAD_MESSAGE), Some(offset)) if offset > SMALLEST_LIMIT_BYTES => {
                Errno::EFBIG
            }
            _ => self.handle(error, handle, name, bytes).await,
        }
    }

    /// After a handle of the file that is called `name` was closed, and the server said that
    /// something had failed. The handle is gone all the same.
    pub(crate) async fn close(self, error: &Error, name: Option<RemotePath>) -> Errno {
        match (error.status(), name) {
            (Some(StatusCode::FAILURE), Some(name)) => {
                let found = self.full_or_read_only(&name, Need::Bytes(0)).await;
                found.unwrap_or_else(|| self.unless_lost(Errno::EIO))
            }
            _ => errno::from_handle(error),
        }
    }

    /// After something failed through a handle of the file that is called `name`, and that may need
    /// room for `bytes`.
    pub(crate) async fn handle(
        self,
        error: &Error,
        handle: &RemoteHandle,
        name: Option<RemotePath>,
        bytes: u64,
    ) -> Errno {
        if error.status() != Some(StatusCode::FAILURE) {
            return errno::from_handle(error);
        }
        let figures = match (self.0.client.fstatvfs(handle).await, name) {
            (Ok(figures), _) => Some(figures),
            // The close of the handle may have been sent behind what has failed.
            (Err(error), Some(name)) if error.status().is_some() => {
                self.figures_of_parent(&name).await
            }
            (Err(_), _) => None,
        };
        match figures {
            Some(figures) => no_room(&figures, Need::Bytes(bytes)).unwrap_or(Errno::EIO),
            None => self.unless_lost(Errno::EIO),
        }
    }
}

/// Whether a file has less than `size` bytes.
fn is_shorter(answer: sftp::Result<FileAttrs>, size: u64) -> bool {
    answer.is_ok_and(|attrs| attrs.size.is_some_and(|now| now < size))
}

fn is_read_only(figures: &StatVfs) -> bool {
    figures.flags & StatVfs::READ_ONLY != 0
}

/// `EROFS`, or `ENOSPC` when what the request needed has run out. A file system that does not count
/// inodes reports a total of zero.
fn no_room(figures: &StatVfs, need: Need) -> Option<Errno> {
    let (bytes, inode) = match need {
        Need::Bytes(bytes) => (bytes, false),
        Need::Inode => (0, true),
    };
    let unit = [figures.fragment_size, figures.block_size, 4096];
    let unit = unit.into_iter().find(|bytes| *bytes > 0).unwrap_or(1);
    let available_bytes = figures.blocks_available.saturating_mul(unit);
    let no_inodes = inode && figures.files > 0 && figures.files_available == 0;
    if is_read_only(figures) {
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
        for (figures, need, errno) in [
            (room, Need::Inode, None),
            (room, Need::Bytes(0), None),
            (room, Need::Bytes(1 << 20), None),
            (room, Need::Bytes((1 << 20) + 1), full),
            (blocks(255), Need::Bytes(0), full),
            (blocks(255), Need::Inode, full),
            (blocks(u64::MAX), Need::Bytes(u64::MAX - SLACK_BYTES), None),
            (StatVfs { files_available: 0, ..room }, Need::Inode, full),
            // What is written into a file needs no inode.
            (StatVfs { files_available: 0, ..room }, Need::Bytes(0), None),
            (StatVfs { files: 0, files_available: 0, ..room }, Need::Inode, None),
            (StatVfs { fragment_size: 0, ..blocks(1) }, Need::Bytes(0), None),
        ] {
            assert_eq!(no_room(&figures, need), errno, "{figures:?}");
        }
        let read_only = StatVfs { flags: StatVfs::READ_ONLY, ..StatVfs::default() };
        assert_eq!(no_room(&read_only, Need::Inode), Some(Errno::EROFS));
    }
}
