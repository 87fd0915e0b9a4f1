//! Set-user-ID and set-group-ID bits that a source has: not taken unless asked for, and then only
//! with the owner and group that they are meant for.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use base::{Attr, AttrChange, Errno, FileKind, Remote};
use testkit::{Call, FaultyRemote, MemRemote, path};
use transfer::{Options, Owners, Tree};

use crate::kit::{content, copy_with, job, local_dir, mem, run};

/// Its owner and group are 1000, as those of all that is made in memory.
fn source() -> Arc<MemRemote> {
    mem(|remote| {
        remote.put_file("small", "content");
        remote.put_file("large", content(5 << 20, 1));
        remote.put_dir("dir");
        for name in ["small", "large", "dir"] {
            remote.set_perm(name, 0o6755);
        }
    })
}

/// An empty target at which what is made has this owner and group.
fn target(uid: u32, gid: u32) -> Arc<MemRemote> {
    let limits = testkit::tree::Limits { uid, gid, ..testkit::tree::Limits::default() };
    Arc::new(MemRemote::with(testkit::mem::Options { limits, ..testkit::mem::Options::default() }))
}

fn options(owners: Owners, set_ids: bool) -> Options {
    Options { owners, set_ids, ..Options::default() }
}

#[tokio::test]
async fn cve_set_id_bits_come_only_where_they_are_asked_for_and_the_owner_is_kept() {
    for (owners, set_ids, (uid, gid), perm) in [
        (Owners::Numbers, false, (1000, 1000), 0o755),
        (Owners::Leave, false, (1000, 1000), 0o755),
        (Owners::Leave, true, (2000, 2000), 0o755),
        (Owners::Leave, true, (2000, 1000), 0o2755),
        (Owners::Leave, true, (1000, 2000), 0o4755),
        (Owners::Leave, true, (1000, 1000), 0o6755),
        (Owners::Numbers, true, (2000, 2000), 0o6755),
    ] {
        let target = target(uid, gid);
        let options = options(owners, set_ids);
        for counts in [3, 0] {
            let outcome = copy_with(&source(), &target, options.clone()).await;
            assert!(outcome.is_complete(), "{outcome:#?}");
            for name in ["small", "large"] {
                assert_eq!(target.attr(name).perm, perm, "{name}: {options:?} {uid} {gid}");
            }
            // It says whose the files in it are, and nothing else.
            assert_eq!(target.attr("dir").perm, 0o2755);
            assert!(outcome.counts.entries >= counts);
        }
    }
}

#[tokio::test]
async fn a_mapped_owner_is_the_one_that_bits_are_meant_for() {
    let (uids, gids) = ([(1000, 33)].into(), [(1000, 34)].into());
    let target = target(2000, 2000);
    let outcome = copy_with(&source(), &target, options(Owners::Mapped { uids, gids }, true)).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    let Attr { perm, uid, gid, .. } = target.attr("small");
    assert_eq!((perm, uid, gid), (0o6755, 33, 34));
}

#[tokio::test]
async fn where_the_owner_is_refused_there_are_no_bits() {
    let target = target(2000, 2000);
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    faulty.fail(Call::Fsetattr, 1, Errno::EPERM);
    let source = mem(|remote| {
        remote.put_file("f", "content");
        remote.set_perm("f", 0o6755);
    });
    let outcome = copy_with(&source, &faulty, options(Owners::Numbers, true)).await;
    assert!(outcome.is_complete() && outcome.owners_refused, "{outcome:#?}");
    assert_eq!(target.attr("f").perm, 0o755);
}

#[tokio::test]
async fn what_has_the_content_gets_and_loses_the_bits() {
    let (source, target) = (source(), target(1000, 1000));
    let is_set =
        |set| ["small", "large"].iter().all(|name| (target.attr(name).perm == 0o6755) == set);
    for set_ids in [false, true, true, false] {
        let outcome = copy_with(&source, &target, options(Owners::Numbers, set_ids)).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert!(is_set(set_ids), "{set_ids}");
    }
    // A change of owner takes them away.
    let owner = AttrChange { uid: Some(5), gid: Some(5), ..AttrChange::default() };
    target.setattr(&path("small"), owner).await.unwrap();
    target.set_perm("small", 0o6755);
    let outcome = copy_with(&source, &target, options(Owners::Leave, true)).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(target.attr("small").perm, 0o755);
    let outcome = copy_with(&source, &target, options(Owners::Numbers, true)).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!((target.attr("small").perm, target.attr("small").uid), (0o6755, 1000));
}

#[tokio::test]
async fn files_of_this_machine_have_them_only_with_their_owner() {
    let is_root = rustix::process::geteuid().is_root();
    for (owners, set_ids) in [
        (Owners::Numbers, false),
        (Owners::Numbers, true),
        (Owners::Leave, true),
        (Owners::Leave, false),
    ] {
        let source = mem(|remote| {
            for name in ["small", "large"] {
                let size = if name == "large" { 5 << 20 } else { 5 };
                remote.put_file(name, content(size, 1));
                remote.set_perm(name, 0o6755);
            }
        });
        // Nobody's who runs the tests.
        let owner = AttrChange { uid: Some(65533), gid: Some(65533), ..AttrChange::default() };
        for name in ["small", "large"] {
            source.setattr(&path(name), owner).await.unwrap();
        }
        let (dir, local) = local_dir();
        let mut job = job(source, local.clone(), options(owners.clone(), set_ids));
        job.target = Tree::local(local, dir.path());
        let outcome = run(job).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        let wanted = match (is_root, &owners, set_ids) {
            (true, Owners::Numbers, true) => 0o6755,
            _ => 0o755,
        };
        for name in ["small", "large"] {
            let mode = std::fs::metadata(dir.path().join(name)).unwrap().mode();
            assert_eq!(mode & 0o7777, wanted, "{name}: {owners:?} {set_ids}");
        }
    }
}

#[tokio::test]
async fn owners_that_are_refused_once_are_left_and_nothing_was_set() {
    let source = mem(|remote| {
        for number in 0..300 {
            remote.put_file(&format!("d/{number}"), "content");
        }
    });
    let target = target(2000, 2000);
    let numbers = || options(Owners::Leave, false);
    assert!(copy_with(&source, &target, numbers()).await.is_complete());
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    // All that are under way together when the first one is refused.
    for nth in 1..=200 {
        faulty.fail(Call::Setattr, nth * 2 - 1, Errno::EPERM);
    }
    let outcome = copy_with(&source, &faulty, options(Owners::Numbers, false)).await;
    assert!(outcome.is_complete() && outcome.owners_refused, "{outcome:#?}");
    assert_eq!((outcome.counts.attrs_set, outcome.counts.unchanged), (0, 302), "{outcome:#?}");
    assert_eq!(target.attr("d/1").kind, FileKind::Regular);
}

#[tokio::test]
async fn an_owner_that_is_refused_is_left_and_no_other_one() {
    const FILES: u32 = 50;
    let source = mem(|remote| {
        for number in 0..FILES {
            remote.put_file(&format!("{number}"), "content");
        }
    });
    let owner = |number: u32| 5 + number % 2;
    for number in 0..FILES {
        let (uid, gid) = (Some(owner(number)), Some(7));
        let change = AttrChange { uid, gid, ..AttrChange::default() };
        source.setattr(&path(&format!("{number}")), change).await.unwrap();
    }
    let target = target(2000, 2000);
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    faulty.fail(Call::Fsetattr, 1, Errno::EINVAL);
    let outcome = copy_with(&source, &faulty, options(Owners::Numbers, false)).await;
    assert!(outcome.is_complete() && outcome.owners_refused, "{outcome:#?}");
    let lacking = (0..FILES).filter(|it| target.attr(&format!("{it}")).uid != owner(*it));
    let lacking: std::collections::BTreeSet<u32> = lacking.map(owner).collect();
    assert_eq!(lacking.len(), 1, "{lacking:?}");
}
