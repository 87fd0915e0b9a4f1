//! Requests on the wire, and misbehaving servers.

use std::task::Poll;
use std::time::Duration;

use base::{
    Access, AttrChange, Create, Data, Errno, Lock, LockFamily, LockKind, LockOwner, LockRange,
    OpenFlags, Remote, RenameMode, Timestamp,
};
use bytes::Bytes;
use host::{Config, Host};
use sftp::codec::{LockRequest, Owner, Reply, Request, Times};
use sftp::{Extension, FileAttrs, OpenFlags as Wire, StatusCode};

use super::peer::{Actor, path, staged, staged_helper, staged_with_later};

const READ: OpenFlags =
    OpenFlags { access: Access::Read, create: Create::Never, truncate: false, append: false };

/// Opens `f` for reading, of `size` bytes by its attributes.
async fn open(host: &Host, actor: &mut Actor, size: u64) -> base::Fh {
    open_as(host, actor, ("f", b"h"), READ, size).await
}

/// Opens the file `name`, which gets this handle.
async fn open_as(
    host: &Host,
    actor: &mut Actor,
    (name, handle): (&str, &[u8]),
    flags: OpenFlags,
    size: u64,
) -> base::Fh {
    let serve = async {
        let look = actor.expect(Request::Lstat { path: name.as_bytes() }).await;
        let open = actor.receive(|id, _| id).await;
        actor.attrs(look, 0o100_644, size).await;
        actor.handle(open, handle).await;
    };
    let path = path(name);
    let (opened, ()) = tokio::join!(host.open(&path, flags), serve);
    opened.unwrap().fh
}

#[tokio::test]
async fn an_open_is_one_round_trip_with_lstat_first() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let serve = async {
        let look = actor.expect(Request::Lstat { path: b"f" }).await;
        let attrs = FileAttrs::default();
        let open = actor.expect(Request::Open { path: b"f", flags: Wire::READ, attrs }).await;
        // In any order.
        actor.handle(open, b"h").await;
        actor.attrs(look, 0o100_644, 7).await;
    };
    let path = path("f");
    let (opened, ()) = tokio::join!(host.open(&path, READ), serve);
    assert_eq!(opened.unwrap().attr.size, 7);
}

#[tokio::test]
async fn a_handle_of_a_non_file_is_closed() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    for (mode, errno) in [
        (0o040_755, Errno::EISDIR),
        (0o120_777, Errno::ELOOP),
        (0o010_644, Errno::ENXIO),
        (0, Errno::EIO),
    ] {
        let path = path("f");
        let serve = async {
            let look = actor.expect(Request::Lstat { path: b"f" }).await;
            let open = actor.receive(|id, _| id).await;
            actor.attrs(look, mode, 0).await;
            actor.handle(open, b"h").await;
            actor.expect(Request::Close { handle: b"h" }).await;
        };
        let (opened, ()) = tokio::join!(host.open(&path, READ), serve);
        assert_eq!(opened.err(), Some(errno), "{mode:o}");
    }
}

/// `github.com/pkg/sftp` reads several in one request in the wrong order.
#[tokio::test]
async fn attributes_are_set_one_by_one_where_the_server_is_not_openssh() {
    let time = |secs| Some(Timestamp { secs, nanos: 0 });
    let change = AttrChange {
        size: Some(3),
        uid: Some(1),
        gid: Some(2),
        perm: Some(0o4755),
        atime: time(5),
        mtime: time(6),
        ..AttrChange::default()
    };
    let none = FileAttrs::default();
    let size = FileAttrs { size: Some(3), ..none };
    let owner = FileAttrs { owner: Some(Owner { uid: 1, gid: 2 }), ..none };
    let perm = FileAttrs { permissions: Some(0o4755), ..none };
    let times = FileAttrs { times: Some(Times { atime: 5, mtime: 6 }), ..none };
    let rest = FileAttrs { owner: owner.owner, permissions: perm.permissions, ..times };
    let all = FileAttrs { size: size.size, ..rest };
    let separate = (vec![size, owner, perm, times], vec![owner, perm, times]);
    for (extensions, (by_handle, by_path)) in
        [(&[][..], separate), (&[Extension::Lsetstat], (vec![all], vec![rest]))]
    {
        let (host, mut actor) = staged(extensions, Config::default()).await;
        let flags = OpenFlags::existing(Access::Write);
        let fh = open_as(&host, &mut actor, ("f", b"h"), flags, 7).await;
        let serve = async {
            let mut ids = Vec::new();
            for attrs in by_handle {
                ids.push(actor.expect(Request::Fsetstat { handle: b"h", attrs }).await);
            }
            // The first error is returned.
            actor.fail(ids[0], StatusCode::PERMISSION_DENIED).await;
            for id in &ids[1..] {
                actor.fail(*id, StatusCode::BAD_MESSAGE).await;
            }
            let look = actor.expect(Request::Lstat { path: b"f" }).await;
            actor.attrs(look, 0o100_644, 7).await;
            let resize = actor.expect(Request::Setstat { path: b"f", attrs: size }).await;
            actor.fail(resize, StatusCode::OK).await;
            let mut ids = Vec::new();
            for attrs in by_path {
                let request = match extensions {
                    [] => Request::Setstat { path: b"f", attrs },
                    _ => Request::Lsetstat { path: b"f", attrs },
                };
                ids.push(actor.expect(request).await);
            }
            for id in ids {
                actor.fail(id, StatusCode::OK).await;
            }
        };
        let calls = async {
            assert_eq!(host.fsetattr(fh, change).await, Err(Errno::EPERM));
            assert_eq!(host.setattr(&path("f"), change).await, Ok(()));
        };
        tokio::join!(calls, serve);
    }
}

/// rclone's server has answered a request for data in this way.
#[tokio::test]
async fn success_without_a_result_is_eio_and_other_files_stay_open() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let fh = open(&host, &mut actor, 4).await;
    let path = path("g");
    let serve = async {
        let look = actor.expect(Request::Lstat { path: b"g" }).await;
        actor.fail(look, StatusCode::OK).await;
        let (open, look) = {
            let open = actor.receive(|id, _| id).await;
            (open, actor.expect(Request::Lstat { path: b"g" }).await)
        };
        actor.fail(open, StatusCode::OK).await;
        actor.attrs(look, 0o100_644, 0).await;
        let read = actor.expect(Request::Read { handle: b"h", offset: 0, len: 4 }).await;
        actor.fail(read, StatusCode::OK).await;
        let read = actor.expect(Request::Read { handle: b"h", offset: 0, len: 4 }).await;
        actor.send(read, Reply::Data(Bytes::from_static(b"data"))).await;
    };
    let calls = async {
        assert_eq!(host.lstat(&path).await.err(), Some(Errno::EIO));
        // The file may be the one that was to be made.
        assert_eq!(host.open(&path, MAKE).await.err(), Some(Errno::EIO));
        assert_eq!(host.read(fh, 0, 4).await.err(), Some(Errno::EIO));
        assert_eq!(host.read(fh, 0, 4).await.unwrap().to_vec(), b"data");
    };
    tokio::join!(calls, serve);
}

#[tokio::test]
async fn no_link_that_has_taken_the_name_is_truncated() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    for refusal in [StatusCode::PERMISSION_DENIED, StatusCode::OP_UNSUPPORTED] {
        let serve = async {
            let look = actor.expect(Request::Lstat { path: b"f" }).await;
            let attrs = FileAttrs::default();
            let open = actor.expect(Request::Open { path: b"f", flags: Wire::WRITE, attrs }).await;
            actor.attrs(look, 0o100_644, 7).await;
            actor.handle(open, b"h").await;
            let attrs = FileAttrs { size: Some(0), ..FileAttrs::default() };
            let cut = actor.expect(Request::Fsetstat { handle: b"h", attrs }).await;
            let look = actor.expect(Request::Fstat { handle: b"h" }).await;
            actor.fail(cut, refusal).await;
            actor.attrs(look, 0o100_644, 7).await;
            let close = actor.expect(Request::Close { handle: b"h" }).await;
            let look = actor.expect(Request::Lstat { path: b"f" }).await;
            actor.fail(close, StatusCode::OK).await;
            actor.attrs(look, 0o120_777, 1).await;
            actor.expect_nothing().await;
        };
        let flags = OpenFlags { truncate: true, ..OpenFlags::existing(Access::Write) };
        let path = path("f");
        let (opened, ()) = tokio::join!(host.open(&path, flags), serve);
        assert_eq!(opened.err(), Some(Errno::ELOOP), "{refusal:?}");
    }
}

/// Limit of a session's silence that no test reaches.
const LONG: Duration = Duration::from_secs(600);

/// Replies that `f` is a named pipe, and not to its OPEN: OpenSSH's server waits for the other end
/// of the pipe, and answers no other request.
async fn block_at_pipe(actor: &mut Actor) {
    let look = actor.expect(Request::Lstat { path: b"f" }).await;
    actor.receive(|id, _| id).await;
    actor.attrs(look, 0o010_644, 0).await;
}

#[tokio::test]
async fn an_open_that_blocks_the_server_fails_and_others_go_on() {
    let config = Config { stall_limit: LONG, ..Config::default() };
    let (host, mut actor, mut later) = staged_with_later(&[], config).await;
    let (pipe, other) = (path("f"), path("other"));
    let opening = tokio::time::timeout(LONG / 20, host.open(&pipe, READ));
    let (opened, ()) = tokio::join!(opening, block_at_pipe(&mut actor));
    assert_eq!(opened.expect("it is not answered").err(), Some(Errno::ENXIO));
    let serve = async {
        let mut actor = later.recv().await.unwrap();
        let look = actor.expect(Request::Lstat { path: b"other" }).await;
        actor.attrs(look, 0o100_644, 7).await;
    };
    let (attr, ()) = tokio::join!(host.lstat(&other), serve);
    assert_eq!(attr.unwrap().size, 7);
}

/// Also if the caller of the open has given up.
#[tokio::test]
async fn an_open_that_was_cancelled_does_not_block_others() {
    let config = Config { stall_limit: LONG, ..Config::default() };
    let (host, mut actor, mut later) = staged_with_later(&[], config).await;
    let (pipe, other) = (path("f"), path("other"));
    let serve = async {
        block_at_pipe(&mut actor).await;
        let look = actor.expect(Request::Lstat { path: b"other" }).await;
        actor.attrs(look, 0o100_644, 7).await;
    };
    tokio::select! {
        biased;
        opened = host.open(&pipe, READ) => panic!("{opened:?}"),
        // When this is answered, the reply about the pipe has been used.
        (attr, ()) = async { tokio::join!(host.lstat(&other), serve) } => assert!(attr.is_ok()),
    }
    let looking = async {
        match host.lstat(&other).await {
            // It was sent over the blocked session.
            Err(Errno::ETIMEDOUT) => host.lstat(&other).await,
            found => found,
        }
    };
    let serve = async {
        let mut actor = later.recv().await.unwrap();
        let look = actor.expect(Request::Lstat { path: b"other" }).await;
        actor.attrs(look, 0o100_644, 7).await;
    };
    let both = tokio::time::timeout(LONG / 20, async { tokio::join!(looking, serve) });
    let (attr, ()) = both.await.expect("the server is blocked");
    assert_eq!(attr.unwrap().size, 7);
}

/// Drops an open whose two requests were received, after the reply named `answered`.
async fn gives_up(
    call: tokio::task::JoinHandle<base::Result<base::Opened>>,
    actor: &mut Actor,
    (open, look): (u32, u32),
    answered: &str,
) {
    match answered {
        "look" => actor.attrs(look, 0o100_644, 0).await,
        "open" => actor.handle(open, b"h").await,
        _ => {}
    }
    // Lets the reply arrive before the call is dropped.
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    if answered != "look" {
        actor.attrs(look, 0o100_644, 0).await;
    }
    if answered != "open" {
        actor.handle(open, b"h").await;
    }
    let id = actor.expect(Request::Close { handle: b"h" }).await;
    actor.fail(id, StatusCode::OK).await;
}

#[tokio::test]
async fn a_cancelled_open_leaves_no_handle() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    for answered in ["none", "look", "open"] {
        let host = host.clone();
        let call = tokio::spawn(async move { host.open(&path("f"), READ).await });
        let look = actor.expect(Request::Lstat { path: b"f" }).await;
        let open = actor.receive(|id, _| id).await;
        gives_up(call, &mut actor, (open, look), answered).await;
    }
}

const MAKE: OpenFlags = OpenFlags {
    access: Access::Write,
    create: Create::Exclusive(0o644),
    truncate: false,
    append: false,
};

/// Receives the two requests that create a file; returns their ids.
async fn takes_make(actor: &mut Actor) -> (u32, u32) {
    let flags = Wire::WRITE | Wire::CREATE | Wire::EXCLUSIVE;
    let attrs = FileAttrs::with_permissions(0o644);
    let open = actor.expect(Request::Open { path: b"f", flags, attrs }).await;
    (open, actor.expect(Request::Lstat { path: b"f" }).await)
}

#[tokio::test]
async fn a_file_is_created_in_one_round_trip() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let serve = async {
        let (open, look) = takes_make(&mut actor).await;
        // In any order.
        actor.attrs(look, 0o100_644, 0).await;
        actor.handle(open, b"h").await;
        actor.expect_nothing().await;
    };
    let path = path("f");
    let (opened, ()) = tokio::join!(host.open(&path, MAKE), serve);
    assert_eq!(opened.unwrap().attr.perm, 0o644);
}

#[tokio::test]
async fn implausible_attributes_of_a_new_file_are_queried_by_handle() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    // Another file has taken the name, or the server replies out of order.
    for reported in [Some((0o100_644, 5)), Some((0o100_666, 0)), Some((0o120_777, 0)), None] {
        let serve = async {
            let (open, look) = takes_make(&mut actor).await;
            actor.handle(open, b"h").await;
            match reported {
                Some((mode, size)) => actor.attrs(look, mode, size).await,
                None => actor.fail(look, StatusCode::NO_SUCH_FILE).await,
            }
            let look = actor.expect(Request::Fstat { handle: b"h" }).await;
            actor.attrs(look, 0o100_644, 7).await;
        };
        let path = path("f");
        let (opened, ()) = tokio::join!(host.open(&path, MAKE), serve);
        let opened = opened.unwrap();
        assert_eq!(opened.attr.size, 7, "{reported:?}");
        host.close(opened.fh);
        actor.expect(Request::Close { handle: b"h" }).await;
    }
}

#[tokio::test]
async fn a_cancelled_create_leaves_no_handle() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    for answered in ["none", "look", "open"] {
        let host = host.clone();
        let call = tokio::spawn(async move { host.open(&path("f"), MAKE).await });
        let requests = takes_make(&mut actor).await;
        gives_up(call, &mut actor, requests, answered).await;
    }
}

#[tokio::test]
async fn the_rest_of_a_short_read_is_requested_again() {
    let config = Config { max_read: Some(10), ..Config::default() };
    let (host, mut actor) = staged(&[], config).await;
    let fh = open(&host, &mut actor, 25).await;
    let serve = async {
        let mut ids = Vec::new();
        for (offset, len) in [(0, 10), (10, 10), (20, 5)] {
            ids.push(actor.expect(Request::Read { handle: b"h", offset, len }).await);
        }
        let data = |bytes: &'static [u8]| Reply::Data(Bytes::from_static(bytes));
        actor.send(ids[2], data(b"uvwxy")).await;
        actor.send(ids[0], data(b"abc")).await;
        actor.send(ids[1], data(b"klmnopqrst")).await;
        let id = actor.expect(Request::Read { handle: b"h", offset: 3, len: 7 }).await;
        actor.send(id, data(b"defghi")).await;
        let id = actor.expect(Request::Read { handle: b"h", offset: 9, len: 1 }).await;
        actor.send(id, data(b"j")).await;
    };
    let (read, ()) = tokio::join!(host.read(fh, 0, 25), serve);
    assert_eq!(read.unwrap().to_vec(), b"abcdefghijklmnopqrstuvwxy");
    // EOF in the middle is the end of the file.
    let serve = async {
        for answer in [Some(&b"abcdefghij"[..]), None, Some(b"later")] {
            let id = actor.receive(|id, _| id).await;
            match answer {
                Some(bytes) => actor.send(id, Reply::Data(Bytes::from_static(bytes))).await,
                None => actor.fail(id, StatusCode::EOF).await,
            }
        }
    };
    let (read, ()) = tokio::join!(host.read(fh, 0, 25), serve);
    assert_eq!(read.unwrap(), Data::from(Bytes::from_static(b"abcdefghij")));
    // An error is returned as an error, never as a short read.
    let serve = async {
        for answer in [Some(&b"abcdefghij"[..]), None, Some(b"later")] {
            let id = actor.receive(|id, _| id).await;
            match answer {
                Some(bytes) => actor.send(id, Reply::Data(Bytes::from_static(bytes))).await,
                None => actor.fail(id, StatusCode::FAILURE).await,
            }
        }
    };
    let (read, ()) = tokio::join!(host.read(fh, 0, 25), serve);
    assert_eq!(read, Err(Errno::EIO));
}

#[tokio::test]
async fn chunks_of_a_write_are_sent_in_order_and_all_are_awaited() {
    let config = Config { max_write: Some(4), ..Config::default() };
    let (host, mut actor) = staged(&[], config).await;
    let fh = open(&host, &mut actor, 0).await;
    let serve = async {
        let mut ids = Vec::new();
        for (offset, data) in [(100, &b"abcd"[..]), (104, b"efgh"), (108, b"ij")] {
            ids.push(actor.expect(Request::Write { handle: b"h", offset, data }).await);
        }
        actor.fail(ids[2], StatusCode::OK).await;
        actor.fail(ids[1], StatusCode::PERMISSION_DENIED).await;
        actor.fail(ids[0], StatusCode::OK).await;
    };
    let (written, ()) = tokio::join!(host.write(fh, 100, Bytes::from_static(b"abcdefghij")), serve);
    assert_eq!(written, Err(Errno::EACCES));
}

/// Creates `f` and writes to it; the write is sent and not answered.
macro_rules! written {
    ($host:expr, $actor:expr, $fh:ident, $write:ident, $written:ident) => {
        let serve = async {
            let (open, look) = takes_make(&mut $actor).await;
            $actor.handle(open, b"h").await;
            $actor.attrs(look, 0o100_644, 0).await;
        };
        let name = path("f");
        let (opened, ()) = tokio::join!($host.open(&name, MAKE), serve);
        let $fh = opened.unwrap().fh;
        let writer = $host.clone();
        let data = Bytes::from_static(b"data");
        let $write = tokio::spawn(async move { writer.write($fh, 0, data).await });
        let write = Request::Write { handle: b"h", offset: 0, data: b"data" };
        let $written = $actor.expect(write).await;
    };
}

#[tokio::test]
async fn close_is_sent_behind_the_last_write_and_its_status_is_returned() {
    for (answer, reported) in [
        (StatusCode::OK, Ok(())),
        (StatusCode::FAILURE, Err(Errno::EIO)),
        (StatusCode::PERMISSION_DENIED, Err(Errno::EACCES)),
    ] {
        let (host, mut actor) = staged(&[], Config::default()).await;
        written!(host, actor, fh, write, written);
        let serve = async {
            // Though the write is not answered yet.
            let closed = actor.expect(Request::Close { handle: b"h" }).await;
            actor.fail(written, StatusCode::OK).await;
            actor.fail(closed, answer).await;
        };
        let (finished, ()) = tokio::join!(host.finish(fh), serve);
        assert_eq!((finished, write.await.unwrap()), (reported, Ok(())), "{answer:?}");
        assert_eq!(host.finish(fh).await, Err(Errno::EBADF));
    }
}

#[tokio::test]
async fn a_close_that_failed_on_a_full_disk_is_enospc() {
    let (host, mut actor) = staged(&[Extension::Statvfs], Config::default()).await;
    written!(host, actor, fh, write, written);
    let serve = async {
        let closed = actor.expect(Request::Close { handle: b"h" }).await;
        actor.fail(written, StatusCode::OK).await;
        actor.fail(closed, StatusCode::FAILURE).await;
        let figures = actor.receive(|id, request| {
            assert!(matches!(request, Request::Statvfs { .. }), "{request:?}");
            id
        });
        let figures = figures.await;
        // A block size, a fragment size, 100 blocks, and none of them free.
        let full = [4096, 4096, 100, 0, 0, 0, 0, 0, 0, 0, 255u64];
        let full: Vec<u8> = full.iter().flat_map(|figure| figure.to_be_bytes()).collect();
        actor.send(figures, Reply::Extended(full.into())).await;
    };
    let (finished, ()) = tokio::join!(host.finish(fh), serve);
    assert_eq!((finished, write.await.unwrap()), (Err(Errno::ENOSPC), Ok(())));
}

#[tokio::test]
async fn a_cancelled_finish_closes_the_handle_once() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    written!(host, actor, fh, write, written);
    let finisher = host.clone();
    let finish = tokio::spawn(async move { finisher.finish(fh).await });
    let closed = actor.expect(Request::Close { handle: b"h" }).await;
    finish.abort();
    assert!(finish.await.unwrap_err().is_cancelled());
    actor.fail(written, StatusCode::OK).await;
    actor.fail(closed, StatusCode::FAILURE).await;
    assert_eq!(write.await.unwrap(), Ok(()));
    actor.expect_nothing().await;
}

#[tokio::test]
async fn a_size_that_no_file_has_is_an_error() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let serve = async {
        let id = actor.expect(Request::Lstat { path: b"f" }).await;
        actor.attrs(id, 0o100_644, 1 << 63).await;
    };
    let path = path("f");
    let (attr, ()) = tokio::join!(host.lstat(&path), serve);
    assert_eq!(attr, Err(Errno::EIO));
}

#[tokio::test]
async fn an_invalid_link_target_is_an_error() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    for target in [vec![b'x'; 4096], b"a\0b".to_vec()] {
        let serve = async {
            let id = actor.expect(Request::Readlink { path: b"l" }).await;
            let attrs = FileAttrs::default();
            let entry = sftp::NameEntry { name: target.into(), longname: Bytes::new(), attrs };
            actor.send(id, Reply::Names(vec![entry])).await;
        };
        let path = path("l");
        let (target, ()) = tokio::join!(host.readlink(&path), serve);
        assert_eq!(target, Err(Errno::EIO));
    }
}

#[tokio::test]
async fn a_protocol_error_ends_the_session_and_only_that() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let serve = async {
        let id = actor.expect(Request::Lstat { path: b"f" }).await;
        actor.send(id + 1, Reply::Data(Bytes::from_static(b"what?"))).await;
    };
    let path = path("f");
    let (attr, ()) = tokio::join!(host.lstat(&path), serve);
    assert_eq!(attr, Err(Errno::EIO));
}

#[tokio::test]
async fn a_plain_rename_checks_the_target_first() {
    let (host, mut actor) = staged(&[Extension::PosixRename], Config::default()).await;
    let (from, to) = (path("a"), path("b"));
    let serve = async {
        let source = actor.expect(Request::Lstat { path: b"a" }).await;
        let target = actor.expect(Request::Lstat { path: b"b" }).await;
        actor.attrs(source, 0o040_755, 0).await;
        // A dangling link, which the server's own check would not detect.
        actor.attrs(target, 0o120_777, 0).await;
    };
    let (renamed, ()) = tokio::join!(host.rename(&from, &to, RenameMode::NoReplace), serve);
    assert_eq!(renamed, Err(Errno::EEXIST));
    actor.expect_nothing().await;
}

const WRITE: OpenFlags = OpenFlags { access: Access::ReadWrite, ..READ };

#[tokio::test]
async fn a_write_does_not_wait_for_the_answer_to_an_earlier_fstat_or_fsync() {
    let (host, mut actor) = staged(&[Extension::Fsync], Config::default()).await;
    let fh = open_as(&host, &mut actor, ("f", b"h"), WRITE, 0).await;
    for synced in [false, true] {
        let first = async {
            match synced {
                true => host.fsync(fh).await,
                false => host.fstat(fh).await.map(|attr| assert_eq!(attr.size, 5)),
            }
        };
        let serve = async {
            let first = match synced {
                true => actor.expect(Request::Fsync { handle: b"h" }).await,
                false => actor.expect(Request::Fstat { handle: b"h" }).await,
            };
            let write = Request::Write { handle: b"h", offset: 5, data: b"later" };
            let write = actor.expect(write).await;
            match synced {
                true => actor.fail(first, StatusCode::OK).await,
                false => actor.attrs(first, 0o100_644, 5).await,
            }
            actor.fail(write, StatusCode::OK).await;
        };
        let later = host.write(fh, 5, Bytes::from_static(b"later"));
        let (first, later, ()) = tokio::join!(first, later, serve);
        first.unwrap();
        later.unwrap();
    }
}

#[tokio::test]
async fn a_cancelled_rename_around_the_target_is_completed() {
    let config = Config { rename_workaround: true, ..Config::default() };
    let (host, mut actor) = staged(&[], config).await;
    let call = tokio::spawn({
        let host = host.clone();
        async move { host.rename(&path("a"), &path("b"), RenameMode::Replace).await }
    });
    let id = actor.expect(Request::Rename { from: b"a", to: b"b" }).await;
    actor.fail(id, StatusCode::FAILURE).await;
    for name in [b"a", b"b"] {
        let id = actor.expect(Request::Lstat { path: name }).await;
        actor.attrs(id, 0o100_644, 1).await;
    }
    let (id, aside) = actor
        .receive(|id, request| match request {
            Request::Rename { from: b"b", to } => (id, to.to_vec()),
            other => panic!("{other:?}"),
        })
        .await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    actor.fail(id, StatusCode::OK).await;
    let id = actor.expect(Request::Rename { from: b"a", to: b"b" }).await;
    actor.fail(id, StatusCode::OK).await;
    let id = actor.expect(Request::Remove { path: &aside }).await;
    actor.fail(id, StatusCode::OK).await;
}

#[tokio::test]
async fn cancelling_the_boot_id_query_leaves_no_handle() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let call = tokio::spawn({
        let host = host.clone();
        async move { host.write_verifier().await }
    });
    let open = actor.receive(|id, request| (id, matches!(request, Request::Open { .. }))).await;
    assert!(open.1);
    actor.handle(open.0, b"boot").await;
    let read = actor.receive(|id, request| (id, matches!(request, Request::Read { .. }))).await;
    assert!(read.1);
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    actor.expect(Request::Close { handle: b"boot" }).await;
}

/// A server that cannot open another file at the moment is not taken for one without a boot id.
#[tokio::test]
async fn a_failed_read_of_the_boot_id_is_repeated() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let serve = async {
        for is_there in [true, false] {
            let open = actor.receive(|id, _| id).await;
            actor.fail(open, StatusCode::FAILURE).await;
            let look = actor.receive(|id, request| {
                assert!(matches!(request, Request::Lstat { .. }), "{request:?}");
                id
            });
            match (look.await, is_there) {
                (look, true) => actor.attrs(look, 0o100_444, 0).await,
                (look, false) => actor.fail(look, StatusCode::FAILURE).await,
            }
        }
    };
    let calls = async {
        assert_eq!(host.write_verifier().await, Err(Errno::EIO));
        assert_eq!(host.write_verifier().await, Ok(None));
        // It is remembered that the server has none.
        assert_eq!(host.write_verifier().await, Ok(None));
    };
    tokio::join!(calls, serve);
    actor.expect_nothing().await;
}

/// Part of what was in flight may have been copied, which the layer above has to know.
#[tokio::test]
async fn a_copy_whose_second_part_is_lost_is_a_loss() {
    let (host, mut actor) = staged(&[Extension::CopyData], Config::default()).await;
    let from = open(&host, &mut actor, 20 << 20).await;
    let to = open_as(&host, &mut actor, ("g", b"t"), WRITE, 0).await;
    let serve = async {
        for (handle, size) in [(&b"h"[..], 20 << 20), (b"t", 0)] {
            let look = actor.expect(Request::Fstat { handle }).await;
            actor.attrs(look, 0o100_644, size).await;
        }
        let first = actor.receive(|id, _| id).await;
        actor.fail(first, StatusCode::OK).await;
        actor.receive(|_, request| assert!(matches!(request, Request::CopyData { .. }))).await;
        drop(actor);
    };
    let (copied, ()) = tokio::join!(host.copy((from, 0), (to, 0), 20 << 20), serve);
    assert_eq!(copied, Err(Errno::EHOSTDOWN));
}

/// The reply to a request to the helper depends on a file system of the server.
#[tokio::test]
async fn a_request_that_hangs_at_the_helper_does_not_end_the_session() {
    let stall_limit = Duration::from_secs(4);
    let config = || Config { stall_limit, ..Config::default() };
    let root = Request::Stat { path: b"." };
    let (host, mut actor) = staged_helper(config()).await;
    let at = path("f");
    let serve = async {
        let hung = actor.expect(Request::Lstat { path: b"f" }).await;
        for _ in 0..3 {
            let probe = actor.expect(root.clone()).await;
            actor.attrs(probe, 0o040_755, 0).await;
        }
        actor.attrs(hung, 0o100_644, 7).await;
    };
    let (attr, ()) = tokio::join!(host.lstat(&at), serve);
    assert_eq!(attr.unwrap().size, 7);
    // The root hangs, too, or the connection.
    let serve = async {
        actor.expect(Request::Lstat { path: b"f" }).await;
        actor.expect(root.clone()).await;
    };
    let (attr, ()) = tokio::join!(host.lstat(&at), serve);
    assert_eq!(attr.unwrap_err(), Errno::ETIMEDOUT);
    // Another server would not answer.
    let (host, mut actor) = staged(&[], config()).await;
    let serve = async {
        actor.expect(Request::Lstat { path: b"f" }).await;
        tokio::time::sleep(stall_limit - Duration::from_secs(1)).await;
        actor.expect_nothing().await;
    };
    let (attr, ()) = tokio::join!(host.lstat(&at), serve);
    assert_eq!(attr.unwrap_err(), Errno::ETIMEDOUT);
}

/// The probe is sent although no more requests may be in flight.
#[tokio::test]
async fn requests_that_hang_at_the_helper_do_not_end_the_session_however_many_they_are() {
    let config = Config { stall_limit: Duration::from_secs(1), ..Config::default() };
    let (host, mut actor) = staged_helper(config).await;
    let at = path("f");
    let most = sftp::Options::default().max_in_flight;
    let mut calls: Vec<_> = (0..=most).map(|_| host.lstat(&at)).collect();
    let calls = std::future::poll_fn(|context| {
        calls.retain_mut(|call| match call.as_mut().poll(context) {
            Poll::Ready(attr) => {
                assert_eq!(attr.unwrap().size, 7);
                false
            }
            Poll::Pending => true,
        });
        if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    });
    let serve = async {
        let mut hung = Vec::new();
        for _ in 0..most {
            hung.push(actor.expect(Request::Lstat { path: b"f" }).await);
        }
        let probe = actor.expect(Request::Stat { path: b"." }).await;
        actor.attrs(probe, 0o040_755, 0).await;
        for id in hung {
            actor.attrs(id, 0o100_644, 7).await;
        }
        let last = actor.expect(Request::Lstat { path: b"f" }).await;
        actor.attrs(last, 0o100_644, 7).await;
    };
    tokio::join!(calls, serve);
}

/// L1: the layer above checks what the lost mkdir has done. Otherwise the directory would keep the
/// bits of the server's umask.
#[tokio::test]
async fn a_mkdir_that_is_lost_before_its_permission_bits_are_set_is_a_loss() {
    for received in 0..4 {
        let (host, mut actor) = staged(&[Extension::Getxattr], Config::default()).await;
        let at = path("d");
        let serve = async {
            let made = actor.receive(|id, _| id).await;
            let look = actor.expect(Request::Lstat { path: b"d" }).await;
            actor.fail(made, StatusCode::OK).await;
            if received > 0 {
                actor.attrs(look, 0o040_700, 0).await;
                let list = actor.receive(|id, _| id).await;
                if received > 1 {
                    let (code, message) = (StatusCode::FAILURE, String::new());
                    let errno = Some(Errno::ENODATA.raw());
                    actor.send(list, Reply::Status { code, message, errno }).await;
                    let set = actor.receive(|id, _| id).await;
                    if received > 2 {
                        actor.fail(set, StatusCode::PERMISSION_DENIED).await;
                        return Some(actor);
                    }
                }
            }
            drop(actor);
            None
        };
        let (made, _actor) = tokio::join!(host.mkdir(&at, 0o755), serve);
        let expected = if received == 3 { Ok(()) } else { Err(Errno::EHOSTDOWN) };
        assert_eq!(made, expected, "{received}");
    }
}

/// Another user of the server may put a link in the place of an entry at any time.
#[tokio::test]
async fn neither_a_change_nor_a_new_directory_follows_a_link() {
    let (host, mut actor) = staged(&[Extension::Lsetstat], Config::default()).await;
    let (file, dir) = (path("f"), path("d"));
    let group = AttrChange { gid: Some(5), ..AttrChange::default() };
    let owners = |gid| FileAttrs { owner: Some(Owner { uid: 1, gid }), ..FileAttrs::default() };
    let serve = async {
        let look = actor.expect(Request::Lstat { path: b"f" }).await;
        let attrs = FileAttrs { permissions: Some(0o100_644), size: Some(0), ..owners(1) };
        actor.send(look, Reply::Attrs(attrs)).await;
        let set = actor.expect(Request::Lsetstat { path: b"f", attrs: owners(5) }).await;
        actor.fail(set, StatusCode::OK).await;

        let made = actor.receive(|id, _| id).await;
        let look = actor.expect(Request::Lstat { path: b"d" }).await;
        actor.fail(made, StatusCode::OK).await;
        actor.attrs(look, 0o040_700, 0).await;
        let attrs = FileAttrs::with_permissions(0o755);
        let set = actor.expect(Request::Lsetstat { path: b"d", attrs }).await;
        actor.fail(set, StatusCode::FAILURE).await;
        // A server that cannot set a mode without following links.
        let look = actor.expect(Request::Lstat { path: b"d" }).await;
        actor.attrs(look, 0o120_777, 0).await;
    };
    let calls = async {
        assert_eq!(host.setattr(&file, group).await, Ok(()));
        assert_eq!(host.mkdir(&dir, 0o755).await, Ok(()));
    };
    tokio::join!(calls, serve);
    actor.expect_nothing().await;
}

/// An access list that cannot be queried may deny the bits that are missing.
#[tokio::test]
async fn no_permission_bits_are_added_below_an_unknown_default_access_list() {
    let (host, mut actor) = staged(&[Extension::Getxattr], Config::default()).await;
    let at = path("d");
    let serve = async {
        let made = actor.receive(|id, _| id).await;
        let look = actor.expect(Request::Lstat { path: b"d" }).await;
        actor.fail(made, StatusCode::OK).await;
        actor.attrs(look, 0o040_700, 0).await;
        let list = actor.receive(|id, _| id).await;
        actor.fail(list, StatusCode::PERMISSION_DENIED).await;
    };
    let (made, ()) = tokio::join!(host.mkdir(&at, 0o755), serve);
    assert_eq!(made, Ok(()));
    actor.expect_nothing().await;
}

/// The server may set a lock when this machine is gone.
#[tokio::test]
async fn a_lease_is_promised_before_the_first_lock() {
    let (host, mut actor) = staged(&[Extension::Lock], Config::default()).await;
    let fh = open(&host, &mut actor, 0).await;
    let range = LockRange::WHOLE;
    let owner = |number| LockOwner { family: LockFamily::Flock, number };
    let set = |number, kind| LockRequest::Set { owner: owner(number), range, kind, wait_ms: 0 };
    let of_file = |lock| Request::Lock { handle: b"h", lock };
    let lease = || Request::Lock { handle: b"", lock: LockRequest::Lease { seconds: 45 } };
    let read = Some(LockKind::Read);
    let serve = async {
        let promised = actor.expect(lease()).await;
        let locked = actor.expect(of_file(set(1, read))).await;
        actor.fail(promised, StatusCode::OK).await;
        actor.fail(locked, StatusCode::OK).await;
        // It is renewed from then on.
        let renewed = actor.expect(lease()).await;
        actor.fail(renewed, StatusCode::OK).await;
    };
    let (locked, ()) =
        tokio::join!(host.lock(fh, Lock::new(owner(1), range, LockKind::Read), false), serve);
    assert_eq!(locked, Ok(()));
    let serve = async {
        let locked = actor.expect(of_file(set(2, read))).await;
        actor.fail(locked, StatusCode::OK).await;
    };
    let (locked, ()) =
        tokio::join!(host.lock(fh, Lock::new(owner(2), range, LockKind::Read), false), serve);
    assert_eq!(locked, Ok(()));
}

/// In a chroot, root owns the start directory of any login.
#[tokio::test]
async fn a_login_in_a_directory_of_root_is_not_taken_for_root() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let owned = |uid| FileAttrs {
        permissions: Some(0o040_755),
        owner: Some(sftp::codec::Owner { uid, gid: uid }),
        ..FileAttrs::default()
    };
    let status = b"Name:\tsftp-server\nUid:\t1000\t1000\t1000\t1000\nGid:\t7\t7\t7\t7\n";
    for (home, status, ids) in [
        (1000, None, Ok((1000, 1000))),
        (0, Some(&status[..]), Ok((1000, 7))),
        (0, None, Err(Errno::EOPNOTSUPP)),
    ] {
        let serve = async {
            let id = actor.expect(Request::Stat { path: b"." }).await;
            actor.send(id, Reply::Attrs(owned(home))).await;
            if home != 0 {
                return;
            }
            let id = actor
                .receive(|id, request| match request {
                    Request::Open { path: b"/proc/self/status", .. } => id,
                    other => panic!("{other:?}"),
                })
                .await;
            let Some(status) = status else {
                return actor.fail(id, StatusCode::NO_SUCH_FILE).await;
            };
            actor.handle(id, b"p").await;
            let id = actor.receive(|id, _| id).await;
            actor.send(id, Reply::Data(Bytes::from_static(status))).await;
            actor.expect(Request::Close { handle: b"p" }).await;
        };
        let asked = tokio::time::timeout(Duration::from_secs(20), host.login_ids());
        let (reported, ()) = tokio::join!(asked, serve);
        assert_eq!(reported.unwrap(), ids, "{home}");
    }
}
