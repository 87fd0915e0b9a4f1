//! Removed names stay removed.

use base::{Errno, Remote};
use testkit::{Call, path};
use union::{Mode, Policies};

use crate::kit::{ABSENT, Built, all};

#[tokio::test]
async fn a_name_that_hides_another_is_busy_with_first() {
    let built = Built::new(3);
    built.mem(0).put_file("a", "first");
    built.mem(2).put_file("a", "last");
    assert_eq!(built.union.unlink(&path("a")).await, Err(Errno::EBUSY));
    assert_eq!(built.get("a").await.unwrap(), b"first");
    built.mem(2).remove("a");
    built.union.unlink(&path("a")).await.unwrap();
    assert_eq!(built.union.lstat(&path("a")).await, Err(ABSENT));
}

#[tokio::test]
async fn all_removes_every_copy_the_last_first() {
    let built = Built::with(3, all(), |_, _| {});
    for number in 0..3 {
        built.mem(number).put_file("a", number.to_string());
    }
    // The second one fails: the shown entry has not changed.
    built.faults(1).fail(Call::Unlink, 1, Errno::EACCES);
    assert_eq!(built.union.unlink(&path("a")).await, Err(Errno::EACCES));
    assert!(built.mem(0).exists("a") && built.mem(1).exists("a") && !built.mem(2).exists("a"));
    assert_eq!(built.get("a").await.unwrap(), b"0");
    built.union.unlink(&path("a")).await.unwrap();
    assert_eq!(built.union.lstat(&path("a")).await, Err(ABSENT));
    assert_eq!(built.union.unlink(&path("a")).await, Err(ABSENT));
}

#[tokio::test]
async fn all_changes_nothing_when_one_may_not_be_changed() {
    let built = Built::with(3, all(), |number, branch| {
        if number == 1 {
            branch.mode = Mode::Ro;
        }
    });
    for number in 0..3 {
        built.mem(number).put_file("a", "");
    }
    assert_eq!(built.union.unlink(&path("a")).await, Err(Errno::EROFS));
    assert!((0..3).all(|number| built.mem(number).exists("a")));
}

#[tokio::test]
async fn a_branch_for_no_new_files_lets_them_go() {
    let built = Built::with(2, Policies::default(), |_, branch| branch.mode = Mode::NoCreate);
    built.mem(0).put_file("a", "");
    built.mem(1).put_dir("d");
    built.union.unlink(&path("a")).await.unwrap();
    built.union.rmdir(&path("d")).await.unwrap();
    assert_eq!(built.names("").await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_merged_directory_is_removed_from_all_branches_if_empty_on_all() {
    for policies in [Policies::default(), all()] {
        let built = Built::with(3, policies, |_, _| {});
        for number in 0..3 {
            built.mem(number).put_dir("d");
        }
        built.mem(2).put_file("d/x", "");
        assert_eq!(built.union.rmdir(&path("d")).await, Err(Errno::ENOTEMPTY));
        assert!((0..3).all(|number| built.mem(number).exists("d")), "nothing is half removed");
        built.mem(2).remove("d/x");
        built.union.rmdir(&path("d")).await.unwrap();
        assert!((0..3).all(|number| !built.mem(number).exists("d")));
        assert_eq!(built.open_handles(), 0);
    }
}

#[tokio::test]
async fn a_merged_directory_stays_where_one_may_not_be_changed() {
    let built = Built::with(3, all(), |number, branch| {
        if number == 1 {
            branch.mode = Mode::Ro;
        }
    });
    for number in 0..3 {
        built.mem(number).put_dir("d");
    }
    assert_eq!(built.union.rmdir(&path("d")).await, Err(Errno::EROFS));
    assert!((0..3).all(|number| built.mem(number).exists("d")));
}

#[tokio::test]
async fn a_removal_that_fails_on_one_branch_fails() {
    let built = Built::new(2);
    built.mem(0).put_dir("d");
    built.mem(1).put_dir("d");
    // Another client creates an entry between the check and the removal.
    built.faults(0).fail(Call::Rmdir, 1, Errno::ENOTEMPTY);
    assert_eq!(built.union.rmdir(&path("d")).await, Err(Errno::ENOTEMPTY));
    assert!(built.union.lstat(&path("d")).await.unwrap().is_dir());
    built.union.rmdir(&path("d")).await.unwrap();
    assert_eq!(built.union.lstat(&path("d")).await, Err(ABSENT));
}

#[tokio::test]
async fn something_of_another_kind_that_is_hidden_never_goes() {
    for policies in [Policies::default(), all()] {
        let built = Built::with(2, policies, |_, _| {});
        built.mem(0).put_file("a", "");
        built.mem(1).put_dir("a");
        built.mem(0).put_dir("b");
        built.mem(1).put_file("b", "");
        assert_eq!(built.union.unlink(&path("a")).await, Err(Errno::EBUSY));
        assert_eq!(built.union.rmdir(&path("b")).await, Err(Errno::EBUSY));
        assert_eq!(built.union.rmdir(&path("a")).await, Err(Errno::ENOTDIR));
        assert_eq!(built.union.unlink(&path("b")).await, Err(Errno::EISDIR));
        assert_eq!(built.mem(1).names(""), ["a", "b"]);
        assert_eq!(built.mem(0).names(""), ["a", "b"]);
    }
}

#[tokio::test]
async fn a_directory_that_is_made_again_is_found() {
    let built = Built::new(2);
    built.mem(0).put_dir("d");
    built.mem(1).put_dir("d");
    built.names("").await.unwrap();
    built.put("d/x", b"1").await.unwrap();
    built.union.unlink(&path("d/x")).await.unwrap();
    built.union.rmdir(&path("d")).await.unwrap();
    assert_eq!(built.put("d/x", b"1").await, Err(ABSENT));
    built.union.mkdir(&path("d"), 0o755).await.unwrap();
    built.put("d/x", b"2").await.unwrap();
    assert_eq!(built.get("d/x").await.unwrap(), b"2");
    assert!(built.mem(0).exists("d/x") && !built.mem(1).exists("d"));
}
