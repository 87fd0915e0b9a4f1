//! Listing directories.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;

use base::{Dh, Errno, Remote};
use bytes::Bytes;
use host::Config;
use sftp::codec::{NameEntry, Reply, Request};
use sftp::{FileAttrs, StatusCode};

use super::peer::{Real, Servers, path, staged};

async fn names(host: &impl Remote, dh: Dh) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    while let Some(entries) = host.readdir(dh).await.unwrap() {
        assert!(!entries.is_empty());
        names.extend(entries.into_iter().map(|entry| entry.name.as_bytes().to_vec()));
    }
    names
}

#[tokio::test]
async fn thousands_of_names_are_listed_once_each() {
    for sync_readdir in [false, true] {
        let real = Real::with(Config { sync_readdir, ..Config::default() }).await;
        let mut expected = HashSet::new();
        for number in 0..3000 {
            let name = format!("name\n{number}");
            real.write_local(&name, "");
            expected.insert(name.into_bytes());
        }
        let dh = real.host.opendir(&path("")).await.unwrap();
        let listed = names(&*real.host, dh).await;
        assert_eq!(listed.len(), 3000);
        assert_eq!(listed.into_iter().collect::<HashSet<_>>(), expected);
        assert_eq!(real.host.readdir(dh).await, Ok(None), "the end stays the end");
        real.host.closedir(dh);
        assert_eq!(real.host.readdir(dh).await, Err(Errno::EBADF));
    }
}

#[tokio::test]
async fn an_empty_directory_and_a_non_directory() {
    let real = Real::new().await;
    std::fs::create_dir(real.local("d")).unwrap();
    real.write_local("f", "");
    std::os::unix::fs::symlink("f", real.local("l")).unwrap();
    let dh = real.host.opendir(&path("d")).await.unwrap();
    assert_eq!(real.host.readdir(dh).await, Ok(None));
    for (name, errno) in [
        ("f", Errno::ENOTDIR),
        ("l", Errno::ENOTDIR),
        ("none", Errno::ENOENT),
        ("f/x", Errno::ENOTDIR),
    ] {
        assert_eq!(real.host.opendir(&path(name)).await, Err(errno), "{name}");
    }
}

#[tokio::test]
async fn cancellation_loses_no_name() {
    let real = Real::new().await;
    for number in 0..2000 {
        real.write_local(&format!("{number}"), "");
    }
    let dh = real.host.opendir(&path("")).await.unwrap();
    let mut listed = Vec::new();
    let mut given_up = 0;
    loop {
        // One poll, or a few.
        let call = real.host.readdir(dh);
        let patience = std::time::Duration::from_micros(given_up % 50);
        match tokio::time::timeout(patience, call).await {
            Err(_) => given_up += 1,
            Ok(entries) => match entries.unwrap() {
                Some(entries) => listed.extend(entries.into_iter().map(|entry| entry.name)),
                None => break,
            },
        }
    }
    assert_eq!(listed.len(), 2000);
    assert_eq!(listed.into_iter().collect::<HashSet<_>>().len(), 2000);
}

#[tokio::test]
async fn two_readers_share_one_listing() {
    let real = Real::new().await;
    for number in 0..1000 {
        real.write_local(&format!("{number}"), "");
    }
    let dh = real.host.opendir(&path("")).await.unwrap();
    let (one, other) = tokio::join!(names(&*real.host, dh), names(&*real.host, dh));
    let all: HashSet<_> = one.iter().chain(&other).collect();
    assert_eq!((one.len() + other.len(), all.len()), (1000, 1000));
}

fn entries(names: &[&'static [u8]]) -> Reply {
    let entry = |name: &&'static [u8]| NameEntry {
        name: Bytes::from_static(name),
        longname: Bytes::new(),
        attrs: FileAttrs::default(),
    };
    Reply::Names(names.iter().map(entry).collect())
}

#[tokio::test]
async fn invalid_names_are_left_out() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let server = async {
        let id = actor.expect(Request::Opendir { path: b"d" }).await;
        actor.handle(id, b"h").await;
        // The last one is longer than the kernel can show.
        let bad: &[&[u8]] =
            &[b"", b".", b"..", b"a/b", b"/", b"../x", b"nul\0", b"good", b"\xff", &[b'n'; 1025]];
        for reply in [
            entries(bad),
            // A batch without a valid name is not the end.
            entries(&[b"..", b"x/"]),
            entries(&[b"last"]),
        ] {
            let id = actor.expect(Request::Readdir { handle: b"h" }).await;
            actor.send(id, reply).await;
        }
        loop {
            let id = actor.expect(Request::Readdir { handle: b"h" }).await;
            actor.fail(id, StatusCode::EOF).await;
        }
    };
    let client = async {
        let dh = host.opendir(&path("d")).await.unwrap();
        let first = host.readdir(dh).await.unwrap().unwrap();
        assert_eq!(first[0].attr, None, "the listing had no attributes");
        let mut names: Vec<_> = first.iter().map(|entry| entry.name.as_bytes().to_vec()).collect();
        names.extend(self::names(&*host, dh).await);
        names
    };
    let names = tokio::select! {
        names = client => names,
        () = server => unreachable!(),
    };
    assert_eq!(names, [&b"good"[..], b"\xff", b"last"]);
}

#[tokio::test]
async fn a_server_with_only_invalid_names_is_an_error() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let server = async {
        let id = actor.expect(Request::Opendir { path: b"d" }).await;
        actor.handle(id, b"h").await;
        loop {
            let id = actor.expect(Request::Readdir { handle: b"h" }).await;
            actor.send(id, entries(&[b"..", b"a/b"])).await;
        }
    };
    let client = async {
        let dh = host.opendir(&path("d")).await.unwrap();
        host.readdir(dh).await
    };
    tokio::select! {
        listed = client => assert_eq!(listed, Err(Errno::EIO)),
        () = server => unreachable!(),
    }
}

#[tokio::test]
async fn a_cancelled_wait_for_room_blocks_no_other() {
    // As many requests as a session allows in flight, with and without an outstanding READDIR.
    no_room_for_a_listing(512, true).await;
    no_room_for_a_listing(511, false).await;
}

async fn no_room_for_a_listing(busy: usize, second_is_answered: bool) {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let root = path("d");
    let opening = async {
        let id = actor.expect(Request::Opendir { path: b"d" }).await;
        actor.handle(id, b"h").await;
        let first = actor.expect(Request::Readdir { handle: b"h" }).await;
        let second = actor.expect(Request::Readdir { handle: b"h" }).await;
        actor.send(first, entries(&[b"a"])).await;
        if second_is_answered {
            actor.send(second, entries(&[b"b"])).await;
        }
    };
    let (dh, ()) = tokio::join!(host.opendir(&root), opening);
    let dh = dh.unwrap();
    for _ in 0..1 + usize::from(second_is_answered) {
        host.readdir(dh).await.unwrap().unwrap();
    }
    let busy: Vec<_> = (0..busy)
        .map(|_| {
            let host = host.clone();
            tokio::spawn(async move { host.lstat(&path("busy")).await })
        })
        .collect();
    let mut ids = Vec::new();
    for _ in 0..busy.len() {
        ids.push(actor.expect(Request::Lstat { path: b"busy" }).await);
    }
    // No room for more requests.
    let patience = std::time::Duration::from_millis(20);
    assert!(tokio::time::timeout(patience, host.readdir(dh)).await.is_err());
    let other = tokio::spawn({
        let host = host.clone();
        async move { host.lstat(&path("other")).await }
    });
    for id in ids {
        actor.attrs(id, 0o100_644, 0).await;
    }
    let id = actor.expect(Request::Lstat { path: b"other" }).await;
    actor.attrs(id, 0o100_644, 5).await;
    assert_eq!(other.await.unwrap().unwrap().size, 5);
    for call in busy {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn batches_are_prefetched_and_no_more_than_needed() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    let opening = async {
        let id = actor.expect(Request::Opendir { path: b"d" }).await;
        actor.handle(id, b"h").await;
        // Before the first call of readdir.
        let ids = [
            actor.expect(Request::Readdir { handle: b"h" }).await,
            actor.expect(Request::Readdir { handle: b"h" }).await,
        ];
        actor.expect_nothing().await;
        actor.send(ids[0], entries(&[b"a"])).await;
        actor.fail(ids[1], StatusCode::EOF).await;
    };
    let path = path("d");
    let (dh, ()) = tokio::join!(host.opendir(&path), opening);
    let dh = dh.unwrap();
    // Both replies were received: a small directory needs no further request.
    actor.expect_nothing().await;
    assert_eq!(names(&*host, dh).await, [b"a"]);
    host.closedir(dh);
    actor.expect(Request::Close { handle: b"h" }).await;
}

/// OpenSSH's server omits entries for which its lstat fails.
#[tokio::test]
async fn an_unsearchable_directory_is_not_listed_as_empty() {
    let dir = tempfile::tempdir().unwrap();
    let set = |name: &str, mode| {
        std::fs::set_permissions(dir.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    for name in ["full", "empty"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("full/f"), "x").unwrap();
    set("", 0o755);
    set("full", 0o444);
    let servers = match rustix::process::getuid().is_root() {
        true => Servers::in_namespace(
            dir.path(),
            "exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"",
        ),
        false => Servers::new(dir.path(), &[]),
    };
    let real = Real::over(dir, servers, Config::default()).await;
    let dh = real.host.opendir(&path("full")).await.unwrap();
    for _ in 0..2 {
        assert_eq!(real.host.readdir(dh).await, Err(Errno::EACCES));
    }
    let dh = real.host.opendir(&path("empty")).await.unwrap();
    assert_eq!(real.host.readdir(dh).await, Ok(None));
    std::fs::set_permissions(real.local("full"), PermissionsExt::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn an_empty_directory_with_a_dot_entry_costs_no_extra_request() {
    let (host, mut actor) = staged(&[], Config::default()).await;
    for (listed, refused) in [(&[&b"."[..], b".."][..], false), (&[], false), (&[], true)] {
        let server = async {
            let id = actor.expect(Request::Opendir { path: b"d" }).await;
            actor.handle(id, b"h").await;
            let first = actor.expect(Request::Readdir { handle: b"h" }).await;
            let second = actor.expect(Request::Readdir { handle: b"h" }).await;
            match listed {
                [] => actor.fail(first, StatusCode::EOF).await,
                listed => actor.send(first, entries(listed)).await,
            }
            actor.fail(second, StatusCode::EOF).await;
            if listed.is_empty() {
                let look = actor.expect(Request::Lstat { path: b"d/." }).await;
                match refused {
                    true => actor.fail(look, StatusCode::PERMISSION_DENIED).await,
                    false => actor.attrs(look, 0o040_755, 0).await,
                }
            }
            actor.expect(Request::Close { handle: b"h" }).await;
        };
        let client = async {
            let dh = host.opendir(&path("d")).await.unwrap();
            let listed = host.readdir(dh).await;
            host.closedir(dh);
            listed
        };
        let (listed, ()) = tokio::join!(client, server);
        assert_eq!(listed, if refused { Err(Errno::EACCES) } else { Ok(None) });
    }
}

fn entries_with(names: &[(&'static [u8], u32)]) -> Reply {
    let entry = |(name, mode): &(&'static [u8], u32)| NameEntry {
        name: Bytes::from_static(name),
        longname: Bytes::new(),
        attrs: FileAttrs { size: Some(0), permissions: Some(*mode), ..FileAttrs::default() },
    };
    Reply::Names(names.iter().map(entry).collect())
}

/// A loss is an error, and shows neither links that lead to something as links nor a directory
/// that may not be searched as empty.
#[tokio::test]
async fn a_loss_behind_the_last_entry_is_an_error() {
    for has_link in [true, false] {
        let config = Config { follow_symlinks: true, ..Config::default() };
        let (host, mut actor) = staged(&[], config).await;
        let server = async {
            let id = actor.expect(Request::Opendir { path: b"d" }).await;
            actor.handle(id, b"h").await;
            let first = actor.expect(Request::Readdir { handle: b"h" }).await;
            let second = actor.expect(Request::Readdir { handle: b"h" }).await;
            match has_link {
                true => {
                    let listed = [(&b"f"[..], 0o100_644), (b"l", 0o120_777)];
                    actor.send(first, entries_with(&listed)).await;
                }
                false => actor.fail(first, StatusCode::EOF).await,
            }
            actor.fail(second, StatusCode::EOF).await;
            loop {
                let is_last = actor.receive(|_, request| match request {
                    Request::Stat { path } => path == b"d/l",
                    Request::Lstat { path } => path == b"d/.",
                    _ => false,
                });
                if is_last.await {
                    break;
                }
            }
            drop(actor);
        };
        let client = async {
            let dh = host.opendir(&path("d")).await.unwrap();
            host.readdir(dh).await
        };
        let (listed, ()) = tokio::join!(client, server);
        assert_eq!(listed, Err(Errno::EHOSTDOWN), "{has_link}");
    }
}

/// A loss between the replies to STAT and LSTAT of a link does not make it a dangling one.
#[tokio::test]
async fn a_link_whose_target_is_unknown_for_a_loss_is_an_error() {
    let config = Config { follow_symlinks: true, ..Config::default() };
    let (host, mut actor) = staged(&[], config).await;
    let at = path("l");
    let server = async {
        actor.expect(Request::Stat { path: b"l" }).await;
        let link = actor.expect(Request::Lstat { path: b"l" }).await;
        actor.attrs(link, 0o120_777, 1).await;
        drop(actor);
    };
    let (attr, ()) = tokio::join!(host.lstat(&at), server);
    assert_eq!(attr, Err(Errno::EHOSTDOWN));
}
