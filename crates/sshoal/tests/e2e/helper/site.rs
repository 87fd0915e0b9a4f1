//! A server whose logins have a home of their own, and a client with a state of its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use rustix::mount::UnmountFlags;
use rustix::process::geteuid;
use sandbox::sshd::Options;
use serde_json::Value;
use tempfile::TempDir;

use crate::mount::Mount;
use crate::process::{Ended, eventually, run, succeed};
use crate::world::{World, program, program_path};

/// How long a daemon may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Where `install` puts the helper, in the home.
pub fn installed() -> String {
    format!(".cache/sshoal/helper/{}/sshoal", env!("CARGO_PKG_VERSION"))
}

pub struct Site {
    pub world: World,
    home: TempDir,
    /// A file system is mounted on the home.
    is_small: bool,
    state: TempDir,
    /// The part of the server's log that was read.
    seen: Mutex<usize>,
}

/// The logins since the last look: how often a login started the subsystem, and a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Logins {
    pub subsystem: usize,
    pub command: usize,
}

pub const PLAIN: Logins = Logins { subsystem: 1, command: 0 };
pub const HELPER: Logins = Logins { subsystem: 0, command: 1 };
pub const BOTH: Logins = Logins { subsystem: 1, command: 1 };

impl Site {
    /// `None`, and a note, without root: only root can give logins another home.
    pub fn new(settings: &[String]) -> Option<Site> {
        Site::with(settings, None)
    }

    /// A tmpfs with these options is the home.
    pub fn with(settings: &[String], tmpfs: Option<&str>) -> Option<Site> {
        if !geteuid().is_root() {
            eprintln!("skipped: it takes root to give logins another home");
            return None;
        }
        let directory = || tempfile::Builder::new().prefix("e2e-").tempdir().unwrap();
        let (home, state) = (directory(), directory());
        if let Some(options) = tmpfs {
            succeed(
                Command::new("mount")
                    .args(["-t", "tmpfs", "-o", options, "tmpfs"])
                    .arg(home.path()),
            );
        }
        let world = World::with(Options {
            settings: settings.to_vec(),
            home: Some(home.path().to_owned()),
            ..Options::default()
        });
        Some(Site { world, home, is_small: tmpfs.is_some(), state, seen: Mutex::default() })
    }

    pub fn home(&self, name: impl AsRef<Path>) -> PathBuf {
        self.home.path().join(name)
    }

    /// Puts a program into the home; gives its path.
    pub fn put(&self, name: &str, script: &str) -> PathBuf {
        let path = self.home(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        sandbox::write_program(&path, script).unwrap();
        path
    }

    /// Puts the program under test where `install` would put it.
    pub fn put_helper(&self) -> PathBuf {
        let path = self.home(installed());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(program_path(), &path).unwrap();
        path
    }

    /// The record of the client about the server.
    pub fn records(&self) -> usize {
        fs::read_dir(self.state.path().join("sshoal/helper")).map_or(0, Iterator::count)
    }

    fn own(&self, mut command: Command) -> Command {
        command.env("XDG_STATE_HOME", self.state.path());
        command
    }

    /// The program with words that need no server's configuration.
    pub fn program(&self) -> Command {
        self.own(program())
    }

    #[track_caller]
    pub fn mount(&self, options: &[&str]) -> Mount {
        self.mount_by(program(), options)
    }

    #[track_caller]
    pub fn mount_by(&self, program: Command, options: &[&str]) -> Mount {
        let place = self.world.mountpoint();
        let mut command = self.own(program);
        command
            .arg("-F")
            .arg(self.world.sshd().config_path())
            .arg("-f")
            .arg(self.world.source())
            .arg(&place)
            .args(options);
        Mount::start(command, place)
    }

    /// Mounts, shows that it works, and unmounts; gives what the daemon said, and the logins.
    #[track_caller]
    pub fn mount_once(&self, options: &[&str]) -> (Seen, Logins) {
        self.logins();
        let mount = self.mount(options).with_errors();
        fs::write(mount.at("file"), "content").unwrap();
        assert_eq!(fs::read_to_string(self.world.served("file")).unwrap(), "content");
        let seen = Seen { session: session(&mount), words: mount.words() };
        mount.unmount();
        (seen, self.logins())
    }

    #[track_caller]
    pub fn refusal(&self, options: &[&str]) -> String {
        let place = self.world.mountpoint();
        let mut command = self.own(self.world.command());
        command.arg("-f").arg(self.world.source()).arg(place).args(options);
        crate::world::refusal(&mut command)
    }

    /// `sshoal helper COMMAND HOST`, by `program`.
    pub fn helper(&self, mut program: Command, command: &str, words: &[&str]) -> Ended {
        program.env("XDG_STATE_HOME", self.state.path());
        program.arg("helper").arg(command).arg(self.world.sshd().alias());
        program.arg("-F").arg(self.world.sshd().config_path()).args(words);
        run(&mut program)
    }

    /// The logins since the last call. For a time without connections.
    pub fn logins(&self) -> Logins {
        let log = self.world.sshd().log();
        let mut seen = self.seen.lock().unwrap();
        let new = &log[*seen..];
        let count = |what: &str| new.matches(&format!("Starting session: {what}")).count();
        let command = count("command") + count("forced-command");
        let logins = Logins { subsystem: count("subsystem 'sftp'"), command };
        *seen = log.len();
        logins
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.world.sshd_mut().end();
        if self.is_small {
            let _ = rustix::mount::unmount(self.home.path(), UnmountFlags::DETACH);
        }
    }
}

/// A mount as it was.
pub struct Seen {
    /// Its first session in `status --json`.
    pub session: Value,
    pub words: String,
}

impl Seen {
    #[track_caller]
    pub fn is_served_by(&self, server: &str) {
        assert_eq!(self.session["server"], server, "{}\n{}", self.session, self.words);
    }
}

/// The first session of a mount in `status --json`.
pub fn session(mount: &Mount) -> Value {
    let mut session = Value::Null;
    // A mount is in the table of mounts a moment before its daemon answers.
    eventually(ANSWER_LIMIT, "the daemon answers", || {
        let ended = run(program().args(["status", "--json"]).arg(mount.place()));
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        session = document["mounts"][0]["status"]["sources"][0]["hosts"][0]["sessions"][0].clone();
        !session.is_null()
    });
    session
}

/// A program that is installed as packages do, with a static one beside it.
pub struct Package {
    dir: TempDir,
}

impl Package {
    /// The static program starts the one under test.
    pub fn new() -> Package {
        let dir = tempfile::Builder::new().prefix("e2e-").tempdir().unwrap();
        let program = program_path();
        let own = dir.path().join("sshoal");
        if fs::hard_link(&program, &own).is_err() {
            sandbox::copy_program(program.as_ref(), &own).unwrap();
        }
        let source = dir.path().join("launcher.c");
        let text = format!(
            "#include <unistd.h>\nint main(int c, char **v) {{ return execv(\"{}\", v); }}\n",
            program.display()
        );
        fs::write(&source, text).unwrap();
        let target = dir.path().join("sshoal-static");
        succeed(Command::new("gcc").args(["-static", "-O1", "-o"]).arg(&target).arg(&source));
        Package { dir }
    }

    pub fn static_build(&self) -> PathBuf {
        self.dir.path().join("sshoal-static")
    }

    pub fn program(&self) -> Command {
        let mut command = Command::new(self.dir.path().join("sshoal"));
        command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
        command
    }
}
