//! One heap for all threads.
//!
//! The C library gives each thread a heap of its own, and what one frees another cannot use. Inodes
//! come and go by the hundred thousand, on whichever thread reads the request; with a heap each
//! that took a third more memory. Measured with two workers: no more CPU time a request for it.

/// To be called before there is a second thread.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it changes a number in the allocator, which other threads would only have to see.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
