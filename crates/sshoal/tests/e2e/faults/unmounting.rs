//! The end of a mount, at a bad moment.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Signal;

use super::{Caller, SECOND};
use crate::behaviours::pattern;
use crate::mount::umount;
use crate::process::{Process, eventually, run};
use crate::world::{World, program};

/// The first request of the kernel.
const FUSE_INIT: u32 = 26;

/// A mount that is detached when this is dropped. Its device ends then, and the requests with it.
struct Detached(PathBuf);

impl Drop for Detached {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH | UnmountFlags::FORCE);
    }
}

#[test]
fn a_mount_in_use_is_refused_and_can_be_detached() {
    let world = World::new();
    let mut mount = world.mount(&[]);
    let file = File::create(mount.at("file")).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    let refused = umount(&[], mount.place());
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.contains("busy") && refused.stderr.contains("-z"), "{}", refused.stderr);
    assert!(mount.is_mounted());
    let detached = umount(&["-z"], mount.place());
    assert!(detached.status.success(), "{detached:?}");
    assert!(!mount.is_mounted());
    // Who has it open can go on.
    file.write_all_at(b" after", 6).unwrap();
    drop(file);
    assert_eq!(mount.wait_ended(), Some(0));
    assert_eq!(fs::read(world.served("file")).unwrap(), b"before after");
}

#[test]
fn other_programs_can_unmount() {
    let world = World::new();
    for words in [&["fusermount3", "-u"][..], &["fusermount3", "-u", "-z"], &["umount"]] {
        let mut mount = world.mount(&[]);
        fs::write(mount.at("file"), pattern(1 << 20)).unwrap();
        let mut command = std::process::Command::new(words[0]);
        crate::process::succeed(command.args(&words[1..]).arg(mount.place()));
        assert_eq!(mount.wait_ended(), Some(0), "{words:?}");
        assert!(!mount.is_mounted());
        assert!(fs::read(world.served("file")).unwrap() == pattern(1 << 20));
    }
}

/// umount(8) looks at the file system and its root first.
#[test]
fn a_silent_server_does_not_keep_umount() {
    let world = World::new();
    let mut mount = world.mount(&[]);
    fs::write(mount.at("file"), b"content").unwrap();
    world.sshd().stop();
    let mut command = std::process::Command::new("timeout");
    let ended = run(command.args(["-s", "INT", "30", "umount"]).arg(mount.place()));
    world.sshd().cont();
    assert!(ended.status.success(), "{ended:?}");
    assert!(!mount.is_mounted());
    assert_eq!(mount.wait_ended(), Some(0));
    assert_eq!(fs::read(world.served("file")).unwrap(), b"content");
}

/// A container that was started since has a copy of the mount, and the daemon lives for it.
#[test]
fn a_copy_in_another_mount_namespace_is_not_waited_for() {
    let world = World::new();
    let mut mount = world.mount(&[]);
    fs::write(mount.at("file"), pattern(1 << 20)).unwrap();
    let mut command = std::process::Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args([
        "--mount",
        "--propagation",
        "private",
        "--",
        "sh",
        "-c",
        "echo; exec sleep 1000",
    ]);
    let mut other = Process::spawn(command.stdout(std::process::Stdio::piped()));
    let mut begun = [0];
    other.child().stdout.take().unwrap().read_exact(&mut begun).unwrap();
    let ended = umount(&[], mount.place());
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stderr.contains("still mounted in the mount namespace of process"), "{ended:?}");
    assert!(!mount.is_mounted());
    // It is listed as long as it has a daemon.
    let listed = run(program().arg("status")).stdout;
    let place = mount.place().to_str().unwrap();
    let why = "  mounted    not in this mount namespace, but in that of process ";
    let told = listed.lines().skip_while(|line| *line != place).nth(1);
    assert!(told.is_some_and(|line| line.starts_with(why)), "{listed}");
    assert!(fs::read(world.served("file")).unwrap() == pattern(1 << 20));
    other.signal(Signal::KILL);
    assert_eq!(mount.wait_ended(), Some(0));
}

#[test]
fn another_place_of_the_same_mount_is_not_waited_for() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: only root makes bind mounts");
        return;
    }
    let world = World::new();
    let mut mount = world.mount(&[]);
    fs::write(mount.at("file"), pattern(1 << 20)).unwrap();
    let other = world.mountpoint();
    rustix::mount::mount_bind(mount.place(), &other).unwrap();
    let bound = Detached(other.clone());
    let ended = umount(&[], mount.place());
    assert!(ended.status.success(), "{ended:?}");
    let said = format!("all data is written; it is still mounted at '{}'", other.display());
    assert!(ended.stderr.contains(&said), "{ended:?}");
    assert!(fs::read(other.join("file")).unwrap() == pattern(1 << 20));
    let ended = umount(&[], &other);
    assert!(ended.status.success(), "{ended:?}");
    drop(bound);
    assert_eq!(mount.wait_ended(), Some(0));
}

/// The end of a daemon keeps no program that uses its mount, and none that passes by.
#[test]
fn a_terminated_daemon_frees_its_callers() {
    let world = World::new();
    fs::write(world.served("file"), pattern(8 << 20)).unwrap();
    let mut mount = world.mount(&["-o", "dir_cache=no"]).with_errors();
    let script = "use Fcntl; sysopen F, $ARGV[0], O_RDONLY | 040000; ready; \
                  sysseek F, 4 << 20, 0; sysread F, $x, 65536";
    let mut reader = Caller::start(script, &mount.at("file"));
    let mut other = Caller::start(
        "open F, '<', $ARGV[0]; ready; print stat(F) ? \"found\\n\" : \"$!\\n\"",
        &mount.at("file"),
    );
    world.sshd().stop();
    reader.block();
    mount.daemon().signal(Signal::TERM);
    eventually(Duration::from_secs(10), "it is out of the tree", || !mount.is_mounted());
    // The directory below it.
    let ended = run(std::process::Command::new("timeout").arg("5").arg("stat").arg(mount.place()));
    assert!(ended.status.success(), "{ended:?}");
    other.go();
    assert_eq!(other.line(), "Transport endpoint is not connected\n");
    let took = reader.end_by(Signal::KILL);
    eprintln!("freed within {took:?}");
    world.sshd().cont();
    assert_eq!(mount.wait_ended(), Some(0));
}

/// Everything that was acknowledged is written before the daemon ends.
#[test]
fn a_terminated_daemon_writes_all_acknowledged_data() {
    let world = World::new();
    let content = pattern(4 << 20);
    // A login session that ends sends two.
    let requests =
        [&[Signal::TERM][..], &[Signal::INT], &[Signal::HUP], &[Signal::TERM, Signal::HUP]];
    for signals in requests {
        let mut mount = world.mount(&[]);
        let file = File::create(mount.at("file")).unwrap();
        world.sshd().stop();
        // Acknowledged, and on its way.
        file.write_all_at(&content, 0).unwrap();
        assert!(fs::metadata(world.served("file")).unwrap().len() < content.len() as u64);
        signals.iter().for_each(|signal| mount.daemon().signal(*signal));
        eventually(SECOND * 10, "the end begins", || !mount.is_mounted());
        world.sshd().cont();
        assert_eq!(mount.wait_ended(), Some(0), "{signals:?}");
        assert!(fs::read(world.served("file")).unwrap() == content, "{signals:?}");
        drop(file);
    }
}

/// Stops the server, and leaves 1,000,000 unwritten bytes in a file whose writer was killed.
fn leave_unwritten(world: &World, file: &Path) {
    let script = "open F, '>', $ARGV[0]; ready; \
                  syswrite F, 'x' x 1000000; print \"written\\n\"; close F";
    let mut writer = Caller::start(script, file);
    world.sshd().stop();
    writer.go();
    assert_eq!(writer.line(), "written\n");
    // Now it waits in close, and is killed there.
    writer.block();
    writer.end_by(Signal::KILL);
}

/// `sshoal umount` = 0: as after close, for everything.
#[test]
fn umount_waits_for_the_data_of_open_files() {
    let world = World::new();
    let mut mount = world.mount(&[]);
    leave_unwritten(&world, &mount.at("file"));
    let mut command = program();
    let mut umount = Process::spawn(command.arg("umount").arg(mount.place()).stderr(Stdio::null()));
    eventually(SECOND * 10, "it is unmounted", || !mount.is_mounted());
    assert_eq!(umount.try_wait(Duration::from_millis(300)), None, "it waits");
    assert!(fs::metadata(world.served("file")).unwrap().len() < 1_000_000);
    world.sshd().cont();
    assert!(umount.wait(SECOND * 20).success());
    assert_eq!(fs::metadata(world.served("file")).unwrap().len(), 1_000_000);
    assert_eq!(mount.wait_ended(), Some(0));
}

/// umount(8) does not wait for the process. `sshoal umount` does so afterwards.
#[test]
fn the_data_of_a_mount_that_was_unmounted_otherwise_can_be_waited_for() {
    let world = World::new();
    let mut mount = world.mount(&[]);
    leave_unwritten(&world, &mount.at("file"));
    let unmounted = run(std::process::Command::new("fusermount3").arg("-u").arg(mount.place()));
    assert!(unmounted.status.success(), "{unmounted:?}");
    let told = run(program().arg("status").arg(mount.place()));
    assert!(told.stdout.contains("unmounted; its daemon is ending"), "{told:?}");
    assert!(!told.stdout.contains("0 files (limit"), "{told:?}");
    let mut command = program();
    let mut umount = Process::spawn(command.arg("umount").arg(mount.place()).stderr(Stdio::null()));
    assert_eq!(umount.try_wait(Duration::from_millis(300)), None, "it waits");
    world.sshd().cont();
    assert!(umount.wait(SECOND * 20).success());
    assert_eq!(fs::metadata(world.served("file")).unwrap().len(), 1_000_000);
    assert_eq!(mount.wait_ended(), Some(0));
    let over = run(program().arg("umount").arg(mount.place()));
    assert_eq!(over.status.code(), Some(1));
    assert!(over.stderr.contains("nothing is mounted here"), "{over:?}");
}

/// Nothing of the daemon is left when it is killed, and the dead mount is told how to be cleared.
#[test]
fn a_killed_daemon_leaves_a_mount_that_can_be_cleared() {
    let world = World::new();
    let mut mount = world.mount(&[]).with_errors();
    fs::write(mount.at("file"), b"content").unwrap();
    mount.daemon().signal(Signal::KILL);
    assert_eq!(mount.wait_ended(), None);
    let error = fs::metadata(mount.place()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    let place = mount.place().to_str().unwrap();
    let said = world.refusal(&[&world.source(), &format!("{place}/below")]);
    assert!(said.contains(&format!("`sshoal umount {place}`")), "{said}");
    let cleared = umount(&[], mount.place());
    assert!(cleared.status.success(), "{cleared:?}");
    assert!(!mount.is_mounted());
    eventually(SECOND * 10, "its ssh has ended", || world.sshd().session_pids().is_empty());
    let again = world.mount(&[]);
    assert_eq!(fs::read(again.at("file")).unwrap(), b"content");
}

#[test]
fn a_mount_over_a_mount_is_refused() {
    let world = World::new();
    fs::write(world.served("file"), b"content").unwrap();
    let mount = world.mount(&[]);
    let place = mount.place().to_str().unwrap();
    let said = world.refusal(&[&world.source(), place]);
    assert!(said.contains("is already mounted here"), "{said}");
    assert!(said.contains(&format!("`sshoal umount {place}`")), "{said}");
    // One that does not answer keeps nobody.
    mount.daemon().stop();
    let begun = std::time::Instant::now();
    let said = world.refusal(&[&world.source(), place]);
    mount.daemon().signal(Signal::CONT);
    assert!(said.contains("is mounted here and does not respond"), "{said}");
    assert!(said.contains(&format!("`sshoal umount -z {place}`")), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"content");
}

/// A call that a FUSE process has taken and does not answer cannot be killed. The mount that asks
/// over it ends all the same.
#[test]
fn a_mount_over_one_that_takes_calls_and_answers_none_ends() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: only root mounts without fusermount3");
        return;
    }
    let world = World::new();
    let place = world.local("silent");
    fs::create_dir(&place).unwrap();
    let mut device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap();
    rustix::mount::mount("silent", &place, "fuse.silent", MountFlags::empty(), &*data).unwrap();
    let silent = Detached(place.clone());
    let server = std::thread::spawn(move || {
        let mut request = vec![0; 1 << 20];
        let mut taken = 0;
        while let Ok(len) = device.read(&mut request) {
            if request[4..8] == FUSE_INIT.to_ne_bytes() {
                // The header (length, error, number) and 64 bytes, of which the version is used.
                let mut reply = vec![0; 16 + 64];
                reply[0..4].copy_from_slice(&80_u32.to_ne_bytes());
                reply[8..16].copy_from_slice(&request[8..16]);
                reply[16..24].copy_from_slice(&request[40..48]);
                device.write_all(&reply).unwrap();
            } else if len > 0 {
                taken += 1;
            }
        }
        taken
    });
    let begun = std::time::Instant::now();
    let said = world.refusal(&[&world.source(), place.to_str().unwrap()]);
    assert!(said.contains("is mounted here and does not respond"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    drop(silent);
    assert!(server.join().unwrap() > 0, "nothing was asked");
}

/// A debugging mount logs its requests.
#[test]
fn requests_are_logged_with_d() {
    let world = World::new();
    let mount = world.mount(&["-d"]).with_errors();
    fs::create_dir(mount.at("made")).unwrap();
    let is_told = || mount.words().contains("MKDIR");
    eventually(Duration::from_secs(10), "it logs the request", is_told);
}

/// What waits for a path below a mount that is stopped.
#[test]
fn commands_below_a_stopped_mount_end_with_an_interrupt() {
    let world = World::new();
    let mount = world.mount(&[]);
    // It answers, and nothing of the directory was seen.
    fs::metadata(mount.at("absent")).unwrap_err();
    fs::create_dir(world.served("dir")).unwrap();
    let (below, away) = (mount.at("dir"), world.local("away"));
    fs::create_dir(&away).unwrap();
    let (below, away) = (below.to_str().unwrap(), away.to_str().unwrap());
    let (local, source) = (format!("local:{away}"), format!("local:{below}"));
    mount.daemon().stop();
    let commands: [&[&str]; 6] = [
        &["pull", &local, below],
        &["push", below, &local],
        &["mount", "-f", &local, below],
        &["mount", "-f", &source, away],
        &["umount", &format!("{below}/mount")],
        &["-f", &local, below],
    ];
    for words in commands {
        let mut command = program();
        let mut process = Process::spawn(command.args(words).stdout(Stdio::null()));
        eventually(SECOND * 20, &format!("{words:?} waits for the mount"), || {
            let ended = process.try_wait(Duration::ZERO);
            assert_eq!(ended, None, "{words:?} does not wait");
            waits_for_fuse(process.pid())
        });
        process.signal(Signal::INT);
        // One that ends in order does with a second one at the latest.
        if process.try_wait(SECOND * 2).is_none() {
            process.signal(Signal::INT);
        }
        assert!(process.try_wait(SECOND * 5).is_some(), "{words:?}");
    }
    mount.daemon().signal(Signal::CONT);
}

/// Whether a thread of the process waits for an answer of a FUSE file system.
fn waits_for_fuse(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut places = tasks.filter_map(|task| fs::read_to_string(task.path().join("wchan")).ok());
    places.any(|place| place.contains("request_wait_answer"))
}
