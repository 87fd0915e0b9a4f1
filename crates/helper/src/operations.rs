//! The system calls of each request.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use base::{Allocation, FileKind, Mutex, Seek, SetXattr};
use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use sftp::codec::{
    FallocateMode, FileAttrs, FileContent, MAX_XATTR_BYTES, OpenFlags, RenameFlags as RenameBits,
    Reply, SeekOffset, Whence, XattrFlags, XattrNames, XattrValue,
};
use sftp::{Limits, NameEntry, UsersGroups};

use crate::attributes::{change, of_open, statvfs};
use crate::digests::version;
use crate::directory::{Listing, query_entries};
use crate::handles::{Directory, File, Open};
use crate::paths::{Entry, is_in_memory, native};
use crate::schedule::Resource;
use crate::server::{MAX_IO_BYTES, Server, is_large};
use crate::status::{Failure, Result, success};

/// Entries that [`Server::dirxattrs`] queries together.
const DIRXATTRS_BATCH: usize = 500;

/// Longest file that is sent whole, so that the reply is no longer than the longest packet.
const MAX_WHOLE_FILE_BYTES: usize = 254 << 10;

/// Bytes that one system call copies, so that a copy can be seen to go on.
const COPY_BYTES: usize = 1 << 20;

/// Bytes that are copied at once where the kernel copies none. Each such request in flight has a
/// buffer.
const COPY_BUFFER_BYTES: usize = 64 << 10;

impl Server {
    /// `None` if that would wait for another process, without `release`.
    pub(crate) fn open(
        &self,
        path: &[u8],
        flags: OpenFlags,
        attrs: &FileAttrs,
        release: Option<&dyn Fn()>,
    ) -> Result<Option<Reply>> {
        self.handles.check_room()?;
        let mode = Mode::from_raw_mode(attrs.permissions.unwrap_or(0o666) & 0o7777);
        // `NONBLOCK`, or the open of a FIFO would wait for its other end.
        let native = native_flags(flags)? | OFlags::NOCTTY | OFlags::NONBLOCK;
        let frees = native.contains(OFlags::TRUNC) && !native.contains(OFlags::EXCL);
        let opened = match release.filter(|_| frees).and_then(|_| self.large(path, true)) {
            Some(_) => Err(Errno::AGAIN),
            None => self.paths.open(path, native, mode),
        };
        let fd = match (opened, release) {
            // Another process has a lease on the file (fcntl(2)), or it is a large one.
            (Err(Errno::AGAIN), None) => return Ok(None),
            (Err(Errno::AGAIN), Some(release)) if !native.contains(OFlags::EXCL) => {
                match self.paths.open_leased(path, native, release)? {
                    Some(fd) => fd,
                    // A large file delays other requests.
                    None => self.paths.open(path, native, mode)?,
                }
            }
            (opened, _) => opened?,
        };
        let stat = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            rustix::fs::fcntl_setfl(&fd, native & OFlags::APPEND)?;
        }
        let file_system = self.paths.file_system(&fd);
        // What is written there leads out of the root: into the memory of this process.
        if self.paths.has_root()
            && native.intersects(OFlags::WRONLY | OFlags::RDWR)
            && file_system.is_some_and(|it| self.paths.is_procfs(it.device, &fd))
        {
            return Err(Errno::ACCESS.into());
        }
        let file = File { fd, inode: inode(&stat), opened: Instant::now(), file_system };
        Ok(Some(Reply::Handle(self.handles.insert(Open::File(Arc::new(file)))?)))
    }

    /// Closes a handle. Some file systems report a failed write only here.
    pub(crate) fn close(&self, handle: &[u8]) -> Result<()> {
        let open = self.handles.remove(handle)?;
        self.locks.closed(handle);
        if let Open::File(file) = open
            && let Some(file) = Arc::into_inner(file)
        {
            close(file.fd)?;
        }
        Ok(())
    }

    /// The number of bytes read; `None` if the read would wait for the disk.
    pub(crate) fn read(
        &self,
        handle: &[u8],
        offset: u64,
        len: u32,
        nowait: bool,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        let file = self.handles.file(handle)?;
        let buffer_len = len.min(MAX_IO_BYTES) as usize;
        let read = read_at(&file.fd, offset, nowait, &mut buffer[..buffer_len])?;
        if read == Some(0) && len > 0 {
            return Err(Failure::End);
        }
        Ok(read)
    }

    /// Attributes and content of a regular file; `None` if that would wait for the disk.
    pub(crate) fn read_file(
        &self,
        path: &[u8],
        max_bytes: u32,
        follow: bool,
        nowait: bool,
        buffer: &mut [u8],
    ) -> Result<Option<Reply>> {
        // Of another type, it is opened without an effect.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let nofollow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let file = self.paths.open(path, flags | nofollow, Mode::empty())?;
        let before = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        let size = usize::try_from(before.st_size).unwrap_or(usize::MAX);
        let mut is_whole = size <= (max_bytes as usize).min(MAX_WHOLE_FILE_BYTES);
        if is_whole {
            match read_at(&file, 0, nowait, &mut buffer[..size])? {
                None => return Ok(None),
                Some(len) => is_whole = len == size,
            }
        }
        // After the read, which sets the time of access.
        let attrs = self.attributes(&file)?;
        is_whole &= version(&rustix::fs::fstat(&file)?) == version(&before);
        let data = is_whole.then(|| Bytes::copy_from_slice(&buffer[..size]));
        Ok(Some(Reply::extended(&FileContent { attrs, data })))
    }

    pub(crate) fn write(&self, handle: &[u8], offset: u64, data: &[u8]) -> Result<()> {
        let file = self.handles.file(handle)?;
        let _change = self.change(&file)?;
        let (mut offset, mut data) = (offset, data);
        while !data.is_empty() {
            // A file opened for appending ignores the offset.
            let written = match rustix::io::pwrite(&file.fd, data, offset) {
                Err(Errno::INTR) => continue,
                written => written?,
            };
            if written == 0 {
                return Err(Errno::IO.into());
            }
            data = &data[written..];
            offset = offset.checked_add(written as u64).ok_or(Errno::FBIG)?;
        }
        Ok(())
    }

    pub(crate) fn stat(&self, path: &[u8], follow: bool) -> Result<Reply> {
        let pinned = self.paths.pin(path, follow)?;
        Ok(Reply::Attrs(self.attributes(&pinned)?))
    }

    /// The attributes of an open file, with the fields that replies have.
    pub(crate) fn attributes(&self, file: &OwnedFd) -> Result<FileAttrs> {
        Ok(of_open(file, self.fields(), &self.paths)?)
    }

    pub(crate) fn fstat(&self, handle: &[u8]) -> Result<Reply> {
        let file = self.handles.file(handle)?;
        Ok(Reply::Attrs(self.attributes(&file.fd)?))
    }

    /// `None` if that would wait for another process, without `release`.
    pub(crate) fn setstat(
        &self,
        path: &[u8],
        attrs: &FileAttrs,
        follow: bool,
        release: Option<&dyn Fn()>,
    ) -> Result<Option<Reply>> {
        let (pinned, change) = (self.paths.pin(path, follow)?, change(attrs));
        if let (Some(release), Some(_)) = (release, attrs.size)
            && self.paths.file_system(&pinned).is_none()
            && is_large(&pinned)
        {
            release();
        }
        match (local::set_pinned_nowait(&pinned, &change), release) {
            // Another process has a lease on the file.
            (Err(base::Errno::EAGAIN), None) => return Ok(None),
            (Err(base::Errno::EAGAIN), Some(release)) => {
                release();
                local::set_pinned(&pinned, &change)?;
            }
            (set, _) => set?,
        }
        Ok(Some(success()))
    }

    pub(crate) fn fsetstat(
        &self,
        handle: &[u8],
        attrs: &FileAttrs,
        release: Option<&dyn Fn()>,
    ) -> Result<()> {
        let file = self.handles.file(handle)?;
        let _change = self.change(&file)?;
        if let (Some(release), Some(_), None) = (release, attrs.size, file.file_system)
            && is_large(&file.fd)
        {
            release();
        }
        Ok(local::set_opened(&file.fd, &change(attrs))?)
    }

    pub(crate) fn opendir(&self, id: u32, path: &[u8]) -> Result<Reply> {
        let handle = self.handles.insert_directory(id, || {
            self.handles.check_room()?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let fd = self.paths.open(path, flags, Mode::empty())?;
            let is_root = self.paths.is_root(&fd)?;
            let file_system = self.paths.file_system(&fd);
            let listing = Mutex::new(Listing::new(fd, file_system.is_none(), is_root)?);
            Ok(Directory { listing, opened_by: id, file_system })
        })?;
        Ok(Reply::Handle(handle))
    }

    pub(crate) fn readdir(&self, handle: &[u8]) -> Result<Reply> {
        let directory = self.handles.listed(handle)?;
        let mut listing = directory.listing.lock();
        Ok(Reply::Names(listing.next(self.fields(), &self.paths)?))
    }

    pub(crate) fn remove(&self, path: &[u8], release: Option<&dyn Fn()>) -> Result<()> {
        let entry = self.paths.entry(path)?;
        self.freeing(path, release, || {
            rustix::fs::unlinkat(entry.dir(), entry.name, AtFlags::empty())
        })
    }

    /// Executes a `change` by which the file at `path` may lose its last name. If it is a large one,
    /// it is freed later, when it is closed here, after a call of `release`.
    fn freeing(
        &self,
        path: &[u8],
        release: Option<&dyn Fn()>,
        change: impl FnOnce() -> rustix::io::Result<()>,
    ) -> Result<()> {
        let file = release.and_then(|release| Some((release, self.large(path, false)?)));
        change()?;
        if let Some((release, file)) = file {
            release();
            drop(file);
        }
        Ok(())
    }

    /// The entry at `path`, if it is a large file of a local file system.
    fn large(&self, path: &[u8], follow: bool) -> Option<OwnedFd> {
        if self.paths.file_system_at(path, follow).is_some() {
            return None;
        }
        self.paths.pin(path, follow).ok().filter(is_large)
    }

    pub(crate) fn mkdir(&self, path: &[u8], attrs: &FileAttrs) -> Result<()> {
        let entry = self.paths.entry(path)?;
        let mode = Mode::from_raw_mode(attrs.permissions.unwrap_or(0o777) & 0o7777);
        Ok(rustix::fs::mkdirat(entry.dir(), entry.name, mode)?)
    }

    pub(crate) fn rmdir(&self, path: &[u8]) -> Result<()> {
        let entry = self.paths.entry(path)?;
        Ok(rustix::fs::unlinkat(entry.dir(), entry.name, AtFlags::REMOVEDIR)?)
    }

    /// A rename that fails if `to` exists.
    pub(crate) fn rename_new(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let (old, new) = (self.paths.entry(from)?, self.paths.entry(to)?);
        let noreplace = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(old.dir(), old.name, new.dir(), new.name, noreplace) {
            // The file system has no such rename.
            Err(Errno::INVAL | Errno::NOSYS) => {}
            done => return Ok(done?),
        }
        rename_by_link(&old, &new, || {
            rustix::fs::linkat(old.dir(), old.name, new.dir(), new.name, AtFlags::empty())
        })
    }

    pub(crate) fn rename(&self, from: &[u8], to: &[u8], release: Option<&dyn Fn()>) -> Result<()> {
        let (old, new) = (self.paths.entry(from)?, self.paths.entry(to)?);
        self.freeing(to, release, || rustix::fs::renameat(old.dir(), old.name, new.dir(), new.name))
    }

    pub(crate) fn readlink(&self, path: &[u8]) -> Result<Reply> {
        let pinned = self.paths.pin(path, false)?;
        // An empty path is refused with `ENOENT` where the descriptor is not of a link.
        let target = rustix::fs::readlinkat(&pinned, "", Vec::new())
            .map_err(|errno| if errno == Errno::NOENT { Errno::INVAL } else { errno })?;
        Ok(one_name(target.into_bytes()))
    }

    pub(crate) fn symlink(&self, target: &[u8], link: &[u8]) -> Result<()> {
        let entry = self.paths.entry(link)?;
        Ok(rustix::fs::symlinkat(target, entry.dir(), entry.name)?)
    }

    pub(crate) fn hardlink(&self, existing: &[u8], new: &[u8]) -> Result<()> {
        let (old, new) = (self.paths.entry(existing)?, self.paths.entry(new)?);
        let none = AtFlags::empty();
        Ok(rustix::fs::linkat(old.dir(), old.name, new.dir(), new.name, none)?)
    }

    pub(crate) fn realpath(&self, path: &[u8]) -> Result<Reply> {
        Ok(one_name(self.paths.real(path)?))
    }

    /// As REALPATH, with `~` for the home of the user, and `~NAME` for that of another one.
    pub(crate) fn expand_path(&self, path: &[u8]) -> Result<Reply> {
        let Some(rest) = path.strip_prefix(b"~") else { return self.realpath(path) };
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let (user, below) = rest.split_at(end);
        self.realpath(&[&self.home(user)?[..], below].concat())
    }

    pub(crate) fn home_directory(&self, user: &[u8]) -> Result<Reply> {
        Ok(one_name(self.home(user)?))
    }

    /// The home of a user; of the user of this process for an empty name. With a root there is no
    /// other home than it.
    fn home(&self, user: &[u8]) -> Result<Vec<u8>> {
        use std::os::unix::ffi::OsStrExt;
        if self.paths.has_root() {
            return Ok(b"/".to_vec());
        }
        let found = match user {
            [] => nix::unistd::User::from_uid(nix::unistd::Uid::current()),
            _ => nix::unistd::User::from_name(&native(user).to_string_lossy()),
        };
        let found = found.map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        let user = found.ok_or(Errno::NOENT)?;
        Ok(user.dir.as_os_str().as_bytes().to_vec())
    }

    pub(crate) fn statvfs(&self, path: &[u8]) -> Result<Reply> {
        let pinned = self.paths.pin(path, true)?;
        Ok(Reply::extended(&statvfs(&pinned)?))
    }

    pub(crate) fn fstatvfs(&self, handle: &[u8]) -> Result<Reply> {
        Ok(Reply::extended(&statvfs(&self.handles.file(handle)?.fd)?))
    }

    /// The reply to a FSYNC of this file.
    pub(crate) fn sync(file: Result<Arc<File>>) -> Reply {
        let synced = file.and_then(|file| Ok(rustix::fs::fsync(&file.fd)?));
        synced.map_or_else(|failure| failure.reply(), |()| success())
    }

    /// Copies `len` bytes, or all up to the end of the file if it is zero.
    pub(crate) fn copy(
        &self,
        from: &[u8],
        from_offset: u64,
        len: u64,
        to: &[u8],
        to_offset: u64,
    ) -> Result<()> {
        let (source, target) = (self.handles.file(from)?, self.handles.file(to)?);
        let _change = self.change(&target)?;
        let mut left = if len == 0 { u64::MAX } else { len };
        let (mut at, mut put) = (from_offset, to_offset);
        let overlap = at < put.saturating_add(left) && put < at.saturating_add(left);
        if source.inode == target.inode && overlap {
            return Err(Errno::INVAL.into());
        }
        let mut buffer = Vec::new();
        while left > 0 {
            let most = if buffer.is_empty() { COPY_BYTES } else { buffer.len() };
            let step = left.min(most as u64) as usize;
            let copied = match buffer.is_empty() {
                true => copy_range(&source.fd, &mut at, &target.fd, &mut put, step),
                false => copy_bytes(&source.fd, &mut at, &target.fd, &mut put, &mut buffer[..step]),
            };
            match copied {
                // The file systems cannot do that, or one of the files is open for appending.
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::BADF)
                    if buffer.is_empty() =>
                {
                    buffer = vec![0; COPY_BUFFER_BYTES];
                }
                // As OpenSSH's server: with a length, the end of the file is an error.
                Ok(0) if len != 0 => return Err(Failure::End),
                Ok(0) => break,
                copied => left -= copied? as u64,
            }
        }
        Ok(())
    }

    pub(crate) fn getxattr(&self, path: &[u8], name: &[u8], flags: XattrFlags) -> Result<Reply> {
        let pinned = self.pin_for_xattr(path, flags, 0)?;
        Ok(Reply::extended(&XattrValue(local::get_xattr(&pinned, name)?)))
    }

    pub(crate) fn setxattr(
        &self,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let pinned = self.pin_for_xattr(path, flags, XattrFlags::CREATE | XattrFlags::REPLACE)?;
        let mode = match flags.0 & !XattrFlags::FOLLOW {
            0 => SetXattr::Either,
            XattrFlags::CREATE => SetXattr::Create,
            XattrFlags::REPLACE => SetXattr::Replace,
            _ => return Err(Errno::INVAL.into()),
        };
        Ok(local::set_xattr(&pinned, name, value, mode)?)
    }

    pub(crate) fn listxattr(&self, path: &[u8], flags: XattrFlags) -> Result<Reply> {
        let pinned = self.pin_for_xattr(path, flags, 0)?;
        Ok(Reply::extended(&XattrNames(local::list_xattrs(&pinned)?)))
    }

    pub(crate) fn removexattr(&self, path: &[u8], name: &[u8], flags: XattrFlags) -> Result<()> {
        let pinned = self.pin_for_xattr(path, flags, 0)?;
        Ok(local::remove_xattr(&pinned, name)?)
    }

    /// The entries of a directory that have extended attributes, or whose attributes cannot be
    /// listed. `E2BIG` if there are more than a reply may contain.
    pub(crate) fn dirxattrs(&self, path: &[u8]) -> Result<Reply> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = self.paths.open(path, flags, Mode::empty())?;
        let is_local = self.paths.file_system(&fd).is_none();
        let mut dir = Dir::new(fd)?;
        let (mut names, mut len) = (Vec::new(), 0);
        loop {
            let batch = dir.by_ref().take(DIRXATTRS_BATCH);
            let name = |entry: DirEntry| Bytes::copy_from_slice(entry.file_name().to_bytes());
            let batch: Vec<_> =
                batch.map(|entry| entry.map(name)).collect::<rustix::io::Result<_>>()?;
            if batch.is_empty() {
                break;
            }
            let fd = dir.fd()?;
            let may_have = query_entries(&batch, is_local, |name| match name {
                b"." | b".." => false,
                name => local::may_have_xattrs(fd, name),
            });
            for (name, _) in batch.into_iter().zip(may_have).filter(|(_, may_have)| *may_have) {
                len += name.len() + 1;
                if len > MAX_XATTR_BYTES {
                    return Err(Errno::TOOBIG.into());
                }
                names.push(name);
            }
        }
        Ok(Reply::extended(&XattrNames(names)))
    }

    /// `EINVAL` for any other flags than these and [`XattrFlags::FOLLOW`].
    fn pin_for_xattr(&self, path: &[u8], flags: XattrFlags, other_flags: u32) -> Result<OwnedFd> {
        if flags.0 & !(XattrFlags::FOLLOW | other_flags) != 0 {
            return Err(Errno::INVAL.into());
        }
        Ok(self.paths.pin(path, flags.0 & XattrFlags::FOLLOW != 0)?)
    }

    pub(crate) fn mknod(&self, path: &[u8], mode: u32, device: (u32, u32)) -> Result<()> {
        let kind = FileKind::from_mode(mode).ok_or(Errno::INVAL)?;
        // A device leads out of the root.
        if self.paths.has_root() && matches!(kind, FileKind::BlockDevice | FileKind::CharDevice) {
            return Err(Errno::PERM.into());
        }
        let entry = self.paths.entry(path)?;
        Ok(local::make_node((entry.dir(), entry.name), kind, mode & 0o7777, device)?)
    }

    /// Fails where the file system cannot do it in one step.
    pub(crate) fn renameat2(
        &self,
        from: &[u8],
        to: &[u8],
        flags: RenameBits,
        release: Option<&dyn Fn()>,
    ) -> Result<()> {
        let native = match flags {
            RenameBits(0) => RenameFlags::empty(),
            RenameBits::NOREPLACE => RenameFlags::NOREPLACE,
            RenameBits::EXCHANGE => RenameFlags::EXCHANGE,
            RenameBits(_) => return Err(Errno::INVAL.into()),
        };
        let (old, new) = (self.paths.entry(from)?, self.paths.entry(to)?);
        self.freeing(to, release, || {
            rustix::fs::renameat_with(old.dir(), old.name, new.dir(), new.name, native)
        })
    }

    pub(crate) fn fallocate(
        &self,
        handle: &[u8],
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let keep_size = mode.0 & FallocateMode::KEEP_SIZE != 0;
        let how = match mode.0 & !FallocateMode::KEEP_SIZE {
            0 => Allocation::Reserve { keep_size },
            FallocateMode::PUNCH_HOLE if keep_size => Allocation::PunchHole,
            FallocateMode::ZERO_RANGE => Allocation::Zero { keep_size },
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        let file = self.handles.file(handle)?;
        let _change = self.change(&file)?;
        Ok(local::fallocate(&file.fd, how, offset, len)?)
    }

    pub(crate) fn lseek(&self, handle: &[u8], offset: u64, whence: Whence) -> Result<Reply> {
        let what = match whence {
            Whence::DATA => Seek::Data,
            Whence::HOLE => Seek::Hole,
            Whence(_) => return Err(Errno::INVAL.into()),
        };
        let found = local::seek(&self.handles.file(handle)?.fd, offset, what)?;
        Ok(Reply::extended(&SeekOffset(found)))
    }

    pub(crate) fn limits(&self) -> Reply {
        let limits = Limits {
            packet_bytes: sftp::codec::MAX_PACKET_BYTES as u64,
            read_bytes: MAX_IO_BYTES.into(),
            write_bytes: MAX_IO_BYTES.into(),
            open_handles: self.handles.room.max as u64,
        };
        Reply::extended(&limits)
    }
}

/// A rename that fails if `new` exists, on a file system that has none. `link` gives the file this
/// name, too.
fn rename_by_link(
    old: &Entry<'_>,
    new: &Entry<'_>,
    link: impl FnOnce() -> rustix::io::Result<()>,
) -> Result<()> {
    let found = rustix::fs::statat(old.dir(), old.name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
        match link() {
            // The file system has no links, or permits none to this file.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV | Errno::MLINK) => {}
            linked => {
                linked?;
                return Ok(rustix::fs::unlinkat(old.dir(), old.name, AtFlags::empty())?);
            }
        }
    }
    match rustix::fs::statat(new.dir(), new.name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(rustix::fs::renameat(old.dir(), old.name, new.dir(), new.name)?),
        Ok(_) => Err(Errno::EXIST.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// The names of users and groups; empty for one without. `E2BIG` if they do not fit into a reply.
pub(crate) fn names_by_id(uids: &[u32], gids: &[u32]) -> Result<Reply> {
    let mut len = 0;
    let mut add = |name: Option<String>| {
        let name = Bytes::from(name.unwrap_or_default());
        len += size_of::<u32>() + name.len();
        if len > MAX_IO_BYTES as usize { Err(Errno::TOOBIG) } else { Ok(name) }
    };
    let user = |uid: &u32| nix::unistd::User::from_uid((*uid).into()).ok().flatten();
    let group = |gid: &u32| nix::unistd::Group::from_gid((*gid).into()).ok().flatten();
    let users = uids.iter().map(|id| add(user(id).map(|it| it.name)));
    let users = users.collect::<rustix::io::Result<_>>()?;
    let groups = gids.iter().map(|id| add(group(id).map(|it| it.name)));
    let groups = groups.collect::<rustix::io::Result<_>>()?;
    Ok(Reply::Extended(UsersGroups { users, groups }.encode()))
}

/// Reads at `offset`, with one system call. `None` if it would wait for the disk, also before the
/// buffer is full.
fn read_at(
    file: &OwnedFd,
    offset: u64,
    nowait: bool,
    buffer: &mut [u8],
) -> rustix::io::Result<Option<usize>> {
    // `preadv2` would take the last one for the position of the descriptor.
    if i64::try_from(offset).is_err() {
        return Err(Errno::INVAL);
    }
    if !nowait {
        return retry_on_intr(|| rustix::io::pread(file, &mut *buffer, offset)).map(Some);
    }
    let wanted = buffer.len();
    let slices = &mut [std::io::IoSliceMut::new(buffer)];
    match rustix::io::preadv2(file, slices, offset, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP) if is_in_memory(file)? => read_at(file, offset, false, buffer),
        Err(Errno::AGAIN | Errno::OPNOTSUPP) => Ok(None),
        Ok(read) if read < wanted && !is_end(file, offset + read as u64)? => Ok(None),
        read => read.map(Some),
    }
}

/// Whether the file ends at `offset`, or before it.
fn is_end(file: &OwnedFd, offset: u64) -> rustix::io::Result<bool> {
    Ok(u64::try_from(rustix::fs::fstat(file)?.st_size).is_ok_and(|size| offset >= size))
}

fn native_flags(flags: OpenFlags) -> Result<OFlags> {
    let has = |flag| flags.contains(flag);
    let mut native = match (has(OpenFlags::READ), has(OpenFlags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (true, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (false, false) => return Err(Errno::INVAL.into()),
    };
    native.set(OFlags::APPEND, has(OpenFlags::APPEND));
    native.set(OFlags::CREATE, has(OpenFlags::CREATE));
    native.set(OFlags::TRUNC, has(OpenFlags::TRUNCATE));
    native.set(OFlags::EXCL, has(OpenFlags::EXCLUSIVE));
    Ok(native)
}

#[allow(clippy::unnecessary_cast, reason = "on some machines these fields have other widths")]
fn inode(stat: &Stat) -> Resource {
    Resource::Inode(stat.st_dev as u64, stat.st_ino as u64)
}

/// A reply of one path.
fn one_name(name: Vec<u8>) -> Reply {
    let name: Bytes = name.into();
    let longname = name.clone();
    Reply::Names(vec![NameEntry { name, longname, attrs: FileAttrs::default() }])
}

/// Closes a descriptor, and returns the error that `close(2)` reports.
fn close(fd: OwnedFd) -> rustix::io::Result<()> {
    let closed = nix::unistd::close(fd);
    closed.map_err(|errno| Errno::from_raw_os_error(errno as i32))
}

fn copy_range(
    from: &OwnedFd,
    at: &mut u64,
    to: &OwnedFd,
    put: &mut u64,
    len: usize,
) -> rustix::io::Result<usize> {
    rustix::fs::copy_file_range(from, Some(at), to, Some(put), len)
}

fn copy_bytes(
    from: &OwnedFd,
    at: &mut u64,
    to: &OwnedFd,
    put: &mut u64,
    buffer: &mut [u8],
) -> rustix::io::Result<usize> {
    let read = retry_on_intr(|| rustix::io::pread(from.as_fd(), &mut *buffer, *at))?;
    let mut data = &buffer[..read];
    while !data.is_empty() {
        let written = retry_on_intr(|| rustix::io::pwrite(to, data, *put))?;
        *put += written as u64;
        data = &data[written..];
    }
    *at += read as u64;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::handles::Room;
    use crate::options::Options;
    use crate::paths::Paths;

    /// A client may request many at the same time.
    #[test]
    fn a_copy_by_reading_and_writing_takes_little_memory() {
        const LEN: u64 = 1 << 20;
        // Write calls of this thread.
        let writes = || {
            let counters = fs::read_to_string("/proc/thread-self/io").ok()?;
            let line = counters.lines().find_map(|line| line.strip_prefix("syscw: "));
            line.map(|count| count.parse::<u64>().unwrap())
        };
        let dir = tempfile::tempdir().unwrap();
        let content = vec![7; LEN as usize];
        fs::write(dir.path().join("from"), &content).unwrap();
        fs::write(dir.path().join("to"), "").unwrap();
        let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
        let server = Server::new(&options, Arc::new(Room::new(2))).unwrap();
        let open = |path, flags| {
            let opened = server.open(path, flags, &FileAttrs::default(), None);
            let Ok(Some(Reply::Handle(handle))) = opened else { panic!("{opened:?}") };
            handle
        };
        let from = open(b"from", OpenFlags::READ);
        // The kernel copies nothing into a file that is open for appending.
        let to = open(b"to", OpenFlags::WRITE | OpenFlags::APPEND);
        let Some(before) = writes() else {
            eprintln!("skipped: the kernel does not count write calls");
            return;
        };
        server.copy(from.as_bytes(), 0, LEN, to.as_bytes(), 0).unwrap();
        let count = writes().unwrap() - before;
        assert!(count >= LEN / (64 << 10), "{count}");
        assert!(fs::read(dir.path().join("to")).unwrap() == content);
    }

    /// Many FUSE file systems have neither links nor such a rename.
    #[test]
    fn a_file_is_renamed_where_no_link_can_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        let rename = |errno| {
            let (old, new) = (paths.entry(b"old").unwrap(), paths.entry(b"new").unwrap());
            rename_by_link(&old, &new, || Err(errno))
        };
        let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
        for errno in [Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS, Errno::XDEV, Errno::MLINK] {
            fs::write(&old, "content").unwrap();
            rename(errno).unwrap();
            assert!(!old.exists(), "{errno:?}");
            assert_eq!(fs::read_to_string(&new).unwrap(), "content", "{errno:?}");
            fs::write(&old, "other").unwrap();
            assert_eq!(rename(errno), Err(Failure::System(Errno::EXIST)), "{errno:?}");
            assert_eq!(fs::read_to_string(&new).unwrap(), "content", "{errno:?}");
            fs::remove_file(&new).unwrap();
        }
        assert_eq!(rename(Errno::NOSPC), Err(Failure::System(Errno::NOSPC)));
        assert!(old.exists() && !new.exists());
    }
}
