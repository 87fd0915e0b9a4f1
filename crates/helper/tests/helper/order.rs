//! Requests that are in flight together take effect in their order.

use helper::Options;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use sftp::StatusCode;
use sftp::codec::{FileAttrs, OpenFlags, Reply, Request};

use super::peer::Client;

fn rooted(dir: &tempfile::TempDir) -> Options {
    Options { root: Some(dir.path().to_owned()), ..Options::default() }
}

fn is_ok(reply: &Reply) -> bool {
    matches!(reply, Reply::Status { code: StatusCode::OK, .. })
}

/// Each round writes, asks for the size by path and reads, all in one burst, beside syncs that the
/// pool executes.
#[test]
fn a_burst_reads_what_it_has_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut client = Client::new(rooted(&dir));
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
    let attrs = FileAttrs::default();
    let handle = client.handle(Request::Open { path: b"f", flags, attrs });
    let handle = &handle[..];
    for round in 0_u32..200 {
        let data = round.to_be_bytes().repeat(5000);
        let offset = u64::from(round) * data.len() as u64;
        let end = offset + data.len() as u64;
        client.send(&[
            (1, Request::Write { handle, offset, data: &data }),
            (2, Request::Fsync { handle }),
            (3, Request::Stat { path: b"/f" }),
            (4, Request::Read { handle, offset, len: data.len() as u32 }),
            (5, Request::Write { handle, offset, data: &[0xff; 8] }),
            (6, Request::Read { handle, offset, len: 8 }),
            (7, Request::Write { handle, offset, data: &data[..8] }),
        ]);
        for _ in 0..7 {
            match client.receive() {
                (3, Reply::Attrs(attrs)) => assert_eq!(attrs.size, Some(end)),
                (4, Reply::Data(read)) => assert!(read == data, "round {round}"),
                (6, Reply::Data(read)) => assert!(*read == [0xff; 8], "round {round}"),
                (1 | 2 | 5 | 7, reply) => assert!(is_ok(&reply), "{reply:?}"),
                other => panic!("{other:?}"),
            }
        }
    }
    client.end().unwrap();
}

#[test]
fn names_are_used_as_soon_as_they_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let mut client = Client::new(rooted(&dir));
    let attrs = FileAttrs::default();
    let flags = OpenFlags::WRITE | OpenFlags::CREATE;
    client.send(&[
        (1, Request::Mkdir { path: b"d", attrs }),
        (2, Request::Open { path: b"d/f", flags, attrs }),
        (3, Request::PosixRename { from: b"d", to: b"e" }),
        (4, Request::Lstat { path: b"e/f" }),
        (5, Request::Hardlink { existing: b"e/f", new: b"e/g" }),
        (6, Request::Remove { path: b"e/f" }),
        (7, Request::Lstat { path: b"e/f" }),
        (8, Request::Opendir { path: b"e" }),
    ]);
    for _ in 0..8 {
        match client.receive() {
            (1 | 3 | 5 | 6, reply) => assert!(is_ok(&reply), "{reply:?}"),
            (2 | 8, Reply::Handle(_)) | (4, Reply::Attrs(_)) => {}
            (7, Reply::Status { code: StatusCode::NO_SUCH_FILE, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    client.end().unwrap();
}

/// In a directory of this machine, and where the pool executes all requests.
#[test]
fn a_directory_is_listed_by_the_request_that_opens_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("kernel")).unwrap();
    let in_pool = Options { root: Some("/proc/sys".into()), ..Options::default() };
    for options in [rooted(&dir), in_pool] {
        let mut client = Client::new(options);
        for round in 0_u32..100 {
            let id = 1000 + round;
            let early = id.to_be_bytes();
            client.send(&[
                (id, Request::Opendir { path: b"/" }),
                (1, Request::Readdir { handle: &early }),
                (2, Request::Readdir { handle: &early }),
            ]);
            let (mut handle, mut listed) = (None, None);
            for _ in 0..3 {
                match client.receive() {
                    (1, Reply::Names(names)) => listed = Some(names),
                    (2, Reply::Status { code: StatusCode::EOF, .. }) => {}
                    (1000.., Reply::Handle(opened)) => handle = Some(opened),
                    other => panic!("{other:?}"),
                }
            }
            assert!(listed.unwrap().iter().any(|entry| entry.name == "kernel"));
            let handle = handle.unwrap();
            assert!(is_ok(&client.call(Request::Close { handle: handle.as_bytes() })));
        }
        client.end().unwrap();
    }
}

/// It stands for the directory of the last request with this id, as long as that is open, and for
/// nothing else.
#[test]
fn the_id_of_a_request_is_no_other_handle() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "").unwrap();
    let mut client = Client::new(rooted(&dir));
    let early = &7_u32.to_be_bytes()[..];
    let is_invalid = |reply: Reply| matches!(reply, Reply::Status { errno: Some(9), .. });
    assert!(is_invalid(client.call(Request::Readdir { handle: early })));
    let (flags, attrs) = (OpenFlags::READ, FileAttrs::default());
    client.handle(Request::Open { path: b"f", flags, attrs });
    assert!(is_invalid(client.call(Request::Readdir { handle: early })));
    let first = client.handle(Request::Opendir { path: b"/" });
    for request in [
        Request::Fstat { handle: early },
        Request::Close { handle: early },
        Request::Fstatvfs { handle: early },
    ] {
        assert!(is_invalid(client.call(request)));
    }
    client.send(&[(8, Request::Readdir { handle: early })]);
    assert!(matches!(client.receive(), (8, Reply::Names(_))));
    assert!(!is_ok(&client.call(Request::Opendir { path: b"absent" })));
    client.send(&[(8, Request::Readdir { handle: early })]);
    assert!(is_invalid(client.receive().1));
    client.handle(Request::Opendir { path: b"/" });
    for id in 100..228 {
        client.send(&[(id, Request::Opendir { path: b"/" })]);
        assert!(matches!(client.receive().1, Reply::Handle(_)));
    }
    client.send(&[(8, Request::Readdir { handle: early })]);
    assert!(is_invalid(client.receive().1), "only the last ones are remembered");
    let early = &227_u32.to_be_bytes()[..];
    client.send(&[(8, Request::Readdir { handle: early })]);
    assert!(matches!(client.receive(), (8, Reply::Names(_))));
    assert!(is_ok(&client.call(Request::Close { handle: &first })));
    client.end().unwrap();
}

/// What was sent before the end of the stream is executed.
#[test]
fn the_last_requests_are_executed() {
    let dir = tempfile::tempdir().unwrap();
    let mut client = Client::new(rooted(&dir));
    let flags = OpenFlags::WRITE | OpenFlags::CREATE;
    let attrs = FileAttrs::default();
    let handle = client.handle(Request::Open { path: b"f", flags, attrs });
    let data = vec![7; 100_000];
    let handle = &handle[..];
    let writes = (0..20_u32).map(|number| {
        (number, Request::Write { handle, offset: u64::from(number) * 100_000, data: &data })
    });
    let mut requests: Vec<_> = writes.collect();
    requests.insert(10, (100, Request::Fsync { handle }));
    client.send(&requests);
    client.end().unwrap();
    assert_eq!(std::fs::metadata(dir.path().join("f")).unwrap().len(), 2_000_000);
}

/// The close does not wait for the disk, and the sync does not lose its file.
#[test]
fn a_sync_is_executed_although_the_close_follows() {
    let dir = tempfile::tempdir().unwrap();
    let mut client = Client::new(rooted(&dir));
    let (attrs, flags) = (FileAttrs::default(), OpenFlags::WRITE | OpenFlags::CREATE);
    for _ in 0..200 {
        let handle = client.handle(Request::Open { path: b"f", flags, attrs });
        let handle = &handle[..];
        client.send(&[
            (1, Request::Write { handle, offset: 0, data: b"content" }),
            (2, Request::Fsync { handle }),
            (3, Request::Close { handle }),
        ]);
        for _ in 0..3 {
            let (id, reply) = client.receive();
            assert!(is_ok(&reply), "{id}: {reply:?}");
        }
    }
    client.end().unwrap();
}

/// Attributes by path wait for it only for a moment.
#[test]
fn a_long_copy_delays_no_other_request() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can make devices");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, minor) in [("random", 9), ("null", 3)] {
        let (kind, mode) = (FileType::CharacterDevice, Mode::from_raw_mode(0o600));
        mknodat(CWD, dir.path().join(name), kind, mode, makedev(1, minor)).unwrap();
    }
    let mut client = Client::new(rooted(&dir));
    let attrs = FileAttrs::default();
    let from = &client.handle(Request::Open { path: b"random", flags: OpenFlags::READ, attrs });
    let to = &client.handle(Request::Open { path: b"null", flags: OpenFlags::WRITE, attrs });
    let copy = Request::CopyData { from, from_offset: 0, len: 2 << 30, to, to_offset: 0 };
    client.send(&[
        (1, copy),
        (2, Request::Stat { path: b"random" }),
        (3, Request::Fstat { handle: to }),
    ]);
    let (id, reply) = client.receive();
    assert!(matches!((id, &reply), (2, Reply::Attrs(_))), "{id}: {reply:?}");
    let (id, reply) = client.receive();
    assert!(id == 1 && is_ok(&reply), "{id}: {reply:?}");
    assert!(matches!(client.receive(), (3, Reply::Attrs(_))));
    client.end().unwrap();
}
