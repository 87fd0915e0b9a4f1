//! Options that change what is seen.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use super::content::pattern;
use crate::mount::Mount;
use crate::process::{run_within, succeed};
use crate::world::{World, program};

fn kind(result: std::io::Result<impl Sized>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn disable_hardlink() {
    let world = World::new();
    let mount = world.mount(&["-o", "disable_hardlink"]);
    fs::write(mount.at("one"), b"").unwrap();
    let error = fs::hard_link(mount.at("one"), mount.at("two")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    assert!(!world.served("two").exists());
    // Nothing else is disturbed.
    fs::rename(mount.at("one"), mount.at("two")).unwrap();
}

#[test]
fn follow_symlinks() {
    let world = World::new();
    fs::write(world.local("outside"), b"outside").unwrap();
    fs::create_dir(world.served("dir")).unwrap();
    fs::write(world.served("dir/file"), b"inside").unwrap();
    symlink("../outside", world.served("file_link")).unwrap();
    symlink("dir", world.served("dir_link")).unwrap();
    symlink("nowhere", world.served("broken")).unwrap();
    let mount = world.mount(&["-o", "follow_symlinks"]);
    let meta = fs::symlink_metadata(mount.at("file_link")).unwrap();
    assert!(meta.is_file() && meta.size() == 7);
    assert_eq!(fs::read(mount.at("file_link")).unwrap(), b"outside");
    assert!(fs::symlink_metadata(mount.at("dir_link")).unwrap().is_dir());
    assert_eq!(fs::read(mount.at("dir_link/file")).unwrap(), b"inside");
    assert_eq!(kind(File::open(mount.at("broken"))), Some(ErrorKind::NotFound));
    let kinds: Vec<_> = fs::read_dir(mount.place())
        .unwrap()
        .map(Result::unwrap)
        .filter(|it| it.file_name() != "broken")
        .map(|it| it.file_type().unwrap().is_symlink())
        .collect();
    assert_eq!(kinds, [false; 3]);
}

#[test]
fn direct_io() {
    let world = World::new();
    let content = pattern(500_000);
    fs::write(world.served("file"), &content).unwrap();
    let mount = world.mount(&["-o", "direct_io"]);
    assert!(fs::read(mount.at("file")).unwrap() == content);
    fs::write(mount.at("written"), &content).unwrap();
    assert!(fs::read(world.served("written")).unwrap() == content);
    // Nothing is kept: a change in place is seen through a descriptor that is already open.
    let open = File::open(mount.at("file")).unwrap();
    let mut first = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut first, 0).unwrap();
    let there = fs::OpenOptions::new().write(true).open(world.served("file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&there, b"NEW!", 0).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut first, 0).unwrap();
    assert_eq!(&first, b"NEW!");
}

/// Links of all sorts, and what lies around the directory that is served.
fn links() -> World {
    let world = World::new();
    fs::write(world.local("outside"), b"outside").unwrap();
    fs::create_dir(world.served("sub")).unwrap();
    fs::write(world.served("sub/target"), b"inside").unwrap();
    symlink(world.local("outside"), world.served("absolute")).unwrap();
    symlink(world.served("sub/target"), world.served("absolute_inside")).unwrap();
    symlink("../outside", world.served("up")).unwrap();
    symlink("sub/../../outside", world.served("winding")).unwrap();
    symlink("../sub/target", world.served("sub/around")).unwrap();
    symlink("sub/target", world.served("down")).unwrap();
    symlink("./sub/target", world.served("dotted")).unwrap();
    world
}

const ALL: [&str; 7] =
    ["absolute", "absolute_inside", "up", "winding", "sub/around", "down", "dotted"];

/// All links are as expected: with their content, or refused.
#[track_caller]
fn check_links(mount: &Mount, inside: &[&str], outside: &[&str]) {
    for name in ALL {
        let expected = match (inside.contains(&name), outside.contains(&name)) {
            (true, _) => Ok(b"inside".to_vec()),
            (_, true) => Ok(b"outside".to_vec()),
            _ => Err(ErrorKind::PermissionDenied),
        };
        let read = fs::read(mount.at(name)).map_err(|error| error.kind());
        assert_eq!(read, expected, "{name}");
        let refused = expected.as_ref().err().copied();
        assert_eq!(kind(fs::read_link(mount.at(name))), refused, "{name}");
        assert_eq!(kind(fs::metadata(mount.at(name))), refused, "{name}");
        assert!(fs::symlink_metadata(mount.at(name)).unwrap().is_symlink(), "{name}");
    }
}

#[test]
fn links_inside_of_the_mount_work_and_others_do_not() {
    let world = links();
    let mount = world.mount(&[]).with_errors();
    check_links(&mount, &["absolute_inside", "sub/around", "down", "dotted"], &[]);
    // The log says it once.
    let refusals = mount.words();
    assert_eq!(refusals.matches("-o no_contain_symlinks allows them").count(), 1, "{refusals}");
    // It works for writing, too, and through a directory.
    fs::write(mount.at("sub/around"), b"inside").unwrap();
    symlink("sub", mount.at("door")).unwrap();
    assert_eq!(fs::read(mount.at("door/target")).unwrap(), b"inside");
}

#[test]
fn contain_symlinks_matches_sshfs() {
    let world = links();
    let mount = world.mount(&["-o", "contain_symlinks"]).with_errors();
    check_links(&mount, &["down", "dotted"], &[]);
}

#[test]
fn no_contain_symlinks_leaves_links_alone() {
    let world = links();
    let mount = world.mount(&["-o", "no_contain_symlinks"]);
    let target = fs::read_link(mount.at("absolute")).unwrap();
    assert_eq!(target, world.local("outside"));
    // The directory above the mount point is the one above the served one, too.
    check_links(
        &mount,
        &["absolute_inside", "sub/around", "down", "dotted"],
        &["absolute", "up", "winding"],
    );
}

#[test]
fn the_last_of_two_contradicting_options_applies() {
    let world = links();
    let mount = world.mount(&["-o", "contain_symlinks", "-o", "no_contain_symlinks"]);
    assert_eq!(fs::read(mount.at("absolute")).unwrap(), b"outside");
    let mount = world.mount(&["-o", "no_contain_symlinks,contain_symlinks"]).with_errors();
    assert_eq!(kind(fs::read(mount.at("absolute"))), Some(ErrorKind::PermissionDenied));
}

#[test]
fn transform_symlinks_makes_absolute_ones_relative() {
    let world = links();
    let mount = world.mount(&["-o", "transform_symlinks"]);
    let target = fs::read_link(mount.at("absolute_inside")).unwrap();
    assert!(target.is_relative(), "{target:?}");
    assert_eq!(fs::read(mount.at("absolute_inside")).unwrap(), b"inside");
    // Contained as well, which what was transformed may still pass.
    let both = world.mount(&["-o", "transform_symlinks,contain_symlinks"]);
    assert_eq!(fs::read(both.at("absolute_inside")).unwrap(), b"inside");
    assert_eq!(kind(fs::read(both.at("absolute"))), Some(ErrorKind::PermissionDenied));
}

#[test]
fn a_host_that_looks_like_an_option_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let proof = dir.path().join("proof");
    for words in [
        &["-f", "[-oProxyCommand=touch proof]:/path"][..],
        &["-f", "--", "-oProxyCommand=touch proof:/path"],
    ] {
        let mut command = program();
        let limit = std::time::Duration::from_secs(10);
        let ended = run_within(limit, command.args(words).arg(dir.path()).current_dir(dir.path()));
        assert_ne!(ended.status.code(), Some(0), "{words:?}");
        // The second has a place before its `=`.
        let why = ["invalid hostname", "cannot begin with '-', as options do"];
        assert!(why.iter().any(|why| ended.stderr.contains(why)), "{words:?}: {}", ended.stderr);
        assert!(!proof.exists());
    }
}

#[test]
fn owners_and_permissions_follow_the_options() {
    let world = World::new();
    fs::write(world.served("file"), b"").unwrap();
    fs::create_dir(world.served("dir")).unwrap();
    let mount = world.mount(&["-o", "uid=1234,gid=2345,umask=027,fmask=0117"]);
    let file = fs::metadata(mount.at("file")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (1234, 2345, 0o660));
    let dir = fs::metadata(mount.at("dir")).unwrap();
    assert_eq!((dir.uid(), dir.mode() & 0o7777), (1234, 0o750));
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let world = World::new();
    fs::write(world.served("file"), b"x").unwrap();
    let mount = world.mount(&["-o", "ro"]);
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"x");
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    assert_eq!(errno(fs::write(mount.at("new"), b"")), Some(libc::EROFS));
    assert_eq!(errno(fs::remove_file(mount.at("file"))), Some(libc::EROFS));
    assert!(world.served("file").exists());
}

#[test]
fn the_home_directory_and_relative_ones_can_be_mounted() {
    let world = World::new();
    // The login's home directory is what an empty path is; another one lies below it or is given
    // in full.
    let home = world.mount_of(&format!("{}:", world.sshd().alias()), &["-o", "ro"]);
    // The server goes by the account, not by an environment.
    let account = succeed(Command::new("sh").args(["-c", "getent passwd \"$(id -u)\""]));
    let expected = Path::new(account.split(':').nth(5).unwrap()).canonicalize().unwrap();
    let names = |dir: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(home.place()), names(&expected));
    let root = world.mount_of(&format!("{}:/", world.sshd().alias()), &["-o", "ro"]);
    let served = root.at(world.served("").strip_prefix("/").unwrap());
    assert_eq!(names(&served), names(&world.served("")));
}
