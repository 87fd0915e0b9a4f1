//! Rules for `mknod`.

use base::{Errno, FileKind};

use super::fixture::{Fixture, ok};
use crate::path;

/// Types that need no privilege.
pub async fn special_files_are_created(fixture: &Fixture) {
    fixture.put("taken", b"content").await;
    for kind in [FileKind::Fifo, FileKind::Socket] {
        let at = format!("{kind:?}");
        let made = fixture.mknod(&path(&at), kind, 0o640, (0, 0)).await;
        if !fixture.expect().special_files {
            assert_eq!(made, Err(Errno::EOPNOTSUPP));
            assert!(!fixture.exists(&at).await);
            continue;
        }
        ok("mknod", &at, made);
        let attr = fixture.attr(&at).await;
        assert_eq!((attr.kind, attr.perm & !0o640), (kind, 0));
        let listed =
            fixture.list("").await.into_iter().find(|it| it.name.as_bytes() == at.as_bytes());
        assert!(listed.is_some_and(|entry| entry.attr.is_none_or(|attr| attr.kind == kind)));
        for existing in [at.as_str(), "taken"] {
            let again = fixture.mknod(&path(existing), kind, 0o600, (0, 0)).await;
            assert_eq!(again, Err(Errno::EEXIST));
        }
        let orphan = fixture.mknod(&path("absent/new"), kind, 0o600, (0, 0)).await;
        assert_eq!(orphan, Err(Errno::ENOENT));
        ok("unlink", &at, fixture.unlink(&path(&at)).await);
        assert!(!fixture.exists(&at).await);
    }
    assert_eq!(fixture.get("taken").await, b"content");
}
