//! Branches in directories of their own.

use base::{Access, AttrChange, Create, Errno, OpenFlags, Remote, RenameMode};
use testkit::faulty::Which;
use testkit::path;
use union::{CreatePolicy, Policies};

use crate::kit::{ABSENT, Built, create, place};

/// Branches at these places, each with a file `own` and one that contains its number.
fn placed(places: &[&str]) -> Built {
    with_policy(places, Policies::default())
}

fn with_policy(places: &[&str], policies: Policies) -> Built {
    let built = Built::with(places.len(), policies, |number, branch| {
        branch.place = place(places[number]);
    });
    for number in 0..places.len() {
        built.mem(number).put_file("own", number.to_string());
        built.mem(number).put_file(&format!("from{number}"), "");
    }
    built
}

#[tokio::test]
async fn places_may_have_any_depth() {
    let built = placed(&["FOO", "BAR", "deep/er/still", "deep/beside"]);
    assert_eq!(built.names("").await.unwrap(), ["BAR", "FOO", "deep"]);
    assert_eq!(built.names("deep").await.unwrap(), ["beside", "er"]);
    assert_eq!(built.names("deep/er").await.unwrap(), ["still"]);
    assert_eq!(built.names("deep/er/still").await.unwrap(), ["from2", "own"]);
    assert_eq!(built.get("BAR/own").await.unwrap(), b"1");
    assert_eq!(built.get("deep/beside/own").await.unwrap(), b"3");
    assert_eq!(built.get("own").await, Err(ABSENT));
    assert_eq!(built.get("deep/own").await, Err(ABSENT));
    built.put("deep/er/still/new", b"content").await.unwrap();
    assert_eq!(built.mem(2).content("new"), b"content");
    assert_eq!(built.open_handles(), 0);
}

#[tokio::test]
async fn a_path_below_a_place_is_requested_from_its_branch_only() {
    let built = placed(&["FOO", "BAR"]);
    built.mem(0).put_file("a/b/c", "content");
    built.faults(1).fail_always(Which::Any, Errno::EIO);
    built.reset_calls();
    built.union.lstat(&path("FOO/a/b/c")).await.unwrap();
    built.union.unlink(&path("FOO/a/b/c")).await.unwrap();
    built.union.mkdir(&path("FOO/a/d"), 0o755).await.unwrap();
    assert_eq!(built.names("FOO/a").await.unwrap(), ["b", "d"]);
    assert_eq!(built.requests(), [6, 0]);
}

#[tokio::test]
async fn several_in_one_place_are_merged_there() {
    let built = placed(&["p", "p", ""]);
    built.mem(2).put_file("p/own", "hidden");
    built.mem(2).put_file("p/below", "merged");
    assert_eq!(built.get("p/own").await.unwrap(), b"0");
    // The entries of the root branch are hidden below both, though it may have been given first.
    assert_eq!(built.names("p").await.unwrap(), ["below", "from0", "from1", "own"]);
    assert_eq!(built.get("p/below").await.unwrap(), b"merged");
    assert_eq!(built.names("").await.unwrap(), ["from2", "own", "p"]);
    let first = placed(&["", "p"]);
    first.mem(0).put_file("p/own", "hidden");
    assert_eq!(first.get("p/own").await.unwrap(), b"1");
}

#[tokio::test]
async fn a_place_hides_other_entries_of_its_name() {
    let built = placed(&["", "p/q"]);
    built.mem(0).put_file("p", "a file");
    assert!(built.union.lstat(&path("p")).await.unwrap().is_dir());
    assert_eq!(built.names("").await.unwrap(), ["from0", "own", "p"]);
    assert_eq!(built.names("p").await.unwrap(), ["q"]);
    assert_eq!(built.get("p/q/own").await.unwrap(), b"1");
    assert_eq!(built.union.unlink(&path("p")).await, Err(Errno::EISDIR));
    assert!(built.mem(0).exists("p"));
}

#[tokio::test]
async fn parents_of_places_exist_and_cannot_be_removed() {
    let built = placed(&["a/b", "c"]);
    let attr = built.union.lstat(&path("a")).await.unwrap();
    assert!(attr.is_dir());
    assert_eq!((attr.perm, attr.uid), (0o755, rustix::process::getuid().as_raw()));
    assert_eq!(built.union.lstat(&path("a")).await.unwrap(), attr, "always the same");
    for at in ["", "a", "a/b", "c"] {
        assert_eq!(built.union.rmdir(&path(at)).await, Err(Errno::EBUSY), "{at}");
        let away = built.union.rename(&path(at), &path("x"), RenameMode::Replace).await;
        assert_eq!(away, Err(Errno::EBUSY), "{at}");
        let over = built.union.rename(&path("c/own"), &path(at), RenameMode::Replace).await;
        assert_eq!(over, Err(Errno::EBUSY), "{at}");
        assert_eq!(built.union.mkdir(&path(at), 0o755).await, Err(Errno::EEXIST), "{at}");
        assert_eq!(built.union.symlink(b"x", &path(at)).await, Err(Errno::EEXIST), "{at}");
        assert_eq!(built.union.unlink(&path(at)).await, Err(Errno::EISDIR), "{at}");
        assert_eq!(built.union.readlink(&path(at)).await, Err(Errno::EINVAL), "{at}");
        let link = built.union.link(&path("c/own"), &path(at)).await;
        assert_eq!(link, Err(Errno::EEXIST), "{at}");
        for (create, errno) in
            [(Create::IfAbsent(0o644), Errno::EISDIR), (Create::Exclusive(0o644), Errno::EEXIST)]
        {
            let flags = OpenFlags { create, ..OpenFlags::existing(Access::Read) };
            assert_eq!(built.union.open(&path(at), flags).await.unwrap_err(), errno, "{at}");
        }
    }
    // No branch has `a`, so nothing can be stored there.
    assert_eq!(built.put("a/new", b"").await, Err(Errno::EROFS));
    assert_eq!(built.put("new", b"").await, Err(Errno::EROFS));
    assert_eq!(built.union.mkdir(&path("a/new"), 0o755).await, Err(Errno::EROFS));
    let change = AttrChange { perm: Some(0o700), ..AttrChange::default() };
    assert_eq!(built.union.setattr(&path("a"), change).await, Err(Errno::EROFS));
    // The places themselves are directories of their branches.
    built.union.setattr(&path("c"), change).await.unwrap();
    assert_eq!(built.mem(1).attr("").perm, 0o700);
    assert_eq!(built.union.lstat(&path("c")).await.unwrap().perm, 0o700);
    built.union.fsyncdir(&path("a")).await.unwrap();
}

#[tokio::test]
async fn a_parent_of_a_place_has_the_attributes_of_a_branch_that_has_it() {
    let built = with_policy(&["", "a/b"], create(CreatePolicy::Ff));
    // The root branch has no such directory: the policy creates it there.
    built.put("a/new", b"content").await.unwrap();
    assert_eq!(built.mem(0).content("a/new"), b"content");
    assert_eq!(built.mem(0).attr("a").perm, 0o755);
    built.mem(0).set_perm("a", 0o711);
    assert_eq!(built.union.lstat(&path("a")).await.unwrap().perm, 0o711);
    assert_eq!(built.names("a").await.unwrap(), ["b", "new"]);
    assert_eq!(built.union.rmdir(&path("a")).await, Err(Errno::EBUSY));

    let built = placed(&["", "a/b"]);
    assert_eq!(built.put("a/new", b"").await, Err(Errno::EROFS));
}

#[tokio::test]
async fn nothing_goes_from_one_place_to_another() {
    let built = placed(&["a", "b"]);
    let moved = built.union.rename(&path("a/own"), &path("b/x"), RenameMode::Replace).await;
    assert_eq!(moved, Err(Errno::EXDEV));
    assert_eq!(built.union.link(&path("a/own"), &path("b/x")).await, Err(Errno::EXDEV));
    built.union.rename(&path("a/own"), &path("a/x"), RenameMode::Replace).await.unwrap();
    assert!(built.mem(0).exists("x"));
    let flags = OpenFlags::existing(Access::ReadWrite);
    let from = built.union.open(&path("a/x"), flags).await.unwrap().fh;
    let to = built.union.open(&path("b/own"), flags).await.unwrap().fh;
    assert_eq!(built.union.copy((from, 0), (to, 0), 10).await, Err(Errno::EOPNOTSUPP));
    assert_eq!(built.union.read(from, 0, 10).await.unwrap().to_vec(), b"0");
    built.union.close(from);
    built.union.close(to);
}

#[tokio::test]
async fn a_source_whose_directory_is_gone_is_not_an_empty_one() {
    let built = Built::with(2, Policies::default(), |number, branch| {
        branch.place = place(["a", "b"][number]);
    });
    built.faults(0).fail_always(Which::Any, Errno::ENOENT);
    assert_eq!(built.union.lstat(&path("a")).await, Err(ABSENT));
    assert_eq!(built.names("a").await, Err(ABSENT));
    assert_eq!(built.names("b").await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn figures_above_places_are_those_of_all_below() {
    let built = placed(&["a/x", "a/y", "b"]);
    // Filled differently, since branches with equal figures count as one file system.
    for number in 0..3 {
        built.mem(number).put_file("filler", vec![1; 4_096 * (number + 1)]);
    }
    let one = built.union.statvfs(&path("b")).await.unwrap().blocks;
    assert_eq!(built.union.statvfs(&path("")).await.unwrap().blocks, 3 * one);
    assert_eq!(built.union.statvfs(&path("a")).await.unwrap().blocks, 2 * one);
    built.faults(0).cut();
    assert_eq!(built.union.statvfs(&path("")).await.unwrap().blocks, 2 * one);
    assert_eq!(built.union.statvfs(&path("a/x")).await, Err(Errno::EHOSTDOWN));
}

#[tokio::test]
async fn a_dead_one_disturbs_only_its_own_place() {
    let built = placed(&["a", "b"]);
    built.faults(0).cut();
    assert_eq!(built.names("").await.unwrap(), ["a", "b"]);
    assert_eq!(built.names("b").await.unwrap(), ["from1", "own"]);
    assert_eq!(built.get("b/own").await.unwrap(), b"1");
    assert_eq!(built.get("a/own").await, Err(Errno::EHOSTDOWN));
    assert_eq!(built.names("a").await, Err(Errno::EHOSTDOWN));
}
