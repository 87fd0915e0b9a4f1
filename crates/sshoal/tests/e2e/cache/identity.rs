//! Over the helper, which identifies files and their last change.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::thread::sleep;
use std::time::Duration;

use super::{age, disk, mount, put, read_all, ready, set_modified, with_cache};
use crate::behaviours::pattern;
use crate::helper::served_by_helper;
use crate::mount::Mount;
use crate::process::eventually;
use crate::watch::{SOON, assert_needs_no_requests, wait_for_watches};
use crate::world::World;

/// A content is kept if its ctime was first seen two seconds before.
const SETTLED: Duration = Duration::from_millis(2200);

/// A mount that has read these files, so that they are kept.
#[track_caller]
fn keep(world: &World, options: &str, files: &[(String, Vec<u8>)]) -> Mount {
    let mount = mount(world, options);
    for (name, _) in files {
        fs::metadata(mount.at(name)).unwrap();
    }
    sleep(SETTLED);
    read_all(&mount, files);
    mount
}

fn put_files(world: &World, names: &[&str]) -> Vec<(String, Vec<u8>)> {
    let files = names.iter().map(|name| ((*name).to_owned(), pattern(300_000)));
    files.inspect(|(name, content)| put(world, name, content)).collect()
}

/// C3 without its exception.
#[test]
fn c3_a_change_that_leaves_size_and_mtime_is_seen_by_a_later_mount() {
    let world = served_by_helper("");
    let files = put_files(&world, &["written", "replaced", "untouched"]);
    keep(&world, "", &files).unmount();
    let other = vec![7; 300_000];
    let modified = fs::metadata(world.served("written")).unwrap().modified().unwrap();
    fs::write(world.served("written"), &other).unwrap();
    fs::write(world.served("t"), &other).unwrap();
    for name in ["written", "t"] {
        set_modified(&world.served(name), modified);
    }
    fs::rename(world.served("t"), world.served("replaced")).unwrap();
    let again = mount(&world, "");
    for name in ["written", "replaced"] {
        assert!(fs::read(again.at(name)).unwrap() == other, "{name}");
    }
    assert_eq!(disk(&again, "hits"), 0);
    assert!(fs::read(again.at("untouched")).unwrap() == files[2].1);
    assert_eq!(disk(&again, "hits"), 1);
    again.unmount();
}

/// As a backup that makes hard links, `chmod -R`, and `cp -a` do.
#[test]
fn a_content_that_only_looks_changed_is_not_transferred() {
    let world = served_by_helper("");
    let files = put_files(&world, &["linked", "mode", "copied"]);
    keep(&world, "", &files).unmount();
    fs::hard_link(world.served("linked"), world.served("link")).unwrap();
    fs::set_permissions(world.served("mode"), Permissions::from_mode(0o755)).unwrap();
    let modified = fs::metadata(world.served("copied")).unwrap().modified().unwrap();
    fs::copy(world.served("copied"), world.served("t")).unwrap();
    set_modified(&world.served("t"), modified);
    fs::rename(world.served("t"), world.served("copied")).unwrap();
    let again = mount(&world, "");
    for (name, _) in &files {
        fs::metadata(again.at(name)).unwrap();
    }
    sleep(SETTLED);
    for _ in 0..2 {
        read_all(&again, &files);
    }
    assert_eq!((disk(&again, "misses"), disk(&again, "read_there_bytes")), (0, 0));
    assert_eq!(fs::metadata(again.at("mode")).unwrap().mode() & 0o777, 0o755);
    again.unmount();
}

#[test]
fn inodes_are_those_of_the_server_also_without_it() {
    let world = served_by_helper("");
    let files = put_files(&world, &["d/one", "d/other"]);
    fs::hard_link(world.served("d/one"), world.served("d/two")).unwrap();
    let check = |mount: &Mount| {
        let served = fs::metadata(world.served("d/one")).unwrap();
        for name in ["d/one", "d/two"] {
            let found = fs::metadata(mount.at(name)).unwrap();
            assert_eq!((found.ino(), found.nlink()), (served.ino(), 2), "{name}");
            let times = (found.ctime(), found.ctime_nsec());
            assert_eq!(times, (served.ctime(), served.ctime_nsec()), "{name}");
        }
        let other = fs::metadata(mount.at("d/other")).unwrap();
        assert_eq!(other.nlink(), 1);
    };
    let first = keep(&world, "", &files);
    fs::read_dir(first.at("d")).unwrap().for_each(drop);
    check(&first);
    first.unmount();
    let offline = mount(&world, "offline");
    check(&offline);
    read_all(&offline, &files);
    offline.unmount();
    // The records of one host are used by a union, too; its files have numbers of their own.
    let (place, branch) = (world.mountpoint(), world.local("branch"));
    fs::create_dir(&branch).unwrap();
    let mut command = world.command();
    command.arg("-f").arg(world.source()).arg(format!("local:{}", branch.display())).arg(&place);
    command.arg(with_cache(&world, "offline"));
    let union = ready(Mount::start(command, place));
    read_all(&union, &files);
    let found = fs::metadata(union.at("d/one")).unwrap();
    let served = fs::metadata(world.served("d/one")).unwrap();
    assert_ne!(found.ino(), served.ino());
    union.unmount();
}

/// What is watched is opened and read without a request, from the disk.
#[test]
fn a_watched_file_is_read_from_the_disk_without_a_request() {
    let world = served_by_helper("");
    let files = put_files(&world, &["d/one", "d/two"]);
    keep(&world, "", &files).unmount();
    let again = mount(&world, "consistency=watch");
    wait_for_watches(&again, 2);
    // The disk cache has the content, also where the kernel has dropped its pages.
    assert_needs_no_requests(&again, || read_all(&again, &files));
    assert!(disk(&again, "hits") >= 2, "it is stored");
    assert_eq!(disk(&again, "misses"), 0);
    fs::write(world.served("d/one"), vec![7; 300_000]).unwrap();
    age(&world.served("d/one"));
    eventually(SOON, "the change is shown", || {
        fs::read(again.at("d/one")).unwrap() == vec![7; 300_000]
    });
    assert!(fs::read(again.at("d/two")).unwrap() == files[1].1);
    again.unmount();
}

/// W1 with a stored content: `tail -f` of a file that had not changed for long.
#[test]
fn an_open_descriptor_reads_what_was_appended_to_a_stored_file() {
    let world = served_by_helper("");
    let files = put_files(&world, &["d/log"]);
    keep(&world, "", &files).unmount();
    let again = mount(&world, "consistency=watch");
    wait_for_watches(&again, 2);
    let mut reader = fs::File::open(again.at("d/log")).unwrap();
    let mut text = Vec::new();
    reader.read_to_end(&mut text).unwrap();
    assert!(text == files[0].1);
    assert_eq!(disk(&again, "misses"), 0);
    for round in 0..3 {
        let line = format!("line {round}");
        let mut there = fs::File::options().append(true).open(world.served("d/log")).unwrap();
        there.write_all(line.as_bytes()).unwrap();
        text.clear();
        eventually(SOON, "the line is read", || {
            reader.read_to_end(&mut text).unwrap();
            text == line.as_bytes()
        });
        let len = fs::metadata(world.served("d/log")).unwrap().len();
        assert_eq!(reader.metadata().unwrap().len(), len);
        assert_eq!(fs::metadata(again.at("d/log")).unwrap().len(), len);
    }
    drop(reader);
    again.unmount();
}
