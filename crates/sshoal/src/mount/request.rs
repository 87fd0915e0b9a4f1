//! What a mount is asked to be: the command line as plain data, with every default in its place.
//!
//! The other crates have settings of their own; [`wiring`](super::wiring) translates. Nothing here
//! knows option names (see [`option_table`](super::option_table)), and nothing here does I/O.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::disk::DiskOptions;
use crate::sources::{self, PoolMode, SourceSpec};

/// One mount, complete and consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct MountRequest {
    /// What the table of mounts shows: the sources as they were typed, or the name that the mount
    /// has in the configuration file.
    pub source: OsString,
    /// What is shown, in the order of search. At least one, which go together.
    pub sources: Vec<SourceSpec>,
    /// Where to mount: an absolute path without links, or `/dev/fd/N` (an open FUSE descriptor).
    pub mountpoint: PathBuf,
    /// How to reach the SFTP server.
    pub ssh: SshOptions,
    /// How to talk to it.
    pub host: HostOptions,
    /// What calls do while their host is away.
    pub patience: Patience,
    /// How several sources are one tree.
    pub union: UnionOptions,
    /// How the gateways of a pool share the work, where the source says nothing else.
    pub pool: PoolMode,
    /// How long what was seen counts.
    pub cache: CacheOptions,
    /// When caches may answer.
    pub consistency: Consistency,
    /// The cache on this machine's disk, if there is to be one.
    pub disk: Option<DiskOptions>,
    /// Symbolic links.
    pub links: Symlinks,
    /// Translation of owners.
    pub idmap: IdMap,
    /// Owners and permissions that every file seems to have.
    pub shown: Shown,
    /// The kernel's side of the mount.
    pub fuse: FuseOptions,
    /// This process.
    pub run: RunOptions,
}

impl MountRequest {
    /// All defaults, for these sources and this mount point.
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

    /// Whether what is shown is a tree of branches, be it of one.
    #[must_use]
    pub fn is_union(&self) -> bool {
        self.sources.len() > 1 || self.sources.iter().any(SourceSpec::wants_union)
    }
}

/// How the bytes get to the SFTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshOptions {
    /// The command in place of `ssh`: words parted by spaces, `\ ` for a space in a word.
    pub command: OsString,
    /// Arguments for ssh in the order in which they were given, each as one word or as a flag
    /// followed by its value (`-oPort=2222`, `-4`, `-i`, `/home/a/key`). Relative paths were made
    /// absolute, since ssh runs in `/`.
    pub arguments: Vec<OsString>,
    /// A subsystem's name, or a command if there is a `/` in it. `None`: the subsystem `sftp`.
    pub sftp_server: Option<OsString>,
    /// What carries the bytes.
    pub transport: Transport,
    /// The password is one line on standard input, given to ssh at its prompt.
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

/// What carries the bytes to and from the SFTP server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The `ssh` program.
    #[default]
    Ssh,
    /// A TCP connection to this port of the host, without encryption.
    DirectPort(u16),
    /// A vsock connection between a virtual machine and its host, without encryption.
    Vsock {
        /// The other side's context id.
        cid: u32,
        /// Its port.
        port: u32,
    },
    /// Standard input and output of this process. Always in the foreground, with one session.
    Passive,
}

/// How the host is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// A lost connection is made again.
    pub reconnect: bool,
    /// Connect at the first access instead of before mounting.
    pub delay_connect: bool,
    /// Before mounting, make sure that the remote directory is there.
    pub check_root: bool,
    /// The server follows symbolic links; none is ever seen here.
    pub follow_symlinks: bool,
    /// One READDIR at a time.
    pub sync_readdir: bool,
    /// Most sessions open at once; `None` leaves it to the host layer. At least 1.
    pub max_conns: Option<u32>,
    /// Most bytes of one SFTP READ; `None` for what the server allows.
    pub max_read_bytes: Option<u32>,
    /// Most bytes of one SFTP WRITE; `None` for what the server allows.
    pub max_write_bytes: Option<u32>,
    /// `link(2)` fails with ENOSYS.
    pub disable_hardlink: bool,
    /// Renaming over something deletes it first where the server cannot do it in one step.
    pub rename_workaround: bool,
    /// A rename that the server refuses counts as one to another file system (EXDEV), so that `mv`
    /// copies.
    pub renamexdev_workaround: bool,
    /// How long the server may be silent while it owes an answer before the session counts as
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

/// What calls do whose host cannot be reached. Without `reconnect` they fail at once all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// They wait, and can be interrupted.
    #[default]
    Hard,
    /// They wait for so long, and fail with ETIMEDOUT then.
    Soft(Duration),
}

/// How several sources are one tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnionOptions {
    /// Where something new is made.
    pub create: CreatePolicy,
    /// What a change does to something that several branches have.
    pub action: ActionPolicy,
}

/// Where something new is made, in mergerfs's words. Branches that are `ro` or `nc` never count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CreatePolicy {
    /// In the first branch that has the directory.
    #[default]
    EpFf,
    /// In the first branch; directories on the way there are made.
    Ff,
    /// In the branch with the most space left that has the directory.
    EpMfs,
    /// In the branch with the most space left; directories on the way there are made.
    Mfs,
    /// In any branch, by chance.
    Rand,
}

/// What a change does to something that several branches have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActionPolicy {
    /// It is for the branch that shows it.
    #[default]
    First,
    /// It is for all branches.
    All,
}

/// How long something seen counts: `min` after a change, growing up to `max` while it stays the
/// same. `min <= max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// After a change, and when first seen.
    pub min: Duration,
    /// For what has not changed for long.
    pub max: Duration,
}

impl Timeout {
    /// The same time for everything.
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
    /// Names that are not there (`acnegative`).
    pub negative: Duration,
    /// What the server told of a file, at its next open (`open_revalidate`).
    pub open_revalidate: Duration,
    /// Upper limit of what the kernel is told about names (`entry_timeout`).
    pub kernel_entry: Option<Duration>,
    /// Upper limit of what the kernel is told about attributes (`attr_timeout`).
    pub kernel_attr: Option<Duration>,
    /// Upper limit of what the kernel is told about absent names (`negative_timeout`).
    pub kernel_negative: Option<Duration>,
    /// The kernel's pages of a file at its next open.
    pub pages: PageCache,
    /// While the host is away, what is cached is shown, however old it is.
    pub serve_stale: bool,
    /// A write returns when the server has the data.
    pub sync_writes: bool,
    /// Bytes read ahead for the whole mount; 0: none, but by the kernel.
    pub readahead_bytes: u32,
    /// Bytes that may be written and not be at the server yet, for the whole mount. At least 1.
    pub dirty_bytes: u32,
    /// The same for one file. At least 1.
    pub dirty_file_bytes: u32,
    /// Bytes of what is known of files and directories.
    pub metadata_bytes: u32,
}

impl Default for CacheOptions {
    /// The times are NFS's with its `max` shortened to what sshfs uses for everything (20 s), and
    /// its `min` to the resolution of SFTP's time stamps (1 s).
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
            dirty_bytes: 128 << 20,
            dirty_file_bytes: 32 << 20,
            metadata_bytes: 44 << 20,
        }
    }
}

/// What happens to the kernel's pages of a file when it is opened again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageCache {
    /// Kept when the file is proven to be the one that they are from.
    #[default]
    Validated,
    /// Kept when size and time of last change are the same (`auto_cache`).
    SameTime,
    /// Always kept (`kernel_cache`).
    Always,
    /// None are made (`direct_io`).
    Never,
}

/// When the content and the attributes of a file may come from a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Each call asks the server.
    Strict,
    /// Each open asks whether the file is still the one that is cached.
    #[default]
    CloseToOpen,
    /// Caches count until their time-out, also at open.
    Timeout,
    /// The tree never changes.
    Immutable,
}

/// What the kernel gets to see of symbolic links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Symlinks {
    /// Which targets are shown.
    pub targets: LinkTargets,
    /// Absolute targets below the remote root are made relative, whatever `targets` says.
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

/// Translation of owners between this machine and the remote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IdMap {
    /// Numbers stay.
    #[default]
    None,
    /// The remote login's user and group are the local user's and the other way round.
    User,
    /// Tables by name. A table that is `None` leaves its numbers alone.
    File {
        /// Users.
        users: Option<IdTable>,
        /// Groups.
        groups: Option<IdTable>,
        /// An id that is in no table stays (`nomap=ignore`); otherwise using it is EPERM.
        others_same: bool,
    },
}

/// A `uidfile` or `gidfile`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdTable {
    /// Where it is.
    pub file: PathBuf,
    /// Remote id to local id; empty until the file was read.
    pub ids: HashMap<u32, u32>,
}

/// Owner and permissions that every file seems to have, whatever the server says.
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

/// The kernel's side.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a mount flag of its own")]
pub struct FuseOptions {
    /// First column of `/proc/mounts`; `None` for the source.
    pub fsname: Option<OsString>,
    /// The type is `fuse.` and this.
    pub subtype: OsString,
    /// Other users may use the mount.
    pub allow_other: bool,
    /// Root may use the mount. Never together with `allow_other`.
    pub allow_root: bool,
    /// The kernel checks the permission bits. On with `allow_other` unless told otherwise.
    pub default_permissions: bool,
    /// Nothing can be changed through the mount.
    pub read_only: bool,
    /// Set-user-id bits count. Off by default: the server must not hand out privileges here.
    pub suid: bool,
    /// Device nodes work. Off by default, as above.
    pub dev: bool,
    /// Programs may be run.
    pub exec: bool,
    /// The flag `noatime` is absent.
    pub atime: bool,
    /// All writes are synchronous.
    pub sync: bool,
    /// Changes of directories are synchronous.
    pub dirsync: bool,
    /// The mount goes when the process dies.
    pub auto_unmount: bool,
    /// SELinux context of all files.
    pub context: Option<OsString>,
    /// Most asynchronous requests that the kernel keeps in flight; `None` for the fuse layer's
    /// choice.
    pub max_background: Option<u16>,
    /// At how many of them the kernel holds back readahead.
    pub congestion_threshold: Option<u16>,
    /// Most bytes that the kernel reads ahead; `None` for the most that it does.
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
    /// Tell about each request. Implies `foreground`.
    pub debug: bool,
    /// Tell more than warnings.
    pub verbose: bool,
    /// One thread only.
    pub single_thread: bool,
    /// What the process says once it is in the background goes to the end of this file.
    pub log: Option<PathBuf>,
    /// Check everything, but do not mount (`mount -f`).
    pub fake: bool,
    /// Mount also over a mount of sshoal.
    pub nonempty: bool,
}
