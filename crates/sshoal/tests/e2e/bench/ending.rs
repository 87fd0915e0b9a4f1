//! Runs that the user ends.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rustix::process::Signal;

use crate::process::Process;

use super::scene::{LIMIT, Scene, read};

/// A run that would go on for long, ended by a signal when its standard error has this line.
#[track_caller]
pub fn ended_at(scene: &Scene, line: &str, signal: Signal, words: &[&str]) -> String {
    let out = scene.path("out");
    let mut command = scene.command(&["--quick", "--rounds", "1000", "--peers", "sshfs"]);
    command.args(words);
    if !words.contains(&"--advise") {
        command.arg("--out").arg(&out);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command);
    let mut stdout = process.child().stdout.take().unwrap();
    let mut stderr = BufReader::new(process.child().stderr.take().unwrap()).lines();
    let mut said = String::new();
    for text in stderr.by_ref() {
        said.push_str(&text.unwrap());
        said.push('\n');
        if said.contains(line) {
            break;
        }
    }
    assert!(said.contains(line), "{said}");
    process.signal(signal);
    stderr.for_each(drop);
    let mut printed = String::new();
    stdout.read_to_string(&mut printed).unwrap();
    assert_eq!(process.wait(LIMIT).code(), Some(130), "{said}");
    scene.assert_clean();
    printed
}

#[test]
fn a_run_interrupted_in_the_middle_keeps_its_results() {
    let scene = Scene::new();
    let line = "round 2 of 1000: latency: s";
    let printed = ended_at(&scene, line, Signal::INT, &["--work", "latency"]);
    let results = bench::run::read(&scene.path("out")).unwrap();
    assert_eq!(results.partial.as_deref(), Some("interrupted"));
    assert!(results.summaries.iter().any(|summary| summary.n == 2), "two rounds of the first");
    assert!(results.samples.iter().any(|sample| sample.subject == "sshfs"));
    assert!(printed.contains("report.html"), "{printed}");
    assert!(read(scene.path("out").join("report.html")).contains("interrupted"));
}

#[test]
fn a_run_interrupted_before_the_first_step_leaves_nothing_behind() {
    for (line, signal) in [
        ("starting the server", Signal::INT),
        ("looking at the subjects", Signal::TERM),
        ("preparing", Signal::HUP),
    ] {
        let scene = Scene::new();
        ended_at(&scene, line, signal, &["--work", "iozone"]);
    }
}

#[test]
fn in_the_middle_of_a_program_that_never_ends() {
    let scene = Scene::new();
    let fake = scene.script("fake", "exec sleep 1000");
    let line = "round 1 of 1000: latency: sshoal";
    ended_at(&scene, line, Signal::INT, &["--work", "latency", "--subject", &fake]);
}
