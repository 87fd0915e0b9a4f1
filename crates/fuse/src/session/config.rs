//! The configuration of a session, and the result of its negotiation.

use std::time::Duration;

use crate::abi::flags::init;
use crate::ring::effective_depth;

/// Maximum of READ and WRITE: more would only make buffers larger, since no server accepts a
/// mebibyte at once.
const MAX_WRITE: u32 = 4 << 20;

/// The kernel's limit unless `fs.fuse.max_pages_limit` (Linux 6.13) is set: 256 pages of 4 KiB.
const USUAL_MAX_WRITE: u32 = 1 << 20;

/// Length of the largest request of the running kernel.
fn kernel_max_write() -> u32 {
    let limit = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    limit.map_or(USUAL_MAX_WRITE, |pages| max_write_of(&pages))
}

fn max_write_of(pages: &str) -> u32 {
    let pages: Option<u32> = pages.trim().parse().ok();
    pages.map_or(USUAL_MAX_WRITE, |pages| pages.saturating_mul(4096).clamp(4096, MAX_WRITE))
}

/// The kernel's page size in the unit of `max_pages`. With larger pages, the kernel takes
/// `max_pages` for more bytes, which does no harm.
const PAGE: u32 = 4096;

/// Room in a receive buffer beside a WRITE's data: its header and, by the kernel's rule, at least a
/// page.
const BUFFER_HEADROOM: usize = 4096;

/// Smallest receive buffer, so that the largest extended attribute (64 KiB) can be set with any
/// `max_write`.
const BUFFER_MIN: usize = 128 << 10;

/// Settings of a [`Session`](crate::Session).
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest WRITE in bytes, and largest READ past the page cache: a multiple of 4 KiB from
    /// 4 KiB to 4 MiB. The kernel holds it to `fs.fuse.max_pages_limit`, which is the default.
    pub max_write: u32,
    /// Largest readahead in bytes; the kernel may use a smaller one.
    pub max_readahead: u32,
    /// Maximum number of background requests (readahead, asynchronous I/O) in flight; unprivileged
    /// mounts have a lower limit in the kernel. According to published measurements, 64 give half
    /// again the throughput of the kernel's default 12, and more give no gain.
    pub max_background: u16,
    /// Number of background requests from which the kernel considers the mount congested and stops
    /// reading ahead: three quarters of `max_background`, as in the kernel.
    pub congestion_threshold: u16,
    /// Tasks that read requests, 1 or 2. Two give more throughput of large reads on two cores;
    /// small requests are faster with one.
    pub readers: usize,
    /// Longest time that a reader polls for the next request before it sleeps, while requests
    /// follow each other quickly. Zero: never.
    pub poll_limit: Duration,
    /// Use `readdirplus` for listings.
    pub readdirplus: bool,
    /// Cache targets of symbolic links until the inode is invalidated.
    pub cache_symlinks: bool,
    /// The file system implements `fcntl(2)` locks; otherwise the kernel does, for this machine
    /// only.
    pub posix_locks: bool,
    /// The file system implements `flock(2)` locks; otherwise the kernel does, for this machine
    /// only.
    pub flock_locks: bool,
    /// The file system clears set-id bits if a request says so (`kill_suidgid`), and when the owner
    /// changes. With this, the kernel requests the attribute `security.capability` before the first
    /// write to a file after new attributes; without it, before each write, unless `getxattr`
    /// returns `ENOSYS`.
    pub handle_killpriv: bool,
    /// Use passthrough if the kernel supports it.
    pub passthrough: bool,
    /// Transfer requests through io_uring if the kernel offers it, with this number of entries for
    /// each possible processor: 4 to 128, as [`DEFAULT_DEPTH`](crate::DEFAULT_DEPTH). Each has
    /// memory for a WRITE of `max_write` bytes, which is used from the first such request on.
    pub io_uring: Option<u16>,
    /// Time that the end of the session waits for running operations.
    pub drain_limit: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_write: kernel_max_write(),
            max_readahead: USUAL_MAX_WRITE,
            max_background: 64,
            congestion_threshold: 48,
            readers: 1,
            poll_limit: Duration::ZERO,
            readdirplus: true,
            cache_symlinks: false,
            posix_locks: false,
            flock_locks: false,
            handle_killpriv: false,
            passthrough: false,
            io_uring: None,
            drain_limit: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// Brings every value into its range.
    pub(super) fn effective(mut self) -> Config {
        self.max_write = self.max_write.clamp(4096, MAX_WRITE) & !4095;
        if self.io_uring.is_some() {
            // The largest extended attribute has to fit into a payload.
            self.max_write = self.max_write.max(BUFFER_MIN as u32);
        }
        self.io_uring = self.io_uring.map(effective_depth);
        self.max_background = self.max_background.max(1);
        self.congestion_threshold = self.congestion_threshold.clamp(1, self.max_background);
        self.readers = self.readers.clamp(1, 2);
        self
    }

    /// Length of a receive buffer.
    pub(super) fn buffer_size(&self) -> usize {
        (self.max_write as usize).max(BUFFER_MIN) + BUFFER_HEADROOM
    }

    /// Length of the payload of an entry of io_uring: the kernel multiplies the number of pages by
    /// its page size.
    pub(super) fn payload_size(&self) -> usize {
        usize::from(self.max_pages()) * rustix::param::page_size()
    }

    /// `max_write` in pages of 4 KiB.
    pub(super) fn max_pages(&self) -> u16 {
        (self.max_write / PAGE) as u16
    }

    /// The capabilities to enable, if they are offered.
    ///
    /// Not among them is `FUSE_AUTO_INVAL_DATA`, with which the kernel requests attributes before each
    /// read if their `ttl` is zero; nor `FUSE_EXPLICIT_INVAL_DATA`: when a file has grown, pages with
    /// zeros after the old end would be shown. So new attributes drop cached data if the size differs.
    pub(super) fn capabilities(&self) -> u64 {
        let switches = [
            (self.readdirplus, init::DO_READDIRPLUS),
            (self.cache_symlinks, init::CACHE_SYMLINKS),
            (self.posix_locks, init::POSIX_LOCKS),
            (self.flock_locks, init::FLOCK_LOCKS),
            (self.handle_killpriv, init::HANDLE_KILLPRIV_V2),
            (self.passthrough, init::PASSTHROUGH),
        ];
        let always = init::ASYNC_READ
            | init::ATOMIC_O_TRUNC
            | init::BIG_WRITES
            | init::DONT_MASK
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::INIT_EXT
            | init::DIRECT_IO_ALLOW_MMAP;
        switches.iter().filter(|(on, _)| *on).fold(always, |all, (_, flag)| all | flag)
    }
}

/// The result of the negotiation with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor version of the protocol in use.
    pub minor: u32,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// Largest readahead in bytes, as negotiated by INIT; the backing device's `read_ahead_kb` (128
    /// by default) limits it too.
    pub max_readahead: u32,
    /// Capabilities of both sides: bits of [`flags::init`](crate::abi::flags::init).
    pub capabilities: u64,
    /// The kernel can expire all names at once (7.44, Linux 6.16).
    pub epochs: bool,
    /// The kernel can prune unused inodes on request (7.45, Linux 6.18).
    pub prunes: bool,
}

impl Negotiated {
    /// Whether backing files can be registered.
    pub fn passthrough(&self) -> bool {
        self.capabilities & init::PASSTHROUGH != 0
    }

    /// Whether a file can be mapped that was opened with `direct_io` (Linux 6.6).
    pub fn maps_direct_files(&self) -> bool {
        self.capabilities & init::DIRECT_IO_ALLOW_MMAP != 0
    }

    /// Whether requests are transferred through io_uring.
    pub fn io_uring(&self) -> bool {
        self.capabilities & init::OVER_IO_URING != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_request_follows_the_kernel_within_bounds() {
        for (pages, bytes) in [
            ("256\n", 1 << 20),
            ("512\n", 2 << 20),
            ("65535\n", MAX_WRITE),
            ("1\n", 4096),
            ("0\n", 4096),
            ("", USUAL_MAX_WRITE),
        ] {
            assert_eq!(max_write_of(pages), bytes, "{pages:?}");
        }
    }
}
