//! Extended attributes, of an inode that was opened with `O_PATH`.
//!
//! The system calls take no such descriptor before Linux 6.13, so they go through `/proc/self/fd`,
//! which leads to the inode itself, also to a symbolic link. Only the question that is asked for
//! each entry of a listing uses the newer call ([`listxattrat`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::{Errno, Result, SetXattr};
use bytes::Bytes;
use rustix::fs::XattrFlags;
use rustix::io::Errno as Native;

use crate::listxattrat;
use crate::setattr::{proc_error, proc_fd_path};

/// Longest value and longest list of names, in bytes: Linux's.
const MAX_BYTES: usize = 64 << 10;

/// The value of an attribute.
///
/// # Errors
/// Those of `getxattr(2)`; `EOPNOTSUPP` without `/proc`.
pub fn get_xattr(pinned: &OwnedFd, name: &[u8]) -> Result<Bytes> {
    let path = proc_fd_path(pinned.as_fd());
    read(|buffer| rustix::fs::getxattr(&path, name, buffer)).map(Bytes::from)
}

/// The names of all attributes.
///
/// # Errors
/// Those of `listxattr(2)`; `EOPNOTSUPP` without `/proc`.
pub fn list_xattrs(pinned: &OwnedFd) -> Result<Vec<Bytes>> {
    let path = proc_fd_path(pinned.as_fd());
    let list = Bytes::from(read(|buffer| rustix::fs::listxattr(&path, buffer))?);
    let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| list.slice_ref(name)).collect())
}

/// Sets an attribute.
///
/// # Errors
/// Those of `setxattr(2)`; `EOPNOTSUPP` without `/proc`.
pub fn set_xattr(pinned: &OwnedFd, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
    let flags = match mode {
        SetXattr::Either => XattrFlags::empty(),
        SetXattr::Create => XattrFlags::CREATE,
        SetXattr::Replace => XattrFlags::REPLACE,
    };
    let path = proc_fd_path(pinned.as_fd());
    rustix::fs::setxattr(path, name, value, flags).map_err(proc_error)
}

/// Removes an attribute.
///
/// # Errors
/// Those of `removexattr(2)`; `EOPNOTSUPP` without `/proc`.
pub fn remove_xattr(pinned: &OwnedFd, name: &[u8]) -> Result<()> {
    rustix::fs::removexattr(proc_fd_path(pinned.as_fd()), name).map_err(proc_error)
}

/// Whether the entry of this directory, or the open file `dir` itself if the name is empty, has
/// extended attributes, as far as that can be seen. A file system that has no lists has none.
pub fn may_have_xattrs(dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    let len = match name {
        // The new call takes no descriptor that was opened with `O_PATH`, either.
        b"" => None,
        name => listxattrat::query(dir, name),
    };
    !matches!(len.unwrap_or_else(|| query_by_proc(dir, name)), Ok(0) | Err(Native::OPNOTSUPP))
}

/// The length of the list of attributes, by a path through `/proc`.
fn query_by_proc(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<usize> {
    let open = proc_fd_path(dir);
    match name {
        b"" => rustix::fs::listxattr_query(open),
        name => rustix::fs::llistxattr_query([open.as_bytes(), b"/", name].concat()),
    }
}

/// The result of a call that fills a buffer: of a short one first, since values are short.
fn read(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Vec<u8>> {
    for len in [256, MAX_BYTES] {
        let mut buffer = vec![0; len];
        match call(&mut buffer) {
            Ok(filled) => {
                buffer.truncate(filled);
                return Ok(buffer);
            }
            Err(Native::RANGE) => {}
            Err(error) => return Err(proc_error(error)),
        }
    }
    Err(Errno::E2BIG)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn both_calls_see_the_same() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["with", "without"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("with", dir.path().join("link")).unwrap();
        let with = fs::File::open(dir.path().join("with")).unwrap();
        rustix::fs::fsetxattr(&with, "user.name", b"value", XattrFlags::empty()).unwrap();
        let open = fs::File::open(dir.path()).unwrap();
        for (name, may_have) in
            [("with", true), ("without", false), ("link", false), ("absent", true), ("a\0b", true)]
        {
            let found = may_have_xattrs(open.as_fd(), name.as_bytes());
            assert_eq!(found, may_have, "{name}");
            let by_proc = query_by_proc(open.as_fd(), name.as_bytes());
            if let Some(len) = listxattrat::query(open.as_fd(), name.as_bytes()) {
                assert_eq!(len, by_proc, "{name}");
            }
        }
        let without = fs::File::open(dir.path().join("without")).unwrap();
        assert!(may_have_xattrs(with.as_fd(), b"") && !may_have_xattrs(without.as_fd(), b""));
        let (flags, mode) = (rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        for (name, may_have) in [("with", true), ("without", false)] {
            let pinned = rustix::fs::open(dir.path().join(name), flags, mode).unwrap();
            assert_eq!(may_have_xattrs(pinned.as_fd(), b""), may_have, "{name}");
        }
    }
}
