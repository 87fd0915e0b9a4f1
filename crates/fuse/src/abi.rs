//! The wire format of `/dev/fuse`: the structures of `include/uapi/linux/fuse.h` in the machine's
//! byte order, with their encoding and decoding.
//!
//! Covers protocol 7.31 to 7.45. Fields are named as in the header. Every structure is a sequence
//! of integers without padding, so [`Wire::SIZE`] is also its `sizeof`; a test compares them.
//! Nothing here interprets the values, and nothing allocates except [`Wire::put`].

pub mod flags;
pub mod opcode;

/// The protocol's only major version.
pub const MAJOR: u32 = 7;
/// The minor version that this crate replies with. Later features (7.43 to 7.45) are negotiated by
/// flags or by `ENOSYS`, not by the number.
pub const MINOR: u32 = 42;
/// The oldest supported minor version: that of Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// Length of the header of every request.
pub const IN_HEADER_SIZE: usize = InHeader::SIZE;
/// Length of the header of every reply.
pub const OUT_HEADER_SIZE: usize = OutHeader::SIZE;

/// A structure with a fixed size on the wire.
pub trait Wire: Sized {
    /// Length on the wire in bytes.
    const SIZE: usize;

    /// Decodes a value from the front of `bytes`; `None` if it is too short, which may shorten
    /// `bytes`.
    fn take(bytes: &mut &[u8]) -> Option<Self>;

    /// Appends this value to `out`.
    fn put(&self, out: &mut Vec<u8>);
}

macro_rules! wire_integers {
    ($($integer:ty)*) => {$(
        impl Wire for $integer {
            const SIZE: usize = size_of::<$integer>();

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (first, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(<$integer>::from_ne_bytes(*first))
            }

            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

wire_integers! { u16 i32 u32 i64 u64 }

impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    const SIZE: usize = T::SIZE * N;

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let mut all = [T::default(); N];
        for one in &mut all {
            *one = T::take(bytes)?;
        }
        Some(all)
    }

    fn put(&self, out: &mut Vec<u8>) {
        for one in self {
            one.put(out);
        }
    }
}

macro_rules! wire_structs {
    ($($(#[$meta:meta])* $name:ident = $size:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[allow(missing_docs)] // The header and the protocol's documentation name them.
            pub struct $name { $(pub $field: $type,)* }

            impl Wire for $name {
                const SIZE: usize = 0 $(+ <$type as Wire>::SIZE)*;

                fn take(bytes: &mut &[u8]) -> Option<Self> {
                    Some($name { $($field: Wire::take(bytes)?,)* })
                }

                fn put(&self, out: &mut Vec<u8>) {
                    $(self.$field.put(out);)*
                }
            }
        )*

        #[cfg(test)]
        const DOCUMENTED_SIZES: &[(&str, usize, usize)] =
            &[$((stringify!($name), $name::SIZE, $size),)*];
    };
}

wire_structs! {
    /// `fuse_in_header`: the header of every request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// `fuse_out_header`: the header of every reply. `error` is zero or a negated errno; for a
    /// notification its code, with `unique` zero.
    OutHeader = 16 { len: u32, error: i32, unique: u64, }
    /// `fuse_attr`
    AttrOut = 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    /// `fuse_entry_out`
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: AttrOut,
    }
    /// `fuse_attr_out`
    GetattrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: AttrOut, }
    /// `fuse_forget_in`
    ForgetIn = 8 { nlookup: u64, }
    /// `fuse_forget_one`
    ForgetOne = 16 { nodeid: u64, nlookup: u64, }
    /// `fuse_batch_forget_in`
    BatchForgetIn = 8 { count: u32, dummy: u32, }
    /// `fuse_getattr_in`
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64, }
    /// `fuse_mknod_in`
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// `fuse_mkdir_in`
    MkdirIn = 8 { mode: u32, umask: u32, }
    /// `fuse_rename_in`
    RenameIn = 8 { newdir: u64, }
    /// `fuse_rename2_in`
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32, }
    /// `fuse_link_in`
    LinkIn = 8 { oldnodeid: u64, }
    /// `fuse_setattr_in`
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64,
        ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    /// `fuse_open_in`
    OpenIn = 8 { flags: u32, open_flags: u32, }
    /// `fuse_create_in`
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// `fuse_open_out`
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32, }
    /// `fuse_release_in`
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// `fuse_flush_in`
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// `fuse_read_in`
    ReadIn = 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// `fuse_write_in`
    WriteIn = 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// `fuse_write_out`
    WriteOut = 8 { size: u32, padding: u32, }
    /// `fuse_statfs_out`
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// `fuse_fsync_in`
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32, }
    /// `fuse_setxattr_in` without `FUSE_SETXATTR_EXT`, which this crate never negotiates.
    SetxattrIn = 8 { size: u32, flags: u32, }
    /// `fuse_getxattr_in`
    GetxattrIn = 8 { size: u32, padding: u32, }
    /// `fuse_getxattr_out`
    GetxattrOut = 8 { size: u32, padding: u32, }
    /// `fuse_file_lock`
    FileLock = 24 { start: u64, end: u64, type_: u32, pid: u32, }
    /// `fuse_lk_in`
    LkIn = 48 { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32, }
    /// `fuse_lk_out`
    LkOut = 24 { lk: FileLock, }
    /// `fuse_access_in`
    AccessIn = 8 { mask: u32, padding: u32, }
    /// The part of `fuse_init_in` that every supported kernel sends; `flags2` follows from 7.36 on.
    InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    /// `fuse_init_out`
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    /// `fuse_interrupt_in`
    InterruptIn = 8 { unique: u64, }
    /// `fuse_fallocate_in`
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// `fuse_lseek_in`
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// `fuse_lseek_out`
    LseekOut = 8 { offset: u64, }
    /// `fuse_copy_file_range_in`
    CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64,
        flags: u64,
    }
    /// `fuse_copy_file_range_out`: the reply to `FUSE_COPY_FILE_RANGE_64` (7.45).
    CopyFileRangeOut = 8 { bytes_copied: u64, }
    /// `fuse_statx_in` (7.39)
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    /// `fuse_sx_time` (7.39)
    SxTime = 16 { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    /// `fuse_statx` (7.39)
    Statx = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime,
        btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// `fuse_statx_out` (7.39)
    StatxOut = 288 {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx,
    }
    /// `fuse_dirent` without its name, which follows, padded to 8 bytes.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, type_: u32, }
    /// `fuse_notify_inval_inode_out`
    NotifyInvalInode = 24 { ino: u64, off: i64, len: i64, }
    /// `fuse_notify_inval_entry_out`
    NotifyInvalEntry = 16 { parent: u64, namelen: u32, flags: u32, }
    /// `fuse_notify_prune_out`; node ids follow
    NotifyPrune = 16 { count: u32, padding: u32, spare: u64, }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_documented_sizes() {
        for (name, size, documented) in DOCUMENTED_SIZES {
            assert_eq!(size, documented, "{name}");
        }
        // Positions of reply fields; the test above would not notice a wrong offset.
        let init = InitOut {
            max_background: 0x1111,
            congestion_threshold: 0x2222,
            max_write: 0x3333_3333,
            time_gran: 0x4444_4444,
            max_pages: 0x5555,
            flags2: 0x6666_6666,
            max_stack_depth: 0x7777_7777,
            ..InitOut::default()
        };
        let mut bytes = Vec::new();
        init.put(&mut bytes);
        assert_eq!(bytes[16..18], [0x11; 2]);
        assert_eq!(bytes[18..20], [0x22; 2]);
        assert_eq!(bytes[20..24], [0x33; 4]);
        assert_eq!(bytes[24..28], [0x44; 4]);
        assert_eq!(bytes[28..30], [0x55; 2]);
        assert_eq!(bytes[32..36], [0x66; 4]);
        assert_eq!(bytes[36..40], [0x77; 4]);
    }

    #[test]
    fn encoding_and_decoding_are_inverse() {
        let header = InHeader {
            len: 40,
            opcode: 1,
            unique: 2,
            nodeid: 3,
            uid: 4,
            gid: 5,
            pid: 6,
            total_extlen: 7,
            padding: 8,
        };
        let mut bytes = Vec::new();
        header.put(&mut bytes);
        assert_eq!(bytes.len(), InHeader::SIZE);
        assert_eq!(InHeader::take(&mut &bytes[..]), Some(header));
        assert_eq!(InHeader::take(&mut &bytes[..39]), None);
    }
}
