//! What can be set about a mount's behaviour above the remote.

use std::collections::HashMap;
use std::time::Duration;

use base::Timestamp;

/// When the content and the attributes of a file may be taken from a cache.
///
/// `docs/semantics.md` says what each promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Nothing is cached: each call asks the server.
    Strict,
    /// Every open asks whether the file is still the one that is cached.
    #[default]
    CloseToOpen,
    /// Caches count until their time-out, also at open.
    Timeout,
    /// The tree never changes: what was seen once counts for ever.
    Immutable,
}

/// What happens to the kernel's pages of a file when it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageCache {
    /// Kept if the file is proven to be the one they are from.
    #[default]
    Validated,
    /// Kept if size and time of last change are the same (`auto_cache`).
    SameTime,
    /// Always kept (`kernel_cache`).
    Always,
    /// Not used at all (`direct_io`).
    Never,
}

/// How long something seen counts: at first a tenth of its age, as its time of last change tells
/// it, and doubled each time that it is found unchanged, but at least `min` and at most `max`.
/// After a change that was seen, `min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// After a change, and for what has changed lately.
    pub min: Duration,
    /// For what has not changed for long.
    pub max: Duration,
}

impl Timeout {
    /// The same time for everything.
    #[must_use]
    pub fn fixed(time: Duration) -> Timeout {
        Timeout { min: time, max: time }
    }

    /// For how long counts what was changed last at `mtime`, in seconds of Unix time, and is seen
    /// for the first time. What a server's clock is wrong by makes it count longer or shorter,
    /// within the bounds.
    pub(crate) fn at_age(self, mtime: i64) -> Duration {
        /// As NFS clients have it: what has not changed for ten hours will hardly do so now.
        const SHARE_OF_AGE: i64 = 10;
        let age = Timestamp::now().secs.saturating_sub(mtime);
        let share = u64::try_from(age / SHARE_OF_AGE).unwrap_or(0);
        Duration::from_secs(share).clamp(self.min, self.max)
    }
}

/// Which link targets the kernel gets to see. It resolves them on this machine, so a server could
/// point a link anywhere here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Targets that stay inside the mount; absolute ones below the remote root are made relative.
    /// Others give `EPERM`.
    #[default]
    Inside,
    /// Only relative targets without `..` (`contain_symlinks`); others give `EPERM`.
    Strict,
    /// All, as they are (`no_contain_symlinks`).
    Any,
}

/// Translation of owners between this machine and the remote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IdMap {
    /// Numbers are taken as they are.
    #[default]
    Same,
    /// The remote login's ids are the local user's and the other way round.
    User {
        /// Remote and local user id.
        uid: (u32, u32),
        /// Remote and local group id.
        gid: (u32, u32),
    },
    /// Tables of remote and local ids. Where there is none, ids are taken as they are.
    Table {
        /// Remote user id to local user id.
        uids: Option<HashMap<u32, u32>>,
        /// Remote group id to local group id.
        gids: Option<HashMap<u32, u32>>,
        /// Whether an id that is not in the table is taken as it is; otherwise using it fails.
        others_same: bool,
    },
}

/// What every file seems to have, whatever the remote says (`uid=`, `gid=`, `umask=` …).
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

/// Settings of a [`Vfs`](crate::Vfs).
#[derive(Clone, Debug)]
pub struct Config {
    /// When caches count.
    pub consistency: Consistency,
    /// The kernel's pages at open.
    pub page_cache: PageCache,
    /// Attributes and names of everything but directories (NFS: `acregmin`, `acregmax`).
    pub files: Timeout,
    /// Attributes and names of directories (NFS: `acdirmin`, `acdirmax`).
    pub dirs: Timeout,
    /// How long what the server told of a file is as good as asking for it at an open
    /// (`open_revalidate`). Zero: each open asks.
    pub open_revalidate: Duration,
    /// User and group id of the login at the remote, where they are known: who it is decides which
    /// opens the server would refuse.
    pub login: Option<(u32, u32)>,
    /// How long the kernel may take a name for absent.
    pub negative: Duration,
    /// Upper limit of what the kernel is told about names (`entry_timeout`).
    pub kernel_entry: Option<Duration>,
    /// Upper limit of what the kernel is told about attributes (`attr_timeout`).
    pub kernel_attr: Option<Duration>,
    /// Link targets.
    pub links: Links,
    /// Make absolute targets below the remote root relative, whatever `links` says.
    pub transform_links: bool,
    /// The remote root as an absolute path there, without a trailing slash; empty for `/`.
    /// `None` when it is not known: then no absolute target is inside.
    pub remote_root: Option<Vec<u8>>,
    /// Owners.
    pub idmap: IdMap,
    /// Overrides of what is shown.
    pub shown: Shown,
    /// While the remote is away, what is known is shown, however old it is (`stale=ok`).
    pub serve_stale: bool,
    /// A write returns when the server has the data (`sshfs_sync`).
    pub sync_writes: bool,
    /// Bytes fetched ahead of sequential and strided readers, for the whole mount; 0 for none
    /// (`no_readahead`).
    pub readahead_bytes: u64,
    /// Bytes that may have been written and not be at the server, for the whole mount. At this
    /// bound writers wait. At least 1.
    pub dirty_bytes: u32,
    /// The same for one file.
    pub dirty_file_bytes: u64,
    /// Files of at least this size are opened at the remote each time, so that [`Vfs::backing`]
    /// has something to give: the kernel then keeps no pages of them. To be set only where nothing
    /// can be changed through the mount, since what is written would not be seen by who has them
    /// open so. `None`: no file.
    ///
    /// [`Vfs::backing`]: crate::Vfs::backing
    pub backing_from_bytes: Option<u64>,
    /// What is known of files and directories may take so many bytes. Past that the kernel is
    /// asked to forget those that it uses least ([`Invalidate::evict`](crate::Invalidate)).
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
            remote_root: None,
            idmap: IdMap::default(),
            shown: Shown::default(),
            serve_stale: false,
            sync_writes: false,
            readahead_bytes: 64 << 20,
            dirty_bytes: 128 << 20,
            dirty_file_bytes: 32 << 20,
            backing_from_bytes: None,
            // With the rest of a daemon that has nothing under way, 64 MiB are resident after a
            // walk over a million files. Room for all of Linux's sources, but for a few thousand.
            metadata_bytes: 44 << 20,
        }
    }
}

impl Config {
    /// The time-outs with what `consistency` demands of them.
    pub(crate) fn effective(mut self) -> Config {
        /// As good as for ever, and far from overflowing anything.
        const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);
        self.dirty_bytes = self.dirty_bytes.max(1);
        match self.consistency {
            Consistency::CloseToOpen | Consistency::Timeout => {}
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
