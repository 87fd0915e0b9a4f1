//! What is kept over the end of a mount, and when it counts.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::process::geteuid;

use super::{
    LIMIT, OLD, age, disk, mount, names, put, put_tree, read_all, ready, told, with_cache,
};
use crate::behaviours::pattern;
use crate::process::eventually;
use crate::world::World;

/// I12: what was seen of an immutable tree is shown by another mount without one byte from the
/// server: names, absent names, attributes, contents, targets of links.
#[test]
fn i12_after_a_remount_an_immutable_tree_needs_no_server() {
    let mut world = World::new();
    let files = put_tree(&world);
    for options in ["consistency=immutable,ro", "consistency=immutable"] {
        let first = mount(&world, options);
        read_all(&first, &files);
        assert_eq!(names(first.place()), ["dir0", "dir1"]);
        for dir in ["dir0", "dir1", "dir0/deeper", "dir1/deeper"] {
            assert!(!names(first.at(dir)).is_empty());
        }
        fs::read_link(first.at("dir0/link")).unwrap();
        first.unmount();
    }
    world.sshd_mut().end();
    for options in ["consistency=immutable,ro", "consistency=immutable"] {
        let again = mount(&world, &format!("{options},delay_connect"));
        read_all(&again, &files);
        assert_eq!(names(again.place()), ["dir0", "dir1"]);
        assert_eq!(names(again.at("dir0")), ["deeper", "link"]);
        assert_eq!(fs::read_link(again.at("dir0/link")).unwrap().to_str(), Some("deeper/file0"));
        let absent = fs::read(again.at("dir1/none")).unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
        assert_eq!((disk(&again, "misses"), disk(&again, "read_there_bytes")), (0, 0));
        again.unmount();
    }
}

/// C1 over mounts: what was changed on the server is what a later mount reads, be it by another
/// size, by another time, or by both.
#[test]
fn c1_a_later_mount_reads_a_changed_file() {
    let world = World::new();
    let (old, new) = (pattern(300_000), vec![7; 300_000]);
    for name in ["same", "longer", "later"] {
        put(&world, name, &old);
    }
    let first = mount(&world, "");
    for name in ["same", "longer", "later"] {
        assert!(fs::read(first.at(name)).unwrap() == old);
    }
    first.unmount();
    fs::write(world.served("longer"), [&new[..], b"more"].concat()).unwrap();
    age(&world.served("longer"));
    fs::write(world.served("later"), &new).unwrap();
    let later = SystemTime::now() - OLD + Duration::from_secs(1);
    fs::File::options()
        .write(true)
        .open(world.served("later"))
        .unwrap()
        .set_modified(later)
        .unwrap();
    let again = mount(&world, "");
    assert!(fs::read(again.at("same")).unwrap() == old);
    assert_eq!(fs::read(again.at("longer")).unwrap().len(), 300_004);
    assert!(fs::read(again.at("later")).unwrap() == new);
    assert_eq!((disk(&again, "hits"), disk(&again, "misses")), (1, 2));
    again.unmount();
}

/// A change within the second in which a file was read leaves size and time as they were.
#[test]
fn a_recently_changed_file_is_not_trusted() {
    let world = World::new();
    fs::write(world.served("file"), "one").unwrap();
    let time = fs::metadata(world.served("file")).unwrap().modified().unwrap();
    let first = mount(&world, "open_revalidate=0");
    assert_eq!(fs::read_to_string(first.at("file")).unwrap(), "one");
    first.unmount();
    fs::write(world.served("file"), "two").unwrap();
    let file = fs::File::options().write(true).open(world.served("file")).unwrap();
    file.set_modified(time).unwrap();
    let again = mount(&world, "open_revalidate=0");
    assert_eq!(fs::read_to_string(again.at("file")).unwrap(), "two");
    again.unmount();
}

#[test]
fn data_written_through_the_mount_is_read_back() {
    let world = World::new();
    put(&world, "file", &pattern(200_000));
    let first = mount(&world, "");
    for round in 0..5_u8 {
        fs::read(first.at("file")).unwrap();
        fs::write(first.at("file"), vec![round; 200_000]).unwrap();
        assert!(fs::read(first.at("file")).unwrap() == vec![round; 200_000]);
        fs::rename(first.at("file"), first.at("other")).unwrap();
        assert!(fs::read(first.at("other")).unwrap() == vec![round; 200_000]);
        fs::rename(first.at("other"), first.at("file")).unwrap();
    }
    first.unmount();
    let again = mount(&world, "");
    assert!(fs::read(again.at("file")).unwrap() == vec![4; 200_000]);
    again.unmount();
}

/// Sub-trees that never change, in a tree that does.
#[test]
fn sub_trees_may_be_immutable() {
    let world = World::new();
    let both = ["src/v1/file", "work/file"];
    let options = "immutable=/src/*,open_revalidate=0";
    both.iter().for_each(|name| put(&world, name, b"before"));
    let first = mount(&world, options);
    both.iter().for_each(|name| assert_eq!(fs::read(first.at(name)).unwrap(), b"before"));
    first.unmount();
    both.iter().for_each(|name| put(&world, name, b"changed"));
    let again = mount(&world, options);
    assert_eq!(fs::read(again.at("src/v1/file")).unwrap(), b"before");
    assert_eq!(fs::metadata(again.at("src/v1/file")).unwrap().len(), 6);
    assert_eq!(fs::read(again.at("work/file")).unwrap(), b"changed");
    assert_eq!((disk(&again, "hits"), disk(&again, "misses")), (1, 1));
    again.unmount();
}

/// L9: what only the disk has is shown, or not, as `sshoal set` says.
#[test]
fn stale_files_are_shown_as_was_set_last() {
    let mut world = World::new();
    put(&world, "file", b"content");
    let first = mount(&world, "");
    assert_eq!(fs::read(first.at("file")).unwrap(), b"content");
    first.unmount();
    let shown = mount(&world, "soft=2").with_errors();
    let hidden = mount(&world, "soft=2,stale=ok").with_errors();
    for (mount, option) in [(&shown, "stale=ok"), (&hidden, "stale=no")] {
        told(&["set"], &[mount.place(), Path::new(option)]);
    }
    world.sshd_mut().end();
    assert_eq!(fs::read(shown.at("file")).unwrap(), b"content");
    let refused = fs::read(hidden.at("file")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ETIMEDOUT));
    shown.unmount();
    hidden.unmount();
}

/// Offline shows what is known, and of the rest nothing that could be taken for true.
#[test]
fn offline_is_never_absent_and_never_empty() {
    let mut world = World::new();
    put(&world, "known/file", b"content");
    put(&world, "known/never read", b"content");
    put(&world, "unknown/file", b"content");
    let first = mount(&world, "");
    assert_eq!(fs::read(first.at("known/file")).unwrap(), b"content");
    assert_eq!(names(first.place()), ["known", "unknown"]);
    assert_eq!(names(first.at("known")), ["file", "never read"]);
    first.unmount();
    world.sshd_mut().end();
    let offline = mount(&world, "offline").with_errors();
    assert_eq!(fs::read(offline.at("known/file")).unwrap(), b"content");
    assert_eq!(names(offline.at("known")), ["file", "never read"]);
    assert_eq!(fs::metadata(offline.at("known/never read")).unwrap().len(), 7);
    let eio = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc_eio()));
    };
    eio(fs::read(offline.at("known/never read")).map(drop));
    eio(fs::read_dir(offline.at("unknown")).and_then(|mut it| it.next().unwrap().map(drop)));
    eio(fs::metadata(offline.at("unknown/file")).map(drop));
    let absent = fs::metadata(offline.at("known/none")).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound, "by the complete listing");
    assert!(fs::write(offline.at("known/new"), "").is_err());
    assert!(disk(&offline, "missed_offline") >= 3);
    eventually(LIMIT, "a word in the log", || offline.words().contains("offline"));
    offline.unmount();
}

/// `offline` with `idmap=user` uses the ids that an earlier mount stored.
#[test]
fn offline_translates_owners_without_the_host() {
    let mut world = World::new();
    put(&world, "file", b"content");
    let read = |world: &World, options: &str| {
        let option = with_cache(world, &format!("idmap=user{options}"));
        for (source, file) in
            [(world.source(), "file"), (format!("p={}", world.source()), "p/file")]
        {
            let mount = ready(world.mount_of(&source, &[&option]));
            assert_eq!(fs::read(mount.at(file)).unwrap(), b"content", "{source}");
            assert_eq!(fs::metadata(mount.at(file)).unwrap().uid(), geteuid().as_raw());
            mount.unmount();
        }
    };
    read(&world, "");
    world.sshd_mut().end();
    read(&world, ",offline");
}

/// Absolute links are recognized by the path of the remote directory, which an earlier mount stored.
#[test]
fn absolute_links_are_shown_without_the_host() {
    let mut world = World::new();
    put(&world, "file", b"content");
    std::os::unix::fs::symlink(world.served("file"), world.served("link")).unwrap();
    let read = |world: &World, options: &str| {
        let option = with_cache(world, options);
        for (source, link) in
            [(world.source(), "link"), (format!("p={}", world.source()), "p/link")]
        {
            let mount = ready(world.mount_of(&source, &[&option]));
            assert_eq!(fs::read(mount.at(link)).unwrap(), b"content", "{source} {options}");
            mount.unmount();
        }
    };
    read(&world, "consistency=immutable");
    world.sshd_mut().end();
    read(&world, "consistency=immutable,offline");
    read(&world, "consistency=immutable,delay_connect,soft=5");
}

fn libc_eio() -> i32 {
    rustix::io::Errno::IO.raw_os_error()
}

/// With `stale=ok` a host that goes away takes with it only what was never read.
#[test]
fn stale_content_is_shown_while_the_host_is_away() {
    let mut world = World::new();
    put(&world, "file", &pattern(300_000));
    put(&world, "other", b"content");
    let first = mount(&world, "");
    assert!(fs::read(first.at("file")).unwrap() == pattern(300_000));
    first.unmount();
    let again = mount(&world, "stale=ok,soft=5").with_errors();
    assert_eq!(names(again.place()), ["file", "other"]);
    world.sshd_mut().end();
    eventually(LIMIT, "the loss is noticed", || fs::read(again.at("other")).is_err());
    assert!(fs::read(again.at("file")).unwrap() == pattern(300_000));
    again.unmount();
}

/// A host with another key under the same name is another source.
#[test]
fn another_host_key_is_another_source() {
    let mut world = World::new();
    put(&world, "file", b"content");
    let first = mount(&world, "");
    assert_eq!(fs::read(first.at("file")).unwrap(), b"content");
    first.unmount();
    let known = world.sshd().dir().join("known_hosts");
    let before = fs::read_to_string(&known).unwrap();
    world.sshd_mut().change_host_key().unwrap();
    world.sshd_mut().end();
    let offline = mount(&world, "offline");
    assert_eq!(fs::read(offline.at("file")).unwrap(), b"content", "the host that is known");
    offline.unmount();
    // The user takes the new host for that which he means from now on.
    let (name, _) = before.split_once(' ').unwrap();
    let key = fs::read_to_string(world.sshd().dir().join("host_key.pub")).unwrap();
    fs::write(&known, format!("{name} {key}")).unwrap();
    let offline = mount(&world, "offline").with_errors();
    let read = fs::read(offline.at("file")).unwrap_err();
    assert_eq!(read.raw_os_error(), Some(libc_eio()), "nothing of that host is known");
    offline.unmount();
}

/// With links that are followed it is another tree.
#[test]
fn a_mount_that_follows_links_leaves_no_records_for_one_that_does_not() {
    let world = World::new();
    let files = put_tree(&world);
    let follows = mount(&world, "immutable,follow_symlinks");
    assert_eq!(names(follows.at("dir0")), ["deeper", "link"]);
    assert!(fs::symlink_metadata(follows.at("dir0/link")).unwrap().is_file());
    follows.unmount();
    let shows = mount(&world, "immutable");
    assert_eq!(names(shows.at("dir0")), ["deeper", "link"]);
    assert!(fs::symlink_metadata(shows.at("dir0/link")).unwrap().is_symlink());
    assert_eq!(fs::read(shows.at("dir0/link")).unwrap(), files[0].1);
    shows.unmount();
}
