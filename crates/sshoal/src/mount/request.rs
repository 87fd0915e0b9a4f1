//! The request for a mount: the command line as plain data, with all defaults.
//!
//! The settings of a layer are in that layer's own type. Option names are in
//! [`option_table`](super::option_table). Nothing here does I/O.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use recovery::RetryPolicy;

use super::disk::DiskOptions;
use super::draft::Times;
use crate::log::LogTarget;
use crate::sources::SourceSpec;
use crate::stats::endpoint::Address;

/// One mount, complete and consistent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MountRequest {
    /// The source in the mount table: the sources as they were typed, or the name of the mount in
    /// the configuration file.
    pub source: OsString,
    /// The sources in search order: at least one, and checked together.
    pub sources: Vec<SourceSpec>,
    /// The mount point: an absolute path without links, or `/dev/fd/N` (an open FUSE descriptor).
    pub mountpoint: PathBuf,
    /// How to reach the SFTP server.
    pub ssh: SshOptions,
    /// How to use it. The directory is that of the source.
    pub host: host::Config,
    /// What calls do while their host is unreachable. Without `host.reconnect` they fail at once.
    pub retry: RetryPolicy,
    /// The policies of the union.
    pub union: union::Policies,
    /// How the gateways of a pool share requests, unless the source sets it.
    pub pool: replicas::Mode,
    /// Caches, links and owners, as far as they do not depend on the server.
    pub vfs: vfs::Config,
    /// The options from which the time-outs in `vfs` result, so that later ones can be added.
    pub times: Times,
    /// The disk cache, if enabled.
    pub disk: Option<DiskOptions>,
    /// Changes of others are repeated for local processes that watch the mount.
    pub inotify: bool,
    /// Translation of owners.
    pub idmap: IdMap,
    /// Options of the mount in the kernel.
    pub mount: fuse::MountOptions,
    /// Limits of the kernel.
    pub limits: KernelLimits,
    /// This process.
    pub run: RunOptions,
}

impl MountRequest {
    /// Whether the mount is a union, possibly of one branch.
    pub fn is_union(&self) -> bool {
        self.sources.len() > 1 || self.sources.iter().any(SourceSpec::wants_union)
    }

    /// Whether each path of `source` is one of one host, so that the inodes of its server identify
    /// files: gateways have device numbers of their own, and several links may show one file.
    pub fn shows_inodes(&self, source: &SourceSpec) -> bool {
        source.gateways().len() == 1 && !self.host.follow_symlinks
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
    /// The transport. With [`ssh::Transport::Passive`], the process is in the foreground and has
    /// one session.
    pub transport: ssh::Transport,
    /// The password is the first line of standard input, and is sent at ssh's prompt.
    pub password_stdin: bool,
    /// What happens to a password that the user types while mounting.
    pub typed_password: ssh::TypedPassword,
}

impl Default for SshOptions {
    fn default() -> SshOptions {
        SshOptions {
            command: OsString::from("ssh"),
            arguments: Vec::new(),
            sftp_server: None,
            transport: ssh::Transport::Ssh,
            password_stdin: false,
            typed_password: ssh::TypedPassword::Kept,
        }
    }
}

/// Translation of owners between the local machine and the remote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    /// Which ids are translated.
    pub kind: IdMapKind,
    /// With [`IdMapKind::File`], the file of user ids (`uidfile`), if any.
    pub users: Option<PathBuf>,
    /// With [`IdMapKind::File`], the file of group ids (`gidfile`), if any.
    pub groups: Option<PathBuf>,
    /// An id that is not in its file stays unchanged (`nomap=ignore`); otherwise its use is EPERM.
    pub others_same: bool,
}

/// Which ids are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdMapKind {
    /// None.
    #[default]
    None,
    /// The user and group of the remote login become those of the local user, and vice versa.
    User,
    /// Those in files of names. Without a file, the ids stay unchanged.
    File,
}

/// Limits of the requests of the kernel (`None`: the default of the fuse layer), and what the
/// kernel does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLimits {
    /// Maximum background requests in flight.
    pub max_background: Option<u16>,
    /// Number of background requests at which the kernel throttles readahead.
    pub congestion_threshold: Option<u16>,
    /// Maximum bytes that the kernel reads ahead.
    pub max_readahead_bytes: Option<u32>,
    /// How long to poll for its next request ([`fuse::Config::poll_limit`]).
    pub poll_limit: Duration,
    /// Its requests are transferred through io_uring, if it offers that.
    pub io_uring: bool,
    /// Entries for each processor with io_uring.
    pub io_uring_depth: Option<u16>,
    /// It keeps `flock(2)` locks for this machine, also if the server has locks.
    pub local_flock: bool,
    /// It keeps `fcntl(2)` locks for this machine, also if the server has locks.
    pub local_posix_locks: bool,
}

impl Default for KernelLimits {
    fn default() -> KernelLimits {
        KernelLimits {
            max_background: None,
            congestion_threshold: None,
            max_readahead_bytes: None,
            // Longer than a program takes to send its next request. Longer polling gains nothing.
            poll_limit: Duration::from_micros(50),
            io_uring: false,
            io_uring_depth: None,
            local_flock: false,
            local_posix_locks: false,
        }
    }
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Warnings and errors.
    Warning,
    /// Also what happens now and then.
    Info,
    /// Also each request.
    Debug,
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
    /// What is logged; `None`: as `debug` and `verbose` say.
    pub log_level: Option<LogLevel>,
    /// One thread only.
    pub single_thread: bool,
    /// Where the messages of the background process go.
    pub log: LogTarget,
    /// Metrics are served here.
    pub metrics: Option<Address>,
    /// Check everything, but do not mount (`mount -f`).
    pub fake: bool,
    /// Allow mounting over a mount of sshoal.
    pub nonempty: bool,
}

impl RunOptions {
    /// What is logged.
    pub fn log_level(&self) -> LogLevel {
        // Events that a user should know are of the level `Info`.
        let usual = if self.foreground { LogLevel::Warning } else { LogLevel::Info };
        self.log_level.unwrap_or(self.level_or(usual))
    }

    /// What is shown on the terminal while a background process is mounting.
    pub fn terminal_level(&self) -> LogLevel {
        self.level_or(LogLevel::Warning)
    }

    /// What the flags `-d` and `-v` ask for.
    fn level_or(&self, usual: LogLevel) -> LogLevel {
        match (self.debug, self.verbose) {
            (true, _) => LogLevel::Debug,
            (false, true) => LogLevel::Info,
            (false, false) => usual,
        }
    }
}
