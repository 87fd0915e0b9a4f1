//! `sshoal demo`: demonstrates the program on a private server with temporary keys.
//!
//! Every step is a command that a user could type, its output, and a statement about the result;
//! the statement is checked, and if it is false the demo ends with an error. The user's own ssh
//! files are neither read nor changed.
//!
//! Invariant: when the demo ends for any reason (its last step, an error, Ctrl-C), the drop of
//! [`Scene`] unmounts the mounts, ends the server and removes the directory, in this order.

mod stage;
mod steps;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use sandbox::sshd::{Options, Sshd};
use tempfile::TempDir;

use cli::signals::watch_end_signals;
use cli::{Problem, printable};

use stage::Stage;

/// Directories to mount; the first that exists is used.
const TREES: [&str; 3] = ["/usr/include", "/usr/share/doc", "/etc"];

/// The server's name in the commands.
const HOST: &str = "demohost";

/// The mount points of the read-only and of the writable directory.
const MOUNTS: [&str; 2] = ["tree", "work"];

/// The directory of the demo: `tree` and `work` are mount points, `server` is mounted at `work`,
/// `config` is ssh's configuration, and `bin` has a link to the program.
struct Scene {
    stage: Stage,
    /// A message for each signal that requests the end.
    interrupts: Receiver<()>,
    sshd: Sshd,
    /// The directory mounted at `tree`.
    shown: PathBuf,
    /// The last field, so that it is removed when nothing uses it any more.
    dir: TempDir,
}

/// Runs the demo with `tree`. With `keep` it stays mounted until the user ends it.
pub fn run(program: &Path, tree: Option<PathBuf>, keep: bool) -> Result<(), Problem> {
    let shown = shown_tree(tree)?;
    let (sender, interrupts) = channel();
    // From here on signals do not end the process. The receiver is dropped before the process ends.
    let note = move |_| {
        let _ = sender.send(());
    };
    watch_end_signals(note).map_err(|error| io_problem("signals", &error))?;
    let scene = Scene::open(program, shown, interrupts)?;
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
    fn open(program: &Path, shown: PathBuf, interrupts: Receiver<()>) -> Result<Scene, Problem> {
        let options = Options { alias: HOST.to_owned(), ..Options::default() };
        let sshd = Sshd::start(options).map_err(|error| {
            Problem::new("demo: cannot start a private sshd", error.to_string())
                .hint("install openssh-server and openssh-client")
        })?;
        let prepare = || {
            let dir = sandbox::private_dir("sshoal-demo-")?;
            for name in MOUNTS.into_iter().chain(["server", "bin"]) {
                fs::create_dir(dir.path().join(name))?;
            }
            symlink(program.canonicalize()?, dir.path().join("bin/sshoal"))?;
            symlink(sshd.config_path(), dir.path().join("config"))?;
            Ok(dir)
        };
        let dir = prepare().map_err(|error| io_problem("temporary directory", &error))?;
        Ok(Scene { stage: Stage::new(), interrupts, sshd, shown, dir })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A shell command in the scene's directory.
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

    /// Shows and runs a shell command; shows and returns its output.
    fn run(&self, line: &str) -> Result<String, Problem> {
        let output = self.run_silently(line)?;
        self.stage.output(&output);
        Ok(output)
    }

    /// Shows and runs a shell command without showing its output.
    fn run_silently(&self, line: &str) -> Result<String, Problem> {
        self.check_interrupts()?;
        self.stage.command(line);
        self.output_of(line)
    }

    /// Runs a shell command without showing it.
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
        match self.interrupts.try_recv() {
            Ok(()) => Err(Problem::new("demo", "interrupted; everything was removed")),
            Err(_) => Ok(()),
        }
    }

    /// Prints the mount points, and waits until the user ends the demo.
    fn stay(&self) {
        let dir = self.dir.path().display();
        self.stage.heading("Look around");
        self.stage.note(&format!("cd {dir}    # in another terminal"));
        self.stage.note(&format!("  tree    {} on the server, read-only", self.shown.display()));
        self.stage.note("  work    a directory on the server to write in");
        self.stage.note("  server  the same directory as the server sees it");
        let pid = std::process::id();
        self.stage.note(&format!("Ctrl-C ends the demo; so does:  kill {pid}"));
        let _ = self.interrupts.recv();
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
    mountinfo::find(place).is_ok_and(|mount| mount.is_some())
}

impl Drop for Scene {
    fn drop(&mut self) {
        // A server stopped by a step would block the unmounting.
        self.sshd.cont();
        self.unmount_all();
        // The ssh processes end with the mounts; the server ends when its field is dropped.
    }
}
