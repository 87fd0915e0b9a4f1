//! Connections that break.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::mpsc;
use std::time::Duration;

use super::{RECONNECT, close};
use crate::behaviours::pattern;
use crate::process::{eventually, run};
use crate::world::{World, program};

const BLOCK: usize = 64 << 10;
const BLOCKS: usize = 512;

/// A1, and criterion of the issue: right bytes or an error, never zeros, never an early end.
#[test]
fn reads_over_a_killed_server_are_right_or_fail() {
    let world = World::new();
    let content = pattern(BLOCK * BLOCKS);
    fs::write(world.served("file"), &content).unwrap();
    let mount = world.mount(&[]).with_errors();
    for round in 0..10 {
        let direct = if round % 2 == 0 { 0 } else { libc::O_DIRECT };
        // Nothing may come from the page cache.
        File::options().write(true).open(world.served("file")).unwrap().set_len(0).unwrap();
        fs::write(world.served("file"), &content).unwrap();
        let file =
            OpenOptions::new().read(true).custom_flags(direct).open(mount.at("file")).unwrap();
        let (reached, kill) = mpsc::sync_channel::<()>(0);
        let (right, failed) = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Killed while the reader goes on.
                let _ = kill.recv();
                world.sshd().kill_sessions();
                drop(kill);
            });
            let (mut right, mut failed) = (0, 0);
            let mut block = vec![0; BLOCK];
            for number in 0..BLOCKS {
                if number == 10 + round * 45 {
                    let _ = reached.send(());
                }
                match file.read_at(&mut block, (number * BLOCK) as u64) {
                    Ok(read) => {
                        assert_eq!(read, BLOCK, "round {round}, block {number}: an early end");
                        let expected = &content[number * BLOCK..][..BLOCK];
                        assert!(block == expected, "round {round}, block {number}: wrong bytes");
                        right += 1;
                    }
                    Err(_) => failed += 1,
                }
            }
            (right, failed)
        });
        eprintln!("round {round}: {right} right, {failed} failed");
        assert!(right >= 10 + round * 45, "what was read before is not undone");
        // A new open works, after the automatic reconnect.
        eventually(RECONNECT, "an open", || File::open(mount.at("file")).is_ok());
        assert!(fs::read(mount.at("file")).unwrap() == content, "round {round}: after it");
    }
}

/// A3 and A4.
#[test]
fn failed_writes_over_a_killed_server_are_reported_and_fsynced_data_is_there() {
    let world = World::new();
    let content = pattern(BLOCK * 200);
    let mount = world.mount(&[]).with_errors();
    for round in 0..10 {
        let name = format!("file{round}");
        let file = File::create(mount.at(&name)).unwrap();
        let (mut synced, mut told) = (0, false);
        let (reached, kill) = mpsc::sync_channel::<()>(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = kill.recv();
                world.sshd().kill_sessions();
                drop(kill);
            });
            for number in 0..200 {
                if number == 5 + round * 18 {
                    let _ = reached.send(());
                }
                let at = number * BLOCK;
                told |= file.write_all_at(&content[at..at + BLOCK], at as u64).is_err();
                if number % 16 == 15 {
                    match file.sync_all() {
                        // Once an error was told, later successes are only about later bytes.
                        Ok(()) if !told => synced = at + BLOCK,
                        Ok(()) => {}
                        Err(_) => told = true,
                    }
                }
            }
            // Also when all of them were faster than the killer.
            drop(reached);
        });
        told |= close(file).is_err();
        let there = fs::read(world.served(&name)).unwrap();
        eprintln!("round {round}: {synced} fsynced, {} there, told: {told}", there.len());
        assert!(there.len() >= synced, "round {round}: fsynced bytes are missing");
        assert!(there[..synced] == content[..synced], "round {round}: fsynced bytes are wrong");
        assert!(told || there == content, "round {round}: bytes were lost without a word");
        eventually(RECONNECT, "a new file", || fs::write(mount.at("new"), b"new").is_ok());
        assert_eq!(fs::read(world.served("new")).unwrap(), b"new");
    }
}

/// A9: a server that cannot be reached is not an empty directory, and loses no file.
#[test]
fn a_server_that_is_away_is_an_error_and_comes_back() {
    let mut world = World::new();
    fs::create_dir(world.served("dir")).unwrap();
    fs::write(world.served("dir/file"), b"content").unwrap();
    let mount = world.mount(&["-o", "dir_cache=no,soft=1"]).with_errors();
    assert_eq!(fs::read(mount.at("dir/file")).unwrap(), b"content");
    world.sshd_mut().end();
    for name in ["dir/file", "dir/none", "dir"] {
        let error = fs::metadata(mount.at(name)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT), "{name}");
    }
    let listing = fs::read_dir(mount.at("dir")).and_then(|mut dir| dir.next().transpose());
    assert!(listing.is_err(), "{listing:?}");
    assert_ne!(File::create(mount.at("new")).unwrap_err().kind(), ErrorKind::NotFound);
    world.sshd_mut().restart().unwrap();
    // Attempts become rarer, up to one in 30 seconds.
    eventually(Duration::from_secs(45), "the mount is back", || {
        fs::metadata(mount.at("dir/file")).is_ok()
    });
    assert_eq!(fs::read(mount.at("dir/file")).unwrap(), b"content");
    fs::write(mount.at("new"), b"new").unwrap();
}

#[test]
fn a_new_connection_is_made_at_once_when_the_server_takes_it() {
    let world = World::new();
    fs::write(world.served("file"), b"content").unwrap();
    let mount = world.mount(&["-o", "dir_cache=no,max_conns=3"]).with_errors();
    for _ in 0..5 {
        assert_eq!(fs::read(mount.at("file")).unwrap(), b"content");
        world.sshd().kill_sessions();
        // What comes after the loss waits for the new connection; what comes in the very moment
        // of the loss may fail.
        eventually(RECONNECT, "it works again", || fs::metadata(mount.at("file")).is_ok());
    }
    // The sftp-server alone, as if it had crashed.
    world.sshd().kill_sftp_servers();
    eventually(RECONNECT, "it works again", || fs::read(mount.at("file")).is_ok());
}

#[test]
fn a_descriptor_from_before_the_loss_fails_and_never_lies() {
    let world = World::new();
    let content = pattern(BLOCK * 8);
    fs::write(world.served("file"), &content).unwrap();
    let mount = world.mount(&[]).with_errors();
    let file = File::options().read(true).write(true).open(mount.at("file")).unwrap();
    world.sshd().kill_sessions();
    eventually(RECONNECT, "it works again", || {
        fs::metadata(mount.at("dir")).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    });
    let mut block = vec![0; BLOCK];
    match file.read_at(&mut block, 0) {
        Ok(read) => assert!(block[..read] == content[..read] && read == BLOCK),
        Err(error) => assert_ne!(error.kind(), ErrorKind::NotFound, "{error}"),
    }
    let written = file.write_all_at(b"later", 0).and_then(|()| file.sync_all());
    let there = fs::read(world.served("file")).unwrap();
    assert_eq!(there.len(), content.len());
    assert_eq!(written.is_ok(), there.starts_with(b"later"), "{written:?}");
    let _ = close(file);
}

/// L4: only the descriptors from before are stale.
#[test]
fn a_file_that_was_replaced_during_a_loss_is_written_anew() {
    let world = World::new();
    fs::write(world.served("file"), b"content").unwrap();
    let mount = world.mount(&[]).with_errors();
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(mount.at("file"));
    let (stale, mut block) = (direct.unwrap(), vec![0; BLOCK]);
    assert_eq!(stale.read_at(&mut block, 0).unwrap(), 7);
    world.sshd().kill_sessions();
    fs::remove_file(world.served("file")).unwrap();
    fs::write(world.served("file"), b"another content").unwrap();
    let error = |read: io::Result<usize>| read.err().and_then(|error| error.raw_os_error());
    assert_eq!(error(stale.read_at(&mut block, 0)), Some(libc::ESTALE));
    fs::write(mount.at("file"), b"new").unwrap();
    assert_eq!(fs::read(world.served("file")).unwrap(), b"new");
    assert_eq!(error(stale.read_at(&mut block, 0)), Some(libc::ESTALE));
}

#[test]
fn without_reconnect_all_access_fails_for_good() {
    let world = World::new();
    fs::write(world.served("file"), b"content").unwrap();
    let mount = world.mount(&["-o", "noreconnect,dir_cache=no"]).with_errors();
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"content");
    world.sshd().kill_sessions();
    for _ in 0..3 {
        eventually(RECONNECT, "the loss", || {
            let error = fs::metadata(mount.at("file")).err().and_then(|it| it.raw_os_error());
            error == Some(libc::EHOSTDOWN)
        });
        assert!(fs::read_dir(mount.place()).and_then(|mut dir| dir.next().transpose()).is_err());
    }
    // It is still a mount: nothing falls through to the directory below it.
    assert!(mount.is_mounted());
    assert!(File::create(mount.at("new")).is_err());
    let told = run(program().arg("status").arg(mount.place())).stdout;
    assert!(told.contains("lost") && told.contains("; mount again"), "{told}");
    assert!(!told.contains("reconnecting"), "{told}");
    assert!(world.sshd().session_pids().is_empty(), "it has not connected again");
}
