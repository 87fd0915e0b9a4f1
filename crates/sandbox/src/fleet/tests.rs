use super::*;
use std::io::{Read, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

fn ssh(fleet: &Fleet, args: &[&str]) -> Command {
    let mut command = Command::new("ssh");
    command.arg("-F").arg(fleet.config_path()).args(args);
    command.stdin(Stdio::null());
    command
}

/// A client whose SFTP session stands.
struct Session {
    ssh: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Session {
    fn start(fleet: &Fleet, name: &str) -> Session {
        let mut command = ssh(fleet, &["-s", name, "sftp"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut ssh = command.spawn().unwrap();
        let (to, from) = (ssh.stdin.take().unwrap(), ssh.stdout.take().unwrap());
        let mut session = Session { ssh, to, from };
        // SSH_FXP_INIT, version 3.
        session.to.write_all(&[0, 0, 0, 5, 1, 0, 0, 0, 3]).unwrap();
        assert_eq!(session.packet().unwrap()[0], 2, "an answer other than SSH_FXP_VERSION");
        session
    }

    fn packet(&mut self) -> io::Result<Vec<u8>> {
        let mut len = [0; 4];
        self.from.read_exact(&mut len)?;
        let mut packet = vec![0; u32::from_be_bytes(len) as usize];
        self.from.read_exact(&mut packet)?;
        Ok(packet)
    }

    /// SSH_FXP_REALPATH of ".".
    fn ask(&mut self) {
        let realpath = [0, 0, 0, 10, 16, 0, 0, 0, 7, 0, 0, 0, 1, b'.'];
        self.to.write_all(&realpath).unwrap();
    }

    /// SSH_FXP_NAME.
    fn is_answered(&mut self) -> bool {
        self.packet().is_ok_and(|packet| packet[..5] == [104, 0, 0, 0, 7])
    }

    /// ssh has seen that the connection is gone.
    fn ends(mut self) -> bool {
        self.ssh.wait().unwrap().code() == Some(255)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.ssh.kill();
        let _ = self.ssh.wait();
    }
}

#[test]
fn each_is_known_by_its_name_and_reached_through_its_link() {
    let fleet = Fleet::start(["alpha", "beta", "gamma"].map(Plan::new)).unwrap();
    for name in ["alpha", "beta", "gamma"] {
        assert!(fleet.directory(name).is_dir());
        assert_eq!(fleet.source(name), format!("{name}:{}/{name}", fleet.dir().display()));
        let before = fleet.link(name).bytes_from_target();
        let said = ssh(&fleet, &[name, "echo", "hello"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "hello\n", "{said:?}\n{}", fleet.log());
        assert!(fleet.link(name).bytes_from_target() > before, "{name} was not asked by its link");
        assert!(fleet.sshd(name).log_with("Accepted publickey").contains("Accepted publickey"));
    }
}

#[test]
fn a_link_that_is_cut_is_that_of_one_alone() {
    let fleet = Fleet::start(["alpha", "beta"].map(Plan::new)).unwrap();
    let mut alpha = Session::start(&fleet, "alpha");
    let beta = Session::start(&fleet, "beta");
    fleet.link("beta").cut();
    assert!(beta.ends());
    alpha.ask();
    assert!(alpha.is_answered());
    let mut again = Session::start(&fleet, "beta");
    again.ask();
    assert!(again.is_answered());
}

#[test]
fn gateways_serve_one_directory() {
    let delay = LinkOptions { rtt: Duration::from_millis(40), rate_bytes_per_s: None };
    let plans = [
        Plan::new("gw1").serving("shared"),
        Plan::new("gw2").serving("shared").behind(delay).with(Options::default()),
        Plan::new("other"),
    ];
    let fleet = Fleet::start(plans).unwrap();
    assert_eq!(fleet.directory("gw1"), fleet.directory("gw2"));
    assert_ne!(fleet.directory("gw1"), fleet.directory("other"));
    let mut far = Session::start(&fleet, "gw2");
    let asked = Instant::now();
    far.ask();
    assert!(far.is_answered());
    assert!(asked.elapsed() >= Duration::from_millis(30), "{:?}", asked.elapsed());
}

#[test]
fn one_is_killed_and_comes_back() {
    let mut fleet = Fleet::start(["alpha", "beta"].map(Plan::new)).unwrap();
    let mut alpha = Session::start(&fleet, "alpha");
    let beta = Session::start(&fleet, "beta");
    let served = fleet.sshd("beta").sftp_server_pids();
    assert_eq!(served.len(), 1);
    fleet.kill("beta");
    assert!(beta.ends());
    assert_eq!(fleet.sshd("beta").pid(), None);
    assert!(!ssh(&fleet, &["beta", "true"]).stderr(Stdio::null()).status().unwrap().success());
    alpha.ask();
    assert!(alpha.is_answered());
    fleet.restart("beta").unwrap();
    let mut again = Session::start(&fleet, "beta");
    again.ask();
    assert!(again.is_answered());
}

#[test]
fn one_that_is_stopped_answers_when_it_goes_on() {
    let fleet = Fleet::start(["alpha", "beta"].map(Plan::new)).unwrap();
    let mut alpha = Session::start(&fleet, "alpha");
    let mut beta = Session::start(&fleet, "beta");
    fleet.stop("beta");
    let before = fleet.link("beta").bytes_to_target();
    beta.ask();
    alpha.ask();
    assert!(alpha.is_answered());
    assert_eq!(fleet.link("beta").bytes_to_target(), before);
    fleet.cont("beta");
    assert!(beta.is_answered());
    assert!(fleet.link("beta").bytes_to_target() > before);
}

#[test]
fn nothing_is_left() {
    let fleet = Fleet::start(["alpha", "beta"].map(Plan::new)).unwrap();
    let dirs = [fleet.dir(), fleet.sshd("alpha").dir(), fleet.sshd("beta").dir()];
    let dirs = dirs.map(Path::to_owned);
    let pids = ["alpha", "beta"].map(|name| fleet.sshd(name).pid().unwrap());
    drop(fleet);
    assert!(dirs.iter().all(|dir| !dir.exists()));
    for pid in pids {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!command.contains("sshd"), "{pid} is left");
    }
}
