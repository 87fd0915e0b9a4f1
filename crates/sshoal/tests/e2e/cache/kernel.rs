//! What the kernel does by itself: opens that are not sent, and reads of cached files
//! (passthrough).

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::time::Duration;

use rustix::process::geteuid;

use super::{cache_dir, disk, mount, put, put_tree, read_all};
use crate::behaviours::pattern;
use crate::mount::Mount;
use crate::process::succeed;
use crate::world::World;

/// Beyond the size from which on the kernel reads by itself.
const LARGE: usize = 5 << 20;

/// Whether the kernel can be made to read a file of the cache: by root, on Linux 6.9, and where the
/// cache is not on a file system that is stacked on others itself.
fn can_pass_through(world: &World) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|char: char| !char.is_ascii_digit()).map(str::parse::<u32>);
    let version = (numbers.next().unwrap().unwrap(), numbers.next().unwrap().unwrap());
    let kind = succeed(Command::new("stat").args(["-f", "-c", "%T"]).arg(world.local("")));
    let can = geteuid().is_root() && version >= (6, 9) && kind.trim() != "overlayfs";
    if !can {
        eprintln!("skipped: user {:?}, Linux {release}, on {kind}", geteuid());
    }
    can
}

/// A mount of which `file` is in the cache.
fn warmed(world: &World, options: &str, content: &[u8]) -> Mount {
    put(world, "file", content);
    let first = mount(world, "");
    assert!(fs::read(first.at("file")).unwrap() == content);
    first.unmount();
    mount(world, options)
}

#[test]
fn large_cached_files_are_read_without_us() {
    let world = World::new();
    if !can_pass_through(&world) {
        return;
    }
    let content = pattern(LARGE);
    put(&world, "file", &content);
    for (first, options) in [
        ("", "ro"),
        // What was told close-to-open is asked once more for ever.
        ("consistency=immutable", "ro,consistency=immutable,passthrough=yes"),
    ] {
        let first = mount(&world, first);
        assert!(fs::read(first.at("file")).unwrap() == content);
        first.unmount();
        let mount = mount(&world, options);
        for round in 1..=2 {
            assert!(fs::read(mount.at("file")).unwrap() == content);
            assert_eq!(disk(&mount, "opened_through"), round, "{options}");
        }
        assert_eq!((disk(&mount, "read_here_bytes"), disk(&mount, "read_there_bytes")), (0, 0));
        // Several at once, past the pages, through a mapping, and with seeking.
        let (mut one, two) = (File::open(mount.at("file")).unwrap(), File::open(mount.at("file")));
        let two = two.unwrap();
        let mut piece = vec![0; 100_000];
        one.seek(SeekFrom::Start(3_000_000)).unwrap();
        one.read_exact(&mut piece).unwrap();
        assert!(piece[..] == content[3_000_000..3_100_000]);
        two.read_exact_at(&mut piece, 1_234_567).unwrap();
        assert!(piece[..] == content[1_234_567..1_334_567]);
        assert_eq!(two.metadata().unwrap().len(), LARGE as u64);
        succeed(Command::new("cmp").arg(mount.at("file")).arg(world.served("file")));
        assert!(File::create(mount.at("file")).is_err());
        drop((one, two));
        mount.unmount();
    }
}

/// Who has a file open so goes on reading what it was; who opens it now reads what it is.
#[test]
fn a_file_replaced_under_its_readers_is_new_for_later_opens() {
    let world = World::new();
    if !can_pass_through(&world) {
        return;
    }
    let content = pattern(LARGE);
    let mount = warmed(&world, "ro,open_revalidate=0,actimeo=0", &content);
    let before = File::open(mount.at("file")).unwrap();
    assert_eq!(disk(&mount, "opened_through"), 1);
    let other: Vec<u8> = content.iter().map(|byte| byte ^ 0xff).chain([1]).collect();
    put(&world, "file", &other);
    for _ in 0..2 {
        assert!(fs::read(mount.at("file")).unwrap() == other, "what it is now");
        let mut piece = vec![0; 1000];
        before.read_exact_at(&mut piece, 2_000_000).unwrap();
        assert!(piece[..] == content[2_000_000..2_001_000], "what it was");
    }
    drop(before);
    assert!(fs::read(mount.at("file")).unwrap() == other);
    mount.unmount();
}

/// The content leaves the store, and comes back as another file, while it is being read.
#[test]
fn a_content_that_is_evicted_can_be_read_on() {
    let world = World::new();
    if !can_pass_through(&world) {
        return;
    }
    let content = pattern(LARGE);
    let mount = warmed(&world, "ro", &content);
    let before = File::open(mount.at("file")).unwrap();
    assert_eq!(disk(&mount, "opened_through"), 1);
    super::told(&["cache", "clear", "--dir"], &[&cache_dir(&world)]);
    for _ in 0..3 {
        assert!(fs::read(mount.at("file")).unwrap() == content);
        let mut piece = vec![0; LARGE];
        before.read_exact_at(&mut piece, 0).unwrap();
        assert!(piece == content);
    }
    drop(before);
    mount.unmount();
}

#[test]
fn without_ro_or_with_passthrough_no_the_daemon_reads() {
    let world = World::new();
    let content = pattern(LARGE);
    for options in ["", "ro,passthrough=no"] {
        let mount = warmed(&world, options, &content);
        assert!(fs::read(mount.at("file")).unwrap() == content);
        assert_eq!(disk(&mount, "opened_through"), 0);
        assert_eq!((disk(&mount, "hits"), disk(&mount, "read_there_bytes")), (1, 0));
        mount.unmount();
    }
}

/// Where nothing changes the kernel does not tell of opens. All that comes of it works as usual.
#[test]
fn opens_that_are_not_sent_are_opens() {
    let world = World::new();
    let files = put_tree(&world);
    let script = world.served("script");
    sandbox::write_program(&script, "#!/bin/sh\necho run\n").unwrap();
    put(&world, "locked", b"content");
    let mount = mount(&world, "ro,consistency=immutable");
    for _ in 0..3 {
        read_all(&mount, &files);
    }
    assert_eq!(succeed(&mut Command::new(mount.at("script"))), "run\n");
    let (name, content) = files.last().unwrap();
    let direct = File::options().read(true).custom_flags(libc_o_direct()).open(mount.at(name));
    let mut direct = direct.unwrap();
    let mut all = Vec::new();
    direct.read_to_end(&mut all).unwrap();
    assert!(all == *content, "past the pages");
    succeed(Command::new("cmp").arg(mount.at(name)).arg(world.served(name)));
    let mut file = File::open(mount.at(name)).unwrap();
    let end = content.len() as u64;
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(5)), Ok(end));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(5)), Ok(5));
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), end);
    rustix::fs::fsync(&file).unwrap();
    assert!(File::options().append(true).open(mount.at(name)).is_err());
    // Many files at a time.
    let many: Vec<(File, &Vec<u8>)> = (0..50)
        .flat_map(|_| &files)
        .map(|(at, it)| (File::open(mount.at(at)).unwrap(), it))
        .collect();
    for (file, content) in &many {
        let half = content.len() / 2;
        let mut rest = vec![0; content.len() - half];
        file.read_exact_at(&mut rest, half as u64).unwrap();
        assert!(rest[..] == content[half..]);
    }
    drop((many, file, direct));
    mount.unmount();
}

fn libc_o_direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits().cast_signed()
}

/// What waits for the server can be given up, though it was not opened.
#[test]
fn a_read_without_an_open_can_be_interrupted() {
    let world = World::new();
    put(&world, "file", &pattern(LARGE));
    let mount = mount(&world, "ro,consistency=immutable");
    fs::metadata(mount.at("file")).unwrap();
    world.sshd().stop();
    let mut reader = Command::new("cat");
    let reader = reader.arg(mount.at("file")).stdout(std::process::Stdio::null());
    let mut reader = crate::process::Process::spawn(reader);
    assert!(reader.try_wait(Duration::from_millis(500)).is_none(), "it waits");
    reader.signal(rustix::process::Signal::KILL);
    assert!(reader.try_wait(super::LIMIT).is_some(), "it ends");
    world.sshd().cont();
    assert!(fs::read(mount.at("file")).unwrap() == pattern(LARGE));
    mount.unmount();
}
