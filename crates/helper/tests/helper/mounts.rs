//! File systems that are mounted below the root: those that do not answer, and those without lasting
//! identities of their files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use base::{LockFamily, LockKind, LockOwner, LockRange, Timestamp};
use helper::Options;
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use sftp::codec::{ExactAttrs, FileAttrs, LockRequest, OpenFlags, Reply, Request};

use super::peer::Client;

/// A FUSE file system without a server. Dropping it ends all calls that wait for one.
struct Hung {
    place: PathBuf,
    device: Option<File>,
}

impl Hung {
    fn new(place: &Path) -> Hung {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        mount("hung", place, "fuse", MountFlags::empty(), &*options).unwrap();
        Hung { place: place.to_owned(), device: Some(device) }
    }
}

/// A file system that is mounted at this place until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(kind: &str, place: &Path, options: &str) -> Mounted {
        let options = std::ffi::CString::new(options).unwrap();
        mount(kind, place, kind, MountFlags::empty(), &*options).unwrap();
        Mounted(place.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Answers what leads to an open file in this file system, once that a lock in it is held, and
/// nothing else.
fn open_files(mut device: &File) {
    const ENOSYS: i32 = 38;
    const POSIX_LOCKS: u32 = 2;
    const WRITE_LOCK: u32 = 1;
    const GETLK: u32 = 31;
    const FLUSH: u32 = 25;
    const STATX: u32 = 52;
    let mut has_answered = false;
    const LOOKUP: u32 = 1;
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const INIT: u32 = 26;
    let mut request = vec![0; 64 << 10];
    while let Ok(40..) = device.read(&mut request) {
        let opcode = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        let inode = u64::from_ne_bytes(request[16..24].try_into().unwrap());
        // The root is the only directory.
        let attr = |inode: u64| {
            let mode: u32 = if inode == 1 { 0o040_755 } else { 0o100_644 };
            let numbers = [0_u32, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
            let size = if inode == 1 { 0 } else { 4096 };
            let times = [inode, size, 0, 0, 0, 0].into_iter().flat_map(u64::to_ne_bytes);
            times.chain(numbers.into_iter().flat_map(u32::to_ne_bytes)).collect::<Vec<u8>>()
        };
        let body = match opcode {
            INIT => {
                let mut body: Vec<u8> =
                    [7_u32, 31, 0, POSIX_LOCKS, 0, 4096].map(u32::to_ne_bytes).concat();
                body.resize(64, 0);
                body
            }
            LOOKUP => [[2_u64, 0, 0, 0, 0].map(u64::to_ne_bytes).concat(), attr(2)].concat(),
            GETATTR => [[0_u64; 2].map(u64::to_ne_bytes).concat(), attr(inode)].concat(),
            OPEN => vec![0; 16],
            GETLK if !has_answered => {
                let range = [0, i64::MAX as u64].map(u64::to_ne_bytes).concat();
                [range, [WRITE_LOCK, 0].map(u32::to_ne_bytes).concat()].concat()
            }
            FLUSH | STATX => Vec::new(),
            _ => continue,
        };
        has_answered |= opcode == GETLK;
        let error = if opcode == STATX { -ENOSYS } else { 0 };
        let len = u32::try_from(16 + body.len()).unwrap();
        let head = [len.to_ne_bytes(), error.to_ne_bytes()].concat();
        device.write_all(&[&head, &request[8..16], &body].concat()).unwrap();
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        self.device = None;
        // Ends the calls also if a thread reads the device.
        let _ = unmount(&self.place, UnmountFlags::FORCE);
        let _ = unmount(&self.place, UnmountFlags::DETACH);
    }
}

#[test]
fn a_mounted_file_system_that_hangs_delays_only_its_own_requests() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can mount");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("hung")).unwrap();
    fs::write(dir.path().join("f"), "content").unwrap();
    symlink("hung", dir.path().join("link")).unwrap();
    // As the client sees it.
    symlink("/hung", dir.path().join("absolute")).unwrap();
    let hung = Hung::new(&dir.path().join("hung"));
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    let mut client = Client::new(options);
    client.call(Request::Attrs { fields: ExactAttrs::ALL });
    client.send(&[(1, Request::Lstat { path: b"hung" }), (2, Request::Stat { path: b"link" })]);
    client.send(&[(3, Request::Stat { path: b"absolute" })]);
    // Names and contents are only read by all of these.
    assert!(matches!(client.call(Request::Lstat { path: b"f" }), Reply::Attrs(_)));
    let handle = client.handle(Request::Opendir { path: b"/" });
    let Reply::Names(listed) = client.call(Request::Readdir { handle: &handle }) else {
        panic!("no listing");
    };
    let mut names: Vec<_> = listed.iter().map(|entry| &entry.name[..]).collect();
    names.sort();
    assert_eq!(names, [&b"."[..], b"..", b"absolute", b"f", b"hung", b"link"]);
    let entry = listed.iter().find(|entry| entry.name == "hung").unwrap();
    assert_eq!(entry.attrs.permissions.map(|mode| mode & 0o170_000), Some(0o040_000));
    assert_eq!(listed_by_others(dir.path()), listed.len());
    let early = 4_u32.to_be_bytes();
    client.send(&[(4, Request::Opendir { path: b"hung" })]);
    client.send(&[(5, Request::Readdir { handle: &early })]);
    let attrs = FileAttrs::default();
    let flags = OpenFlags::WRITE | OpenFlags::CREATE;
    let handle = client.handle(Request::Open { path: b"new", flags, attrs });
    client.call(Request::Write { handle: &handle, offset: 0, data: b"data" });
    assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"data");
    drop(hung);
    let mut answered = [(); 5].map(|()| client.receive().0);
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3, 4, 5]);
    client.end().unwrap();
}

/// The client may have done it again over a new connection.
#[test]
fn what_waits_for_a_request_that_hangs_is_not_executed_after_the_session() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can mount");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("hung")).unwrap();
    fs::write(dir.path().join("f"), "content").unwrap();
    let hung = Hung::new(&dir.path().join("hung"));
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    let mut client = Client::new(options);
    client.send(&[(1, Request::Lstat { path: b"hung" }), (2, Request::Remove { path: b"f" })]);
    client.stream.shutdown(Shutdown::Write).unwrap();
    thread::sleep(Duration::from_secs(2));
    drop(hung);
    client.end().unwrap();
    assert!(dir.path().join("f").exists());
}

/// The locks end, and so does the server, although a request never does.
#[test]
fn a_request_that_hangs_keeps_neither_the_locks_nor_the_server_of_an_ended_session() {
    let Some((dir, hung, mut client)) = with_hung() else { return };
    let (attrs, flags) = (FileAttrs::default(), OpenFlags::WRITE);
    let handle = &client.handle(Request::Open { path: b"f", flags, attrs });
    let owner = LockOwner { family: LockFamily::Flock, number: 1 };
    let (range, kind) = (LockRange::WHOLE, Some(LockKind::Write));
    let lock = LockRequest::Set { owner, range, kind, wait_ms: 0 };
    let locked = client.call(Request::Lock { handle, lock });
    assert!(matches!(locked, Reply::Status { errno: None, .. }), "{locked:?}");
    let other = File::open(dir.path().join("f")).unwrap();
    flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap_err();
    client.send(&[(1, Request::Lstat { path: b"hung" })]);
    let Client { stream, server, .. } = client;
    stream.shutdown(Shutdown::Both).unwrap();
    let within = |limit, is_so: &dyn Fn() -> bool| {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < limit);
            thread::sleep(Duration::from_millis(10));
        }
    };
    within(Duration::from_secs(30), &|| {
        flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
    within(Duration::from_secs(60), &|| server.is_finished());
    drop(hung);
    // The client has not read the reply.
    let _ = server.join().unwrap();
}

/// What has been sent under a lock must not change the file when another client has the lock.
#[test]
fn a_copy_that_hangs_keeps_the_lock_under_which_it_was_sent() {
    let Some((dir, hung, mut client)) = with_hung() else { return };
    let device = hung.device.as_ref().unwrap().try_clone().unwrap();
    let files = thread::spawn(move || open_files(&device));
    let attrs = FileAttrs::default();
    let open = |path, flags| Request::Open { path, flags, attrs };
    let from = &client.handle(open(b"hung/file", OpenFlags::READ));
    let handle = &client.handle(open(b"f", OpenFlags::WRITE));
    let owner = LockOwner { family: LockFamily::Flock, number: 1 };
    let (range, kind) = (LockRange::WHOLE, Some(LockKind::Write));
    let lock = LockRequest::Set { owner, range, kind, wait_ms: 0 };
    client.call(Request::Lock { handle, lock });
    let (from_offset, to_offset, len) = (0, 0, 4096);
    client.send(&[(1, Request::CopyData { from, from_offset, len, to: handle, to_offset })]);
    let Client { stream, server, .. } = client;
    stream.shutdown(Shutdown::Both).unwrap();
    // Longer than other locks remain.
    thread::sleep(Duration::from_millis(1500));
    let other = File::open(dir.path().join("f")).unwrap();
    flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap_err();
    drop(hung);
    files.join().unwrap();
    // The client has not read the reply.
    let _ = server.join().unwrap();
    flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
}

/// A client of a directory with a file, and with a file system that hangs.
fn with_hung() -> Option<(tempfile::TempDir, Hung, Client)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can mount");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("hung")).unwrap();
    fs::write(dir.path().join("f"), "content").unwrap();
    let hung = Hung::new(&dir.path().join("hung"));
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    Some((dir, hung, Client::new(options)))
}

#[test]
fn changes_of_a_file_system_that_hangs_delay_no_other_one() {
    let Some((dir, hung, mut client)) = with_hung() else { return };
    let attrs = FileAttrs::with_permissions(0o600);
    let flags = OpenFlags::WRITE | OpenFlags::CREATE;
    client.send(&[
        (1, Request::Open { path: b"hung/new", flags, attrs }),
        // They wait for it.
        (2, Request::Setstat { path: b"hung", attrs }),
        (3, Request::Stat { path: b"hung/new" }),
    ]);
    let is_ok = |reply| matches!(reply, Reply::Status { errno: None, .. });
    assert!(is_ok(client.call(Request::Mkdir { path: b"d", attrs })));
    assert!(is_ok(client.call(Request::PosixRename { from: b"d", to: b"e" })));
    assert!(is_ok(client.call(Request::Setstat { path: b"f", attrs })));
    let Reply::Attrs(found) = client.call(Request::Stat { path: b"f" }) else { panic!() };
    assert_eq!(found.permissions, Some(0o100_600));
    assert!(dir.path().join("e").exists());
    drop(hung);
    let mut answered = [(); 3].map(|()| client.receive().0);
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3]);
    client.end().unwrap();
}

#[test]
fn a_write_that_hangs_delays_no_other_file_system() {
    let Some((dir, hung, mut client)) = with_hung() else { return };
    let device = hung.device.as_ref().unwrap().try_clone().unwrap();
    let server = thread::spawn(move || open_files(&device));
    let (attrs, flags) = (FileAttrs::with_permissions(0o600), OpenFlags::WRITE);
    let open = Request::Open { path: b"hung/file", flags, attrs: FileAttrs::default() };
    let handle = &client.handle(open);
    client.send(&[
        (1, Request::Write { handle, offset: 0, data: b"data" }),
        // The client has given up.
        (2, Request::Close { handle }),
        (3, Request::Stat { path: b"hung/file" }),
    ]);
    let is_ok = |reply| matches!(reply, Reply::Status { errno: None, .. });
    assert!(matches!(client.call(Request::Stat { path: b"f" }), Reply::Attrs(_)));
    assert!(is_ok(client.call(Request::Setstat { path: b"f", attrs })));
    assert!(is_ok(client.call(Request::PosixRename { from: b"f", to: b"g" })));
    assert!(dir.path().join("g").exists());
    drop(hung);
    server.join().unwrap();
    let mut answered = [(); 3].map(|()| client.receive().0);
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3]);
    client.end().unwrap();
}

/// The file system answers the first request for a lock, and not the second one.
#[test]
fn a_lock_that_hangs_delays_no_waiting_one() {
    let Some((dir, hung, mut client)) = with_hung() else { return };
    let device = hung.device.as_ref().unwrap().try_clone().unwrap();
    let server = thread::spawn(move || open_files(&device));
    let other = File::open(dir.path().join("f")).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    let mut lock = |id, path, family| {
        let (attrs, flags) = (FileAttrs::default(), OpenFlags::READ | OpenFlags::WRITE);
        let handle = &client.handle(Request::Open { path, flags, attrs });
        let (owner, range) = (LockOwner { family, number: 1 }, LockRange::WHOLE);
        let lock = LockRequest::Set { owner, range, kind: Some(LockKind::Write), wait_ms: 10_000 };
        client.send(&[(id, Request::Lock { handle, lock })]);
    };
    lock(1, b"hung/file", LockFamily::Posix);
    thread::sleep(Duration::from_secs(1));
    lock(2, b"f", LockFamily::Flock);
    thread::sleep(Duration::from_millis(100));
    flock(&other, FlockOperation::Unlock).unwrap();
    let (id, reply) = client.receive();
    assert!(matches!((id, &reply), (2, Reply::Status { errno: None, .. })), "{id}: {reply:?}");
    drop(hung);
    server.join().unwrap();
    assert_eq!(client.receive().0, 1);
    client.end().unwrap();
}

#[test]
fn requests_that_hang_keep_neither_threads_nor_room_from_others() {
    let Some((_dir, hung, mut client)) = with_hung() else { return };
    let (attrs, flags) = (FileAttrs::default(), OpenFlags::WRITE);
    let handle = client.handle(Request::Open { path: b"f", flags, attrs });
    let stat = |id| (id, Request::Stat { path: b"hung/f" });
    // More than there are threads otherwise. A thread of the pool executes the sync.
    client.send(&(100..150).map(stat).collect::<Vec<_>>());
    assert!(matches!(
        client.call(Request::Fsync { handle: &handle }),
        Reply::Status { errno: None, .. }
    ));
    // More than may be in flight otherwise.
    client.send(&(150..228).map(stat).collect::<Vec<_>>());
    assert!(matches!(client.call(Request::Stat { path: b"f" }), Reply::Attrs(_)));
    client.send(&(228..614).map(stat).collect::<Vec<_>>());
    let refused = client.receive();
    assert!(matches!(refused, (613, Reply::Status { errno: Some(110), .. })), "{refused:?}");
    assert!(matches!(
        client.call(Request::Fsync { handle: &handle }),
        Reply::Status { errno: None, .. }
    ));
    drop(hung);
    let mut answered: Vec<_> = (100..613).map(|_| client.receive().0).collect();
    answered.sort_unstable();
    assert_eq!(answered, (100..613).collect::<Vec<_>>());
    client.end().unwrap();
}

/// The client does not send them again.
#[test]
fn a_close_and_an_unlock_are_not_refused_however_many_requests_hang() {
    let Some((_dir, hung, mut client)) = with_hung() else { return };
    let device = hung.device.as_ref().unwrap().try_clone().unwrap();
    let server = thread::spawn(move || open_files(&device));
    let (attrs, flags) = (FileAttrs::default(), OpenFlags::READ | OpenFlags::WRITE);
    let handle = &client.handle(Request::Open { path: b"hung/file", flags, attrs });
    let write = |id| (id, Request::Write { handle, offset: 0, data: b"data" });
    client.send(&(100..614).map(write).collect::<Vec<_>>());
    let refused = client.receive();
    assert!(matches!(refused, (613, Reply::Status { errno: Some(110), .. })), "{refused:?}");
    let owner = LockOwner { family: LockFamily::Posix, number: 1 };
    let lock = LockRequest::Set { owner, range: LockRange::WHOLE, kind: None, wait_ms: 0 };
    client.send(&[(1, Request::Lock { handle, lock }), (2, Request::Close { handle })]);
    assert!(matches!(client.call(Request::Stat { path: b"f" }), Reply::Attrs(_)));
    drop(hung);
    server.join().unwrap();
    for _ in 0..515 {
        let (id, reply) = client.receive();
        let is_refused = matches!(reply, Reply::Status { errno: Some(110), .. });
        assert!(!is_refused, "{id}: {reply:?}");
    }
    client.end().unwrap();
}

/// What identifies an entry, from the reply to a request for its attributes.
type Identity = (Option<(u64, u64)>, Option<Timestamp>);

fn identity(reply: &Reply) -> Identity {
    (exact(reply).inode, exact(reply).btime)
}

/// What identifies its last change, where its number does not last.
fn change(reply: &Reply) -> (u64, Timestamp) {
    (exact(reply).number.unwrap(), exact(reply).ctime.unwrap())
}

fn exact(reply: &Reply) -> ExactAttrs {
    let Reply::Attrs(attrs) = reply else { panic!("{reply:?}") };
    attrs.exact
}

/// Those of the entries of a directory.
fn listed(client: &mut Client, path: &[u8]) -> BTreeMap<Vec<u8>, Identity> {
    let handle = client.handle(Request::Opendir { path });
    let Reply::Names(listed) = client.call(Request::Readdir { handle: &handle }) else {
        panic!("no listing");
    };
    let exact = |attrs: &FileAttrs| (attrs.exact.inode, attrs.exact.btime);
    listed.iter().map(|entry| (entry.name.to_vec(), exact(&entry.attrs))).collect()
}

/// There, the first change of a file of a lower layer changes the time of creation, and the inode
/// number if the file has several names. A client would take it to be another file.
#[test]
fn a_file_of_an_overlay_keeps_its_identity_when_it_is_changed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can mount");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tmpfs")).unwrap();
    // An overlay cannot be the upper layer of another one.
    let _tmpfs = Mounted::new("tmpfs", &dir.path().join("tmpfs"), "");
    changes_of_an_overlay(&dir.path().join("tmpfs"), &dir.path().join("tmpfs/lower"));
    // Files of a lower layer on another file system have a device of their own.
    changes_of_an_overlay(&dir.path().join("tmpfs"), &dir.path().join("lower"));
}

/// With its other layer and its mount point in `dir`.
fn changes_of_an_overlay(dir: &Path, lower: &Path) {
    let [upper, work, root] = ["upper", "work", "root"].map(|name| dir.join(name));
    for dir in [lower, &upper, &work, &root, &lower.join("d")] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(lower.join("f"), "content").unwrap();
    fs::write(lower.join("linked"), "content").unwrap();
    fs::hard_link(lower.join("linked"), lower.join("other")).unwrap();
    let path = |path: &Path| path.display().to_string();
    let options =
        format!("lowerdir={},upperdir={},workdir={}", path(lower), path(&upper), path(&work));
    let overlay = Mounted::new("overlay", &root, &options);
    let mut client = Client::new(Options { root: Some(root.clone()), ..Options::default() });
    client.call(Request::Attrs { fields: ExactAttrs::ALL });
    let before = listed(&mut client, b"/");
    for name in [&b"f"[..], b"linked"] {
        let unchanged = client.call(Request::Lstat { path: name });
        let found = identity(&unchanged);
        assert_eq!(found, before[name]);
        let (flags, attrs) = (OpenFlags::WRITE, FileAttrs::default());
        let handle = &client.handle(Request::Open { path: name, flags, attrs });
        client.call(Request::Write { handle, offset: 0, data: b"changed" });
        let changed = client.call(Request::Fstat { handle });
        assert_eq!(identity(&changed), found);
        assert_ne!(change(&changed), change(&unchanged));
        let by_name = client.call(Request::Lstat { path: name });
        assert_eq!((identity(&by_name), change(&by_name)), (found, change(&changed)));
        // The other name of a file of the lower layer leads to the unchanged file.
        let links = |reply: &Reply| exact(reply).links;
        let is_linked = name == b"linked";
        assert_eq!(links(&unchanged), Some(if is_linked { 2 } else { 1 }));
        assert_eq!(links(&changed), Some(1));
    }
    let attrs = FileAttrs::with_permissions(0o700);
    client.call(Request::Setstat { path: b"d", attrs });
    assert_eq!(listed(&mut client, b"/"), before);
    client.end().unwrap();
    drop(overlay);
    for dir in [upper, work, root] {
        fs::remove_dir_all(dir).unwrap();
    }
}

/// Most FUSE file systems number their files anew when the kernel has forgotten them.
#[test]
fn a_file_of_a_fuse_file_system_has_no_identity() {
    let Some((_dir, hung, mut client)) = with_hung() else { return };
    let device = hung.device.as_ref().unwrap().try_clone().unwrap();
    let server = thread::spawn(move || open_files(&device));
    client.call(Request::Attrs { fields: ExactAttrs::ALL });
    let reply = client.call(Request::Lstat { path: b"hung/file" });
    assert_eq!(identity(&reply), (None, None));
    let ExactAttrs { links, ctime, number, .. } = exact(&reply);
    assert_eq!((links, ctime, number), (Some(1), None, None));
    let listed = listed(&mut client, b"/");
    assert_eq!(listed[&b"hung"[..]], (None, None));
    assert!(listed[&b"f"[..]].0.is_some());
    drop(hung);
    server.join().unwrap();
    client.end().unwrap();
}

/// The number of entries that a client gets which does not know the additions to the protocol.
fn listed_by_others(root: &Path) -> usize {
    let mut client = Client::new(Options { root: Some(root.to_owned()), ..Options::default() });
    let handle = client.handle(Request::Opendir { path: b"/" });
    let Reply::Names(listed) = client.call(Request::Readdir { handle: &handle }) else {
        panic!("no listing");
    };
    assert!(listed.iter().all(|entry| entry.attrs.permissions.is_some()));
    assert!(listed.iter().all(|entry| entry.attrs.exact == ExactAttrs::default()));
    client.end().unwrap();
    listed.len()
}
