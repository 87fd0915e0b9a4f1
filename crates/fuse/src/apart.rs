//! A thread that calls into the file system that its own process serves.
//!
//! When a process is killed, the kernel ends its mounts as soon as the last thread with `/dev/fuse`
//! open is gone. A thread that waits in a call on such a mount cannot be killed, so it would keep
//! the mount, and itself, for ever. So it has a descriptor table of its own, without `/dev/fuse`:
//! then its calls fail when the other threads are gone. A thread that sends notifications may wait
//! for a lock that is held by a request, and has a clone of `/dev/fuse`: the requests that were read
//! from the other descriptor end with that. (Over io_uring they end with the last descriptor.)

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::{io, thread};

/// Starts a thread that runs `body` without any descriptor of the process. `body` must not use or
/// drop anything that contains a descriptor, nor wake a task of a runtime, which uses one: channels
/// and locks of the standard library are safe. Needs Linux 5.9; before, `body` does not run.
pub fn spawn_apart(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
        if let Err(error) = leave_descriptors(None) {
            tracing::debug!(%error, "a thread cannot have descriptors of its own");
            return;
        }
        body();
    };
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Like [`spawn_apart`], with the single descriptor `fd`, which `body` gets. Before Linux 5.9 `body`
/// runs with the descriptors of the process.
pub(crate) fn spawn_with(
    name: &str,
    fd: OwnedFd,
    body: impl FnOnce(OwnedFd) + Send + 'static,
) -> io::Result<()> {
    let number = fd.as_raw_fd();
    let (sender, has_left) = mpsc::channel();
    let run = move || {
        let has_left = leave_descriptors(Some(number)).is_ok();
        // The starter waits.
        let _ = sender.send(has_left);
        // SAFETY: it is open in the table of this thread: its own, or that of the starter, which
        // gives the descriptor up.
        body(unsafe { OwnedFd::from_raw_fd(number) });
    };
    thread::Builder::new().name(name.to_owned()).spawn(run)?;
    match has_left.recv() {
        // The thread has a copy.
        Ok(true) => drop(fd),
        _ => std::mem::forget(fd),
    }
    Ok(())
}

/// Gives this thread a descriptor table of its own, with no descriptor but `kept`.
fn leave_descriptors(kept: Option<RawFd>) -> io::Result<()> {
    match kept.and_then(|kept| libc::c_uint::try_from(kept).ok()) {
        None => close_range(0, libc::c_uint::MAX)?,
        Some(kept) => {
            // The first call makes the table.
            close_range(kept + 1, libc::c_uint::MAX)?;
            if kept > 0 {
                close_range(0, kept - 1)?;
            }
        }
    }
    // Anything printed, such as the message of a panic, must not reach a file that is opened later.
    // They are closed with the thread.
    for _ in 0..3 {
        let null = OpenOptions::new().read(true).write(true).open("/dev/null");
        let _ = null.map(std::mem::forget);
    }
    Ok(())
}

/// Closes these descriptors in a table of this thread's own.
fn close_range(first: libc::c_uint, last: libc::c_uint) -> io::Result<()> {
    // SAFETY: the call has no pointers. It closes no descriptor of other threads, and this one has
    // none: it has just begun, and the contract of its starter excludes any.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_UNSHARE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

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

    #[test]
    fn a_thread_keeps_the_descriptor_that_it_is_given() {
        let other = rustix::io::fcntl_dupfd_cloexec(tempfile::tempfile().unwrap(), 100).unwrap();
        let given = rustix::io::fcntl_dupfd_cloexec(&other, 101).unwrap();
        let (number, own) = (other.as_raw_fd(), given.as_raw_fd());
        let (sender, receiver) = mpsc::channel();
        let body = move |fd: OwnedFd| {
            let is_open =
                |number| std::path::Path::new("/proc/thread-self/fd").join(number).is_symlink();
            let open = [number, own].map(|number| is_open(number.to_string()));
            File::from(fd).write_all(b"open").unwrap();
            sender.send(open).unwrap();
        };
        spawn_with("apart", given, body).unwrap();
        assert_eq!(receiver.recv().unwrap(), [false, true]);
        assert!(!std::path::Path::new(&format!("/proc/self/fd/{own}")).is_symlink(), "given up");
        assert_eq!(File::from(other).metadata().unwrap().len(), 4);
    }
}
