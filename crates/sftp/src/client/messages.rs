//! The requests, named like the protocol's messages.

use std::sync::Arc;

use base::{LockKind, LockOwner, LockRange, StatVfs};
use bytes::Bytes;

use super::call::Call;
use super::pending::Expect;
use super::{Client, Packet};
use crate::codec::{
    Body, DigestAlgorithm, DirectAddress, DirectRequest, FallocateMode, FileAttrs, FileContent,
    FileDigest, Limits, LockFound, LockRequest, NameEntry, OpenFlags, RemoteHandle, RenameFlags,
    Reply, Request, SeekOffset, StatusCode, WatchEvents, WatchId, WatchRequest, Whence, XattrFlags,
    XattrNames, XattrValue,
};
use crate::error::{Error, Result};

/// The error for a reply of another type than expected. The table has rejected all replies of other
/// types, so this is always a STATUS.
fn failed<T>(reply: Reply) -> Result<T> {
    match reply {
        Reply::Status { code, message, errno } => Err(Error::Status { code, message, errno }),
        _ => Err(Error::Protocol("a reply of the wrong type".into())),
    }
}

/// Like [`failed`], but EOF is `None`.
fn ended<T>(reply: Reply) -> Result<Option<T>> {
    match reply {
        Reply::Status { code: StatusCode::EOF, .. } => Ok(None),
        other => failed(other),
    }
}

fn nothing(reply: Reply) -> Result<()> {
    match reply {
        Reply::Status { code: StatusCode::OK, .. } => Ok(()),
        other => failed(other),
    }
}

fn handle(reply: Reply) -> Result<RemoteHandle> {
    match reply {
        Reply::Handle(handle) => Ok(handle),
        other => failed(other),
    }
}

fn attrs(reply: Reply) -> Result<FileAttrs> {
    match reply {
        Reply::Attrs(attrs) => Ok(attrs),
        other => failed(other),
    }
}

fn data(reply: Reply) -> Result<Option<Bytes>> {
    match reply {
        Reply::Data(data) => Ok(Some(data)),
        other => ended(other),
    }
}

fn names(reply: Reply) -> Result<Option<Vec<NameEntry>>> {
    match reply {
        Reply::Names(names) => Ok(Some(names)),
        other => ended(other),
    }
}

fn path(reply: Reply) -> Result<Bytes> {
    match reply {
        Reply::Names(mut names) if names.len() == 1 => {
            // Copied: a path may be kept for long, and the packet is a slice of a chunk.
            names.pop().map_or_else(
                || Err(Error::Protocol("no name".into())),
                |entry| Ok(Bytes::copy_from_slice(&entry.name)),
            )
        }
        other => failed(other),
    }
}

fn body<T: Body>(reply: Reply) -> Result<T> {
    match reply {
        Reply::Extended(body) => Ok(T::decode(&body)?),
        other => failed(other),
    }
}

impl Client {
    /// Fails if the request belongs to an extension that the server does not offer.
    fn call<T>(
        &self,
        request: &Request<'_>,
        expect: Expect,
        finish: fn(Reply) -> Result<T>,
    ) -> Call<T> {
        match request.extension() {
            Some(extension) if !self.server.extensions.has(extension) => {
                Call::known(&self.shared, Err(Error::Unsupported(extension.name())))
            }
            _ => self.call_packet(Packet::new(request), expect, finish),
        }
    }

    fn call_packet<T>(
        &self,
        mut packet: Packet,
        expect: Expect,
        finish: fn(Reply) -> Result<T>,
    ) -> Call<T> {
        // OpenSSH's server would end the session after a longer one.
        if packet.len() > self.server.max_packet {
            let error = Error::TooMuch("it is longer than the server's longest packet");
            return Call::known(&self.shared, Err(error));
        }
        if self.compresses() {
            packet.compress();
        }
        Call::new(&self.shared, packet, expect, finish)
    }

    /// Opens a file. `attrs` are those of a created file.
    pub fn open(&self, path: &[u8], flags: OpenFlags, attrs: FileAttrs) -> Call<RemoteHandle> {
        self.call(&Request::Open { path, flags, attrs }, Expect::Handle, handle)
    }

    /// Closes a handle.
    pub fn close(&self, handle: &RemoteHandle) -> Call<()> {
        self.call_packet(Packet::close(handle), Expect::Status, nothing)
    }

    /// Closes a handle without waiting; the request is sent at once.
    pub fn close_unattended(&self, handle: &RemoteHandle) {
        self.shared.send_unattended(Packet::close(handle), Expect::Status);
    }

    /// Reads up to `len` bytes, at least one; `None` at the end of the file. A server may return
    /// fewer than there are. `len` has to be within [`Server::max_read`](super::Server::max_read).
    ///
    /// The bytes are a slice of the receive buffer. Keeping a few of them keeps up to 64 KiB, or
    /// the longest packet; so a cache of small parts has to copy them.
    pub fn read(&self, handle: &RemoteHandle, offset: u64, len: u32) -> Call<Option<Bytes>> {
        if len == 0 {
            return Call::known(&self.shared, Ok(Some(Bytes::new())));
        }
        if len > self.server.max_read {
            let error = Error::TooMuch("a READ longer than the server's longest");
            return Call::known(&self.shared, Err(error));
        }
        let request = Request::Read { handle: handle.as_bytes(), offset, len };
        self.call(&request, Expect::Data(len), data).through(handle)
    }

    /// Writes all of `data`, without copying it. Its length has to be within
    /// [`Server::max_write`](super::Server::max_write).
    pub fn write(&self, handle: &RemoteHandle, offset: u64, data: Bytes) -> Call<()> {
        if data.len() > self.server.max_write as usize {
            let error = Error::TooMuch("a WRITE longer than the server's longest");
            return Call::known(&self.shared, Err(error));
        }
        self.call_packet(Packet::write(handle, offset, data), Expect::Status, nothing)
            .through(handle)
    }

    /// Attributes; of the link itself if `path` is a symbolic link.
    pub fn lstat(&self, path: &[u8]) -> Call<FileAttrs> {
        self.call(&Request::Lstat { path }, Expect::Attrs, attrs)
    }

    /// Attributes; of the target if `path` is a symbolic link.
    pub fn stat(&self, path: &[u8]) -> Call<FileAttrs> {
        self.call(&Request::Stat { path }, Expect::Attrs, attrs)
    }

    /// Sends a STAT without waiting, also if the maximum number of requests is in flight. The reply
    /// ends the time for which the server was [silent](super::Activity::silent).
    pub fn probe(&self, path: &[u8]) {
        self.shared.send_unattended(Packet::new(&Request::Stat { path }), Expect::Attrs);
    }

    /// Attributes of an open file.
    pub fn fstat(&self, handle: &RemoteHandle) -> Call<FileAttrs> {
        let request = Request::Fstat { handle: handle.as_bytes() };
        self.call(&request, Expect::Attrs, attrs).through(handle)
    }

    /// Changes attributes; of the target if `path` is a symbolic link.
    pub fn setstat(&self, path: &[u8], attrs: FileAttrs) -> Call<()> {
        self.call(&Request::Setstat { path, attrs }, Expect::Status, nothing)
    }

    /// Changes attributes of an open file.
    pub fn fsetstat(&self, handle: &RemoteHandle, attrs: FileAttrs) -> Call<()> {
        let request = Request::Fsetstat { handle: handle.as_bytes(), attrs };
        self.call(&request, Expect::Status, nothing).through(handle)
    }

    /// Changes attributes; of the link itself if `path` is a symbolic link
    /// (`lsetstat@openssh.com`).
    pub fn lsetstat(&self, path: &[u8], attrs: FileAttrs) -> Call<()> {
        self.call(&Request::Lsetstat { path, attrs }, Expect::Status, nothing)
    }

    /// Opens a directory for listing.
    pub fn opendir(&self, path: &[u8]) -> Call<RemoteHandle> {
        self.call(&Request::Opendir { path }, Expect::Handle, handle)
    }

    /// The next entries, at least one; `None` at the end.
    pub fn readdir(&self, handle: &RemoteHandle) -> Call<Option<Vec<NameEntry>>> {
        let request = Request::Readdir { handle: handle.as_bytes() };
        self.call(&request, Expect::Names, names).through(handle)
    }

    /// Removes a name, except that of a directory.
    pub fn remove(&self, path: &[u8]) -> Call<()> {
        self.call(&Request::Remove { path }, Expect::Status, nothing)
    }

    /// Creates a directory.
    pub fn mkdir(&self, path: &[u8], attrs: FileAttrs) -> Call<()> {
        self.call(&Request::Mkdir { path, attrs }, Expect::Status, nothing)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, path: &[u8]) -> Call<()> {
        self.call(&Request::Rmdir { path }, Expect::Status, nothing)
    }

    /// Makes a path absolute and resolves links. The empty path is the directory where the session
    /// began.
    pub fn realpath(&self, of: &[u8]) -> Call<Bytes> {
        self.call(&Request::Realpath { path: of }, Expect::Name, path)
    }

    /// Renames; fails if `to` exists.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Call<()> {
        self.call(&Request::Rename { from, to }, Expect::Status, nothing)
    }

    /// Renames; replaces `to` (`posix-rename@openssh.com`).
    pub fn posix_rename(&self, from: &[u8], to: &[u8]) -> Call<()> {
        self.call(&Request::PosixRename { from, to }, Expect::Status, nothing)
    }

    /// The target of a link.
    pub fn readlink(&self, link: &[u8]) -> Call<Bytes> {
        self.call(&Request::Readlink { path: link }, Expect::Name, path)
    }

    /// Creates a symbolic link at `link`.
    pub fn symlink(&self, target: &[u8], link: &[u8]) -> Call<()> {
        self.call(&Request::Symlink { target, link }, Expect::Status, nothing)
    }

    /// Creates the hard link `new` to `existing` (`hardlink@openssh.com`).
    pub fn hardlink(&self, existing: &[u8], new: &[u8]) -> Call<()> {
        self.call(&Request::Hardlink { existing, new }, Expect::Status, nothing)
    }

    /// Statistics of the file system that holds `path` (`statvfs@openssh.com`).
    pub fn statvfs(&self, path: &[u8]) -> Call<StatVfs> {
        self.call(&Request::Statvfs { path }, Expect::Extended, body)
    }

    /// Statistics of the file system that holds an open file (`fstatvfs@openssh.com`).
    pub fn fstatvfs(&self, handle: &RemoteHandle) -> Call<StatVfs> {
        let request = Request::Fstatvfs { handle: handle.as_bytes() };
        self.call(&request, Expect::Extended, body).through(handle)
    }

    /// Flushes an open file to the server's disk (`fsync@openssh.com`).
    pub fn fsync(&self, handle: &RemoteHandle) -> Call<()> {
        let request = Request::Fsync { handle: handle.as_bytes() };
        self.call(&request, Expect::SlowStatus, nothing).through(handle)
    }

    /// Copies within the server (`copy-data`). Until it is complete, OpenSSH's server answers
    /// nothing else on this connection. A `len` of zero means up to the end of the file. Both
    /// handles must not be of one file.
    pub fn copy_data(
        &self,
        from: &RemoteHandle,
        from_offset: u64,
        len: u64,
        to: &RemoteHandle,
        to_offset: u64,
    ) -> Call<()> {
        let (from_bytes, to_bytes) = (from.as_bytes(), to.as_bytes());
        let request =
            Request::CopyData { from: from_bytes, from_offset, len, to: to_bytes, to_offset };
        self.call(&request, Expect::SlowStatus, nothing).through(from).through(to)
    }

    /// Like [`Client::realpath`], and expands `~` and `~user` (`expand-path@openssh.com`).
    pub fn expand_path(&self, of: &[u8]) -> Call<Bytes> {
        self.call(&Request::ExpandPath { path: of }, Expect::Name, path)
    }

    /// Sets a lock on an open file, or removes one (`lock@sshoal`). The server waits for at most
    /// `wait_ms` milliseconds. If the call is dropped, the lock is undone.
    pub fn lock(
        &self,
        handle: &RemoteHandle,
        owner: LockOwner,
        range: LockRange,
        kind: Option<LockKind>,
        wait_ms: u32,
    ) -> Call<()> {
        let lock = LockRequest::Set { owner, range, kind, wait_ms };
        let request = Request::Lock { handle: handle.as_bytes(), lock };
        let call = self.call(&request, Expect::Status, nothing);
        let call = call.through(handle);
        if kind.is_some() { call.undone_for(handle) } else { call }
    }

    /// A lock of another owner that excludes this one (`lock@sshoal`).
    pub fn test_lock(
        &self,
        handle: &RemoteHandle,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Call<Option<(LockRange, LockKind)>> {
        let lock = LockRequest::Test { owner, range, kind };
        let request = Request::Lock { handle: handle.as_bytes(), lock };
        let finish = |reply| Ok(body::<LockFound>(reply)?.0);
        self.call(&request, Expect::Extended, finish).through(handle)
    }

    /// From now on the server ends the session if it holds locks and gets no request for `seconds`
    /// (`lock@sshoal`).
    pub fn lock_lease(&self, seconds: u32) -> Call<()> {
        let lock = LockRequest::Lease { seconds };
        self.call(&Request::Lock { handle: &[], lock }, Expect::Status, nothing)
    }

    /// Watches the directory at a path (`watch@sshoal`).
    pub fn watch(&self, path: &[u8]) -> Call<WatchId> {
        self.call(&Request::Watch(WatchRequest::Add { path }), Expect::Extended, body)
    }

    /// Ends a watch (`watch@sshoal`).
    pub fn end_watch(&self, id: WatchId) -> Call<()> {
        self.call(&Request::Watch(WatchRequest::Remove { id }), Expect::Status, nothing)
    }

    /// The next events of all watches; waits until there are any (`watch@sshoal`). If the call is
    /// dropped, its events are lost.
    pub fn next_events(&self) -> Call<WatchEvents> {
        self.call(&Request::Watch(WatchRequest::Next), Expect::Event, body)
    }

    /// The server's limits (`limits@openssh.com`).
    pub fn limits(&self) -> Call<Limits> {
        self.call(&Request::Limits, Expect::Extended, body)
    }

    /// The value of an extended attribute (`getxattr@sshoal`).
    pub fn getxattr(&self, path: &[u8], name: &[u8], flags: XattrFlags) -> Call<Bytes> {
        let request = Request::Getxattr { path, name, flags };
        let finish = |reply| Ok(body::<XattrValue>(reply)?.0);
        self.call(&request, Expect::Extended, finish)
    }

    /// Sets an extended attribute (`setxattr@sshoal`).
    pub fn setxattr(&self, path: &[u8], name: &[u8], value: &[u8], flags: XattrFlags) -> Call<()> {
        self.call(&Request::Setxattr { path, name, value, flags }, Expect::Status, nothing)
    }

    /// The names of the extended attributes (`listxattr@sshoal`).
    pub fn listxattr(&self, path: &[u8], flags: XattrFlags) -> Call<Vec<Bytes>> {
        let request = Request::Listxattr { path, flags };
        let finish = |reply| Ok(body::<XattrNames>(reply)?.0);
        self.call(&request, Expect::Extended, finish)
    }

    /// Removes an extended attribute (`removexattr@sshoal`).
    pub fn removexattr(&self, path: &[u8], name: &[u8], flags: XattrFlags) -> Call<()> {
        self.call(&Request::Removexattr { path, name, flags }, Expect::Status, nothing)
    }

    /// The entries of a directory that have extended attributes (`dirxattrs@sshoal`).
    pub fn dirxattrs(&self, path: &[u8]) -> Call<Vec<Bytes>> {
        let request = Request::Dirxattrs { path };
        let finish = |reply| Ok(body::<XattrNames>(reply)?.0);
        self.call(&request, Expect::Extended, finish)
    }

    /// The digest of a regular file (`digest@sshoal`). `EINPROGRESS` while the server computes it;
    /// then the request is repeated.
    pub fn digest(&self, path: &[u8], algorithm: DigestAlgorithm) -> Call<FileDigest> {
        self.call(&Request::Digest { path, algorithm }, Expect::Extended, body)
    }

    /// Attributes and content of a regular file of at most `max_bytes` (`read-file@sshoal`).
    pub fn read_file(&self, path: &[u8], max_bytes: u32, follow: bool) -> Call<FileContent> {
        self.call(&Request::ReadFile { path, max_bytes, follow }, Expect::Extended, body)
    }

    /// Has the server listen for connections beside this one (`direct@sshoal`).
    pub fn direct(&self, request: DirectRequest) -> Call<DirectAddress> {
        self.call(&Request::Direct(request), Expect::Extended, body)
    }

    /// Creates a FIFO, a socket or a device of this type and these permissions (`mknod@sshoal`).
    pub fn mknod(&self, path: &[u8], mode: u32, major: u32, minor: u32) -> Call<()> {
        self.call(&Request::Mknod { path, mode, major, minor }, Expect::Status, nothing)
    }

    /// Renames as the flags say (`renameat2@sshoal`).
    pub fn renameat2(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> Call<()> {
        self.call(&Request::Renameat2 { from, to, flags }, Expect::Status, nothing)
    }

    /// Reserves or frees a range of an open file (`fallocate@sshoal`).
    pub fn fallocate(
        &self,
        handle: &RemoteHandle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Call<()> {
        let request = Request::Fallocate { handle: handle.as_bytes(), mode, offset, len };
        self.call(&request, Expect::SlowStatus, nothing).through(handle)
    }

    /// The next data or hole of an open file (`lseek@sshoal`).
    pub fn lseek(&self, handle: &RemoteHandle, offset: u64, whence: Whence) -> Call<u64> {
        let request = Request::Lseek { handle: handle.as_bytes(), offset, whence };
        let finish = |reply| Ok(body::<SeekOffset>(reply)?.0);
        self.call(&request, Expect::Extended, finish).through(handle)
    }
}

/// A client can be shared between tasks.
const _: fn() = || {
    fn shareable<T: Send + Sync + 'static>() {}
    shareable::<Arc<Client>>();
    shareable::<Call<()>>();
};
