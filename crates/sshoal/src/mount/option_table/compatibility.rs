//! Words that come with other programs' configuration, and mean nothing to this one.

use super::Effect::{Ignored, Refused};
use super::{MountOption, option};

const FOR_MOUNT: super::Effect =
    Ignored("a word for mount(8) and its like, not for the file system");
const ACCESS_TIMES: super::Effect = Ignored("times of last access are the server's affair");
const LIBFUSE_TWO: super::Effect = Ignored("a switch of libfuse 2 for what is always so by now");
const LIBFUSE: super::Effect = Ignored("a switch of libfuse's inside, which is not used");
const MODULES: super::Effect = Refused("modules of libfuse do not work here");

/// What fstab and mount(8) add to a line.
pub(super) const FSTAB: &[MountOption] = &[
    option("_netdev", "needs the network", FOR_MOUNT),
    option("auto", "mount at boot", FOR_MOUNT),
    option("noauto", "do not mount at boot", FOR_MOUNT),
    option("user", "any user may mount", FOR_MOUNT),
    option("nouser", "only root may mount", FOR_MOUNT),
    option("users", "any user may unmount", FOR_MOUNT),
    option("owner", "the device's owner may mount", FOR_MOUNT),
    option("group", "the device's group may mount", FOR_MOUNT),
    option("nofail", "boot without it", FOR_MOUNT),
    option("defaults", "the usual options", FOR_MOUNT),
    option("comment", "a comment", FOR_MOUNT),
    option("x-*", "for other readers of fstab, such as x-systemd.automount", FOR_MOUNT),
    option("X-*", "for mount(8), such as X-mount.mkdir", FOR_MOUNT),
    option("silent", "fewer messages of the kernel", FOR_MOUNT),
    option("loud", "more messages of the kernel", FOR_MOUNT),
    option("relatime", "relative access times", ACCESS_TIMES),
    option("norelatime", "no relative access times", ACCESS_TIMES),
    option("strictatime", "exact access times", ACCESS_TIMES),
    option("nostrictatime", "no exact access times", ACCESS_TIMES),
    option("diratime", "access times of directories", ACCESS_TIMES),
    option("nodiratime", "no access times of directories", ACCESS_TIMES),
    option("lazytime", "times written late", ACCESS_TIMES),
    option("nolazytime", "times written at once", ACCESS_TIMES),
    option("mand", "mandatory locks", Ignored("no longer in the kernel")),
    option("nomand", "no mandatory locks", Ignored("no longer in the kernel")),
    option("iversion", "counters of changes", Ignored("SFTP has none")),
    option("noiversion", "no counters of changes", Ignored("SFTP has none")),
    option(
        "remount",
        "change a mount",
        Refused("a mount cannot be changed; unmount it and mount it anew"),
    ),
];

/// What sshfs and libfuse have or had.
pub(super) const OTHERS: &[MountOption] = &[
    option(
        "unreliable_append",
        "a workaround of sshfs",
        Ignored("sshfs takes and ignores it, too"),
    ),
    option("big_writes", "writes of more than 4 KiB", LIBFUSE_TWO),
    option("large_read", "reads of more than 4 KiB", LIBFUSE_TWO),
    option("async_read", "several reads at once", LIBFUSE_TWO),
    option("sync_read", "one read at a time", Ignored("max_readahead=0 has that effect")),
    option("atomic_o_trunc", "open and truncate in one request", LIBFUSE_TWO),
    option(
        "hard_remove",
        "remove open files at once",
        Ignored("open files are removed at once and stay usable"),
    ),
    option("use_ino", "inode numbers of the file system", Ignored("always so")),
    option("readdir_ino", "inode numbers in listings", Ignored("always so")),
    option("intr", "requests can be interrupted", Ignored("always so")),
    option("intr_signal", "a signal for that", Ignored("no signal is needed")),
    option("nopath", "calls without a path", LIBFUSE),
    option("noforget", "keep inode numbers", Ignored("inode numbers are made to stay")),
    option("remember", "keep inode numbers for a time", Ignored("inode numbers are made to stay")),
    option(
        "no_rofd_flush",
        "no flush for files open for reading",
        Ignored("a flush without written data asks nobody"),
    ),
    option("splice_read", "splice(2) for reading", LIBFUSE),
    option("no_splice_read", "no splice(2) for reading", LIBFUSE),
    option("splice_write", "splice(2) for writing", LIBFUSE),
    option("no_splice_write", "no splice(2) for writing", LIBFUSE),
    option("splice_move", "move pages with splice(2)", LIBFUSE),
    option("no_splice_move", "do not move pages", LIBFUSE),
    option("clone_fd", "a descriptor for each thread", LIBFUSE),
    option("max_threads", "number of threads", LIBFUSE),
    option("max_idle_threads", "number of idle threads", LIBFUSE),
    option("io_uring", "requests over io_uring", LIBFUSE),
    option("io_uring_q_depth", "depth of its queues", LIBFUSE),
    option("no_remote_lock", "locks stay on this machine", Ignored("always so: SFTP has none")),
    option("no_remote_flock", "flock(2) likewise", Ignored("always so: SFTP has none")),
    option("no_remote_posix_lock", "fcntl(2) likewise", Ignored("always so: SFTP has none")),
    option("modules", "file systems on top", MODULES),
    option("subdir", "for the module subdir", Refused("give the directory in the source")),
    option("rellinks", "for the module subdir", Refused("use transform_symlinks")),
    option("norellinks", "for the module subdir", MODULES),
    option("from_code", "for the module iconv", MODULES),
    option("to_code", "for the module iconv", MODULES),
];
