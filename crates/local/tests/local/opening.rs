//! Which entries can be opened, and how.

use std::process::Command;
use std::task::Poll;
use std::time::Duration;

use base::{Access, AttrChange, Create, Errno, FileKind, OpenFlags, Remote};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
use testkit::{Lease, path};

use super::{Real, descriptors_below, poll_once};

/// Bound on a call that must not block.
const PATIENCE: Duration = Duration::from_secs(20);

/// FIFOs, sockets and devices fail at once, in every access mode, and are never opened: a process
/// at the other end of a FIFO does not notice.
#[tokio::test]
async fn special_files_are_refused_without_waiting() {
    let real = Real::new();
    let make = |name: &str, kind, device| {
        mknodat(CWD, real.at(name), kind, Mode::from_raw_mode(0o666), device)
    };
    make("fifo", FileType::Fifo, 0).unwrap();
    make("socket", FileType::Socket, 0).unwrap();
    let mut names = vec![("fifo", FileKind::Fifo), ("socket", FileKind::Socket)];
    // The numbers of /dev/full. Only the superuser creates devices, and not in every container.
    if make("device", FileType::CharacterDevice, rustix::fs::makedev(1, 7)).is_ok() {
        names.push(("device", FileKind::CharDevice));
    }
    // With a reader, an open of the FIFO for writing would succeed.
    let reader = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let reader = openat(CWD, real.at("fifo"), reader, Mode::empty()).unwrap();
    for (name, kind) in names {
        assert_eq!(real.local.lstat(&path(name)).await.unwrap().kind, kind);
        for access in [Access::Read, Access::Write, Access::ReadWrite] {
            for create in [Create::Never, Create::IfAbsent(0o600)] {
                let flags = OpenFlags { create, ..OpenFlags::existing(access) };
                let at = path(name);
                let opened = tokio::time::timeout(PATIENCE, real.local.open(&at, flags)).await;
                assert_eq!(opened.expect("it waits").err(), Some(Errno::ENXIO), "{name} {flags:?}");
            }
        }
        let size = AttrChange { size: Some(0), ..AttrChange::default() };
        let at = path(name);
        let cut = real.local.setattr(&at, size);
        let cut = tokio::time::timeout(PATIENCE, cut).await.expect("it waits");
        assert_eq!(cut, Err(Errno::EINVAL), "{name}");
        let perm = AttrChange { perm: Some(0o640), ..AttrChange::default() };
        real.local.setattr(&path(name), perm).await.unwrap();
        assert_eq!(real.local.lstat(&path(name)).await.unwrap().perm, 0o640);
    }
    // HUP is set once a writer has come and gone, not before the first one.
    let mut fds = [PollFd::new(&reader, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    assert!(!fds[0].revents().contains(PollFlags::HUP), "the FIFO was opened");
}

/// An open waits for another process's lease (as Samba takes) instead of failing with EAGAIN, and
/// the runtime's only thread does not block on it.
#[tokio::test]
async fn somebodys_lease_is_waited_for_elsewhere() {
    let real = Real::new();
    real.put("file", "content");
    real.put("other", "content");
    let before = descriptors_below(real.dir.path());
    let Some(mut lease) = Lease::take(&real.at("file")) else {
        eprintln!("skipped: the file system has no leases");
        return;
    };
    let (at, other) = (path("file"), path("other"));
    let flags = OpenFlags::existing(Access::Read);
    let mut waiting = real.local.open(&at, flags);
    let mut given_up = real.local.open(&at, flags);
    assert!(poll_once(&mut waiting).is_pending());
    assert!(poll_once(&mut given_up).is_pending());
    lease.wait_until_asked();
    // Both calls are in the kernel now, or about to be.
    let opened = real.local.open(&other, flags).await.unwrap().fh;
    assert_eq!(real.local.fstat(opened).await.unwrap().size, 7);
    assert!(poll_once(&mut waiting).is_pending());
    drop(given_up);
    drop(lease);
    let fh = waiting.await.unwrap().fh;
    assert_eq!(real.local.read(fh, 0, 10).await.unwrap().to_vec(), b"content");
    real.local.close(fh);
    real.local.close(opened);
    none_is_left(&real, before).await;
}

/// Waits until at most `before` descriptors are left.
async fn none_is_left(real: &Real, before: usize) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while descriptors_below(real.dir.path()) > before {
        assert!(std::time::Instant::now() < deadline, "descriptors are left");
        tokio::task::yield_now().await;
    }
}

/// A cancelled call leaves no descriptor open, and descriptors are not inherited by child
/// processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptors_are_given_back_and_not_inherited() {
    let real = Real::new();
    real.put("file", "content");
    let before = descriptors_below(real.dir.path());
    let opened =
        real.local.open(&path("file"), OpenFlags::existing(Access::Read)).await.unwrap().fh;
    let list = "ls -l /proc/self/fd";
    let seen = Command::new("sh").args(["-c", list]).output().unwrap();
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(seen.contains("pipe:"), "{seen}");
    assert!(!seen.contains(real.dir.path().to_str().unwrap()), "{seen}");
    real.local.close(opened);
    for _ in 0..200 {
        let at = path("file");
        let mut call = real.local.open(&at, OpenFlags::existing(Access::Read));
        // The other thread may have finished first.
        if let Poll::Ready(opened) = poll_once(&mut call) {
            real.local.close(opened.unwrap().fh);
        }
    }
    none_is_left(&real, before).await;
}

/// Times have nanoseconds, owners are numbers.
#[tokio::test]
async fn attributes_are_those_of_the_system() {
    use std::os::unix::fs::MetadataExt;
    let real = Real::new();
    real.put("file", "content");
    let native = std::fs::symlink_metadata(real.at("file")).unwrap();
    let attr = real.local.lstat(&path("file")).await.unwrap();
    assert_eq!(
        (attr.mtime.secs, i64::from(attr.mtime.nanos)),
        (native.mtime(), native.mtime_nsec())
    );
    assert_eq!(
        (attr.atime.secs, i64::from(attr.atime.nanos)),
        (native.atime(), native.atime_nsec())
    );
    assert_eq!((attr.uid, attr.gid, attr.size), (native.uid(), native.gid(), native.size()));
    let nobody = AttrChange { uid: Some(u32::MAX), ..AttrChange::default() };
    assert_eq!(real.local.setattr(&path("file"), nobody).await, Err(Errno::EINVAL));
    let figures = real.local.statvfs(&path("")).await.unwrap();
    // That of `statvfs(2)` may be the same for two file systems.
    assert_eq!(figures.fsid, native.dev());
    let other = local::Local::open("/proc").unwrap().statvfs(&path("")).await.unwrap();
    assert_ne!(figures.fsid, other.fsid);
}
