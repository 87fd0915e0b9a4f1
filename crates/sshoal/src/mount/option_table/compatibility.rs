//! Options of mount(8), sshfs and libfuse that are accepted without effect, or refused.

use super::Effect::{Ignored, Refused};
use super::{MountOption, option};

const FOR_MOUNT: super::Effect = Ignored("for mount(8) and systemd, not for the file system");
const ACCESS_TIMES: super::Effect = Ignored("the server keeps access times");
const LIBFUSE_TWO: super::Effect = Ignored("an option of libfuse 2; always on in FUSE today");
const LIBFUSE: super::Effect = Ignored("an internal option of libfuse, which is not used");
const ALWAYS_ON: super::Effect = Ignored("always on");
const STABLE_NUMBERS: super::Effect = Ignored("inode numbers are stable anyway");
const LOCAL_LOCKS: super::Effect = Ignored("always on: SFTP has no locks");
const MODULES: super::Effect = Refused("libfuse modules are not supported");

/// Options of fstab(5) and mount(8).
pub(super) const FSTAB: &[MountOption] = &[
    option("_netdev", "needs the network", FOR_MOUNT),
    option("auto", "mount at boot", FOR_MOUNT),
    option("noauto", "do not mount at boot", FOR_MOUNT),
    option("user", "any user may mount", FOR_MOUNT),
    option("nouser", "only root may mount", FOR_MOUNT),
    option("users", "any user may mount and unmount", FOR_MOUNT),
    option("owner", "the device's owner may mount", FOR_MOUNT),
    option("group", "the device's group may mount", FOR_MOUNT),
    option("nofail", "a failed mount does not fail the boot", FOR_MOUNT),
    option("defaults", "default options", FOR_MOUNT),
    option("comment", "a comment", FOR_MOUNT),
    option("x-*", "for other readers of fstab, such as x-systemd.automount", FOR_MOUNT),
    option("X-*", "for mount(8), such as X-mount.mkdir", FOR_MOUNT),
    option("silent", "fewer kernel messages", FOR_MOUNT),
    option("loud", "more kernel messages", FOR_MOUNT),
    option("relatime", "update access times only if older than the modification", ACCESS_TIMES),
    option("norelatime", "turn relatime off", ACCESS_TIMES),
    option("strictatime", "update access times at each access", ACCESS_TIMES),
    option("nostrictatime", "turn strictatime off", ACCESS_TIMES),
    option("diratime", "update access times of directories", ACCESS_TIMES),
    option("nodiratime", "do not update access times of directories", ACCESS_TIMES),
    option("lazytime", "write changed times to the disk later", ACCESS_TIMES),
    option("nolazytime", "write changed times to the disk at once", ACCESS_TIMES),
    option("mand", "mandatory locks", Ignored("Linux has removed mandatory locks")),
    option("nomand", "no mandatory locks", Ignored("Linux has removed mandatory locks")),
    option("iversion", "change counters of inodes", Ignored("SFTP has no change counters")),
    option("noiversion", "no change counters of inodes", Ignored("SFTP has no change counters")),
    option(
        "remount",
        "change the options of a mount",
        Refused("not supported; unmount, then mount with the new options"),
    ),
];

/// Options that sshfs and libfuse have or had.
pub(super) const OTHERS: &[MountOption] = &[
    option(
        "unreliable_append",
        "a workaround of old versions of sshfs",
        Ignored("has no effect in sshfs either"),
    ),
    option("big_writes", "writes of more than 4 KiB", LIBFUSE_TWO),
    option("large_read", "reads of more than 4 KiB", LIBFUSE_TWO),
    option("async_read", "several reads at a time", LIBFUSE_TWO),
    option("sync_read", "one read at a time", Ignored("use max_readahead=0")),
    option("atomic_o_trunc", "open and truncate in one request", LIBFUSE_TWO),
    option(
        "hard_remove",
        "remove open files at once",
        Ignored("always on; removed files stay usable while they are open"),
    ),
    option("use_ino", "inode numbers of the file system", ALWAYS_ON),
    option("readdir_ino", "inode numbers in listings", ALWAYS_ON),
    option("intr", "requests can be interrupted", ALWAYS_ON),
    option("intr_signal", "signal that interrupts requests", Ignored("no signal is used")),
    option("nopath", "do not compute paths", LIBFUSE),
    option("noforget", "never forget inodes", STABLE_NUMBERS),
    option("remember", "remember inodes for this many seconds", STABLE_NUMBERS),
    option(
        "no_rofd_flush",
        "no FLUSH for files opened read-only",
        Ignored("a FLUSH without written data sends no request"),
    ),
    option("splice_read", "read with splice(2)", LIBFUSE),
    option("no_splice_read", "read without splice(2)", LIBFUSE),
    option("splice_write", "write with splice(2)", LIBFUSE),
    option("no_splice_write", "write without splice(2)", LIBFUSE),
    option("splice_move", "move pages with splice(2)", LIBFUSE),
    option("no_splice_move", "do not move pages with splice(2)", LIBFUSE),
    option("clone_fd", "one /dev/fuse descriptor per thread", LIBFUSE),
    option("max_threads", "maximum number of threads", LIBFUSE),
    option("max_idle_threads", "maximum number of idle threads", LIBFUSE),
    option("io_uring", "transfer requests with io_uring", LIBFUSE),
    option("io_uring_q_depth", "queue depth of io_uring", LIBFUSE),
    option("no_remote_lock", "all locks are local", LOCAL_LOCKS),
    option("no_remote_flock", "flock(2) locks are local", LOCAL_LOCKS),
    option("no_remote_posix_lock", "fcntl(2) locks are local", LOCAL_LOCKS),
    option("modules", "stacked modules of libfuse", MODULES),
    option(
        "subdir",
        "option of libfuse's module subdir",
        Refused("name the directory in the source"),
    ),
    option("rellinks", "option of libfuse's module subdir", Refused("use transform_symlinks")),
    option("norellinks", "option of libfuse's module subdir", MODULES),
    option("from_code", "option of libfuse's module iconv", MODULES),
    option("to_code", "option of libfuse's module iconv", MODULES),
];
