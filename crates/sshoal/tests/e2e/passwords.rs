//! A password that the user types on the terminal while mounting.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use sandbox::sshd::Options;

use crate::installed::daemon_of;
use crate::mount::umount;
use crate::process::{Ended, eventually, run};
use crate::world::{World, program, program_path};

const LIMIT: Duration = Duration::from_secs(60);

/// A program on a terminal of its own, and the user at it.
struct Typist {
    child: Child,
    user: File,
    /// The program's side.
    terminal: File,
    shown: String,
}

impl Typist {
    fn start(command: &Command) -> Typist {
        Typist::start_on(command, |_| {})
    }

    /// On a terminal with other modes.
    fn start_on(command: &Command, change: impl FnOnce(&mut Termios)) -> Typist {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let user = openpt(flags).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let terminal = File::from(ioctl_tiocgptpeer(&user, flags).unwrap());
        let mut modes = tcgetattr(&terminal).unwrap();
        change(&mut modes);
        tcsetattr(&terminal, OptionalActions::Now, &modes).unwrap();
        let side = || Stdio::from(terminal.try_clone().unwrap());
        let mut started = Command::new("setsid");
        started.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        started.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
        started.env_remove("SSH_ASKPASS").env_remove("SSH_ASKPASS_REQUIRE");
        let child = started.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        Typist { child, user: File::from(user), terminal, shown: String::new() }
    }

    /// Waits until the terminal shows `text`, and forgets what was shown so far.
    #[track_caller]
    fn sees(&mut self, text: &str) {
        let began = Instant::now();
        while !self.shown.contains(text) {
            let mut buffer = [0; 1024];
            let read = self.user.read(&mut buffer).unwrap();
            self.shown.push_str(&String::from_utf8_lossy(&buffer[..read]));
            assert!(began.elapsed() < LIMIT, "no '{text}': {}", self.shown);
        }
        self.shown.clear();
    }

    fn types(&mut self, text: &str) {
        self.user.write_all(text.as_bytes()).unwrap();
    }

    /// The exit code, and what the terminal showed last.
    fn ended(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        // The process that has changed them may end after the one that was started.
        eventually(LIMIT, "the terminal has its modes back", || {
            let modes = tcgetattr(&self.terminal).unwrap().local_modes;
            modes.contains(LocalModes::ECHO | LocalModes::ICANON)
        });
        drop(self.terminal);
        // The end of a terminal without another side is an error.
        let mut rest = Vec::new();
        let _ = self.user.read_to_end(&mut rest);
        self.shown.push_str(&String::from_utf8_lossy(&rest));
        (code, self.shown)
    }
}

fn world() -> World {
    let world = World::with(Options { takes_password: true, ..Options::default() });
    fs::write(world.served("file"), "text").unwrap();
    world
}

/// Mounts in the background and types these answers to the password prompt.
fn mount(world: &World, options: &[&str], answers: &[&str]) -> (PathBuf, String) {
    let place = world.mountpoint();
    let mut command = Command::new(program_path());
    command.arg("-F").arg(world.sshd().config_path()).arg(world.source()).arg(&place);
    let mut typist = Typist::start(command.args(options));
    for answer in answers {
        typist.sees("'s password: ");
        typist.types(answer);
        typist.types("\n");
    }
    let (code, shown) = typist.ended();
    assert_eq!(code, Some(0), "{shown}");
    assert!(answers.iter().all(|answer| !shown.contains(answer)), "echoed: {shown}");
    (place, shown)
}

fn status(place: &Path) -> String {
    run(program().arg("status").arg(place)).stdout
}

/// `sshoal login` with a password from a pipe.
fn login(place: &Path, password: &str) -> Ended {
    let script = "printf '%s\\n' \"$2\" | \"$0\" login \"$1\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(program_path()).arg(place).arg(password);
    run(shell.env_remove("XDG_RUNTIME_DIR"))
}

fn logins(world: &World) -> usize {
    world.sshd().log().matches("Accepted password").count()
}

#[track_caller]
fn assert_reads(place: &Path) {
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "text");
}

#[test]
fn a_typed_password_serves_reconnections_and_further_sessions() {
    let world = world();
    let password = world.sshd().password().to_owned();
    // Corrected with Backspace, and after a wrong one.
    let edited = format!("{password}x\u{7f}");
    let (place, _) = mount(&world, &["-o", "max_conns=3"], &["wrong", &edited]);
    assert!(status(&place).contains("password kept"), "{}", status(&place));
    for lost in 1..=2 {
        world.sshd().kill_sessions();
        assert_reads(&place);
        assert!(logins(&world) > lost, "{}", world.sshd().log());
    }
    let before = logins(&world);
    let large = world.served("large");
    File::create(&large).unwrap().set_len(256 << 20).unwrap();
    fs::copy(place.join("large"), "/dev/null").unwrap();
    assert!(logins(&world) > before, "no further session: {}", world.sshd().log());
    assert_eq!(world.sshd().log().matches("Failed password").count(), 1);

    // Nowhere that other programs can see.
    let daemon = daemon_of(&place);
    for of_process in ["cmdline", "environ"] {
        let shown = fs::read(format!("/proc/{daemon}/{of_process}")).unwrap();
        let is_there = shown.windows(password.len()).any(|part| part == password.as_bytes());
        assert!(!is_there, "{of_process}");
    }
    assert!(umount(&[], &place).status.success());
}

#[test]
fn a_password_that_was_changed_is_tried_once_and_forgotten() {
    let mut world = world();
    let (place, _) = mount(&world, &["-o", "soft=3"], &[world.sshd().password()]);
    world.sshd_mut().change_password().unwrap();
    world.sshd().kill_sessions();
    for _ in 0..3 {
        assert!(fs::read_dir(&place).is_err());
    }
    eventually(LIMIT, "it needs the password", || {
        status(&place).contains("needs the password again: ")
    });
    assert_eq!(world.sshd().log().matches("Failed password").count(), 1);

    // Given to the running mount: a wrong one is not kept.
    let wrong = login(&place, "wrong");
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    assert!(wrong.stderr.contains("Permission denied"), "{wrong:?}");
    assert!(status(&place).contains("needs the password again: "), "{}", status(&place));
    // Before a password is read.
    let unknown = run(program().arg("login").arg(&place).arg("nohost"));
    assert!(unknown.stderr.contains("host 'nohost': not of this mount"), "{unknown:?}");
    let password = world.sshd().password().to_owned();
    let mut command = Command::new(program_path());
    command.arg("login").arg(&place);
    let mut typist = Typist::start(&command);
    typist.sees("Password for ");
    typist.types(&format!("{password}\n"));
    let (code, shown) = typist.ended();
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shown.contains(&password), "{shown}");
    assert!(status(&place).contains("password kept"), "{}", status(&place));
    eventually(LIMIT, "the password logs in", || fs::read_dir(&place).is_ok());
    let unneeded = login(&place, &password);
    assert!(unneeded.stderr.contains("no host of this mount needs a password"), "{unneeded:?}");
    assert!(umount(&[], &place).status.success());
}

/// An empty one would be a failed login, for which servers lock clients out.
#[test]
fn without_a_terminal_no_password_is_sent() {
    let world = world();
    let place = world.mountpoint();
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(program_path()).arg("-F").arg(world.sshd().config_path());
    command.arg(world.source()).arg(&place).env_remove("SSH_AUTH_SOCK");
    command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY").env_remove("SSH_ASKPASS_REQUIRE");
    let ended = run(&mut command);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("Permission denied ("), "{ended:?}");
    assert!(ended.stderr.contains("-o password_stdin"), "{ended:?}");
    assert_eq!(world.sshd().log().matches("Failed ").count(), 0, "{}", world.sshd().log());
}

/// The server disconnects before ssh gives up.
#[test]
fn a_wrong_password_is_not_reported_as_too_many_keys() {
    let settings = vec!["MaxAuthTries 2".to_owned()];
    let world = World::with(Options { takes_password: true, settings, ..Options::default() });
    let place = world.mountpoint();
    let mut command = Command::new(program_path());
    command.arg("-F").arg(world.sshd().config_path()).arg(world.source()).arg(&place);
    let mut typist = Typist::start(&command);
    for _ in 0..2 {
        typist.sees("'s password: ");
        typist.types("wrong\n");
    }
    let (code, shown) = typist.ended();
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("ermission denied, please try again"), "{shown}");
    assert!(!shown.contains("IdentityFile"), "{shown}");
}

#[test]
fn without_keeping_the_mount_says_what_it_cannot_do() {
    let world = world();
    let password = world.sshd().password().to_owned();
    let (place, shown) = mount(&world, &["-o", "keep_password=no,soft=3"], &[&password]);
    assert!(shown.contains("is not kept: no further session"), "{shown}");
    assert_reads(&place);
    assert!(status(&place).contains("needs the password again: "), "{}", status(&place));
    world.sshd().kill_sessions();
    assert!(fs::read_dir(&place).is_err());
    assert_eq!(logins(&world), 1);
    let refused = login(&place, &password);
    assert!(refused.stderr.contains("no password is kept for it: keep_password=no"), "{refused:?}");
    assert!(umount(&[], &place).status.success());
}

/// Backspace may be another byte, as may Ctrl-U.
#[test]
fn the_keys_of_the_terminal_correct_a_password() {
    let world = world();
    let password = world.sshd().password().to_owned();
    let place = world.mountpoint();
    let mut command = Command::new(program_path());
    command.arg("-F").arg(world.sshd().config_path()).arg(world.source()).arg(&place);
    let mut typist = Typist::start_on(&command, |modes| {
        modes.special_codes[SpecialCodeIndex::VERASE] = 8;
        modes.special_codes[SpecialCodeIndex::VKILL] = b'@';
    });
    typist.sees("'s password: ");
    typist.types(&format!("wrong@{password}x\u{8}\n"));
    let (code, shown) = typist.ended();
    assert_eq!(code, Some(0), "{shown}");
    assert!(status(&place).contains("password kept"), "{}", status(&place));
    world.sshd().kill_sessions();
    assert_reads(&place);
    assert!(umount(&[], &place).status.success());
}

#[test]
fn an_interrupted_prompt_leaves_the_terminal_as_it_was() {
    let world = world();
    let (config, source) = (world.sshd().config_path(), world.source());
    let (config, place) = (config.to_str().unwrap(), world.mountpoint());
    let helper = |command| ["helper", command, "-F", config, world.sshd().alias()];
    let mut all = ["install", "status", "remove"].map(|command| helper(command).to_vec()).to_vec();
    all.push(vec!["-F", config, &source, place.to_str().unwrap()]);
    for words in all {
        let mut command = Command::new(program_path());
        command.args(&words);
        let mut typist = Typist::start(&command);
        typist.sees("'s password: ");
        // Ctrl-\ is no signal there.
        typist.types("secr\u{1c}\u{3}");
        let (code, shown) = typist.ended();
        assert_ne!(code, Some(0), "{words:?}: {shown}");
        assert!(!shown.contains("secr"), "{words:?}: {shown}");
    }
}

/// A helper that is found is started by a second login only if that login needs no answer of the
/// user.
#[test]
fn the_second_login_of_a_helper_asks_nobody() {
    let home = tempfile::tempdir().unwrap();
    let world = World::with(Options {
        takes_password: true,
        home: Some(home.path().to_owned()),
        ..Options::default()
    });
    fs::write(world.served("file"), "text").unwrap();
    let helper = home.path().join(crate::helper::site::installed());
    fs::create_dir_all(helper.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(program_path(), &helper).unwrap();
    let password = world.sshd().password().to_owned();
    let connections = || world.sshd().log().matches("Connection from").count();

    // The server does not let it run.
    let (place, shown) = mount(&world, &[], &[&password]);
    assert!(shown.contains("is not used, but plain SFTP"), "{shown}");
    assert_eq!((logins(&world), connections()), (2, 2));
    assert_reads(&place);
    assert!(umount(&[], &place).status.success());

    let (place, shown) = mount(&world, &["-o", "keep_password=no"], &[&password]);
    assert!(!shown.contains("plain SFTP"), "{shown}");
    assert_eq!((logins(&world), connections()), (3, 3), "no second login");
    assert_reads(&place);
    assert!(umount(&[], &place).status.success());
}
