//! A directory in which a bench runs, and from which everything has to be gone afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bench::failure::Failure;
use bench::results::{Outcome, Results};
use sandbox::leftover;
use tempfile::TempDir;

use crate::process::{Ended, run_within};
use crate::world::{program, program_path};

/// How long one run may take: many times what it takes.
pub const LIMIT: Duration = Duration::from_secs(600);

pub struct Scene {
    dir: TempDir,
}

impl Scene {
    pub fn new() -> Scene {
        let dir = tempfile::Builder::new().prefix("e2e-bench-").tempdir().unwrap();
        for name in ["tmp", "bin"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Scene { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The smallest run that there is, but for what the words say. Everything that it makes is in
    /// this scene.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = program();
        command.env("TMPDIR", self.path("tmp")).arg("bench").args(words);
        command
    }

    /// Runs it to its end, and checks that nothing is left but what it was to write.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> Ended {
        let ended = run_within(LIMIT, &mut self.command(words));
        assert!(!ended.stderr.contains("panicked"), "{words:?}: {}", ended.stderr);
        self.assert_clean();
        ended
    }

    /// A run that has to end with this code, and its results.
    #[track_caller]
    pub fn results(&self, code: i32, words: &[&str]) -> (Results, Ended) {
        let out = self.path("out");
        let mut all = vec!["--quick", "--rounds", "1", "--size", "1M", "--no-control"];
        all.extend(["--out", out.to_str().unwrap()]);
        all.extend(words);
        let ended = self.run(&all);
        assert_eq!(ended.status.code(), Some(code), "{words:?}: {}{}", ended.stdout, ended.stderr);
        (bench::run::read(&out).unwrap(), ended)
    }

    /// A run that must not begin; its message.
    #[track_caller]
    pub fn refusal(&self, words: &[&str]) -> String {
        let ended = self.run(words);
        assert_eq!(ended.status.code(), Some(1), "{words:?}: {}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.stdout, "", "{words:?}");
        ended.stderr
    }

    #[track_caller]
    pub fn assert_clean(&self) {
        leftover::assert_none(self.dir.path());
        let left: Vec<_> = fs::read_dir(self.path("tmp")).unwrap().map(Result::unwrap).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    /// A program that mounts as sshfs does: a script of `sh`, in which `$sshoal` is the program
    /// under test.
    pub fn script(&self, name: &str, text: &str) -> String {
        let path = self.path("bin").join(name);
        let program = program_path();
        let text = format!("#!/bin/sh\nsshoal='{}'\n{text}\n", program.display());
        sandbox::write_program(&path, text).unwrap();
        format!("{name}={}", path.display())
    }

    /// A search path with everything in it but these programs.
    pub fn path_without(&self, missing: &[&str]) -> PathBuf {
        let dir = self.path("path");
        fs::create_dir(&dir).unwrap();
        for from in std::env::split_paths(&std::env::var_os("PATH").unwrap()) {
            let Ok(programs) = fs::read_dir(from) else { continue };
            for program in programs.map(Result::unwrap) {
                let name = program.file_name();
                if !missing.iter().any(|missing| name == *missing) {
                    // The first directory that has it wins.
                    let _ = std::os::unix::fs::symlink(program.path(), dir.join(name));
                }
            }
        }
        dir
    }
}

/// How the steps of a subject went: how many were measured, and the failures.
pub fn outcomes<'a>(results: &'a Results, subject: &str) -> (usize, Vec<&'a Failure>) {
    let of_subject = results.samples.iter().filter(|sample| sample.subject == subject);
    let mut measured = 0;
    let mut failures = Vec::new();
    for sample in of_subject {
        match &sample.outcome {
            Outcome::Measured(_) => measured += 1,
            Outcome::Failed { failure } => failures.push(failure),
        }
    }
    (measured, failures)
}

/// All samples of a subject have a value, and there are some.
#[track_caller]
pub fn assert_all_measured(results: &Results, subject: &str) {
    let (measured, failures) = outcomes(results, subject);
    assert!(measured > 0 && failures.is_empty(), "{subject}: {measured}, {failures:?}");
}

/// The text of a file that has to be there.
#[track_caller]
pub fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}
