//! Rules for `open`.

use base::{Access, Create, Errno, FileKind, OpenFlags};

use super::fixture::{Fixture, ok, read_write};
use crate::path;

/// A new file is empty, and has at most the requested permission bits.
pub async fn a_new_file_is_empty_with_at_most_its_permissions(fixture: &Fixture) {
    for (at, create) in [
        ("a", Create::IfAbsent(0o600)),
        ("b", Create::IfAbsent(0o644)),
        ("c", Create::Exclusive(0o640)),
        ("d", Create::Exclusive(0o400)),
    ] {
        let (Create::IfAbsent(perm) | Create::Exclusive(perm)) = create else {
            unreachable!("all of these make files")
        };
        let opened = ok("open", at, fixture.open(&path(at), read_write(create)).await);
        for attr in
            [opened.attr, fixture.attr(at).await, ok("fstat", at, fixture.fstat(opened.fh).await)]
        {
            assert_eq!((attr.kind, attr.size), (FileKind::Regular, 0), "{at}");
            assert_eq!(attr.perm & !perm, 0, "{at}: {:o} is more than {perm:o}", attr.perm);
            assert_eq!(attr.perm & 0o700, perm & 0o700, "{at}: the owner's part of {perm:o}");
        }
        // A new file without write permission is writable through the handle that created it.
        fixture.put_at(opened.fh, 0, b"content").await;
        fixture.close(opened.fh);
        assert_eq!(fixture.get(at).await, b"content");
    }
}

/// Without `truncate`, an open of an existing file changes neither bytes nor permissions.
pub async fn opening_an_existing_file_changes_nothing(fixture: &Fixture) {
    fixture.put("a", b"content").await;
    let before = fixture.attr("a").await;
    for access in [Access::Read, Access::Write, Access::ReadWrite] {
        for create in [Create::Never, Create::IfAbsent(0o777)] {
            let flags = OpenFlags { create, ..OpenFlags::existing(access) };
            let fh = fixture.handle("a", flags).await;
            fixture.close(fh);
            assert_eq!(
                fixture.attr("a").await,
                base::Attr { atime: fixture.attr("a").await.atime, ..before }
            );
        }
    }
    assert_eq!(fixture.get("a").await, b"content");
}

/// `Exclusive` never opens an existing entry of any type; nor does it follow a dangling link.
pub async fn exclusive_means_new(fixture: &Fixture) {
    fixture.put("file", b"content").await;
    fixture.dir("dir").await;
    fixture.put_link("file", "link").await;
    fixture.put_link("nowhere", "dangling").await;
    for at in ["file", "dir", "link", "dangling"] {
        for truncate in [false, true] {
            let flags = OpenFlags { truncate, ..read_write(Create::Exclusive(0o644)) };
            let refused = fixture.open(&path(at), flags).await.unwrap_err();
            assert_eq!(refused, Errno::EEXIST, "{at}");
        }
    }
    assert_eq!(fixture.get("file").await, b"content");
    assert!(!fixture.exists("nowhere").await);
}

/// `truncate` empties an existing file; the returned attributes are those after it.
pub async fn truncating_at_open_empties(fixture: &Fixture) {
    for create in [Create::Never, Create::IfAbsent(0o600)] {
        fixture.put("a", &[7; 100_000]).await;
        let flags = OpenFlags { truncate: true, create, ..OpenFlags::existing(Access::Write) };
        let opened = ok("open", flags, fixture.open(&path("a"), flags).await);
        assert_eq!(opened.attr.size, 0);
        assert_eq!(fixture.attr("a").await.size, 0);
        fixture.put_at(opened.fh, 2, b"x").await;
        fixture.close(opened.fh);
        assert_eq!(fixture.get("a").await, b"\0\0x");
    }
}

/// `EISDIR` for a directory, `ELOOP` for a link, and neither changes anything.
pub async fn only_regular_files_are_opened(fixture: &Fixture) {
    fixture.put("file", b"content").await;
    fixture.dir("dir").await;
    fixture.put_link("file", "link").await;
    fixture.put_link("dir", "dirlink").await;
    fixture.put_link("nowhere", "dangling").await;
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
                    let refused = fixture.open(&path(at), flags).await.unwrap_err();
                    assert_eq!(refused, errno, "{at} with {flags:?}");
                }
            }
        }
    }
    assert_eq!(fixture.get("file").await, b"content");
    assert!(!fixture.exists("nowhere").await);
}

/// The attributes of an open are those of `fstat` and `lstat`.
pub async fn the_attributes_of_an_open_are_the_files(fixture: &Fixture) {
    fixture.put("a", &[1; 12_345]).await;
    let opened = ok("open", "a", fixture.open(&path("a"), OpenFlags::existing(Access::Read)).await);
    assert_eq!(opened.attr.size, 12_345);
    assert_eq!(opened.attr, ok("fstat", "a", fixture.fstat(opened.fh).await));
    assert_eq!(opened.attr, fixture.attr("a").await);
    fixture.close(opened.fh);
}
