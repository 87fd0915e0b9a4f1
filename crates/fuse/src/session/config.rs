//! What can be set about a session, and what the kernel made of it.

use std::time::Duration;

use crate::abi::flags::init;

/// Largest WRITE and READ: more would only make buffers larger, since no server takes a mebibyte at
/// once.
const MAX_WRITE: u32 = 4 << 20;

/// What the kernel takes unless `fs.fuse.max_pages_limit` (Linux 6.13) says otherwise: 256 pages of
/// 4 KiB.
const USUAL_MAX_WRITE: u32 = 1 << 20;

/// Bytes of the largest request that this machine's kernel makes.
fn kernel_max_write() -> u32 {
    let limit = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    limit.map_or(USUAL_MAX_WRITE, |pages| max_write_of(&pages))
}

fn max_write_of(pages: &str) -> u32 {
    let pages: Option<u32> = pages.trim().parse().ok();
    pages.map_or(USUAL_MAX_WRITE, |pages| pages.saturating_mul(4096).clamp(4096, MAX_WRITE))
}

/// Room in a receive buffer besides a WRITE's data: its header and, by the kernel's rule, at least
/// a page.
const BUFFER_HEADROOM: usize = 4096;

/// Smallest receive buffer, so that the largest extended attribute (64 KiB) can be set whatever
/// `max_write` is.
const BUFFER_MIN: usize = 128 << 10;

/// When the kernel drops the cached data of a file because of new attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataInvalidation {
    /// When the size differs.
    OnSize,
    /// When the size or the time of last change differs. With a `ttl` of zero the kernel asks for
    /// the attributes before every single read.
    Auto,
    /// Never; only an open without `keep_cache` and [`Notifier`](crate::Notifier) drop it.
    #[default]
    Explicit,
}

/// Settings of a [`Session`](crate::Session).
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest WRITE in bytes, and largest READ past the page cache: a multiple of 4 KiB from
    /// 4 KiB to 4 MiB. The kernel holds it to `fs.fuse.max_pages_limit`, which is the default.
    pub max_write: u32,
    /// Largest readahead in bytes; the kernel may have a smaller one.
    pub max_readahead: u32,
    /// Requests in the background (readahead, asynchronous I/O) that the kernel keeps under way
    /// at most; for unprivileged mounts it has a limit of its own. Measured by others: 64 carry
    /// half again as much as the kernel's 12, more carry nothing more.
    pub max_background: u16,
    /// Requests in the background from which on the kernel takes the mount for congested and
    /// stops reading ahead: three quarters of `max_background`, as the kernel has it.
    pub congestion_threshold: u16,
    /// Unit of the file system's times in nanoseconds: a power of ten up to 1,000,000,000.
    pub time_granularity: u32,
    /// Tasks that read requests, 1 or 2. Two carry large reads on two cores; small requests are
    /// better off with one.
    pub readers: usize,
    /// Ask `readdirplus` for listings.
    pub readdirplus: bool,
    /// Keep targets of symbolic links until the inode is invalidated.
    pub cache_symlinks: bool,
    /// When cached data is dropped.
    pub data_invalidation: DataInvalidation,
    /// `fcntl(2)` locks are the file system's; else the kernel keeps them for this machine.
    pub posix_locks: bool,
    /// `flock(2)` locks are the file system's; else the kernel keeps them for this machine.
    pub flock_locks: bool,
    /// The file system takes set-id bits away, where a request says so (`kill_suidgid`), and when
    /// the owner changes. With this the kernel asks for the attribute `security.capability` before
    /// the first write to a file whose attributes it has learnt anew; without it, before each
    /// write, unless `getxattr` is answered with `ENOSYS`.
    pub handle_killpriv: bool,
    /// Allow shared mappings of files opened with `direct_io`.
    pub direct_io_mmap: bool,
    /// Use passthrough where the kernel has it.
    pub passthrough: bool,
    /// How long the end waits for operations under way.
    pub drain_limit: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_write: kernel_max_write(),
            max_readahead: USUAL_MAX_WRITE,
            max_background: 64,
            congestion_threshold: 48,
            time_granularity: 1,
            readers: 1,
            readdirplus: true,
            cache_symlinks: false,
            data_invalidation: DataInvalidation::default(),
            posix_locks: false,
            flock_locks: false,
            handle_killpriv: false,
            direct_io_mmap: true,
            passthrough: false,
            drain_limit: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// With every value in its range.
    pub(super) fn effective(mut self) -> Config {
        self.max_write = self.max_write.clamp(4096, MAX_WRITE) & !4095;
        self.max_background = self.max_background.max(1);
        self.congestion_threshold = self.congestion_threshold.clamp(1, self.max_background);
        self.time_granularity = self.time_granularity.clamp(1, 1_000_000_000);
        self.readers = self.readers.clamp(1, 2);
        self
    }

    /// Bytes of a receive buffer.
    pub(super) fn buffer_size(&self) -> usize {
        (self.max_write as usize).max(BUFFER_MIN) + BUFFER_HEADROOM
    }

    /// The capabilities to take, as far as they are offered.
    pub(super) fn capabilities(&self) -> u64 {
        let switches = [
            (self.readdirplus, init::DO_READDIRPLUS),
            (self.cache_symlinks, init::CACHE_SYMLINKS),
            (self.data_invalidation == DataInvalidation::Auto, init::AUTO_INVAL_DATA),
            (self.data_invalidation == DataInvalidation::Explicit, init::EXPLICIT_INVAL_DATA),
            (self.posix_locks, init::POSIX_LOCKS),
            (self.flock_locks, init::FLOCK_LOCKS),
            (self.handle_killpriv, init::HANDLE_KILLPRIV_V2),
            (self.direct_io_mmap, init::DIRECT_IO_ALLOW_MMAP),
            (self.passthrough, init::PASSTHROUGH),
        ];
        let always = init::ASYNC_READ
            | init::ATOMIC_O_TRUNC
            | init::BIG_WRITES
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::INIT_EXT;
        switches.iter().filter(|(on, _)| *on).fold(always, |all, (_, flag)| all | flag)
    }
}

/// What was agreed on with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor version of the protocol in use.
    pub minor: u32,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// Largest readahead in bytes, as far as INIT has to say about it; the backing device's
    /// `read_ahead_kb` (128 by default) counts too.
    pub max_readahead: u32,
    /// Capabilities that both sides have: bits of [`flags::init`](crate::abi::flags::init).
    pub capabilities: u64,
    /// The kernel can let all names expire at once (7.44, Linux 6.16).
    pub epochs: bool,
    /// The kernel can be asked to forget inodes that nobody uses (7.45, Linux 6.18).
    pub prunes: bool,
}

impl Negotiated {
    /// Whether backing files can be registered.
    #[must_use]
    pub fn passthrough(&self) -> bool {
        self.capabilities & init::PASSTHROUGH != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_large_as_the_kernel_has_it_within_bounds() {
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
