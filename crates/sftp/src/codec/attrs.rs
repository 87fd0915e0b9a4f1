//! File attributes of the protocol, each of them optional.

use bytes::{BufMut, BytesMut};

use super::wire::{Fields, Malformed};

const SIZE: u32 = 0x1;
const OWNER: u32 = 0x2;
const PERMISSIONS: u32 = 0x4;
const TIMES: u32 = 0x8;
const EXTENDED: u32 = 0x8000_0000;

/// Both ids of a file's owner; the protocol carries both or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Both times of a file in seconds since 1970; the protocol carries both or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: u32,
    /// Last change of the content.
    pub mtime: u32,
}

/// The attributes of a file.
///
/// Decoding skips extended attributes: none are defined for version 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileAttrs {
    /// Length in bytes.
    pub size: Option<u64>,
    /// Owner.
    pub owner: Option<Owner>,
    /// File type and permission bits, as in `st_mode`.
    pub permissions: Option<u32>,
    /// Times.
    pub times: Option<Times>,
}

impl FileAttrs {
    /// Attributes with permission bits only.
    pub fn with_permissions(permissions: u32) -> FileAttrs {
        FileAttrs { permissions: Some(permissions), ..FileAttrs::default() }
    }

    pub(crate) fn encode(&self, out: &mut BytesMut) {
        let flag = |present: bool, flag: u32| if present { flag } else { 0 };
        out.put_u32(
            flag(self.size.is_some(), SIZE)
                | flag(self.owner.is_some(), OWNER)
                | flag(self.permissions.is_some(), PERMISSIONS)
                | flag(self.times.is_some(), TIMES),
        );
        if let Some(size) = self.size {
            out.put_u64(size);
        }
        if let Some(owner) = self.owner {
            out.put_u32(owner.uid);
            out.put_u32(owner.gid);
        }
        if let Some(permissions) = self.permissions {
            out.put_u32(permissions);
        }
        if let Some(times) = self.times {
            out.put_u32(times.atime);
            out.put_u32(times.mtime);
        }
    }

    pub(crate) fn decode(fields: &mut Fields<'_>) -> Result<FileAttrs, Malformed> {
        let flags = fields.u32()?;
        if flags & !(SIZE | OWNER | PERMISSIONS | TIMES | EXTENDED) != 0 {
            return Err(Malformed::BadValue("unknown attribute flags"));
        }
        let mut attrs = FileAttrs::default();
        if flags & SIZE != 0 {
            attrs.size = Some(fields.u64()?);
        }
        if flags & OWNER != 0 {
            attrs.owner = Some(Owner { uid: fields.u32()?, gid: fields.u32()? });
        }
        if flags & PERMISSIONS != 0 {
            attrs.permissions = Some(fields.u32()?);
        }
        if flags & TIMES != 0 {
            attrs.times = Some(Times { atime: fields.u32()?, mtime: fields.u32()? });
        }
        if flags & EXTENDED != 0 {
            // Each takes at least eight bytes of the packet, so a huge count fails early.
            for _ in 0..fields.u32()? {
                fields.string()?;
                fields.string()?;
            }
        }
        Ok(attrs)
    }
}
