//! Attributes, file system statistics and syncing.

use base::{AttrChange, DigestEffort, DigestKind, Errno, Remote, Timestamp};
use testkit::{Call, path};
use union::{Mode, Policies, Presence};

use crate::kit::{Built, all, place};

fn perm(perm: u32) -> AttrChange {
    AttrChange { perm: Some(perm), ..AttrChange::default() }
}

fn mtime(secs: i64) -> AttrChange {
    AttrChange { mtime: Some(Timestamp::from_secs(secs)), ..AttrChange::default() }
}

#[tokio::test]
async fn policy_first_changes_the_shown_copy_and_all_every_copy() {
    for (policies, copies) in [(Policies::default(), 1), (all(), 2)] {
        let built = Built::with(3, policies, |_, _| {});
        built.mem(1).put_file("a", "content");
        built.mem(2).put_file("a", "content");
        let size = AttrChange { size: Some(3), ..perm(0o600) };
        built.union.setattr(&path("a"), size).await.unwrap();
        assert_eq!(built.union.lstat(&path("a")).await.unwrap().size, 3);
        let changed = (0..3).filter(|number| {
            built.mem(*number).exists("a") && built.mem(*number).attr("a").perm == 0o600
        });
        assert_eq!(changed.count(), copies);
        assert_eq!(built.union.setattr(&path("b"), size).await, Err(Errno::ENOENT));
    }
}

#[tokio::test]
async fn all_changes_nothing_when_one_may_not_be_changed() {
    let built = Built::with(2, all(), |number, branch| {
        if number == 1 {
            branch.mode = Mode::Ro;
        }
    });
    built.mem(0).put_file("a", "");
    built.mem(1).put_file("a", "");
    assert_eq!(built.union.setattr(&path("a"), perm(0o600)).await, Err(Errno::EROFS));
    assert_eq!(built.mem(0).attr("a").perm, 0o644);
}

#[tokio::test]
async fn a_branch_for_no_new_files_lets_them_be_changed() {
    let built = Built::with(2, Policies::default(), |_, branch| branch.mode = Mode::NoCreate);
    built.mem(1).put_file("a", "content");
    built.union.setattr(&path("a"), perm(0o600)).await.unwrap();
    built.put("a", b"new").await.unwrap();
    assert_eq!(built.mem(1).content("a"), b"new");
}

#[tokio::test]
async fn a_time_that_is_set_is_the_time_that_is_shown() {
    let built = Built::new(3);
    for number in 0..3 {
        built.mem(number).put_dir("d");
        built.mem(number).set_mtime("d", 1_000 * (number as i64 + 1));
    }
    for secs in [2_000, 500, 5_000] {
        built.union.setattr(&path("d"), mtime(secs)).await.unwrap();
        let shown = built.union.lstat(&path("d")).await.unwrap();
        assert_eq!(shown.mtime, Timestamp::from_secs(secs));
    }
    // An mtime earlier than that of a read-only branch cannot be set.
    built.union.set_mode("gw2:/d", Mode::Ro).unwrap();
    built.mem(2).set_mtime("d", 9_000);
    assert_eq!(built.union.setattr(&path("d"), mtime(8_000)).await, Err(Errno::EROFS));
    assert_eq!(built.mem(0).attr("d").mtime, Timestamp::from_secs(5_000));
    built.union.setattr(&path("d"), perm(0o700)).await.unwrap();
}

/// The first read of a file after its change sets its atime, which may be later than the attributes
/// that the caller has.
#[tokio::test]
async fn a_digest_does_not_depend_on_the_atime() {
    let built = Built::new(2);
    built.mem(0).put_file("f", "content");
    let attr = built.union.lstat(&path("f")).await.unwrap();
    let digest = async || {
        let (kind, effort) = (DigestKind::Sha256, DigestEffort::Known);
        built.union.digest(&path("f"), &attr, kind, effort).await.unwrap()
    };
    let atime = Some(Timestamp::from_secs(5));
    built.mem(0).setattr(&path("f"), AttrChange { atime, ..AttrChange::default() }).await.unwrap();
    assert_ne!(built.union.lstat(&path("f")).await.unwrap().atime, attr.atime);
    assert_eq!(digest().await.as_deref(), Some(&b"f"[..]));
    built.mem(0).set_mtime("f", 5);
    assert_eq!(digest().await, None);
}

#[tokio::test]
async fn statfs_includes_the_branches_that_have_the_directory() {
    let built = Built::new(3);
    built.mem(0).put_dir("both");
    built.mem(1).put_dir("both");
    built.mem(2).put_dir("one");
    let blocks =
        |built: &Built, number: usize| built.mem(number).edit(|tree| tree.statvfs().blocks);
    // The test remotes are all of one size; the free space distinguishes these.
    for number in 0..3 {
        built.mem(number).put_file("filler", vec![1; 4_096 * (number + 1)]);
    }
    let one = blocks(&built, 2);
    let all = built.union.statvfs(&path("")).await.unwrap();
    assert_eq!(all.blocks, 3 * one);
    assert_eq!(built.union.statvfs(&path("both")).await.unwrap().blocks, 2 * one);
    assert_eq!(built.union.statvfs(&path("one")).await.unwrap().blocks, one);
    assert_eq!(built.union.statvfs(&path("one")).await.unwrap().fsid, all.fsid);
    assert_eq!(built.union.statvfs(&path("none")).await, Err(Errno::ENOENT));
    built.faults(1).fail(Call::Statvfs, 1, Errno::EOPNOTSUPP);
    assert_eq!(built.union.statvfs(&path("both")).await.unwrap().blocks, one);
    built.faults(1).fail(Call::Statvfs, 1, Errno::EHOSTDOWN);
    assert_eq!(built.union.statvfs(&path("both")).await, Err(Errno::EHOSTDOWN));
}

#[tokio::test]
async fn statfs_without_a_reachable_branch_fails_as_lstat() {
    let built = Built::with(2, Policies::default(), |_, branch| {
        branch.presence = Presence::Optional;
    });
    for number in 0..2 {
        built.faults(number).fail_always(Call::Statvfs, Errno::EOPNOTSUPP);
    }
    assert_eq!(built.union.statvfs(&path("")).await, Err(Errno::EOPNOTSUPP));
    built.faults(0).cut();
    assert_eq!(built.union.statvfs(&path("")).await, Err(Errno::EHOSTDOWN));
    built.faults(1).cut();
    assert_eq!(built.union.lstat(&path("x")).await, Err(Errno::EHOSTDOWN));
    assert_eq!(built.union.statvfs(&path("")).await, Err(Errno::EHOSTDOWN));
}

#[tokio::test]
async fn statfs_above_unreachable_places_fails() {
    let built = Built::with(1, Policies::default(), |_, branch| branch.place = place("a/x"));
    built.sources[0].link.set_away(true);
    for at in ["", "a"] {
        assert_eq!(built.union.statvfs(&path(at)).await, Err(Errno::EHOSTDOWN));
    }
}

#[tokio::test]
async fn entries_are_synced_on_all_that_have_the_directory() {
    let built = Built::new(3);
    built.mem(0).put_dir("d");
    built.mem(1).put_dir("d");
    built.mem(2).put_file("f", "");
    built.union.fsyncdir(&path("d")).await.unwrap();
    let synced: Vec<u64> =
        (0..3).map(|number| built.faults(number).calls(Call::Fsyncdir)).collect();
    assert_eq!(synced, [1, 1, 0]);
    built.faults(1).fail(Call::Fsyncdir, 1, Errno::EIO);
    assert_eq!(built.union.fsyncdir(&path("d")).await, Err(Errno::EIO));
    assert_eq!(built.union.fsyncdir(&path("f")).await, Err(Errno::ENOTDIR));
    assert_eq!(built.union.fsyncdir(&path("x")).await, Err(Errno::ENOENT));
}

#[tokio::test]
async fn the_window_is_that_of_all_ways_together() {
    let built = Built::new(3);
    let one = built.sources[0].link.suggested_window();
    let all = built.union.suggested_window();
    assert_eq!((all.bytes, all.request_bytes), (3 * one.bytes, one.request_bytes));
    built.sources[1].link.set_away(true);
    assert_eq!(built.union.suggested_window().bytes, 2 * one.bytes);
}
