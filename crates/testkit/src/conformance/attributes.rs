//! Rules for attributes: `setattr`, `fsetattr`, `statvfs`, and the effect of operations on times.

use base::{AttrChange, Errno, Fh, RenameMode, Timestamp};

use super::fixture::{Fixture, mtime_change, ok};
use crate::path;

/// Maximum difference between the remote's clock and this machine's, in seconds.
const CLOCK_SLACK_SECS: i64 = 2;

/// `before` with `change` applied.
fn applied(before: base::Attr, change: &AttrChange) -> base::Attr {
    base::Attr {
        perm: change.perm.unwrap_or(before.perm),
        size: change.size.unwrap_or(before.size),
        uid: change.uid.unwrap_or(before.uid),
        gid: change.gid.unwrap_or(before.gid),
        atime: change.atime.unwrap_or(before.atime),
        mtime: change.mtime.unwrap_or(before.mtime),
        ..before
    }
}

/// Every combination of permissions, size and the two times.
fn combinations() -> impl Iterator<Item = AttrChange> {
    (0..16).map(|bits| AttrChange {
        perm: (bits & 1 != 0).then_some(0o751),
        size: (bits & 2 != 0).then_some(50),
        atime: (bits & 4 != 0).then_some(Timestamp::from_secs(1_111_111_111)),
        mtime: (bits & 8 != 0).then_some(Timestamp::from_secs(1_222_222_222)),
        ..AttrChange::default()
    })
}

/// The attributes before each change.
fn beginning() -> AttrChange {
    AttrChange {
        perm: Some(0o644),
        size: Some(100),
        atime: Some(Timestamp::from_secs(1_000_000_000)),
        mtime: Some(Timestamp::from_secs(1_000_000_001)),
        ..AttrChange::default()
    }
}

/// All but what a change of attributes changes by itself.
fn stable(attr: base::Attr) -> base::Attr {
    let inode = attr.inode.map(|inode| base::InodeAttr { change: None, blocks: 0, ..inode });
    base::Attr { inode, ..attr }
}

/// Compares attributes; a change of size without a new mtime may set mtime.
#[track_caller]
fn assert_applied(before: base::Attr, change: &AttrChange, after: base::Attr) {
    let mut expected = applied(before, change);
    if change.size.is_some() && change.mtime.is_none() {
        expected.mtime = after.mtime;
    }
    assert_eq!(stable(after), stable(expected), "{change:?}");
}

/// A change sets exactly the given attributes.
pub async fn each_part_is_set_alone(fixture: &Fixture) {
    fixture.put("file", &[1; 100]).await;
    fixture.dir("dir").await;
    for change in combinations() {
        ok("setattr", "file", fixture.setattr(&path("file"), beginning()).await);
        let before = fixture.attr("file").await;
        ok("setattr", change, fixture.setattr(&path("file"), change).await);
        assert_applied(before, &change, fixture.attr("file").await);
        if change.size.is_none() {
            let start = AttrChange { size: None, ..beginning() };
            ok("setattr", "dir", fixture.setattr(&path("dir"), start).await);
            let before = fixture.attr("dir").await;
            ok("setattr", change, fixture.setattr(&path("dir"), change).await);
            assert_applied(before, &change, fixture.attr("dir").await);
        }
    }
}

/// A change through a handle sets exactly the given attributes.
pub async fn an_open_file_is_changed_by_handle(fixture: &Fixture) {
    fixture.put("file", &[1; 100]).await;
    let fh = fixture.open_rw("file").await;
    assert_changes_apply(fixture, fh).await;
    fixture.close(fh);
}

/// A change through a handle also works after the file's name was removed.
pub async fn an_open_file_without_a_name_is_changed_by_handle(fixture: &Fixture) {
    fixture.put("file", &[1; 100]).await;
    let fh = fixture.open_rw("file").await;
    ok("unlink", "file", fixture.unlink(&path("file")).await);
    assert_changes_apply(fixture, fh).await;
    fixture.close(fh);
}

async fn assert_changes_apply(fixture: &Fixture, fh: Fh) {
    for change in combinations() {
        ok("fsetattr", "file", fixture.fsetattr(fh, beginning()).await);
        let before = ok("fstat", "file", fixture.fstat(fh).await);
        ok("fsetattr", change, fixture.fsetattr(fh, change).await);
        assert_applied(before, &change, ok("fstat", change, fixture.fstat(fh).await));
    }
}

/// From 1970 to 2106, with nanoseconds if the remote supports them.
pub async fn times_are_kept(fixture: &Fixture) {
    fixture.put("file", b"").await;
    for secs in [0, 1, 1_234_567_890, i64::from(i32::MAX), 1 << 31, i64::from(u32::MAX)] {
        for nanos in [0, 123_456_789] {
            let time = Timestamp { secs, nanos };
            let change =
                AttrChange { atime: Some(time), mtime: Some(time), ..AttrChange::default() };
            ok("setattr", time, fixture.setattr(&path("file"), change).await);
            let kept = if fixture.expect().nanoseconds { time } else { Timestamp::from_secs(secs) };
            let attr = fixture.attr("file").await;
            assert_eq!((attr.atime, attr.mtime), (kept, kept));
        }
    }
}

/// All twelve bits, of files and directories.
pub async fn permissions_are_kept(fixture: &Fixture) {
    fixture.put("file", b"").await;
    fixture.dir("dir").await;
    for at in ["file", "dir"] {
        for perm in [0o700, 0o777, 0o644, 0o4755, 0o2755, 0o1777, 0o7777] {
            let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
            ok("setattr", perm, fixture.setattr(&path(at), change).await);
            let seen = fixture.attr(at).await.perm;
            assert_eq!(seen, perm, "{at}: {seen:o} instead of {perm:o}");
        }
    }
}

/// A change of a symbolic link applies to the link or fails; its target is never changed.
pub async fn a_link_is_changed_itself(fixture: &Fixture) {
    fixture.put("file", b"content").await;
    ok("setattr", "file", fixture.setattr(&path("file"), mtime_change(1_000_000_000)).await);
    fixture.put_link("file", "link").await;
    fixture.put_link("nowhere", "dangling").await;
    let file = fixture.attr("file").await;
    for at in ["link", "dangling"] {
        let changed = fixture.setattr(&path(at), mtime_change(1_222_222_222)).await;
        if fixture.expect().link_attributes {
            assert_eq!(changed, Ok(()), "{at}");
            assert_eq!(fixture.attr(at).await.mtime, Timestamp::from_secs(1_222_222_222), "{at}");
        } else {
            assert_eq!(changed, Err(Errno::EOPNOTSUPP), "{at}");
        }
        // Linux has no permissions of links, other systems do: success or failure, but no change of
        // the target.
        let perm = AttrChange { perm: Some(0o600), ..AttrChange::default() };
        let refused = fixture.setattr(&path(at), perm).await.is_err();
        assert!(refused || fixture.attr(at).await.perm == 0o600, "{at}");
    }
    assert_eq!(fixture.attr("file").await, file);
    assert!(!fixture.exists("nowhere").await);
}

/// Writes update a file's mtime, and changes of entries that of a directory.
pub async fn a_change_updates_mtime(fixture: &Fixture) {
    let long_ago = mtime_change(1_000_000_000);
    let start = Timestamp::now().secs - CLOCK_SLACK_SECS;
    fixture.dir("dir").await;
    fixture.put("dir/file", b"content").await;
    ok("setattr", "file", fixture.setattr(&path("dir/file"), long_ago).await);
    let fh = fixture.open_rw("dir/file").await;
    fixture.put_at(fh, 0, b"C").await;
    assert!(ok("fstat", "file", fixture.fstat(fh).await).mtime.secs >= start, "after a write");
    fixture.close(fh);
    assert!(fixture.attr("dir/file").await.mtime.secs >= start, "after the close");
    let steps = ["create", "mkdir", "rename", "unlink", "rmdir"];
    for step in steps {
        ok("setattr", "dir", fixture.setattr(&path("dir"), long_ago).await);
        match step {
            "create" => fixture.put("dir/new", b"").await,
            "mkdir" => fixture.dir("dir/sub").await,
            "rename" => {
                let (from, to) = (path("dir/new"), path("dir/newer"));
                ok(step, &from, fixture.rename(&from, &to, base::RenameMode::Replace).await);
            }
            "unlink" => ok(step, "newer", fixture.unlink(&path("dir/newer")).await),
            _ => ok(step, "sub", fixture.rmdir(&path("dir/sub")).await),
        }
        assert!(fixture.attr("dir").await.mtime.secs >= start, "the directory's after {step}");
    }
}

/// An owner can be set without a group and vice versa; setting the present values always works.
pub async fn owners_are_set(fixture: &Fixture) {
    fixture.put("file", b"").await;
    let before = fixture.attr("file").await;
    let same = AttrChange { uid: Some(before.uid), gid: Some(before.gid), ..AttrChange::default() };
    ok("setattr", same, fixture.setattr(&path("file"), same).await);
    ok("setattr", "nothing", fixture.setattr(&path("file"), AttrChange::default()).await);
    assert_eq!(stable(fixture.attr("file").await), stable(before));
    if !fixture.expect().chown {
        return;
    }
    for change in [
        AttrChange { uid: Some(12_345), ..AttrChange::default() },
        AttrChange { gid: Some(23_456), ..AttrChange::default() },
        AttrChange { uid: Some(1), gid: Some(2), ..AttrChange::default() },
    ] {
        let before = fixture.attr("file").await;
        ok("setattr", change, fixture.setattr(&path("file"), change).await);
        let expected = stable(applied(before, &change));
        assert_eq!(stable(fixture.attr("file").await), expected, "{change:?}");
    }
}

/// `statvfs` returns plausible values.
pub async fn statvfs_is_plausible(fixture: &Fixture) {
    fixture.dir("dir").await;
    if !fixture.expect().statvfs {
        assert_eq!(fixture.statvfs(&path("dir")).await, Err(Errno::EOPNOTSUPP));
        return;
    }
    for at in ["", "dir"] {
        let figures = ok("statvfs", at, fixture.statvfs(&path(at)).await);
        assert!(figures.block_size > 0 && figures.fragment_size > 0, "{figures:?}");
        assert!(figures.blocks > 0 && figures.blocks_free <= figures.blocks, "{figures:?}");
        assert!(figures.blocks_available <= figures.blocks_free, "{figures:?}");
        assert!(figures.files_free <= figures.files, "{figures:?}");
        assert!(figures.files_available <= figures.files_free, "{figures:?}");
        assert_eq!(figures.name_max, fixture.expect().name_max as u64);
        assert!(!figures.is_read_only());
    }
    let (root, dir) = (fixture.statvfs(&path("")).await, fixture.statvfs(&path("dir")).await);
    assert_eq!(root.map(|figures| figures.fsid), dir.map(|figures| figures.fsid));
}

/// If attributes tell files apart, a file has one identity by all its names and handles, and keeps
/// it; another file has another one, also under the same name.
pub async fn a_file_keeps_its_identity(fixture: &Fixture) {
    fixture.put("a", &[1; 5000]).await;
    fixture.put("other", b"").await;
    let before = fixture.attr("a").await;
    let Some(inode) = before.inode else {
        assert!(!fixture.expect().inodes, "attributes have no identity");
        return;
    };
    assert!(fixture.expect().inodes, "attributes have an identity");
    assert!(
        inode.links == 1 && inode.blocks >= 8 && before.ctime() >= Some(before.mtime),
        "{inode:?}"
    );
    assert_eq!(before.is_same_file(&fixture.attr("other").await), Some(false));
    fixture.dir("dir").await;
    ok("link", "dir/b", fixture.link(&path("a"), &path("dir/b")).await);
    ok("rename", "c", fixture.rename(&path("a"), &path("c"), RenameMode::Replace).await);
    let linked = fixture.attr("dir/b").await;
    assert_eq!(linked.inode.map(|inode| (inode.id, inode.links)), Some((inode.id, 2)));
    let fh = fixture.open_rw("dir/b").await;
    ok("rename", "dir/b", {
        fixture.rename(&path("other"), &path("dir/b"), RenameMode::Replace).await
    });
    let opened = ok("fstat", "dir/b", fixture.fstat(fh).await);
    fixture.close(fh);
    assert_eq!(opened.inode.map(|inode| (inode.id, inode.links)), Some((inode.id, 1)));
    assert_eq!(opened.is_same_file(&fixture.attr("dir/b").await), Some(false));
    assert_eq!(opened.is_same_file(&fixture.attr("c").await), Some(true));
}
