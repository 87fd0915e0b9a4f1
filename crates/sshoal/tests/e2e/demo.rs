//! `sshoal demo`: the whole of it, kept, and interrupted.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use sandbox::leftover;

use crate::behaviours::pattern;
use crate::process::{Process, run};
use crate::world::program;

const LIMIT: Duration = Duration::from_secs(60);

/// A small tree to show.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("it's a/sub")).unwrap();
    for (name, len) in [("empty", 0), ("it's a/file", 100_000), ("it's a/sub/\u{fc}", 5)] {
        fs::write(dir.path().join(name), pattern(len)).unwrap();
    }
    dir
}

#[test]
fn every_step_holds() {
    let tree = tree();
    let ended = run(program().args(["demo", "--dir"]).arg(tree.path()));
    assert_eq!(ended.status.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stderr, "");
    assert!(!ended.stdout.contains('\x1b'), "no colours but on a terminal");
    assert!(ended.stdout.ends_with("Nothing is left: no mount, no process, no file.\n"));
    let proofs = ended.stdout.matches('✓').count();
    assert_eq!(proofs, 10, "{}", ended.stdout);
}

#[test]
fn a_tree_that_is_not_there_is_an_error() {
    let ended = run(program().args(["demo", "--dir", "/no/such/tree"]));
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        ended.stderr.contains("'/no/such/tree': No such file or directory"),
        "{}",
        ended.stderr
    );
}

/// A demo that runs, and its directory.
struct Demo {
    process: Process,
    lines: Lines<BufReader<ChildStdout>>,
    dir: PathBuf,
}

impl Demo {
    fn start(words: &[&str], tree: &Path) -> Demo {
        let mut command = program();
        command.arg("demo").args(words).arg("--dir").arg(tree);
        let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut lines = BufReader::new(process.child().stdout.take().unwrap()).lines();
        let dir = lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("   Everything happens in ").map(PathBuf::from));
        Demo { process, lines, dir: dir.unwrap() }
    }

    fn read_until(&mut self, text: &str) -> String {
        self.lines.by_ref().map(Result::unwrap).find(|line| line.contains(text)).unwrap()
    }

    /// Ends it, and looks at what is left of it.
    fn end_by(mut self, signal: Signal, code: i32) {
        self.process.signal(signal);
        // Read to the end, or it might wait for its reader.
        self.lines.by_ref().for_each(drop);
        assert_eq!(self.process.wait(LIMIT).code(), Some(code));
        leftover::assert_none(&self.dir);
        assert!(!self.dir.exists());
    }
}

#[test]
fn a_kept_demo_is_usable_until_it_is_ended() {
    let tree = tree();
    for signal in [Signal::INT, Signal::TERM] {
        let mut demo = Demo::start(&["--keep"], tree.path());
        let told = demo.read_until("Ctrl-C ends the demo");
        assert!(told.ends_with(&format!("kill {}", demo.process.pid())), "{told}");
        assert!(fs::read(demo.dir.join("tree/it's a/file")).unwrap() == pattern(100_000));
        fs::write(demo.dir.join("work/mine"), b"mine").unwrap();
        assert_eq!(fs::read(demo.dir.join("server/mine")).unwrap(), b"mine");
        demo.end_by(signal, 0);
    }
    assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 2, "the tree was only looked at");
}

#[test]
fn an_interrupted_one_cleans_up() {
    let tree = tree();
    for step in ["1. Mount", "4. Write", "7. The server hangs"] {
        let mut demo = Demo::start(&[], tree.path());
        demo.read_until(step);
        demo.end_by(Signal::INT, 1);
    }
}
