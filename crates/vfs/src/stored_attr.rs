//! Attributes as they are kept for each file. Most remotes send no [`InodeAttr`], so it has an
//! allocation of its own.

use base::{Attr, FileKind, InodeAttr, Timestamp};

/// Bytes of the allocation of an [`InodeAttr`].
pub(crate) const INODE_ATTR_BYTES: usize = size_of::<InodeAttr>() + 16;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct StoredAttr {
    kind: FileKind,
    perm: u32,
    size: u64,
    uid: u32,
    gid: u32,
    atime: Timestamp,
    mtime: Timestamp,
    inode: Option<Box<InodeAttr>>,
}

impl StoredAttr {
    /// The attributes.
    pub(crate) fn get(&self) -> Attr {
        let StoredAttr { kind, perm, size, uid, gid, atime, mtime, .. } = *self;
        Attr { kind, perm, size, uid, gid, atime, mtime, inode: self.inode.as_deref().copied() }
    }

    /// Whether it has an [`InodeAttr`].
    pub(crate) fn has_inode(&self) -> bool {
        self.inode.is_some()
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

impl From<Attr> for StoredAttr {
    fn from(attr: Attr) -> StoredAttr {
        let Attr { kind, perm, size, uid, gid, atime, mtime, inode } = attr;
        StoredAttr { kind, perm, size, uid, gid, atime, mtime, inode: inode.map(Box::new) }
    }
}
