//! What the server refuses, and what a hostile client can do to it.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use base::{LockFamily, LockKind, LockOwner, LockRange};
use bytes::BytesMut;
use helper::{Error, Options};
use proptest::prelude::*;
use sftp::codec::{
    DigestAlgorithm, ExactAttrs, FallocateMode, FileAttrs, LockRequest, OpenFlags, Owner,
    RenameFlags, Reply, Request, Whence, XattrFlags,
};
use sftp::{NameEntry, StatusCode};

use super::peer::{Client, open_below, start};

fn refused(reply: &Reply) -> Option<StatusCode> {
    match reply {
        Reply::Status { code, .. } if *code != StatusCode::OK => Some(*code),
        _ => None,
    }
}

#[test]
fn a_read_only_server_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "content").unwrap();
    let root = Some(dir.path().to_owned());
    let mut client = Client::new(Options { read_only: true, root, ..Options::default() });
    let attrs = FileAttrs::with_permissions(0o777);
    let read = OpenFlags::READ;
    let handle = client.handle(Request::Open { path: b"f", flags: read, attrs });
    let handle = &handle[..];
    let open = |flags| Request::Open { path: b"f", flags, attrs };
    for request in [
        open(OpenFlags::WRITE),
        open(read | OpenFlags::APPEND),
        open(read | OpenFlags::TRUNCATE),
        Request::Open { path: b"new", flags: read | OpenFlags::CREATE, attrs },
        Request::Write { handle, offset: 0, data: b"x" },
        Request::Setstat { path: b"f", attrs },
        Request::Lsetstat { path: b"f", attrs },
        Request::Fsetstat { handle, attrs },
        Request::Remove { path: b"f" },
        Request::Mkdir { path: b"d", attrs },
        Request::Rmdir { path: b"d" },
        Request::Rename { from: b"f", to: b"g" },
        Request::PosixRename { from: b"f", to: b"g" },
        Request::Symlink { target: b"f", link: b"g" },
        Request::Hardlink { existing: b"f", new: b"g" },
        Request::CopyData { from: handle, from_offset: 0, len: 0, to: handle, to_offset: 9 },
        Request::Setxattr { path: b"f", name: b"user.a", value: b"x", flags: XattrFlags(0) },
        Request::Removexattr { path: b"f", name: b"user.a", flags: XattrFlags(0) },
        Request::Mknod { path: b"fifo", mode: 0o010_600, major: 0, minor: 0 },
        Request::Renameat2 { from: b"f", to: b"g", flags: RenameFlags::NOREPLACE },
        Request::Fallocate { handle, mode: FallocateMode(0), offset: 0, len: 100 },
    ] {
        let shown = format!("{request:?}");
        let code = refused(&client.call(request));
        assert_eq!(code, Some(StatusCode::PERMISSION_DENIED), "{shown}");
    }
    let read = client.call(Request::Read { handle, offset: 0, len: 100 });
    assert_eq!(read, Reply::Data("content".into()));
    client.end().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let mode = std::fs::metadata(dir.path().join("f")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
}

/// Whether this process has the file open for writing.
fn is_open_for_writing(path: &Path) -> bool {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut of_file =
        links.filter(|link| std::fs::read_link(link.path()).is_ok_and(|to| to == path));
    of_file.any(|link| {
        let info = Path::new("/proc/self/fdinfo").join(link.file_name());
        let info = std::fs::read_to_string(info).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        // The access is the last octal digit.
        !flags.trim().ends_with('0')
    })
}

/// Such a file could not be executed, and watchers would report a write.
#[test]
fn a_read_lock_opens_no_file_for_writing() {
    for read_only in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "content").unwrap();
        let root = Some(dir.path().to_owned());
        let mut client = Client::new(Options { read_only, root, ..Options::default() });
        let (flags, attrs) = (OpenFlags::READ, FileAttrs::default());
        let handle = client.handle(Request::Open { path: b"f", flags, attrs });
        let owner = LockOwner { family: LockFamily::Posix, number: 1 };
        let (range, kind) = (LockRange::WHOLE, Some(LockKind::Read));
        let lock = LockRequest::Set { owner, range, kind, wait_ms: 0 };
        assert_eq!(refused(&client.call(Request::Lock { handle: &handle, lock })), None);
        assert!(!is_open_for_writing(&path));
        if !read_only {
            client.handle(Request::Open { path: b"f", flags: OpenFlags::WRITE, attrs });
            assert!(is_open_for_writing(&path));
        }
        client.end().unwrap();
    }
}

#[test]
fn no_request_leads_out_of_the_root() {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(outer.path().join("secret"), "secret").unwrap();
    symlink("..", root.join("up")).unwrap();
    symlink(outer.path(), root.join("out")).unwrap();
    symlink("../secret", root.join("link")).unwrap();
    let mut client = Client::new(Options { root: Some(root), ..Options::default() });
    let attrs = FileAttrs::default();
    let create = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE;
    let secret = outer.path().join("secret");
    let secret = secret.as_os_str().as_encoded_bytes();
    let follow = XattrFlags(XattrFlags::FOLLOW);
    for path in [&b"../secret"[..], b"out/secret", b"link", secret] {
        for request in [
            Request::Open { path, flags: OpenFlags::READ, attrs },
            Request::Stat { path },
            Request::Setstat { path, attrs: FileAttrs::with_permissions(0o777) },
            Request::Opendir { path },
            Request::Statvfs { path },
            Request::Getxattr { path, name: b"user.a", flags: follow },
            Request::Setxattr { path, name: b"user.a", value: b"x", flags: follow },
            Request::Listxattr { path, flags: follow },
            Request::Removexattr { path, name: b"user.a", flags: follow },
            Request::Dirxattrs { path },
            Request::Digest { path, algorithm: DigestAlgorithm::MD5 },
            Request::ReadFile { path, max_bytes: 100, follow: true },
        ] {
            assert!(refused(&client.call(request)).is_some(), "{}", path.escape_ascii());
        }
    }
    for path in [&b"../new"[..], b"up/new", b"out/new"] {
        // Inside the root, or nowhere.
        client.call(Request::Mkdir { path, attrs });
        client.call(Request::Symlink { target: b"/", link: path });
        client.call(Request::Open { path, flags: create, attrs });
        client.call(Request::PosixRename { from: b"link", to: path });
        client.call(Request::Hardlink { existing: b"../secret", new: path });
        client.call(Request::Mknod { path, mode: 0o010_600, major: 0, minor: 0 });
        for flags in [RenameFlags::NOREPLACE, RenameFlags::EXCHANGE] {
            client.call(Request::Renameat2 { from: b"link", to: path, flags });
        }
    }
    client.call(Request::Open { path: b"link", flags: create, attrs });
    client.end().unwrap();
    assert_eq!(std::fs::read_dir(outer.path()).unwrap().count(), 2);
    assert_eq!(std::fs::read(outer.path().join("secret")).unwrap(), b"secret");
}

/// As sshfs requests `chgrp`: the owner stays.
#[test]
fn an_owner_of_minus_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "").unwrap();
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    let mut client = Client::new(options);
    let own = rustix::process::getegid().as_raw();
    let owner = Some(Owner { uid: u32::MAX, gid: own });
    let attrs = FileAttrs { owner, ..FileAttrs::default() };
    assert_eq!(refused(&client.call(Request::Setstat { path: b"f", attrs })), None);
    let uid =
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(dir.path().join("f")).unwrap());
    assert_eq!(uid, rustix::process::geteuid().as_raw());
    client.end().unwrap();
}

/// What the parent of the root is, is not for the client.
#[test]
fn the_parent_of_the_root_is_the_root() {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("root");
    std::fs::create_dir_all(root.join("dir")).unwrap();
    std::fs::set_permissions(&root, Permissions::from_mode(0o711)).unwrap();
    let mut client = Client::new(Options { root: Some(root), ..Options::default() });
    for fields in [0, ExactAttrs::INODE] {
        client.call(Request::Attrs { fields });
        let mut list = |path: &[u8]| {
            let handle = client.handle(Request::Opendir { path });
            match client.call(Request::Readdir { handle: &handle }) {
                Reply::Names(listed) => listed,
                other => panic!("{other:?}"),
            }
        };
        let (root, dir) = (list(b"/"), list(b"dir"));
        let attrs = |listed: &[NameEntry], name: &str| {
            let entry = listed.iter().find(|entry| entry.name == name).unwrap();
            (entry.attrs.permissions, entry.attrs.exact.inode)
        };
        assert_eq!(attrs(&root, ".."), attrs(&root, "."));
        assert_eq!(attrs(&dir, ".."), attrs(&root, "."));
        assert_eq!(attrs(&dir, "."), attrs(&root, "dir"));
    }
    client.end().unwrap();
}

/// Elsewhere, each query takes a round trip, and most clients have no use for the answer.
#[test]
fn only_on_local_file_systems_is_it_known_whether_there_are_extended_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let local = dir.path().as_os_str().as_bytes();
    let mut client = Client::new(Options::default());
    client.call(Request::Attrs { fields: ExactAttrs::ALL });
    for (path, is_known) in [(local, true), (b"/proc", false)] {
        let Reply::Attrs(attrs) = client.call(Request::Stat { path }) else { panic!("no stat") };
        assert_eq!(attrs.exact.xattrs.is_some(), is_known);
        let handle = client.handle(Request::Opendir { path });
        let Reply::Names(listed) = client.call(Request::Readdir { handle: &handle }) else {
            panic!("no listing");
        };
        let known = listed.iter().filter(|entry| entry.attrs.exact.xattrs.is_some()).count();
        assert_eq!(known, if is_known { listed.len() } else { 0 });
        assert!(listed.iter().all(|entry| entry.attrs.exact.inode.is_some()));
    }
    client.end().unwrap();
}

/// Class of attack: by `/proc/PID/mem` a client with files only executes code.
#[test]
fn no_process_is_changed_through_a_root_with_procfs() {
    let mut client = Client::new(Options { root: Some("/".into()), ..Options::default() });
    let attrs = FileAttrs::default();
    for path in [&b"proc/self/mem"[..], b"/proc/thread-self/mem", b"/proc/self/comm"] {
        for flags in [OpenFlags::WRITE, OpenFlags::READ | OpenFlags::WRITE] {
            let reply = client.call(Request::Open { path, flags, attrs });
            assert_eq!(refused(&reply), Some(StatusCode::PERMISSION_DENIED), "{reply:?}");
        }
    }
    client.handle(Request::Open { path: b"/proc/self/comm", flags: OpenFlags::READ, attrs });
    client.end().unwrap();
}

/// A device that the client could make would lead out of the root.
#[test]
fn no_device_is_made_below_a_root() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    let mut client = Client::new(options);
    for kind in [0o060_000, 0o020_000] {
        // The kernel's own memory devices: not even they.
        let device = Request::Mknod { path: b"d", mode: kind | 0o600, major: 1, minor: 3 };
        assert_eq!(refused(&client.call(device)), Some(StatusCode::PERMISSION_DENIED));
    }
    let fifo = Request::Mknod { path: b"p", mode: 0o010_600, major: 0, minor: 0 };
    assert_eq!(refused(&client.call(fifo)), None);
    client.end().unwrap();
}

#[test]
fn a_copy_or_read_past_the_end_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("from"), "0123456789").unwrap();
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    let mut client = Client::new(options);
    let attrs = FileAttrs::default();
    let open = |path, flags| Request::Open { path, flags, attrs };
    let from = client.handle(open(b"from", OpenFlags::READ));
    let to = client.handle(open(b"to", OpenFlags::WRITE | OpenFlags::CREATE));
    for (len, code) in [(10, None), (11, Some(StatusCode::EOF)), (0, None)] {
        let copy = Request::CopyData { from: &from, from_offset: 0, len, to: &to, to_offset: 0 };
        assert_eq!(refused(&client.call(copy)), code, "{len}");
        assert_eq!(std::fs::read(dir.path().join("to")).unwrap(), b"0123456789");
    }
    for offset in [u64::MAX, 1 << 63] {
        let read = client.call(Request::Read { handle: &from, offset, len: 5 });
        assert!(matches!(read, Reply::Status { errno: Some(22), .. }), "{read:?}");
    }
    client.end().unwrap();
}

#[test]
fn a_closed_handle_is_invalid_and_nothing_stays_open() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "content").unwrap();
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    let mut client = Client::new(options);
    let attrs = FileAttrs::default();
    let before = open_below(dir.path());
    let handle = client.handle(Request::Open { path: b"f", flags: OpenFlags::READ, attrs });
    assert_eq!(refused(&client.call(Request::Close { handle: &handle })), None);
    for request in [
        Request::Read { handle: &handle, offset: 0, len: 1 },
        Request::Close { handle: &handle },
        Request::Readdir { handle: b"" },
        Request::Write { handle: &[0; 256], offset: 0, data: b"" },
    ] {
        assert_eq!(refused(&client.call(request)), Some(StatusCode::FAILURE));
    }
    assert_eq!(open_below(dir.path()), before);
    let body = b"";
    let unknown = Request::UnknownExtension { name: b"unknown@example.com", body };
    assert_eq!(refused(&client.call(unknown)), Some(StatusCode::OP_UNSUPPORTED));
    client.handle(Request::Open { path: b"f", flags: OpenFlags::READ, attrs });
    client.end().unwrap();
    assert_eq!(open_below(dir.path()), 0);
}

/// pkg/sftp, which rclone uses, sends its whole buffer for the last WRITE of a file.
#[test]
fn bytes_after_a_request_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let mut client =
        Client::new(Options { root: Some(dir.path().to_owned()), ..Options::default() });
    let (flags, attrs) = (OpenFlags::WRITE | OpenFlags::CREATE, FileAttrs::default());
    let handle = client.handle(Request::Open { path: b"f", flags, attrs });
    let mut packet = BytesMut::new();
    Request::Write { handle: &handle, offset: 0, data: b"content" }.encode(7, &mut packet);
    packet.extend_from_slice(&[b'x'; 1000]);
    let len = u32::try_from(packet.len() - 4).unwrap();
    packet[..4].copy_from_slice(&len.to_be_bytes());
    client.stream.write_all(&packet).unwrap();
    assert_eq!(client.receive().0, 7);
    assert_eq!(refused(&client.call(Request::Close { handle: &handle })), None);
    client.end().unwrap();
    assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"content");
}

#[test]
fn invalid_flags_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "content").unwrap();
    std::fs::write(dir.path().join("g"), "other").unwrap();
    let mut client =
        Client::new(Options { root: Some(dir.path().to_owned()), ..Options::default() });
    let attrs = FileAttrs::default();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let handle = &client.handle(Request::Open { path: b"f", flags, attrs })[..];
    let (path, name, both) = (&b"f"[..], &b"user.a"[..], XattrFlags(0x3));
    let long = [b'x'; 300];
    for request in [
        Request::Setxattr { path, name, value: b"x", flags: both },
        Request::Setxattr { path, name, value: b"x", flags: XattrFlags(0x8) },
        Request::Getxattr { path, name, flags: XattrFlags(0x1) },
        Request::Getxattr { path, name: &long, flags: XattrFlags(0) },
        Request::Setxattr { path, name: b"user.\0", value: b"x", flags: XattrFlags(0) },
        Request::Setxattr { path, name, value: &[7; 65_537], flags: XattrFlags(0) },
        Request::Listxattr { path, flags: both },
        Request::Removexattr { path, name, flags: both },
        Request::Mknod { path: b"new", mode: 0o100_600, major: 0, minor: 0 },
        Request::Mknod { path: b"new", mode: 0o600, major: 0, minor: 0 },
        Request::Renameat2 { from: b"f", to: b"g", flags: RenameFlags(0x3) },
        Request::Renameat2 { from: b"f", to: b"g", flags: RenameFlags(0x4) },
        Request::Fallocate { handle, mode: FallocateMode(0x2), offset: 0, len: 1 },
        Request::Fallocate { handle, mode: FallocateMode(0x8), offset: 0, len: 4096 },
        Request::Fallocate { handle, mode: FallocateMode(0), offset: u64::MAX, len: u64::MAX },
        Request::Lseek { handle, offset: 0, whence: Whence(0) },
        Request::Lseek { handle, offset: u64::MAX, whence: Whence::DATA },
        Request::Lseek { handle: b"", offset: 0, whence: Whence::DATA },
        Request::Dirxattrs { path },
        Request::Digest { path, algorithm: DigestAlgorithm(0) },
        Request::Digest { path: b".", algorithm: DigestAlgorithm::MD5 },
        Request::ReadFile { path: b".", max_bytes: u32::MAX, follow: false },
    ] {
        let shown = format!("{request:?}");
        assert!(refused(&client.call(request)).is_some(), "{shown}");
    }
    client.end().unwrap();
    assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"content");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

/// A longer reply than a packet may have would end the client's session.
#[test]
fn names_that_do_not_fit_into_a_reply_are_refused() {
    let mut client = Client::new(Options::default());
    let ids = vec![rustix::process::getuid().as_raw(); 60_000];
    let request = Request::UsersGroupsById { uids: ids[..10].to_vec(), gids: Vec::new() };
    assert!(matches!(client.call(request), Reply::Extended(_)));
    let reply = client.call(Request::UsersGroupsById { uids: ids, gids: Vec::new() });
    assert!(matches!(reply, Reply::Status { errno: Some(7), .. }), "{reply:?}");
    client.end().unwrap();
}

/// The kernel sends a signal, too, that ends a process.
#[test]
fn a_write_beyond_the_limit_of_the_file_size_is_an_error() {
    const LIMITED: &str = "SSHOAL_TEST_LIMITED";
    if std::env::var_os(LIMITED).is_none() {
        let name = "refusals::a_write_beyond_the_limit_of_the_file_size_is_an_error";
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -f 8; exec \"$@\"", "sh"]);
        limited.arg(std::env::current_exe().unwrap()).args(["--exact", name]).env(LIMITED, "1");
        let run = limited.output().unwrap();
        assert!(run.status.success(), "{run:?}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    let mut client = Client::new(options);
    let (attrs, flags) = (FileAttrs::default(), OpenFlags::WRITE | OpenFlags::CREATE);
    let handle = &client.handle(Request::Open { path: b"f", flags, attrs });
    // The first part of it still fits.
    let reply = client.call(Request::Write { handle, offset: 0, data: &[7; 20_000] });
    assert!(matches!(reply, Reply::Status { errno: Some(27), .. }), "{reply:?}");
    let attrs = FileAttrs { size: Some(1 << 20), ..FileAttrs::default() };
    let reply = client.call(Request::Fsetstat { handle, attrs });
    assert!(matches!(reply, Reply::Status { errno: Some(27), .. }), "{reply:?}");
    client.end().unwrap();
}

/// A FIFO without a writer does not stop the server.
#[test]
fn a_fifo_does_not_stop_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let options = Options { root: Some(dir.path().to_owned()), ..Options::default() };
    let mut client = Client::new(options);
    let attrs = FileAttrs::default();
    let handle = client.handle(Request::Open { path: b"fifo", flags: OpenFlags::READ, attrs });
    client.call(Request::Read { handle: &handle, offset: 0, len: 1 });
    assert!(matches!(client.call(Request::Lstat { path: b"fifo" }), Reply::Attrs(_)));
    client.end().unwrap();
}

#[test]
fn what_is_not_sftp_ends_the_session() {
    let options = Options::default();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0, 0, 0, 0], &[0, 0, 0, 1, 99]] {
        let (mut stream, server) = start(options.clone());
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(matches!(server.join().unwrap(), Err(Error::Malformed(_))), "{bytes:?}");
    }
    // An empty stream is a session without requests.
    let (stream, server) = start(options);
    drop(stream);
    server.join().unwrap().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No packet stops the server before its stream ends or is not SFTP.
    #[test]
    fn no_request_stops_the_server(
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..60), 1..20),
        kinds in prop::collection::vec(prop::sample::select(vec![3_u8, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 17, 19, 200]), 20),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { read_only: true, root: Some(dir.path().to_owned()), ..Options::default() };
        let mut client = Client::new(options);
        let mut out = BytesMut::new();
        for (packet, kind) in packets.iter().zip(&kinds) {
            out.extend_from_slice(&(packet.len() as u32).to_be_bytes());
            out.extend_from_slice(&[*kind]);
            out.extend_from_slice(&packet[1..]);
        }
        // The server may have ended already.
        let _ = client.stream.write_all(&out);
        match client.end() {
            Ok(()) | Err(Error::Malformed(_) | Error::Stream(_)) => {}
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}
