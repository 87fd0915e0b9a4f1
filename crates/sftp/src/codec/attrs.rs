//! File attributes of the protocol, each of them optional.

use base::Timestamp;
use bytes::{BufMut, BytesMut};

use super::extension::Extension;
use super::wire::{Field, Fields, Malformed, fields_of, put_sized, put_string};

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

fields_of! {
    Owner { uid, gid }
    Times { atime, mtime }
}

/// Encodes and decodes optional fields in this order, each with its bit in a mask.
macro_rules! optional_fields {
    ($attrs:ident { $($field:ident: $bit:expr,)* }) => {
        impl $attrs {
            /// The bits of the fields that are present.
            fn present(&self) -> u32 {
                let bit = |is_present: bool, bit: u32| if is_present { bit } else { 0 };
                0 $(| bit(self.$field.is_some(), $bit))*
            }

            fn put_present(&self, out: &mut BytesMut) {
                $(self.$field.iter().for_each(|value| value.put(out));)*
            }

            fn get_present(present: u32, fields: &mut Fields<'_>) -> Result<$attrs, Malformed> {
                let mut attrs = $attrs::default();
                $(if present & $bit != 0 {
                    attrs.$field = Some(Field::get(fields)?);
                })*
                Ok(attrs)
            }
        }
    };
}

/// The extended attribute of `attrs@sshoal`: each field is optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExactAttrs {
    /// Both times to be set are the present.
    pub touch: bool,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of the content.
    pub mtime: Option<Timestamp>,
    /// Last change of content or attributes.
    pub ctime: Option<Timestamp>,
    /// Creation.
    pub btime: Option<Timestamp>,
    /// Device and inode number, where they identify the entry.
    pub inode: Option<(u64, u64)>,
    /// The number of names.
    pub links: Option<u32>,
    /// Allocated space in units of 512 bytes.
    pub blocks: Option<u64>,
    /// Major and minor number of a device file.
    pub rdev: Option<(u32, u32)>,
    /// Whether there may be extended attributes.
    pub xattrs: Option<bool>,
    /// The inode number, where a change of the entry may change it.
    pub number: Option<u64>,
}

impl ExactAttrs {
    /// The bit that both times to be set are the present. It has no data.
    pub const TOUCH: u32 = 0x8000_0000;
    /// The bit of the atime in a mask of fields.
    pub const ATIME: u32 = 0x1;
    /// The bit of the mtime.
    pub const MTIME: u32 = 0x2;
    /// The bit of the ctime.
    pub const CTIME: u32 = 0x4;
    /// The bit of the time of creation.
    pub const BTIME: u32 = 0x8;
    /// The bit of the inode.
    pub const INODE: u32 = 0x10;
    /// The bit of the number of names.
    pub const LINKS: u32 = 0x20;
    /// The bit of the allocated space.
    pub const BLOCKS: u32 = 0x40;
    /// The bit of the device numbers.
    pub const RDEV: u32 = 0x80;
    /// The bit of the presence of extended attributes.
    pub const XATTRS: u32 = 0x100;
    /// The bit of an inode number that does not last.
    pub const NUMBER: u32 = 0x200;
    /// All fields of replies that are known here.
    pub const ALL: u32 = 0x3ff;

    fn mask(&self) -> u32 {
        self.present() | if self.touch { ExactAttrs::TOUCH } else { 0 }
    }

    /// Fields of later versions follow those that are known, and are skipped.
    fn decode(data: &[u8]) -> Result<ExactAttrs, Malformed> {
        let mut fields = Fields::new(data);
        let mask = fields.u32()?;
        let attrs = ExactAttrs::get_present(mask, &mut fields)?;
        Ok(ExactAttrs { touch: mask & ExactAttrs::TOUCH != 0, ..attrs })
    }
}

optional_fields! {
    ExactAttrs {
        atime: ExactAttrs::ATIME,
        mtime: ExactAttrs::MTIME,
        ctime: ExactAttrs::CTIME,
        btime: ExactAttrs::BTIME,
        inode: ExactAttrs::INODE,
        links: ExactAttrs::LINKS,
        blocks: ExactAttrs::BLOCKS,
        rdev: ExactAttrs::RDEV,
        xattrs: ExactAttrs::XATTRS,
        number: ExactAttrs::NUMBER,
    }
}

/// The attributes of a file.
///
/// Decoding skips extended attributes, except for that of `attrs@sshoal`.
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
    /// What the protocol has no fields for.
    pub exact: ExactAttrs,
}

impl FileAttrs {
    /// Attributes with permission bits only.
    pub fn with_permissions(permissions: u32) -> FileAttrs {
        FileAttrs { permissions: Some(permissions), ..FileAttrs::default() }
    }
}

optional_fields! {
    FileAttrs {
        size: SIZE,
        owner: OWNER,
        permissions: PERMISSIONS,
        times: TIMES,
    }
}

impl Field<'_> for FileAttrs {
    fn put(&self, out: &mut BytesMut) {
        let exact = self.exact.mask();
        out.put_u32(self.present() | if exact != 0 { EXTENDED } else { 0 });
        self.put_present(out);
        if exact != 0 {
            out.put_u32(1);
            put_string(out, Extension::Attrs.name().as_bytes());
            put_sized(out, 0, |out| {
                out.put_u32(exact);
                self.exact.put_present(out);
            });
        }
    }

    fn get(fields: &mut Fields<'_>) -> Result<FileAttrs, Malformed> {
        let flags = fields.u32()?;
        if flags & !(SIZE | OWNER | PERMISSIONS | TIMES | EXTENDED) != 0 {
            return Err(Malformed::BadValue("unknown attribute flags"));
        }
        let mut attrs = FileAttrs::get_present(flags, fields)?;
        if flags & EXTENDED != 0 {
            // Each takes at least eight bytes of the packet, so a huge count fails early.
            for _ in 0..fields.u32()? {
                let (name, data) = (fields.string()?, fields.string()?);
                if name == Extension::Attrs.name().as_bytes() {
                    attrs.exact = ExactAttrs::decode(data)?;
                }
            }
        }
        Ok(attrs)
    }
}
