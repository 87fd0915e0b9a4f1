//! Special files and renames that SFTP cannot do.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use rustix::io::Errno;

use super::served_by_helper;
use crate::process::{eventually, shell, succeed};
use crate::world::program;

fn mknod(path: &Path, kind: FileType, mode: u32) -> Result<(), Errno> {
    mknodat(CWD, path, kind, Mode::from_raw_mode(mode), 0)
}

#[test]
fn special_files_are_created_and_copied() {
    let world = served_by_helper("");
    let mount = world.mount(&[]);
    mknod(&mount.at("fifo"), FileType::Fifo, 0o640).unwrap();
    mknod(&mount.at("socket"), FileType::Socket, 0o600).unwrap();
    assert_eq!(mknod(&mount.at("fifo"), FileType::Fifo, 0o640), Err(Errno::EXIST));
    let is = |path: &Path| fs::symlink_metadata(path).unwrap().file_type();
    for dir in [mount.at(""), world.served("")] {
        assert!(is(&dir.join("fifo")).is_fifo() && is(&dir.join("socket")).is_socket());
    }
    // The FIFO is one of this machine, as on NFS.
    let read = shell("cat \"$1\" & echo through >\"$1\"; wait", &[&mount.at("fifo")]);
    assert_eq!(read, "through\n");
    fs::create_dir(world.local("tree")).unwrap();
    mknod(&world.local("tree/fifo"), FileType::Fifo, 0o604).unwrap();
    for copy in ["cp -a \"$1\" \"$2\"", "rsync -a \"$1/\" \"$2/\""] {
        let name = &copy[..2];
        shell(copy, &[&world.local("tree"), &mount.at(name)]);
        assert!(is(&world.served(name).join("fifo")).is_fifo());
        let back = world.local(format!("{name}-back"));
        shell(copy, &[&mount.at(name), &back]);
        assert!(is(&back.join("fifo")).is_fifo(), "{copy}");
    }
    fs::remove_file(mount.at("fifo")).unwrap();
    assert!(!world.served("fifo").exists());
    if rustix::process::getuid().is_root() {
        let device = rustix::fs::makedev(300, 70_000);
        let mode = Mode::from_raw_mode(0o600);
        match mknodat(CWD, world.served("probe"), FileType::CharacterDevice, mode, device) {
            Ok(()) => {
                mknodat(CWD, mount.at("device"), FileType::CharacterDevice, mode, device).unwrap();
                let found = rustix::fs::stat(world.served("device")).unwrap();
                assert_eq!(found.st_rdev, device);
            }
            // In a container.
            Err(errno) => assert_eq!(errno, Errno::PERM),
        }
    }
}

fn exchange(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

#[test]
fn two_names_are_exchanged() {
    let world = served_by_helper("");
    let (mount, other) = (world.mount(&[]), world.mount(&[]));
    fs::write(mount.at("file"), "first").unwrap();
    fs::create_dir_all(mount.at("dir/sub")).unwrap();
    fs::write(mount.at("dir/sub/below"), "below").unwrap();
    let open = fs::File::open(mount.at("file")).unwrap();
    let below = fs::OpenOptions::new().append(true).open(mount.at("dir/sub/below")).unwrap();
    exchange(&mount.at("file"), &mount.at("dir")).unwrap();
    for dir in [mount.at(""), world.served(""), other.at("")] {
        assert_eq!(fs::read_to_string(dir.join("dir")).unwrap(), "first", "{}", dir.display());
        assert_eq!(fs::read_to_string(dir.join("file/sub/below")).unwrap(), "below");
    }
    // What is open stays open, also over a lost connection.
    world.sshd().kill_sessions();
    assert_eq!(std::io::read_to_string(&open).unwrap(), "first");
    std::io::Write::write_all(&mut &below, b" and more").unwrap();
    below.sync_all().unwrap();
    assert_eq!(fs::read_to_string(world.served("file/sub/below")).unwrap(), "below and more");
    exchange(&mount.at("file/sub/below"), &mount.at("dir")).unwrap();
    assert_eq!(fs::read_to_string(world.served("file/sub/below")).unwrap(), "first");
    assert_eq!(fs::read_to_string(mount.at("dir")).unwrap(), "below and more");
    assert_eq!(exchange(&mount.at("dir"), &mount.at("absent")), Err(Errno::NOENT));
    assert_eq!(exchange(&mount.at("file"), &mount.at("file/sub")), Err(Errno::INVAL));
    let noreplace = |from: &str, to: &str| {
        renameat_with(CWD, mount.at(from), CWD, mount.at(to), RenameFlags::NOREPLACE)
    };
    assert_eq!(noreplace("dir", "file"), Err(Errno::EXIST));
    noreplace("file", "moved").unwrap();
    assert!(world.served("moved/sub/below").exists());
    let whiteout = renameat_with(CWD, mount.at("dir"), CWD, mount.at("x"), RenameFlags::WHITEOUT);
    assert_eq!(whiteout, Err(Errno::INVAL));
}

/// While the connection keeps breaking, an exchange is never executed twice: each returned one has
/// exchanged the names.
#[test]
fn an_exchange_is_not_repeated_over_a_lost_connection() {
    let world = served_by_helper("");
    let mount = world.mount(&[]).with_errors();
    fs::write(mount.at("a"), "0").unwrap();
    fs::write(mount.at("b"), "other").unwrap();
    let mut in_a = "0";
    for round in 0..6 {
        if round % 2 == 0 {
            world.sshd().kill_sessions();
        }
        eventually(Duration::from_secs(20), "the names are exchanged", || {
            exchange(&mount.at("a"), &mount.at("b")).is_ok()
        });
        in_a = if in_a == "0" { "other" } else { "0" };
        assert_eq!(fs::read_to_string(world.served("a")).unwrap(), in_a, "round {round}");
    }
}

/// Without the helper everything is refused as before.
#[test]
fn a_plain_server_has_none_of_it() {
    let world = crate::world::World::new();
    let mount = world.mount(&["-o", "attr_timeout=60,entry_timeout=60"]);
    fs::write(mount.at("a"), "a").unwrap();
    fs::write(mount.at("b"), "b").unwrap();
    let sent = || {
        let stats = ["stats", "--total", "--json"];
        let shown = succeed(program().args(stats).arg(mount.place()));
        let document: serde_json::Value = serde_json::from_str(&shown).unwrap();
        document.pointer("/hosts/0/requests").unwrap().clone()
    };
    let file = fs::OpenOptions::new().write(true).open(mount.at("a")).unwrap();
    assert_eq!(mknod(&mount.at("fifo"), FileType::Fifo, 0o600), Err(Errno::PERM));
    // The kernel has looked up the name.
    let before = sent();
    assert_eq!(exchange(&mount.at("a"), &mount.at("b")), Err(Errno::INVAL));
    let reserve = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 100);
    assert_eq!(reserve, Err(Errno::OPNOTSUPP));
    let none = rustix::fs::XattrFlags::empty();
    assert_eq!(rustix::fs::setxattr(mount.at("a"), "user.a", b"x", none), Err(Errno::OPNOTSUPP));
    assert_eq!(sent(), before, "the refusals cost no request");
    assert_eq!(fs::read_to_string(world.served("a")).unwrap(), "a");
    assert!(!world.served("fifo").exists());
}
