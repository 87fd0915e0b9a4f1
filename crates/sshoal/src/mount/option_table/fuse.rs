//! What the kernel is told at mounting.

use super::Effect::{Flag, Number, Text};
use super::{MountOption, option};

/// The kernel's counters of requests in flight have 16 bits.
const MAX_COUNT: u32 = u16::MAX as u32;

pub(super) const OPTIONS: &[MountOption] = &[
    option("ro", "read-only", Flag(|draft| draft.request.fuse.read_only = true)).prominent(),
    option("rw", "not read-only (the default)", Flag(|draft| draft.request.fuse.read_only = false)),
    option("suid", "set-user-id bits count", Flag(|draft| draft.request.fuse.suid = true)),
    option("nosuid", "they do not (the default)", Flag(|draft| draft.request.fuse.suid = false)),
    option("dev", "device nodes work", Flag(|draft| draft.request.fuse.dev = true)),
    option("nodev", "they do not (the default)", Flag(|draft| draft.request.fuse.dev = false)),
    option(
        "exec",
        "programs can be run (the default)",
        Flag(|draft| draft.request.fuse.exec = true),
    ),
    option("noexec", "they cannot", Flag(|draft| draft.request.fuse.exec = false)),
    option("atime", "no flag noatime (the default)", Flag(|draft| draft.request.fuse.atime = true)),
    option("noatime", "the flag noatime", Flag(|draft| draft.request.fuse.atime = false)),
    option("sync", "all writes are synchronous", Flag(|draft| draft.request.fuse.sync = true)),
    option("async", "they are not (the default)", Flag(|draft| draft.request.fuse.sync = false)),
    option(
        "dirsync",
        "changes of directories are synchronous",
        Flag(|draft| draft.request.fuse.dirsync = true),
    ),
    option(
        "fsname",
        "what the mount table shows as source (the source)",
        Text("NAME", |draft, name| draft.request.fuse.fsname = Some(name)),
    ),
    option(
        "subtype",
        "what it shows after 'fuse.' as type (sshoal; sshfs under that name)",
        Text("NAME", |draft, name| draft.request.fuse.subtype = name),
    ),
    option(
        "auto_unmount",
        "unmount when the process dies",
        Flag(|draft| draft.request.fuse.auto_unmount = true),
    ),
    option(
        "context",
        "SELinux context of all files",
        Text("CONTEXT", |draft, context| draft.request.fuse.context = Some(context)),
    ),
    option(
        "max_background",
        "most requests that the kernel has under way by itself",
        Number(1, MAX_COUNT, |draft, count| {
            draft.request.fuse.max_background = u16::try_from(count).ok();
        }),
    ),
    option(
        "congestion_threshold",
        "so many of them hold back the kernel's readahead",
        Number(1, MAX_COUNT, |draft, count| {
            draft.request.fuse.congestion_threshold = u16::try_from(count).ok();
        }),
    ),
    option(
        "max_readahead",
        "most bytes that the kernel reads ahead (524288 as root, else 131072)",
        Number(0, u32::MAX, |draft, bytes| {
            draft.request.fuse.max_readahead_bytes = Some(bytes);
        }),
    ),
];
