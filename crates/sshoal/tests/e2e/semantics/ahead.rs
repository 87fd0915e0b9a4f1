//! What goes on ahead of readers and behind writers shows in nothing but speed.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::io::ReadWriteFlags;

use super::{counted, traffic};
use crate::behaviours::pattern;
use crate::world::World;

/// OpenSSH's server, which refuses this one request.
const WITHOUT_FSYNC: &str = "sftp_server=/usr/lib/openssh/sftp-server -P fsync";

/// Bytes at an address that O_DIRECT takes.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// A4: a write to a file opened with O_SYNC or O_DSYNC, and one with RWF_DSYNC or RWF_SYNC, returns
/// when the server has synced it, through the page cache and past it.
#[test]
fn a4_a_synchronous_write_is_synced() {
    let world = World::new();
    let mount = world.mount(&["-o", WITHOUT_FSYNC]).with_errors();
    let page = Page([7; 4096]);
    for (number, (flags, synced)) in [
        (0, false),
        (libc::O_DIRECT, false),
        (libc::O_SYNC, true),
        (libc::O_DSYNC, true),
        (libc::O_DIRECT | libc::O_SYNC, true),
        (libc::O_DIRECT | libc::O_DSYNC, true),
    ]
    .into_iter()
    .enumerate()
    {
        let path = mount.at(format!("file{number}"));
        let options =
            OpenOptions::new().write(true).create_new(true).custom_flags(flags).open(path);
        let written = options.unwrap().write_all_at(&page.0, 0);
        assert_eq!(written.is_err(), synced, "{flags:#o}: {written:?}");
    }
    for (number, open_flags) in [0, libc::O_DIRECT].into_iter().enumerate() {
        for flags in [ReadWriteFlags::DSYNC, ReadWriteFlags::SYNC] {
            let path = mount.at(format!("single{number}"));
            let options =
                OpenOptions::new().write(true).create(true).custom_flags(open_flags).open(path);
            let file = options.unwrap();
            let page = [IoSlice::new(&page.0)];
            rustix::io::pwritev2(&file, &page, 0, ReadWriteFlags::empty()).unwrap();
            let written = rustix::io::pwritev2(&file, &page, 0, flags);
            assert!(written.is_err(), "{open_flags:#o}: {flags:?}");
        }
    }
}

/// Two who read a file at the same time, each through a descriptor of his own, share what is
/// fetched.
#[test]
fn two_readers_fetch_a_file_once() {
    let world = World::new();
    let content = pattern(24 << 20);
    fs::write(world.served("file"), &content).unwrap();
    File::open(world.served("file")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let (link, mount) = counted(&world, &[]);
    let before = traffic(&link);
    std::thread::scope(|scope| {
        for step in [64 << 10, 200_000] {
            let (mount, content) = (&mount, &content);
            scope.spawn(move || {
                let file = File::open(mount.at("file")).unwrap();
                let (mut at, mut buffer) = (0, vec![0; step]);
                while at < content.len() {
                    let read = file.read_at(&mut buffer, at as u64).unwrap();
                    assert!(read > 0 && buffer[..read] == content[at..at + read], "at {at}");
                    at += read;
                }
            });
        }
    });
    let moved = traffic(&link) - before;
    assert!(moved < content.len() as u64 * 5 / 4, "{moved}");
}

/// A2, A3: small writes one behind the other, with looks at the file from other descriptors in
/// between.
#[test]
fn a2_small_writes_are_seen_at_once_and_are_all_there_at_close() {
    let world = World::new();
    let mount = world.mount(&[]);
    let content = pattern(600_000);
    let mut file = File::create(mount.at("file")).unwrap();
    let mut at = 0;
    for (number, piece) in content.chunks(1_777).enumerate() {
        file.write_all(piece).unwrap();
        at += piece.len();
        match number % 40 {
            10 => assert_eq!(fs::metadata(mount.at("file")).unwrap().len(), at as u64),
            30 => assert!(fs::read(mount.at("file")).unwrap() == content[..at], "{at}"),
            _ => {}
        }
    }
    drop(file);
    assert!(fs::read(world.served("file")).unwrap() == content);
}
