//! Records of names: which are valid, which are forgotten, and that all open stores agree.

use base::{Name, RemotePath, Timestamp};
use cache::{KnownAttr, Listing, SourceId};

use crate::world::{self, source};

fn path(text: &str) -> RemotePath {
    RemotePath::parse(text.as_bytes()).unwrap()
}

fn known(version: u64) -> KnownAttr {
    KnownAttr { attr: world::attr(2, version), seen_at: Timestamp::from_secs(version as i64) }
}

#[test]
fn records_are_there_after_a_reopen_and_of_their_source_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    for number in 0..world::DIRS {
        store.record_directory(&source(), &world::dir(number), &world::listing(number, 50, 3));
        store.record_link(&source(), &world::link_path(number), &world::link_of(number));
    }
    store.record_attr(&source(), &RemotePath::root(), &known(1));
    for store in [store, world::open(dir.path())] {
        for number in 0..world::DIRS {
            assert!(world::check_dir(&store, number, 50));
            assert_eq!(
                store.link(&source(), &world::link_path(number)).unwrap(),
                world::link_of(number)
            );
        }
        assert_eq!(store.attr(&source(), &RemotePath::root()), Some(known(1)));
        assert_eq!(store.attr(&source(), &world::path(2)).unwrap().attr, world::attr(2, 3));
        let other = SourceId::new(b"another");
        assert_eq!(store.directory(&other, &world::dir(1)), None);
        assert_eq!(store.attr(&other, &RemotePath::root()), None);
    }
}

#[test]
fn all_open_stores_see_a_change_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (world::open(dir.path()), world::open(dir.path()));
    let name = path("a/b");
    for version in 0..300 {
        let (writer, reader) = if version % 2 == 0 { (&one, &two) } else { (&two, &one) };
        writer.record_attr(&source(), &name, &known(version));
        assert_eq!(reader.attr(&source(), &name), Some(known(version)));
        if version % 5 == 0 {
            reader.forget(&source(), &name);
            assert_eq!(writer.attr(&source(), &name), None);
        }
        if version % 7 == 0 {
            // The next file of the directory may have the inode number and the length of this one.
            reader.forget(&source(), &path("a"));
            assert_eq!(writer.attr(&source(), &name), None);
        }
    }
}

#[test]
fn forgetting_removes_a_sub_tree_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    let names = ["a", "a/b", "a/b/c", "a/b/c/d", "ab", "a/bc", "x/a/b"];
    for name in names {
        store.record_attr(&source(), &path(name), &known(1));
    }
    let listing = world::listing(2, 10, 1);
    store.record_directory(&source(), &path("a"), &listing);
    store.record_directory(&source(), &path("a/b/c"), &listing);
    store.forget(&source(), &path("a/b"));
    let left: Vec<_> =
        names.into_iter().filter(|name| store.attr(&source(), &path(name)).is_some()).collect();
    // The listing of "a" had no "bc", but it is not complete any more, so the older record of "bc"
    // is valid.
    assert_eq!(left, ["a", "ab", "a/bc", "x/a/b"]);
    assert_eq!(store.directory(&source(), &path("a")), None);
    assert_eq!(store.directory(&source(), &path("a/b/c")), None);
    store.forget(&source(), &RemotePath::root());
    assert_eq!(store.attr(&source(), &path("ab")), None);
}

/// Any file may be removed, also the directory into which forgotten records are moved.
#[test]
fn forgetting_works_without_the_trash() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (world::open(dir.path()), world::open(dir.path()));
    one.record_attr(&source(), &path("a/b"), &known(1));
    // It is created when it is used.
    let _ = std::fs::remove_dir_all(dir.path().join("v1/trash"));
    one.forget(&source(), &path("a"));
    assert_eq!(two.attr(&source(), &path("a/b")), None);
    one.record_attr(&source(), &path("a/b"), &known(1));
    assert_eq!(two.attr(&source(), &path("a/b")), Some(known(1)), "the index is in use");
}

#[test]
fn a_listing_knows_which_names_are_absent_until_something_changes() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    store.record_attr(&source(), &path("a/old"), &known(1));
    let listing = world::listing(2, 10, 1);
    assert_eq!(store.is_listed(&source(), &path("a/old")), None);
    store.record_directory(&source(), &path("a"), &listing);
    assert_eq!(store.attr(&source(), &path("a/old")), None);
    assert_eq!(store.is_listed(&source(), &path("a/old")), Some(false));
    assert_eq!(store.is_listed(&source(), &path("a/f2")), Some(true));
    assert_eq!(store.directory(&source(), &path("a")), Some(listing.clone()));
    store.forget_listing(&source(), &path("a"));
    assert_eq!(store.directory(&source(), &path("a")), None);
    // Listed again with the same result, later.
    store.record_directory(&source(), &path("a"), &listing);
    let again = Listing { seen_at: Timestamp::from_secs(77), ..listing };
    store.record_directory(&source(), &path("a"), &again);
    assert_eq!(store.directory(&source(), &path("a")), Some(again));
}

#[test]
fn a_file_of_records_does_not_grow_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    let listing = |version| world::listing(1, 100, version);
    for version in 0..500 {
        store.record_directory(&source(), &path("a"), &listing(version));
        store.record_attr(&source(), &path("a/x"), &known(version));
        assert_eq!(store.directory(&source(), &path("a")), Some(listing(version)));
    }
    assert_eq!(store.attr(&source(), &path("a/x")), Some(known(499)));
    let bytes = world::settled_bytes(&store);
    assert!(bytes < 200_000, "{bytes} bytes for one directory");
    assert_eq!(world::open(dir.path()).directory(&source(), &path("a")), Some(listing(499)));
}

#[test]
fn names_that_the_disk_does_not_take_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    let long = RemotePath::root().join(&Name::new(&[b'n'; 255]).unwrap());
    let below = long.join(&Name::new(b"x").unwrap());
    let mut deep = RemotePath::root();
    for _ in 0..600 {
        deep.push(&Name::new(b"directory").unwrap());
    }
    for name in [&below, &deep] {
        store.record_attr(&source(), name, &known(1));
        assert_eq!(store.attr(&source(), name), None);
        store.forget(&source(), name);
    }
    assert_eq!(store.status().off, None, "the disk is well");
    store.record_attr(&source(), &long, &known(1));
    assert_eq!(store.attr(&source(), &long), Some(known(1)), "a name is no directory");
}

#[test]
fn a_tree_deeper_than_there_are_descriptors_is_walked() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    let mut deep = RemotePath::root();
    for _ in 0..1200 {
        deep.push(&Name::new(b"d").unwrap());
    }
    store.record_attr(&source(), &deep, &known(1));
    assert_eq!(store.attr(&source(), &deep), Some(known(1)));
    assert_eq!(store.verify(|_| {}).directories, 1);
    store.forget(&source(), &path("d"));
    assert_eq!(store.attr(&source(), &deep), None);
    world::settled_bytes(&store);
    let left = std::fs::read_dir(dir.path().join("v1/trash")).unwrap().count();
    assert_eq!(left, 0);
}

#[test]
fn memory_for_records_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let config = cache::StoreConfig { memory_bytes: 100_000, ..world::config(dir.path()) };
    let store = cache::Store::open(config).unwrap();
    for number in 0..200 {
        let dir = path(&format!("dir{number}"));
        store.record_directory(&source(), &dir, &world::listing(number % 5, 200, number));
    }
    for _ in 0..2 {
        for number in 0..200 {
            let dir = path(&format!("dir{number}"));
            let listing = world::listing(number % 5, 200, number);
            assert_eq!(store.directory(&source(), &dir), Some(listing));
        }
    }
}
