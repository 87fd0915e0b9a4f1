//! The branch on which new entries are created.

use std::collections::BTreeSet;

use base::{Access, Create, Errno, OpenFlags, Remote};
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{Call, MemRemote, path};
use union::{CreatePolicy, Mode, Policies};

use crate::kit::{ABSENT, Built, Source, create};

/// Sources with these capacities, in bytes.
fn sized(capacities: &[u64]) -> Vec<Source> {
    let source = |capacity: &u64| {
        let limits = Limits { capacity_bytes: Some(*capacity), ..Limits::default() };
        Source::of(MemRemote::with(Options { limits, ..Options::default() }))
    };
    capacities.iter().map(source).collect()
}

async fn make_all_kinds(built: &Built, dir: &str) {
    built.put(&format!("{dir}/file"), b"content").await.unwrap();
    built.union.mkdir(&path(&format!("{dir}/dir")), 0o755).await.unwrap();
    built.union.symlink(b"x", &path(&format!("{dir}/link"))).await.unwrap();
}

fn has_all_kinds(mem: &MemRemote, dir: &str) -> bool {
    ["file", "dir", "link"].iter().all(|name| mem.exists(&format!("{dir}/{name}")))
}

#[tokio::test]
async fn epff_takes_the_first_that_has_the_parent() {
    let built = Built::with(4, create(CreatePolicy::EpFf), |number, branch| match number {
        0 => branch.mode = Mode::NoCreate,
        1 => branch.mode = Mode::Ro,
        _ => {}
    });
    built.mem(0).put_dir("d");
    built.mem(3).put_dir("d");
    make_all_kinds(&built, "d").await;
    assert!(has_all_kinds(built.mem(3), "d"));
    built.put("top", b"content").await.unwrap();
    assert!(built.mem(2).exists("top"));
    assert_eq!(built.put("absent/x", b"").await, Err(ABSENT));
    // Directories that only branches have on which nothing may be created.
    built.mem(1).put_dir("e");
    assert_eq!(built.put("e/x", b"").await, Err(Errno::EROFS));
    assert_eq!(built.union.mkdir(&path("e/x"), 0o755).await, Err(Errno::EROFS));
}

#[tokio::test]
async fn ff_takes_the_first_and_makes_the_parents_alike() {
    let built = Built::with(3, create(CreatePolicy::Ff), |number, branch| {
        if number == 0 {
            branch.mode = Mode::Ro;
        }
    });
    built.mem(2).put_dir("a/b");
    built.mem(2).set_perm("a", 0o711);
    built.mem(2).set_perm("a/b", 0o1770);
    let owner = base::AttrChange { uid: Some(7), gid: Some(8), ..base::AttrChange::default() };
    built.union.setattr(&path("a/b"), owner).await.unwrap();
    make_all_kinds(&built, "a/b").await;
    assert!(has_all_kinds(built.mem(1), "a/b") && !built.mem(0).exists("a"));
    assert_eq!(built.mem(1).attr("a").perm, 0o711);
    let made = built.mem(1).attr("a/b");
    assert_eq!((made.perm, made.uid, made.gid), (0o1770, 7, 8));
    // A parent that no branch has is not created.
    assert_eq!(built.put("absent/x", b"").await, Err(ABSENT));
    // Nor is a directory created where it would be hidden.
    built.mem(0).put_dir("c");
    built.mem(1).put_symlink("c", "a");
    built.put("c/x", b"").await.unwrap();
    assert!(built.mem(2).exists("c/x") && !built.mem(1).exists("a/x"));
}

#[tokio::test]
async fn mfs_takes_the_one_with_most_room() {
    let (policy, mib) = (create(CreatePolicy::Mfs), 1 << 20);
    let built = Built::of(sized(&[mib, 3 * mib, 2 * mib]), policy, |_, _| {});
    built.mem(0).put_dir("d");
    make_all_kinds(&built, "d").await;
    assert!(has_all_kinds(built.mem(1), "d"));
    built.mem(1).edit(|tree| tree.set_capacity(Some(0)));
    built.put("d/next", b"").await.unwrap();
    assert!(built.mem(2).exists("d/next"));
}

#[tokio::test]
async fn epmfs_takes_the_one_with_most_room_that_has_the_parent() {
    let (policy, mib) = (create(CreatePolicy::EpMfs), 1 << 20);
    let built = Built::of(sized(&[mib, 3 * mib, 2 * mib]), policy, |_, _| {});
    built.mem(0).put_dir("d");
    built.mem(2).put_dir("d");
    make_all_kinds(&built, "d").await;
    assert!(has_all_kinds(built.mem(2), "d"));
    // A branch that fails to report its space cannot be chosen.
    built.faults(2).fail_always(Call::Statvfs, Errno::EIO);
    built.put("d/next", b"").await.unwrap();
    assert!(built.mem(0).exists("d/next"));
    built.faults(0).fail_always(Call::Statvfs, Errno::EIO);
    assert_eq!(built.put("d/last", b"").await, Err(Errno::ENOSPC));
    // But an unreachable required branch is an error, not a reason to choose another one.
    built.faults(2).clear();
    built.faults(0).clear();
    built.faults(0).fail_always(Call::Statvfs, Errno::EHOSTDOWN);
    assert_eq!(built.put("d/last", b"").await, Err(Errno::EHOSTDOWN));
}

/// `statvfs` is an extension of SFTP that a server may lack.
#[tokio::test]
async fn branches_that_cannot_report_their_space_come_last() {
    for policy in [CreatePolicy::Mfs, CreatePolicy::EpMfs] {
        let built = Built::of(sized(&[1 << 20; 3]), create(policy), |_, _| {});
        for number in [0, 1] {
            built.faults(number).fail_always(Call::Statvfs, Errno::EOPNOTSUPP);
        }
        built.put("a", b"").await.unwrap();
        assert!(built.mem(2).exists("a"));
        // When the others have none left.
        built.mem(2).edit(|tree| tree.set_capacity(Some(0)));
        built.put("b", b"").await.unwrap();
        assert!(built.mem(0).exists("b"));
        // When there are no others.
        built.faults(2).fail_always(Call::Statvfs, Errno::EOPNOTSUPP);
        built.put("c", b"").await.unwrap();
        assert!(built.mem(0).exists("c"));
    }
}

#[tokio::test]
async fn rand_takes_any() {
    let built = Built::with(3, create(CreatePolicy::Rand), |number, branch| {
        if number == 0 {
            branch.mode = Mode::NoCreate;
        }
    });
    // Each of the two is missed with a probability of 2^-99.
    for number in 0..100 {
        built.put(&number.to_string(), b"").await.unwrap();
    }
    let counts: Vec<usize> = (0..3).map(|number| built.mem(number).names("").len()).collect();
    assert!(counts[0] == 0 && counts[1] > 0 && counts[2] > 0, "{counts:?}");
    assert_eq!(counts[1] + counts[2], 100);
}

#[tokio::test]
async fn no_other_branch_is_tried() {
    for errno in [Errno::ENOSPC, Errno::EACCES, Errno::EDQUOT, Errno::EIO] {
        for policy in [CreatePolicy::EpFf, CreatePolicy::Ff] {
            let built = Built::with(2, create(policy), |_, _| {});
            for call in [Call::Open, Call::Mkdir, Call::Symlink] {
                built.faults(0).fail_always(call, errno);
            }
            assert_eq!(built.put("a", b"").await, Err(errno));
            assert_eq!(built.union.mkdir(&path("a"), 0o755).await, Err(errno));
            assert_eq!(built.union.symlink(b"x", &path("a")).await, Err(errno));
            assert_eq!(built.mem(1).names(""), Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn nothing_is_made_where_all_are_read_only_or_for_no_new_files() {
    for modes in [[Mode::Ro, Mode::NoCreate], [Mode::NoCreate, Mode::NoCreate]] {
        let built =
            Built::with(2, Policies::default(), |number, branch| branch.mode = modes[number]);
        built.mem(0).put_file("there", "content");
        assert_eq!(built.put("a", b"").await, Err(Errno::EROFS));
        assert_eq!(built.union.mkdir(&path("a"), 0o755).await, Err(Errno::EROFS));
        assert_eq!(built.union.symlink(b"x", &path("a")).await, Err(Errno::EROFS));
        assert_eq!(built.union.mkdir(&path("there"), 0o755).await, Err(Errno::EEXIST));
    }
    // The modes apply to a single branch too.
    for mode in [Mode::Ro, Mode::NoCreate] {
        let built = Built::with(1, Policies::default(), |_, branch| branch.mode = mode);
        built.mem(0).put_file("there", "content");
        built.mem(0).put_dir("dir");
        for create in [Create::IfAbsent(0o644), Create::Exclusive(0o644)] {
            for access in [Access::Read, Access::Write] {
                let flags = OpenFlags { create, ..OpenFlags::existing(access) };
                let refused = built.union.open(&path("a"), flags).await.unwrap_err();
                assert_eq!(refused, Errno::EROFS, "{flags:?}");
                let there = built.union.open(&path("there"), flags).await;
                match (create, access, mode) {
                    (Create::Exclusive(_), ..) => assert_eq!(there.unwrap_err(), Errno::EEXIST),
                    (_, Access::Write, Mode::Ro) => assert_eq!(there.unwrap_err(), Errno::EROFS),
                    _ => built.union.close(there.unwrap().fh),
                }
            }
        }
        assert_eq!(built.union.mkdir(&path("a"), 0o755).await, Err(Errno::EROFS));
        assert_eq!(built.union.mkdir(&path("dir"), 0o755).await, Err(Errno::EEXIST));
        assert_eq!(built.union.symlink(b"x", &path("a")).await, Err(Errno::EROFS));
        assert_eq!(built.mem(0).names(""), ["dir", "there"]);
    }
}

#[tokio::test]
async fn a_name_that_any_branch_has_is_taken() {
    let built = Built::new(2);
    built.mem(1).put_file("file", "content");
    built.mem(1).put_dir("dir");
    built.mem(1).put_symlink("link", "file");
    let exclusive =
        OpenFlags { create: Create::Exclusive(0o644), ..OpenFlags::existing(Access::Write) };
    for at in ["file", "dir", "link"] {
        assert_eq!(built.union.open(&path(at), exclusive).await.unwrap_err(), Errno::EEXIST);
        assert_eq!(built.union.mkdir(&path(at), 0o755).await, Err(Errno::EEXIST));
        assert_eq!(built.union.symlink(b"x", &path(at)).await, Err(Errno::EEXIST));
    }
    // Without O_EXCL the existing file is opened.
    built.put("file", b"new").await.unwrap();
    assert_eq!(built.mem(1).content("file"), b"new");
    assert_eq!(built.mem(0).names(""), Vec::<String>::new());
}

#[tokio::test]
async fn a_file_that_is_gone_when_it_is_opened_is_made() {
    let built = Built::new(2);
    built.mem(1).put_file("a", "content");
    let held = built.faults(1).hold(Call::Open, 1);
    let call = built.start(|union| async move {
        let flags =
            OpenFlags { create: Create::IfAbsent(0o644), ..OpenFlags::existing(Access::Write) };
        let opened = union.open(&path("a"), flags).await?;
        union.close(opened.fh);
        Ok::<_, Errno>(())
    });
    held.arrived().await;
    built.mem(1).remove("a");
    held.release();
    call.await.unwrap().unwrap();
    assert!(built.mem(0).exists("a"));
}

#[tokio::test]
async fn a_round_trip_to_ask_and_one_to_make() {
    let built = Built::new(2);
    built.mem(0).put_dir("d");
    built.mem(1).put_dir("d");
    built.names("").await.unwrap();
    built.reset_calls();
    built.union.mkdir(&path("d/new"), 0o755).await.unwrap();
    // The parent directory and the name on each branch, and then the create.
    assert_eq!(built.requests(), [3, 2]);
    let names: BTreeSet<String> = built.names("d").await.unwrap().into_iter().collect();
    assert_eq!(names, BTreeSet::from(["new".to_owned()]));
}
