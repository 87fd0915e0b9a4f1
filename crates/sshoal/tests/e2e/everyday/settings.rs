//! `sshoal set`, and `-o remount`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{ready, told};
use crate::mount::{detach, is_mounted};
use crate::process::{eventually, run, succeed};
use crate::status::status;
use crate::world::{World, program};

/// Detaches a mount in the background when the test ends, also if it has failed.
struct Detached<'a>(&'a Path);

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        if is_mounted(self.0) {
            detach(self.0);
        }
    }
}

#[test]
fn options_are_shown_and_changed() {
    let world = World::new();
    let log = world.local("log");
    let place = world.mountpoint();
    let option = format!("acnegative=1000,log={}", log.display());
    let ended = run(world.command().arg(world.source()).arg(&place).args(["-o", &option]));
    assert!(ended.status.success(), "{ended:?}");
    let _detached = Detached(&place);
    let shown = told("set", &place, &[]);
    for line in
        ["max_conns=8\n", "acregmax=20\n", "acnegative=1000\n", "dirty_bytes=134217728\n", "hard\n"]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    // An absent name, for as long as the new time-out says and not the old one.
    assert!(!place.join("name").exists());
    told("set", &place, &["acnegative=0", "dirty_bytes=2000000,soft=5", "log_level=debug"]);
    fs::write(world.served("name"), "").unwrap();
    assert!(place.join("name").exists());
    assert_eq!(status(&place)["status"]["unwritten"]["limit_bytes"], 2_000_000);
    let shown = told("set", &place, &[]);
    for line in ["acnegative=0\n", "soft=5\n", "log_level=debug\n", "dirty_bytes=2000000\n"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let messages = |place: &Path| fs::read_to_string(place).unwrap().len();
    let before = messages(&log);
    fs::write(place.join("written"), vec![b'x'; 5 << 20]).unwrap();
    assert!(messages(&log) > before, "each request is logged");
    assert_eq!(fs::metadata(world.served("written")).unwrap().len(), 5 << 20);

    told("set", &place, &["max_conns=3"]);
    assert_eq!(host(&place)["max_sessions"], 3);

    // All of them or none.
    let ended = run(program().arg("set").arg(&place).args(["acregmax=7", "ro"]));
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("option 'ro': needs a new mount"), "{ended:?}");
    assert!(told("set", &place, &[]).contains("acregmax=20\n"));
    told("umount", &place, &[]);
}

fn host(place: &Path) -> serde_json::Value {
    status(place)["status"]["sources"][0]["hosts"][0].clone()
}

/// Sessions are opened up to the new maximum, and closed beyond it.
#[test]
fn the_number_of_connections_is_changed() {
    let world = World::new();
    let mount = ready(world.mount(&["-o", "max_conns=1"]));
    let place = mount.place();
    let sessions = || host(place)["sessions"].as_array().unwrap().len();
    let copy = || {
        fs::write(mount.at("file"), vec![7; 50 << 20]).unwrap();
        assert_eq!(fs::read(mount.at("file")).unwrap().len(), 50 << 20);
    };
    copy();
    assert_eq!(sessions(), 1);
    told("set", place, &["max_conns=4"]);
    eventually(Duration::from_secs(60), "another session", || {
        copy();
        sessions() > 1
    });
    told("set", place, &["max_conns=1"]);
    eventually(Duration::from_secs(60), "one session", || {
        copy();
        sessions() == 1
    });
    mount.unmount();
}

#[test]
fn a_remount_changes_what_can_be_changed() {
    let world = World::new();
    let mount = ready(world.mount(&["-o", "ro,acregmax=5"]));
    // As mount(8) calls its helper: with the options of fstab and of the kernel.
    let helper = world.local("mount.fuse.sshoal");
    std::os::unix::fs::symlink(crate::world::program_path(), &helper).unwrap();
    let remount = |options: &str| {
        let mut command = Command::new(&helper);
        command.arg(world.source()).arg(mount.place()).args(["-o", options]);
        run(command.env_remove("XDG_RUNTIME_DIR"))
    };
    let user = rustix::process::geteuid().as_raw();
    let ended = remount(&format!("ro,nosuid,nodev,user_id={user},_netdev,remount,acregmax=9"));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    let ended = run(program().args(["-o", "remount,acregmin=2,acregmax=9"]).arg(mount.place()));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    let shown = told("set", mount.place(), &[]);
    assert!(shown.contains("acregmax=9\n") && shown.contains("acregmin=2\n"), "{shown}");
    for (options, what) in [("remount,rw", "'rw'"), ("remount,idmap=user", "'idmap=user'")] {
        let ended = remount(options);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.stderr.contains(&format!("{what}: needs a new mount")), "{ended:?}");
    }
    mount.unmount();
}

#[test]
fn root_makes_a_mount_read_only_and_writable_again() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let world = World::new();
    let mount = ready(world.mount(&[]));
    let remount = |options: &str| run(program().args(["-o", options]).arg(mount.place()));
    std::fs::write(mount.at("file"), "before").unwrap();
    // As long as a file is open for writing, the kernel refuses.
    let open = std::fs::File::create(mount.at("open")).unwrap();
    let ended = remount("remount,ro");
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("busy") && ended.stderr.contains("'ro': not changed"),
        "{ended:?}"
    );
    drop(open);
    for _ in 0..2 {
        let ended = remount("remount,ro,acregmax=9");
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
        let refused = std::fs::write(mount.at("file"), "during").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
    let ended = remount("remount,rw");
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    std::fs::write(mount.at("file"), "after").unwrap();
    assert!(told("set", mount.place(), &[]).contains("acregmax=9\n"));
    let options = succeed(Command::new("findmnt").args(["-no", "OPTIONS"]).arg(mount.place()));
    assert!(options.contains("nosuid,nodev"), "{options}");
    mount.unmount();
}
