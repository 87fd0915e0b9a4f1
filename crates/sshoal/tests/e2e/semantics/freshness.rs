//! When a change made elsewhere is seen.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use sandbox::link::LinkOptions;

use super::{counted, linked, traffic};
use crate::behaviours::pattern;
use crate::process::eventually;
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// C1: what one has closed, another one who opens it then reads; also when nothing but the bytes
/// has changed, many times in one second.
#[test]
fn c1_an_open_after_a_close_reads_the_written_data() {
    let world = World::new();
    let (one, other) = (world.mount(&[]), world.mount(&[]));
    for round in 0..60 {
        let (writer, reader) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let text = format!("round {round:03}");
        fs::write(writer.at("file"), &text).unwrap();
        assert_eq!(fs::read_to_string(reader.at("file")).unwrap(), text);
        assert_eq!(fs::read_to_string(writer.at("file")).unwrap(), text);
    }
    // The server's own changes are as good as another mount's.
    for round in 0..60 {
        let text = format!("ROUND {round:03}");
        fs::write(world.served("file"), &text).unwrap();
        assert_eq!(fs::read_to_string(one.at("file")).unwrap(), text);
    }
}

/// C1: an open reads a file to its new end although an older size reached the kernel between the
/// request and the reply of the lookup before the open.
#[test]
fn c1_an_older_size_in_flight_does_not_cut_the_content() {
    const RTT: Duration = Duration::from_millis(300);
    let world = World::new();
    let served = world.served("file");
    fs::write(&served, "short").unwrap();
    let link = LinkOptions { rtt: RTT, ..LinkOptions::default() };
    let (_link, mount) = linked(&world, link, &["-o", "actimeo=2,open_revalidate=0"]);
    for round in 0..2 {
        fs::write(&served, "short").unwrap();
        // Attributes of an old file stay valid as long as they may.
        age(&served, 3600 * SECOND);
        let expiring = Duration::from_millis(2500);
        thread::sleep(expiring);
        assert_eq!(fs::read_to_string(mount.at("file")).unwrap(), "short");
        thread::sleep(expiring);
        thread::scope(|scope| {
            scope.spawn(|| fs::metadata(mount.at("file")).unwrap());
            // The server has answered, and the kernel has not got the answer.
            thread::sleep(RTT * 2 / 3);
            fs::write(&served, "longer than before").unwrap();
            let read = fs::read_to_string(mount.at("file")).unwrap();
            assert_eq!(read, "longer than before", "round {round}");
        });
    }
}

/// C1 with a change in place, which neither size nor a later second tells.
#[test]
fn c3_a_second_change_within_one_second_is_not_missed() {
    let world = World::new();
    let mut content = pattern(200_000);
    fs::write(world.served("file"), &content).unwrap();
    let mount = world.mount(&[]);
    let there = File::options().write(true).open(world.served("file")).unwrap();
    for round in 0..100 {
        let at = (round * 1_999) % content.len();
        content[at] ^= 0xff;
        there.write_all_at(&content[at..=at], at as u64).unwrap();
        assert!(fs::read(mount.at("file")).unwrap() == content, "round {round}");
    }
}

fn age(path: &Path, by: Duration) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - by).unwrap();
}

/// C2: an open asks once a second at most, or each time with `open_revalidate=0`; what has not
/// changed is not fetched again.
#[test]
fn c2_unchanged_content_is_read_from_the_cache() {
    let world = World::new();
    let content = pattern(4 << 20);
    fs::write(world.served("file"), &content).unwrap();
    age(&world.served("file"), 600 * SECOND);
    let (link, mount) = counted(&world, &["-o", "open_revalidate=0"]);
    let read = || {
        let before = traffic(&link);
        assert!(fs::read(mount.at("file")).unwrap() == content);
        traffic(&link) - before
    };
    let first = read();
    assert!(first > 4 << 20, "{first}");
    for _ in 0..3 {
        let again = read();
        assert!((1..64 << 10).contains(&again), "an open asks, and fetches nothing: {again}");
    }
    let (default_link, default_mount) = counted(&world, &[]);
    assert!(fs::read(default_mount.at("file")).unwrap() == content);
    let before = traffic(&default_link);
    assert!(fs::read(default_mount.at("file")).unwrap() == content);
    let again = traffic(&default_link) - before;
    assert!(again < 64 << 10, "fetched again: {again}");
    // Another content with the same length is another time of last change, and so is seen.
    let other = vec![b'x'; content.len()];
    fs::write(world.served("file"), &other).unwrap();
    assert!(fs::read(mount.at("file")).unwrap() == other);
}

/// C4 and C5: names and attributes within the times that were asked for.
#[test]
fn c4_changes_are_seen_within_the_time_out() {
    let world = World::new();
    fs::create_dir(world.served("dir")).unwrap();
    fs::write(world.served("dir/file"), b"short").unwrap();
    let mount = world.mount(&["-o", "actimeo=2,acnegative=1"]);
    let names = || {
        let mut names: Vec<_> = fs::read_dir(mount.at("dir"))
            .unwrap()
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    for _ in 0..3 {
        // Known, and known to be absent.
        assert_eq!(fs::metadata(mount.at("dir/file")).unwrap().len(), 5);
        assert_eq!(fs::metadata(mount.at("dir/new")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(names(), ["file"]);
        fs::write(world.served("dir/file"), b"longer").unwrap();
        fs::write(world.served("dir/new"), b"").unwrap();
        let limit = 3 * SECOND;
        eventually(limit, "C4: the size", || {
            fs::metadata(mount.at("dir/file")).unwrap().len() == 6
        });
        eventually(limit, "C5: the new name", || fs::metadata(mount.at("dir/new")).is_ok());
        eventually(limit, "C4: the listing", || names() == ["file", "new"]);
        fs::remove_file(world.served("dir/new")).unwrap();
        fs::write(world.served("dir/file"), b"short").unwrap();
        eventually(limit, "C4: the size", || {
            fs::metadata(mount.at("dir/file")).unwrap().len() == 5
        });
        eventually(limit, "C4: the removal", || fs::metadata(mount.at("dir/new")).is_err());
        eventually(limit, "C4: the listing", || names() == ["file"]);
    }
}

/// C6: own changes are seen at once, however long things count.
#[test]
fn c6_own_changes_are_seen_at_once() {
    let world = World::new();
    let mount = world.mount(&["-o", "actimeo=3600,acnegative=3600"]);
    for round in 0_usize..50 {
        let name = format!("file{}", round % 7);
        let path = mount.at(&name);
        let existed = path.exists();
        assert_eq!(existed, world.served(&name).exists());
        let mut file = File::options().append(true).create(true).open(&path).unwrap();
        file.write_all(&pattern(round + 1)).unwrap();
        let there = || fs::metadata(world.served(&name)).unwrap().len();
        assert_eq!(fs::metadata(&path).unwrap().len(), there());
        drop(file);
        assert_eq!(fs::metadata(&path).unwrap().len(), there());
        if round % 3 == 0 {
            let other = format!("other{}", round % 5);
            fs::rename(&path, mount.at(&other)).unwrap();
            assert!(!path.exists() && mount.at(&other).exists());
        }
        let count = |dir: &Path| fs::read_dir(dir).unwrap().count();
        assert_eq!(count(mount.place()), count(&world.served("")));
        let modified = |path: &Path| fs::metadata(path).unwrap().mtime();
        assert_eq!(modified(mount.place()), modified(&world.served("")), "round {round}");
    }
}

/// S1: nothing is cached.
#[test]
fn s1_strict_sends_a_request_for_each_call() {
    let world = World::new();
    fs::write(world.served("file"), b"one").unwrap();
    let mount = world.mount(&["-o", "consistency=strict"]);
    let held = File::open(mount.at("file")).unwrap();
    for round in 0..20 {
        let text = format!("{:>width$}", round, width = 3 + round);
        fs::write(world.served("file"), &text).unwrap();
        assert_eq!(fs::metadata(mount.at("file")).unwrap().len(), text.len() as u64);
        let mut read = vec![0; 100];
        let len = held.read_at(&mut read, 0).unwrap();
        assert_eq!(&read[..len], text.as_bytes(), "through an open descriptor");
        let name = format!("name{round}");
        assert!(!mount.at(&name).exists());
        fs::write(world.served(&name), b"").unwrap();
        assert!(mount.at(&name).exists());
        let listed = fs::read_dir(mount.place()).unwrap().count();
        assert_eq!(listed, round + 2);
    }
}

/// I1: what was seen once counts for ever.
#[test]
fn i1_immutable_asks_once() {
    let world = World::new();
    let content = pattern(1 << 20);
    fs::create_dir(world.served("dir")).unwrap();
    fs::write(world.served("dir/file"), &content).unwrap();
    let (link, mount) = counted(&world, &["-o", "consistency=immutable"]);
    let look = || {
        assert!(fs::read(mount.at("dir/file")).unwrap() == content);
        assert!(!mount.at("dir/absent").exists());
        assert_eq!(fs::metadata(mount.at("dir")).unwrap().mode() & 0o777, 0o755);
    };
    look();
    fs::write(world.served("dir/absent"), b"").unwrap();
    fs::write(world.served("dir/file"), b"changed").unwrap();
    let before = traffic(&link);
    for _ in 0..10 {
        look();
    }
    // Opens still go to the server, which has to have the file; content and names do not.
    let moved = traffic(&link) - before;
    assert!(moved < 64 << 10, "{moved}");
}
