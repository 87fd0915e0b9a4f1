//! `sshoal helper install`, `status` and `remove`, and mounts with `helper=install`.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::site::{HELPER, PLAIN, Package, Site, installed};
use crate::process::{Ended, Process, eventually};

/// What is below the directory of helpers at the server, or nothing.
fn left(site: &Site) -> Vec<String> {
    let versions = fs::read_dir(site.home(".cache/sshoal/helper")).into_iter().flatten().flatten();
    let files = versions.flat_map(|version| fs::read_dir(version.path()).unwrap().flatten());
    files.map(|file| file.file_name().into_string().unwrap()).collect()
}

#[track_caller]
fn fails(ended: &Ended, with: &str) {
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains(with), "{with}: {ended:?}");
    assert_eq!(ended.stdout, "", "{ended:?}");
}

/// A directory of programs that precede the server's own in `PATH`.
fn settings_with_programs(dir: &std::path::Path, programs: &[(&str, &str)]) -> Vec<String> {
    for (name, script) in programs {
        let path = dir.join(name);
        sandbox::write_program(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    }
    let (path, run) = (dir.display(), "exec sh -c \"$SSH_ORIGINAL_COMMAND\"");
    vec![format!("ForceCommand PATH={path}:$PATH; export PATH; {run}")]
}

#[test]
fn it_is_installed_used_and_removed() {
    let (package, Some(site)) = (Package::new(), Site::new(&[])) else { return };
    let status = site.helper(site.program(), "status", &[]);
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    assert!(status.stdout.contains("testhost: no helper; "), "{status:?}");

    let ended = site.helper(package.program(), "install", &[]);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(ended.stdout.contains(&format!("installed {}", installed())), "{ended:?}");
    assert_eq!(left(&site), ["sshoal"]);
    let path = site.home(installed());
    assert!(fs::read(&path).unwrap() == fs::read(package.static_build()).unwrap());
    for (name, mode) in [("", 0o700), ("..", 0o700), ("../..", 0o700), ("../../..", 0o700)] {
        let directory = path.parent().unwrap().join(name);
        let found = fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{}", directory.display());
    }
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);

    let status = site.helper(site.program(), "status", &[]);
    assert_eq!(status.status.code(), Some(0), "{status:?}");
    for word in [&*installed(), env!("CARGO_PKG_VERSION"), "attrs@sshoal"] {
        assert!(status.stdout.contains(word), "{word}: {status:?}");
    }
    let mut doctor = site.program();
    doctor.arg("doctor").arg(site.world.source()).arg("-F").arg(site.world.sshd().config_path());
    let checks = crate::process::run(&mut doctor);
    let line = format!("{}, version {}", installed(), env!("CARGO_PKG_VERSION"));
    assert!(checks.stdout.contains(&line), "{checks:?}");
    let (seen, logins) = site.mount_once(&[]);
    seen.is_served_by("helper");
    assert_eq!(logins, HELPER, "the installation is remembered");
    // Again, in the place of the old one.
    let again = site.helper(package.program(), "install", &["--arch", std::env::consts::ARCH]);
    assert_eq!((again.status.code(), left(&site)), (Some(0), vec!["sshoal".to_owned()]));

    fs::create_dir(site.home(".cache/sshoal/helper/0.0.1")).unwrap();
    fs::write(site.home(".cache/sshoal/helper/0.0.1/sshoal"), "old").unwrap();
    let removed = site.helper(site.program(), "remove", &[]);
    assert_eq!(removed.status.code(), Some(0), "{removed:?}");
    assert!(!site.home(".cache/sshoal/helper").exists() && site.home(".cache/sshoal").exists());
    let (seen, logins) = site.mount_once(&[]);
    seen.is_served_by("sftp");
    assert_eq!((logins, seen.words.as_str()), (PLAIN, ""));
    let removed = site.helper(site.program(), "remove", &[]);
    assert!(removed.stdout.contains("no helper was installed"), "{removed:?}");
}

#[test]
fn a_mount_installs_it_on_request() {
    let (package, Some(site)) = (Package::new(), Site::new(&[])) else { return };
    let mount = site.mount_by(package.program(), &["-ohelper=install"]);
    assert_eq!(super::site::session(&mount)["server"], "helper");
    mount.unmount();
    assert_eq!(left(&site), ["sshoal"]);
}

#[test]
fn another_architecture_is_refused_with_the_command_to_build_it() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings_with_programs(dir.path(), &[("uname", "echo Linux aarch64")]);
    let (package, Some(site)) = (Package::new(), Site::new(&settings)) else { return };
    let ended = site.helper(package.program(), "install", &[]);
    fails(&ended, "no static build of sshoal for aarch64 is here");
    fails(&ended, "make static STATIC_TARGET=aarch64-unknown-linux-musl");
    let ended = site.helper(package.program(), "install", &["--arch", "x86_64"]);
    fails(&ended, "the server is aarch64, not x86_64");
    let ended = site.helper(package.program(), "install", &["--arch", "vax"]);
    fails(&ended, "no such architecture: 'vax'");
    for (system, said) in [
        ("Linux vax", "there is no build for its architecture, vax"),
        ("FreeBSD amd64", "the helper needs Linux, and this is FreeBSD"),
        ("Linux", "does not run commands for this login"),
    ] {
        settings_with_programs(dir.path(), &[("uname", &format!("echo {system}"))]);
        fails(&site.helper(package.program(), "install", &[]), said);
    }
    assert_eq!(left(&site), [""; 0]);
    // The program itself is not static, and nothing is beside it.
    fs::remove_file(package.static_build()).unwrap();
    fs::remove_file(dir.path().join("uname")).unwrap();
    let ended = site.helper(package.program(), "install", &[]);
    fails(&ended, &format!("no static build of sshoal for {} is here", std::env::consts::ARCH));
}

#[test]
fn an_upload_that_arrives_damaged_is_not_installed() {
    let dir = tempfile::tempdir().unwrap();
    let truncates = "for file; do case $file in ./*) truncate -s 100 \"$file\";; esac; done\n\
        exec /usr/bin/sha256sum \"$@\"";
    let settings = settings_with_programs(dir.path(), &[("sha256sum", truncates)]);
    let (package, Some(site)) = (Package::new(), Site::new(&settings)) else { return };
    let ended = site.helper(package.program(), "install", &[]);
    fails(&ended, "on the server differs from what was sent");
    assert_eq!(left(&site), [""; 0]);
    // Without the command it is read back.
    settings_with_programs(dir.path(), &[("sha256sum", "exit 127")]);
    let ended = site.helper(package.program(), "install", &[]);
    assert_eq!((ended.status.code(), left(&site)), (Some(0), vec!["sshoal".to_owned()]));
}

/// What is wrong with the home; nothing is left there, and mounts work.
#[test]
fn a_home_that_cannot_have_it() {
    for (tmpfs, said) in [
        ("size=200k", "cannot write .cache/sshoal/helper/"),
        ("ro", "cannot create .cache on the server: Read-only file system"),
        ("noexec", "mounted noexec"),
    ] {
        let (package, Some(site)) = (Package::new(), Site::with(&[], Some(tmpfs))) else { return };
        let ended = site.helper(package.program(), "install", &[]);
        fails(&ended, said);
        assert_eq!(left(&site), [""; 0], "{tmpfs}");

        let mount = site.mount_by(package.program(), &["-ohelper=install"]).with_errors();
        assert_eq!(super::site::session(&mount)["server"], "sftp");
        let words = mount.words();
        assert!(words.contains("the helper is not installed: ") && words.contains(said), "{words}");
        mount.unmount();
    }
}

#[test]
fn two_at_once_both_succeed() {
    let (package, Some(site)) = (Package::new(), Site::new(&[])) else { return };
    thread::scope(|scope| {
        let install = || site.helper(package.program(), "install", &[]);
        let running = [scope.spawn(install), scope.spawn(install)];
        for ended in running.map(|it| it.join().unwrap()) {
            assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        }
    });
    assert_eq!(left(&site), ["sshoal"]);
}

#[test]
fn an_interrupted_installation_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings_with_programs(dir.path(), &[("sha256sum", "exec sleep 1000")]);
    let (package, Some(site)) = (Package::new(), Site::new(&settings)) else { return };
    let mut command = package.program();
    command.args(["helper", "install", site.world.sshd().alias(), "-F"]);
    command.arg(site.world.sshd().config_path()).stdin(Stdio::null());
    let mut process = Process::spawn(&mut command);
    eventually(Duration::from_secs(30), "the upload begins", || !left(&site).is_empty());
    process.signal(Signal::INT);
    assert_eq!(process.wait(Duration::from_secs(30)).code(), Some(1));
    assert_eq!(left(&site), [""; 0]);
}

/// The first host has it by then, and the second one does not answer.
#[test]
fn an_installation_is_interrupted_at_each_host() {
    let (package, Some(site)) = (Package::new(), Site::new(&[])) else { return };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = with_host(&site, "silent", silent.local_addr().unwrap().port());
    let mut command = package.program();
    command.args(["helper", "install"]).arg(format!("{},silent:", site.world.sshd().alias()));
    command.arg("-F").arg(config).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command);
    silent.set_nonblocking(true).unwrap();
    let mut connection = None;
    eventually(Duration::from_secs(60), "it logs in to the second host", || {
        connection = silent.accept().ok();
        connection.is_some()
    });
    assert_eq!(left(&site), ["sshoal"]);
    process.signal(Signal::INT);
    assert_eq!(process.wait(Duration::from_secs(30)).code(), Some(1));
    let mut said = String::new();
    process.child().stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("helper: interrupted, and not installed"), "{said}");
}

/// The configuration file of ssh with one more host, at this port of this machine.
fn with_host(site: &Site, name: &str, port: u16) -> PathBuf {
    let known = fs::read_to_string(site.world.sshd().config_path()).unwrap();
    let config = site.world.local("config");
    fs::write(&config, format!("Host {name}\nHostName 127.0.0.1\nPort {port}\n{known}")).unwrap();
    config
}

#[test]
fn a_host_that_fails_does_not_stop_the_others() {
    let (package, Some(site)) = (Package::new(), Site::new(&[])) else { return };
    let config = with_host(&site, "down", 1);
    let hosts = format!("down,{}:", site.world.sshd().alias());
    let helper = |command: &str| {
        let mut program = package.program();
        program.args(["helper", command, &hosts, "-F"]).arg(&config).stdin(Stdio::null());
        crate::process::run(&mut program)
    };
    for (command, shown, is_there) in [
        ("install", "testhost: installed ", true),
        ("status", "testhost: the helper serves", true),
        ("remove", "testhost: removed ", false),
    ] {
        let ended = helper(command);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.stderr.starts_with("sshoal: down: "), "{ended:?}");
        assert!(ended.stderr.contains("Connection refused"), "{ended:?}");
        assert!(ended.stdout.starts_with(shown), "{ended:?}");
        assert_eq!(left(&site).is_empty(), !is_there, "{command}");
    }
}

#[test]
fn a_server_that_is_not_there_is_reported() {
    let Some(mut site) = Site::new(&[]) else { return };
    site.world.sshd_mut().end();
    for command in ["install", "status", "remove"] {
        fails(&site.helper(site.program(), command, &[]), "Connection refused");
    }
}
