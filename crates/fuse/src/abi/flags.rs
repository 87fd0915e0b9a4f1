//! Flag bits of the protocol, including those newer than the headers of distributions.

/// Capabilities negotiated by INIT. Those from bit 32 on are sent in `flags2`, and are valid only
/// together with [`init::INIT_EXT`].
#[allow(missing_docs)] // Named as in the header, which describes them.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `fuse_setattr_in.valid`
#[allow(missing_docs)] // Named as in the header, which describes them.
pub mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `fuse_open_out.open_flags`
#[allow(missing_docs)] // Named as in the header, which describes them.
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// `fuse_open_in.open_flags`: clear set-user-ID and set-group-ID bits.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `fuse_write_in.write_flags`: from the page cache, `fh` is a guess.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `fuse_write_in.write_flags`: clear set-user-ID and set-group-ID bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fuse_lk_in.lk_flags`: a `flock` lock, not a POSIX one.
pub const LK_FLOCK: u32 = 1 << 0;
/// `fuse_notify_inval_entry_out.flags`: expire the name and do not drop it (since 7.38, Linux 6.2).
pub const EXPIRE_ONLY: u32 = 1 << 0;
