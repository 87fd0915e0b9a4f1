//! Rules of `open`.

use base::{Access, Create, Errno, FileKind, OpenFlags};

use super::ground::{Ground, ok, read_write};
use crate::path;

/// A file that is made has no bytes, and the permission bits that were asked for or fewer.
pub async fn a_new_file_is_empty_and_private_enough(ground: &Ground) {
    for (at, create) in [
        ("a", Create::IfAbsent(0o600)),
        ("b", Create::IfAbsent(0o644)),
        ("c", Create::Exclusive(0o640)),
        ("d", Create::Exclusive(0o400)),
    ] {
        let (Create::IfAbsent(perm) | Create::Exclusive(perm)) = create else {
            unreachable!("all of these make files")
        };
        let opened = ok("open", at, ground.open(&path(at), read_write(create)).await);
        for attr in
            [opened.attr, ground.attr(at).await, ok("fstat", at, ground.fstat(opened.fh).await)]
        {
            assert_eq!((attr.kind, attr.size), (FileKind::Regular, 0), "{at}");
            assert_eq!(attr.perm & !perm, 0, "{at}: {:o} is more than {perm:o}", attr.perm);
            assert_eq!(attr.perm & 0o700, perm & 0o700, "{at}: the owner's part of {perm:o}");
        }
        // Even a file that its owner may not write is open for writing to whoever made it.
        ground.put_at(opened.fh, 0, b"content").await;
        ground.close(opened.fh);
        assert_eq!(ground.get(at).await, b"content");
    }
}

/// Without `truncate`, an open of an existing file changes neither bytes nor permissions.
pub async fn opening_what_is_there_changes_nothing(ground: &Ground) {
    ground.put("a", b"content").await;
    let before = ground.attr("a").await;
    for access in [Access::Read, Access::Write, Access::ReadWrite] {
        for create in [Create::Never, Create::IfAbsent(0o777)] {
            let flags = OpenFlags { create, ..OpenFlags::existing(access) };
            let fh = ground.handle("a", flags).await;
            ground.close(fh);
            assert_eq!(
                ground.attr("a").await,
                base::Attr { atime: ground.attr("a").await.atime, ..before }
            );
        }
    }
    assert_eq!(ground.get("a").await, b"content");
}

/// `Exclusive` never opens what is there, whatever it is; nor does it follow a link to nowhere.
pub async fn exclusive_means_new(ground: &Ground) {
    ground.put("file", b"content").await;
    ground.dir("dir").await;
    ground.put_link("file", "link").await;
    ground.put_link("nowhere", "dangling").await;
    for at in ["file", "dir", "link", "dangling"] {
        for truncate in [false, true] {
            let flags = OpenFlags { truncate, ..read_write(Create::Exclusive(0o644)) };
            let refused = ground.open(&path(at), flags).await.unwrap_err();
            assert_eq!(refused, Errno::EEXIST, "{at}");
        }
    }
    assert_eq!(ground.get("file").await, b"content");
    assert!(!ground.exists("nowhere").await);
}

/// `truncate` empties a file that is there, and the attributes of the open are those after it.
pub async fn truncating_at_open_empties(ground: &Ground) {
    for create in [Create::Never, Create::IfAbsent(0o600)] {
        ground.put("a", &[7; 100_000]).await;
        let flags = OpenFlags { truncate: true, create, ..OpenFlags::existing(Access::Write) };
        let opened = ok("open", flags, ground.open(&path("a"), flags).await);
        assert_eq!(opened.attr.size, 0);
        assert_eq!(ground.attr("a").await.size, 0);
        ground.put_at(opened.fh, 2, b"x").await;
        ground.close(opened.fh);
        assert_eq!(ground.get("a").await, b"\0\0x");
    }
}

/// `EISDIR` for a directory, `ELOOP` for a link, and neither changes anything.
pub async fn only_regular_files_are_opened(ground: &Ground) {
    ground.put("file", b"content").await;
    ground.dir("dir").await;
    ground.put_link("file", "link").await;
    ground.put_link("dir", "dirlink").await;
    ground.put_link("nowhere", "dangling").await;
    for access in [Access::Read, Access::Write, Access::ReadWrite] {
        for create in [Create::Never, Create::IfAbsent(0o644)] {
            for truncate in [false, access.writes()] {
                let flags = OpenFlags { create, truncate, ..OpenFlags::existing(access) };
                for (at, errno) in [
                    ("dir", Errno::EISDIR),
                    ("link", Errno::ELOOP),
                    ("dirlink", Errno::ELOOP),
                    ("dangling", Errno::ELOOP),
                ] {
                    let refused = ground.open(&path(at), flags).await.unwrap_err();
                    assert_eq!(refused, errno, "{at} with {flags:?}");
                }
            }
        }
    }
    assert_eq!(ground.get("file").await, b"content");
    assert!(!ground.exists("nowhere").await);
}

/// What an open tells is what `fstat` and `lstat` tell.
pub async fn the_attributes_of_an_open_are_the_files(ground: &Ground) {
    ground.put("a", &[1; 12_345]).await;
    let opened = ok("open", "a", ground.open(&path("a"), OpenFlags::existing(Access::Read)).await);
    assert_eq!(opened.attr.size, 12_345);
    assert_eq!(opened.attr, ok("fstat", "a", ground.fstat(opened.fh).await));
    assert_eq!(opened.attr, ground.attr("a").await);
    ground.close(opened.fh);
}
