use super::*;
use std::process::{Child, Output};

fn ssh(sshd: &Sshd, args: &[&str]) -> Command {
    let mut command = Command::new("ssh");
    command.arg("-F").arg(sshd.config_path()).args(args);
    command.stdin(Stdio::null());
    command
}

fn output(sshd: &Sshd, args: &[&str]) -> Output {
    ssh(sshd, args).output().unwrap()
}

/// A client whose SFTP session stands: the server has answered it.
fn session(sshd: &Sshd) -> Child {
    use std::io::Write;
    let mut command = ssh(sshd, &["-s", sshd.alias(), "sftp"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // SSH_FXP_INIT, version 3.
    child.stdin.as_mut().unwrap().write_all(&[0, 0, 0, 5, 1, 0, 0, 0, 3]).unwrap();
    assert_eq!(packet(&mut child)[0], 2, "an answer other than SSH_FXP_VERSION");
    child
}

/// The server's next packet.
fn packet(client: &mut Child) -> Vec<u8> {
    use std::io::Read;
    let stdout = client.stdout.as_mut().unwrap();
    let mut length = [0; 4];
    stdout.read_exact(&mut length).unwrap();
    let mut packet = vec![0; u32::from_be_bytes(length) as usize];
    stdout.read_exact(&mut packet).unwrap();
    packet
}

#[test]
fn the_user_logs_in_with_his_key() {
    let sshd = Sshd::start(Options::default()).unwrap();
    let said = output(&sshd, &[sshd.alias(), "echo", "hello"]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "hello\n", "{said:?}\n{}", sshd.log());
    assert!(sshd.log_with("Accepted publickey").contains("Accepted publickey"), "{}", sshd.log());
}

#[test]
fn sessions_are_counted_killed_and_made_anew() {
    let mut sshd = Sshd::start(Options::default()).unwrap();
    assert_eq!((sshd.session_pids(), sshd.sftp_server_pids()), (vec![], vec![]));
    let (mut first, mut second) = (session(&sshd), session(&sshd));
    assert_eq!((sshd.session_pids().len(), sshd.sftp_server_pids().len()), (2, 2));
    sshd.kill_sessions();
    assert_eq!((sshd.session_pids(), sshd.sftp_server_pids()), (vec![], vec![]));
    for client in [&mut first, &mut second] {
        assert_eq!(client.wait().unwrap().code(), Some(255));
    }

    let mut third = session(&sshd);
    sshd.kill_sftp_servers();
    assert_ne!(third.wait().unwrap().code(), Some(0));
    let port = sshd.port();
    let mut fourth = session(&sshd);
    sshd.restart().unwrap();
    assert_eq!(fourth.wait().unwrap().code(), Some(255));
    assert_eq!(sshd.port(), port);
    session(&sshd).kill().unwrap();
}

#[test]
fn a_stopped_server_answers_when_it_goes_on() {
    use std::io::Write;
    let sshd = Sshd::start(Options::default()).unwrap();
    let mut client = session(&sshd);
    let server = sshd.sftp_server_pids()[0];
    let state = || {
        let stat = fs::read_to_string(format!("/proc/{server}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    };
    sshd.stop();
    // The signal is delivered at once; the state is seen as soon as the process is off its
    // processor, which no event tells.
    while state() != 'T' {
        std::thread::yield_now();
    }
    sshd.cont();
    // SSH_FXP_REALPATH of ".", answered by SSH_FXP_NAME. The client is not closed before the
    // answer, since sftp-server throws away what it has not sent when its input ends.
    let realpath = [0, 0, 0, 10, 16, 0, 0, 0, 7, 0, 0, 0, 1, b'.'];
    client.stdin.as_mut().unwrap().write_all(&realpath).unwrap();
    assert_eq!(packet(&mut client)[..5], [104, 0, 0, 0, 7]);
    drop(client.stdin.take());
    client.wait().unwrap();
}

#[test]
fn nothing_is_left_behind() {
    let sshd = Sshd::start(Options::default()).unwrap();
    let dir = sshd.dir().to_owned();
    let pid = sshd.pid().unwrap();
    let mut client = session(&sshd);
    let servers = sshd.sftp_server_pids();
    assert_eq!(servers.len(), 1);
    drop(sshd);
    client.wait().unwrap();
    assert!(!dir.exists());
    for pid in servers.into_iter().chain([pid]) {
        let name = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!name.contains("ssh") && !name.contains("sftp"), "{pid} is left: {name}");
    }
}

/// A stopped server does not see that its client has gone, and its login does not wait for it.
#[test]
fn a_stopped_server_that_has_lost_its_login_is_ended_too() {
    let sshd = Sshd::start(Options::default()).unwrap();
    let mut client = session(&sshd);
    let server = sshd.sftp_server_pids()[0];
    sshd.stop();
    client.kill().unwrap();
    client.wait().unwrap();
    while !sshd.session_pids().is_empty() {
        std::thread::yield_now();
    }
    let command = || fs::read_to_string(format!("/proc/{server}/cmdline")).unwrap_or_default();
    assert!(command().contains("sftp-server"), "else this test shows nothing");
    drop(sshd);
    // Its parent, which could wait for it, is not a process of this test.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while command().contains("sftp-server") {
        assert!(std::time::Instant::now() < deadline, "{server} is left");
        std::thread::yield_now();
    }
}

#[test]
fn mounts_made_later_do_not_reach_the_server() {
    let sshd = Sshd::start(Options::default()).unwrap();
    assert_eq!(sshd.is_isolated(), is_root() && can_unshare());
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
    let same = namespace(sshd.pid().unwrap()) == namespace(std::process::id());
    assert_eq!(same, !sshd.is_isolated());
}

/// Else the file system of another test would live on in the server's namespace after that test
/// has unmounted it.
#[test]
fn fuse_mounts_made_before_do_not_reach_the_server_either() {
    use std::os::fd::AsRawFd;
    if !(is_root() && can_unshare()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let device = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
    rustix::mount::mount("test", dir.path(), "fuse.test", flags, options.as_c_str()).unwrap();
    let sees_it = |pid: u32| {
        let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        table.contains(dir.path().to_str().unwrap())
    };
    let sshd = Sshd::start(Options::default());
    let seen = (sees_it(std::process::id()), sshd.as_ref().map(|it| sees_it(it.pid().unwrap())));
    rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!((seen.0, seen.1.unwrap()), (true, false));
}

#[test]
fn a_changed_host_key_is_refused_by_the_client() {
    let mut sshd = Sshd::start(Options::default()).unwrap();
    sshd.change_host_key().unwrap();
    let said = output(&sshd, &[sshd.alias(), "true"]);
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(words.contains("Host key verification failed"), "{words}");
}

#[test]
fn sftp_can_be_internal_or_absent() {
    let internal = Options { sftp_server: SftpServer::Internal, ..Options::default() };
    let sshd = Sshd::start(internal).unwrap();
    let mut client = session(&sshd);
    assert_eq!((sshd.session_pids().len(), sshd.sftp_server_pids()), (1, vec![]));
    drop(client.stdin.take());
    client.wait().unwrap();

    let disabled = Options { sftp_server: SftpServer::Disabled, ..Options::default() };
    let sshd = Sshd::start(disabled).unwrap();
    let said = output(&sshd, &["-s", sshd.alias(), "sftp"]);
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(words.contains("subsystem request failed"), "{words}");
}

#[test]
fn settings_that_sshd_refuses_are_an_error_in_its_words() {
    let options = Options { settings: vec!["NoSuchKeyword 1".to_owned()], ..Options::default() };
    let error = Sshd::start(options).unwrap_err().to_string();
    assert!(error.contains("NoSuchKeyword"), "{error}");
}

#[test]
fn a_login_with_the_password_gets_sftp_and_no_shell() {
    use std::os::unix::fs::PermissionsExt;
    if !(is_root() && can_unshare()) {
        return;
    }
    let options = Options { takes_password: true, ..Options::default() };
    let sshd = Sshd::start(options).unwrap();
    let askpass = sshd.dir().join("askpass");
    crate::write_private(&askpass, format!("#!/bin/sh\necho {}\n", sshd.password()).as_bytes())
        .unwrap();
    fs::set_permissions(&askpass, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = ssh(&sshd, &[sshd.alias(), "echo", "hello"]);
    command.env("SSH_ASKPASS", &askpass).env("SSH_ASKPASS_REQUIRE", "force");
    let said = command.output().unwrap();
    assert!(
        sshd.log_with("Accepted password").contains("Accepted password"),
        "{said:?}\n{}",
        sshd.log()
    );
    let words = String::from_utf8_lossy(&said.stdout);
    assert!(!said.status.success() && words.contains("sftp connections only"), "{said:?}");
}
