//! What can go wrong with a mount as a whole. Errors of single requests are
//! [`Errno`](base::Errno)s.

use std::io;
use std::path::PathBuf;

/// Why a file system could not be mounted, unmounted or served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no `/dev/fuse`.
    #[error("/dev/fuse is not there: load the kernel's module with \"modprobe fuse\"")]
    NoDevice,
    /// `/dev/fuse` may not be opened.
    #[error("no permission to open /dev/fuse: its mode has to be 0666")]
    DeviceNotPermitted,
    /// `/dev/fuse` could not be opened for another reason.
    #[error("cannot open /dev/fuse: {0}")]
    Device(#[source] io::Error),
    /// `/dev/fd/N` where N is not an open descriptor of `/dev/fuse`.
    #[error("descriptor {0} is not an open /dev/fuse")]
    NotADevice(i32),
    /// fusermount3 is not installed.
    #[error("fusermount3 is not in PATH: install the package fuse3")]
    FusermountMissing,
    /// fusermount3 could not be run.
    #[error("cannot run fusermount3: {0}")]
    FusermountFailed(#[source] io::Error),
    /// fusermount3 refused, with its own words.
    #[error("{0}")]
    Fusermount(String),
    /// The process for `auto_unmount` could not be started.
    #[error("cannot start the process that unmounts at the end (auto_unmount): {0}")]
    AutoUnmount(#[source] io::Error),
    /// `allow_other` or `allow_root`, which the administrator has not allowed.
    #[error("allow_other and allow_root need \"user_allow_other\" in /etc/fuse.conf")]
    AllowOtherNotPermitted,
    /// The mount point is not there.
    #[error("the mount point {} does not exist", .0.display())]
    MountPointMissing(PathBuf),
    /// The mount point is not a directory.
    #[error("the mount point {} is not a directory", .0.display())]
    MountPointNotADirectory(PathBuf),
    /// The mount point may not be looked at.
    #[error("no permission to use the mount point {}", .0.display())]
    MountPointNotPermitted(PathBuf),
    /// The mount point is one whose file system has died.
    #[error(
        "a dead file system is mounted on {path}: unmount it with \"fusermount3 -u {path}\"",
        path = .0.display()
    )]
    MountPointDead(PathBuf),
    /// The mount point cannot be used for another reason.
    #[error("cannot use the mount point {}: {source}", path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// mount(2) failed.
    #[error("cannot mount on {}: {source}", path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A mount option with a byte that cannot be in one.
    #[error("the mount option {0} has a NUL in it")]
    OptionWithNul(&'static str),
    /// Unmounting failed.
    #[error("cannot unmount {}: {source}", path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another file system is mounted at the place by now.
    #[error("not unmounting {}: another file system is mounted there by now", .0.display())]
    Replaced(PathBuf),
    /// Something is still used below the mount point.
    #[error("cannot unmount {}: it is in use", .0.display())]
    Busy(PathBuf),
    /// The first request was not what it has to be.
    #[error("the kernel did not begin with FUSE_INIT")]
    NoInit,
    /// The kernel speaks a protocol that is too old.
    #[error(
        "the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) is the oldest that is served"
    )]
    Protocol {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// Unmounted before the first request.
    #[error("unmounted before the session began")]
    Ended,
    /// Reading from or writing to the kernel failed.
    #[error("the session with the kernel failed: {0}")]
    Session(#[source] io::Error),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
