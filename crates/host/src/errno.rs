//! Errno of an SFTP error, without further requests. [`crate::probe`] finds the cause of FAILURE.

use base::Errno;
use sftp::{Error, StatusCode};

/// The errno of a failed request.
pub(crate) fn from_sftp(error: &Error) -> Errno {
    match error {
        // The locks of the file are lost with another connection, and with them all its handles.
        Error::Status { code: StatusCode::NO_MATCHING_LOCK, .. } => Errno::ESTALE,
        Error::Status { errno: Some(errno), .. } => from_server(Errno::from_raw(*errno)),
        Error::Status { code, .. } => from_status(*code),
        Error::Unsupported(_) => Errno::EOPNOTSUPP,
        // Without a handle, only a path makes a request too long, for a server with a small packet
        // limit.
        Error::TooMuch(_) => Errno::ENAMETOOLONG,
        Error::Closed => Errno::EBADF,
        Error::Disconnected(_) => Errno::EHOSTDOWN,
        Error::Stalled(_) => Errno::ETIMEDOUT,
        Error::Unexpected(_) | Error::Protocol(_) => Errno::EIO,
    }
}

/// The errno of a system call on the server. Those with which a [`Remote`](base::Remote) reports a
/// lost connection, a lost handle or a signal here are `EIO`: the server's own NFS may be gone.
fn from_server(errno: Errno) -> Errno {
    match errno {
        Errno::EHOSTDOWN | Errno::ETIMEDOUT | Errno::ESTALE | Errno::EINTR => Errno::EIO,
        errno => errno,
    }
}

/// The errno of a failed request through a handle. OpenSSH's NO_SUCH_FILE is `EBADF` there: the
/// handle is not open for this request.
pub(crate) fn from_handle(error: &Error) -> Errno {
    match error.bare_status() {
        Some(StatusCode::NO_SUCH_FILE) => Errno::EBADF,
        Some(StatusCode::FAILURE) => Errno::EIO,
        // There is no path in it.
        None if matches!(error, Error::TooMuch(_)) => Errno::EIO,
        _ => from_sftp(error),
    }
}

/// The errno of a status. FAILURE is `EPERM`, as in sshfs.
pub(crate) fn from_status(code: StatusCode) -> Errno {
    match code {
        StatusCode::NO_SUCH_FILE => Errno::ENOENT,
        StatusCode::PERMISSION_DENIED => Errno::EACCES,
        StatusCode::FAILURE => Errno::EPERM,
        StatusCode::BAD_MESSAGE => Errno::EINVAL,
        StatusCode::OP_UNSUPPORTED => Errno::EOPNOTSUPP,
        StatusCode::NO_CONNECTION | StatusCode::CONNECTION_LOST => Errno::EHOSTDOWN,
        // Callers do not pass success or EOF.
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_error_has_its_errno() {
        for (code, errno) in [
            (0, Errno::EIO),
            (1, Errno::EIO),
            (2, Errno::ENOENT),
            (3, Errno::EACCES),
            (4, Errno::EPERM),
            (5, Errno::EINVAL),
            (6, Errno::EHOSTDOWN),
            (7, Errno::EHOSTDOWN),
            (8, Errno::EOPNOTSUPP),
            (9, Errno::EIO),
            (u32::MAX, Errno::EIO),
        ] {
            let error =
                Error::Status { code: StatusCode(code), message: String::new(), errno: None };
            assert_eq!(from_sftp(&error), errno, "status {code}");
        }
        let exact = |errno| Error::Status {
            code: StatusCode::FAILURE,
            message: String::new(),
            errno: Some(errno),
        };
        assert_eq!(from_sftp(&exact(28)), Errno::ENOSPC);
        assert_eq!(from_handle(&exact(27)), Errno::EFBIG);
        for errno in [Errno::EHOSTDOWN, Errno::ETIMEDOUT, Errno::ESTALE, Errno::EINTR] {
            // The connection is there, whatever the server says.
            assert_eq!(from_sftp(&exact(errno.raw())), Errno::EIO);
            assert_eq!(from_handle(&exact(errno.raw())), Errno::EIO);
        }
        let code = StatusCode::NO_MATCHING_LOCK;
        let locks_lost =
            Error::Status { code, message: String::new(), errno: Some(Errno::EIO.raw()) };
        for (error, errno) in [
            (locks_lost, Errno::ESTALE),
            (Error::Unsupported("fsync"), Errno::EOPNOTSUPP),
            (Error::TooMuch("path"), Errno::ENAMETOOLONG),
            (Error::Closed, Errno::EBADF),
            (Error::Disconnected("cut".into()), Errno::EHOSTDOWN),
            (Error::Stalled(Duration::from_secs(60)), Errno::ETIMEDOUT),
            (Error::Unexpected("data".into()), Errno::EIO),
            (Error::Protocol("noise".into()), Errno::EIO),
        ] {
            assert_eq!(from_sftp(&error), errno, "{error}");
        }
        assert_eq!(from_handle(&Error::TooMuch("data")), Errno::EIO);
    }
}
