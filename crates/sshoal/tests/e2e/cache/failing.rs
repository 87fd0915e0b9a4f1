//! A store that is damaged, full, or not the user's own.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use rustix::process::geteuid;

use super::{
    LIMIT, cache_dir, disk, files_below, mount, put_tree, read_all, ready, sshoal, with_cache,
};
use crate::process::{eventually, succeed};
use crate::world::World;

/// Bytes that changed on the disk are never shown, and are fetched again.
#[test]
fn damaged_contents_are_repaired() {
    let world = World::new();
    let files = put_tree(&world);
    let first = mount(&world, "consistency=immutable");
    read_all(&first, &files);
    first.unmount();
    let mut damaged = 0;
    for path in files_below(&cache_dir(&world)) {
        if !path.components().any(|part| part.as_os_str() == "objects") {
            continue;
        }
        let len = fs::metadata(&path).unwrap().len();
        if len > 0 {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let file = fs::File::options().read(true).write(true).open(&path).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, len / 2).unwrap();
            file.write_all_at(&[byte[0] ^ 1], len / 2).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged >= files.len() - 1, "{damaged}");
    let again = mount(&world, "consistency=immutable");
    read_all(&again, &files);
    assert!(disk(&again, "damaged") > 0);
    again.unmount();
    let third = mount(&world, "consistency=immutable");
    read_all(&third, &files);
    assert_eq!(disk(&third, "damaged"), 0, "repaired");
    third.unmount();
}

/// A tmpfs of this size, gone when the test is over.
struct Small(PathBuf);

impl Small {
    fn new(world: &World, options: &str) -> Small {
        let place = world.local("small");
        fs::create_dir(&place).unwrap();
        succeed(Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&place));
        Small(place)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A disk that is full costs the cache, and one warning.
#[test]
fn a_full_cache_disk_is_reported_once_and_the_mount_continues() {
    if !geteuid().is_root() {
        eprintln!("skipped: it takes root to make a small file system");
        return;
    }
    let world = World::new();
    let files = put_tree(&world);
    let small = Small::new(&world, "size=1m");
    let dir = small.0.join("cache");
    let option = format!("-ocache=disk,cache_dir={},cache_size=1G,cache_free=0", dir.display());
    let mount = ready(world.mount(&[&option])).with_errors();
    for _ in 0..3 {
        read_all(&mount, &files);
        fs::write(mount.at("new"), "content").unwrap();
    }
    let words = mount.words();
    assert!(words.lines().count() <= 1, "one warning: {words}");
    mount.unmount();
}

/// The same from the beginning on.
#[test]
fn a_disk_that_can_be_written_nothing_to_is_done_without() {
    if !geteuid().is_root() {
        eprintln!("skipped: it takes root to make a file system");
        return;
    }
    let world = World::new();
    let files = put_tree(&world);
    let small = Small::new(&world, "ro,size=1m");
    let option = format!("-ocache=disk,cache_dir={}", small.0.join("cache").display());
    let mount = ready(world.mount(&[&option])).with_errors();
    read_all(&mount, &files);
    let words = mount.words();
    assert!(words.contains("without the disk cache") && words.lines().count() == 1, "{words}");
    mount.unmount();
}

#[test]
fn warm_says_why_nothing_can_be_written() {
    let world = World::new();
    let files = put_tree(&world);
    let mount = mount(&world, "").with_errors();
    eventually(LIMIT, "the cache is gone", || fs::remove_dir_all(cache_dir(&world)).is_ok());
    let warmed = sshoal(&["warm"], &[&mount.at(&files[5].0)]);
    assert_eq!(warmed.status.code(), Some(1), "{warmed:?}");
    assert!(warmed.stderr.contains("the cache cannot be written to: "), "{warmed:?}");
    assert!(warmed.stdout.contains("1 file not cached: "), "{warmed:?}");
    mount.unmount();
}

#[test]
fn a_cache_directory_of_another_user_is_refused() {
    if !geteuid().is_root() {
        eprintln!("skipped: it takes root to be several users");
        return;
    }
    let world = World::new();
    let dir = cache_dir(&world);
    fs::create_dir(&dir).unwrap();
    let owner = rustix::fs::Uid::from_raw(5);
    rustix::fs::chown(&dir, Some(owner), None).unwrap();
    let place = world.mountpoint();
    let refused =
        || world.refusal(&[&with_cache(&world, ""), &world.source(), place.to_str().unwrap()]);
    let said = refused();
    assert!(said.contains("belongs to user 5") && said.contains("cache_dir="), "{said}");
    // Nor is one taken that others can write to.
    rustix::fs::chown(&dir, Some(rustix::fs::Uid::ROOT), None).unwrap();
    fs::write(dir.join("planted"), "").unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let said = refused();
    assert!(said.contains("others may write"), "{said}");
}

/// Nobody else can look into what is kept.
#[test]
fn cached_files_are_private() {
    let world = World::new();
    let files = put_tree(&world);
    let mount = mount(&world, "");
    read_all(&mount, &files);
    mount.unmount();
    let mode = fs::metadata(cache_dir(&world)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}
