//! Rules for directories and their listings.

use std::collections::BTreeSet;

use base::{Errno, FileKind};

use super::fixture::{Fixture, ok};
use crate::path;

/// A new directory has at most the requested permission bits and is empty; it can be removed only
/// if empty.
pub async fn a_directory_is_created_and_removed(fixture: &Fixture) {
    for (at, perm) in [("a", 0o755), ("b", 0o700), ("a/c", 0o750)] {
        ok("mkdir", at, fixture.mkdir(&path(at), perm).await);
        let attr = fixture.attr(at).await;
        assert_eq!(attr.kind, FileKind::Directory, "{at}");
        assert_eq!(attr.perm & 0o777 & !perm, 0, "{at}: {:o} is more than {perm:o}", attr.perm);
        assert_eq!(attr.perm & 0o700, perm & 0o700, "{at}: the owner's part of {perm:o}");
    }
    fixture.put("file", b"content").await;
    fixture.put_link("a", "link").await;
    fixture.put_link("nowhere", "dangling").await;
    for at in ["a", "file", "link", "dangling"] {
        assert_eq!(fixture.mkdir(&path(at), 0o755).await, Err(Errno::EEXIST), "{at}");
    }
    // A removal whose answer is lost has been executed if the name is absent and was not before.
    assert!(!fixture.exists("absent").await);
    for (at, errno) in [
        ("a", Errno::ENOTEMPTY),
        ("file", Errno::ENOTDIR),
        ("link", Errno::ENOTDIR),
        ("absent", Errno::ENOENT),
    ] {
        assert_eq!(fixture.rmdir(&path(at)).await, Err(errno), "{at}");
    }
    ok("rmdir", "a/c", fixture.rmdir(&path("a/c")).await);
    ok("rmdir", "a", fixture.rmdir(&path("a")).await);
    assert!(!fixture.exists("a").await);
    assert_eq!(fixture.names("").await, [&b"b"[..], b"dangling", b"file", b"link"]);
}

/// 5,000 entries: each is listed exactly once.
pub async fn a_listing_is_complete_and_without_duplicates(fixture: &Fixture) {
    const ENTRIES: usize = 5_000;
    fixture.dir("d").await;
    // Links are created in one round trip on every kind of remote.
    let makers: Vec<_> = (0..8)
        .map(|maker| {
            let remote = fixture.shared();
            tokio::spawn(async move {
                for number in (maker..ENTRIES).step_by(8) {
                    let at = path(&format!("d/entry-{number}"));
                    ok("symlink", &at, remote.symlink(b"x", &at).await);
                }
            })
        })
        .collect();
    for maker in makers {
        maker.await.expect("all links are made");
    }
    let entries = fixture.list("d").await;
    let names: BTreeSet<String> = entries.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!((entries.len(), names.len()), (ENTRIES, ENTRIES));
    assert!((0..ENTRIES).all(|number| names.contains(&format!("entry-{number}"))));
    // Two listings of one directory are each complete.
    let (one, other) = tokio::join!(fixture.list("d"), fixture.list("d"));
    assert_eq!((one.len(), other.len()), (ENTRIES, ENTRIES));
}

/// A listing of an empty directory is at its end at once, and stays there.
pub async fn an_empty_listing_ends_at_once(fixture: &Fixture) {
    fixture.dir("d").await;
    let dh = ok("opendir", "d", fixture.opendir(&path("d")).await);
    for _ in 0..3 {
        assert_eq!(fixture.readdir(dh).await, Ok(None));
    }
    fixture.closedir(dh);
}

/// Attributes in a listing are those of the entry itself.
pub async fn attributes_of_a_listing_are_those_of_lstat(fixture: &Fixture) {
    fixture.put("file", &[1; 1_234]).await;
    fixture.dir("dir").await;
    fixture.put_link("file", "link").await;
    fixture.put_link("dir", "dirlink").await;
    fixture.put_link("nowhere", "dangling").await;
    let entries = fixture.list("").await;
    assert_eq!(entries.len(), 5);
    for entry in entries {
        if let Some(attr) = entry.attr {
            assert_eq!(attr, fixture.attr(&entry.name.to_string()).await, "{}", entry.name);
        }
    }
}

/// Entries that exist throughout are listed, even if others are removed meanwhile.
pub async fn a_listing_continues_while_entries_are_removed(fixture: &Fixture) {
    fixture.dir("d").await;
    for number in 0..300 {
        fixture.put_link("x", &format!("d/{number}")).await;
    }
    let dh = ok("opendir", "d", fixture.opendir(&path("d")).await);
    let mut seen = Vec::new();
    let first = ok("readdir", "d", fixture.readdir(dh).await).expect("there are entries");
    seen.extend(first.iter().map(|entry| entry.name.to_string()));
    for number in (0..300).step_by(2) {
        ok("unlink", number, fixture.unlink(&path(&format!("d/{number}"))).await);
    }
    while let Some(batch) = ok("readdir", "d", fixture.readdir(dh).await) {
        seen.extend(batch.iter().map(|entry| entry.name.to_string()));
    }
    fixture.closedir(dh);
    let names: BTreeSet<&String> = seen.iter().collect();
    assert_eq!(names.len(), seen.len(), "a name came twice");
    assert!((1..300).step_by(2).all(|number| names.contains(&number.to_string())));
}

/// Only directories can be listed.
pub async fn only_directories_are_listed(fixture: &Fixture) {
    fixture.put("file", b"content").await;
    fixture.dir("dir").await;
    fixture.put_link("dir", "link").await;
    fixture.put_link("nowhere", "dangling").await;
    assert_eq!(fixture.opendir(&path("file")).await, Err(Errno::ENOTDIR));
    assert_eq!(fixture.opendir(&path("absent")).await, Err(Errno::ENOENT));
    assert_eq!(fixture.opendir(&path("absent/x")).await, Err(Errno::ENOENT));
    assert_eq!(fixture.opendir(&path("file/x")).await, Err(Errno::ENOTDIR));
    if !fixture.expect().opendir_follows_links {
        assert_eq!(fixture.opendir(&path("link")).await, Err(Errno::ENOTDIR));
        assert_eq!(fixture.opendir(&path("dangling")).await, Err(Errno::ENOTDIR));
    }
}

/// `fsyncdir` works, or fails as unsupported.
pub async fn entries_are_synced(fixture: &Fixture) {
    fixture.dir("d").await;
    fixture.put("d/file", b"content").await;
    let expected = if fixture.expect().fsyncdir { Ok(()) } else { Err(Errno::EOPNOTSUPP) };
    assert_eq!(fixture.fsyncdir(&path("d")).await, expected);
    assert_eq!(fixture.fsyncdir(&path("")).await, expected);
    assert!(fixture.fsyncdir(&path("absent")).await.is_err());
}
