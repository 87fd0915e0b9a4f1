//! Branches that cannot be reached.

use base::{Access, AttrChange, Create, Errno, OpenFlags, Remote};
use testkit::faulty::Which;
use testkit::{Call, MemRemote, path};
use union::{ActionPolicy, CreatePolicy, Mode, Policies, Presence};

use crate::kit::{ABSENT, Built, Source, all, create, place, soon};

/// Three branches, of which the first is optional.
fn built() -> Built {
    let built = Built::with(3, Policies::default(), |number, branch| {
        if number == 0 {
            branch.presence = Presence::Optional;
        }
    });
    for number in 0..3 {
        built.mem(number).put_file(&format!("only{number}"), "content");
        built.mem(number).put_file("same", number.to_string());
        built.mem(number).put_file("d/x", number.to_string());
    }
    built
}

#[tokio::test]
async fn an_unreachable_optional_branch_is_not_queried() {
    let built = built();
    assert_eq!(built.get("same").await.unwrap(), b"0");
    assert!(!built.union.status().branches[0].left_out);
    built.sources[0].link.set_away(true);
    // A request to it would never be answered.
    let gates: Vec<_> = Call::ALL.iter().map(|call| built.faults(0).hold(*call, 1)).collect();
    built.reset_calls();
    assert_eq!(soon(built.get("same")).await.unwrap(), b"1");
    assert_eq!(soon(built.union.lstat(&path("only0"))).await, Err(ABSENT));
    assert_eq!(soon(built.names("")).await.unwrap(), ["d", "only1", "only2", "same"]);
    assert_eq!(soon(built.names("d")).await.unwrap(), ["x"]);
    soon(built.put("new", b"content")).await.unwrap();
    soon(built.union.mkdir(&path("newdir"), 0o755)).await.unwrap();
    soon(built.union.unlink(&path("only1"))).await.unwrap();
    soon(built.union.statvfs(&path(""))).await.unwrap();
    assert_eq!(built.requests()[0], 0);
    assert!(built.mem(1).exists("new") && built.mem(1).exists("newdir"));
    let status = built.union.status();
    assert!(status.branches[0].left_out && status.branches[0].away);
    assert!(!status.branches[1].left_out && !built.union.is_disconnected());
    // It comes back with all its entries.
    drop(gates);
    built.faults(0).clear();
    built.sources[0].link.set_away(false);
    assert_eq!(built.get("same").await.unwrap(), b"0");
    assert!(built.names("").await.unwrap().contains(&"only0".to_owned()));
    assert!(!built.union.status().branches[0].left_out);
}

#[tokio::test]
async fn the_return_of_a_branch_is_reported_once() {
    for is_requested in [false, true] {
        let built = built();
        built.get("same").await.unwrap();
        assert!(!built.union.take_returned(), "it was never left out");
        built.sources[0].link.set_away(true);
        assert_eq!(soon(built.get("same")).await.unwrap(), b"1");
        assert!(!built.union.take_returned(), "it is away");
        built.sources[0].link.set_away(false);
        if is_requested {
            assert_eq!(built.get("same").await.unwrap(), b"0");
        }
        assert!(built.union.take_returned());
        assert!(!built.union.take_returned());
    }
}

#[tokio::test]
async fn an_optional_branch_lost_during_a_request_is_left_out() {
    for call in [Call::Lstat, Call::Open, Call::Opendir, Call::Readdir] {
        let built = built();
        let held = built.faults(0).hold(call, 1);
        let task = match call {
            Call::Lstat => built.start(|union| async move {
                assert_eq!(union.lstat(&path("only0")).await, Err(ABSENT));
            }),
            Call::Open => built.start(|union| async move {
                let flags = base::OpenFlags::existing(base::Access::Read);
                let opened = union.open(&path("same"), flags).await.unwrap();
                assert_eq!(union.read(opened.fh, 0, 9).await.unwrap().to_vec(), b"1");
                union.close(opened.fh);
            }),
            _ => built.start(|union| async move {
                let dh = union.opendir(&path("d")).await.unwrap();
                assert!(union.readdir(dh).await.unwrap().is_some());
                assert!(union.readdir(dh).await.unwrap().is_none());
                union.closedir(dh);
            }),
        };
        soon(held.arrived()).await;
        built.sources[0].link.set_away(true);
        soon(task).await.unwrap();
        assert!(built.union.status().branches[0].left_out, "{call:?}");
        soon(held.over()).await;
        assert_eq!(built.open_handles(), 0, "{call:?}");
    }
}

/// A program that deletes what is missing would take them for empty.
#[tokio::test]
async fn a_listing_fails_if_all_its_branches_go_away() {
    for after_first in [false, true] {
        let built = Built::with(2, Policies::default(), |_, branch| {
            branch.presence = Presence::Optional;
        });
        for number in 0..2 {
            built.mem(number).put_file("d/x", number.to_string());
        }
        let task = built.start(move |union| async move {
            let dh = union.opendir(&path("d")).await.unwrap();
            if after_first {
                assert!(union.readdir(dh).await.unwrap().is_some());
            }
            let end = loop {
                match union.readdir(dh).await {
                    Ok(Some(_)) => {}
                    end => break end.map(drop),
                }
            };
            assert_eq!(end, Err(Errno::EHOSTDOWN), "{after_first}");
            union.closedir(dh);
        });
        let nth = if after_first { 2 } else { 1 };
        let gates = [0, 1].map(|number| built.faults(number).hold(Call::Readdir, nth));
        for gate in &gates {
            soon(gate.arrived()).await;
        }
        built.sources.iter().for_each(|source| source.link.set_away(true));
        soon(task).await.unwrap();
    }
}

#[tokio::test]
async fn one_that_only_answers_so_is_left_out_as_well() {
    for errno in [Errno::EHOSTDOWN, Errno::ETIMEDOUT] {
        let built = built();
        built.faults(0).fail_always(Which::Any, errno);
        assert_eq!(built.get("same").await.unwrap(), b"1");
        assert!(built.union.status().branches[0].left_out);
        // Any other error is an answer.
        built.faults(0).clear();
        built.faults(0).fail_always(Which::Any, Errno::EACCES);
        assert_eq!(built.get("same").await, Err(Errno::EACCES));
        assert!(!built.union.status().branches[0].left_out);
    }
}

#[tokio::test]
async fn a_required_branch_is_never_left_out() {
    let built = built();
    built.faults(1).cut();
    assert_eq!(built.get("only1").await, Err(Errno::EHOSTDOWN));
    assert_eq!(built.get("only2").await, Err(Errno::EHOSTDOWN));
    assert_eq!(built.names("").await, Err(Errno::EHOSTDOWN));
    // Entries of the branches before it are found.
    assert_eq!(built.get("only0").await.unwrap(), b"content");
    assert!(built.union.lstat(&path("d")).await.unwrap().is_dir());
    assert!(!built.union.status().branches[1].left_out);
    built.faults(1).restore();
    assert_eq!(built.get("only2").await.unwrap(), b"content");
}

#[tokio::test]
async fn a_union_is_disconnected_when_a_required_branch_is() {
    let built = built();
    let gone = built.start(|union| async move { union.disconnected().await });
    built.sources[0].link.set_away(true);
    tokio::task::yield_now().await;
    assert!(!built.union.is_disconnected() && !gone.is_finished());
    built.sources[2].link.set_away(true);
    soon(gone).await.unwrap();
    assert!(built.union.is_disconnected());
    soon(built.union.disconnected()).await;
}

#[tokio::test]
async fn without_a_reachable_branch_nothing_looks_absent_or_empty() {
    let built = Built::with(3, Policies::default(), |number, branch| {
        branch.presence = Presence::Optional;
        if number == 2 {
            branch.place = place("p");
        }
    });
    built.mem(0).put_file("a", "");
    built.mem(2).put_file("a", "");
    built.sources.iter().for_each(|source| source.link.set_away(true));
    assert_eq!(built.union.lstat(&path("a")).await, Err(Errno::EHOSTDOWN));
    assert_eq!(built.union.lstat(&path("p/a")).await, Err(Errno::EHOSTDOWN));
    assert_eq!(built.get("p/a").await, Err(Errno::EHOSTDOWN));
    assert_eq!(built.put("p/b", b"").await, Err(Errno::EHOSTDOWN));
    assert_eq!(built.union.unlink(&path("p/a")).await, Err(Errno::EHOSTDOWN));
    // The places themselves exist.
    assert_eq!(built.names("").await.unwrap(), ["p"]);
    assert!(built.union.lstat(&path("p")).await.unwrap().is_dir());
    assert_eq!(built.names("p").await, Err(Errno::EHOSTDOWN));
}

#[tokio::test]
async fn nothing_is_created_on_an_unreachable_branch() {
    let built = Built::with(2, create(CreatePolicy::Ff), |number, branch| match number {
        0 => branch.presence = Presence::Optional,
        _ => branch.mode = Mode::Ro,
    });
    built.sources[0].link.set_away(true);
    assert_eq!(built.put("a", b"").await, Err(Errno::EHOSTDOWN));
    built.sources[0].link.set_away(false);
    built.put("a", b"").await.unwrap();
    assert!(built.mem(0).exists("a"));
}

#[tokio::test]
async fn a_change_on_the_way_fails_when_its_optional_branch_goes() {
    let built = built();
    let held = built.faults(0).hold(Call::Unlink, 1);
    let task = built.start(|union| async move { union.unlink(&path("only0")).await });
    soon(held.arrived()).await;
    built.sources[0].link.set_away(true);
    assert_eq!(soon(task).await.unwrap(), Err(Errno::EHOSTDOWN));
}

/// A file hides the entries of later branches. So a change of it on its own branch does not need
/// them, even if one is required and unreachable.
#[tokio::test]
async fn a_change_of_a_file_does_not_wait_for_later_branches() {
    let built = Built::new(2);
    built.mem(0).put_file("file", "content");
    built.mem(0).put_dir("d");
    // Requests to it are never answered.
    let _gates: Vec<_> = Call::ALL.iter().map(|call| built.faults(1).hold(*call, 1)).collect();
    let change = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    soon(built.union.setattr(&path("file"), change)).await.unwrap();
    soon(built.put("file", b"new")).await.unwrap();
    assert_eq!(built.mem(0).content("file"), b"new");
    let exclusive =
        OpenFlags { create: Create::Exclusive(0o644), ..OpenFlags::existing(Access::Write) };
    let refused = soon(built.union.open(&path("file"), exclusive)).await;
    assert_eq!(refused.err(), Some(Errno::EEXIST));
}

/// What needs all branches fails while a required one is unreachable.
#[tokio::test]
async fn a_change_of_several_branches_needs_all_of_them() {
    for policies in [Policies::default(), all()] {
        let built = Built::with(2, policies, |_, _| {});
        built.mem(0).put_file("file", "content");
        built.mem(0).put_dir("d");
        built.faults(1).cut();
        let change = AttrChange { perm: Some(0o600), ..AttrChange::default() };
        let away = Err(Errno::EHOSTDOWN);
        assert_eq!(built.union.setattr(&path("d"), change).await, away);
        assert_eq!(built.union.unlink(&path("file")).await, away);
        assert_eq!(built.put("new", b"content").await, away);
        let changed = built.union.setattr(&path("file"), change).await;
        assert_eq!(changed.is_ok(), policies.action == ActionPolicy::First);
    }
}

/// `ETIMEDOUT` of an entry of a local directory: that entry is on a dead network file system.
#[tokio::test]
async fn an_error_of_one_entry_does_not_leave_out_a_local_branch() {
    let options = testkit::mem::Options { may_be_lost: false, ..Default::default() };
    let sources = vec![Source::of(MemRemote::with(options)), Source::new()];
    let built = Built::of(sources, Policies::default(), |_, branch| {
        branch.presence = Presence::Optional;
    });
    built.mem(0).put_file("dead", "content");
    built.faults(0).fail(Call::Lstat, 1, Errno::ETIMEDOUT);
    assert_eq!(built.union.lstat(&path("dead")).await, Err(Errno::ETIMEDOUT));
    assert!(!built.union.status().branches[0].left_out);
    built.faults(0).fail(Call::Open, 1, Errno::ETIMEDOUT);
    assert_eq!(built.put("dead", b"elsewhere").await, Err(Errno::ETIMEDOUT));
    assert!(!built.mem(1).exists("dead"));
    built.faults(0).fail(Call::Statvfs, 1, Errno::ETIMEDOUT);
    assert_eq!(built.union.statvfs(&path("")).await, Err(Errno::ETIMEDOUT));
}
