//! An open file is a file of one branch.

use base::{Access, Errno, OpenFlags, Remote};
use testkit::path;
use union::{Mode, Policies};

use crate::kit::Built;

#[tokio::test]
async fn numbers_of_branches_do_not_mix() {
    let built = Built::new(2);
    built.mem(0).put_file("a", "first");
    built.mem(1).put_file("b", "second");
    let flags = OpenFlags::existing(Access::ReadWrite);
    let a = built.union.open(&path("a"), flags).await.unwrap().fh;
    let b = built.union.open(&path("b"), flags).await.unwrap().fh;
    assert_ne!(a, b);
    assert_eq!(built.union.read(a, 0, 9).await.unwrap().to_vec(), b"first");
    assert_eq!(built.union.read(b, 0, 9).await.unwrap().to_vec(), b"second");
    assert_eq!(built.union.copy((a, 0), (b, 0), 9).await, Err(Errno::EOPNOTSUPP));
    built.mem(0).put_file("c", "");
    let c = built.union.open(&path("c"), flags).await.unwrap().fh;
    assert_eq!(built.union.copy((a, 0), (c, 0), 9).await, Ok(5));
    for fh in [a, b, c] {
        built.union.close(fh);
    }
    assert_eq!(built.open_handles(), 0);
}

#[tokio::test]
async fn an_open_leaves_no_handle_on_hidden_branches() {
    let built = Built::new(3);
    for number in 0..3 {
        built.mem(number).put_file("a", number.to_string());
    }
    let opened = built.union.open(&path("a"), OpenFlags::existing(Access::Read)).await.unwrap();
    assert_eq!(built.open_handles(), 1);
    built.union.close(opened.fh);
    assert_eq!(built.open_handles(), 0);
}

#[tokio::test]
async fn a_file_on_a_read_only_branch_is_not_opened_for_writing() {
    for count in [1, 2] {
        let built = Built::with(count, Policies::default(), |_, branch| branch.mode = Mode::Ro);
        built.mem(0).put_file("a", "content");
        built.mem(0).put_dir("d");
        built.mem(0).put_symlink("l", "a");
        for access in [Access::Write, Access::ReadWrite] {
            for truncate in [false, true] {
                let flags = OpenFlags { truncate, ..OpenFlags::existing(access) };
                for (at, errno) in [
                    ("a", Errno::EROFS),
                    ("d", Errno::EISDIR),
                    ("l", Errno::ELOOP),
                    ("x", Errno::ENOENT),
                ] {
                    let refused = built.union.open(&path(at), flags).await.unwrap_err();
                    assert_eq!(refused, errno, "{at} {flags:?}");
                }
            }
        }
        assert_eq!(built.get("a").await.unwrap(), b"content");
        let opened = built.union.open(&path("a"), OpenFlags::existing(Access::Read)).await.unwrap();
        let change = base::AttrChange { perm: Some(0o600), ..base::AttrChange::default() };
        assert_eq!(built.union.fsetattr(opened.fh, change).await, Err(Errno::EROFS));
        assert_eq!(built.union.setattr(&path("a"), change).await, Err(Errno::EROFS));
        built.union.close(opened.fh);
    }
}

#[tokio::test]
async fn a_hidden_file_that_may_be_written_is_not_opened_instead() {
    let built = Built::with(2, Policies::default(), |number, branch| {
        if number == 0 {
            branch.mode = Mode::Ro;
        }
    });
    built.mem(0).put_file("a", "shown");
    built.mem(1).put_file("a", "hidden");
    for truncate in [false, true] {
        let flags = OpenFlags { truncate, ..OpenFlags::existing(Access::Write) };
        assert_eq!(built.union.open(&path("a"), flags).await.unwrap_err(), Errno::EROFS);
    }
    assert_eq!(built.put("a", b"x").await, Err(Errno::EROFS));
    assert_eq!(built.mem(1).content("a"), b"hidden");
}
