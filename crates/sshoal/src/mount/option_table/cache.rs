//! How long what was seen counts, and what the kernel keeps.

use super::Effect::{Choice, Flag, Ignored, Number, Seconds};
use super::{Effect, MountOption, option};
use crate::mount::draft::Draft;
use crate::mount::request::{Consistency, PageCache};

/// Why nothing needs to be said about the size and the sweeping of the cache.
const NO_SWEEP: Effect =
    Ignored("the cache is bounded by what the kernel holds, and needs no sweeping");

/// Bounds what a mistyped number takes of the memory: a GiB.
const MAX_DIRTY: u32 = 1 << 30;

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "consistency",
        "when a cache may answer: see docs/semantics.md (close-to-open)",
        Choice(&[
            ("strict", |draft| draft.request.consistency = Consistency::Strict),
            ("close-to-open", |draft| draft.request.consistency = Consistency::CloseToOpen),
            ("cto", |draft| draft.request.consistency = Consistency::CloseToOpen),
            ("timeout", |draft| draft.request.consistency = Consistency::Timeout),
            ("immutable", |draft| draft.request.consistency = Consistency::Immutable),
        ]),
    )
    .prominent(),
    option(
        "cto",
        "as consistency=close-to-open",
        Flag(|draft| draft.request.consistency = Consistency::CloseToOpen),
    ),
    option(
        "nocto",
        "as consistency=timeout",
        Flag(|draft| draft.request.consistency = Consistency::Timeout),
    ),
    option(
        "dcache_timeout",
        "keep attributes and names this long (1 to 20, see acregmax)",
        Seconds(|draft, time| draft.times.set_all(time)),
    )
    .also(&["cache_timeout", "actimeo"])
    .prominent(),
    option(
        "dcache_stat_timeout",
        "keep those of files this long; of directories too unless dcache_dir_timeout is given",
        Seconds(|draft, time| draft.times.set_files(time)),
    )
    .also(&["cache_stat_timeout"]),
    option(
        "dcache_dir_timeout",
        "keep those of directories this long, and their listings",
        Seconds(|draft, time| draft.times.set_dirs(time)),
    )
    .also(&["cache_dir_timeout"]),
    option(
        "dcache_link_timeout",
        "targets of symbolic links",
        Ignored("a link's target counts for as long as its attributes (dcache_stat_timeout)"),
    )
    .also(&["cache_link_timeout"]),
    option(
        "acregmin",
        "keep attributes of a file at least this long (1)",
        Seconds(|draft, time| draft.times.files.min = Some(time)),
    ),
    option(
        "acregmax",
        "and at most this long, when it has not changed for long (20)",
        Seconds(|draft, time| draft.times.files.max = Some(time)),
    ),
    option(
        "acdirmin",
        "keep attributes and names of a directory at least this long (1)",
        Seconds(|draft, time| draft.times.set_dirs_min(time)),
    ),
    option(
        "acdirmax",
        "and at most this long, when it has not changed for long (20)",
        Seconds(|draft, time| draft.times.set_dirs_max(time)),
    ),
    option(
        "acnegative",
        "keep it in mind this long that a name is not there (1)",
        Seconds(|draft, time| draft.times.negative = Some(time)),
    ),
    option(
        "open_revalidate",
        "an open need not ask for what the server told this long ago; 0: each open asks (1)",
        Seconds(|draft, time| draft.times.open_revalidate = Some(time)),
    ),
    option(
        "dir_cache",
        "no: all these times are 0 (yes)",
        Choice(&[
            ("yes", |draft| draft.times.is_off = false),
            ("no", |draft| draft.times.is_off = true),
        ]),
    ),
    option("dcache_max_size", "bound of sshfs's cache", NO_SWEEP).also(&["cache_max_size"]),
    option("dcache_clean_interval", "sweep of sshfs's cache", NO_SWEEP)
        .also(&["cache_clean_interval"]),
    option("dcache_min_clean_interval", "sweep of sshfs's cache", NO_SWEEP)
        .also(&["cache_min_clean_interval"]),
    option(
        "entry_timeout",
        "the kernel keeps names no longer than this",
        Seconds(|draft, time| draft.request.cache.kernel_entry = Some(time)),
    ),
    option(
        "attr_timeout",
        "the kernel keeps attributes no longer than this",
        Seconds(|draft, time| draft.request.cache.kernel_attr = Some(time)),
    ),
    option(
        "negative_timeout",
        "the kernel keeps absent names no longer than this",
        Seconds(|draft, time| draft.request.cache.kernel_negative = Some(time)),
    ),
    option(
        "ac_attr_timeout",
        "attributes' time-out for auto_cache",
        Ignored("auto_cache compares with the attributes of each open"),
    ),
    option(
        "kernel_cache",
        "keep cached data at open, whatever happened to the file",
        Flag(|draft| draft.request.cache.pages = PageCache::Always),
    )
    .prominent(),
    option(
        "auto_cache",
        "keep cached data at open if size and time of last change are the same",
        Flag(|draft| draft.request.cache.pages = PageCache::SameTime),
    ),
    option("noauto_cache", "undo auto_cache", Flag(Draft::unset_auto_cache)),
    option(
        "direct_io",
        "cache no data in the kernel (for files such as /proc's)",
        Flag(|draft| draft.request.cache.pages = PageCache::Never),
    )
    .prominent(),
    option(
        "no_readahead",
        "read nothing ahead; the kernel does it still, see max_readahead",
        Flag(|draft| draft.request.cache.readahead_bytes = 0),
    ),
    option(
        "readahead",
        "read ahead so many bytes at most, for all files together; 0: none (67108864)",
        Number(0, u32::MAX, |draft, bytes| draft.request.cache.readahead_bytes = bytes),
    ),
    option(
        "dirty_bytes",
        "let so many written bytes be on their way, for all files together (134217728)",
        Number(1, MAX_DIRTY, |draft, bytes| draft.request.cache.dirty_bytes = bytes),
    ),
    option(
        "dirty_file_bytes",
        "and so many for one file; at either bound writers wait (33554432)",
        Number(1, MAX_DIRTY, |draft, bytes| draft.request.cache.dirty_file_bytes = bytes),
    ),
    option(
        "metadata_bytes",
        "bytes for names and attributes; past it those used least are forgotten (46137344)",
        Number(1 << 20, u32::MAX, |draft, bytes| draft.request.cache.metadata_bytes = bytes),
    ),
    option(
        "sshfs_sync",
        "a write returns when the server has the data",
        Flag(|draft| draft.request.cache.sync_writes = true),
    ),
    option(
        "writeback_cache",
        "the kernel's write-back cache",
        Ignored("never used: the kernel then trusts its own idea of size and times"),
    ),
];
