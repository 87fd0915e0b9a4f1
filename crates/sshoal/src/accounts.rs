//! Looks up local users and groups by name in any database (files, LDAP …) by the C library, for which
//! Rust's standard library has no safe interface.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// Initial size of the buffer for an entry, in bytes. It is doubled up to the limit below; a group with
/// thousands of members needs more than the C library's hint.
const FIRST_BUFFER_BYTES: usize = 4 << 10;

/// An entry that needs a larger buffer is an error.
const MAX_BUFFER_BYTES: usize = 16 << 20;

/// The id of the user with this name.
pub fn user_id(name: &[u8]) -> io::Result<Option<u32>> {
    look_up(name, |name, buffer| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: all pointers are valid for the call, and the length is the buffer's. `found` is
        // null, or points to `entry`, which the call has then filled.
        unsafe {
            let error = libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            );
            (error, found.as_ref().map(|entry| entry.pw_uid))
        }
    })
}

/// The id of the group with this name.
pub fn group_id(name: &[u8]) -> io::Result<Option<u32>> {
    look_up(name, |name, buffer| {
        let mut entry = MaybeUninit::<libc::group>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: as in `user_id`.
        unsafe {
            let error = libc::getgrnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            );
            (error, found.as_ref().map(|entry| entry.gr_gid))
        }
    })
}

/// Calls `get` with a buffer that is large enough. A name that contains a NUL byte is never found.
fn look_up(
    name: &[u8],
    get: impl Fn(&CStr, &mut [u8]) -> (i32, Option<u32>),
) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else {
        return Ok(None);
    };
    let mut buffer = vec![0; FIRST_BUFFER_BYTES];
    loop {
        match get(&name, &mut buffer) {
            (libc::ERANGE, _) if buffer.len() < MAX_BUFFER_BYTES => {
                buffer.resize(buffer.len() * 2, 0);
            }
            (libc::EINTR, _) => {}
            // getpwnam(3): these may also mean "not found".
            (0 | libc::ENOENT | libc::ESRCH, found) => return Ok(found),
            (error, _) => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_strangers_are_not() {
        assert_eq!(user_id(b"root").unwrap(), Some(0));
        assert_eq!(group_id(b"root").unwrap(), Some(0));
        for nobody in [&b"no such name"[..], b"", b"ro\0ot", b"\xff"] {
            assert_eq!(user_id(nobody).unwrap(), None);
            assert_eq!(group_id(nobody).unwrap(), None);
        }
    }

    #[test]
    fn a_small_buffer_grows() {
        let tried = std::cell::Cell::new(0);
        let found = look_up(b"x", |_, buffer| {
            tried.set(tried.get() + 1);
            if buffer.len() < 4 * FIRST_BUFFER_BYTES { (libc::ERANGE, None) } else { (0, Some(9)) }
        });
        assert_eq!((found.unwrap(), tried.get()), (Some(9), 3));
        let failed = look_up(b"x", |_, _| (libc::EIO, None));
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
