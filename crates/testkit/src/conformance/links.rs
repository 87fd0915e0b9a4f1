//! Rules for symbolic and hard links.

use base::{Errno, FileKind};

use super::fixture::{Fixture, ok};
use crate::path;

/// A target is opaque bytes: it is returned unchanged, and its length is the link's size.
pub async fn a_target_is_kept_unchanged(fixture: &Fixture) {
    let long = vec![b'x'; 1_000];
    let targets: [&[u8]; 10] = [
        b"file",
        b"/absolute",
        b"../../up",
        b".",
        b"a//b/",
        b" ",
        b"\xff\n\x1b",
        b"-s",
        b"nowhere",
        &long,
    ];
    for (number, target) in targets.into_iter().enumerate() {
        let at = path(&format!("link{number}"));
        ok("symlink", &at, fixture.symlink(target, &at).await);
        assert_eq!(ok("readlink", &at, fixture.readlink(&at).await), target);
        let attr = ok("lstat", &at, fixture.lstat(&at).await);
        assert_eq!((attr.kind, attr.size), (FileKind::Symlink, target.len() as u64));
    }
    assert!(fixture.symlink(b"", &path("empty")).await.is_err());
    assert!(!fixture.exists("empty").await);
}

/// Rule 4: a link as the last component is not followed.
pub async fn links_are_not_followed(fixture: &Fixture) {
    fixture.put("file", b"content").await;
    fixture.dir("dir").await;
    fixture.put_link("file", "link").await;
    fixture.put_link("dir", "dirlink").await;
    fixture.put_link("loop", "loop").await;
    for at in ["link", "dirlink", "loop"] {
        assert_eq!(fixture.attr(at).await.kind, FileKind::Symlink, "{at}");
        if !fixture.expect().statvfs_follows_links {
            ok("statvfs", at, fixture.statvfs(&path(at)).await);
        }
    }
    if fixture.expect().hard_links {
        ok("link", "link", fixture.link(&path("link"), &path("second")).await);
        assert_eq!(fixture.attr("second").await.kind, FileKind::Symlink);
        assert_eq!(fixture.readlink(&path("second")).await, Ok(b"file".to_vec()));
    }
}

/// `readlink` of anything but a link is `EINVAL`.
pub async fn only_links_are_read(fixture: &Fixture) {
    fixture.put("file", b"content").await;
    fixture.dir("dir").await;
    for at in ["file", "dir"] {
        assert_eq!(fixture.readlink(&path(at)).await, Err(Errno::EINVAL), "{at}");
    }
}

/// Neither `symlink` nor `link` replaces an existing name.
pub async fn an_existing_name_is_not_replaced_by_a_link(fixture: &Fixture) {
    fixture.put("file", b"content").await;
    fixture.put("other", b"other").await;
    fixture.dir("dir").await;
    fixture.put_link("file", "link").await;
    fixture.put_link("nowhere", "dangling").await;
    for at in ["file", "dir", "link", "dangling"] {
        assert_eq!(fixture.symlink(b"x", &path(at)).await, Err(Errno::EEXIST), "{at}");
        if fixture.expect().hard_links {
            let second = fixture.link(&path("other"), &path(at)).await;
            assert_eq!(second, Err(Errno::EEXIST), "{at}");
        }
    }
    assert_eq!(fixture.get("file").await, b"content");
    assert_eq!(fixture.readlink(&path("link")).await, Ok(b"file".to_vec()));
}

/// A hard link is the same file until all names are removed; directories have no hard links.
pub async fn two_names_are_one_file(fixture: &Fixture) {
    fixture.put("a", b"content").await;
    fixture.dir("dir").await;
    if !fixture.expect().hard_links {
        let refused = fixture.link(&path("a"), &path("b")).await;
        assert!(matches!(refused, Err(Errno::EOPNOTSUPP | Errno::ENOSYS)), "{refused:?}");
        assert!(!fixture.exists("b").await);
        return;
    }
    ok("link", "b", fixture.link(&path("a"), &path("dir/b")).await);
    let fh = fixture.open_rw("dir/b").await;
    fixture.put_at(fh, 0, b"C").await;
    fixture.close(fh);
    assert_eq!(fixture.get("a").await, b"Content");
    assert_eq!(fixture.attr("a").await, fixture.attr("dir/b").await);
    ok("unlink", "a", fixture.unlink(&path("a")).await);
    assert_eq!(fixture.get("dir/b").await, b"Content");
    assert_eq!(fixture.link(&path("dir"), &path("c")).await, Err(Errno::EPERM));
    assert!(!fixture.exists("c").await);
}
