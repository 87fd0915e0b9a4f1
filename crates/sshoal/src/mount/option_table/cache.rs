//! How long cached names, attributes and data are valid, and what the kernel caches.

use vfs::Prefetch;

use super::Effect::{Choice, Flag, Ignored, Number, Seconds};
use super::{Effect, MountOption, option};
use crate::mount::draft::Draft;
use crate::mount::request::{Consistency, PageCache};

/// Why sshfs's options about the size and the cleaning of its cache have no effect.
const NO_CLEANING: Effect =
    Ignored("metadata_bytes bounds the cache, and no periodic cleaning is needed");

/// Upper limit of the options in bytes of written data, so that a mistyped number cannot take all
/// memory: 1 GiB.
const MAX_DIRTY: u32 = 1 << 30;

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "consistency",
        "when caches may answer; docs/semantics.md has the modes (default close-to-open)",
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
        "alias of consistency=close-to-open",
        Flag(|draft| draft.request.consistency = Consistency::CloseToOpen),
    ),
    option(
        "nocto",
        "alias of consistency=timeout",
        Flag(|draft| draft.request.consistency = Consistency::Timeout),
    ),
    option(
        "dcache_timeout",
        "cache attributes and names for this long (default: 1 to 20, see acregmax)",
        Seconds(|draft, time| draft.times.set_all(time)),
    )
    .also(&["cache_timeout", "actimeo"])
    .prominent(),
    option(
        "dcache_stat_timeout",
        "cache attributes and names this long; directories too unless dcache_dir_timeout is given",
        Seconds(|draft, time| draft.times.set_files(time)),
    )
    .also(&["cache_stat_timeout"]),
    option(
        "dcache_dir_timeout",
        "cache attributes, names and listings of directories for this long",
        Seconds(|draft, time| draft.times.set_dirs(time)),
    )
    .also(&["cache_dir_timeout"]),
    option(
        "dcache_link_timeout",
        "cache targets of symbolic links for this long",
        Ignored("targets are cached for as long as the link's attributes (dcache_stat_timeout)"),
    )
    .also(&["cache_link_timeout"]),
    option(
        "acregmin",
        "cache file attributes for at least this long (default 1)",
        Seconds(|draft, time| draft.times.files.min = Some(time)),
    ),
    option(
        "acregmax",
        "cache file attributes for at most this long, if unchanged for long (default 20)",
        Seconds(|draft, time| draft.times.files.max = Some(time)),
    ),
    option(
        "acdirmin",
        "cache directory attributes and listings for at least this long (default 1)",
        Seconds(|draft, time| draft.times.set_dirs_min(time)),
    ),
    option(
        "acdirmax",
        "cache directories for at most this long, if unchanged for long (default 20)",
        Seconds(|draft, time| draft.times.set_dirs_max(time)),
    ),
    option(
        "acnegative",
        "cache negative lookups for this long (default 1)",
        Seconds(|draft, time| draft.times.negative = Some(time)),
    ),
    option(
        "open_revalidate",
        "open does not revalidate a file checked less than this long ago; 0: always (default 1)",
        Seconds(|draft, time| draft.times.open_revalidate = Some(time)),
    ),
    option(
        "dir_cache",
        "no: set all time-outs of attributes, names and listings to 0 (default yes)",
        Choice(&[
            ("yes", |draft| draft.times.is_off = false),
            ("no", |draft| draft.times.is_off = true),
        ]),
    ),
    option("dcache_max_size", "maximum number of entries in sshfs's cache", NO_CLEANING)
        .also(&["cache_max_size"]),
    option("dcache_clean_interval", "interval of cleaning sshfs's cache", NO_CLEANING)
        .also(&["cache_clean_interval"]),
    option("dcache_min_clean_interval", "minimum interval of cleaning sshfs's cache", NO_CLEANING)
        .also(&["cache_min_clean_interval"]),
    option(
        "entry_timeout",
        "the kernel caches names for at most this long",
        Seconds(|draft, time| draft.request.cache.kernel_entry = Some(time)),
    ),
    option(
        "attr_timeout",
        "the kernel caches attributes for at most this long",
        Seconds(|draft, time| draft.request.cache.kernel_attr = Some(time)),
    ),
    option(
        "negative_timeout",
        "the kernel caches negative lookups for at most this long",
        Seconds(|draft, time| draft.request.cache.kernel_negative = Some(time)),
    ),
    option(
        "ac_attr_timeout",
        "time-out of attributes for auto_cache",
        Ignored("auto_cache compares the attributes at each open"),
    ),
    option(
        "kernel_cache",
        "open keeps the kernel's cached data even if the file has changed",
        Flag(|draft| draft.request.cache.pages = PageCache::Always),
    )
    .prominent(),
    option(
        "auto_cache",
        "open keeps the kernel's cached data if size and modification time are unchanged",
        Flag(|draft| draft.request.cache.pages = PageCache::SameTime),
    ),
    option("noauto_cache", "turn auto_cache off", Flag(Draft::unset_auto_cache)),
    option(
        "direct_io",
        "do not cache file data in the kernel (for files like those in /proc)",
        Flag(|draft| draft.request.cache.pages = PageCache::Never),
    )
    .prominent(),
    option(
        "no_readahead",
        "no readahead by sshoal; max_readahead limits the kernel's own",
        Flag(|draft| draft.request.cache.readahead_bytes = 0),
    ),
    option(
        "readahead",
        "maximum bytes read ahead, for all files together; 0: none (default 67108864)",
        Number(0, u32::MAX, |draft, bytes| draft.request.cache.readahead_bytes = bytes),
    ),
    option(
        "prefetch",
        "fetch ahead: none, listings, metadata (and cached files' attributes), all (default)",
        Choice(&[
            ("none", |draft| draft.request.cache.prefetch = Prefetch::None),
            ("listings", |draft| draft.request.cache.prefetch = Prefetch::Listings),
            ("metadata", |draft| draft.request.cache.prefetch = Prefetch::Metadata),
            ("all", |draft| draft.request.cache.prefetch = Prefetch::All),
        ]),
    ),
    option(
        "dirty_bytes",
        "unacknowledged written bytes of all files at which writers wait (default 134217728)",
        Number(1, MAX_DIRTY, |draft, bytes| draft.request.cache.dirty_bytes = bytes),
    ),
    option(
        "dirty_file_bytes",
        "unacknowledged written bytes of one file at which its writers wait (default 33554432)",
        Number(1, MAX_DIRTY, |draft, bytes| draft.request.cache.dirty_file_bytes = bytes),
    ),
    option(
        "metadata_bytes",
        "memory for names and attributes; least used ones are evicted (default 46137344)",
        Number(1 << 20, u32::MAX, |draft, bytes| draft.request.cache.metadata_bytes = bytes),
    ),
    option(
        "sshfs_sync",
        "write returns only when the server has acknowledged the data",
        Flag(|draft| draft.request.cache.sync_writes = true),
    ),
    option(
        "writeback_cache",
        "use the kernel's write-back cache",
        Ignored("the kernel would own file sizes and times and miss changes on the server"),
    ),
];
