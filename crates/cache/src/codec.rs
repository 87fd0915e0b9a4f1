//! The encoding of the store's own files: little-endian integers, byte strings with a length
//! prefix, checksums. Pure: bytes in, value out.
//!
//! A reader allocates no more memory than its input has.

use base::{Attr, ChangeId, FileId, FileKind, InodeAttr, Timestamp};
use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use crate::digest::Digest;

/// Length of a [`checksum`] in bytes.
pub(crate) const CHECKSUM_BYTES: usize = 16;

/// In the bits of `st_mode`: the attributes of an inode follow.
const HAS_INODE: u32 = 1 << 31;

/// Detects damage: 128 bits of XXH3. Only the user writes here, so it has to detect accidents, not
/// attacks; it does so at the speed of memory.
pub(crate) fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    xxh3_128(bytes).to_le_bytes()
}

/// The checksum of bytes at a position: equal bytes at another position have another one.
pub(crate) fn checksum_at(bytes: &[u8], seed: u64) -> [u8; CHECKSUM_BYTES] {
    xxh3_128_with_seed(bytes, seed).to_le_bytes()
}

/// Builds a byte string.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Bytes with a length prefix. Strings longer than 4 GiB do not occur.
    pub(crate) fn string(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u32(bytes.len() as u32).raw(bytes)
    }

    pub(crate) fn time(&mut self, time: Timestamp) -> &mut Writer {
        self.raw(&time.secs.to_le_bytes()).u32(time.nanos)
    }

    pub(crate) fn attr(&mut self, attr: &Attr) -> &mut Writer {
        let flag = if attr.inode.is_some() { HAS_INODE } else { 0 };
        self.u32(attr.mode() | flag).u64(attr.size).u32(attr.uid).u32(attr.gid);
        self.time(attr.atime).time(attr.mtime);
        if let Some(inode) = &attr.inode {
            self.inode(inode);
        }
        self
    }

    fn inode(&mut self, inode: &InodeAttr) -> &mut Writer {
        self.optional(inode.id, |it, id| {
            it.u64(id.device).u64(id.number).optional(id.btime, |it, btime| it.time(btime))
        });
        self.optional(inode.change, |it, change| it.u64(change.inode).time(change.ctime));
        self.u32(inode.links).u64(inode.blocks).u32(inode.rdev.0).u32(inode.rdev.1);
        self.u8(match inode.xattrs {
            None => 0,
            Some(false) => 1,
            Some(true) => 2,
        })
    }

    pub(crate) fn optional_attr(&mut self, attr: Option<&Attr>) -> &mut Writer {
        self.optional(attr, |it, attr| it.attr(attr))
    }

    fn optional<T>(
        &mut self,
        value: Option<T>,
        write: impl for<'a> FnOnce(&'a mut Writer, T) -> &'a mut Writer,
    ) -> &mut Writer {
        match value {
            Some(value) => write(self.u8(1), value),
            None => self.u8(0),
        }
    }

    /// The bytes, followed by their checksum.
    pub(crate) fn seal(mut self) -> Vec<u8> {
        let sum = checksum(&self.0);
        self.raw(&sum);
        self.0
    }
}

/// Decodes a byte string. After the first `None` its state is undefined.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// A reader of the output of [`Writer::seal`]; `None` if any bit differs.
    pub(crate) fn sealed(bytes: &'a [u8]) -> Option<Reader<'a>> {
        let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_BYTES)?)?;
        (checksum(body) == sum).then_some(Reader(body))
    }

    pub(crate) fn raw(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.raw(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        Some(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.raw(len as usize)
    }

    pub(crate) fn digest(&mut self) -> Option<Digest> {
        Some(Digest::from_bytes(self.array()?))
    }

    pub(crate) fn time(&mut self) -> Option<Timestamp> {
        let secs = i64::from_le_bytes(self.array()?);
        let nanos = self.u32()?;
        (nanos < 1_000_000_000).then_some(Timestamp { secs, nanos })
    }

    pub(crate) fn attr(&mut self) -> Option<Attr> {
        let mode = self.u32()?;
        Some(Attr {
            kind: FileKind::from_mode(mode)?,
            perm: mode & 0o7777,
            size: self.u64()?,
            uid: self.u32()?,
            gid: self.u32()?,
            atime: self.time()?,
            mtime: self.time()?,
            inode: if mode & HAS_INODE == 0 { None } else { Some(self.inode()?) },
        })
    }

    fn inode(&mut self) -> Option<InodeAttr> {
        Some(InodeAttr {
            id: self.optional(|it| {
                let (device, number) = (it.u64()?, it.u64()?);
                Some(FileId { device, number, btime: it.optional(Reader::time)? })
            })?,
            change: self.optional(|it| Some(ChangeId { inode: it.u64()?, ctime: it.time()? }))?,
            links: self.u32()?,
            blocks: self.u64()?,
            rdev: (self.u32()?, self.u32()?),
            xattrs: match self.u8()? {
                0 => None,
                1 => Some(false),
                2 => Some(true),
                _ => return None,
            },
        })
    }

    pub(crate) fn optional_attr(&mut self) -> Option<Option<Attr>> {
        self.optional(Reader::attr)
    }

    fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.flag()? {
            true => read(self).map(Some),
            false => Some(None),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `value`, if no bytes are left.
    pub(crate) fn end<T>(&self, value: T) -> Option<T> {
        self.is_empty().then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_breaks_with_any_bit() {
        let mut writer = Writer::default();
        writer.u32(7).string(b"abc");
        let sealed = writer.seal();
        let mut reader = Reader::sealed(&sealed).unwrap();
        assert_eq!((reader.u32(), reader.string()), (Some(7), Some(&b"abc"[..])));
        assert!(reader.is_empty());
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Reader::sealed(&flipped).is_none(), "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert!(Reader::sealed(&sealed[..len]).is_none(), "{len} bytes");
        }
    }

    #[test]
    fn a_length_without_its_bytes_is_refused() {
        assert_eq!(Reader::new(&u32::MAX.to_le_bytes()).string(), None);
        assert_eq!(Reader::new(&[1, 0, 0]).u32(), None);
        assert_eq!(Reader::new(&[2]).flag(), None);
    }

    #[test]
    fn the_same_bytes_elsewhere_have_another_checksum() {
        assert_ne!(checksum_at(&[0; 100], 1), checksum_at(&[0; 100], 2));
    }
}
