//! `sshoal demo`: what this program does, shown on a private server with throw-away keys.
//!
//! Every step is a command that a user could type, its output, and what it proves; the proof is
//! checked, and a step that does not hold ends the demo with an error. Nothing of the user's own
//! ssh is read or changed.
//!
//! Invariant: whatever ends the demo (its last step, an error, Ctrl-C), the mounts are unmounted,
//! the server is ended, and the directory is removed, in this order, by the drop of [`Scene`].

mod stage;
mod steps;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use testkit::sshd::{Options, Sshd};

use crate::interrupts::Interrupts;
use crate::mounts;
use crate::report::{Problem, printable};
use stage::Stage;

/// Trees to show, the first that is there.
const TREES: [&str; 3] = ["/usr/include", "/usr/share/doc", "/etc"];

/// The server's name in the commands.
const HOST: &str = "demohost";

/// The mount point of the tree, and the one of the directory to write in.
const MOUNTS: [&str; 2] = ["tree", "work"];

/// Where it plays: `tree` and `work` are mount points, `server` is what is mounted at `work`,
/// `config` is ssh's configuration, and `bin` has this very program in it.
struct Scene {
    stage: Stage,
    interrupts: Interrupts,
    sshd: Sshd,
    /// What is mounted at `tree`.
    shown: PathBuf,
    /// Last, so that it is removed when nothing uses it any more.
    dir: TempDir,
}

/// Shows everything on `tree`. With `keep` it stays mounted until the user ends it.
pub fn run(tree: Option<PathBuf>, keep: bool) -> Result<(), Problem> {
    let shown = shown_tree(tree)?;
    let interrupts = Interrupts::listen().map_err(|error| io_problem("signals", &error))?;
    let scene = Scene::open(shown, interrupts)?;
    steps::play(&scene)?;
    if keep {
        scene.stay();
    }
    steps::close(&scene)?;
    let dir = scene.dir.path().to_owned();
    drop(scene);
    steps::check_nothing_is_left(&dir)
}

fn io_problem(what: &str, error: &std::io::Error) -> Problem {
    let why = error.raw_os_error().map(|raw| base::Errno::from_raw(raw).to_string());
    Problem::new(format!("demo: {what}"), why.unwrap_or_else(|| error.to_string()))
}

fn shown_tree(asked_for: Option<PathBuf>) -> Result<PathBuf, Problem> {
    let candidates = TREES.iter().map(PathBuf::from);
    let tree = asked_for.or_else(|| candidates.into_iter().find(|tree| tree.is_dir()));
    let tree = tree.unwrap_or_else(|| "/".into());
    let resolved = tree.canonicalize();
    resolved.map_err(|error| io_problem(&format!("tree '{}'", printable(&tree)), &error))
}

impl Scene {
    fn open(shown: PathBuf, interrupts: Interrupts) -> Result<Scene, Problem> {
        let options = Options { alias: HOST.to_owned(), ..Options::default() };
        let sshd = Sshd::start(options).map_err(|error| {
            Problem::new("demo: cannot start a private sshd", error.to_string())
                .hint("install openssh-server and openssh-client")
        })?;
        let prepare = || {
            let dir = testkit::private_dir("sshoal-demo-")?;
            for name in MOUNTS.into_iter().chain(["server", "bin"]) {
                fs::create_dir(dir.path().join(name))?;
            }
            symlink(std::env::current_exe()?, dir.path().join("bin/sshoal"))?;
            symlink(sshd.config_path(), dir.path().join("config"))?;
            Ok(dir)
        };
        let dir = prepare().map_err(|error| io_problem("temporary directory", &error))?;
        Ok(Scene { stage: Stage::new(), interrupts, sshd, shown, dir })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A line of shell in the scene's directory.
    fn command(&self, line: &str) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(self.at("bin")).chain(std::env::split_paths(&path));
        let mut command = Command::new("sh");
        command.args(["-euc", line]).current_dir(self.dir.path()).stdin(Stdio::null());
        if let Ok(path) = std::env::join_paths(paths) {
            command.env("PATH", path);
        }
        command
    }

    /// Shows and runs a line of shell; its output, which is shown too.
    fn run(&self, line: &str) -> Result<String, Problem> {
        let output = self.run_silently(line)?;
        self.stage.output(&output);
        Ok(output)
    }

    /// The same without its output.
    fn run_silently(&self, line: &str) -> Result<String, Problem> {
        self.check_interrupts()?;
        self.stage.command(line);
        self.output_of(line)
    }

    /// Runs a line of shell that nobody sees.
    fn output_of(&self, line: &str) -> Result<String, Problem> {
        let output = self.command(line).output().map_err(|error| io_problem("sh", &error))?;
        self.check_interrupts()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let why = format!("{}\n{}", output.status, said.trim_end());
        Err(Problem::new(format!("demo: `{line}` failed"), why))
    }

    /// An error if the user has ended the demo.
    fn check_interrupts(&self) -> Result<(), Problem> {
        match self.interrupts.has_come() {
            true => Err(Problem::new("demo", "interrupted; everything was removed")),
            false => Ok(()),
        }
    }

    /// Tells what to look at, and returns when it is to end.
    fn stay(&self) {
        let dir = self.dir.path().display();
        self.stage.heading("Look around");
        self.stage.note(&format!("cd {dir}    # in another terminal"));
        self.stage.note(&format!("  tree    {} on the server, read-only", self.shown.display()));
        self.stage.note("  work    a directory on the server to write in");
        self.stage.note("  server  the same directory as the server sees it");
        let pid = std::process::id();
        self.stage.note(&format!("Ctrl-C ends the demo; so does:  kill {pid}"));
        self.interrupts.wait();
    }

    fn unmount_all(&self) {
        for name in MOUNTS {
            let place = self.at(name);
            if is_mounted(&place) {
                let _ = Command::new(self.at("bin/sshoal"))
                    .args(["umount", "-z"])
                    .arg(&place)
                    .stderr(Stdio::null())
                    .status();
            }
        }
    }
}

fn is_mounted(place: &Path) -> bool {
    mounts::find(place).is_ok_and(|mount| mount.is_some())
}

impl Drop for Scene {
    fn drop(&mut self) {
        // A server that a step has stopped would keep the mounts.
        self.sshd.cont();
        self.unmount_all();
        // Their ssh end with them; the server is ended with the field.
    }
}
