//! What a test has for itself: a server, a directory that it serves, and places to mount it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sandbox::leftover;
use sandbox::sshd::{Options, Sshd};
use tempfile::TempDir;

use crate::mount::Mount;
use crate::process::{Ended, run_within};

/// How long a mount may take that does not come about.
const REFUSAL_LIMIT: Duration = Duration::from_secs(60);

/// A temporary directory, and directories in it to mount on.
pub struct Places {
    mounts: AtomicU32,
    dir: TempDir,
}

impl Places {
    pub fn new() -> Places {
        let dir = tempfile::Builder::new().prefix("e2e-").tempdir().unwrap();
        Places { mounts: AtomicU32::new(0), dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A new, empty directory to mount on.
    pub fn mountpoint(&self) -> PathBuf {
        let number = self.mounts.fetch_add(1, Ordering::Relaxed);
        let place = self.dir.path().join(format!("mnt{number}"));
        fs::create_dir(&place).unwrap();
        place
    }
}

/// A server and its clients. When it is dropped, nothing of it is left, or the test fails.
pub struct World {
    sshd: Sshd,
    places: Places,
}

impl World {
    pub fn new() -> World {
        World::with(Options::default())
    }

    pub fn with(options: Options) -> World {
        let sshd = Sshd::start(options).unwrap();
        let places = Places::new();
        fs::create_dir(places.path().join("served")).unwrap();
        World { sshd, places }
    }

    pub fn sshd(&self) -> &Sshd {
        &self.sshd
    }

    pub fn sshd_mut(&mut self) -> &mut Sshd {
        &mut self.sshd
    }

    /// A path below the directory that is served, as the server sees it.
    pub fn served(&self, name: impl AsRef<Path>) -> PathBuf {
        self.places.path().join("served").join(name)
    }

    /// A path on this machine that is not served.
    pub fn local(&self, name: impl AsRef<Path>) -> PathBuf {
        self.places.path().join(name)
    }

    /// `host:dir` of what is served.
    pub fn source(&self) -> String {
        self.source_of(&self.served(""))
    }

    pub fn source_of(&self, dir: &Path) -> String {
        format!("{}:{}", self.sshd.alias(), dir.display())
    }

    /// A new, empty directory to mount on.
    pub fn mountpoint(&self) -> PathBuf {
        self.places.mountpoint()
    }

    /// The program with the words that every mount of this server has.
    pub fn command(&self) -> Command {
        let mut command = program();
        command.arg("-F").arg(self.sshd.config_path());
        command
    }

    /// Mounts what is served. `options` are words of the command line.
    #[track_caller]
    pub fn mount(&self, options: &[&str]) -> Mount {
        self.mount_of(&self.source(), options)
    }

    #[track_caller]
    pub fn mount_of(&self, source: &str, options: &[&str]) -> Mount {
        let place = self.mountpoint();
        let mut command = self.command();
        command.arg("-f").arg(source).arg(&place).args(options);
        Mount::start(command, place)
    }

    /// Tries to mount, and has to be refused with exit code 1; what the program said.
    #[track_caller]
    pub fn refusal(&self, words: &[&str]) -> String {
        refusal(self.command().args(words))
    }
}

/// Names the program under test in the environment, where it is not where it was built.
pub const PROGRAM: &str = "SSHOAL_TEST_PROGRAM";

/// The program under test.
pub fn program_path() -> PathBuf {
    std::env::var_os(PROGRAM).unwrap_or_else(|| env!("CARGO_BIN_EXE_sshoal").into()).into()
}

/// The program in an environment without the user's own ssh.
pub fn program() -> Command {
    let mut command = Command::new(program_path());
    command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
    command
}

/// Whether the tests may take long, as `SSHOAL_TEST_BIG=1` says.
pub fn is_big_run() -> bool {
    std::env::var_os("SSHOAL_TEST_BIG").is_some_and(|value| value == "1")
}

/// The names in a directory, in order.
#[track_caller]
pub fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir.as_ref()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Runs a mount that must not come about.
#[track_caller]
pub fn refusal(command: &mut Command) -> String {
    let Ended { status, stdout, stderr, .. } = run_within(REFUSAL_LIMIT, command);
    assert_eq!(status.code(), Some(1), "{command:?}: {stderr}");
    assert_eq!(stdout, "", "{command:?}");
    assert!(!stderr.contains("panicked"), "{command:?}: {stderr}");
    stderr
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the server's log:\n{}---", self.sshd.log());
        } else {
            leftover::assert_none(self.places.path());
        }
    }
}
