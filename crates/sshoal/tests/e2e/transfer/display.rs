//! What a copy shows: names and words of the other side reach the terminal escaped.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use sandbox::sshd::Options;

use super::{ENGINES, command, ends, far};
use crate::process::{Ended, LIMIT, Process, eventually, run};
use crate::world::World;

/// Names that a terminal obeys, or shows as another name.
const NAMES: [&[u8]; 9] = [
    b"title \x1b]0;owned\x07",
    b"csi \xc2\x9b31m",
    b"raw csi \x9b31m",
    "photo\u{202e}gpj.exe".as_bytes(),
    "isolate\u{2066}x\u{2069}".as_bytes(),
    "zero\u{200b}width".as_bytes(),
    "separated\u{2028}line".as_bytes(),
    b"new\nline",
    b"overwritten\rby this\x7f",
];

/// Whether a terminal only shows it.
fn is_shown(character: char) -> bool {
    let hidden = matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2060}'..='\u{206f}' | '\u{feff}' | char::REPLACEMENT_CHARACTER);
    !hidden && (!character.is_control() || character == '\n')
}

#[track_caller]
fn assert_harmless(ended: &Ended) {
    for text in [&ended.stdout, &ended.stderr] {
        let obeyed: Vec<char> = text.chars().filter(|it| !is_shown(*it)).collect();
        assert!(obeyed.is_empty(), "{obeyed:?} in {text}");
    }
}

fn put_all(dir: &Path) {
    for name in NAMES {
        fs::write(dir.join(OsStr::from_bytes(name)), "content").unwrap();
    }
}

/// Copies to and fro, with the names in all that is printed: what is new, deleted, failed, and
/// JSON.
#[test]
fn cve_2019_6109_names_of_a_copy_are_shown_escaped() {
    let world = World::new();
    let source = world.served("source");
    fs::create_dir(&source).unwrap();
    put_all(&source);
    let empty = world.served("empty");
    fs::create_dir(&empty).unwrap();
    for engine in ENGINES {
        for way in ["pull", "push"] {
            let near = world.local(format!("{way} {engine}"));
            let served = world.served(format!("{way} {engine}"));
            let (from, none, target) = match way {
                "pull" => (far(&world, &source), far(&world, &empty), near.clone()),
                _ => (source.display().to_string(), empty.display().to_string(), served.clone()),
            };
            let to = if way == "pull" { near.display().to_string() } else { far(&world, &served) };
            let (from, none) = (from + "/", none + "/");
            let new = ends(&world, way, &[&from, &to, "-v", "--engine", engine], 0);
            assert_eq!(fs::read_dir(&target).unwrap().count(), NAMES.len());
            let lines = |ended: &Ended| ended.stdout.matches("new ").count();
            assert!(lines(&new) >= NAMES.len(), "{new:?}");
            let again = ["--json", "-c", "--engine", "sftp"];
            let told = ends(&world, way, &[&[&from[..], &to][..], &again].concat(), 0);
            let gone = ["--delete", "-v", "--engine", "sftp"];
            let gone = ends(&world, way, &[&[&none[..], &to][..], &gone].concat(), 0);
            assert!(gone.stdout.matches("delete ").count() >= NAMES.len(), "{gone:?}");
            for name in NAMES {
                fs::create_dir_all(target.join(OsStr::from_bytes(name)).join("in the way"))
                    .unwrap();
            }
            let failed = ends(&world, way, &[&from, &to, "--engine", "sftp"], 1);
            assert!(failed.stderr.matches("has the name").count() >= NAMES.len(), "{failed:?}");
            // In JSON it stands for what is not UTF-8, whose bytes are beside it.
            let stdout = told.stdout.replace(char::REPLACEMENT_CHARACTER, "");
            let told = Ended { stdout, ..told };
            [new, told, gone, failed].iter().for_each(assert_harmless);
        }
    }
}

/// What a server says before it does what it is asked.
const SAYS: &str = r"printf '\033]52;c;b3duZWQ=\007\302\2332J\rEnter: \342\200\256\n' >&2";

#[test]
fn cve_2019_6110_words_of_the_server_are_shown_escaped() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "banner \u{1b}]0;owned\u{7}\u{9b}2J\n").unwrap();
    let force = format!("ForceCommand {SAYS}; exec sh -c \"$SSH_ORIGINAL_COMMAND\"");
    let settings = vec![force, format!("Banner {}", file.path().display())];
    let world = World::with(Options { settings, ..Options::default() });
    let source = world.served("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "content").unwrap();
    for engine in ENGINES {
        let near = world.local(format!("pull {engine}")).display().to_string();
        let served = far(&world, &world.served(format!("push {engine}")));
        let (far, local) = (far(&world, &source), source.display().to_string());
        let absent = format!("{far}/absent");
        let runs = [("pull", &far, &near), ("push", &local, &served), ("pull", &absent, &near)];
        for (way, from, to) in runs {
            let ended = run(&mut command(&world, way, &[from, to, "-v", "--engine", engine]));
            assert_eq!(ended.status.success(), from != &absent, "{ended:?}");
            assert_harmless(&ended);
        }
    }
    // It is the reason of a failure, too. (sshd drops what a subsystem says.)
    let force = format!("ForceCommand {SAYS}; exit 1");
    let world = World::with(Options { settings: vec![force], ..Options::default() });
    let near = world.local("near").display().to_string();
    let words = [&super::far(&world, &source), &near[..], "-o", "sftp_server=/bin/false"];
    let ended = ends(&world, "pull", &[&words[..], &["--engine", "sftp"]].concat(), 3);
    assert!(ended.stderr.contains("Enter: "), "{ended:?}");
    assert_harmless(&ended);
}

/// As rsync and cat: what cannot be printed is an error, and a closed pipe ends the copy quietly.
#[test]
fn output_that_cannot_be_written_is_no_success() {
    let world = World::new();
    let source = world.served("source");
    super::make_tree(&source);
    let from = format!("{}/", far(&world, &source));
    for (number, words) in [&["-v"][..], &["--json"], &["-n"], &[]].into_iter().enumerate() {
        let near = world.local(format!("near{number}"));
        let all = [&[&*from, near.to_str().unwrap()], words].concat();
        let mut pull = command(&world, "pull", &all);
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = pull.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let ended = ended.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{words:?}");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        let message = "standard output: cannot be written: No space left on device";
        assert_eq!(told.matches(message).count(), 1, "{told}");
        assert_eq!(near.join("large").exists(), words != ["-n"]);

        let mut pull = command(&world, "pull", &all);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = pull.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let ended = ended.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(141), "{words:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "{words:?}");
    }
}

/// As a pager that is not scrolled.
#[test]
fn a_reader_that_has_stopped_does_not_delay_the_end_of_a_copy() {
    let world = World::new();
    let source = world.served("source");
    fs::create_dir(&source).unwrap();
    for number in 0..5000 {
        fs::write(source.join(format!("{number:0>240}")), "").unwrap();
    }
    let (from, near) = (format!("local:{}/", source.display()), world.local("near"));
    let (reader, writer) = std::io::pipe().unwrap();
    let mut pull = command(&world, "pull", &[&from, near.to_str().unwrap(), "--json"]);
    let mut pull = Process::spawn(pull.stdout(writer).stderr(Stdio::null()));
    eventually(LIMIT, "a full pipe", || rustix::io::ioctl_fionread(&reader).unwrap() >= 1 << 15);
    pull.signal(Signal::TERM);
    assert_eq!(pull.wait(LIMIT).code(), Some(130));
}

#[test]
fn a_dry_run_names_no_engine_and_no_rate() {
    let world = World::new();
    let source = world.served("source");
    super::make_tree(&source);
    let (from, near) = (far(&world, &source), world.local("near"));
    let near = near.to_str().unwrap();
    let ended = ends(&world, "pull", &[&from, near, "-n"], 0);
    let last = ended.stdout.lines().last().unwrap();
    assert!(last.contains("would be copied") && last.ends_with(" s"), "{last}");
    assert!(!last.contains("/s"), "{last}");
    let told = super::summary(&ends(&world, "pull", &[&from, near, "-n", "--json"], 0));
    assert_eq!(told["engines"], serde_json::json!([]));
    // Both sides are this machine.
    let from = format!("local:{}", source.display());
    let told = super::summary(&ends(&world, "pull", &[&from, near, "--json"], 0));
    assert_eq!(told["engines"], serde_json::json!(["local"]));
}

#[test]
fn json_shows_a_problem_that_is_not_of_an_entry() {
    let world = World::new();
    let (from, near) = (far(&world, &world.served("absent")), world.local("near"));
    let words = [&from, near.to_str().unwrap(), "--json", "--engine", "sftp"];
    let ended = ends(&world, "pull", &words, 1);
    let shown: serde_json::Value =
        serde_json::from_str(ended.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&shown["event"], &shown["name"]), (&"problem".into(), &"absent".into()));
    assert!(shown["problem"].as_str().unwrap().contains("No such file"), "{ended:?}");
}
