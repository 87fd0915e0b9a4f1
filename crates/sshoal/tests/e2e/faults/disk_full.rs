//! A server without room.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use sandbox::sshd::{Options, SftpServer};

use super::close;
use crate::behaviours::pattern;
use crate::mount::Mount;
use crate::process::run;
use crate::world::World;

/// The server's disk: a file system of its own, which only the server sees.
const ROOM_BYTES: usize = 8 << 20;

/// The directory on which it lies has to stay: with it the kernel would take the disk away.
fn full_world() -> (tempfile::TempDir, World, Mount) {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mkdir -p {place} && {{ mountpoint -q {place} || \
         mount -t tmpfs -o size={ROOM_BYTES} tmpfs {place}; }} && \
         exec /usr/lib/openssh/sftp-server\n",
        place = dir.path().join("small").display()
    );
    let options = Options { sftp_server: SftpServer::Command(script), ..Options::default() };
    let world = World::with(options);
    assert!(world.sshd().is_isolated(), "this test needs root");
    let source = world.source_of(&dir.path().join("small"));
    let mount = world.mount_of(&source, &[]).with_errors();
    (dir, world, mount)
}

/// The mounted directory as the server sees it.
fn on_server(world: &World, mount: &Mount, name: &str) -> PathBuf {
    let source = served_directory(mount);
    let pid = world.sshd().sftp_server_pids()[0];
    PathBuf::from(format!("/proc/{pid}/root{source}")).join(name)
}

/// The directory on the server, by the table of mounts.
fn served_directory(mount: &Mount) -> String {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let place = mount.place().to_str().unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(1) == Some(place)).unwrap();
    line.split(' ').next().unwrap().split_once(':').unwrap().1.to_owned()
}

#[test]
fn a_full_disk_is_enospc_and_nothing_fsynced_is_missing() {
    let (_disk, world, mount) = full_world();
    let content = pattern(2 * ROOM_BYTES);
    let file = File::create(mount.at("big")).unwrap();
    let mut errors = Vec::new();
    let mut synced = 0;
    for (number, block) in content.chunks(64 << 10).enumerate() {
        let at = (number * (64 << 10)) as u64;
        errors.extend(file.write_all_at(block, at).err());
        if number % 8 == 7 {
            match file.sync_all() {
                Ok(()) if errors.is_empty() => synced = at as usize + block.len(),
                Ok(()) => {}
                Err(error) => errors.push(error),
            }
        }
    }
    errors.extend(close(file).err());
    assert!(!errors.is_empty(), "16 MiB into 8 MiB");
    for error in &errors {
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{errors:?}");
    }
    let there = fs::read(on_server(&world, &mount, "big")).unwrap();
    assert!(synced > 0 && there.len() >= synced && there[..synced] == content[..synced]);

    // The errors are those of this file; others are not touched, and `df` tells the truth.
    let figures = rustix::fs::statvfs(mount.place()).unwrap();
    assert_eq!(figures.f_bavail, 0);
    fs::remove_file(mount.at("big")).unwrap();
    fs::write(mount.at("small"), &content[..1 << 20]).unwrap();
    assert!(fs::read(mount.at("small")).unwrap() == content[..1 << 20]);
}

/// The close of a file at the server goes out right behind its writes, before it is known that
/// these have failed.
#[test]
fn a_close_behind_a_failing_write_reports_the_reason() {
    let (_disk, world, mount) = full_world();
    let filler = on_server(&world, &mount, "filler");
    let filled = fs::write(&filler, pattern(2 * ROOM_BYTES)).unwrap_err();
    assert_eq!(filled.raw_os_error(), Some(libc::ENOSPC));
    let content = pattern(256 << 10);
    for number in 0..50 {
        let file = File::create(mount.at(format!("file{number}"))).unwrap();
        let written = file.write_all_at(&content, 0);
        let Err(error) = written.and(close(file)) else {
            let size = |path: &PathBuf| fs::metadata(path).map(|it| it.len());
            let there = size(&on_server(&world, &mount, &format!("file{number}")));
            let free = rustix::fs::statvfs(&filler).map(|it| it.f_bfree);
            panic!(
                "{number}: no error; {there:?} bytes, {free:?} free blocks, {:?}",
                size(&filler)
            );
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{number}: {error}");
    }
}

/// A process that is forked while the file is open closes it in its execve(2): the error is not for
/// it.
#[test]
fn an_error_is_not_lost_to_a_process_that_is_started_meanwhile() {
    let (_disk, world, mount) = full_world();
    let filled = fs::write(on_server(&world, &mount, "filler"), pattern(2 * ROOM_BYTES));
    assert_eq!(filled.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                Command::new("true").status().unwrap();
            }
        });
        let lost = (0..300).filter(|number| {
            let file = File::create(mount.at(format!("file{number}"))).unwrap();
            file.write_all_at(&pattern(64 << 10), 0).and(close(file)).is_ok()
        });
        let lost: Vec<_> = lost.collect();
        over.store(true, Ordering::SeqCst);
        assert_eq!(lost, Vec::<i32>::new());
    });
}

#[test]
fn a_write_behind_error_comes_at_close_at_the_latest() {
    let (_disk, _world, mount) = full_world();
    let content = pattern(2 * ROOM_BYTES);
    let file = File::create(mount.at("big")).unwrap();
    let written = content
        .chunks(128 << 10)
        .enumerate()
        .map(|(number, block)| file.write_all_at(block, (number * (128 << 10)) as u64))
        .find(Result::is_err)
        .unwrap_or(Ok(()));
    let closed = close(file);
    let error = written.and(closed).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
}

#[test]
fn programs_say_so() {
    let (_disk, world, mount) = full_world();
    fs::write(world.local("source"), pattern(2 * ROOM_BYTES)).unwrap();
    let (source, target) = (world.local("source"), mount.at("target"));
    let full = "No space left on device";
    for command in [
        Command::new("cp").arg(&source).arg(&target),
        Command::new("dd")
            .arg(format!("if={}", source.display()))
            .arg(format!("of={}", target.display())),
        Command::new("dd")
            .arg(format!("if={}", source.display()))
            .arg(format!("of={}", target.display()))
            .args(["bs=1M", "conv=fsync"]),
    ] {
        let ended = run(command);
        assert!(!ended.status.success(), "{command:?}: {ended:?}");
        assert!(ended.stderr.contains(full), "{command:?}: {ended:?}");
        fs::remove_file(&target).unwrap();
    }
    // Names need room, too, but fail or not by themselves.
    fs::create_dir(mount.at("dir")).unwrap();
}
