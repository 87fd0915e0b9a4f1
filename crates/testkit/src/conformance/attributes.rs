//! Rules of attributes: `setattr`, `fsetattr`, `statvfs`, and what operations do to times.

use base::{AttrChange, Errno, Fh, Timestamp};

use super::ground::{Ground, mtime_change, ok};
use crate::path;

/// How far the remote's clock may be from ours, in seconds.
const CLOCK_SLACK_SECS: i64 = 2;

/// What `before` is after `change`, as far as `change` says.
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

/// Where everything is put before each change.
fn beginning() -> AttrChange {
    AttrChange {
        perm: Some(0o644),
        size: Some(100),
        atime: Some(Timestamp::from_secs(1_000_000_000)),
        mtime: Some(Timestamp::from_secs(1_000_000_001)),
        ..AttrChange::default()
    }
}

/// Compares, where a change of size without a new time of change may set that.
#[track_caller]
fn assert_applied(before: base::Attr, change: &AttrChange, after: base::Attr) {
    let mut expected = applied(before, change);
    if change.size.is_some() && change.mtime.is_none() {
        expected.mtime = after.mtime;
    }
    assert_eq!(after, expected, "{change:?}");
}

/// What a change names is set, and nothing else.
pub async fn each_part_is_set_alone(ground: &Ground) {
    ground.put("file", &[1; 100]).await;
    ground.dir("dir").await;
    for change in combinations() {
        ok("setattr", "file", ground.setattr(&path("file"), beginning()).await);
        let before = ground.attr("file").await;
        ok("setattr", change, ground.setattr(&path("file"), change).await);
        assert_applied(before, &change, ground.attr("file").await);
        if change.size.is_none() {
            let start = AttrChange { size: None, ..beginning() };
            ok("setattr", "dir", ground.setattr(&path("dir"), start).await);
            let before = ground.attr("dir").await;
            ok("setattr", change, ground.setattr(&path("dir"), change).await);
            assert_applied(before, &change, ground.attr("dir").await);
        }
    }
}

/// The same through a handle.
pub async fn an_open_file_is_changed_as_well(ground: &Ground) {
    ground.put("file", &[1; 100]).await;
    let fh = ground.open_rw("file").await;
    assert_changes_apply(ground, fh).await;
    ground.close(fh);
}

/// Also when the file has lost its name.
pub async fn an_open_file_without_a_name_is_changed_as_well(ground: &Ground) {
    ground.put("file", &[1; 100]).await;
    let fh = ground.open_rw("file").await;
    ok("unlink", "file", ground.unlink(&path("file")).await);
    assert_changes_apply(ground, fh).await;
    ground.close(fh);
}

async fn assert_changes_apply(ground: &Ground, fh: Fh) {
    for change in combinations() {
        ok("fsetattr", "file", ground.fsetattr(fh, beginning()).await);
        let before = ok("fstat", "file", ground.fstat(fh).await);
        ok("fsetattr", change, ground.fsetattr(fh, change).await);
        assert_applied(before, &change, ok("fstat", change, ground.fstat(fh).await));
    }
}

/// From 1970 to 2106, and with their fraction where the remote has one.
pub async fn times_are_kept(ground: &Ground) {
    ground.put("file", b"").await;
    for secs in [0, 1, 1_234_567_890, i64::from(i32::MAX), 1 << 31, i64::from(u32::MAX)] {
        for nanos in [0, 123_456_789] {
            let time = Timestamp { secs, nanos };
            let change =
                AttrChange { atime: Some(time), mtime: Some(time), ..AttrChange::default() };
            ok("setattr", time, ground.setattr(&path("file"), change).await);
            let kept = if ground.expect().nanoseconds { time } else { Timestamp::from_secs(secs) };
            let attr = ground.attr("file").await;
            assert_eq!((attr.atime, attr.mtime), (kept, kept));
        }
    }
}

/// All twelve bits, of files and directories.
pub async fn permissions_are_kept(ground: &Ground) {
    ground.put("file", b"").await;
    ground.dir("dir").await;
    for at in ["file", "dir"] {
        for perm in [0o700, 0o777, 0o644, 0o4755, 0o2755, 0o1777, 0o7777] {
            let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
            ok("setattr", perm, ground.setattr(&path(at), change).await);
            let seen = ground.attr(at).await.perm;
            assert_eq!(seen, perm, "{at}: {seen:o} instead of {perm:o}");
        }
    }
}

/// A change of a link is the link's or is refused; what it leads to stays as it is.
pub async fn a_link_is_changed_itself(ground: &Ground) {
    ground.put("file", b"content").await;
    ok("setattr", "file", ground.setattr(&path("file"), mtime_change(1_000_000_000)).await);
    ground.put_link("file", "link").await;
    ground.put_link("nowhere", "dangling").await;
    let file = ground.attr("file").await;
    for at in ["link", "dangling"] {
        let changed = ground.setattr(&path(at), mtime_change(1_222_222_222)).await;
        if ground.expect().link_attributes {
            assert_eq!(changed, Ok(()), "{at}");
            assert_eq!(ground.attr(at).await.mtime, Timestamp::from_secs(1_222_222_222), "{at}");
        } else {
            assert_eq!(changed, Err(Errno::EOPNOTSUPP), "{at}");
        }
        // Linux has no permissions of links, other systems have: done or refused, but not to the
        // file.
        let perm = AttrChange { perm: Some(0o600), ..AttrChange::default() };
        let refused = ground.setattr(&path(at), perm).await.is_err();
        assert!(refused || ground.attr(at).await.perm == 0o600, "{at}");
    }
    assert_eq!(ground.attr("file").await, file);
    assert!(!ground.exists("nowhere").await);
}

/// Writing gives a file a new time of change, and so do entries to a directory.
pub async fn a_change_is_seen_in_the_times(ground: &Ground) {
    let long_ago = mtime_change(1_000_000_000);
    let start = Timestamp::now().secs - CLOCK_SLACK_SECS;
    ground.dir("dir").await;
    ground.put("dir/file", b"content").await;
    ok("setattr", "file", ground.setattr(&path("dir/file"), long_ago).await);
    let fh = ground.open_rw("dir/file").await;
    ground.put_at(fh, 0, b"C").await;
    assert!(ok("fstat", "file", ground.fstat(fh).await).mtime.secs >= start, "after a write");
    ground.close(fh);
    assert!(ground.attr("dir/file").await.mtime.secs >= start, "after the close");
    let steps = ["create", "mkdir", "rename", "unlink", "rmdir"];
    for step in steps {
        ok("setattr", "dir", ground.setattr(&path("dir"), long_ago).await);
        match step {
            "create" => ground.put("dir/new", b"").await,
            "mkdir" => ground.dir("dir/sub").await,
            "rename" => {
                let (from, to) = (path("dir/new"), path("dir/newer"));
                ok(step, &from, ground.rename(&from, &to, base::RenameMode::Replace).await);
            }
            "unlink" => ok(step, "newer", ground.unlink(&path("dir/newer")).await),
            _ => ok(step, "sub", ground.rmdir(&path("dir/sub")).await),
        }
        assert!(ground.attr("dir").await.mtime.secs >= start, "the directory's after {step}");
    }
}

/// An owner is set without the other; to set what is there already always works.
pub async fn owners_are_set(ground: &Ground) {
    ground.put("file", b"").await;
    let before = ground.attr("file").await;
    let same = AttrChange { uid: Some(before.uid), gid: Some(before.gid), ..AttrChange::default() };
    ok("setattr", same, ground.setattr(&path("file"), same).await);
    ok("setattr", "nothing", ground.setattr(&path("file"), AttrChange::default()).await);
    assert_eq!(ground.attr("file").await, before);
    if !ground.expect().chown {
        return;
    }
    for change in [
        AttrChange { uid: Some(12_345), ..AttrChange::default() },
        AttrChange { gid: Some(23_456), ..AttrChange::default() },
        AttrChange { uid: Some(1), gid: Some(2), ..AttrChange::default() },
    ] {
        let before = ground.attr("file").await;
        ok("setattr", change, ground.setattr(&path("file"), change).await);
        assert_eq!(ground.attr("file").await, applied(before, &change), "{change:?}");
    }
}

/// `statvfs` has no figure that a caller would stumble over.
pub async fn figures_make_sense(ground: &Ground) {
    ground.dir("dir").await;
    for at in ["", "dir"] {
        let figures = ok("statvfs", at, ground.statvfs(&path(at)).await);
        assert!(figures.block_size > 0 && figures.fragment_size > 0, "{figures:?}");
        assert!(figures.blocks > 0 && figures.blocks_free <= figures.blocks, "{figures:?}");
        assert!(figures.blocks_available <= figures.blocks_free, "{figures:?}");
        assert!(figures.files_free <= figures.files, "{figures:?}");
        assert!(figures.files_available <= figures.files_free, "{figures:?}");
        assert_eq!(figures.name_max, ground.expect().name_max as u64);
        assert!(!figures.read_only);
    }
    let (root, dir) = (ground.statvfs(&path("")).await, ground.statvfs(&path("dir")).await);
    assert_eq!(root.map(|figures| figures.fsid), dir.map(|figures| figures.fsid));
}
