//! Opening a directory, and its position relative to a mount point.

use std::os::unix::fs::symlink;

use base::{Errno, Location, Remote};
use local::{Error, Local};
use testkit::path;

use super::Real;

#[test]
fn an_unusable_root_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("file"), "").unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("loop", at("loop")).unwrap();
    let told = |name: &str| Local::open(at(name)).unwrap_err();
    assert!(matches!(told("none"), Error::Missing { .. }));
    assert!(matches!(told("dangling"), Error::Missing { .. }));
    assert!(matches!(told("file"), Error::NotDirectory { .. }));
    assert!(matches!(told("file/x"), Error::NotDirectory { .. }));
    assert!(matches!(told("loop"), Error::Unusable { errno: Errno::ELOOP, .. }));
    let error = told("none\x1b[2J").to_string();
    let shown =
        format!("{}/none\\u{{1b}}[2J: no such directory on this machine", dir.path().display());
    assert_eq!(error, shown);
}

#[tokio::test]
async fn the_root_may_be_a_link_and_reports_its_location() {
    let real = Real::new();
    real.put("file", "content");
    symlink("root", real.dir.path().join("link")).unwrap();
    let link = real.dir.path().join("link");
    let local = Local::open(&link).unwrap();
    assert_eq!(local.lstat(&path("file")).await.unwrap().size, 7);
    let source = format!("local:{}", link.display());
    let here = Location { source, host: "localhost".to_owned() };
    assert_eq!(local.locate(&path("file")).await, Ok(vec![here]));
    assert_eq!(local.locate(&path("none")).await, Err(Errno::ENOENT));
}

#[test]
fn a_mountpoint_is_inside_around_or_elsewhere() {
    let real = Real::new();
    std::fs::create_dir_all(real.at("a/b")).unwrap();
    std::fs::create_dir(real.dir.path().join("sibling")).unwrap();
    symlink("root/a/b", real.dir.path().join("detour")).unwrap();
    let up = |name: &str| real.dir.path().join(name);
    for (mountpoint, contains, is_within) in [
        (real.at("a"), true, false),
        (real.at("a/b"), true, false),
        (real.at("a/../a/b"), true, false),
        (up("detour"), true, false),
        (real.at(""), false, true),
        (up(""), false, true),
        ("/".into(), false, true),
        (up("sibling"), false, false),
        ("/proc".into(), false, false),
    ] {
        let shown = mountpoint.display();
        assert_eq!(real.local.contains(&mountpoint).unwrap(), contains, "{shown}");
        assert_eq!(real.local.is_within(&mountpoint).unwrap(), is_within, "{shown}");
    }
    assert!(matches!(real.local.contains(up("none")), Err(Error::Missing { .. })));
    assert!(matches!(real.local.is_within(up("outside")), Err(Error::NotDirectory { .. })));
}
