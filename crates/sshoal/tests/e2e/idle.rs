//! A mount that nothing uses: no wake-ups of its daemon, and no requests to the server.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::helper::served_by_helper;
use crate::mount::Mount;
use crate::world::{World, is_big_run};

/// How long nothing happens. The shorter time is longer than that between two checks of a session
/// in use (7.5 s).
fn window() -> Duration {
    Duration::from_secs(if is_big_run() { 60 } else { 10 })
}

/// Work that was deferred is done by then, before a window begins.
const LIMIT: Duration = Duration::from_secs(120);

/// The number of times that the threads of a process went to sleep, by thread.
fn sleeps(pid: u32) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let count = |task: &Path| {
        let status = fs::read_to_string(task.join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        let name = status.lines().next().unwrap_or_default();
        Some((format!("{} {name}", task.display()), line.to_owned()))
    };
    let mut all: Vec<_> = tasks.filter_map(|task| count(&task.unwrap().path())).collect();
    all.sort();
    all
}

/// Bytes that the SFTP servers have read: requests.
fn requested(world: &World) -> u64 {
    let read = |pid: u32| {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
        line.parse::<u64>().unwrap()
    };
    world.sshd().sftp_server_pids().into_iter().map(read).sum()
}

#[track_caller]
fn assert_becomes_quiet(world: &World, options: &[&str]) {
    fs::write(world.served("file"), "text").unwrap();
    // Records of its own: `sshoal status` and `doctor` of other tests query all mounts of this
    // user.
    let records = world.local("records");
    fs::DirBuilder::new().mode(0o700).create(&records).unwrap();
    let place = world.mountpoint();
    let mut command = world.command();
    command.env("XDG_RUNTIME_DIR", &records);
    command.arg("-f").arg(world.source()).arg(&place).args(options);
    let mut mount = Mount::start(command, place);
    assert_eq!(fs::read_to_string(mount.place().join("file")).unwrap(), "text");
    fs::write(mount.place().join("written"), "text").unwrap();
    assert_eq!(fs::read_dir(mount.place()).unwrap().count(), 2);
    let began = Instant::now();
    loop {
        let before = (sleeps(mount.daemon().pid()), requested(world));
        std::thread::sleep(window());
        let after = (sleeps(mount.daemon().pid()), requested(world));
        if before == after {
            break;
        }
        assert!(began.elapsed() < LIMIT, "not idle: {before:#?}, then {after:#?}");
    }
    mount.daemon().signal(Signal::TERM);
    assert_eq!(mount.wait_ended(), Some(0));
}

#[test]
fn an_idle_mount_does_nothing() {
    assert_becomes_quiet(&World::new(), &[]);
}

#[test]
fn an_idle_mount_with_the_helper_and_watches_does_nothing() {
    assert_becomes_quiet(&served_by_helper(""), &["-o", "consistency=watch"]);
}

#[test]
fn an_idle_mount_with_a_direct_connection_and_watches_does_nothing() {
    assert_becomes_quiet(&served_by_helper(""), &["-o", "direct=require,consistency=watch"]);
}

#[test]
fn an_idle_mount_with_a_disk_cache_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let option = format!("cache=disk,cache_dir={}", dir.path().join("cache").display());
    assert_becomes_quiet(&World::new(), &["-o", &option]);
}
