//! Every message, against OpenSSH's sftp-server.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use bytes::Bytes;
use sftp::codec::{Owner, Times};
use sftp::{Error, Extension, FileAttrs, OpenFlags, StatusCode};
use tempfile::tempdir;

use super::peer;

fn code<T: std::fmt::Debug>(result: sftp::Result<T>) -> StatusCode {
    result.unwrap_err().status().expect("no status")
}

#[tokio::test]
async fn the_server_announces_its_extensions() {
    let dir = tempdir().unwrap();
    let real = peer::real(dir.path()).await;
    let server = real.client.server();
    // OpenSSH's, which are all but our own.
    for extension in Extension::ALL.iter().filter(|it| !it.name().ends_with("@sshoal")) {
        assert!(server.extensions.has(*extension), "{extension:?}");
    }
    assert_eq!((server.max_read, server.max_write), (261_120, 261_120));
    assert_eq!(server.max_packet, 262_144);
    assert!(server.max_handles.is_some_and(|most| most > 10));
    assert_eq!(real.client.limits().await.unwrap().read_bytes, 261_120);
}

#[tokio::test]
async fn content() {
    let dir = tempdir().unwrap();
    let real = peer::real(dir.path()).await;
    let client = &real.client;
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
    let handle = client.open(b"f\xff", flags, FileAttrs::with_permissions(0o640)).await.unwrap();
    assert_eq!(code(client.open(b"f\xff", flags, FileAttrs::default()).await), StatusCode::FAILURE);

    let long: Bytes = (0..261_120_u32).map(|n| (n * 7 / 3) as u8).collect();
    client.write(&handle, 0, long.clone()).await.unwrap();
    client.write(&handle, 261_120, Bytes::from_static(b"tail")).await.unwrap();
    assert_eq!(client.read(&handle, 0, 261_120).await.unwrap().unwrap(), long);
    assert_eq!(client.read(&handle, 261_118, 100).await.unwrap().unwrap().len(), 6);
    assert_eq!(client.read(&handle, 261_124, 1).await.unwrap(), None);
    assert_eq!(client.read(&handle, 0, 0).await.unwrap().unwrap(), Bytes::new());
    assert!(matches!(client.read(&handle, 0, 261_121).await, Err(Error::TooMuch(_))));
    let too_long = Bytes::from(vec![0; 261_121]);
    assert!(matches!(client.write(&handle, 0, too_long).await, Err(Error::TooMuch(_))));

    client.fsync(&handle).await.unwrap();
    let attrs = client.fstat(&handle).await.unwrap();
    assert_eq!(attrs.size, Some(261_124));
    client.fsetstat(&handle, FileAttrs { size: Some(3), ..Default::default() }).await.unwrap();
    assert_eq!(client.read(&handle, 0, 9).await.unwrap().unwrap(), long.slice(..3));
    client.close(&handle).await.unwrap();
    assert_eq!(client.fstat(&handle).await, Err(Error::Closed));

    let append = OpenFlags::WRITE | OpenFlags::APPEND;
    let handle = client.open(b"f\xff", append, FileAttrs::default()).await.unwrap();
    client.write(&handle, 0, Bytes::from_static(b"end")).await.unwrap();
    client.close_unattended(&handle);
    // Answered in order, so the request before is complete.
    assert_eq!(client.stat(b"f\xff").await.unwrap().size, Some(6));
    let truncate = OpenFlags::WRITE | OpenFlags::TRUNCATE;
    let handle = client.open(b"f\xff", truncate, FileAttrs::default()).await.unwrap();
    assert_eq!(client.fstat(&handle).await.unwrap().size, Some(0));
}

#[tokio::test]
async fn attributes() {
    let dir = tempdir().unwrap();
    let real = peer::real(dir.path()).await;
    let client = &real.client;
    std::fs::write(dir.path().join("f"), "12345").unwrap();
    symlink("f", dir.path().join("l")).unwrap();

    let attrs = client.lstat(b"l").await.unwrap();
    assert_eq!(attrs.permissions.unwrap() & 0o170_000, 0o120_000);
    let attrs = client.stat(b"l").await.unwrap();
    assert_eq!((attrs.permissions.unwrap() & 0o170_000, attrs.size), (0o100_000, Some(5)));
    let meta = std::fs::metadata(dir.path().join("f")).unwrap();
    assert_eq!(attrs.owner, Some(Owner { uid: meta.uid(), gid: meta.gid() }));

    let times = Some(Times { atime: 11, mtime: 22 });
    client.setstat(b"l", FileAttrs { times, ..Default::default() }).await.unwrap();
    client.setstat(b"l", FileAttrs::with_permissions(0o604)).await.unwrap();
    let meta = std::fs::metadata(dir.path().join("f")).unwrap();
    assert_eq!((meta.atime(), meta.mtime()), (11, 22));
    assert_eq!(meta.permissions().mode() & 0o7777, 0o604);

    let times = Some(Times { atime: 33, mtime: u32::MAX });
    client.lsetstat(b"l", FileAttrs { times, ..Default::default() }).await.unwrap();
    assert_eq!(std::fs::symlink_metadata(dir.path().join("l")).unwrap().mtime(), 0xffff_ffff);
    assert_eq!(std::fs::metadata(dir.path().join("f")).unwrap().mtime(), 22);
    assert_eq!(code(client.lstat(b"none").await), StatusCode::NO_SUCH_FILE);
}

#[tokio::test]
async fn directories() {
    let dir = tempdir().unwrap();
    let real = peer::real(dir.path()).await;
    let client = &real.client;
    client.mkdir(b"d", FileAttrs::with_permissions(0o700)).await.unwrap();
    let mut expected = vec![b".".to_vec(), b"..".to_vec()];
    for number in 0..250 {
        let name = format!("{number}-\u{fc}");
        std::fs::write(dir.path().join("d").join(&name), vec![0; number]).unwrap();
        expected.push(name.into_bytes());
    }
    let handle = client.opendir(b"d").await.unwrap();
    let mut names = Vec::new();
    while let Some(part) = client.readdir(&handle).await.unwrap() {
        for entry in part {
            if let Some(size) = entry.name.split(|byte| *byte == b'-').next()
                && let Ok(size) = String::from_utf8_lossy(size).parse()
            {
                assert_eq!(entry.attrs.size, Some(size));
            }
            names.push(entry.name.to_vec());
        }
    }
    names.sort();
    expected.sort();
    assert_eq!(names, expected);
    client.close(&handle).await.unwrap();

    assert_eq!(code(client.rmdir(b"d").await), StatusCode::FAILURE);
    client.mkdir(b"e", FileAttrs::default()).await.unwrap();
    client.rmdir(b"e").await.unwrap();
    assert_eq!(code(client.opendir(b"e").await), StatusCode::NO_SUCH_FILE);
}

#[tokio::test]
async fn names() {
    let dir = tempdir().unwrap();
    let real = peer::real(dir.path()).await;
    let client = &real.client;
    for name in ["a", "b"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    assert_eq!(code(client.rename(b"a", b"b").await), StatusCode::FAILURE);
    client.rename(b"a", b"c").await.unwrap();
    client.posix_rename(b"c", b"b").await.unwrap();
    assert_eq!(std::fs::read(dir.path().join("b")).unwrap(), b"a");
    client.hardlink(b"b", b"second").await.unwrap();
    assert_eq!(std::fs::metadata(dir.path().join("b")).unwrap().nlink(), 2);
    client.remove(b"second").await.unwrap();
    assert_eq!(code(client.remove(b"second").await), StatusCode::NO_SUCH_FILE);

    client.symlink(b"to/\xff", b"link").await.unwrap();
    assert_eq!(client.readlink(b"link").await.unwrap(), &b"to/\xff"[..]);
    assert_eq!(code(client.readlink(b"b").await), StatusCode::BAD_MESSAGE);

    let here = dir.path().canonicalize().unwrap();
    let here = here.to_str().unwrap();
    assert_eq!(client.realpath(b"").await.unwrap(), here);
    assert_eq!(client.realpath(b"b/..").await.unwrap(), here);
    let home = client.expand_path(b"~root").await.unwrap();
    assert!(home.starts_with(b"/"), "{home:?}");
}

#[tokio::test]
async fn the_rest_of_the_extensions() {
    let dir = tempdir().unwrap();
    let real = peer::real(dir.path()).await;
    let client = &real.client;
    std::fs::write(dir.path().join("f"), "0123456789").unwrap();
    let figures = client.statvfs(b".").await.unwrap();
    assert!(figures.block_size > 0 && figures.blocks > 0 && figures.name_max >= 255);

    let from = client.open(b"f", OpenFlags::READ, FileAttrs::default()).await.unwrap();
    let flags = OpenFlags::WRITE | OpenFlags::CREATE;
    let to = client.open(b"g", flags, FileAttrs::with_permissions(0o600)).await.unwrap();
    assert_eq!(client.fstatvfs(&from).await.unwrap().fsid, figures.fsid);
    client.copy_data(&from, 2, 5, &to, 1).await.unwrap();
    assert_eq!(std::fs::read(dir.path().join("g")).unwrap(), b"\x0023456");
}

#[tokio::test]
async fn a_request_too_long_for_the_server_does_not_end_the_session() {
    let dir = tempdir().unwrap();
    let real = peer::real(dir.path()).await;
    let path = vec![b'x'; 300_000];
    assert!(matches!(real.client.lstat(&path).await, Err(Error::TooMuch(_))));
    real.client.lstat(b".").await.unwrap();
}

#[tokio::test]
async fn a_killed_server_fails_calls_in_flight_and_later_ones() {
    let dir = tempdir().unwrap();
    let mut real = peer::real(dir.path()).await;
    let closed = real.client.closed();
    let pid = real.server.id().unwrap().to_string();
    let stop = |signal: &str| {
        let done = std::process::Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(done.success());
    };
    stop("-STOP");
    let mut call = real.client.lstat(b".");
    std::future::poll_fn(|context| call.poll_send(context)).await;
    assert_eq!(real.client.activity().in_flight, 1);
    stop("-KILL");
    assert!(matches!(call.await, Err(Error::Disconnected(_))));
    assert!(matches!(closed.await, Error::Disconnected(_)));
    assert!(matches!(real.client.stat(b".").await, Err(Error::Disconnected(_))));
    assert!(real.client.end().is_some());
    real.server.wait().await.unwrap();
}

#[tokio::test]
async fn the_server_ends_when_the_client_is_dropped() {
    let dir = tempdir().unwrap();
    let mut real = peer::real(dir.path()).await;
    drop(real.client);
    assert!(real.server.wait().await.unwrap().success());
}
