//! `sshoal helper` in place of OpenSSH's sftp-server: other programs as its clients, mounts over
//! it, its options. Below: how it gets to a server, and into use.

pub mod compression;
mod identity;
mod installation;
mod overlay;
mod restricted;
mod round_trips;
pub mod site;
mod use_of_it;

mod locks;

mod holes;
mod names;
mod touch;
mod xattrs;

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use sandbox::fleet::Plan;
use sandbox::sshd::{Options, SftpServer};

use crate::process::{eventually, run};
use crate::world::{World, program_path};

/// A server whose SFTP subsystem is the helper with these options.
pub fn served_by_helper(options: &str) -> World {
    let command = format!("{} helper {options}", program_path().display());
    World::with(Options { sftp_server: SftpServer::Command(command), ..Options::default() })
}

/// The same, as one of several servers.
pub fn plan_with_helper(name: &str) -> Plan {
    let command = format!("{} helper", program_path().display());
    let sftp_server = SftpServer::Command(command);
    Plan::new(name).with(Options { sftp_server, ..Options::default() })
}

/// OpenSSH's client with these commands, over the helper started in the served directory.
pub fn sftp(world: &World, options: &str, batch: &str) -> crate::process::Ended {
    let served = world.served("");
    let server = format!("{} helper -d {} {options}", program_path().display(), served.display());
    let script = world.local("batch");
    fs::write(&script, batch).unwrap();
    let mut command = Command::new("sftp");
    command.args(["-q", "-b"]).arg(&script).args(["-D", &server]).current_dir(world.local(""));
    run(&mut command)
}

#[test]
fn openssh_sftp_is_served() {
    let world = World::new();
    let content: Vec<u8> = (0..3_000_000_u32).map(|byte| (byte % 251) as u8).collect();
    fs::write(world.local("file"), &content).unwrap();
    let ended = sftp(
        &world,
        "",
        "mkdir dir\nput file dir/file\nchmod 600 dir/file\nrename dir/file dir/renamed\n\
         ln dir/renamed hard\nln -s dir/renamed soft\nget soft back\nls -l dir\nls -ln dir\ndf .\n\
         cp dir/renamed copy\npwd\nreget hard back\n-rm absent\nmkdir gone\nrmdir gone\nrm hard\n",
    );
    assert_eq!(ended.status.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("-rw-------"), "{}", ended.stdout);
    let served = world.served("").canonicalize().unwrap();
    let shown = format!("Remote working directory: {}", served.display());
    assert!(ended.stdout.contains(&shown), "{}", ended.stdout);
    for file in [world.local("back"), world.served("dir/renamed"), world.served("copy")] {
        assert!(fs::read(&file).unwrap() == content, "{}", file.display());
    }
    let found = fs::metadata(world.served("dir/renamed")).unwrap();
    assert_eq!((found.permissions().mode() & 0o777, found.nlink()), (0o600, 1));
    assert!(!world.served("gone").exists() && !world.served("hard").exists());
    assert_eq!(fs::read_link(world.served("soft")).unwrap().to_str(), Some("dir/renamed"));
}

#[test]
fn a_read_only_helper_and_one_with_a_root() {
    let world = World::new();
    fs::write(world.served("file"), "content").unwrap();
    let ended = sftp(&world, "-R", "get file got\n-put got new\n-rm file\n-chmod 777 file\n");
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert_eq!(fs::read_to_string(world.local("got")).unwrap(), "content");
    assert_eq!(fs::read_dir(world.served("")).unwrap().count(), 1);

    fs::write(world.local("secret"), "secret").unwrap();
    symlink(world.local("secret"), world.served("link")).unwrap();
    let root = world.served("");
    let server = format!("{} helper --root {} -u 077", program_path().display(), root.display());
    let script = world.local("batch");
    let secret = world.local("secret");
    let batch = format!("pwd\nput got /new\n-get link\n-get {}\n", secret.display());
    fs::write(&script, batch).unwrap();
    let mut command = Command::new("sftp");
    command.args(["-q", "-b"]).arg(&script).args(["-D", &server]).current_dir(world.local(""));
    let ended = run(&mut command);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("Remote working directory: /\n"), "{}", ended.stdout);
    let found = fs::metadata(world.served("new")).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert!(!world.local("link").exists());
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
}

/// A mount does what it does over OpenSSH's server.
#[test]
fn a_mount_is_served() {
    let world = served_by_helper("");
    let mount = world.mount(&[]).with_errors();
    let content: Vec<u8> = (0..2_000_000_u32).map(|byte| (byte % 253) as u8).collect();
    fs::write(mount.at("file"), &content).unwrap();
    assert!(fs::read(world.served("file")).unwrap() == content);
    assert!(fs::read(mount.at("file")).unwrap() == content);
    fs::create_dir(mount.at("dir")).unwrap();
    fs::rename(mount.at("file"), mount.at("dir/moved")).unwrap();
    symlink("moved", mount.at("dir/link")).unwrap();
    assert_eq!(fs::read(mount.at("dir/link")).unwrap().len(), content.len());
    assert_eq!(fs::read_dir(mount.at("dir")).unwrap().count(), 2);
    // The connection breaks, and the mount goes on.
    world.sshd().kill_sessions();
    eventually(Duration::from_secs(20), "the mount is back", || {
        fs::write(mount.at("after"), "after").is_ok()
    });
    assert_eq!(fs::read_to_string(world.served("after")).unwrap(), "after");
    fs::remove_dir_all(mount.at("dir")).unwrap();
    assert!(!world.served("dir").exists());
}

/// Times have the nanoseconds of the server, in both directions, and single times can be set.
#[test]
fn times_are_exact() {
    let world = served_by_helper("");
    fs::write(world.served("file"), "content").unwrap();
    let at = |secs, nanos| SystemTime::UNIX_EPOCH + Duration::new(secs, nanos);
    let set = |path: &Path, times| File::options().write(true).open(path).unwrap().set_times(times);
    let both = FileTimes::new().set_modified(at(1_600_000_000, 123_456_789));
    set(&world.served("file"), both.set_accessed(at(5_000_000_000, 1))).unwrap();
    let mount = world.mount(&["-o", "dcache_timeout=0"]);
    let shown = fs::metadata(mount.at("file")).unwrap();
    assert_eq!(shown.modified().unwrap(), at(1_600_000_000, 123_456_789));
    assert_eq!(shown.accessed().unwrap(), at(5_000_000_000, 1), "later than 2106");
    set(&mount.at("file"), FileTimes::new().set_modified(at(1_700_000_000, 987_654_321))).unwrap();
    let found = fs::metadata(world.served("file")).unwrap();
    assert_eq!(found.modified().unwrap(), at(1_700_000_000, 987_654_321));
    assert_eq!(found.accessed().unwrap(), at(5_000_000_000, 1), "it was not set");
    // What the mount writes has the server's time.
    fs::write(mount.at("written"), "content").unwrap();
    let (shown, found) = (fs::metadata(mount.at("written")), fs::metadata(world.served("written")));
    assert_eq!(shown.unwrap().modified().unwrap(), found.unwrap().modified().unwrap());
}

/// H1: hard links made at the server, sparse files, devices.
#[test]
fn inodes_are_the_servers() {
    let world = served_by_helper("");
    fs::create_dir(world.served("dir")).unwrap();
    fs::write(world.served("dir/file"), vec![1; 100_000]).unwrap();
    fs::hard_link(world.served("dir/file"), world.served("link")).unwrap();
    fs::write(world.served("small"), "content").unwrap();
    File::create(world.served("sparse")).unwrap().set_len(10 << 20).unwrap();
    let mount = world.mount(&[]);
    let shown = |name: &str| {
        let found = fs::symlink_metadata(mount.at(name)).unwrap();
        let changed = (found.ctime(), found.ctime_nsec());
        (found.ino(), found.nlink(), found.blocks(), changed, found.created().ok())
    };
    let served = |name: &str| {
        let found = fs::symlink_metadata(world.served(name)).unwrap();
        let changed = (found.ctime(), found.ctime_nsec());
        (found.ino(), found.nlink(), found.blocks(), changed, found.created().ok())
    };
    for name in ["dir", "dir/file", "link", "small", "sparse"] {
        assert_eq!(shown(name), served(name), "{name}");
    }
    assert_eq!(shown("").0, 1);
    // The numbers in a listing, too.
    for entry in fs::read_dir(mount.at("")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), served(&name).0, "{name}");
    }
    // du and rsync count a file once.
    let mut du = Command::new("du");
    let counted = run(du.arg("-sk").arg(mount.at(""))).stdout;
    let mut du = Command::new("du");
    let expected = run(du.arg("-sk").arg(world.served(""))).stdout;
    let kilobytes = |line: &str| line.split_whitespace().next().map(str::to_owned);
    assert_eq!(kilobytes(&counted), kilobytes(&expected), "{counted}{expected}");
    let copy = world.local("copy");
    let mut rsync = Command::new("rsync");
    let ended = run(rsync.arg("-aH").arg(mount.at("")).arg(&copy));
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    let copied = copy.join("dir/file");
    assert_eq!(fs::metadata(copied).unwrap().nlink(), 2);
    // What is written by one name is read by the other at once.
    fs::write(mount.at("link"), "new").unwrap();
    assert_eq!(fs::read_to_string(mount.at("dir/file")).unwrap(), "new");
    fs::remove_file(mount.at("link")).unwrap();
    assert_eq!(shown("dir/file"), served("dir/file"));
}

#[test]
fn what_is_no_client_is_told_why() {
    let helper = |words: &[&str], input: Stdio| {
        let mut command = Command::new(program_path());
        command.arg("helper").args(words).stdin(input);
        run(&mut command)
    };
    let absent = helper(&["--root", "/no/such/directory"], Stdio::null());
    assert_ne!(absent.status.code(), Some(0));
    assert!(absent.stderr.contains("root directory: No such file"), "{}", absent.stderr);
    let mask = helper(&["-u", "888"], Stdio::null());
    assert!(mask.stderr.contains("an octal number from 0 to 777"), "{}", mask.stderr);
    // Nothing was asked for.
    assert_eq!(helper(&[], Stdio::null()).status.code(), Some(0));
}
