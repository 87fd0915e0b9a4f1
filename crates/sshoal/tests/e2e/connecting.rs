//! Connections that cannot be made, and what the program says about them.

use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sandbox::sshd::Options;
use serde_json::Value;

use crate::process::{Process, eventually, run, run_within};
use crate::world::{World, program_path};

/// Within this time an error that no attempt can change has to be reported.
const AT_ONCE: Duration = Duration::from_secs(10);

#[test]
fn a_proxy_that_cannot_work_is_an_error_at_once() {
    let world = World::new();
    let place = world.mountpoint();
    let place = place.to_str().unwrap();
    let no_program = "ProxyCommand=/nonexistent/connect";
    let jump = format!("ProxyJump={}", world.sshd().alias());
    let cases = [
        (world.source(), no_program, "/nonexistent/connect"),
        ("nohost.invalid:x".to_owned(), &*jump, "open failed: connect failed: "),
    ];
    for (source, option, reason) in cases {
        let begun = Instant::now();
        let said = world.refusal(&[&source, place, "-o", option]);
        assert!(begun.elapsed() < AT_ONCE, "{:?}: {said}", begun.elapsed());
        assert_eq!(said.matches(reason).count(), 1, "{said}");
        assert!(said.contains("check ProxyCommand or ProxyJump"), "{said}");
        assert!(!said.contains("kex_exchange") && !said.contains("MaxStartups"), "{said}");
    }
}

#[test]
fn a_port_that_closes_at_once_is_tried_again_with_a_message() {
    let world = World::new();
    let place = world.mountpoint();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let words = ["-o", "ConnectTimeout=4", "-p", &port];
    let said = world.refusal(&[&[&*world.source(), place.to_str().unwrap()], &words[..]].concat());
    let told = "the connection was closed before the login; trying again for 4 s";
    assert_eq!(said.matches(told).count(), 1, "{said}");
    assert_eq!(said.matches("kex_exchange_identification").count(), 1, "{said}");
    assert!(!said.contains("Connection closed by 127.0.0.1"), "{said}");
    assert!(said.contains("check that the port (-p) is sshd's"), "{said}");
}

/// nologin(8), /bin/false, and a shell that prints before it starts the SFTP server.
#[test]
fn a_shell_that_serves_no_sftp_is_named_with_a_remedy() {
    let shown = |command: &str| {
        let settings = vec![format!("ForceCommand {command}")];
        let world = World::with(Options { settings, ..Options::default() });
        let place = world.mountpoint();
        let said = world.refusal(&[&world.source(), place.to_str().unwrap()]);
        let mut doctor = crate::world::program();
        doctor.arg("doctor").arg("-F").arg(world.sshd().config_path());
        let ended = run(doctor.args([&world.source(), "--json"]));
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        let mut checks = document["checks"].as_array().unwrap().iter();
        let login = checks.find(|check| check["what"] == "login").unwrap();
        let remedy = login["remedy"].as_str().unwrap_or_default().to_owned();
        (said, remedy)
    };
    let (said, remedy) = shown("echo This account is currently not available.; exit 1");
    assert!(said.contains("This account is currently not available."), "{said}");
    assert!(said.contains("ask the server's administrator"), "{said}");
    assert!(remedy.contains("ask the server's administrator"), "{remedy}");
    assert!(!remedy.contains(".bashrc"), "{remedy}");
    let (said, remedy) = shown("/bin/false");
    for text in [said, remedy] {
        assert!(text.contains("`ssh HOST true` shows"), "{text}");
    }
    let (said, remedy) = shown("echo hello; exec /usr/lib/openssh/sftp-server");
    let text = said.split_once("before the SFTP stream: ").unwrap().1;
    assert!(text.starts_with("\"hello\\n\""), "{said}");
    for text in [&*said, &*remedy] {
        assert!(text.contains(".bashrc"), "{text}");
    }
}

/// A server that does not answer, and a mount in the background.
#[test]
fn a_mount_whose_command_is_killed_does_not_go_on_connecting() {
    let world = World::new();
    let place = world.mountpoint();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL] {
        let mut command = world.command();
        command.arg(world.source()).arg(&place).args(["-o", "ConnectTimeout=100", "-p", &port]);
        let mut parent = Process::spawn(&mut command);
        // ssh has connected.
        let (_stream, _) = listener.accept().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", parent.pid());
        let children = std::fs::read_to_string(children).unwrap();
        let child: u32 = children.trim().parse().unwrap();
        let sshs = format!("/proc/{child}/task");
        parent.signal(signal);
        assert!(!parent.wait(AT_ONCE).success(), "{signal:?}");
        eventually(AT_ONCE, "its child ends", || !std::path::Path::new(&sshs).exists());
    }
}

/// `ulimit -f` of the shell that mounts or copies.
#[test]
fn a_limit_of_the_file_size_fails_one_write_and_ends_nothing() {
    let world = World::new();
    let local = world.local("local");
    std::fs::create_dir(&local).unwrap();
    let limited = || {
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit -f 100; exec \"$@\"", "bash"]).arg(program_path());
        command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
        command
    };
    let place = world.mountpoint();
    let mut command = limited();
    command.arg("-f").arg("-F").arg(world.sshd().config_path());
    command.arg(format!("local:{}", local.display())).arg(world.source()).arg(&place);
    command.args(["-o", "create=ff"]);
    let mount = crate::mount::Mount::start(command, place).with_errors();
    let mut big = std::fs::File::create(mount.at("big")).unwrap();
    let written = big.write_all(&vec![b'x'; 300_000]).and_then(|()| big.sync_all());
    let error = written.unwrap_err();
    drop(big);
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error}");
    std::fs::write(mount.at("small"), "text").unwrap();
    assert_eq!(std::fs::read(local.join("small")).unwrap(), b"text");
    mount.unmount();

    std::fs::write(world.served("big"), vec![b'x'; 3_000_000]).unwrap();
    let target = world.local("target");
    std::fs::create_dir(&target).unwrap();
    let mut pull = limited();
    pull.args(["pull", "-F"]).arg(world.sshd().config_path());
    pull.arg(format!("{}/big", world.source().trim_end_matches('/'))).arg(&target);
    let ended = run_within(Duration::from_secs(100), &mut pull);
    assert!(ended.status.code().is_some_and(|code| code != 0), "{ended:?}");
    assert!(ended.stderr.contains("File too large"), "{ended:?}");
    assert_eq!(crate::world::names(&target), [""; 0], "{ended:?}");
}
