//! A directory that is not private to the user.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use cache::{Store, StoreError};

use crate::world::{self, Found};

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    chmod(dir.path(), 0o777);
    let error = Store::open(world::config(dir.path())).err().unwrap();
    assert!(matches!(error, StoreError::OthersMayWrite { .. }), "{error}");
}

#[test]
fn the_store_is_private_in_a_directory_others_may_read() {
    let dir = tempfile::tempdir().unwrap();
    chmod(dir.path(), 0o755);
    std::fs::create_dir(dir.path().join("v1")).unwrap();
    chmod(&dir.path().join("v1"), 0o755);
    world::open(dir.path());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.path()), 0o755);
    assert_eq!(mode(&dir.path().join("v1")), 0o700);
    let names = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 1, "a directory with more in it stays in backups");
}

/// Only root can give a directory to another user.
#[test]
fn a_directory_of_another_user_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    std::fs::create_dir(&cache).unwrap();
    let theirs = if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&cache, Some(12345), None).unwrap();
        cache
    } else {
        "/".into()
    };
    let error = Store::open(world::config(&theirs)).err().unwrap();
    assert!(matches!(error, StoreError::ForeignOwner { .. }), "{error}");
    assert!(error.to_string().contains("cache_dir="), "{error}");
}

#[test]
fn planted_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    let cache = dir.path().join("cache");
    drop(world::open(&cache));
    let v1 = cache.join("v1");
    // Every path at which the store creates a file or a directory.
    let digest = cache::Digest::of(&world::content(2, 1)).to_hex();
    symlink(outside.path(), v1.join("objects").join(&digest[..2])).unwrap();
    let large = cache::Digest::of(&world::content(7, 1)).to_hex();
    let large_dir = v1.join("objects").join(&large[..2]);
    std::fs::create_dir(&large_dir).unwrap();
    symlink(&victim, large_dir.join(&large[2..])).unwrap();
    symlink(&victim, large_dir.join(format!("{}.about", &large[2..]))).unwrap();
    let source: String = world::source().as_bytes().iter().map(|b| format!("{b:02x}")).collect();
    std::fs::create_dir_all(v1.join("index").join(&source).join("dd0")).unwrap();
    symlink(&victim, v1.join("index").join(&source).join("dd0/records")).unwrap();
    symlink(outside.path(), v1.join("index").join(&source).join("dd1")).unwrap();
    for name in ["usage", "gc.lock"] {
        let _ = std::fs::remove_file(v1.join(name));
        symlink(&victim, v1.join(name)).unwrap();
    }
    let store = world::open(&cache);
    for file in 0..10 {
        world::put(&store, file, 1);
        world::check_file(&store, file);
        store.forget(&world::source(), &world::path(file));
    }
    store.gc();
    store.verify(|_| {});
    store.clear().unwrap();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    let left: Vec<_> = std::fs::read_dir(outside.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn another_version_s_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("v2")).unwrap();
    std::fs::write(dir.path().join("v2/file"), "of a later version").unwrap();
    chmod(dir.path(), 0o700);
    let store = world::open(dir.path());
    assert!(world::put(&store, 0, 1).is_some());
    store.clear().unwrap();
    assert_eq!(world::check_file(&store, 0), Found::default());
    assert!(dir.path().join("v2/file").exists());
    let tag = std::fs::read_to_string(dir.path().join("v1/CACHEDIR.TAG")).unwrap();
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55"));
}
