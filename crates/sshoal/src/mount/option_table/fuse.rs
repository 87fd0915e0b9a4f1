//! Options of the mount in the kernel.

use super::Effect::{Flag, Number, Text};
use super::{MountOption, option};

/// The kernel's limits of requests in flight have 16 bits.
const MAX_COUNT: u32 = u16::MAX as u32;

pub(super) const OPTIONS: &[MountOption] = &[
    option("ro", "read-only", Flag(|draft| draft.request.fuse.read_only = true)).prominent(),
    option("rw", "read-write (default)", Flag(|draft| draft.request.fuse.read_only = false)),
    option(
        "suid",
        "honor set-user-ID and set-group-ID bits",
        Flag(|draft| draft.request.fuse.suid = true),
    ),
    option(
        "nosuid",
        "ignore set-user-ID and set-group-ID bits (default)",
        Flag(|draft| draft.request.fuse.suid = false),
    ),
    option("dev", "allow access to device files", Flag(|draft| draft.request.fuse.dev = true)),
    option(
        "nodev",
        "deny access to device files (default)",
        Flag(|draft| draft.request.fuse.dev = false),
    ),
    option(
        "exec",
        "allow programs to be executed (default)",
        Flag(|draft| draft.request.fuse.exec = true),
    ),
    option(
        "noexec",
        "do not allow programs to be executed",
        Flag(|draft| draft.request.fuse.exec = false),
    ),
    option(
        "atime",
        "mount without noatime (default)",
        Flag(|draft| draft.request.fuse.atime = true),
    ),
    option("noatime", "mount with noatime", Flag(|draft| draft.request.fuse.atime = false)),
    option("sync", "all writes are synchronous", Flag(|draft| draft.request.fuse.sync = true)),
    option(
        "async",
        "writes are asynchronous (default)",
        Flag(|draft| draft.request.fuse.sync = false),
    ),
    option(
        "dirsync",
        "directory changes are synchronous",
        Flag(|draft| draft.request.fuse.dirsync = true),
    ),
    option(
        "fsname",
        "source that the mount table shows (default: the source as typed)",
        Text("NAME", |draft, name| draft.request.fuse.fsname = Some(name)),
    ),
    option(
        "subtype",
        "type that the mount table shows after 'fuse.' (default: the program's name)",
        Text("NAME", |draft, name| draft.request.fuse.subtype = name),
    ),
    option(
        "auto_unmount",
        "unmount when the daemon dies",
        Flag(|draft| draft.request.fuse.auto_unmount = true),
    ),
    option(
        "context",
        "SELinux context of all files",
        Text("CONTEXT", |draft, context| draft.request.fuse.context = Some(context)),
    ),
    option(
        "max_background",
        "maximum background requests of the kernel, such as readahead",
        Number(1, MAX_COUNT, |draft, count| {
            draft.request.fuse.max_background = u16::try_from(count).ok();
        }),
    ),
    option(
        "congestion_threshold",
        "number of background requests at which the kernel throttles readahead",
        Number(1, MAX_COUNT, |draft, count| {
            draft.request.fuse.congestion_threshold = u16::try_from(count).ok();
        }),
    ),
    option(
        "max_readahead",
        "maximum bytes that the kernel reads ahead (default 524288 as root, else 131072)",
        Number(0, u32::MAX, |draft, bytes| {
            draft.request.fuse.max_readahead_bytes = Some(bytes);
        }),
    ),
];
