//! The extensions of OpenSSH's server and of our own, and the bodies of their replies.

use base::{SmallSet, StatVfs};
use bytes::{BufMut, Bytes, BytesMut};

use super::attrs::FileAttrs;
use super::reply::Body;
use super::wire::{Field, Fields, Malformed, fields_of, put_sized, put_string};

const TYPE_VERSION: u8 = 2;

macro_rules! extensions {
    ($($(#[$doc:meta])* $variant:ident = $name:literal $version:literal,)*) => {
        /// A supported extension.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Extension { $($(#[$doc])* $variant,)* }

        impl Extension {
            /// All extensions.
            pub const ALL: &[Extension] = &[$(Extension::$variant,)*];

            /// The name in the protocol.
            pub fn name(self) -> &'static str {
                match self { $(Extension::$variant => $name,)* }
            }

            /// The supported version, as a server announces it.
            pub fn version(self) -> &'static str {
                match self { $(Extension::$variant => $version,)* }
            }

            /// The extension with this name.
            pub fn from_name(name: &[u8]) -> Option<Extension> {
                $(if name == $name.as_bytes() {
                    return Some(Extension::$variant);
                })*
                None
            }
        }
    };
}

extensions! {
    /// `rename(2)`, which replaces its target (OpenSSH 4.9).
    PosixRename = "posix-rename@openssh.com" "1",
    /// `statvfs(2)` (5.1).
    Statvfs = "statvfs@openssh.com" "2",
    /// `fstatvfs(2)` (5.1).
    Fstatvfs = "fstatvfs@openssh.com" "2",
    /// `link(2)` (5.7).
    Hardlink = "hardlink@openssh.com" "1",
    /// `fsync(2)` (6.5).
    Fsync = "fsync@openssh.com" "1",
    /// SETSTAT that does not follow links (8.0).
    Lsetstat = "lsetstat@openssh.com" "1",
    /// The server's limits (8.5).
    Limits = "limits@openssh.com" "1",
    /// REALPATH that expands `~` and `~user` (8.7).
    ExpandPath = "expand-path@openssh.com" "1",
    /// A copy within the server (9.0).
    CopyData = "copy-data" "1",
    /// A user's home (9.1).
    HomeDirectory = "home-directory" "1",
    /// Names of users and groups (9.1).
    UsersGroupsById = "users-groups-by-id@openssh.com" "1",
    /// Attributes that the protocol has no fields for (`docs/protocol.md`).
    Attrs = "attrs@sshoal" "1",
    /// Locks of open files (`docs/protocol.md`).
    Lock = "lock@sshoal" "1",
    /// `lgetxattr(2)`.
    Getxattr = "getxattr@sshoal" "1",
    /// `lsetxattr(2)`.
    Setxattr = "setxattr@sshoal" "1",
    /// `llistxattr(2)`.
    Listxattr = "listxattr@sshoal" "1",
    /// `lremovexattr(2)`.
    Removexattr = "removexattr@sshoal" "1",
    /// The entries of a directory that have extended attributes.
    Dirxattrs = "dirxattrs@sshoal" "1",
    /// `mknod(2)`.
    Mknod = "mknod@sshoal" "1",
    /// `renameat2(2)`.
    Renameat2 = "renameat2@sshoal" "1",
    /// `fallocate(2)`.
    Fallocate = "fallocate@sshoal" "1",
    /// `lseek(2)` for data and holes.
    Lseek = "lseek@sshoal" "1",
    /// The digest of a file's content.
    Digest = "digest@sshoal" "1",
    /// A whole small file in one reply.
    ReadFile = "read-file@sshoal" "1",
    /// Handles that are named before they are known (`docs/protocol.md`). No request of its own.
    EarlyHandle = "early-handle@sshoal" "1",
    /// Connections beside the one that ssh carries.
    Direct = "direct@sshoal" "1",
    /// What changes in directories.
    Watch = "watch@sshoal" "1",
    /// Compressed packets.
    Deflate = "deflate@sshoal" "1",
}

/// A set of [`Extension`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions(SmallSet);

impl Extensions {
    /// Whether `extension` is in the set.
    pub fn has(self, extension: Extension) -> bool {
        self.0.contains(extension as usize)
    }

    /// Adds `extension`.
    pub fn insert(&mut self, extension: Extension) {
        self.0 = self.0.with(extension as usize);
    }

    /// The extensions in the set.
    pub fn iter(self) -> impl Iterator<Item = Extension> {
        Extension::ALL.iter().copied().filter(move |extension| self.has(*extension))
    }

    /// Removes `extension`.
    pub fn remove(&mut self, extension: Extension) {
        self.0 = self.0.without(extension as usize);
    }
}

impl FromIterator<Extension> for Extensions {
    fn from_iter<T: IntoIterator<Item = Extension>>(extensions: T) -> Extensions {
        let mut set = Extensions::default();
        extensions.into_iter().for_each(|extension| set.insert(extension));
        set
    }
}

/// The extension of VERSION in which a server names itself: `vendor-id` of
/// draft-ietf-secsh-filexfer-13, section 4.4.
const VENDOR_ID: &[u8] = b"vendor-id";

/// The program of a server, as it names itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// The vendor.
    pub vendor: String,
    /// The program.
    pub name: String,
    /// The version of the program.
    pub version: String,
}

impl Product {
    fn encode(&self, out: &mut BytesMut) {
        for text in [&self.vendor, &self.name, &self.version] {
            put_string(out, text.as_bytes());
        }
        // The build number.
        out.put_u64(0);
    }

    /// `None` for data of another form: they are only information.
    fn decode(data: &[u8]) -> Option<Product> {
        let mut fields = Fields::new(data);
        let mut text = || Some(String::from_utf8_lossy(fields.string().ok()?).into_owned());
        Some(Product { vendor: text()?, name: text()?, version: text()? })
    }
}

/// The server's first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The protocol version of the server.
    pub version: u32,
    /// The offered extensions that are supported, in their supported versions.
    pub extensions: Extensions,
    /// The program of the server, if it names itself.
    pub product: Option<Product>,
}

impl Version {
    /// Appends the whole packet.
    pub fn encode(&self, out: &mut BytesMut) {
        put_sized(out, 0, |out| {
            out.put_u8(TYPE_VERSION);
            out.put_u32(self.version);
            for extension in self.extensions.iter() {
                put_string(out, extension.name().as_bytes());
                put_string(out, extension.version().as_bytes());
            }
            if let Some(product) = &self.product {
                put_string(out, VENDOR_ID);
                put_sized(out, 0, |out| product.encode(out));
            }
        });
    }

    /// Decodes a packet without its length field. Skips unknown extensions.
    pub fn decode(packet: &[u8]) -> Result<Version, Malformed> {
        let mut fields = Fields::new(packet);
        match fields.u8()? {
            TYPE_VERSION => {}
            other => return Err(Malformed::UnknownType(other)),
        }
        let version = fields.u32()?;
        let mut extensions = Extensions::default();
        let mut product = None;
        while fields.left() > 0 {
            let (name, data) = (fields.string()?, fields.string()?);
            if name == VENDOR_ID {
                product = Product::decode(data);
            }
            if let Some(extension) = Extension::from_name(name)
                && data == extension.version().as_bytes()
            {
                extensions.insert(extension);
            }
        }
        Ok(Version { version, extensions, product })
    }
}

/// The reply to `limits@openssh.com`; zero means that the server announces no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Longest packet.
    pub packet_bytes: u64,
    /// Longest READ.
    pub read_bytes: u64,
    /// Longest WRITE.
    pub write_bytes: u64,
    /// Maximum number of open handles.
    pub open_handles: u64,
}

// `StatVfs` is the reply to `statvfs@openssh.com` and `fstatvfs@openssh.com`.
fields_of! {
    StatVfs {
        block_size, fragment_size, blocks, blocks_free, blocks_available, files, files_free,
        files_available, fsid, flags, name_max
    }
    Limits { packet_bytes, read_bytes, write_bytes, open_handles }
    SeekOffset { 0 }
    DigestAlgorithm { 0 }
}

/// The reply to `users-groups-by-id@openssh.com`: one name for each requested id, empty for an
/// unknown id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsersGroups {
    /// Names of the users.
    pub users: Vec<Bytes>,
    /// Names of the groups.
    pub groups: Vec<Bytes>,
}

impl UsersGroups {
    /// Encodes the body of an EXTENDED_REPLY.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        for names in [&self.users, &self.groups] {
            put_sized(&mut out, 0, |out| names.iter().for_each(|name| put_string(out, name)));
        }
        out.freeze()
    }
}

/// The algorithm of a `digest@sshoal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestAlgorithm(pub u32);

impl DigestAlgorithm {
    /// MD5.
    pub const MD5: DigestAlgorithm = DigestAlgorithm(1);
    /// SHA-1.
    pub const SHA1: DigestAlgorithm = DigestAlgorithm(2);
    /// SHA-256.
    pub const SHA256: DigestAlgorithm = DigestAlgorithm(3);
    /// BLAKE3 with 32 bytes and without a key.
    pub const BLAKE3: DigestAlgorithm = DigestAlgorithm(4);
}

/// Longest digest, in bytes.
const MAX_DIGEST_BYTES: usize = 64;

/// The reply to `digest@sshoal`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDigest {
    /// The attributes of the file while it was read.
    pub attrs: FileAttrs,
    /// The digest of the whole content.
    pub digest: Bytes,
}

impl Field<'_> for FileDigest {
    fn put(&self, out: &mut BytesMut) {
        self.attrs.put(out);
        put_string(out, &self.digest);
    }

    fn get(fields: &mut Fields<'_>) -> Result<FileDigest, Malformed> {
        let (attrs, digest) = (Field::get(fields)?, fields.string()?);
        if digest.len() > MAX_DIGEST_BYTES {
            return Err(Malformed::BadValue("a digest longer than 64 bytes"));
        }
        Ok(FileDigest { attrs, digest: Bytes::copy_from_slice(digest) })
    }
}

/// The reply to `read-file@sshoal`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileContent {
    /// The attributes of the file.
    pub attrs: FileAttrs,
    /// The whole content; `None` if it is longer than requested, or was changed meanwhile.
    pub data: Option<Bytes>,
}

/// A decoded content is a part of the body, without a copy.
impl Body for FileContent {
    fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.attrs.put(&mut out);
        self.data.is_some().put(&mut out);
        put_string(&mut out, self.data.as_deref().unwrap_or_default());
        out.freeze()
    }

    fn decode(body: &Bytes) -> Result<FileContent, Malformed> {
        let mut fields = Fields::new(body);
        let (attrs, is_whole) = Field::get(&mut fields)?;
        let data = body.slice_ref(fields.string()?);
        fields.finish()?;
        Ok(FileContent { attrs, data: bool::then_some(is_whole, data) })
    }
}

/// Longest value of an extended attribute, and longest list of names, in bytes: Linux's.
pub const MAX_XATTR_BYTES: usize = 64 << 10;

/// The reply to `getxattr@sshoal`: the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrValue(pub Bytes);

/// A decoded value is a copy, since values are kept and are mostly short.
impl Field<'_> for XattrValue {
    fn put(&self, out: &mut BytesMut) {
        put_string(out, &self.0);
    }

    fn get(fields: &mut Fields<'_>) -> Result<XattrValue, Malformed> {
        match fields.string()? {
            value if value.len() <= MAX_XATTR_BYTES => {
                Ok(XattrValue(Bytes::copy_from_slice(value)))
            }
            _ => Err(Malformed::BadValue("an extended attribute longer than 64 KiB")),
        }
    }
}

/// The reply to `listxattr@sshoal` and to `dirxattrs@sshoal`: names, of attributes or of entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XattrNames(pub Vec<Bytes>);

impl Field<'_> for XattrNames {
    fn put(&self, out: &mut BytesMut) {
        self.0.iter().for_each(|name| put_string(out, name));
    }

    fn get(fields: &mut Fields<'_>) -> Result<XattrNames, Malformed> {
        let (mut names, mut len) = (Vec::new(), 0);
        while fields.left() > 0 {
            let name = fields.string()?;
            len += name.len() + 1;
            if name.is_empty() || name.contains(&0) || len > MAX_XATTR_BYTES {
                return Err(Malformed::BadValue("an invalid list of names"));
            }
            names.push(Bytes::copy_from_slice(name));
        }
        Ok(XattrNames(names))
    }
}

/// The reply to `lseek@sshoal`: the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeekOffset(pub u64);
