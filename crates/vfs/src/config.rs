//! Settings of a mount above the remote.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::Timestamp;

use crate::cover::KERNEL_TTL;

/// When the content and the attributes of a file may be taken from a cache.
///
/// `docs/semantics.md` lists the promises of each mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// No cache: each call is a request to the server.
    Strict,
    /// Every open validates the cached content.
    #[default]
    CloseToOpen,
    /// What the server watches is valid until it reports a change; all else as in `CloseToOpen`.
    Watch,
    /// Caches are valid until their time-out, also at an open.
    Timeout,
    /// The tree never changes: cached data is valid for ever.
    Immutable,
}

/// What an open does with the kernel's pages of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageCache {
    /// Keeps them if they are proven to be of the present content.
    #[default]
    Validated,
    /// Keeps them if size and mtime are the same (`auto_cache`).
    SameTime,
    /// Always keeps them (`kernel_cache`).
    Always,
    /// Does not use the page cache (`direct_io`).
    Never,
}

/// How long an answer is valid: at first a tenth of the file's age by its mtime, doubled each time
/// that the file is found unchanged, but at least `min` and at most `max`. After a visible change,
/// `min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// For files that have changed lately.
    pub min: Duration,
    /// For files that have not changed for long.
    pub max: Duration,
}

impl Timeout {
    /// A time-out that does not depend on the file.
    pub fn fixed(time: Duration) -> Timeout {
        Timeout { min: time, max: time }
    }

    /// The first time-out of a file with this `mtime` (seconds of Unix time). A wrong server clock
    /// makes it longer or shorter, within the bounds.
    pub(crate) fn at_age(self, mtime: i64) -> Duration {
        /// As in NFS clients: a file unchanged for ten hours will hardly change in the next one.
        const SHARE_OF_AGE: i64 = 10;
        let age = Timestamp::now().secs.saturating_sub(mtime);
        let share = u64::try_from(age / SHARE_OF_AGE).unwrap_or(0);
        Duration::from_secs(share).clamp(self.min, self.max)
    }
}

/// Which targets of symbolic links the kernel may see. It resolves them on this machine, so a
/// server could point a link to any local file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Targets inside the mount; absolute ones below the remote root or the mount point are made
    /// relative. Others are `EPERM`.
    #[default]
    Inside,
    /// Only relative targets without `..` (`contain_symlinks`); others are `EPERM`.
    Strict,
    /// All targets, unchanged (`no_contain_symlinks`).
    Any,
}

/// The remote root as an absolute path without links in it, once it is known.
pub type RemoteRoot = Arc<OnceLock<Vec<u8>>>;

/// Translation of owners between this machine and the remote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    /// That of users.
    pub uids: Ids,
    /// That of groups.
    pub gids: Ids,
}

/// Translation of user or group ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ids {
    /// Ids are not translated.
    #[default]
    Same,
    /// Swaps the remote id of the login and the local id of the user.
    Swap(u32, u32),
    /// Remote id to local id.
    Table {
        /// The table.
        local_ids: HashMap<u32, u32>,
        /// Whether an id that is missing in the table is not translated; otherwise its use fails.
        others_same: bool,
    },
}

/// Attributes that every file appears to have, whatever the remote reports (`uid=`, `gid=`,
/// `umask=` …).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Permissions of everything but directories are `0o777` without these bits.
    pub file_umask: Option<u32>,
    /// Permissions of directories are `0o777` without these bits.
    pub dir_umask: Option<u32>,
}

/// What is requested before a program needs it, besides readahead. Each level includes those before
/// it; none is needed for correctness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prefetch {
    /// Nothing.
    None,
    /// Listings of directories.
    Listings,
    /// Confirmations that cached files are unchanged.
    Metadata,
    /// Whole small files.
    #[default]
    All,
}

/// Settings of a [`Vfs`](crate::Vfs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// When cached data is valid.
    pub consistency: Consistency,
    /// What an open does with the kernel's pages.
    pub page_cache: PageCache,
    /// Time-out of attributes and names of all files but directories (NFS: `acregmin`, `acregmax`).
    pub files: Timeout,
    /// Time-out of attributes and names of directories (NFS: `acdirmin`, `acdirmax`).
    pub dirs: Timeout,
    /// How long an answer about a file serves as the validation of an open (`open_revalidate`).
    /// Zero: each open sends a request.
    pub open_revalidate: Duration,
    /// User and group id of the login at the remote, if known. They decide which opens the server
    /// would refuse.
    pub login: Option<(u32, u32)>,
    /// How long the kernel and the directory cache may keep that a name is absent (`acnegative`).
    pub negative: Duration,
    /// Upper limit of the kernel's time-out for names (`entry_timeout`).
    pub kernel_entry: Option<Duration>,
    /// Upper limit of the kernel's time-out for attributes (`attr_timeout`).
    pub kernel_attr: Option<Duration>,
    /// Which targets of symbolic links are shown.
    pub links: Links,
    /// Make absolute targets below the remote root relative, with any `links`.
    pub transform_links: bool,
    /// The paths of the remote root, one for each server that shows it. While none is known, no
    /// absolute target is below it.
    pub remote_roots: Vec<RemoteRoot>,
    /// Absolute paths that lead to the mount point: absolute targets below them are inside, too.
    /// Programs make such links in the mount.
    pub mount_points: Vec<Vec<u8>>,
    /// The remote shows files of several servers: their inode numbers are not shown as they are,
    /// and some may tell files apart while others do not.
    pub is_union: bool,
    /// Translation of owners.
    pub idmap: IdMap,
    /// Attributes that replace the remote's.
    pub shown: Shown,
    /// While the remote is unreachable, serve cached data of any age (`stale=ok`).
    pub serve_stale: bool,
    /// A write returns when the server has acknowledged it (`sshfs_sync`).
    pub sync_writes: bool,
    /// Bytes of readahead for sequential and strided readers, for the whole mount; 0 for none
    /// (`no_readahead`).
    pub readahead_bytes: u64,
    /// What is prefetched (`prefetch`).
    pub prefetch: Prefetch,
    /// Bytes written and not yet acknowledged by the server, for the whole mount. At this bound
    /// writers wait. At least 1.
    pub dirty_bytes: u32,
    /// Bytes written and not yet acknowledged by the server, for one file.
    pub dirty_file_bytes: u64,
    /// Files of at least this size are opened at the remote each time, so that [`Vfs::backing`] can
    /// return a local file: the kernel then keeps no pages of them. Only for mounts where nothing
    /// can be changed, since a reader of the local file does not see writes. `None`: no file.
    ///
    /// [`Vfs::backing`]: crate::Vfs::backing
    pub backing_from_bytes: Option<u64>,
    /// Bound of the memory for inodes and listings. Above it the kernel is requested to forget the
    /// least recently used inodes ([`Invalidate::evict`](crate::Invalidate)).
    pub metadata_bytes: usize,
}

impl Default for Config {
    fn default() -> Config {
        let timeout = Timeout { min: Duration::from_secs(1), max: Duration::from_secs(20) };
        Config {
            consistency: Consistency::default(),
            page_cache: PageCache::default(),
            files: timeout,
            dirs: timeout,
            open_revalidate: Duration::from_secs(1),
            login: None,
            negative: Duration::from_secs(1),
            kernel_entry: None,
            kernel_attr: None,
            links: Links::default(),
            transform_links: false,
            remote_roots: Vec::new(),
            mount_points: Vec::new(),
            is_union: false,
            idmap: IdMap::default(),
            shown: Shown::default(),
            serve_stale: false,
            sync_writes: false,
            readahead_bytes: 64 << 20,
            prefetch: Prefetch::default(),
            dirty_bytes: 128 << 20,
            dirty_file_bytes: 32 << 20,
            backing_from_bytes: None,
            // With the rest of an idle process, 64 MiB are resident after a walk over a million
            // files. Room for all of Linux's sources, except a few thousand files.
            metadata_bytes: 44 << 20,
        }
    }
}

impl Config {
    /// The settings that `consistency` forces.
    pub(crate) fn effective(mut self) -> Config {
        /// Practically for ever, and far from any overflow.
        const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);
        self.dirty_bytes = self.dirty_bytes.max(1);
        for time in [&mut self.files, &mut self.dirs] {
            time.min = time.min.min(time.max);
        }
        match self.consistency {
            Consistency::CloseToOpen | Consistency::Timeout => {}
            Consistency::Watch => {
                // The kernel uses a name or attributes without a report for no longer than that.
                // When they expire, they are answered from memory.
                let cap = |time: Option<Duration>| time.map_or(KERNEL_TTL, |it| it.min(KERNEL_TTL));
                self.kernel_entry = Some(cap(self.kernel_entry));
                self.kernel_attr = Some(cap(self.kernel_attr));
            }
            Consistency::Strict => {
                self.files = Timeout::fixed(Duration::ZERO);
                self.dirs = Timeout::fixed(Duration::ZERO);
                self.negative = Duration::ZERO;
                self.open_revalidate = Duration::ZERO;
                self.page_cache = PageCache::Never;
                self.readahead_bytes = 0;
            }
            Consistency::Immutable => {
                self.files = Timeout::fixed(FOR_EVER);
                self.dirs = Timeout::fixed(FOR_EVER);
                self.negative = FOR_EVER;
                self.page_cache = PageCache::Always;
            }
        }
        self
    }
}
