//! Why a directory cannot be used, in words for the user. Operations answer with an [`Errno`]
//! instead.

use base::Errno;

/// Why [`Local::open`](crate::Local::open) failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is nothing of this name.
    #[error("{path}: no such directory on this machine")]
    Missing {
        /// The directory, escaped.
        path: String,
    },
    /// It is something else.
    #[error("{path}: not a directory")]
    NotDirectory {
        /// The directory, escaped.
        path: String,
    },
    /// It cannot be entered or looked at.
    #[error("{path}: {errno}")]
    Unusable {
        /// The directory, escaped.
        path: String,
        /// The system's answer.
        errno: Errno,
    },
    /// The kernel cannot keep names from leading out of a directory.
    #[error("{path}: local directories need openat2, which Linux has since 5.6")]
    NoOpenat2 {
        /// The directory, escaped.
        path: String,
    },
}

impl Error {
    /// The error of a system call that looked at `path`.
    pub(crate) fn of(path: &std::path::Path, errno: Errno) -> Error {
        let path = escaped(path);
        match errno {
            Errno::ENOENT => Error::Missing { path },
            Errno::ENOTDIR => Error::NotDirectory { path },
            Errno::ENOSYS => Error::NoOpenat2 { path },
            errno => Error::Unusable { path, errno },
        }
    }
}

/// A path as it may go to a terminal.
fn escaped(path: &std::path::Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    base::printable(path.as_os_str().as_bytes())
}
