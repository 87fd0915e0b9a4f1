//! What bad input gets: a clear message or the right errno; no panic, no hang, no blow-up.
//!
//! Mistakes in the command line alone are in `tests/command_line.rs`.

mod hostile;
mod server;

use std::fs;
use std::path::{Path, PathBuf};

use sandbox::sshd::{Options, SftpServer};

use crate::world::{World, program, refusal};

/// The message has all of these in it, and nothing that could do harm to a terminal.
#[track_caller]
fn assert_says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is missing in: {said}");
    }
    let is_harmless = |char: char| !char.is_control() || matches!(char, '\n' | '\r' | '\t');
    assert!(said.chars().all(is_harmless), "{said:?}");
    assert!(said.starts_with("sshoal: ") || said.contains("\nsshoal: "), "{said}");
}

/// A script as what `ssh_command` runs.
fn script(dir: &Path, body: &str) -> PathBuf {
    let path = dir.join("ssh_command");
    sandbox::write_program(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    path
}

#[test]
fn unknown_options_are_named_with_the_nearest() {
    let world = World::new();
    let place = world.mountpoint();
    let said = world.refusal(&[&world.source(), place.to_str().unwrap(), "-o", "follow_symlink"]);
    assert_says(&said, &["follow_symlink", "did you mean 'follow_symlinks'?"]);
}

#[test]
fn a_host_that_does_not_exist() {
    let place = tempfile::tempdir().unwrap();
    let said = refusal(program().arg("nosuchhost.invalid:").arg(place.path()));
    assert_says(&said, &["nosuchhost.invalid"]);
    assert!(said.contains("Could not resolve hostname"), "ssh's own words: {said}");
}

#[test]
fn a_host_that_takes_no_connections() {
    let mut world = World::new();
    world.sshd_mut().end();
    let place = world.mountpoint();
    let said = world.refusal(&[&world.source(), place.to_str().unwrap()]);
    assert_says(&said, &["Connection refused"]);
}

#[test]
fn a_key_that_is_refused() {
    let world = World::new();
    fs::write(world.sshd().dir().join("authorized_keys"), "").unwrap();
    let place = world.mountpoint();
    let said = world.refusal(&[&world.source(), place.to_str().unwrap()]);
    assert_says(&said, &["Permission denied (publickey)"]);
}

#[test]
fn a_host_key_that_has_changed() {
    let mut world = World::new();
    world.sshd_mut().change_host_key().unwrap();
    let place = world.mountpoint();
    let said = world.refusal(&[&world.source(), place.to_str().unwrap()]);
    assert_says(&said, &["REMOTE HOST IDENTIFICATION HAS CHANGED", "host key"]);
}

/// A lost connection does not come back by a host key that has changed.
#[test]
fn a_host_key_that_changes_while_mounted() {
    let mut world = World::new();
    let mount = world.mount(&["-o", "dir_cache=no,soft=1"]).with_errors();
    fs::write(mount.at("file"), b"x").unwrap();
    world.sshd_mut().change_host_key().unwrap();
    for _ in 0..2 {
        let error = fs::metadata(mount.at("file")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
    }
    assert_says(&format!("sshoal: \n{}", mount.words()), &["Host key verification failed"]);
}

#[test]
fn a_remote_path_that_is_missing_or_a_file() {
    let world = World::new();
    fs::write(world.served("file"), b"").unwrap();
    let place = world.mountpoint();
    for (name, why) in [
        ("missing", "no such directory"),
        ("file", "not a directory"),
        ("file/below", "no such directory"),
        ("esc\x1b[2Jape", "no such directory"),
    ] {
        let source = world.source_of(&world.served(name));
        let said = world.refusal(&[&source, place.to_str().unwrap()]);
        assert_says(&said, &[why]);
    }
    // Not looked at when that is not wanted; then access tells.
    let source = world.source_of(&world.served("missing"));
    let mount = world.mount_of(&source, &["-o", "no_check_root"]);
    let error = fs::read_dir(mount.place()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_remote_directory_that_may_not_be_read() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // Root may read everything, but for what a link to itself leads to.
    let world = World::new();
    std::os::unix::fs::symlink("loop", world.served("loop")).unwrap();
    let place = world.mountpoint();
    let source = world.source_of(&world.served("loop"));
    let said = world.refusal(&[&source, place.to_str().unwrap()]);
    assert_says(&said, &["loop"]);
}

#[test]
fn a_mount_point_that_is_missing_or_a_file_or_not_empty() {
    let world = World::new();
    fs::write(world.served("shown"), b"").unwrap();
    let missing = world.local("missing");
    let said = world.refusal(&[&world.source(), missing.to_str().unwrap()]);
    assert_says(&said, &["No such file or directory", "mkdir"]);
    fs::write(world.local("file"), b"").unwrap();
    let said = world.refusal(&[&world.source(), world.local("file").to_str().unwrap()]);
    assert_says(&said, &["not a directory"]);
    // As with mount(8), what is there is covered.
    let mount = {
        let place = world.mountpoint();
        fs::write(place.join("covered"), b"").unwrap();
        let mut command = world.command();
        command.arg("-f").arg(world.source()).arg(&place);
        crate::mount::Mount::start(command, place)
    };
    assert!(mount.at("shown").exists() && !mount.at("covered").exists());
    let place = mount.place().to_owned();
    mount.unmount();
    assert!(place.join("covered").exists());
}

#[test]
fn mounts_lie_on_top_of_each_other() {
    let world = World::new();
    fs::create_dir(world.served("upper")).unwrap();
    fs::write(world.served("upper/name"), b"").unwrap();
    let lower = world.mount(&[]);
    let place = lower.place().to_str().unwrap().to_owned();
    let source = world.source_of(&world.served("upper"));
    let words = [&source, &place, "-o", "nonempty"];
    let ended = crate::process::run(world.command().args(words));
    assert!(ended.status.success(), "{ended:?}");
    assert!(lower.at("name").exists() && !lower.at("upper").exists());
    let ended = crate::mount::umount(&[], lower.place());
    assert!(ended.status.success(), "{ended:?}");
    assert!(lower.at("upper/name").exists() && !lower.at("name").exists());
}

#[test]
fn a_server_without_sftp() {
    let world = World::with(Options { sftp_server: SftpServer::Disabled, ..Options::default() });
    let place = world.mountpoint();
    let said = world.refusal(&[&world.source(), place.to_str().unwrap()]);
    assert_says(&said, &["subsystem request failed", "sftp"]);
    // The server's program can still be named.
    let mount = world.mount(&["-o", "sftp_server=/usr/lib/openssh/sftp-server"]);
    fs::write(mount.at("file"), b"x").unwrap();
    assert!(world.served("file").exists());
}

#[test]
fn an_sftp_server_that_is_not_there_or_fails() {
    // What a subsystem says on its standard error, sshd keeps to itself.
    let command = SftpServer::Command("exit 3\n".to_owned());
    let world = World::with(Options { sftp_server: command, ..Options::default() });
    let place = world.mountpoint();
    let place = place.to_str().unwrap();
    let said = world.refusal(&[&world.source(), place]);
    assert_says(&said, &["ended without a message (exit status: 3)"]);
    let said = world.refusal(&[&world.source(), place, "-o", "sftp_server=/no/such/server"]);
    assert_says(&said, &["/no/such/server"]);
}

#[test]
fn a_shell_that_speaks_before_sftp_does() {
    let body =
        "echo 'Welcome, and \x1b[31mmind\x1b[0m the gap'; exec /usr/lib/openssh/sftp-server\n";
    let world = World::with(Options {
        sftp_server: SftpServer::Command(body.to_owned()),
        ..Options::default()
    });
    let place = world.mountpoint();
    let said = world.refusal(&[&world.source(), place.to_str().unwrap()]);
    assert_says(&said, &["text before the SFTP stream", "Welcome, and", "the gap"]);
}

#[test]
fn an_ssh_that_is_not_there_or_does_nothing() {
    let place = tempfile::tempdir().unwrap();
    for (body, why) in [
        (None, "No such file or directory"),
        (Some("exit 0"), "ended without a message (exit status: 0)"),
        (Some("echo 'not in the mood' >&2; exit 7"), "not in the mood"),
        (Some("kill -9 $$"), "signal"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let command = match body {
            Some(body) => script(dir.path(), body),
            None => "/no/such/ssh".into(),
        };
        let option = format!("ssh_command={}", command.display());
        let said = refusal(program().arg("host:").arg(place.path()).args(["-o", &option]));
        assert_says(&said, &[why]);
        let foreground =
            refusal(program().args(["-f", "host:"]).arg(place.path()).args(["-o", &option]));
        assert_says(&foreground, &[why]);
    }
}
