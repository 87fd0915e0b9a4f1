//! Rules of directories and their listings.

use std::collections::BTreeSet;

use base::{Errno, FileKind};

use super::ground::{Ground, ok};
use crate::path;

/// A directory has the permission bits asked for or fewer, is empty, and goes only when it is.
pub async fn a_directory_is_made_and_removed(ground: &Ground) {
    for (at, perm) in [("a", 0o755), ("b", 0o700), ("a/c", 0o750)] {
        ok("mkdir", at, ground.mkdir(&path(at), perm).await);
        let attr = ground.attr(at).await;
        assert_eq!(attr.kind, FileKind::Directory, "{at}");
        assert_eq!(attr.perm & 0o777 & !perm, 0, "{at}: {:o} is more than {perm:o}", attr.perm);
        assert_eq!(attr.perm & 0o700, perm & 0o700, "{at}: the owner's part of {perm:o}");
    }
    ground.put("file", b"content").await;
    ground.put_link("a", "link").await;
    ground.put_link("nowhere", "dangling").await;
    for at in ["a", "file", "link", "dangling"] {
        assert_eq!(ground.mkdir(&path(at), 0o755).await, Err(Errno::EEXIST), "{at}");
    }
    for (at, errno) in [
        ("a", Errno::ENOTEMPTY),
        ("file", Errno::ENOTDIR),
        ("link", Errno::ENOTDIR),
        ("absent", Errno::ENOENT),
    ] {
        assert_eq!(ground.rmdir(&path(at)).await, Err(errno), "{at}");
    }
    ok("rmdir", "a/c", ground.rmdir(&path("a/c")).await);
    ok("rmdir", "a", ground.rmdir(&path("a")).await);
    assert!(!ground.exists("a").await);
    assert_eq!(ground.names("").await, [&b"b"[..], b"dangling", b"file", b"link"]);
}

/// 5,000 entries: all of them, each once.
pub async fn a_listing_is_complete_and_without_duplicates(ground: &Ground) {
    const ENTRIES: usize = 5_000;
    ground.dir("d").await;
    // Links are made in one round trip on every kind of remote.
    let makers: Vec<_> = (0..8)
        .map(|maker| {
            let remote = ground.shared();
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
    let entries = ground.list("d").await;
    let names: BTreeSet<String> = entries.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!((entries.len(), names.len()), (ENTRIES, ENTRIES));
    assert!((0..ENTRIES).all(|number| names.contains(&format!("entry-{number}"))));
    // Two listings of one directory are each complete.
    let (one, other) = tokio::join!(ground.list("d"), ground.list("d"));
    assert_eq!((one.len(), other.len()), (ENTRIES, ENTRIES));
}

/// An empty directory is at its end from the beginning, and stays there.
pub async fn an_empty_listing_ends_at_once(ground: &Ground) {
    ground.dir("d").await;
    let dh = ok("opendir", "d", ground.opendir(&path("d")).await);
    for _ in 0..3 {
        assert_eq!(ground.readdir(dh).await, Ok(None));
    }
    ground.closedir(dh);
}

/// Where a listing has attributes, they are those of the entry itself.
pub async fn a_listing_tells_what_lstat_tells(ground: &Ground) {
    ground.put("file", &[1; 1_234]).await;
    ground.dir("dir").await;
    ground.put_link("file", "link").await;
    ground.put_link("dir", "dirlink").await;
    ground.put_link("nowhere", "dangling").await;
    let entries = ground.list("").await;
    assert_eq!(entries.len(), 5);
    for entry in entries {
        if let Some(attr) = entry.attr {
            assert_eq!(attr, ground.attr(&entry.name.to_string()).await, "{}", entry.name);
        }
    }
}

/// Entries that stay are listed, whatever else is removed meanwhile.
pub async fn a_listing_goes_on_while_entries_vanish(ground: &Ground) {
    ground.dir("d").await;
    for number in 0..300 {
        ground.put_link("x", &format!("d/{number}")).await;
    }
    let dh = ok("opendir", "d", ground.opendir(&path("d")).await);
    let mut seen = Vec::new();
    let first = ok("readdir", "d", ground.readdir(dh).await).expect("there are entries");
    seen.extend(first.iter().map(|entry| entry.name.to_string()));
    for number in (0..300).step_by(2) {
        ok("unlink", number, ground.unlink(&path(&format!("d/{number}"))).await);
    }
    while let Some(batch) = ok("readdir", "d", ground.readdir(dh).await) {
        seen.extend(batch.iter().map(|entry| entry.name.to_string()));
    }
    ground.closedir(dh);
    let names: BTreeSet<&String> = seen.iter().collect();
    assert_eq!(names.len(), seen.len(), "a name came twice");
    assert!((1..300).step_by(2).all(|number| names.contains(&number.to_string())));
}

/// What is no directory cannot be listed.
pub async fn only_directories_are_listed(ground: &Ground) {
    ground.put("file", b"content").await;
    ground.dir("dir").await;
    ground.put_link("dir", "link").await;
    ground.put_link("nowhere", "dangling").await;
    assert_eq!(ground.opendir(&path("file")).await, Err(Errno::ENOTDIR));
    assert_eq!(ground.opendir(&path("absent")).await, Err(Errno::ENOENT));
    assert_eq!(ground.opendir(&path("absent/x")).await, Err(Errno::ENOENT));
    assert_eq!(ground.opendir(&path("file/x")).await, Err(Errno::ENOTDIR));
    if !ground.expect().opendir_follows_links {
        assert_eq!(ground.opendir(&path("link")).await, Err(Errno::ENOTDIR));
        assert_eq!(ground.opendir(&path("dangling")).await, Err(Errno::ENOTDIR));
    }
}

/// A directory's entries are synced, or the remote says that there is no such thing.
pub async fn entries_are_synced(ground: &Ground) {
    ground.dir("d").await;
    ground.put("d/file", b"content").await;
    let expected = if ground.expect().fsyncdir { Ok(()) } else { Err(Errno::EOPNOTSUPP) };
    assert_eq!(ground.fsyncdir(&path("d")).await, expected);
    assert_eq!(ground.fsyncdir(&path("")).await, expected);
    assert!(ground.fsyncdir(&path("absent")).await.is_err());
}
