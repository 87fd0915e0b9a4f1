//! Names that another machine removes while this one takes them for present (C8).

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use crate::process::{run, shell};
use crate::world::World;

/// What was seen once is valid for as long as the test runs.
const VALID: [&str; 2] = ["-o", "acregmin=600,acregmax=600,acdirmin=600,acdirmax=600"];

/// The shell's way to make a file, and File::create's, right after another machine has removed it.
#[test]
fn c8_a_file_removed_by_another_machine_can_be_created() {
    const ROUNDS: usize = 40;
    let world = World::new();
    for round in 0..ROUNDS {
        fs::write(world.served(format!("file{round}")), "of the server").unwrap();
    }
    let (mount, other) = (world.mount(&VALID), world.mount(&[]));
    for round in 0..ROUNDS {
        let name = format!("file{round}");
        let (here, there) = (mount.at(&name), world.served(&name));
        fs::metadata(&here).unwrap();
        match round % 2 {
            0 => fs::remove_file(&there).unwrap(),
            _ => fs::remove_file(other.at(&name)).unwrap(),
        }
        match round % 4 {
            0 | 1 => drop(shell("echo made > \"$1\"", &[&here])),
            2 => drop(shell("echo made >> \"$1\"", &[&here])),
            _ => fs::write(&here, "made\n").unwrap(),
        }
        assert_eq!(fs::read_to_string(&there).unwrap(), "made\n", "round {round}");
    }
}

/// The same where it is removed at any moment.
#[test]
fn c8_a_file_removed_at_any_moment_can_be_created() {
    let world = World::new();
    let mount = world.mount(&VALID);
    let over = AtomicBool::new(false);
    let removed = thread::scope(|scope| {
        let removing = scope.spawn(|| {
            let mut removed = 0;
            while !over.load(Ordering::Relaxed) {
                removed += u32::from(fs::remove_file(world.served("file")).is_ok());
            }
            removed
        });
        let made = (0..500).try_for_each(|_| File::create(mount.at("file")).map(drop));
        over.store(true, Ordering::Relaxed);
        made.unwrap();
        removing.join().unwrap()
    });
    assert!(removed > 20, "{removed} removed: nothing was tried");
}

/// Every other call has ENOENT, never ESTALE.
#[test]
fn c8_what_another_machine_has_removed_is_absent_for_each_call() {
    type Call = fn(&std::path::Path) -> io::Result<()>;
    let calls: [(&str, Call); 11] = [
        ("chmod", |at| fs::set_permissions(at, Permissions::from_mode(0o600))),
        ("truncate", |at| OpenOptions::new().write(true).truncate(true).open(at).map(drop)),
        ("utimens", |at| {
            let time = Timespec { tv_sec: 7, tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(CWD, at, &times, AtFlags::empty()).map_err(io::Error::from)
        }),
        ("open for reading", |at| File::open(at).map(drop)),
        ("open for writing", |at| OpenOptions::new().write(true).open(at).map(drop)),
        ("unlink", |at| fs::remove_file(at)),
        ("rename", |at| fs::rename(at, at.with_extension("new"))),
        ("link", |at| fs::hard_link(at, at.with_extension("new"))),
        ("readlink", |at| fs::read_link(at.with_file_name("link")).map(drop)),
        ("opendir", |at| fs::read_dir(at.with_file_name("dir")).map(drop)),
        ("rmdir", |at| fs::remove_dir(at.with_file_name("dir"))),
    ];
    let world = World::new();
    for (call_name, _) in calls {
        let dir = world.served(call_name);
        fs::create_dir_all(dir.join("dir")).unwrap();
        fs::write(dir.join("file"), "x").unwrap();
        fs::write(dir.join("kept"), "x").unwrap();
        std::os::unix::fs::symlink("file", dir.join("link")).unwrap();
    }
    let mount = world.mount(&VALID);
    for (call_name, call) in calls {
        let (here, there) = (mount.at(call_name), world.served(call_name));
        for name in ["file", "link", "dir"] {
            fs::symlink_metadata(here.join(name)).unwrap();
        }
        fs::remove_file(there.join("file")).unwrap();
        fs::remove_file(there.join("link")).unwrap();
        fs::remove_dir(there.join("dir")).unwrap();
        let error = call(&here.join("file")).expect_err(call_name);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{call_name}: {error}");
        // And nothing is left of it for a call that makes something of that name.
        let made = match call_name {
            "readlink" => std::os::unix::fs::symlink("file", here.join("link")),
            "opendir" | "rmdir" => fs::create_dir(here.join("dir")),
            _ => fs::hard_link(here.join("kept"), here.join("file")),
        };
        assert!(made.is_ok(), "after {call_name}: {made:?}");
    }
}

/// A working directory has no name that could be looked up again.
#[test]
fn c8_a_working_directory_that_is_gone_is_absent() {
    let world = World::new();
    fs::create_dir(world.served("dir")).unwrap();
    let mount = world.mount(&VALID);
    let script = "cd \"$1\"; rmdir \"$2\"; ls .";
    let mut command = Command::new("sh");
    command.env("LC_ALL", "C").args(["-c", script, "sh"]);
    let ended = run(command.arg(mount.at("dir")).arg(world.served("dir")));
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("No such file or directory"), "{ended:?}");
}
