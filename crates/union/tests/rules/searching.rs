//! Which branch's answer is used.

use base::{Errno, FileKind, Remote};
use testkit::{Call, path};

use crate::kit::{ABSENT, Built, soon};

#[tokio::test]
async fn the_search_order_decides_not_the_order_of_replies() {
    let built = Built::new(3);
    built.mem(1).put_file("a", "second");
    built.mem(2).put_file("a", "third!");
    for _ in 0..2 {
        let held = built.faults(1).hold_answer(Call::Lstat, 1);
        let call = built.start(|union| async move { union.lstat(&path("a")).await });
        held.arrived().await;
        // The first and the third have answered; the second is still needed.
        tokio::task::yield_now().await;
        assert!(!call.is_finished());
        held.release();
        assert_eq!(soon(call).await.unwrap().unwrap().size, 6);
        assert_eq!(built.get("a").await.unwrap(), b"second");
        built.mem(0).put_file("b", "x");
    }
    let held = built.faults(1).hold_answer(Call::Open, 1);
    let call = built.start(|union| async move {
        let flags = base::OpenFlags::existing(base::Access::Read);
        let opened = union.open(&path("a"), flags).await.unwrap();
        let data = union.read(opened.fh, 0, 100).await.unwrap();
        union.close(opened.fh);
        data.to_vec()
    });
    held.arrived().await;
    held.release();
    assert_eq!(soon(call).await.unwrap(), b"second");
    assert_eq!(built.open_handles(), 0);
}

#[tokio::test]
async fn later_branches_are_not_awaited_once_a_name_is_found() {
    let built = Built::new(3);
    built.mem(1).put_file("a", "content");
    built.mem(1).put_symlink("l", "a");
    for call in [Call::Lstat, Call::Open, Call::Readlink] {
        let held = built.faults(2).hold(call, 1);
        match call {
            Call::Lstat => {
                soon(built.union.lstat(&path("a"))).await.unwrap();
            }
            Call::Open => assert_eq!(soon(built.get("a")).await.unwrap(), b"content"),
            _ => assert_eq!(soon(built.union.readlink(&path("l"))).await.unwrap(), b"a"),
        }
        // The request to the third was dropped.
        soon(held.over()).await;
    }
    assert_eq!(built.open_handles(), 0);
}

#[tokio::test]
async fn a_look_up_is_one_request_to_each_at_the_same_time() {
    let built = Built::new(3);
    built.mem(2).put_file("d/e/f", "content");
    // The first time all parent directories are queried, and none waits for another.
    let gates: Vec<_> = (1..=3).map(|nth| built.faults(2).hold(Call::Lstat, nth)).collect();
    let call = built.start(|union| async move { union.lstat(&path("d/e/f")).await });
    for gate in &gates {
        soon(gate.arrived()).await;
    }
    gates.iter().for_each(testkit::faulty::Gate::release);
    assert_eq!(soon(call).await.unwrap().unwrap().size, 7);
    built.union.lstat(&path("d")).await.unwrap();
    built.union.lstat(&path("d/e")).await.unwrap();
    built.reset_calls();
    built.union.lstat(&path("d/e/f")).await.unwrap();
    built.union.lstat(&path("d/e/g")).await.unwrap_err();
    assert_eq!(built.requests(), [2, 2, 2]);
}

#[tokio::test]
async fn a_name_created_on_a_branch_without_the_directory_before_is_found() {
    let built = Built::new(2);
    built.mem(0).put_file("d/e/x", "first");
    for at in ["d", "d/e", "d/e/y"] {
        let _ = built.union.lstat(&path(at)).await;
    }
    assert_eq!(built.union.lstat(&path("d/e/y")).await, Err(ABSENT));
    built.mem(1).put_file("d/e/y", "second");
    assert_eq!(built.get("d/e/y").await.unwrap(), b"second");
    built.mem(1).remove("d");
    assert_eq!(built.union.lstat(&path("d/e/y")).await, Err(ABSENT));
    built.mem(0).remove("d");
    built.mem(0).put_file("d", "now a file");
    assert_eq!(built.union.lstat(&path("d/e/y")).await, Err(Errno::ENOTDIR));
}

#[tokio::test]
async fn a_file_hides_directories_of_later_branches_with_all_below() {
    let built = Built::new(2);
    built.mem(0).put_file("a", "file");
    built.mem(1).put_file("a/b/c", "hidden");
    assert_eq!(built.union.lstat(&path("a")).await.unwrap().kind, FileKind::Regular);
    for at in ["a/b", "a/b/c", "a/x"] {
        assert_eq!(built.union.lstat(&path(at)).await, Err(Errno::ENOTDIR), "{at}");
        assert_eq!(built.get(at).await, Err(Errno::ENOTDIR), "{at}");
        assert_eq!(built.names(at).await, Err(Errno::ENOTDIR), "{at}");
        assert_eq!(built.put(at, b"x").await, Err(Errno::ENOTDIR), "{at}");
    }
    assert_eq!(built.names("").await.unwrap(), ["a"]);
}

#[tokio::test]
async fn a_hidden_link_is_no_way_to_something_else() {
    let built = Built::new(2);
    built.mem(0).put_file("a/x", "shown");
    built.mem(1).put_file("secret/y", "hidden");
    built.mem(1).put_symlink("a", "secret");
    built.mem(1).put_symlink("link", "secret");
    built.sources[1].link.follow_links();
    assert_eq!(built.names("link").await, Err(Errno::ENOTDIR));
    for _ in 0..2 {
        assert_eq!(built.names("a").await.unwrap(), ["x"]);
        assert_eq!(built.get("a/y").await, Err(ABSENT));
        assert_eq!(built.union.lstat(&path("a/y")).await, Err(ABSENT));
        assert_eq!(built.union.unlink(&path("a/y")).await, Err(ABSENT));
    }
    assert_eq!(built.union.rmdir(&path("a/x")).await, Err(Errno::ENOTDIR));
    assert!(built.mem(1).exists("secret/y"));
}

#[tokio::test]
async fn only_absence_lets_the_search_go_on() {
    for errno in [Errno::EACCES, Errno::EIO, Errno::EHOSTDOWN, Errno::ETIMEDOUT, Errno::ENOSPC] {
        let built = Built::new(2);
        built.mem(1).put_file("a", "content");
        built.mem(1).put_symlink("l", "a");
        built.faults(0).fail_always(testkit::faulty::Which::Any, errno);
        assert_eq!(built.union.lstat(&path("a")).await, Err(errno));
        assert_eq!(built.get("a").await, Err(errno));
        assert_eq!(built.put("a", b"new").await, Err(errno));
        assert_eq!(built.union.readlink(&path("l")).await, Err(errno));
        assert_eq!(built.names("").await, Err(errno));
        assert_eq!(built.union.unlink(&path("a")).await, Err(errno));
        assert_eq!(built.mem(1).content("a"), b"content");
    }
}

#[tokio::test]
async fn a_shown_entry_does_not_fail_because_of_later_branches() {
    let built = Built::new(2);
    built.mem(0).put_file("a", "content");
    built.mem(0).put_dir("d");
    built.faults(1).fail_always(testkit::faulty::Which::Any, Errno::EIO);
    assert_eq!(built.get("a").await.unwrap(), b"content");
    assert!(built.union.lstat(&path("d")).await.unwrap().is_dir());
    // But a listing would be incomplete, and a removal could not be complete for certain.
    assert_eq!(built.names("d").await, Err(Errno::EIO));
    assert_eq!(built.union.unlink(&path("a")).await, Err(Errno::EIO));
    assert_eq!(built.put("new", b"").await, Err(Errno::EIO));
    assert!(built.mem(0).exists("a") && !built.mem(0).exists("new"));
}

#[tokio::test(start_paused = true)]
async fn a_directory_is_not_delayed_by_later_branches() {
    let built = Built::new(2);
    built.mem(0).put_file("d/a", "content");
    // Not known to be unreachable yet, and not answering.
    let held = built.faults(1).hold(Call::Lstat, 1);
    let call = built.start(|union| async move { union.lstat(&path("d")).await });
    held.arrived().await;
    assert!(call.await.unwrap().unwrap().is_dir());
    // Known to be unreachable: not queried, and no time passes.
    built.sources[1].link.set_away(true);
    let before = tokio::time::Instant::now();
    let _held = built.faults(1).hold(Call::Lstat, 1);
    assert!(built.union.lstat(&path("d")).await.unwrap().is_dir());
    assert_eq!(built.get("d/a").await.unwrap(), b"content");
    assert_eq!(before.elapsed(), std::time::Duration::ZERO);
}

#[tokio::test]
async fn locate_returns_all_copies_with_the_shown_one_first() {
    let built = Built::new(3);
    built.mem(2).put_file("a", "");
    built.mem(1).put_file("a", "");
    let hosts: Vec<String> =
        built.union.locate(&path("a")).await.unwrap().into_iter().map(|at| at.host).collect();
    assert_eq!(hosts, ["gw1", "gw2"]);
    assert_eq!(built.union.locate(&path("b")).await, Err(ABSENT));
    assert_eq!(built.union.locate(&path("")).await.unwrap().len(), 3);
    assert_eq!(built.union.locate(&path("a")).await.unwrap()[0].source, "gw1:/d");
}
