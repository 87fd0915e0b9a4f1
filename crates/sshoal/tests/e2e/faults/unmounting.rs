//! The end of a mount, at a bad moment.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::process::Signal;

use super::{Caller, SECOND};
use crate::behaviours::pattern;
use crate::mount::umount;
use crate::process::{Process, eventually, run};
use crate::world::{World, program};

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
fn other_programs_can_unmount_it_too() {
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
    assert!(ended.stderr.contains("is in a mount namespace"), "{ended:?}");
    assert!(!mount.is_mounted());
    assert!(fs::read(world.served("file")).unwrap() == pattern(1 << 20));
    other.signal(Signal::KILL);
    assert_eq!(mount.wait_ended(), Some(0));
}

/// Everything that was acknowledged is written before the daemon ends.
#[test]
fn a_daemon_that_is_told_to_end_writes_what_it_has() {
    let world = World::new();
    let content = pattern(4 << 20);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut mount = world.mount(&[]);
        let file = File::create(mount.at("file")).unwrap();
        world.sshd().stop();
        // Acknowledged, and on its way.
        file.write_all_at(&content, 0).unwrap();
        assert!(fs::metadata(world.served("file")).unwrap().len() < content.len() as u64);
        mount.daemon().signal(signal);
        world.sshd().cont();
        assert_eq!(mount.wait_ended(), Some(0), "{signal:?}");
        assert!(!mount.is_mounted(), "{signal:?}");
        assert!(fs::read(world.served("file")).unwrap() == content, "{signal:?}");
        drop(file);
    }
}

/// `sshoal umount` = 0: as after close, for everything.
#[test]
fn umount_waits_for_what_nobody_closed() {
    let world = World::new();
    let mut mount = world.mount(&[]);
    let script = "open F, '>', $ARGV[0]; ready; \
                  syswrite F, 'x' x 1000000; print \"written\\n\"; close F";
    let mut writer = Caller::start(script, &mount.at("file"));
    world.sshd().stop();
    writer.go();
    assert_eq!(writer.line(), "written\n");
    // Now it waits in close, and is killed there.
    writer.block();
    writer.end_by(Signal::KILL);
    let mut command = program();
    let mut umount = Process::spawn(
        command.arg("umount").arg(mount.place()).stderr(std::process::Stdio::null()),
    );
    eventually(SECOND * 10, "it is unmounted", || !mount.is_mounted());
    assert_eq!(umount.try_wait(Duration::from_millis(300)), None, "it waits");
    assert!(fs::metadata(world.served("file")).unwrap().len() < 1_000_000);
    world.sshd().cont();
    assert!(umount.wait(SECOND * 20).success());
    assert_eq!(fs::metadata(world.served("file")).unwrap().len(), 1_000_000);
    assert_eq!(mount.wait_ended(), Some(0));
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
    for words in [[&world.source(), place], [&world.source(), &format!("{place}/below")]] {
        let said = world.refusal(&words);
        assert!(said.contains(&format!("`sshoal umount {place}`")), "{said}");
    }
    let cleared = umount(&[], mount.place());
    assert!(cleared.status.success(), "{cleared:?}");
    assert!(!mount.is_mounted());
    eventually(SECOND * 10, "its ssh has ended", || world.sshd().session_pids().is_empty());
    let again = world.mount(&[]);
    assert_eq!(fs::read(again.at("file")).unwrap(), b"content");
}
