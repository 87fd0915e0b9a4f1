//! The request for a mount: the command line as plain data, with all defaults.
//!
//! The other crates have settings of their own; [`wiring`](super::wiring) translates. Option names are
//! in [`option_table`](super::option_table). Nothing here does I/O.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use vfs::Prefetch;

use super::disk::DiskOptions;
use crate::sources::{self, PoolMode, SourceSpec};

/// One mount, complete and consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct MountRequest {
    /// The source in the mount table: the sources as they were typed, or the name of the mount in the
    /// configuration file.
    pub source: OsString,
    /// The sources in search order: at least one, and checked together.
    pub sources: Vec<SourceSpec>,
    /// The mount point: an absolute path without links, or `/dev/fd/N` (an open FUSE descriptor).
    pub mountpoint: PathBuf,
    /// How to reach the SFTP server.
    pub ssh: SshOptions,
    /// How to use it.
    pub host: HostOptions,
    /// What calls do while their host is unreachable.
    pub patience: Patience,
    /// The policies of the union.
    pub union: UnionOptions,
    /// How the gateways of a pool share requests, unless the source sets it.
    pub pool: PoolMode,
    /// Time-outs and the kernel's page cache.
    pub cache: CacheOptions,
    /// When caches may answer.
    pub consistency: Consistency,
    /// The disk cache, if enabled.
    pub disk: Option<DiskOptions>,
    /// Symbolic links.
    pub links: Symlinks,
    /// Translation of owners.
    pub idmap: IdMap,
    /// Owner and permissions shown for all files.
    pub shown: Shown,
    /// Options of the mount in the kernel.
    pub fuse: FuseOptions,
    /// This process.
    pub run: RunOptions,
}

impl MountRequest {
    /// A request with all defaults for these sources and this mount point.
    #[must_use]
    pub fn new(sources: Vec<SourceSpec>, mountpoint: PathBuf) -> MountRequest {
        MountRequest {
            source: sources::joined(&sources),
            sources,
            mountpoint,
            ssh: SshOptions::default(),
            host: HostOptions::default(),
            patience: Patience::default(),
            union: UnionOptions::default(),
            pool: PoolMode::default(),
            cache: CacheOptions::default(),
            consistency: Consistency::default(),
            disk: None,
            links: Symlinks::default(),
            idmap: IdMap::default(),
            shown: Shown::default(),
            fuse: FuseOptions::default(),
            run: RunOptions::default(),
        }
    }

    /// Whether the mount is a union, possibly of one branch.
    #[must_use]
    pub fn is_union(&self) -> bool {
        self.sources.len() > 1 || self.sources.iter().any(SourceSpec::wants_union)
    }
}

/// How to connect to the SFTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshOptions {
    /// The command instead of `ssh`: words separated by spaces, `\ ` for a space in a word.
    pub command: OsString,
    /// Arguments of ssh in the given order, each as one word or as a flag followed by its value
    /// (`-oPort=2222`, `-4`, `-i`, `/home/a/key`). Paths are absolute, since ssh runs in `/`.
    pub arguments: Vec<OsString>,
    /// The name of a subsystem, or a command if it contains a `/`. `None`: the subsystem `sftp`.
    pub sftp_server: Option<OsString>,
    /// The transport.
    pub transport: Transport,
    /// The password is the first line of standard input, and is sent at ssh's prompt.
    pub password_stdin: bool,
}

impl Default for SshOptions {
    fn default() -> SshOptions {
        SshOptions {
            command: OsString::from("ssh"),
            arguments: Vec::new(),
            sftp_server: None,
            transport: Transport::Ssh,
            password_stdin: false,
        }
    }
}

/// The transport of the bytes to and from the SFTP server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The `ssh` program.
    #[default]
    Ssh,
    /// A TCP connection to this port of the host, without encryption.
    DirectPort(u16),
    /// A vsock connection between a virtual machine and its host, without encryption.
    Vsock {
        /// Context id of the server's machine.
        cid: u32,
        /// The port.
        port: u32,
    },
    /// Standard input and output of this process. Always in the foreground, with one session.
    Passive,
}

/// How the host is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Reconnect when the connection is lost.
    pub reconnect: bool,
    /// Connect at the first access instead of before mounting.
    pub delay_connect: bool,
    /// Check before mounting that the remote directory exists.
    pub check_root: bool,
    /// The server follows symbolic links; none is visible in the mount.
    pub follow_symlinks: bool,
    /// Send one READDIR request at a time.
    pub sync_readdir: bool,
    /// Maximum number of sessions, at least 1; `None`: the default of the host layer.
    pub max_conns: Option<u32>,
    /// Maximum bytes of one SFTP READ; `None`: the server's limit.
    pub max_read_bytes: Option<u32>,
    /// Maximum bytes of one SFTP WRITE; `None`: the server's limit.
    pub max_write_bytes: Option<u32>,
    /// `link(2)` fails with ENOSYS.
    pub disable_hardlink: bool,
    /// Renaming over an existing file deletes it first if the server cannot replace it in one step.
    pub rename_workaround: bool,
    /// A rename that the server refuses fails with EXDEV, so that `mv` copies.
    pub renamexdev_workaround: bool,
    /// How long the server may be silent while requests are in flight, before the session is treated as
    /// lost.
    pub request_timeout: Duration,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            reconnect: true,
            delay_connect: false,
            check_root: true,
            follow_symlinks: false,
            sync_readdir: false,
            max_conns: None,
            max_read_bytes: None,
            max_write_bytes: None,
            disable_hardlink: false,
            rename_workaround: false,
            renamexdev_workaround: false,
            request_timeout: Duration::from_secs(60),
        }
    }
}

/// What calls do while their host is unreachable. Without `reconnect` they fail at once in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// They wait, and can be interrupted.
    #[default]
    Hard,
    /// They wait this long, then fail with ETIMEDOUT.
    Soft(Duration),
}

/// The policies of a union.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnionOptions {
    /// Where new files are created.
    pub create: CreatePolicy,
    /// To which branches a change of an existing file applies.
    pub action: ActionPolicy,
}

/// Where new files are created, in mergerfs's terms. Branches that are `ro` or `nc` are never used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CreatePolicy {
    /// In the first branch that has the directory.
    #[default]
    EpFf,
    /// In the first branch; missing parent directories are created.
    Ff,
    /// In the branch with the most free space that has the directory.
    EpMfs,
    /// In the branch with the most free space; missing parent directories are created.
    Mfs,
    /// In a random branch.
    Rand,
}

/// To which branches a change of an existing file applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActionPolicy {
    /// To the first branch that has it, which is the visible one.
    #[default]
    First,
    /// To all branches that have it.
    All,
}

/// How long cached data is valid: `min` after a change, growing up to `max` while it stays unchanged.
/// `min <= max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// After a change, and when first cached.
    pub min: Duration,
    /// For data that has not changed for long.
    pub max: Duration,
}

impl Timeout {
    /// A time-out with equal minimum and maximum.
    #[must_use]
    pub const fn fixed(time: Duration) -> Timeout {
        Timeout { min: time, max: time }
    }
}

/// Time-outs and the kernel's page cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Attributes and names of everything but directories (`acregmin`, `acregmax`).
    pub files: Timeout,
    /// Attributes, names and listings of directories (`acdirmin`, `acdirmax`).
    pub dirs: Timeout,
    /// Negative lookups (`acnegative`).
    pub negative: Duration,
    /// Attributes of a file, at its next open (`open_revalidate`).
    pub open_revalidate: Duration,
    /// Upper limit of the kernel's time-out of names (`entry_timeout`).
    pub kernel_entry: Option<Duration>,
    /// Upper limit of the kernel's time-out of attributes (`attr_timeout`).
    pub kernel_attr: Option<Duration>,
    /// Upper limit of the kernel's time-out of negative lookups (`negative_timeout`).
    pub kernel_negative: Option<Duration>,
    /// The kernel's pages of a file at its next open.
    pub pages: PageCache,
    /// Serve cached data of any age while the host is unreachable.
    pub serve_stale: bool,
    /// A write returns only when the server has acknowledged the data.
    pub sync_writes: bool,
    /// Maximum bytes read ahead for the whole mount; 0: no readahead except the kernel's.
    pub readahead_bytes: u32,
    /// What is fetched before a program needs it, besides readahead.
    pub prefetch: Prefetch,
    /// Maximum unacknowledged bytes written, for the whole mount. At least 1.
    pub dirty_bytes: u32,
    /// Maximum unacknowledged bytes written to one file. At least 1.
    pub dirty_file_bytes: u32,
    /// Memory for names and attributes, in bytes.
    pub metadata_bytes: u32,
}

impl Default for CacheOptions {
    /// The times are those of NFS, with `max` shortened to the time-out of sshfs (20 s), and `min` to the
    /// resolution of SFTP's time stamps (1 s).
    fn default() -> CacheOptions {
        let timeout = Timeout { min: Duration::from_secs(1), max: Duration::from_secs(20) };
        CacheOptions {
            files: timeout,
            dirs: timeout,
            negative: Duration::from_secs(1),
            open_revalidate: Duration::from_secs(1),
            kernel_entry: None,
            kernel_attr: None,
            kernel_negative: None,
            pages: PageCache::default(),
            serve_stale: false,
            sync_writes: false,
            readahead_bytes: 64 << 20,
            prefetch: Prefetch::default(),
            dirty_bytes: 128 << 20,
            dirty_file_bytes: 32 << 20,
            metadata_bytes: 44 << 20,
        }
    }
}

/// Whether the kernel's pages of a file are kept when it is opened again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageCache {
    /// Kept if the file was validated to be unchanged.
    #[default]
    Validated,
    /// Kept if size and modification time are unchanged (`auto_cache`).
    SameTime,
    /// Always kept (`kernel_cache`).
    Always,
    /// No pages are cached (`direct_io`).
    Never,
}

/// When the content and the attributes of a file may come from a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Each call sends a request to the server.
    Strict,
    /// Each open validates the cached file.
    #[default]
    CloseToOpen,
    /// Cached data is valid until its time-out, also at open.
    Timeout,
    /// The tree never changes.
    Immutable,
}

/// How symbolic links are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Symlinks {
    /// Which targets are shown.
    pub targets: LinkTargets,
    /// Absolute targets below the remote root are made relative, with any value of `targets`.
    pub transform: bool,
}

/// Which targets of symbolic links are shown. The kernel resolves them on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkTargets {
    /// Those that stay inside the mount, absolute ones made relative; others give EPERM.
    #[default]
    Inside,
    /// Relative ones without `..` only (`contain_symlinks`); others give EPERM.
    Strict,
    /// All, as they are (`no_contain_symlinks`).
    Any,
}

/// Translation of owners between the local machine and the remote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IdMap {
    /// No translation.
    #[default]
    None,
    /// The user and group of the remote login become those of the local user, and vice versa.
    User,
    /// By tables of names. A table that is `None` leaves its ids unchanged.
    File {
        /// Users.
        users: Option<IdTable>,
        /// Groups.
        groups: Option<IdTable>,
        /// An id that is not in the table stays unchanged (`nomap=ignore`); otherwise its use is EPERM.
        others_same: bool,
    },
}

/// A `uidfile` or `gidfile`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdTable {
    /// The path.
    pub file: PathBuf,
    /// Remote id to local id; empty until the file was read.
    pub ids: HashMap<u32, u32>,
}

/// Owner and permissions shown for all files instead of the server's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Permissions of all but directories are `0o777` without these bits.
    pub file_umask: Option<u32>,
    /// Permissions of directories are `0o777` without these bits.
    pub dir_umask: Option<u32>,
}

/// Options of the mount in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a mount flag of its own")]
pub struct FuseOptions {
    /// First column of `/proc/mounts`; `None`: the source.
    pub fsname: Option<OsString>,
    /// The type is `fuse.` followed by this.
    pub subtype: OsString,
    /// Other users may use the mount.
    pub allow_other: bool,
    /// Root may use the mount. Never together with `allow_other`.
    pub allow_root: bool,
    /// The kernel checks permission bits. On with `allow_other` unless turned off.
    pub default_permissions: bool,
    /// The mount is read-only.
    pub read_only: bool,
    /// Set-user-ID bits are honored. Off by default: the server must not grant local privileges.
    pub suid: bool,
    /// Device files can be accessed. Off by default: the server must not grant local privileges.
    pub dev: bool,
    /// Programs may be run.
    pub exec: bool,
    /// The flag `noatime` is absent.
    pub atime: bool,
    /// All writes are synchronous.
    pub sync: bool,
    /// Changes of directories are synchronous.
    pub dirsync: bool,
    /// Unmount when the daemon dies.
    pub auto_unmount: bool,
    /// SELinux context of all files.
    pub context: Option<OsString>,
    /// Maximum background requests of the kernel in flight; `None`: the default of the fuse layer.
    pub max_background: Option<u16>,
    /// Number of background requests at which the kernel throttles readahead.
    pub congestion_threshold: Option<u16>,
    /// Maximum bytes that the kernel reads ahead; `None`: its maximum.
    pub max_readahead_bytes: Option<u32>,
}

impl Default for FuseOptions {
    fn default() -> FuseOptions {
        FuseOptions {
            fsname: None,
            subtype: OsString::from("sshoal"),
            allow_other: false,
            allow_root: false,
            default_permissions: false,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            atime: true,
            sync: false,
            dirsync: false,
            auto_unmount: false,
            context: None,
            max_background: None,
            congestion_threshold: None,
            max_readahead_bytes: None,
        }
    }
}

/// The process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Stay attached to the terminal.
    pub foreground: bool,
    /// Log each request. Implies `foreground`.
    pub debug: bool,
    /// Log more than warnings.
    pub verbose: bool,
    /// One thread only.
    pub single_thread: bool,
    /// Messages of the background process are appended to this file.
    pub log: Option<PathBuf>,
    /// Check everything, but do not mount (`mount -f`).
    pub fake: bool,
    /// Allow mounting over a mount of sshoal.
    pub nonempty: bool,
}
