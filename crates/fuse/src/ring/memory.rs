//! The memory of a queue's entries: for each a header, and a payload as long as the largest READ
//! or WRITE. The kernel writes requests into it, and reads the replies.
//!
//! Pages take memory from their first use on. The kernel reuses the entry that was given back
//! last, so only as many are used as requests were in progress at a time.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// `sizeof(struct fuse_uring_req_header)`
pub(super) const HEADER: usize = 288;

/// Distance of two headers: no two entries share a cache line.
const HEADER_STRIDE: usize = 320;

/// The memory of one queue.
pub(super) struct Memory {
    base: NonNull<u8>,
    len: usize,
    /// Offset of the first payload.
    payloads: usize,
    payload: usize,
    /// What the kernel reads when an entry is registered.
    vectors: Box<[[libc::iovec; 2]]>,
}

// SAFETY: the memory belongs to the value, and is accessed only by the kernel and through `Lent`,
// whose contract excludes two users of an entry.
unsafe impl Send for Memory {}
// SAFETY: as above; its own methods only compute addresses.
unsafe impl Sync for Memory {}

impl Memory {
    /// The memory of `entries` entries with payloads of `payload` bytes.
    pub(super) fn new(entries: u16, payload: usize) -> io::Result<Memory> {
        let page = rustix::param::page_size();
        let payloads = (usize::from(entries) * HEADER_STRIDE).next_multiple_of(page);
        let payload = payload.next_multiple_of(page);
        let len = payloads + usize::from(entries) * payload;
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        // A huge page would take memory for two payloads when the first byte of one is used.
        // SAFETY: the advice changes no content. Kernels without huge pages reject it.
        let _ = unsafe { madvise(mapped, len, Advice::LinuxNoHugepage) };
        let base = NonNull::new(mapped.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut memory = Memory { base, len, payloads, payload, vectors: Box::default() };
        memory.vectors = (0..entries)
            .map(|index| {
                let vector = |start: NonNull<u8>, len| libc::iovec {
                    iov_base: start.as_ptr().cast(),
                    iov_len: len,
                };
                [vector(memory.header(index), HEADER), vector(memory.payload(index), payload)]
            })
            .collect();
        Ok(memory)
    }

    /// The address of the two `iovec` of an entry, which is valid as long as the memory is.
    pub(super) fn vectors(&self, index: u16) -> u64 {
        self.vectors[usize::from(index)].as_ptr() as u64
    }

    fn header(&self, index: u16) -> NonNull<u8> {
        // SAFETY: `index` is less than the number of entries, whose headers are in the mapping.
        unsafe { self.base.add(usize::from(index) * HEADER_STRIDE) }
    }

    fn payload(&self, index: u16) -> NonNull<u8> {
        // SAFETY: as in `header`; the payloads follow the headers.
        unsafe { self.base.add(self.payloads + usize::from(index) * self.payload) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to the value; each `Lent` keeps the value, and the ring whose
        // entries use it is closed before (`Server`).
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// The right to use the memory of one entry.
pub(super) struct Lent {
    memory: Arc<Memory>,
    index: u16,
}

impl Lent {
    /// Takes an entry that the kernel has given to this process.
    ///
    /// # Safety
    ///
    /// `index` is that of an entry of `memory`. There is no other `Lent` of the entry, and the
    /// kernel does not use the entry until this one was dropped.
    pub(super) unsafe fn new(memory: Arc<Memory>, index: u16) -> Lent {
        Lent { memory, index }
    }

    /// The header and the payload.
    pub(super) fn parts(&mut self) -> (&mut [u8; HEADER], &mut [u8]) {
        let (header, payload) = (self.memory.header(self.index), self.memory.payload(self.index));
        // SAFETY: both are in the mapping, which this value keeps, do not overlap, and are used by
        // nothing else, by the contract of `new`; anonymous memory is initialised.
        unsafe {
            let payload = std::slice::from_raw_parts_mut(payload.as_ptr(), self.memory.payload);
            (header.cast::<[u8; HEADER]>().as_mut(), payload)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_do_not_overlap() {
        let payload = 3 * rustix::param::page_size();
        let memory = Arc::new(Memory::new(5, payload).unwrap());
        // SAFETY: each entry once, and no kernel uses them.
        let mut lent: Vec<_> =
            (0..5).map(|index| unsafe { Lent::new(memory.clone(), index) }).collect();
        for (at, entry) in lent.iter_mut().enumerate() {
            let (header, bytes) = entry.parts();
            header.fill(at as u8);
            bytes.fill(at as u8 + 100);
            assert_eq!(bytes.len(), payload);
        }
        for (at, entry) in lent.iter_mut().enumerate() {
            let (header, bytes) = entry.parts();
            assert!(header.iter().all(|byte| *byte == at as u8));
            assert!(bytes.iter().all(|byte| *byte == at as u8 + 100));
        }
        assert_ne!(memory.vectors(0), memory.vectors(4));
    }
}
