//! The requests, named as the protocol's messages.

use std::sync::Arc;

use bytes::Bytes;

use super::call::Call;
use super::pending::Expect;
use super::{Client, Packet};
use crate::codec::{
    Extension, FileAttrs, Limits, NameEntry, OpenFlags, RemoteHandle, Reply, Request, StatVfs,
    StatusCode, UsersGroups,
};
use crate::error::{Error, Result};

/// What a reply is when it is not what was asked for. The table has let only fitting ones pass,
/// so beside a STATUS this is never seen.
fn failed<T>(reply: Reply) -> Result<T> {
    match reply {
        Reply::Status { code, message } => Err(Error::Status { code, message }),
        _ => Err(Error::Protocol("a reply of the wrong type".into())),
    }
}

/// As [`failed`], where the end of a file or listing is no failure.
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
            // Its own memory: a path may be kept for long, and the packet is a slice of a chunk.
            names.pop().map_or_else(
                || Err(Error::Protocol("no name".into())),
                |entry| Ok(Bytes::copy_from_slice(&entry.name)),
            )
        }
        other => failed(other),
    }
}

fn extended(reply: Reply) -> Result<Bytes> {
    match reply {
        Reply::Extended(body) => Ok(body),
        other => failed(other),
    }
}

fn figures(reply: Reply) -> Result<StatVfs> {
    Ok(StatVfs::decode(&extended(reply)?)?)
}

impl Client {
    fn call<T>(
        &self,
        request: &Request<'_>,
        expect: Expect,
        finish: fn(Reply) -> Result<T>,
    ) -> Call<T> {
        let packet = Packet::new(request);
        self.call_packet(packet, expect, finish)
    }

    fn call_packet<T>(
        &self,
        packet: Packet,
        expect: Expect,
        finish: fn(Reply) -> Result<T>,
    ) -> Call<T> {
        // A longer one would make OpenSSH's server end the session.
        if packet.len() > self.server.max_packet {
            let error = Error::TooMuch("it is longer than the server's longest packet");
            return Call::known(&self.shared, Err(error));
        }
        Call::new(&self.shared, packet, expect, finish)
    }

    fn call_extension<T>(
        &self,
        extension: Extension,
        request: &Request<'_>,
        expect: Expect,
        finish: fn(Reply) -> Result<T>,
    ) -> Call<T> {
        if !self.server.extensions.has(extension) {
            return Call::known(&self.shared, Err(Error::Unsupported(extension.name())));
        }
        self.call(request, expect, finish)
    }

    /// Opens a file. `attrs` are for one that is made.
    pub fn open(&self, path: &[u8], flags: OpenFlags, attrs: FileAttrs) -> Call<RemoteHandle> {
        self.call(&Request::Open { path, flags, attrs }, Expect::Handle, handle)
    }

    /// Gives a handle back.
    pub fn close(&self, handle: &RemoteHandle) -> Call<()> {
        self.call(&Request::Close { handle: handle.as_bytes() }, Expect::Status, nothing)
    }

    /// Gives a handle back without waiting; the request is sent at once.
    pub fn close_unattended(&self, handle: &RemoteHandle) {
        let packet = Packet::new(&Request::Close { handle: handle.as_bytes() });
        self.shared.send_unattended(packet, Expect::Status);
    }

    /// Reads up to `len` bytes, at least one; `None` at the end of the file. A server may give
    /// less than there is. The bytes are a slice of the receive buffer: keeping a few of them for
    /// long keeps up to 64 KiB, or the longest packet, so a cache of small pieces copies them. `len` is to be within [`Server::max_read`](super::Server::max_read).
    pub fn read(&self, handle: &RemoteHandle, offset: u64, len: u32) -> Call<Option<Bytes>> {
        if len == 0 {
            return Call::known(&self.shared, Ok(Some(Bytes::new())));
        }
        if len > self.server.max_read {
            let error = Error::TooMuch("a READ longer than the server's longest");
            return Call::known(&self.shared, Err(error));
        }
        let request = Request::Read { handle: handle.as_bytes(), offset, len };
        self.call(&request, Expect::Data(len), data)
    }

    /// Writes all of `data`, which is not copied. Its length is to be within
    /// [`Server::max_write`](super::Server::max_write).
    pub fn write(&self, handle: &RemoteHandle, offset: u64, data: Bytes) -> Call<()> {
        if data.len() > self.server.max_write as usize {
            let error = Error::TooMuch("a WRITE longer than the server's longest");
            return Call::known(&self.shared, Err(error));
        }
        let request = Request::Write { handle: handle.as_bytes(), offset, data: &[] };
        self.call_packet(Packet::with_body(&request, data), Expect::Status, nothing)
    }

    /// Attributes, of a link itself.
    pub fn lstat(&self, path: &[u8]) -> Call<FileAttrs> {
        self.call(&Request::Lstat { path }, Expect::Attrs, attrs)
    }

    /// Attributes, of what a link leads to.
    pub fn stat(&self, path: &[u8]) -> Call<FileAttrs> {
        self.call(&Request::Stat { path }, Expect::Attrs, attrs)
    }

    /// Attributes of an open file.
    pub fn fstat(&self, handle: &RemoteHandle) -> Call<FileAttrs> {
        self.call(&Request::Fstat { handle: handle.as_bytes() }, Expect::Attrs, attrs)
    }

    /// Changes attributes, of what a link leads to.
    pub fn setstat(&self, path: &[u8], attrs: FileAttrs) -> Call<()> {
        self.call(&Request::Setstat { path, attrs }, Expect::Status, nothing)
    }

    /// Changes attributes of an open file.
    pub fn fsetstat(&self, handle: &RemoteHandle, attrs: FileAttrs) -> Call<()> {
        let request = Request::Fsetstat { handle: handle.as_bytes(), attrs };
        self.call(&request, Expect::Status, nothing)
    }

    /// Changes attributes, of a link itself (`lsetstat@openssh.com`).
    pub fn lsetstat(&self, path: &[u8], attrs: FileAttrs) -> Call<()> {
        let request = Request::Lsetstat { path, attrs };
        self.call_extension(Extension::Lsetstat, &request, Expect::Status, nothing)
    }

    /// Opens a directory for listing.
    pub fn opendir(&self, path: &[u8]) -> Call<RemoteHandle> {
        self.call(&Request::Opendir { path }, Expect::Handle, handle)
    }

    /// Some more entries, at least one; `None` at the end.
    pub fn readdir(&self, handle: &RemoteHandle) -> Call<Option<Vec<NameEntry>>> {
        self.call(&Request::Readdir { handle: handle.as_bytes() }, Expect::Names, names)
    }

    /// Removes the name of something that is no directory.
    pub fn remove(&self, path: &[u8]) -> Call<()> {
        self.call(&Request::Remove { path }, Expect::Status, nothing)
    }

    /// Makes a directory.
    pub fn mkdir(&self, path: &[u8], attrs: FileAttrs) -> Call<()> {
        self.call(&Request::Mkdir { path, attrs }, Expect::Status, nothing)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, path: &[u8]) -> Call<()> {
        self.call(&Request::Rmdir { path }, Expect::Status, nothing)
    }

    /// Makes a path absolute and resolves links; the empty path is where the session began.
    pub fn realpath(&self, of: &[u8]) -> Call<Bytes> {
        self.call(&Request::Realpath { path: of }, Expect::Name, path)
    }

    /// Renames, and fails when `to` is there.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Call<()> {
        self.call(&Request::Rename { from, to }, Expect::Status, nothing)
    }

    /// Renames, and replaces what is at `to` (`posix-rename@openssh.com`).
    pub fn posix_rename(&self, from: &[u8], to: &[u8]) -> Call<()> {
        let request = Request::PosixRename { from, to };
        self.call_extension(Extension::PosixRename, &request, Expect::Status, nothing)
    }

    /// A link's target.
    pub fn readlink(&self, link: &[u8]) -> Call<Bytes> {
        self.call(&Request::Readlink { path: link }, Expect::Name, path)
    }

    /// Makes a symbolic link at `link`.
    pub fn symlink(&self, target: &[u8], link: &[u8]) -> Call<()> {
        self.call(&Request::Symlink { target, link }, Expect::Status, nothing)
    }

    /// Makes `new` a further name of `existing` (`hardlink@openssh.com`).
    pub fn hardlink(&self, existing: &[u8], new: &[u8]) -> Call<()> {
        let request = Request::Hardlink { existing, new };
        self.call_extension(Extension::Hardlink, &request, Expect::Status, nothing)
    }

    /// Figures of the file system that holds `path` (`statvfs@openssh.com`).
    pub fn statvfs(&self, path: &[u8]) -> Call<StatVfs> {
        let request = Request::Statvfs { path };
        self.call_extension(Extension::Statvfs, &request, Expect::Extended, figures)
    }

    /// Figures of the file system that holds an open file (`fstatvfs@openssh.com`).
    pub fn fstatvfs(&self, handle: &RemoteHandle) -> Call<StatVfs> {
        let request = Request::Fstatvfs { handle: handle.as_bytes() };
        self.call_extension(Extension::Fstatvfs, &request, Expect::Extended, figures)
    }

    /// Brings an open file to the server's disk (`fsync@openssh.com`).
    pub fn fsync(&self, handle: &RemoteHandle) -> Call<()> {
        let request = Request::Fsync { handle: handle.as_bytes() };
        self.call_extension(Extension::Fsync, &request, Expect::SlowStatus, nothing)
    }

    /// Copies within the server (`copy-data`). Until it is done OpenSSH's server answers nothing
    /// else on this connection. A `len` of zero means up to the end of the file; the two handles
    /// must not be of one file.
    pub fn copy_data(
        &self,
        from: &RemoteHandle,
        from_offset: u64,
        len: u64,
        to: &RemoteHandle,
        to_offset: u64,
    ) -> Call<()> {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        let request = Request::CopyData { from, from_offset, len, to, to_offset };
        self.call_extension(Extension::CopyData, &request, Expect::SlowStatus, nothing)
    }

    /// As [`Client::realpath`], and knows `~` and `~user` (`expand-path@openssh.com`).
    pub fn expand_path(&self, of: &[u8]) -> Call<Bytes> {
        let request = Request::ExpandPath { path: of };
        self.call_extension(Extension::ExpandPath, &request, Expect::Name, path)
    }

    /// The home of a user, of oneself for the empty name (`home-directory`).
    pub fn home_directory(&self, user: &[u8]) -> Call<Bytes> {
        let request = Request::HomeDirectory { user };
        self.call_extension(Extension::HomeDirectory, &request, Expect::Name, path)
    }

    /// The names of users and groups (`users-groups-by-id@openssh.com`).
    pub fn users_groups_by_id(&self, uids: &[u32], gids: &[u32]) -> Call<UsersGroups> {
        let request = Request::UsersGroupsById { uids: uids.to_vec(), gids: gids.to_vec() };
        let finish = |reply| Ok(UsersGroups::decode(&extended(reply)?)?);
        self.call_extension(Extension::UsersGroupsById, &request, Expect::Extended, finish)
    }

    /// The server's limits (`limits@openssh.com`).
    pub fn limits(&self) -> Call<Limits> {
        let finish = |reply| Ok(Limits::decode(&extended(reply)?)?);
        self.call_extension(Extension::Limits, &Request::Limits, Expect::Extended, finish)
    }
}

/// A client may be shared by whatever runs on the runtime.
const _: fn() = || {
    fn shareable<T: Send + Sync + 'static>() {}
    shareable::<Arc<Client>>();
    shareable::<Call<()>>();
};
