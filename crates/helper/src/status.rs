//! Errors of system calls as STATUS replies.

use rustix::io::Errno;
use sftp::StatusCode;
use sftp::codec::Reply;

/// A request that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A system call has failed.
    System(Errno),
    /// The request is not valid, or not allowed.
    Refused(StatusCode, Errno, &'static str),
    /// There is nothing more: the end of a file or of a listing.
    End,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::System(errno)
    }
}

impl From<base::Errno> for Failure {
    fn from(errno: base::Errno) -> Failure {
        Failure::System(Errno::from_raw_os_error(errno.raw()))
    }
}

/// The handle is not open, or of another kind.
pub(crate) const BAD_HANDLE: Failure =
    Failure::Refused(StatusCode::FAILURE, Errno::BADF, "invalid handle");

/// The server changes nothing.
pub(crate) const READ_ONLY: Failure =
    Failure::Refused(StatusCode::PERMISSION_DENIED, Errno::ROFS, "the server is read-only");

/// As of a server of NFS that does not answer.
pub(crate) const HANGS: Failure = Failure::Refused(
    StatusCode::FAILURE,
    Errno::TIMEDOUT,
    "the file system does not answer, and too many requests wait for it",
);

/// The locks that the client had in the file are lost (`lost_locks.rs`).
pub(crate) const LOCKS_LOST: Failure = Failure::Refused(
    StatusCode::NO_MATCHING_LOCK,
    Errno::IO,
    "the locks of the file have ended with another connection",
);

impl Failure {
    /// The reply. The codes are those of OpenSSH's server for the same errors; the errno itself is
    /// in the reply, too.
    pub(crate) fn reply(&self) -> Reply {
        let (code, message, errno) = match self {
            Failure::System(errno) => (code(*errno), message(*errno), Some(*errno)),
            Failure::Refused(code, errno, message) => (*code, (*message).to_owned(), Some(*errno)),
            Failure::End => (StatusCode::EOF, "end of file".to_owned(), None),
        };
        Reply::Status { code, message, errno: errno.map(Errno::raw_os_error) }
    }
}

/// The reply to a request without any other.
pub(crate) fn success() -> Reply {
    Reply::Status { code: StatusCode::OK, message: "success".to_owned(), errno: None }
}

fn code(errno: Errno) -> StatusCode {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::BADF | Errno::LOOP => StatusCode::NO_SUCH_FILE,
        Errno::PERM | Errno::ACCESS | Errno::FAULT => StatusCode::PERMISSION_DENIED,
        Errno::NAMETOOLONG | Errno::INVAL => StatusCode::BAD_MESSAGE,
        Errno::NOSYS => StatusCode::OP_UNSUPPORTED,
        _ => StatusCode::FAILURE,
    }
}

fn message(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}
