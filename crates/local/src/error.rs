//! Why a directory cannot be used, as messages to the user. Operations return an [`Errno`] instead.

use base::Errno;

/// Why [`Local::open`](crate::Local::open) failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No entry has this name.
    #[error("{path}: no such directory on this machine")]
    Missing {
        /// The directory, escaped.
        path: String,
    },
    /// The entry is not a directory.
    #[error("{path}: not a directory")]
    NotDirectory {
        /// The directory, escaped.
        path: String,
    },
    /// Search permission is missing, or another error.
    #[error("{path}: {errno}")]
    Unusable {
        /// The directory, escaped.
        path: String,
        /// The system's error.
        errno: Errno,
    },
    /// The kernel has no `openat2`, which confines names to a directory.
    #[error("{path}: local directories need openat2, which Linux has since 5.6")]
    NoOpenat2 {
        /// The directory, escaped.
        path: String,
    },
}

impl Error {
    /// The error of a system call on `path`.
    pub(crate) fn from_errno(path: &std::path::Path, errno: Errno) -> Error {
        let path = escaped(path);
        match errno {
            Errno::ENOENT => Error::Missing { path },
            Errno::ENOTDIR => Error::NotDirectory { path },
            Errno::ENOSYS => Error::NoOpenat2 { path },
            errno => Error::Unusable { path, errno },
        }
    }
}

/// A path, escaped for a terminal.
fn escaped(path: &std::path::Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    base::printable(path.as_os_str().as_bytes())
}
