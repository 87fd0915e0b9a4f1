//! Rules of symbolic and hard links.

use base::{Errno, FileKind};

use super::ground::{Ground, ok};
use crate::path;

/// A target is bytes of no meaning: it comes back as it went, and its length is the link's size.
pub async fn a_target_is_kept_as_it_is(ground: &Ground) {
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
        ok("symlink", &at, ground.symlink(target, &at).await);
        assert_eq!(ok("readlink", &at, ground.readlink(&at).await), target);
        let attr = ok("lstat", &at, ground.lstat(&at).await);
        assert_eq!((attr.kind, attr.size), (FileKind::Symlink, target.len() as u64));
    }
    assert!(ground.symlink(b"", &path("empty")).await.is_err());
    assert!(!ground.exists("empty").await);
}

/// Rule 4: the last component is the link.
pub async fn links_are_not_followed(ground: &Ground) {
    ground.put("file", b"content").await;
    ground.dir("dir").await;
    ground.put_link("file", "link").await;
    ground.put_link("dir", "dirlink").await;
    ground.put_link("loop", "loop").await;
    for at in ["link", "dirlink", "loop"] {
        assert_eq!(ground.attr(at).await.kind, FileKind::Symlink, "{at}");
        if !ground.expect().statvfs_follows_links {
            ok("statvfs", at, ground.statvfs(&path(at)).await);
        }
    }
    if ground.expect().hard_links {
        ok("link", "link", ground.link(&path("link"), &path("second")).await);
        assert_eq!(ground.attr("second").await.kind, FileKind::Symlink);
        assert_eq!(ground.readlink(&path("second")).await, Ok(b"file".to_vec()));
    }
}

/// `EINVAL` for what is no link.
pub async fn only_links_are_read(ground: &Ground) {
    ground.put("file", b"content").await;
    ground.dir("dir").await;
    for at in ["file", "dir"] {
        assert_eq!(ground.readlink(&path(at)).await, Err(Errno::EINVAL), "{at}");
    }
}

/// Neither kind of link takes a name that is taken.
pub async fn a_taken_name_takes_no_link(ground: &Ground) {
    ground.put("file", b"content").await;
    ground.put("other", b"other").await;
    ground.dir("dir").await;
    ground.put_link("file", "link").await;
    ground.put_link("nowhere", "dangling").await;
    for at in ["file", "dir", "link", "dangling"] {
        assert_eq!(ground.symlink(b"x", &path(at)).await, Err(Errno::EEXIST), "{at}");
        if ground.expect().hard_links {
            let second = ground.link(&path("other"), &path(at)).await;
            assert_eq!(second, Err(Errno::EEXIST), "{at}");
        }
    }
    assert_eq!(ground.get("file").await, b"content");
    assert_eq!(ground.readlink(&path("link")).await, Ok(b"file".to_vec()));
}

/// A second name is the same file, until both are gone; a directory has none.
pub async fn two_names_are_one_file(ground: &Ground) {
    ground.put("a", b"content").await;
    ground.dir("dir").await;
    if !ground.expect().hard_links {
        let refused = ground.link(&path("a"), &path("b")).await;
        assert!(matches!(refused, Err(Errno::EOPNOTSUPP | Errno::ENOSYS)), "{refused:?}");
        assert!(!ground.exists("b").await);
        return;
    }
    ok("link", "b", ground.link(&path("a"), &path("dir/b")).await);
    let fh = ground.open_rw("dir/b").await;
    ground.put_at(fh, 0, b"C").await;
    ground.close(fh);
    assert_eq!(ground.get("a").await, b"Content");
    assert_eq!(ground.attr("a").await, ground.attr("dir/b").await);
    ok("unlink", "a", ground.unlink(&path("a")).await);
    assert_eq!(ground.get("dir/b").await, b"Content");
    assert_eq!(ground.link(&path("dir"), &path("c")).await, Err(Errno::EPERM));
    assert!(!ground.exists("c").await);
}
