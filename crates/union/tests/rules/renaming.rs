//! After a rename the old name is absent, and the new one is the renamed entry.

use base::{Errno, Remote, RenameMode, Result};
use testkit::{Call, path};
use union::{Mode, Policies};

use crate::kit::{ABSENT, Built, Source, all};

async fn rename(built: &Built, from: &str, to: &str) -> Result<()> {
    built.union.rename(&path(from), &path(to), RenameMode::Replace).await
}

#[tokio::test]
async fn a_file_stays_on_its_branch() {
    let built = Built::new(2);
    built.mem(1).put_file("a", "content");
    built.mem(1).put_dir("d");
    rename(&built, "a", "d/b").await.unwrap();
    assert_eq!(built.mem(1).content("d/b"), b"content");
    assert_eq!(built.union.lstat(&path("a")).await, Err(ABSENT));
    // The target directory is not on the branch: the caller copies.
    built.mem(0).put_dir("e");
    assert_eq!(rename(&built, "d/b", "e/b").await, Err(Errno::EXDEV));
    assert_eq!(built.get("d/b").await.unwrap(), b"content");
    assert_eq!(rename(&built, "d/b", "absent/b").await, Err(ABSENT));
}

#[tokio::test]
async fn what_an_earlier_branch_shows_cannot_be_replaced() {
    for policies in [Policies::default(), all()] {
        let built = Built::with(2, policies, |_, _| {});
        built.mem(1).put_file("a", "content");
        built.mem(0).put_file("b", "earlier");
        assert_eq!(rename(&built, "a", "b").await, Err(Errno::EXDEV));
        let mode = RenameMode::NoReplace;
        let kept = built.union.rename(&path("a"), &path("b"), mode).await;
        assert_eq!(kept, Err(Errno::EEXIST));
        assert_eq!(built.get("a").await.unwrap(), b"content");
        assert_eq!(built.get("b").await.unwrap(), b"earlier");
    }
}

#[tokio::test]
async fn what_a_later_branch_shows_is_replaced_and_goes() {
    let built = Built::new(3);
    built.mem(0).put_file("new", "content");
    built.mem(1).put_file("file", "old");
    built.mem(2).put_file("file", "hidden");
    rename(&built, "new", "file").await.unwrap();
    assert_eq!(built.get("file").await.unwrap(), b"content");
    // The shown entry is replaced, as in rename(2); the hidden one is still hidden.
    assert!(!built.mem(1).exists("file") && built.mem(2).exists("file"));
    // So an editor that saves this way can do so again.
    built.mem(2).remove("file");
    built.union.unlink(&path("file")).await.unwrap();
    assert_eq!(built.union.lstat(&path("file")).await, Err(ABSENT));

    let built = Built::with(2, Policies::default(), |number, branch| {
        if number == 1 {
            branch.mode = Mode::Ro;
        }
    });
    built.mem(0).put_file("new", "content");
    built.mem(1).put_file("file", "old");
    assert_eq!(rename(&built, "new", "file").await, Err(Errno::EROFS));
    assert_eq!(rename(&built, "file", "other").await, Err(Errno::EROFS));
    assert_eq!(built.get("file").await.unwrap(), b"old");
}

#[tokio::test]
async fn a_file_that_hides_another_is_renamed_with_it_or_not_at_all() {
    let built = Built::new(2);
    built.mem(0).put_file("a", "shown");
    built.mem(1).put_file("a", "hidden");
    assert_eq!(rename(&built, "a", "b").await, Err(Errno::EBUSY));
    assert_eq!(built.names("").await.unwrap(), ["a"]);

    let built = Built::with(3, all(), |_, _| {});
    built.mem(0).put_file("a", "shown");
    built.mem(1).put_file("a", "hidden");
    built.mem(2).put_file("b", "replaced");
    rename(&built, "a", "b").await.unwrap();
    assert_eq!(built.names("").await.unwrap(), ["b"]);
    assert_eq!(built.get("b").await.unwrap(), b"shown");
    assert_eq!(built.mem(1).content("b"), b"hidden");
    assert!(!built.mem(2).exists("b"));
}

#[tokio::test]
async fn a_file_of_a_read_only_branch_that_hides_another_is_not_busy() {
    for policies in [Policies::default(), all()] {
        let built = Built::with(2, policies, |number, branch| {
            if number == 0 {
                branch.mode = Mode::Ro;
            }
        });
        built.mem(0).put_file("a", "shown");
        built.mem(1).put_file("a", "hidden");
        assert_eq!(rename(&built, "a", "b").await, Err(Errno::EROFS));
        assert_eq!(built.names("").await.unwrap(), ["a"]);
    }
}

#[tokio::test]
async fn a_hidden_directory_is_in_the_way_of_a_hidden_file() {
    let built = Built::with(2, all(), |_, _| {});
    for number in 0..2 {
        built.mem(number).put_file("a", "");
    }
    built.mem(0).put_file("b", "");
    built.mem(1).put_dir("b");
    assert_eq!(rename(&built, "a", "b").await, Err(Errno::EBUSY));
    assert_eq!(built.faults(1).calls(Call::Rename), 0);
}

#[tokio::test]
async fn a_failure_in_the_middle_is_taken_back() {
    let built = Built::with(2, all(), |_, _| {});
    for number in 0..2 {
        built.mem(number).put_file("a", number.to_string());
        built.mem(number).put_file("d/x", number.to_string());
    }
    for (from, to) in [("a", "b"), ("d", "e")] {
        built.faults(0).fail(Call::Rename, 1, Errno::EACCES);
        assert_eq!(rename(&built, from, to).await, Err(Errno::EACCES));
        assert_eq!(built.names("").await.unwrap(), ["a", "d"]);
        assert!(built.mem(1).exists(from) && !built.mem(1).exists(to));
    }
    assert_eq!(built.faults(0).not_reached(), 0);
    rename(&built, "d", "e").await.unwrap();
    assert_eq!(built.names("").await.unwrap(), ["a", "e"]);
    assert_eq!(built.get("e/x").await.unwrap(), b"0");
}

#[tokio::test]
async fn two_names_of_a_hidden_file_both_go() {
    for shows_inodes in [false, true] {
        let sources = (0..2).map(|_| Source::identifying(shows_inodes)).collect();
        let built = Built::of(sources, all(), |_, _| {});
        for number in 0..2 {
            built.mem(number).put_file("a", number.to_string());
        }
        built.mem(1).edit(|tree| tree.link(&path("a"), &path("b"))).unwrap();
        rename(&built, "a", "b").await.unwrap();
        assert_eq!(built.names("").await.unwrap(), ["b"]);
        assert_eq!(built.get("b").await.unwrap(), b"0");
    }
}

/// After the rename, the old name may be that of a file which another client has just created.
#[tokio::test]
async fn a_new_file_under_the_old_name_is_not_removed() {
    for may_be_linked in [false, true] {
        let built = Built::with(2, all(), |_, _| {});
        for number in 0..2 {
            built.mem(number).put_file("a", number.to_string());
        }
        match may_be_linked {
            true => built.mem(1).edit(|tree| tree.link(&path("a"), &path("b"))).unwrap(),
            false => built.mem(1).put_file("b", "another"),
        }
        // The third request: two were for both names.
        let held = may_be_linked.then(|| built.faults(1).hold(Call::Lstat, 3));
        let call = built.start(|union| async move {
            union.rename(&path("a"), &path("b"), RenameMode::Replace).await
        });
        if let Some(held) = held {
            held.arrived().await;
            built.mem(1).remove("a");
            built.mem(1).put_file("a", "created since");
            held.release();
        }
        call.await.unwrap().unwrap();
        assert_eq!(built.faults(1).calls(Call::Unlink), 0, "{may_be_linked}");
        assert_eq!(built.mem(1).exists("a"), may_be_linked);
    }
}

#[tokio::test]
async fn a_directory_of_one_branch_is_renamed_with_all_below() {
    let built = Built::new(2);
    built.mem(1).put_file("d/e/x", "content");
    built.mem(0).put_dir("other");
    built.names("d/e").await.unwrap();
    rename(&built, "d", "f").await.unwrap();
    assert_eq!(built.get("f/e/x").await.unwrap(), b"content");
    assert_eq!(built.get("d/e/x").await, Err(ABSENT));
    // Another entry takes the old name, and is not taken for the cached directory.
    built.mem(1).put_symlink("d", "f");
    assert_eq!(built.get("d/e/x").await, Err(Errno::ENOTDIR));
    assert_eq!(built.names("d/e").await, Err(Errno::ENOTDIR));
}

#[tokio::test]
async fn a_directory_of_several_branches_is_copied_or_renamed_on_all() {
    let built = Built::new(2);
    built.mem(0).put_file("d/x", "0");
    built.mem(1).put_file("d/y", "1");
    assert_eq!(rename(&built, "d", "e").await, Err(Errno::EXDEV));

    let built = Built::with(3, all(), |number, branch| {
        if number == 2 {
            branch.mode = Mode::Ro;
        }
    });
    built.mem(0).put_file("d/x", "0");
    built.mem(1).put_file("d/y", "1");
    rename(&built, "d", "e").await.unwrap();
    assert_eq!(built.names("").await.unwrap(), ["e"]);
    assert_eq!(built.names("e").await.unwrap(), ["x", "y"]);
    // Not if a branch is read-only, or lacks the target directory.
    built.mem(0).put_dir("only-here");
    assert_eq!(rename(&built, "e", "only-here/e").await, Err(Errno::EXDEV));
    built.mem(2).put_file("e/z", "2");
    assert_eq!(rename(&built, "e", "f").await, Err(Errno::EROFS));
    assert_eq!(built.names("e").await.unwrap(), ["x", "y", "z"]);
}

#[tokio::test]
async fn directories_never_merge_by_a_rename() {
    for policies in [Policies::default(), all()] {
        let built = Built::with(2, policies, |_, _| {});
        built.mem(0).put_file("from/x", "");
        built.mem(1).put_dir("to");
        assert_eq!(rename(&built, "from", "to").await, Err(Errno::EXDEV));
        built.mem(1).put_file("to/y", "");
        assert_eq!(rename(&built, "from", "to").await, Err(Errno::ENOTEMPTY));
        assert_eq!(built.names("from").await.unwrap(), ["x"]);
        // An empty directory on its own branch is replaced.
        built.mem(0).put_dir("empty");
        rename(&built, "from", "empty").await.unwrap();
        assert_eq!(built.names("").await.unwrap(), ["empty", "to"]);
    }
}

#[tokio::test]
async fn a_second_name_is_on_the_same_branch() {
    let built = Built::new(2);
    built.mem(1).put_file("a", "content");
    built.mem(1).put_dir("d");
    built.mem(0).put_dir("e");
    built.mem(0).put_file("taken", "");
    built.union.link(&path("a"), &path("d/b")).await.unwrap();
    assert_eq!(built.mem(1).content("d/b"), b"content");
    assert_eq!(built.union.link(&path("a"), &path("e/b")).await, Err(Errno::EXDEV));
    assert_eq!(built.union.link(&path("a"), &path("taken")).await, Err(Errno::EEXIST));
    assert_eq!(built.union.link(&path("absent"), &path("x")).await, Err(ABSENT));
    assert_eq!(built.union.link(&path("d"), &path("x")).await, Err(Errno::EPERM));
    built.union.set_mode("gw1:/d", Mode::Ro).unwrap();
    assert_eq!(built.union.link(&path("a"), &path("x")).await, Err(Errno::EROFS));
}
