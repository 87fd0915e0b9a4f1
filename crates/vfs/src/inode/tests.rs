//! Attributes and pages over time.

use base::{ChangeId, FileId, InodeAttr};

use super::pages::{DROP_DELAY, RACY_WINDOW};
use super::*;

fn attr(size: u64, mtime: i64) -> Attr {
    let time = Timestamp::from_secs(mtime);
    Attr {
        kind: FileKind::Regular,
        perm: 0o644,
        size,
        uid: 1,
        gid: 1,
        atime: time,
        mtime: time,
        inode: None,
    }
}

fn inode() -> Inode {
    Inode::new(Ino(2), 2, FileKind::Regular, false)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[tokio::test(start_paused = true)]
async fn unchanged_attributes_are_valid_longer_each_time() {
    let inode = inode();
    let timeout = Timeout { min: secs(1), max: secs(3) };
    let now = Timestamp::now().secs;
    for lifetime in [1, 2, 3, 3] {
        inode.state().set_attr(attr(1, now), Instant::now(), Instant::now(), timeout);
        assert_eq!(inode.state().valid_until() - Instant::now(), secs(lifetime));
        tokio::time::advance(secs(lifetime)).await;
        assert!(inode.state().fresh_attr(Instant::now()).is_none());
    }
    inode.state().set_attr(attr(2, 100), Instant::now(), Instant::now(), timeout);
    assert_eq!(inode.state().valid_until() - Instant::now(), secs(1), "it changed");
}

#[tokio::test(start_paused = true)]
async fn attributes_of_old_files_are_valid_longer_at_first() {
    let timeout = Timeout { min: secs(1), max: secs(20) };
    let now = Timestamp::now().secs;
    // So that a clock tick does not change the tenth of the age.
    for (age, lifetime) in [(-500, 1), (3, 1), (105, 10), (1005, 20), (now, 20)] {
        let inode = inode();
        inode.state().set_attr(attr(1, now - age), Instant::now(), Instant::now(), timeout);
        assert_eq!(inode.state().valid_until() - Instant::now(), secs(lifetime), "{age}");
        inode.state().set_attr(attr(2, now - age), Instant::now(), Instant::now(), timeout);
        assert_eq!(inode.state().valid_until() - Instant::now(), secs(1), "it changed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_listing_is_valid_as_long_as_all_its_entries() {
    let inode = inode();
    let timeout = Timeout { min: secs(1), max: secs(20) };
    let (now, start) = (Timestamp::now().secs, Instant::now());
    inode.state().set_attr(attr(1, now - 1005), start, start, timeout);
    tokio::time::advance(secs(1)).await;
    let stamp = RequestStamp { seq: 0, at: Instant::now() };
    let lifetime = |newest| inode.state().listing_lifetime(stamp, newest, timeout);
    assert_eq!(lifetime(i64::MIN), secs(20), "empty");
    assert_eq!((lifetime(now - 105), lifetime(now - 3)), (secs(10), secs(1)));
    tokio::time::advance(secs(1)).await;
    inode.state().set_attr(attr(1, now - 1005), Instant::now(), Instant::now(), timeout);
    assert_eq!(lifetime(now - 105), secs(10), "nothing new");
    inode.state().note_change(1);
    assert_eq!(lifetime(now - 105), secs(1), "changed here");
    let later = RequestStamp { seq: 1, ..stamp };
    inode.state().set_attr(attr(2, now - 1005), Instant::now(), Instant::now(), timeout);
    assert_eq!(inode.state().listing_lifetime(later, now - 105, timeout), secs(1), "elsewhere");
}

/// Whether an open whose content is read from now on keeps the pages.
fn validate(inode: &Inode, attr: &Attr, trust_racy: bool) -> bool {
    let mut state = inode.state();
    state.validate_pages(attr, trust_racy, Instant::now()) && !state.may_drop_pages()
}

#[tokio::test(start_paused = true)]
async fn racy_pages_are_not_kept() {
    let inode = inode();
    let timeout = Timeout::fixed(secs(1));
    let now = Timestamp::now().secs;
    inode.state().set_attr(attr(1, now), Instant::now(), Instant::now(), timeout);
    assert!(!validate(&inode, &attr(1, now), false), "never filled");
    assert!(validate(&inode, &attr(1, now), true));
    assert!(!validate(&inode, &attr(1, now), false), "filled in that second");
    tokio::time::advance(RACY_WINDOW).await;
    assert!(!validate(&inode, &attr(1, now), false), "filled in that second");
    tokio::time::advance(secs(1)).await;
    assert!(validate(&inode, &attr(1, now), false), "filled after it");
    assert!(!validate(&inode, &attr(2, now), false), "another content");
    inode.state().invalidate_pages_and_size();
    let read_from = Instant::now() - secs(1);
    assert!(!inode.state().validate_pages(&attr(1, now), false, read_from));
    assert!(!validate(&inode, &attr(1, now), false), "read in that second, and opened after it");
}

#[test]
fn pages_of_an_old_file_are_kept_at_once() {
    let inode = inode();
    inode.state().set_attr(attr(1, 1000), Instant::now(), Instant::now(), Timeout::fixed(secs(1)));
    assert!(!validate(&inode, &attr(1, 1000), false));
    assert!(validate(&inode, &attr(1, 1000), false));
    inode.state().invalidate_pages_and_size();
    assert!(!validate(&inode, &attr(1, 1000), false));
}

/// The thread of an open that was answered may drop the pages later than another open is answered.
#[tokio::test(start_paused = true)]
async fn pages_are_not_kept_until_the_kernel_has_dropped_older_ones() {
    let inode = inode();
    let timeout = Timeout::fixed(secs(1));
    let old = attr(1, 1000);
    assert!(!validate(&inode, &old, false), "never filled");
    assert!(validate(&inode, &old, false), "there is nothing to drop");
    for mtime in [2000, 3000] {
        let new = attr(1, mtime);
        inode.state().set_attr(new, Instant::now(), Instant::now(), timeout);
        assert!(!validate(&inode, &new, false));
        let generation = inode.state().content_generation();
        for _ in 0..4 {
            assert!(!validate(&inode, &new, false), "the older pages may be there");
            assert!(!inode.state().has_pages(&new, false));
            tokio::time::advance(DROP_DELAY / 4).await;
        }
        assert!(inode.state().has_pages(&new, false) && validate(&inode, &new, false));
        assert_eq!(inode.state().content_generation(), generation);
    }
}

/// Where pages are never compared.
#[tokio::test(start_paused = true)]
async fn pages_are_not_trusted_until_the_kernel_has_dropped_older_ones() {
    let inode = inode();
    assert!(inode.state().restore_page_trust());
    inode.state().invalidate_pages();
    for _ in 0..2 {
        assert!(!inode.state().restore_page_trust() && !inode.state().trusts_pages());
    }
    tokio::time::advance(secs(1)).await;
    assert!(inode.state().trusts_pages() && inode.state().restore_page_trust());
}

/// Attributes of a remote that reports the ctime.
fn attr_with_ctime(size: u64, mtime: i64, ctime: i64) -> Attr {
    let id = FileId { device: 1, number: 7, btime: None };
    let inode = InodeAttr {
        id: Some(id),
        change: Some(ChangeId { inode: 7, ctime: Timestamp::from_secs(ctime) }),
        links: 1,
        blocks: 8,
        rdev: (0, 0),
        xattrs: None,
    };
    Attr { inode: Some(inode), ..attr(size, mtime) }
}

#[tokio::test(start_paused = true)]
async fn another_ctime_is_another_content_unless_this_mount_has_set_it() {
    let inode = inode();
    let seen = async |ctime| {
        let attr = attr_with_ctime(1, 1000, ctime);
        let now = Instant::now();
        let before = inode.state().content_generation();
        inode.state().set_attr(attr, now, now, Timeout::fixed(secs(1)));
        let kept = validate(&inode, &attr, false);
        tokio::time::advance(DROP_DELAY).await;
        (kept, inode.state().content_generation() > before)
    };
    assert_eq!(seen(2000).await, (false, true), "never filled");
    assert_eq!(seen(2000).await, (true, false));
    assert_eq!(seen(3000).await, (false, true), "rewritten, and its mtime set back");
    assert_eq!(seen(3000).await, (true, false));
    let changes: [fn(&Inode); 3] = [
        |inode| {
            inode.state().begin_change(1);
            inode.state().end_change(2);
        },
        |inode| {
            inode.state().begin_renaming();
            inode.state().end_renaming();
        },
        |inode| inode.state().note_change(3),
    ];
    for (ctime, change) in (4000..).zip(changes) {
        change(&inode);
        assert!(seen(ctime).await.0, "{ctime}: its mode was set here, or it was renamed");
        assert!(seen(ctime).await.0);
        assert!(!seen(ctime + 100).await.0, "{ctime}");
        assert!(seen(ctime + 100).await.0);
    }
    let plain = attr(1, 1000);
    assert!(!validate(&inode, &plain, false), "no identity: another file");
}

#[test]
fn local_fractions_hold_while_the_server_reports_the_same_second() {
    let inode = inode();
    let timeout = Timeout::fixed(secs(1));
    inode.state().set_attr(attr(1, 100), Instant::now(), Instant::now(), timeout);
    let exact = Timestamp { secs: 500, nanos: 123 };
    let change = AttrChange { mtime: Some(exact), ..AttrChange::default() };
    assert!(inode.state().apply(&change, true));
    let last = inode.state().last_attr().unwrap();
    assert_eq!((last.mtime.secs, inode.state().times(&last).1), (500, exact));
    inode.state().set_attr(attr(1, 501), Instant::now(), Instant::now(), timeout);
    let last = inode.state().last_attr().unwrap();
    assert_eq!(inode.state().times(&last).1, Timestamp::from_secs(501));
}

#[test]
fn results_that_the_server_may_change_are_not_predicted() {
    let inode = inode();
    inode.state().set_attr(attr(1, 100), Instant::now(), Instant::now(), Timeout::fixed(secs(1)));
    let of = |change: AttrChange| inode.state().apply(&change, true);
    assert!(of(AttrChange { perm: Some(0o755), ..AttrChange::default() }));
    assert!(!of(AttrChange { perm: Some(0o2755), ..AttrChange::default() }));
    assert!(!of(AttrChange { uid: Some(5), ..AttrChange::default() }));
    assert!(!of(AttrChange { size: Some(5), ..AttrChange::default() }));
    let plain = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    assert!(!inode.state().apply(&plain, false), "nothing counted before");
}
