//! The requests of a client.

use std::ops::BitOr;

use bytes::{BufMut, BytesMut};

use super::attrs::FileAttrs;
use super::direct::DirectRequest;
use super::extension::{DigestAlgorithm, Extension};
use super::lock::LockRequest;
use super::watch::WatchRequest;
use super::wire::{Fields, Malformed, put_sized, put_string};

const INIT: u8 = 1;
const OPEN: u8 = 3;
const CLOSE: u8 = 4;
const READ: u8 = 5;
const WRITE: u8 = 6;
const LSTAT: u8 = 7;
const FSTAT: u8 = 8;
const SETSTAT: u8 = 9;
const FSETSTAT: u8 = 10;
const OPENDIR: u8 = 11;
const READDIR: u8 = 12;
const REMOVE: u8 = 13;
const MKDIR: u8 = 14;
const RMDIR: u8 = 15;
const REALPATH: u8 = 16;
const STAT: u8 = 17;
const RENAME: u8 = 18;
const READLINK: u8 = 19;
const SYMLINK: u8 = 20;
const EXTENDED: u8 = 200;

/// Number of kinds of requests: the message types up to SYMLINK, the extensions, and any other.
pub const KINDS: usize = SYMLINK as usize + 1 + Extension::ALL.len() + 1;

/// The kind of a request: its message type, or its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(u8);

impl Kind {
    const READ: Kind = Kind(READ);
    const WRITE: Kind = Kind(WRITE);

    fn of_extension(extension: Extension) -> Kind {
        Kind(SYMLINK + 1 + extension as u8)
    }

    /// All kinds, in the order of their indexes.
    pub fn all() -> impl Iterator<Item = Kind> {
        (0..KINDS as u8).map(Kind)
    }

    /// Below [`KINDS`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The name in the protocol, without the part that names an extension's owner.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; SYMLINK as usize + 1] = [
            "", "init", "version", "open", "close", "read", "write", "lstat", "fstat", "setstat",
            "fsetstat", "opendir", "readdir", "remove", "mkdir", "rmdir", "realpath", "stat",
            "rename", "readlink", "symlink",
        ];
        let extension = || Extension::ALL.get(self.index().checked_sub(NAMES.len())?);
        match (NAMES.get(self.index()), extension()) {
            (Some(name), _) => name,
            (None, Some(extension)) => extension.name().split('@').next().unwrap_or_default(),
            (None, None) => "other",
        }
    }

    /// Whether its duration shows the latency of the server: it neither carries nor returns file
    /// content, and waits neither for a disk nor for another client.
    pub fn is_small(self) -> bool {
        use Extension::{CopyData, Fallocate, Fsync, Lock, Watch};
        let slow = [Fsync, CopyData, Fallocate, Lock, Watch].map(Kind::of_extension);
        self != Kind::READ && self != Kind::WRITE && !slow.contains(&self)
    }
}

/// Appends the whole INIT packet, the only request without an id.
pub fn encode_init(version: u32, out: &mut BytesMut) {
    put_sized(out, 0, |out| {
        out.put_u8(INIT);
        out.put_u32(version);
    });
}

/// Decodes an INIT packet without its length field; returns the client's version.
pub fn decode_init(packet: &[u8]) -> Result<u32, Malformed> {
    let mut fields = Fields::new(packet);
    match fields.u8()? {
        // The rest are extensions of the client, none of which is supported.
        INIT => fields.u32(),
        other => Err(Malformed::UnknownType(other)),
    }
}

/// The flags of OPEN in the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// For reading.
    pub const READ: OpenFlags = OpenFlags(0x1);
    /// For writing.
    pub const WRITE: OpenFlags = OpenFlags(0x2);
    /// Writes go to the end of the file.
    pub const APPEND: OpenFlags = OpenFlags(0x4);
    /// Creates the file if it does not exist.
    pub const CREATE: OpenFlags = OpenFlags(0x8);
    /// Truncates the file to zero length.
    pub const TRUNCATE: OpenFlags = OpenFlags(0x10);
    /// With `CREATE`: fails if the file exists.
    pub const EXCLUSIVE: OpenFlags = OpenFlags(0x20);

    /// Whether all of `flags` are set.
    pub fn contains(self, flags: OpenFlags) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for OpenFlags {
    type Output = OpenFlags;

    fn bitor(self, other: OpenFlags) -> OpenFlags {
        OpenFlags(self.0 | other.0)
    }
}

/// The flags of a request about an extended attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XattrFlags(pub u32);

impl XattrFlags {
    /// SETXATTR fails if the attribute exists.
    pub const CREATE: u32 = 0x1;
    /// SETXATTR fails if the attribute does not exist.
    pub const REPLACE: u32 = 0x2;
    /// A symbolic link in the last component is followed.
    pub const FOLLOW: u32 = 0x4;
}

/// The flags of `renameat2@sshoal`: those of `renameat2(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags(pub u32);

impl RenameFlags {
    /// Fails if the new name exists.
    pub const NOREPLACE: RenameFlags = RenameFlags(0x1);
    /// Exchanges the two names.
    pub const EXCHANGE: RenameFlags = RenameFlags(0x2);
}

/// The mode of `fallocate@sshoal`: that of `fallocate(2)`. Zero allocates and extends the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallocateMode(pub u32);

impl FallocateMode {
    /// The size of the file stays.
    pub const KEEP_SIZE: u32 = 0x1;
    /// The range becomes a hole; with `KEEP_SIZE`.
    pub const PUNCH_HOLE: u32 = 0x2;
    /// The range becomes zeros, and is allocated.
    pub const ZERO_RANGE: u32 = 0x10;
}

/// What `lseek@sshoal` looks for: the numbers of `lseek(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whence(pub u32);

impl Whence {
    /// Data.
    pub const DATA: Whence = Whence(3);
    /// A hole; the end of the file is one.
    pub const HOLE: Whence = Whence(4);
}

/// Any request except INIT. Paths and handles are opaque bytes of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are what the message's documentation names")]
pub enum Request<'a> {
    /// Opens a file; `attrs` are those of a created file.
    Open { path: &'a [u8], flags: OpenFlags, attrs: FileAttrs },
    /// Closes a handle.
    Close { handle: &'a [u8] },
    /// Reads up to `len` bytes.
    Read { handle: &'a [u8], offset: u64, len: u32 },
    /// Writes all of `data`.
    Write { handle: &'a [u8], offset: u64, data: &'a [u8] },
    /// Attributes; of the link itself if `path` is a symbolic link.
    Lstat { path: &'a [u8] },
    /// Attributes of an open file.
    Fstat { handle: &'a [u8] },
    /// Changes attributes; of the target if `path` is a symbolic link.
    Setstat { path: &'a [u8], attrs: FileAttrs },
    /// Changes attributes of an open file.
    Fsetstat { handle: &'a [u8], attrs: FileAttrs },
    /// Opens a directory for listing.
    Opendir { path: &'a [u8] },
    /// The next entries.
    Readdir { handle: &'a [u8] },
    /// Removes a file's name.
    Remove { path: &'a [u8] },
    /// Creates a directory.
    Mkdir { path: &'a [u8], attrs: FileAttrs },
    /// Removes an empty directory.
    Rmdir { path: &'a [u8] },
    /// Makes a path absolute.
    Realpath { path: &'a [u8] },
    /// Attributes; of the target if `path` is a symbolic link.
    Stat { path: &'a [u8] },
    /// Renames; fails if `to` exists.
    Rename { from: &'a [u8], to: &'a [u8] },
    /// The target of a link.
    Readlink { path: &'a [u8] },
    /// Creates a symbolic link at `link`.
    Symlink { target: &'a [u8], link: &'a [u8] },
    /// `posix-rename@openssh.com`
    PosixRename { from: &'a [u8], to: &'a [u8] },
    /// `statvfs@openssh.com`
    Statvfs { path: &'a [u8] },
    /// `fstatvfs@openssh.com`
    Fstatvfs { handle: &'a [u8] },
    /// `hardlink@openssh.com`
    Hardlink { existing: &'a [u8], new: &'a [u8] },
    /// `fsync@openssh.com`
    Fsync { handle: &'a [u8] },
    /// `lsetstat@openssh.com`
    Lsetstat { path: &'a [u8], attrs: FileAttrs },
    /// `limits@openssh.com`
    Limits,
    /// `expand-path@openssh.com`
    ExpandPath { path: &'a [u8] },
    /// `copy-data`; a `len` of zero means up to the end of the file.
    CopyData { from: &'a [u8], from_offset: u64, len: u64, to: &'a [u8], to_offset: u64 },
    /// `home-directory`
    HomeDirectory { user: &'a [u8] },
    /// `users-groups-by-id@openssh.com`
    UsersGroupsById { uids: Vec<u32>, gids: Vec<u32> },
    /// `attrs@sshoal`: from now on replies have these [fields](super::ExactAttrs).
    Attrs { fields: u32 },
    /// `lock@sshoal`
    Lock { handle: &'a [u8], lock: LockRequest },
    /// `getxattr@sshoal`
    Getxattr { path: &'a [u8], name: &'a [u8], flags: XattrFlags },
    /// `setxattr@sshoal`
    Setxattr { path: &'a [u8], name: &'a [u8], value: &'a [u8], flags: XattrFlags },
    /// `listxattr@sshoal`
    Listxattr { path: &'a [u8], flags: XattrFlags },
    /// `removexattr@sshoal`
    Removexattr { path: &'a [u8], name: &'a [u8], flags: XattrFlags },
    /// `dirxattrs@sshoal`
    Dirxattrs { path: &'a [u8] },
    /// `mknod@sshoal`; `mode` is type and permissions.
    Mknod { path: &'a [u8], mode: u32, major: u32, minor: u32 },
    /// `renameat2@sshoal`
    Renameat2 { from: &'a [u8], to: &'a [u8], flags: RenameFlags },
    /// `fallocate@sshoal`
    Fallocate { handle: &'a [u8], mode: FallocateMode, offset: u64, len: u64 },
    /// `lseek@sshoal`
    Lseek { handle: &'a [u8], offset: u64, whence: Whence },
    /// `digest@sshoal`
    Digest { path: &'a [u8], algorithm: DigestAlgorithm },
    /// `read-file@sshoal`
    ReadFile { path: &'a [u8], max_bytes: u32, follow: bool },
    /// `direct@sshoal`
    Direct(DirectRequest),
    /// `watch@sshoal`
    Watch(WatchRequest<'a>),
    /// `deflate@sshoal`: from now on requests, and `replies` if that is set, may be
    /// [compressed](super::pack).
    Deflate { replies: bool },
    /// An unsupported extension.
    UnknownExtension { name: &'a [u8], body: &'a [u8] },
}

impl<'a> Request<'a> {
    /// Appends the whole packet.
    pub fn encode(&self, id: u32, out: &mut BytesMut) {
        let data = match self {
            Request::Write { data, .. } => *data,
            _ => &[],
        };
        self.encode_head(id, data.len(), out);
        out.put_slice(data);
    }

    /// Appends the packet up to the content of a WRITE, its last field, of which `data_len` bytes
    /// have to follow; the request's own `data` is ignored. For any other request `data_len` is
    /// zero and this is the whole packet.
    pub fn encode_head(&self, id: u32, data_len: usize, out: &mut BytesMut) {
        put_sized(out, data_len, |out| {
            out.put_u8(self.message_type());
            out.put_u32(id);
            self.encode_fields(data_len, out);
        });
    }

    /// The kind, for counters.
    pub fn kind(&self) -> Kind {
        match (self.extension(), self.message_type()) {
            (Some(extension), _) => Kind::of_extension(extension),
            (None, EXTENDED) => Kind(KINDS as u8 - 1),
            (None, message_type) => Kind(message_type),
        }
    }

    /// The extension that the request belongs to; `None` for one of version 3, or if it is unknown.
    fn extension(&self) -> Option<Extension> {
        Some(match self {
            Request::PosixRename { .. } => Extension::PosixRename,
            Request::Statvfs { .. } => Extension::Statvfs,
            Request::Fstatvfs { .. } => Extension::Fstatvfs,
            Request::Hardlink { .. } => Extension::Hardlink,
            Request::Fsync { .. } => Extension::Fsync,
            Request::Lsetstat { .. } => Extension::Lsetstat,
            Request::Limits => Extension::Limits,
            Request::ExpandPath { .. } => Extension::ExpandPath,
            Request::CopyData { .. } => Extension::CopyData,
            Request::HomeDirectory { .. } => Extension::HomeDirectory,
            Request::UsersGroupsById { .. } => Extension::UsersGroupsById,
            Request::Attrs { .. } => Extension::Attrs,
            Request::Lock { .. } => Extension::Lock,
            Request::Getxattr { .. } => Extension::Getxattr,
            Request::Setxattr { .. } => Extension::Setxattr,
            Request::Listxattr { .. } => Extension::Listxattr,
            Request::Removexattr { .. } => Extension::Removexattr,
            Request::Dirxattrs { .. } => Extension::Dirxattrs,
            Request::Mknod { .. } => Extension::Mknod,
            Request::Renameat2 { .. } => Extension::Renameat2,
            Request::Fallocate { .. } => Extension::Fallocate,
            Request::Lseek { .. } => Extension::Lseek,
            Request::Digest { .. } => Extension::Digest,
            Request::ReadFile { .. } => Extension::ReadFile,
            Request::Direct(_) => Extension::Direct,
            Request::Watch(_) => Extension::Watch,
            Request::Deflate { .. } => Extension::Deflate,
            _ => return None,
        })
    }

    fn message_type(&self) -> u8 {
        match self {
            Request::Open { .. } => OPEN,
            Request::Close { .. } => CLOSE,
            Request::Read { .. } => READ,
            Request::Write { .. } => WRITE,
            Request::Lstat { .. } => LSTAT,
            Request::Fstat { .. } => FSTAT,
            Request::Setstat { .. } => SETSTAT,
            Request::Fsetstat { .. } => FSETSTAT,
            Request::Opendir { .. } => OPENDIR,
            Request::Readdir { .. } => READDIR,
            Request::Remove { .. } => REMOVE,
            Request::Mkdir { .. } => MKDIR,
            Request::Rmdir { .. } => RMDIR,
            Request::Realpath { .. } => REALPATH,
            Request::Stat { .. } => STAT,
            Request::Rename { .. } => RENAME,
            Request::Readlink { .. } => READLINK,
            Request::Symlink { .. } => SYMLINK,
            _ => EXTENDED,
        }
    }

    fn encode_fields(&self, data_len: usize, out: &mut BytesMut) {
        if let Some(extension) = self.extension() {
            put_string(out, extension.name().as_bytes());
        }
        match self {
            Request::Open { path, flags, attrs } => {
                put_string(out, path);
                out.put_u32(flags.0);
                attrs.encode(out);
            }
            Request::Read { handle, offset, len } => {
                put_string(out, handle);
                out.put_u64(*offset);
                out.put_u32(*len);
            }
            Request::Write { handle, offset, .. } => {
                put_string(out, handle);
                out.put_u64(*offset);
                out.put_u32(data_len as u32);
            }
            Request::Close { handle: bytes }
            | Request::Fstat { handle: bytes }
            | Request::Readdir { handle: bytes }
            | Request::Lstat { path: bytes }
            | Request::Opendir { path: bytes }
            | Request::Remove { path: bytes }
            | Request::Rmdir { path: bytes }
            | Request::Realpath { path: bytes }
            | Request::Stat { path: bytes }
            | Request::Readlink { path: bytes }
            | Request::Statvfs { path: bytes }
            | Request::Fstatvfs { handle: bytes }
            | Request::Fsync { handle: bytes }
            | Request::ExpandPath { path: bytes }
            | Request::HomeDirectory { user: bytes }
            | Request::Dirxattrs { path: bytes } => put_string(out, bytes),
            Request::Setstat { path: bytes, attrs }
            | Request::Fsetstat { handle: bytes, attrs }
            | Request::Mkdir { path: bytes, attrs }
            | Request::Lsetstat { path: bytes, attrs } => {
                put_string(out, bytes);
                attrs.encode(out);
            }
            Request::Rename { from: first, to: second }
            | Request::Symlink { target: first, link: second }
            | Request::PosixRename { from: first, to: second }
            | Request::Hardlink { existing: first, new: second } => {
                put_string(out, first);
                put_string(out, second);
            }
            Request::Limits => {}
            Request::CopyData { from, from_offset, len, to, to_offset } => {
                put_string(out, from);
                out.put_u64(*from_offset);
                out.put_u64(*len);
                put_string(out, to);
                out.put_u64(*to_offset);
            }
            Request::UsersGroupsById { uids, gids } => {
                for ids in [uids, gids] {
                    put_sized(out, 0, |out| ids.iter().for_each(|id| out.put_u32(*id)));
                }
            }
            Request::Attrs { fields } => out.put_u32(*fields),
            Request::Lock { handle, lock } => {
                out.put_u8(lock.operation());
                put_string(out, handle);
                lock.encode(out);
            }
            Request::Getxattr { path, name, flags }
            | Request::Removexattr { path, name, flags } => {
                put_string(out, path);
                put_string(out, name);
                out.put_u32(flags.0);
            }
            Request::Setxattr { path, name, value, flags } => {
                put_string(out, path);
                put_string(out, name);
                put_string(out, value);
                out.put_u32(flags.0);
            }
            Request::Listxattr { path, flags } => {
                put_string(out, path);
                out.put_u32(flags.0);
            }
            Request::Mknod { path, mode, major, minor } => {
                put_string(out, path);
                [mode, major, minor].into_iter().for_each(|number| out.put_u32(*number));
            }
            Request::Renameat2 { from, to, flags } => {
                put_string(out, from);
                put_string(out, to);
                out.put_u32(flags.0);
            }
            Request::Fallocate { handle, mode, offset, len } => {
                put_string(out, handle);
                out.put_u32(mode.0);
                out.put_u64(*offset);
                out.put_u64(*len);
            }
            Request::Lseek { handle, offset, whence } => {
                put_string(out, handle);
                out.put_u64(*offset);
                out.put_u32(whence.0);
            }
            Request::Digest { path, algorithm } => {
                put_string(out, path);
                out.put_u32(algorithm.0);
            }
            Request::ReadFile { path, max_bytes, follow } => {
                put_string(out, path);
                out.put_u32(*max_bytes);
                out.put_u8((*follow).into());
            }
            Request::Direct(request) => request.encode(out),
            Request::Watch(watch) => watch.encode(out),
            Request::Deflate { replies } => out.put_u8((*replies).into()),
            Request::UnknownExtension { name, body } => {
                put_string(out, name);
                out.put_slice(body);
            }
        }
    }

    /// Decodes a packet without its length field; returns its id too. Bytes after the last field
    /// are ignored, as by OpenSSH's server: some clients send a whole buffer with a shorter WRITE.
    pub fn decode(packet: &'a [u8]) -> Result<(u32, Request<'a>), Malformed> {
        let mut fields = Fields::new(packet);
        let message_type = fields.u8()?;
        let id = fields.u32()?;
        let f = &mut fields;
        let request = match message_type {
            OPEN => Request::Open {
                path: f.string()?,
                flags: OpenFlags(f.u32()?),
                attrs: FileAttrs::decode(f)?,
            },
            CLOSE => Request::Close { handle: f.string()? },
            READ => Request::Read { handle: f.string()?, offset: f.u64()?, len: f.u32()? },
            WRITE => Request::Write { handle: f.string()?, offset: f.u64()?, data: f.string()? },
            LSTAT => Request::Lstat { path: f.string()? },
            FSTAT => Request::Fstat { handle: f.string()? },
            SETSTAT => Request::Setstat { path: f.string()?, attrs: FileAttrs::decode(f)? },
            FSETSTAT => Request::Fsetstat { handle: f.string()?, attrs: FileAttrs::decode(f)? },
            OPENDIR => Request::Opendir { path: f.string()? },
            READDIR => Request::Readdir { handle: f.string()? },
            REMOVE => Request::Remove { path: f.string()? },
            MKDIR => Request::Mkdir { path: f.string()?, attrs: FileAttrs::decode(f)? },
            RMDIR => Request::Rmdir { path: f.string()? },
            REALPATH => Request::Realpath { path: f.string()? },
            STAT => Request::Stat { path: f.string()? },
            RENAME => Request::Rename { from: f.string()?, to: f.string()? },
            READLINK => Request::Readlink { path: f.string()? },
            SYMLINK => Request::Symlink { target: f.string()?, link: f.string()? },
            EXTENDED => Request::decode_extended(f)?,
            other => return Err(Malformed::UnknownType(other)),
        };
        Ok((id, request))
    }

    fn decode_extended(f: &mut Fields<'a>) -> Result<Request<'a>, Malformed> {
        let name = f.string()?;
        let Some(extension) = Extension::from_name(name) else {
            return Ok(Request::UnknownExtension { name, body: f.remainder() });
        };
        Ok(match extension {
            Extension::EarlyHandle => Request::UnknownExtension { name, body: f.remainder() },
            Extension::PosixRename => Request::PosixRename { from: f.string()?, to: f.string()? },
            Extension::Statvfs => Request::Statvfs { path: f.string()? },
            Extension::Fstatvfs => Request::Fstatvfs { handle: f.string()? },
            Extension::Hardlink => Request::Hardlink { existing: f.string()?, new: f.string()? },
            Extension::Fsync => Request::Fsync { handle: f.string()? },
            Extension::Lsetstat => {
                Request::Lsetstat { path: f.string()?, attrs: FileAttrs::decode(f)? }
            }
            Extension::Limits => Request::Limits,
            Extension::ExpandPath => Request::ExpandPath { path: f.string()? },
            Extension::CopyData => Request::CopyData {
                from: f.string()?,
                from_offset: f.u64()?,
                len: f.u64()?,
                to: f.string()?,
                to_offset: f.u64()?,
            },
            Extension::HomeDirectory => Request::HomeDirectory { user: f.string()? },
            Extension::Attrs => Request::Attrs { fields: f.u32()? },
            Extension::Lock => {
                let (operation, handle) = (f.u8()?, f.string()?);
                Request::Lock { handle, lock: LockRequest::decode(operation, f)? }
            }
            Extension::Getxattr => Request::Getxattr {
                path: f.string()?,
                name: f.string()?,
                flags: XattrFlags(f.u32()?),
            },
            Extension::Setxattr => Request::Setxattr {
                path: f.string()?,
                name: f.string()?,
                value: f.string()?,
                flags: XattrFlags(f.u32()?),
            },
            Extension::Listxattr => {
                Request::Listxattr { path: f.string()?, flags: XattrFlags(f.u32()?) }
            }
            Extension::Removexattr => Request::Removexattr {
                path: f.string()?,
                name: f.string()?,
                flags: XattrFlags(f.u32()?),
            },
            Extension::Dirxattrs => Request::Dirxattrs { path: f.string()? },
            Extension::Mknod => Request::Mknod {
                path: f.string()?,
                mode: f.u32()?,
                major: f.u32()?,
                minor: f.u32()?,
            },
            Extension::Renameat2 => Request::Renameat2 {
                from: f.string()?,
                to: f.string()?,
                flags: RenameFlags(f.u32()?),
            },
            Extension::Fallocate => Request::Fallocate {
                handle: f.string()?,
                mode: FallocateMode(f.u32()?),
                offset: f.u64()?,
                len: f.u64()?,
            },
            Extension::Lseek => {
                let (handle, offset) = (f.string()?, f.u64()?);
                Request::Lseek { handle, offset, whence: Whence(f.u32()?) }
            }
            Extension::ReadFile => {
                Request::ReadFile { path: f.string()?, max_bytes: f.u32()?, follow: f.u8()? != 0 }
            }
            Extension::Direct => Request::Direct(DirectRequest::decode(f)?),
            Extension::Digest => {
                Request::Digest { path: f.string()?, algorithm: DigestAlgorithm(f.u32()?) }
            }
            Extension::Watch => Request::Watch(WatchRequest::decode(f)?),
            Extension::Deflate => Request::Deflate { replies: f.u8()? != 0 },
            Extension::UsersGroupsById => {
                Request::UsersGroupsById { uids: decode_ids(f)?, gids: decode_ids(f)? }
            }
        })
    }
}

fn decode_ids(fields: &mut Fields<'_>) -> Result<Vec<u32>, Malformed> {
    let mut list = Fields::new(fields.string()?);
    let mut ids = Vec::with_capacity(list.left() / 4);
    while list.left() > 0 {
        ids.push(list.u32()?);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        let names: std::collections::HashSet<_> = Kind::all().map(Kind::name).collect();
        assert_eq!(names.len(), KINDS);
        let name = |request: &Request<'_>| request.kind().name();
        assert_eq!(name(&Request::Symlink { target: b"", link: b"" }), "symlink");
        assert_eq!(name(&Request::PosixRename { from: b"", to: b"" }), "posix-rename");
        assert_eq!(
            name(&Request::UsersGroupsById { uids: vec![], gids: vec![] }),
            "users-groups-by-id"
        );
        assert_eq!(name(&Request::UnknownExtension { name: b"x", body: b"" }), "other");
        assert!(!Request::Fsync { handle: b"" }.kind().is_small());
        assert!(Request::Lstat { path: b"" }.kind().is_small());
    }
}
