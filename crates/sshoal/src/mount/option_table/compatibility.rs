//! Options of mount(8), sshfs and libfuse that are accepted without effect, or refused.

use super::Effect::{self, Ignored, Refused};
use super::{MountOption, flag, ignored, option, refused};

const FOR_MOUNT: Effect = Ignored("for mount(8) and systemd, not for the file system");
const ACCESS_TIMES: Effect = Ignored("the server keeps access times");
const LIBFUSE_TWO: Effect = Ignored("an option of libfuse 2; always on in FUSE today");
const LIBFUSE: Effect = Ignored("an internal option of libfuse, which is not used");
const ALWAYS_ON: Effect = Ignored("always on");
const STABLE_NUMBERS: Effect = Ignored("inode numbers are stable anyway");
const MODULES: Effect = Refused("libfuse modules are not supported");

/// Options of fstab(5) and mount(8).
pub(super) const FSTAB: &[MountOption] = &[
    option("_netdev", FOR_MOUNT).help("needs the network"),
    option("auto", FOR_MOUNT).help("mount at boot"),
    option("noauto", FOR_MOUNT).help("do not mount at boot"),
    option("user", FOR_MOUNT).help("any user may mount"),
    option("nouser", FOR_MOUNT).help("only root may mount"),
    option("users", FOR_MOUNT).help("any user may mount and unmount"),
    option("owner", FOR_MOUNT).help("the device's owner may mount"),
    option("group", FOR_MOUNT).help("the device's group may mount"),
    option("nofail", FOR_MOUNT).help("a failed mount does not fail the boot"),
    option("defaults", FOR_MOUNT).help("default options"),
    option("comment", FOR_MOUNT).help("a comment"),
    option("x-*", FOR_MOUNT).help("for other readers of fstab, such as x-systemd.automount"),
    option("X-*", FOR_MOUNT).help("for mount(8), such as X-mount.mkdir"),
    option("silent", FOR_MOUNT).help("fewer kernel messages"),
    option("loud", FOR_MOUNT).help("more kernel messages"),
    option("relatime", ACCESS_TIMES)
        .help("update access times only if older than the modification"),
    option("norelatime", ACCESS_TIMES).help("turn relatime off"),
    option("strictatime", ACCESS_TIMES).help("update access times at each access"),
    option("nostrictatime", ACCESS_TIMES).help("turn strictatime off"),
    option("diratime", ACCESS_TIMES).help("update access times of directories"),
    option("nodiratime", ACCESS_TIMES).help("do not update access times of directories"),
    option("lazytime", ACCESS_TIMES).help("write changed times to the disk later"),
    option("nolazytime", ACCESS_TIMES).help("write changed times to the disk at once"),
    ignored("mand", "Linux has removed mandatory locks").help("mandatory locks"),
    ignored("nomand", "Linux has removed mandatory locks").help("no mandatory locks"),
    ignored("iversion", "SFTP has no change counters").help("change counters of inodes"),
    ignored("noiversion", "SFTP has no change counters").help("no change counters of inodes"),
    refused("remount", "only on a command line, for a file system that is mounted").help(
        "change options of a mount: -o remount,OPTION=VALUE MOUNTPOINT; as root ro and rw, too",
    ),
];

/// Options that sshfs and libfuse have or had.
pub(super) const OTHERS: &[MountOption] = &[
    ignored("unreliable_append", "has no effect in sshfs either")
        .help("a workaround of old versions of sshfs"),
    option("big_writes", LIBFUSE_TWO).help("writes of more than 4 KiB"),
    option("large_read", LIBFUSE_TWO).help("reads of more than 4 KiB"),
    option("async_read", LIBFUSE_TWO).help("several reads at a time"),
    ignored("sync_read", "use max_readahead=0").help("one read at a time"),
    option("atomic_o_trunc", LIBFUSE_TWO).help("open and truncate in one request"),
    ignored("hard_remove", "always on; removed files stay usable while they are open")
        .help("remove open files at once"),
    option("use_ino", ALWAYS_ON).help("inode numbers of the file system"),
    option("readdir_ino", ALWAYS_ON).help("inode numbers in listings"),
    option("intr", ALWAYS_ON).help("requests can be interrupted"),
    ignored("intr_signal", "no signal is used").help("signal that interrupts requests"),
    option("nopath", LIBFUSE).help("do not compute paths"),
    option("noforget", STABLE_NUMBERS).help("never forget inodes"),
    option("remember", STABLE_NUMBERS).help("remember inodes for this many seconds"),
    ignored("no_rofd_flush", "a FLUSH without written data sends no request")
        .help("no FLUSH for files opened read-only"),
    option("splice_read", LIBFUSE).help("read with splice(2)"),
    option("no_splice_read", LIBFUSE).help("read without splice(2)"),
    option("splice_write", LIBFUSE).help("write with splice(2)"),
    option("no_splice_write", LIBFUSE).help("write without splice(2)"),
    option("splice_move", LIBFUSE).help("move pages with splice(2)"),
    option("no_splice_move", LIBFUSE).help("do not move pages with splice(2)"),
    option("clone_fd", LIBFUSE).help("one /dev/fuse descriptor per thread"),
    option("max_threads", LIBFUSE).help("maximum number of threads"),
    option("max_idle_threads", LIBFUSE).help("maximum number of idle threads"),
    flag("no_remote_lock", |draft| {
        draft.request.limits.local_flock = true;
        draft.request.limits.local_posix_locks = true;
    })
    .help("all locks are local, also if the server has locks (`sshoal helper`)"),
    flag("no_remote_flock", |draft| draft.request.limits.local_flock = true)
        .help("flock(2) locks are local"),
    flag("no_remote_posix_lock", |draft| draft.request.limits.local_posix_locks = true)
        .help("fcntl(2) locks are local"),
    option("modules", MODULES).help("stacked modules of libfuse"),
    refused("subdir", "name the directory in the source").help("option of libfuse's module subdir"),
    refused("rellinks", "use transform_symlinks").help("option of libfuse's module subdir"),
    option("norellinks", MODULES).help("option of libfuse's module subdir"),
    option("from_code", MODULES).help("option of libfuse's module iconv"),
    option("to_code", MODULES).help("option of libfuse's module iconv"),
];
