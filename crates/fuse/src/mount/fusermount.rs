//! `fusermount3`: the set-user-ID helper that mounts for unprivileged users.
//!
//! It opens `/dev/fuse`, mounts, and sends the descriptor over a socket, whose number is in
//! `_FUSE_COMMFD`.

use std::io::{self, ErrorKind, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::Access;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use super::options::MountOptions;
use super::point::MountPoint;
use crate::error::{Error, Result};

const PROGRAM: &str = "fusermount3";

/// Maximum length of a message of fusermount3. Messages have a line or two.
const MESSAGE_MAX: u64 = 4096;

/// Mounts.
pub(super) fn mount(point: &MountPoint, options: &MountOptions) -> Result<OwnedFd> {
    let failed = |errno: rustix::io::Errno| Error::FusermountFailed(errno.into());
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
    let number = theirs.as_raw_fd();
    let mut command = Command::new(PROGRAM);
    command
        .arg("-o")
        .arg(options.for_fusermount())
        .arg("--")
        .arg(&point.path)
        .env("_FUSE_COMMFD", number.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // SAFETY: between fork and exec only fcntl(2) is called, on a descriptor that is open since
    // `theirs` lives until after the spawn.
    unsafe {
        command.pre_exec(move || {
            fcntl_setfd(BorrowedFd::borrow_raw(number), FdFlags::empty()).map_err(io::Error::from)
        });
    }
    let mut child = command.spawn().map_err(spawn_error)?;
    drop(theirs);
    let fd = receive(&ours);
    let message = message(&mut child);
    let _ = child.wait();
    match fd {
        Some(fd) => {
            if !message.is_empty() {
                tracing::warn!("{message}");
            }
            Ok(fd)
        }
        None => Err(explain(&message)),
    }
}

/// Unmounts.
pub(super) fn unmount(path: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    command.arg("--").arg(path).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.stderr(Stdio::piped()).output().map_err(spawn_error)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("busy") {
        return Err(Error::Busy(path.to_owned()));
    }
    Err(match message.is_empty() {
        true => Error::Unmount {
            path: path.to_owned(),
            source: io::Error::other("fusermount3 failed without a message"),
        },
        false => Error::Fusermount(message),
    })
}

fn spawn_error(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::FusermountMissing,
        _ => Error::FusermountFailed(error),
    }
}

/// Receives the descriptor from the socket; `None` if the socket is closed without one.
fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
            Ok(_) => break,
        }
    }
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// The output of fusermount3, until it ends.
fn message(child: &mut Child) -> String {
    let mut text = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // A partial message is better than none.
        let _ = stderr.take(MESSAGE_MAX).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// The error for a message of fusermount3.
fn explain(message: &str) -> Error {
    let device = rustix::fs::access("/dev/fuse", Access::READ_OK | Access::WRITE_OK);
    match device {
        Err(rustix::io::Errno::NOENT) => Error::NoDevice,
        Err(rustix::io::Errno::ACCESS) if message.contains("/dev/fuse") => {
            Error::DeviceNotPermitted
        }
        _ if message.contains("user_allow_other") => Error::AllowOtherNotPermitted,
        _ if message.is_empty() => {
            Error::Fusermount("fusermount3 failed without a message".to_owned())
        }
        _ => Error::Fusermount(message.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_socket_is_no_descriptor() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        drop(theirs);
        assert!(receive(&ours).is_none());
    }

    #[test]
    fn unknown_messages_are_kept() {
        let known = explain(
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in \
             /etc/fuse.conf",
        );
        assert!(matches!(known, Error::AllowOtherNotPermitted));
        let other = explain("fusermount3: user has no write access to mountpoint /mnt");
        assert_eq!(other.to_string(), "fusermount3: user has no write access to mountpoint /mnt");
    }
}
