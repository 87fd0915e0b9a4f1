//! The requests of a client.

use std::ops::BitOr;

use bytes::{BufMut, BytesMut};

use super::attrs::FileAttrs;
use super::direct::DirectRequest;
use super::extension::{DigestAlgorithm, Extension};
use super::lock::LockRequest;
use super::watch::WatchRequest;
use super::wire::{Field, Fields, Malformed, fields_of, put_sized, put_string};

const INIT: u8 = 1;
const READ: u8 = 5;
const WRITE: u8 = 6;
const SYMLINK: u8 = 20;
const EXTENDED: u8 = 200;

/// Number of kinds of requests: the message types up to SYMLINK, the extensions, and any other.
pub const KINDS: usize = SYMLINK as usize + 1 + Extension::ALL.len() + 1;

/// The kind of a request: its message type, or its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(u8);

impl Kind {
    const READ: Kind = Kind(READ);
    pub(crate) const WRITE: Kind = Kind(WRITE);

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

/// Defines the requests: those of version 3 with their types, and those whose extension has the
/// same name. The fields are in the order of the wire.
macro_rules! requests {
    (
        version 3 { $(
            $(#[$doc:meta])*
            $variant:ident = $message_type:literal { $($field:ident: $type:ty),* },
        )* }
        extensions { $(
            $(#[$extension_doc:meta])*
            $extension:ident $({ $($extension_field:ident: $extension_type:ty),* })?,
        )* }
        irregular { $($irregular:tt)* }
    ) => {
        /// Any request except INIT. Paths and handles are opaque bytes of the server.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the fields are what the message's documentation names")]
        pub enum Request<'a> {
            $($(#[$doc])* $variant { $($field: $type),* },)*
            $($(#[$extension_doc])* $extension $({ $($extension_field: $extension_type),* })?,)*
            $($irregular)*
        }

        impl<'a> Request<'a> {
            /// The extension that the request belongs to; `None` for one of version 3, or if it is
            /// unknown.
            pub(crate) fn extension(&self) -> Option<Extension> {
                match self {
                    $(Request::$extension { .. } => Some(Extension::$extension),)*
                    Request::Lock { .. } => Some(Extension::Lock),
                    Request::Direct(_) => Some(Extension::Direct),
                    Request::Watch(_) => Some(Extension::Watch),
                    _ => None,
                }
            }

            fn message_type(&self) -> u8 {
                match self {
                    $(Request::$variant { .. } => $message_type,)*
                    _ => EXTENDED,
                }
            }

            fn put_fields(&self, out: &mut BytesMut) {
                match self {
                    $(Request::$variant { $($field),* } => { $($field.put(out);)* })*
                    $(Request::$extension $({ $($extension_field),* })? => {
                        $($($extension_field.put(out);)*)?
                    })*
                    Request::Lock { handle, lock } => {
                        out.put_u8(lock.operation());
                        put_string(out, handle);
                        lock.encode(out);
                    }
                    Request::Direct(request) => request.put(out),
                    Request::Watch(request) => request.put(out),
                    Request::UnknownExtension { name, body } => {
                        put_string(out, name);
                        out.put_slice(body);
                    }
                }
            }

            fn get_fields(
                message_type: u8,
                fields: &mut Fields<'a>,
            ) -> Result<Request<'a>, Malformed> {
                Ok(match message_type {
                    $($message_type => Request::$variant { $($field: Field::get(fields)?),* },)*
                    EXTENDED => {
                        let name = fields.string()?;
                        match Extension::from_name(name) {
                            $(Some(Extension::$extension) => Request::$extension $({
                                $($extension_field: Field::get(fields)?),*
                            })?,)*
                            Some(Extension::Lock) => {
                                let (operation, handle) = (fields.u8()?, fields.string()?);
                                Request::Lock { handle, lock: LockRequest::decode(operation, fields)? }
                            }
                            Some(Extension::Direct) => Request::Direct(Field::get(fields)?),
                            Some(Extension::Watch) => Request::Watch(Field::get(fields)?),
                            Some(Extension::EarlyHandle) | None => {
                                Request::UnknownExtension { name, body: fields.remainder() }
                            }
                        }
                    }
                    other => return Err(Malformed::UnknownType(other)),
                })
            }
        }
    };
}

requests! {
    version 3 {
        /// Opens a file; `attrs` are those of a created file.
        Open = 3 { path: &'a [u8], flags: OpenFlags, attrs: FileAttrs },
        /// Closes a handle.
        Close = 4 { handle: &'a [u8] },
        /// Reads up to `len` bytes.
        Read = 5 { handle: &'a [u8], offset: u64, len: u32 },
        /// Writes all of `data`.
        Write = 6 { handle: &'a [u8], offset: u64, data: &'a [u8] },
        /// Attributes; of the link itself if `path` is a symbolic link.
        Lstat = 7 { path: &'a [u8] },
        /// Attributes of an open file.
        Fstat = 8 { handle: &'a [u8] },
        /// Changes attributes; of the target if `path` is a symbolic link.
        Setstat = 9 { path: &'a [u8], attrs: FileAttrs },
        /// Changes attributes of an open file.
        Fsetstat = 10 { handle: &'a [u8], attrs: FileAttrs },
        /// Opens a directory for listing.
        Opendir = 11 { path: &'a [u8] },
        /// The next entries.
        Readdir = 12 { handle: &'a [u8] },
        /// Removes a file's name.
        Remove = 13 { path: &'a [u8] },
        /// Creates a directory.
        Mkdir = 14 { path: &'a [u8], attrs: FileAttrs },
        /// Removes an empty directory.
        Rmdir = 15 { path: &'a [u8] },
        /// Makes a path absolute.
        Realpath = 16 { path: &'a [u8] },
        /// Attributes; of the target if `path` is a symbolic link.
        Stat = 17 { path: &'a [u8] },
        /// Renames; fails if `to` exists.
        Rename = 18 { from: &'a [u8], to: &'a [u8] },
        /// The target of a link.
        Readlink = 19 { path: &'a [u8] },
        /// Creates a symbolic link at `link`.
        Symlink = 20 { target: &'a [u8], link: &'a [u8] },
    }
    extensions {
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
        /// `deflate@sshoal`: from now on requests, and `replies` if that is set, may be
        /// [compressed](super::pack).
        Deflate { replies: bool },
    }
    irregular {
        /// `lock@sshoal`
        Lock { handle: &'a [u8], lock: LockRequest },
        /// `direct@sshoal`
        Direct(DirectRequest),
        /// `watch@sshoal`
        Watch(WatchRequest<'a>),
        /// An unsupported extension.
        UnknownExtension { name: &'a [u8], body: &'a [u8] },
    }
}

fields_of! {
    OpenFlags { 0 }
    XattrFlags { 0 }
    RenameFlags { 0 }
    FallocateMode { 0 }
    Whence { 0 }
}

impl<'a> Request<'a> {
    /// Appends the whole packet.
    pub fn encode(&self, id: u32, out: &mut BytesMut) {
        put_sized(out, 0, |out| {
            out.put_u8(self.message_type());
            out.put_u32(id);
            if let Some(extension) = self.extension() {
                put_string(out, extension.name().as_bytes());
            }
            self.put_fields(out);
        });
    }

    /// Appends the packet of a WRITE up to its content, of which `len` bytes have to follow.
    pub fn encode_write_head(id: u32, handle: &[u8], offset: u64, len: usize, out: &mut BytesMut) {
        put_sized(out, len, |out| {
            out.put_u8(WRITE);
            out.put_u32(id);
            put_string(out, handle);
            out.put_u64(offset);
            out.put_u32(len as u32);
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

    /// Decodes a packet without its length field; returns its id too. Bytes after the last field
    /// are ignored, as by OpenSSH's server: some clients send a whole buffer with a shorter WRITE.
    pub fn decode(packet: &'a [u8]) -> Result<(u32, Request<'a>), Malformed> {
        let mut fields = Fields::new(packet);
        let (message_type, id) = (fields.u8()?, fields.u32()?);
        Ok((id, Request::get_fields(message_type, &mut fields)?))
    }
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
