//! Listings, of directories that are large or change, and inode numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::process::{eventually, status_field};
use crate::world::World;

/// A10: while others come and go, each name that stays is listed exactly once.
#[test]
fn a10_a_listing_of_a_changing_directory_has_each_name_once() {
    let world = World::new();
    fs::create_dir(world.served("dir")).unwrap();
    let staying: BTreeSet<OsString> = (0..3_000).map(|n| format!("stays{n}").into()).collect();
    for name in &staying {
        File::create(world.served("dir").join(name)).unwrap();
    }
    for n in 0..1_000 {
        File::create(world.served(format!("dir/goes{n}"))).unwrap();
    }
    let mount = world.mount(&[]);
    for round in 0..4 {
        let mut seen: BTreeMap<OsString, usize> = BTreeMap::new();
        let mut changes = 0;
        for entry in fs::read_dir(mount.at("dir")).unwrap() {
            *seen.entry(entry.unwrap().file_name()).or_default() += 1;
            if seen.len().is_multiple_of(40) {
                // By turns from here and from the server.
                let dir = if changes % 2 == 0 { mount.at("dir") } else { world.served("dir") };
                let _ = fs::remove_file(dir.join(format!("goes{}", 250 * round + changes)));
                fs::write(dir.join(format!("comes{round}-{changes}")), b"").unwrap();
                changes += 1;
            }
        }
        assert!(changes > 50);
        let twice: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "{twice:?}");
        let missing: Vec<_> = staying.iter().filter(|name| !seen.contains_key(*name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

/// A directory of 100,000 entries lists, and the daemon does not keep more of it than what the
/// kernel remembers.
#[test]
fn a_hundred_thousand_entries() {
    const ENTRIES: usize = 100_000;
    let world = World::new();
    fs::create_dir(world.served("dir")).unwrap();
    for n in 0..ENTRIES {
        // As fast as a file can be made.
        rustix::fs::mknodat(
            rustix::fs::CWD,
            world.served(format!("dir/a name of usual length {n}")),
            rustix::fs::FileType::RegularFile,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
    }
    let mount = world.mount(&[]);
    let memory = || status_field(mount.daemon().pid(), "VmRSS");
    let before = memory();
    let mut figures = Vec::new();
    for _ in 0..3 {
        assert_eq!(fs::read_dir(mount.at("dir")).unwrap().count(), ENTRIES);
        figures.push(memory() - before);
    }
    let with_attributes =
        fs::read_dir(mount.at("dir")).unwrap().filter(|it| it.as_ref().unwrap().metadata().is_ok());
    assert_eq!(with_attributes.count(), ENTRIES);
    figures.push(memory() - before);
    eprintln!("100,000 entries: {before} KiB before, then more by {figures:?} KiB");
    let peak = mount.peak_memory_kib();
    assert!(peak < 256 << 10, "{peak} KiB");
    assert!(figures[3] < 2 * figures[0].max(32 << 10), "it grows with each listing: {figures:?}");
}

/// Inode numbers are the same after a remount, and stay with what is renamed.
#[test]
fn inode_numbers_are_stable() {
    let world = World::new();
    fs::create_dir_all(world.served("a/b")).unwrap();
    for n in 0..200 {
        fs::write(world.served(format!("a/b/file{n}")), b"").unwrap();
    }
    let numbers = |place: &Path| {
        let mut numbers = BTreeMap::new();
        let mut dirs = vec![place.to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
                let meta = entry.metadata().unwrap();
                let name = entry.path().strip_prefix(place).unwrap().to_owned();
                numbers.insert(name, meta.ino());
                if meta.is_dir() {
                    dirs.push(entry.path());
                }
            }
        }
        numbers
    };
    let first = world.mount(&[]);
    let found = numbers(first.place());
    assert_eq!(found.len(), 202);
    assert_eq!(found.values().collect::<BTreeSet<_>>().len(), 202, "each has its own");
    let root = fs::metadata(first.place()).unwrap().ino();
    first.unmount();
    let second = world.mount(&[]);
    assert_eq!(numbers(second.place()), found);
    assert_eq!(fs::metadata(second.place()).unwrap().ino(), root);
    // Renamed, it keeps its number, and what takes its name gets another one.
    fs::rename(second.at("a/b/file0"), second.at("a/moved")).unwrap();
    fs::write(second.at("a/b/file0"), b"").unwrap();
    let ino = |name: &str| fs::metadata(second.at(name)).unwrap().ino();
    assert_eq!(ino("a/moved"), found[Path::new("a/b/file0")]);
    assert_ne!(ino("a/b/file0"), ino("a/moved"));
}

/// A listing whose reader goes away in the middle leaves nothing open on the server.
#[test]
fn unfinished_listings_are_closed() {
    let world = World::new();
    for n in 0..2_000 {
        fs::write(world.served(format!("file{n}")), b"").unwrap();
    }
    let mount = world.mount(&[]);
    assert!(mount.at("file0").exists());
    let server = world.sshd().sftp_server_pids()[0];
    let open = || fs::read_dir(format!("/proc/{server}/fd")).unwrap().count();
    let before = open();
    for _ in 0..50 {
        let mut listing = fs::read_dir(mount.place()).unwrap();
        listing.next().unwrap().unwrap();
        drop(File::open(mount.at("file1")).unwrap());
    }
    eventually(Duration::from_secs(5), "all handles are closed", || open() <= before);
}
