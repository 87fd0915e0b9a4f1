//! File attributes of the protocol, each of them optional.

use bytes::{BufMut, BytesMut};

use super::extension::Extension;
use super::wire::{Fields, Malformed, put_sized, put_string};

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

/// A time with nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactTime {
    /// Seconds since 1970.
    pub secs: i64,
    /// Below 1,000,000,000.
    pub nanos: u32,
}

/// The extended attribute of `attrs@sshoal`: each field is optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExactAttrs {
    /// Both times to be set are the present.
    pub touch: bool,
    /// Last access.
    pub atime: Option<ExactTime>,
    /// Last change of the content.
    pub mtime: Option<ExactTime>,
    /// Last change of content or attributes.
    pub ctime: Option<ExactTime>,
    /// Creation.
    pub btime: Option<ExactTime>,
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
        let flag = |is_present: bool, flag: u32| if is_present { flag } else { 0 };
        flag(self.touch, ExactAttrs::TOUCH)
            | flag(self.atime.is_some(), ExactAttrs::ATIME)
            | flag(self.mtime.is_some(), ExactAttrs::MTIME)
            | flag(self.ctime.is_some(), ExactAttrs::CTIME)
            | flag(self.btime.is_some(), ExactAttrs::BTIME)
            | flag(self.inode.is_some(), ExactAttrs::INODE)
            | flag(self.links.is_some(), ExactAttrs::LINKS)
            | flag(self.blocks.is_some(), ExactAttrs::BLOCKS)
            | flag(self.rdev.is_some(), ExactAttrs::RDEV)
            | flag(self.xattrs.is_some(), ExactAttrs::XATTRS)
            | flag(self.number.is_some(), ExactAttrs::NUMBER)
    }

    fn encode(&self, out: &mut BytesMut) {
        out.put_u32(self.mask());
        for time in [self.atime, self.mtime, self.ctime, self.btime].into_iter().flatten() {
            out.put_i64(time.secs);
            out.put_u32(time.nanos);
        }
        if let Some((device, number)) = self.inode {
            out.put_u64(device);
            out.put_u64(number);
        }
        self.links.into_iter().for_each(|links| out.put_u32(links));
        self.blocks.into_iter().for_each(|blocks| out.put_u64(blocks));
        if let Some((major, minor)) = self.rdev {
            out.put_u32(major);
            out.put_u32(minor);
        }
        self.xattrs.into_iter().for_each(|xattrs| out.put_u8(xattrs.into()));
        self.number.into_iter().for_each(|number| out.put_u64(number));
    }

    /// Fields of later versions follow those that are known, and are skipped.
    fn decode(data: &[u8]) -> Result<ExactAttrs, Malformed> {
        let mut fields = Fields::new(data);
        let mask = fields.u32()?;
        let has = |flag: u32| mask & flag != 0;
        let mut time = |flag: u32| has(flag).then(|| fields.exact_time()).transpose();
        let mut attrs = ExactAttrs {
            touch: has(ExactAttrs::TOUCH),
            atime: time(ExactAttrs::ATIME)?,
            mtime: time(ExactAttrs::MTIME)?,
            ctime: time(ExactAttrs::CTIME)?,
            btime: time(ExactAttrs::BTIME)?,
            ..ExactAttrs::default()
        };
        if has(ExactAttrs::INODE) {
            attrs.inode = Some((fields.u64()?, fields.u64()?));
        }
        if has(ExactAttrs::LINKS) {
            attrs.links = Some(fields.u32()?);
        }
        if has(ExactAttrs::BLOCKS) {
            attrs.blocks = Some(fields.u64()?);
        }
        if has(ExactAttrs::RDEV) {
            attrs.rdev = Some((fields.u32()?, fields.u32()?));
        }
        if has(ExactAttrs::XATTRS) {
            attrs.xattrs = Some(fields.u8()? != 0);
        }
        if has(ExactAttrs::NUMBER) {
            attrs.number = Some(fields.u64()?);
        }
        Ok(attrs)
    }
}

impl Fields<'_> {
    fn exact_time(&mut self) -> Result<ExactTime, Malformed> {
        match (self.u64()? as i64, self.u32()?) {
            (secs, nanos @ 0..1_000_000_000) => Ok(ExactTime { secs, nanos }),
            _ => Err(Malformed::BadValue("a time of more than 999,999,999 ns")),
        }
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

    pub(crate) fn encode(&self, out: &mut BytesMut) {
        let flag = |present: bool, flag: u32| if present { flag } else { 0 };
        out.put_u32(
            flag(self.size.is_some(), SIZE)
                | flag(self.owner.is_some(), OWNER)
                | flag(self.permissions.is_some(), PERMISSIONS)
                | flag(self.times.is_some(), TIMES)
                | flag(self.exact.mask() != 0, EXTENDED),
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
        if self.exact.mask() != 0 {
            out.put_u32(1);
            put_string(out, Extension::Attrs.name().as_bytes());
            put_sized(out, 0, |out| self.exact.encode(out));
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
                let (name, data) = (fields.string()?, fields.string()?);
                if name == Extension::Attrs.name().as_bytes() {
                    attrs.exact = ExactAttrs::decode(data)?;
                }
            }
        }
        Ok(attrs)
    }
}
