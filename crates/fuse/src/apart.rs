//! A thread that calls into the file system that its own process serves.
//!
//! When a process is killed, the kernel ends its mounts as soon as the last thread with `/dev/fuse`
//! open is gone. A thread that waits in a call on such a mount cannot be killed, so it would keep
//! the mount, and itself, for ever. So it has a descriptor table of its own, without `/dev/fuse`:
//! then its calls fail when the other threads are gone.

use std::fs::OpenOptions;
use std::{io, thread};

/// Starts a thread that runs `body` without any descriptor of the process. `body` must not use or
/// drop anything that contains a descriptor, nor wake a task of a runtime, which uses one: channels
/// and locks of the standard library are safe. Needs Linux 5.9; before, `body` does not run.
pub fn spawn_apart(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
        if let Err(error) = leave_descriptors() {
            tracing::debug!(%error, "a thread cannot have descriptors of its own");
            return;
        }
        // Anything printed, such as the message of a panic, must not reach a file that is opened
        // later. They are closed with the thread.
        for _ in 0..3 {
            let null = OpenOptions::new().read(true).write(true).open("/dev/null");
            let _ = null.map(std::mem::forget);
        }
        body();
    };
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Gives this thread an empty descriptor table.
fn leave_descriptors() -> io::Result<()> {
    let (first, last, flags) = (0, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: the call has no pointers. It closes no descriptor of other threads, and this one has
    // none: it has just begun, and the contract of `spawn_apart` excludes any.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;

    #[test]
    fn a_thread_apart_has_no_descriptor_of_the_process() {
        // A number that the thread does not give to a descriptor of its own.
        let file = rustix::io::fcntl_dupfd_cloexec(tempfile::tempfile().unwrap(), 100).unwrap();
        let number = file.as_raw_fd();
        let (sender, receiver) = mpsc::channel();
        let body = move || {
            let open = std::fs::read_link(format!("/proc/thread-self/fd/{number}"));
            // A descriptor of its own works.
            sender.send((open.is_ok(), File::open("/dev/null").is_ok())).unwrap();
        };
        spawn_apart("apart", body).unwrap();
        assert_eq!(receiver.recv().unwrap(), (false, true));
        File::from(file).write_all(b"still open").unwrap();
    }
}
