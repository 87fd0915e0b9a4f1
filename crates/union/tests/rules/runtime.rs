//! Changes of the set of branches while it is in use.

use base::{Access, Errno, OpenFlags, Remote};
use testkit::{Call, path};
use union::{Changed, Error, MAX_BRANCHES, Mode, Policies, Union};

use crate::kit::{ABSENT, Built, Source, place, soon};

#[tokio::test]
async fn a_branch_that_is_added_is_the_last() {
    let built = Built::new(1);
    built.mem(0).put_file("a", "old");
    let added = Source::new();
    added.mem.put_file("a", "new");
    added.mem.put_file("b", "new");
    assert_eq!(built.get("b").await, Err(ABSENT));
    assert_eq!(built.union.add(added.branch(9)), Ok(Changed { below: path("") }));
    assert_eq!(built.get("a").await.unwrap(), b"old");
    assert_eq!(built.get("b").await.unwrap(), b"new");
    assert_eq!(built.names("").await.unwrap(), ["a", "b"]);
    let again = built.union.add(added.branch(9));
    assert_eq!(again, Err(Error::Duplicate("gw9:/d".to_owned())));
    let mut placed = Source::new().branch(10);
    placed.place = place("p/q");
    assert_eq!(built.union.add(placed), Ok(Changed { below: path("p/q") }));
    assert_eq!(built.names("").await.unwrap(), ["a", "b", "p"]);
}

#[tokio::test]
async fn open_files_outlive_the_removal_of_their_branch() {
    let built = Built::new(2);
    built.mem(1).put_file("d/a", "content");
    built.mem(1).put_file("d/b", "");
    let flags = OpenFlags::existing(Access::ReadWrite);
    let fh = built.union.open(&path("d/a"), flags).await.unwrap().fh;
    let dh = built.union.opendir(&path("d")).await.unwrap();
    assert_eq!(built.union.status().branches[1].open_files, 1);
    assert_eq!(built.union.remove("gw1:/d"), Ok(Changed { below: path("") }));
    assert_eq!(built.union.lstat(&path("d")).await, Err(ABSENT));
    assert_eq!(built.union.read(fh, 0, 99).await.unwrap().to_vec(), b"content");
    built.union.write(fh, 0, "C".into()).await.unwrap();
    assert_eq!(built.union.readdir(dh).await.unwrap().unwrap().len(), 2);
    built.union.close(fh);
    built.union.closedir(dh);
    assert_eq!(built.mem(1).content("d/a"), b"Content");
    assert_eq!(built.open_handles(), 0);
    assert_eq!(built.union.remove("gw1:/d"), Err(Error::Unknown("gw1:/d".to_owned())));
    assert_eq!(built.union.remove("gw0:/d"), Err(Error::NoBranch));
    assert_eq!(built.union.status().branches.len(), 1);
}

#[tokio::test]
async fn a_request_in_flight_ends_with_the_branches_it_began_with() {
    let built = Built::new(2);
    built.mem(1).put_file("a", "content");
    let held = built.faults(1).hold(Call::Lstat, 1);
    let call = built.start(|union| async move { union.lstat(&path("a")).await });
    soon(held.arrived()).await;
    let _ = built.union.remove("gw1:/d").unwrap();
    held.release();
    assert_eq!(soon(call).await.unwrap().unwrap().size, 7);
    assert_eq!(built.union.lstat(&path("a")).await, Err(ABSENT));
}

#[tokio::test]
async fn a_changed_mode_applies_to_the_next_call() {
    let built = Built::new(1);
    built.put("a", b"content").await.unwrap();
    let flags = OpenFlags::existing(Access::Write);
    let fh = built.union.open(&path("a"), flags).await.unwrap().fh;
    built.union.set_mode("gw0:/d", Mode::Ro).unwrap();
    assert_eq!(built.union.status().branches[0].mode, Mode::Ro);
    assert_eq!(built.put("b", b"").await, Err(Errno::EROFS));
    assert_eq!(built.union.unlink(&path("a")).await, Err(Errno::EROFS));
    // A file open for writing stays writable.
    built.union.write(fh, 0, "C".into()).await.unwrap();
    let size = base::AttrChange { size: Some(4), ..base::AttrChange::default() };
    built.union.fsetattr(fh, size).await.unwrap();
    built.union.close(fh);
    assert_eq!(built.mem(0).content("a"), b"Cont");
    built.union.set_mode("gw0:/d", Mode::Rw).unwrap();
    built.put("b", b"").await.unwrap();
    let unknown = built.union.set_mode("gw\x1b", Mode::Rw).unwrap_err();
    assert!(unknown.to_string().contains("gw\\u{1b}"), "{unknown}");
}

#[tokio::test]
async fn a_wait_for_disconnection_includes_branches_added_later() {
    let built = Built::new(1);
    let gone = built.start(|union| async move { union.disconnected().await });
    tokio::task::yield_now().await;
    let added = Source::new();
    let _ = built.union.add(added.branch(9)).unwrap();
    tokio::task::yield_now().await;
    assert!(!gone.is_finished());
    added.link.set_away(true);
    soon(gone).await.unwrap();
}

#[test]
fn invalid_combinations_of_branches_are_refused() {
    let new = |count: usize| {
        let branches = (0..count).map(|number| Source::new().branch(number)).collect();
        Union::new(branches, Policies::default()).map(drop)
    };
    assert_eq!(new(0), Err(Error::NoBranch));
    assert_eq!(new(MAX_BRANCHES), Ok(()));
    assert_eq!(new(MAX_BRANCHES + 1), Err(Error::TooMany(MAX_BRANCHES + 1)));
}

#[tokio::test]
async fn the_last_of_many_branches_is_searched_too() {
    let built = Built::new(MAX_BRANCHES);
    built.mem(MAX_BRANCHES - 1).put_file("d/a", "content");
    built.mem(MAX_BRANCHES - 2).put_file("d/b", "");
    assert_eq!(built.names("d").await.unwrap(), ["a", "b"]);
    assert_eq!(built.get("d/a").await.unwrap(), b"content");
    built.union.unlink(&path("d/a")).await.unwrap();
    assert_eq!(built.names("d").await.unwrap(), ["b"]);
}
