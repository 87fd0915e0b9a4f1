//! Identities of files: those of the branches, which never meet.

use base::{Access, Attr, DirEntry, OpenFlags, Remote};
use testkit::path;
use union::{Policies, Presence};

use crate::kit::{Built, Source, place};

async fn listed(built: &Built, at: &str) -> Vec<DirEntry> {
    let dh = built.union.opendir(&path(at)).await.unwrap();
    let mut entries = Vec::new();
    while let Some(batch) = built.union.readdir(dh).await.unwrap() {
        entries.extend(batch);
    }
    built.union.closedir(dh);
    entries
}

async fn shown(built: &Built, at: &str) -> Attr {
    built.union.lstat(&path(at)).await.unwrap()
}

#[tokio::test]
async fn files_of_equal_numbers_on_two_branches_are_different() {
    let built = Built::of(
        vec![Source::identifying(true), Source::identifying(true)],
        Policies::default(),
        |_, _| {},
    );
    built.mem(0).put_file("a", "content");
    built.mem(1).put_file("b", "content");
    let native = [built.mem(0).attr("a"), built.mem(1).attr("b")].map(|attr| attr.id().unwrap());
    assert_eq!(native[0], native[1], "the test is of equal numbers");
    let (a, b) = (shown(&built, "a").await, shown(&built, "b").await);
    assert_eq!(a.is_same_file(&b), Some(false));
    // The same identity by each call.
    for entry in listed(&built, "").await {
        let attr = shown(&built, &entry.name.to_string()).await;
        assert_eq!(entry.attr.unwrap().id(), attr.id());
    }
    let opened = built.union.open(&path("b"), OpenFlags::existing(Access::Read)).await.unwrap();
    assert_eq!(opened.attr.id(), b.id());
    assert_eq!(built.union.fstat(opened.fh).await.unwrap().id(), b.id());
    built.union.close(opened.fh);
    // And in another union of these sources.
    let again = Built::of(
        vec![Source::identifying(true), Source::identifying(true)],
        Policies::default(),
        |_, _| {},
    );
    again.mem(1).put_file("b", "content");
    assert_eq!(shown(&again, "b").await.id(), b.id());
}

#[tokio::test]
async fn links_within_a_branch_are_one_file() {
    let built = Built::of(
        vec![Source::identifying(true), Source::identifying(true)],
        Policies::default(),
        |_, _| {},
    );
    built.mem(1).put_file("a", "content");
    built.union.link(&path("a"), &path("b")).await.unwrap();
    let (a, b) = (shown(&built, "a").await, shown(&built, "b").await);
    assert_eq!((a.is_same_file(&b), b.inode.map(|inode| inode.links)), (Some(true), Some(2)));
}

#[tokio::test]
async fn a_merged_directory_is_the_same_while_branches_come_and_go() {
    let optional = |number: usize, branch: &mut union::Branch| {
        branch.presence = Presence::Optional;
        if number == 2 {
            branch.place = place("P");
        }
    };
    let sources = (0..3).map(|_| Source::identifying(true)).collect();
    let built = Built::of(sources, Policies::default(), optional);
    for number in 0..3 {
        built.mem(number).put_dir("both");
    }
    built.mem(1).put_dir("one");
    for at in ["", "both", "one", "P"] {
        assert_eq!(shown(&built, at).await.inode, None, "{at}");
    }
    for entry in listed(&built, "").await {
        assert_eq!(entry.attr.and_then(|attr| attr.inode), None, "{}", entry.name);
    }
    built.sources[0].link.set_away(true);
    assert_eq!(shown(&built, "both").await.inode, None);
    let listed_alone = listed(&built, "").await;
    assert!(listed_alone.iter().all(|it| it.attr.is_none_or(|attr| attr.inode.is_none())));
}

#[tokio::test]
async fn a_directory_that_cannot_be_merged_has_the_identity_of_its_branch() {
    let places = |number: usize, branch: &mut union::Branch| {
        branch.place = place(&format!("P{number}"));
    };
    let built = Built::of(
        vec![Source::identifying(true), Source::identifying(true)],
        Policies::default(),
        places,
    );
    (0..2).for_each(|number| built.mem(number).put_dir("d"));
    let (one, other) = (shown(&built, "P0/d").await, shown(&built, "P1/d").await);
    assert_eq!(one.is_same_file(&other), Some(false));
    assert_eq!(listed(&built, "P0").await[0].attr.and_then(|attr| attr.id()), one.id());
    // The root of a branch is a place.
    assert_eq!(shown(&built, "P0").await.inode, None);
}

#[tokio::test]
async fn a_branch_without_identities_has_none_beside_one_that_has() {
    let built = Built::of(
        vec![Source::identifying(false), Source::identifying(true)],
        Policies::default(),
        |_, _| {},
    );
    built.mem(0).put_file("a", "");
    built.mem(1).put_file("b", "");
    assert!(shown(&built, "a").await.inode.is_none());
    assert!(shown(&built, "b").await.inode.is_some());
}
