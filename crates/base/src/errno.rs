//! POSIX error numbers as values.
//!
//! Every [`Remote`](crate::Remote) returns these, because the kernel and the application expect
//! them. A layer with more detailed errors (messages of ssh, status codes of SFTP) has its own
//! error type, and converts it to an [`Errno`] in one function.

use std::fmt;

/// The result of the operations of [`Remote`](crate::Remote).
pub type Result<T> = std::result::Result<T, Errno>;

/// One POSIX error number, always positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! errnos {
    ($($name:ident)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`")]
            pub const $name: Errno = Errno(libc::$name);)*

            /// The symbolic name, such as `"ENOENT"`, if this crate defines it.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    E2BIG EACCES EAGAIN EBADF EBADMSG EBUSY ECANCELED ECONNABORTED ECONNREFUSED ECONNRESET
    EDEADLK EDQUOT EEXIST EFAULT EFBIG EHOSTDOWN EHOSTUNREACH EINPROGRESS EINTR EINVAL EIO EISDIR ELOOP
    EMFILE EMLINK EMSGSIZE ENAMETOOLONG ENFILE ENODATA ENODEV ENOENT ENOEXEC ENOLCK ENOMEM ENOSPC
    ENOSYS ENOTCONN ENOTDIR ENOTEMPTY ENOTTY ENXIO EOPNOTSUPP EOVERFLOW EPERM EPIPE EPROTO ERANGE
    EROFS ESPIPE ESTALE ETIMEDOUT ETXTBSY EXDEV
}

impl Errno {
    /// The error with this number; `EIO` for a number out of range.
    pub fn from_raw(raw: i32) -> Errno {
        if (1..4096).contains(&raw) { Errno(raw) } else { Errno::EIO }
    }

    /// Whether a [`Remote`](crate::Remote) that returns it cannot be reached.
    pub fn is_loss(self) -> bool {
        matches!(self, Errno::EHOSTDOWN | Errno::ETIMEDOUT)
    }

    /// The number, as in `errno(3)`.
    pub fn raw(self) -> i32 {
        self.0
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::io::Error::from_raw_os_error(self.0).to_string();
        f.write_str(text.split(" (os error").next().unwrap_or(&text))
    }
}

impl std::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_messages_agree() {
        assert_eq!(Errno::ENOENT.raw(), libc::ENOENT);
        assert_eq!(format!("{:?}", Errno::ENOENT), "ENOENT");
        assert_eq!(Errno::ENOENT.to_string(), "No such file or directory");
        assert_eq!(Errno::from_raw(libc::EXDEV), Errno::EXDEV);
    }

    #[test]
    fn a_number_that_is_no_errno_becomes_eio() {
        assert_eq!(Errno::from_raw(0), Errno::EIO);
        assert_eq!(Errno::from_raw(-5), Errno::EIO);
        assert_eq!(Errno::from_raw(i32::MAX), Errno::EIO);
        assert_eq!(Errno::from(std::io::Error::other("no number")), Errno::EIO);
    }
}
