//! How long cached names, attributes and data are valid; what the kernel caches; the disk cache.

use std::time::Duration;

use base::DigestEffort;
use vfs::{Consistency, PageCache, Prefetch};

use super::{Effect, MountOption, choice, custom, flag, ignored, number, option, seconds, text};
use crate::mount::draft::Draft;

/// Why sshfs's options about the size and the cleaning of its cache have no effect.
const NO_CLEANING: Effect =
    Effect::Ignored("metadata_bytes bounds the cache, and no periodic cleaning is needed");

/// Upper limit of the options in bytes of written data, so that a mistyped number cannot take all
/// memory: 1 GiB.
const MAX_DIRTY: u32 = 1 << 30;

/// A time in seconds.
fn time(time: Duration) -> Option<String> {
    Some(time.as_secs_f64().to_string())
}

pub(super) const OPTIONS: &[MountOption] = &[
    choice(
        "consistency",
        &[
            ("strict", |draft| draft.request.vfs.consistency = Consistency::Strict),
            ("close-to-open", |draft| draft.request.vfs.consistency = Consistency::CloseToOpen),
            ("cto", |draft| draft.request.vfs.consistency = Consistency::CloseToOpen),
            ("watch", |draft| draft.request.vfs.consistency = Consistency::Watch),
            ("timeout", |draft| draft.request.vfs.consistency = Consistency::Timeout),
            ("immutable", |draft| draft.request.vfs.consistency = Consistency::Immutable),
        ],
    )
    .help("when caches may answer; docs/semantics.md has the modes (default close-to-open)")
    .prominent(),
    choice(
        "inotify",
        &[
            ("yes", |draft| draft.request.inotify = true),
            ("no", |draft| draft.request.inotify = false),
        ],
    )
    .help("with consistency=watch: file watchers see changes made by others (default yes)"),
    flag("cto", |draft| draft.request.vfs.consistency = Consistency::CloseToOpen)
        .help("alias of consistency=close-to-open"),
    flag("nocto", |draft| draft.request.vfs.consistency = Consistency::Timeout)
        .help("alias of consistency=timeout"),
    seconds("dcache_timeout", |draft, time| draft.times.set_all(time))
        .help("cache attributes and names for this long (default: 1 to 20, see acregmax)")
        .also(&["cache_timeout", "actimeo"])
        .prominent()
        .changeable(|_| None),
    seconds("dcache_stat_timeout", |draft, time| draft.times.set_files(time))
        .help(
            "cache attributes and names this long; directories too unless dcache_dir_timeout \
             is given",
        )
        .also(&["cache_stat_timeout"])
        .changeable(|_| None),
    seconds("dcache_dir_timeout", |draft, time| draft.times.set_dirs(time))
        .help("cache attributes, names and listings of directories for this long")
        .also(&["cache_dir_timeout"])
        .changeable(|_| None),
    ignored(
        "dcache_link_timeout",
        "targets are cached for as long as the link's attributes (dcache_stat_timeout)",
    )
    .help("cache targets of symbolic links for this long")
    .also(&["cache_link_timeout"]),
    seconds("acregmin", |draft, time| draft.times.files.min = Some(time))
        .help("minimum time to cache attributes of files (default 1)")
        .changeable(|request| time(request.vfs.files.min)),
    seconds("acregmax", |draft, time| draft.times.files.max = Some(time))
        .help("maximum time to cache attributes of files, when unchanged for long (default 20)")
        .changeable(|request| time(request.vfs.files.max)),
    seconds("acdirmin", |draft, time| draft.times.own_dirs().min = Some(time))
        .help("minimum time to cache attributes and listings of directories (default 1)")
        .changeable(|request| time(request.vfs.dirs.min)),
    seconds("acdirmax", |draft, time| draft.times.own_dirs().max = Some(time))
        .help("maximum time to cache directories, when unchanged for long (default 20)")
        .changeable(|request| time(request.vfs.dirs.max)),
    seconds("acnegative", |draft, time| draft.times.negative = Some(time))
        .help("cache negative lookups for this long (default 1)")
        .changeable(|request| time(request.vfs.negative)),
    seconds("open_revalidate", |draft, time| draft.times.open_revalidate = Some(time))
        .help("an open revalidates a file not validated within this time; 0: each open (default 1)")
        .changeable(|request| time(request.vfs.open_revalidate)),
    choice(
        "dir_cache",
        &[("yes", |draft| draft.times.is_off = false), ("no", |draft| draft.times.is_off = true)],
    )
    .help("no: set all time-outs of attributes, names and listings to 0 (default yes)"),
    option("dcache_max_size", NO_CLEANING)
        .help("maximum number of entries in sshfs's cache")
        .also(&["cache_max_size"]),
    option("dcache_clean_interval", NO_CLEANING)
        .help("interval of cleaning sshfs's cache")
        .also(&["cache_clean_interval"]),
    option("dcache_min_clean_interval", NO_CLEANING)
        .help("minimum interval of cleaning sshfs's cache")
        .also(&["cache_min_clean_interval"]),
    seconds("entry_timeout", |draft, time| draft.request.vfs.kernel_entry = Some(time))
        .help("the kernel caches names for at most this long")
        .changeable(|request| request.vfs.kernel_entry.and_then(time)),
    seconds("attr_timeout", |draft, time| draft.request.vfs.kernel_attr = Some(time))
        .help("the kernel caches attributes for at most this long")
        .changeable(|request| request.vfs.kernel_attr.and_then(time)),
    seconds("negative_timeout", |draft, time| draft.times.kernel_negative = Some(time))
        .help("the kernel caches negative lookups for at most this long")
        .changeable(|request| request.times.kernel_negative.and_then(time)),
    ignored("ac_attr_timeout", "auto_cache compares the attributes at each open")
        .help("time-out of attributes for auto_cache"),
    flag("kernel_cache", |draft| draft.request.vfs.page_cache = PageCache::Always)
        .help("open keeps the kernel's cached data even if the file has changed")
        .prominent(),
    flag("auto_cache", |draft| draft.request.vfs.page_cache = PageCache::SameTime)
        .help("open keeps the kernel's cached data if size and modification time are unchanged"),
    flag("noauto_cache", Draft::unset_auto_cache).help("turn auto_cache off"),
    flag("direct_io", |draft| draft.request.vfs.page_cache = PageCache::Never)
        .help("do not cache file data in the kernel (for files like those in /proc)")
        .prominent(),
    flag("no_readahead", |draft| draft.request.vfs.readahead_bytes = 0)
        .help("no readahead by sshoal; max_readahead limits the kernel's own")
        .changeable(|_| None),
    number("readahead", 0, u32::MAX, |draft, bytes| {
        draft.request.vfs.readahead_bytes = bytes.into()
    })
    .help("maximum bytes read ahead, for all files together; 0: none (default 67108864)")
    .changeable(|request| Some(request.vfs.readahead_bytes.to_string())),
    choice(
        "prefetch",
        &[
            ("none", |draft| draft.request.vfs.prefetch = Prefetch::None),
            ("listings", |draft| draft.request.vfs.prefetch = Prefetch::Listings),
            ("metadata", |draft| draft.request.vfs.prefetch = Prefetch::Metadata),
            ("all", |draft| draft.request.vfs.prefetch = Prefetch::All),
        ],
    )
    .help(
        "fetch ahead: nothing, listings, also cached files' attributes, also small files (default)",
    )
    .changeable(|request| Some(format!("{:?}", request.vfs.prefetch).to_lowercase())),
    number("dirty_bytes", 1, MAX_DIRTY, |draft, bytes| draft.request.vfs.dirty_bytes = bytes)
        .help("bytes of all files on their way to the server at which writers wait (default 134217728)")
        .changeable(|request| Some(request.vfs.dirty_bytes.to_string())),
    number("dirty_file_bytes", 1, MAX_DIRTY, |draft, bytes| {
        draft.request.vfs.dirty_file_bytes = bytes.into()
    })
    .help("bytes of one file on their way to the server at which its writers wait (default 33554432)")
    .changeable(|request| Some(request.vfs.dirty_file_bytes.to_string())),
    number("metadata_bytes", 1 << 20, u32::MAX, |draft, bytes| {
        draft.request.vfs.metadata_bytes = bytes as usize
    })
    .help("memory for names and attributes; least used ones are evicted (default 46137344)")
    .changeable(|request| Some(request.vfs.metadata_bytes.to_string())),
    flag("sshfs_sync", |draft| draft.request.vfs.sync_writes = true)
        .help("write returns only when the server has acknowledged the data"),
    ignored(
        "writeback_cache",
        "the kernel would own file sizes and times and miss changes on the server",
    )
    .help("use the kernel's write-back cache"),
];

/// The disk cache, and digests of contents.
pub(super) const DISK: &[MountOption] = &[
    choice(
        "cache",
        &[
            ("disk", |draft| {
                draft.disk.is_on = true;
                draft.times.is_off = false;
            }),
            ("yes", |draft| {
                draft.disk.is_on = false;
                draft.times.is_off = false;
            }),
            ("no", |draft| {
                draft.disk.is_on = false;
                draft.times.is_off = true;
            }),
        ],
    )
    .help("disk: also cache file contents on the local disk; yes, no: see dir_cache (default yes)")
    .prominent(),
    text("cache_dir", "DIR", |draft, dir| {
        draft.disk.options().dir = Some(draft.absolute(dir));
    })
    .help("directory of the disk cache (default $XDG_CACHE_HOME/sshoal, else ~/.cache/sshoal)"),
    custom("cache_size", "SIZE", |draft, text| draft.disk.set_size(text))
        .help("maximum size of the disk cache, at least 1M (default 20G, at most 10% of its disk)")
        .changeable(|request| request.disk.as_ref()?.size_bytes.map(|bytes| bytes.to_string())),
    custom("cache_free", "SIZE", |draft, text| draft.disk.set_free(text))
        .help("minimum free space on the disk of the cache, such as 5G (default 5% of the disk)")
        .changeable(|request| request.disk.as_ref()?.free_bytes.map(|bytes| bytes.to_string())),
    option(
        "immutable",
        Effect::Optional(
            "LIST",
            |draft, list| draft.disk.add_immutable(list),
            |draft| draft.request.vfs.consistency = Consistency::Immutable,
        ),
    )
    .help("files that never change: colon-separated paths, with * and ?; without LIST, all files"),
    flag("offline", |draft| draft.disk.options().offline = true)
        .help("serve only what is in the disk cache and contact no host; all else fails with EIO"),
    choice(
        "passthrough",
        &[
            ("auto", |draft| draft.disk.options().passthrough = None),
            ("yes", |draft| draft.disk.options().passthrough = Some(true)),
            ("no", |draft| draft.disk.options().passthrough = Some(false)),
        ],
    )
    .help("kernel reads large cached files directly (root and ro only; auto: unless immutable)"),
    choice(
        "digest",
        &[
            ("known", |draft| draft.disk.options().digest = Some(DigestEffort::Known)),
            ("compute", |draft| draft.disk.options().digest = Some(DigestEffort::Compute)),
            ("off", |draft| draft.disk.options().digest = None),
        ],
    )
    .help("digests as extended attributes: of cached contents, of all files, none (default known)"),
    custom("digest_attribute", "KIND:FORM:NAME", |draft, text| draft.disk.add_attribute(text))
        .help(
            "add a digest attribute, such as sha256:hex:user.NAME; none: remove the default ones",
        ),
    flag("server_digests", |draft| draft.disk.options().server_digests = true).help(
        "get digests from the server's sshoal helper, and fetch only contents that are not cached",
    ),
];
