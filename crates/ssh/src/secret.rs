//! Bytes that are neither swapped out nor included in core dumps, as far as the system allows it,
//! and that are overwritten when dropped.
//!
//! They have pages of their own, so that mlock(2) and madvise(2) apply to nothing else.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

/// The bytes of the keys that edit a line on a terminal.
const BACKSPACE: u8 = 8;
const KILL: u8 = 0x15;
const DELETE: u8 = 0x7F;

/// Bytes in pages of their own.
pub(crate) struct Secret {
    pages: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: the pages are accessed only through this value, and changed only through `&mut`.
unsafe impl Send for Secret {}
// SAFETY: as above.
unsafe impl Sync for Secret {}

impl Secret {
    /// An empty secret with room for `bytes`.
    pub(crate) fn with_room(bytes: usize) -> io::Result<Secret> {
        let capacity = bytes.max(1).next_multiple_of(rustix::param::page_size());
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces no other.
        let pages =
            unsafe { mmap_anonymous(ptr::null_mut(), capacity, protection, MapFlags::PRIVATE) }?;
        // Failures are ignored: without privilege, mlock has a limit.
        // SAFETY: these are the pages mapped above.
        let _ = unsafe { mlock(pages, capacity) };
        // SAFETY: these are the pages mapped above; the advice changes no content.
        let _ = unsafe { madvise(pages, capacity, Advice::LinuxDontDump) };
        let pages = NonNull::new(pages.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Secret { pages, len: 0, capacity })
    }

    /// `false` when there is no room.
    pub(crate) fn push(&mut self, byte: u8) -> bool {
        if self.len == self.capacity {
            return false;
        }
        // SAFETY: `len` is less than `capacity`, for which pages are mapped.
        unsafe { self.pages.add(self.len).write_volatile(byte) };
        self.len += 1;
        true
    }

    /// Removes the last byte.
    pub(crate) fn pop(&mut self) -> Option<u8> {
        let last = *self.as_bytes().last()?;
        self.len -= 1;
        // SAFETY: `len` is less than `capacity` now. Volatile, or the write could be optimised
        // away.
        unsafe { self.pages.add(self.len).write_volatile(0) };
        Some(last)
    }

    pub(crate) fn clear(&mut self) {
        while self.pop().is_some() {}
    }

    /// Removes the bytes of the last character, in UTF-8.
    pub(crate) fn erase(&mut self) {
        while self.pop().is_some_and(|byte| byte & 0xC0 == 0x80) {}
    }

    /// Edits the bytes as a line on a terminal, if `key` is one that usually does this. Returns
    /// whether it is.
    pub(crate) fn edit(&mut self, key: u8) -> bool {
        match key {
            KILL => self.clear(),
            BACKSPACE | DELETE => self.erase(),
            _ => return false,
        }
        true
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the first `len` bytes are mapped and were written, and nothing changes them while
        // this is borrowed.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr(), self.len) }
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.clear();
        // SAFETY: nothing borrows from the pages any more.
        let _ = unsafe { munmap(self.pages.as_ptr().cast(), self.capacity) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_and_taken_away() {
        let mut secret = Secret::with_room(3).unwrap();
        assert!(b"abc".iter().all(|byte| secret.push(*byte)));
        assert_eq!((secret.pop(), secret.as_bytes()), (Some(b'c'), &b"ab"[..]));
        secret.clear();
        assert_eq!((secret.pop(), secret.as_bytes()), (None, &b""[..]));
        assert!("no\u{15}hé\u{7f}\u{8}".bytes().all(|byte| secret.edit(byte) || secret.push(byte)));
        assert_eq!(secret.as_bytes(), b"");
        let room = (0..).take_while(|_| secret.push(b'x')).count();
        assert_eq!(room, rustix::param::page_size());
    }

    /// The kernel's own account of the pages.
    #[test]
    fn its_pages_are_locked_and_not_dumped() {
        let secret = Secret::with_room(1).unwrap();
        let address = format!("{:x}-", secret.pages.as_ptr().addr());
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_it = maps.lines().skip_while(|line| !line.starts_with(&address));
        let flags = of_it.skip(1).find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.contains(" dd"), "{flags}");
        assert!(flags.contains(" lo"), "{flags}");
    }
}
