//! Status codes.

/// The code of a STATUS reply. A server may send numbers that have no name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatusCode(pub u32);

impl StatusCode {
    /// Success.
    pub const OK: StatusCode = StatusCode(0);
    /// The end of a file or of a listing.
    pub const EOF: StatusCode = StatusCode(1);
    /// OpenSSH: `ENOENT`, `ENOTDIR`, `EBADF`, `ELOOP`.
    pub const NO_SUCH_FILE: StatusCode = StatusCode(2);
    /// OpenSSH: `EPERM`, `EACCES`, `EFAULT`; also any change on a read-only server.
    pub const PERMISSION_DENIED: StatusCode = StatusCode(3);
    /// OpenSSH: every errno that has no code of its own.
    pub const FAILURE: StatusCode = StatusCode(4);
    /// OpenSSH: `ENAMETOOLONG`, `EINVAL`.
    pub const BAD_MESSAGE: StatusCode = StatusCode(5);
    /// Made up by clients only.
    pub const NO_CONNECTION: StatusCode = StatusCode(6);
    /// Made up by clients only.
    pub const CONNECTION_LOST: StatusCode = StatusCode(7);
    /// The server does not know or not allow the operation.
    pub const OP_UNSUPPORTED: StatusCode = StatusCode(8);

    /// What the code means, in words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            StatusCode::OK => "success",
            StatusCode::EOF => "end of file",
            StatusCode::NO_SUCH_FILE => "no such file",
            StatusCode::PERMISSION_DENIED => "permission denied",
            StatusCode::FAILURE => "failure",
            StatusCode::BAD_MESSAGE => "bad message",
            StatusCode::NO_CONNECTION => "no connection",
            StatusCode::CONNECTION_LOST => "connection lost",
            StatusCode::OP_UNSUPPORTED => "operation unsupported",
            _ => "unknown status",
        }
    }
}
