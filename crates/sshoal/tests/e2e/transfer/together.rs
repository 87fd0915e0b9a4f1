//! Two copies of one tree into one place at once: exit code 0 means that all is there.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use super::broken::{begun, copies, slow_link};
use super::{assert_same, ends, far, make_tree, summary, temporaries};
use crate::process::{LIMIT, eventually};
use crate::world::World;

/// Noise, so that a wrong byte is one.
fn noise(len: u32) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(at) >> 11) as u8).collect()
}

/// Two copies of a tree with a large file, each begun when a part of what the one before sends has
/// passed.
fn together(way: &str, engine: &str, interrupted: bool) {
    let world = World::new();
    let source = world.served("source");
    make_tree(&source);
    fs::write(source.join("larger"), noise(6 << 20)).unwrap();
    let link = slow_link(&world);
    let [pull, push] = copies(&world, engine);
    let (_, words, target) = if way == "pull" { pull } else { push };
    let mut first = begun(&world, &link, way, &words, engine);
    let mut second = begun(&world, &link, way, &words, engine);
    if interrupted {
        second.signal(Signal::INT);
    }
    let first = first.wait(LIMIT).code();
    let second = second.wait(LIMIT).code();
    assert_eq!(first, Some(0), "{way} {engine}");
    assert_eq!(second, Some(if interrupted { 130 } else { 0 }), "{way} {engine}");
    eventually(LIMIT, "the end of its logins", || world.sshd().session_pids().is_empty());
    assert_same(&target, &source);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let again = ends(&world, way, &[&words[..], &["--json"]].concat(), 0);
    assert_eq!(summary(&again)["files_copied"], 0, "{again:?}");
    assert_eq!(temporaries(&target), [""; 0], "{way} {engine}");
    if !interrupted {
        assert_eq!(temporaries(target.parent().unwrap()), [""; 0], "{way} {engine}");
    }
}

#[test]
fn two_pulls_by_a_stream() {
    together("pull", "tar", false);
    together("pull", "tar", true);
}

#[test]
fn two_pulls_over_sftp() {
    together("pull", "sftp", false);
    together("pull", "sftp", true);
}

#[test]
fn two_pushes_by_a_stream() {
    together("push", "tar", false);
    together("push", "tar", true);
}

#[test]
fn two_pushes_over_sftp() {
    together("push", "sftp", false);
    together("push", "sftp", true);
}

/// The stage of the interrupted push has what the next one leaves out.
#[test]
fn files_excluded_from_the_next_push_are_not_published() {
    let world = World::new();
    let source = world.served("source");
    make_tree(&source);
    fs::create_dir(source.join("aaa")).unwrap();
    fs::write(source.join("aaa/secret"), "not for all").unwrap();
    fs::write(source.join("larger"), noise(6 << 20)).unwrap();
    let link = slow_link(&world);
    let [_, (way, words, target)] = copies(&world, "tar");
    let mut process = begun(&world, &link, way, &words, "tar");
    process.signal(Signal::KILL);
    process.wait(LIMIT);
    eventually(LIMIT, "the end of its logins", || world.sshd().session_pids().is_empty());
    let has_secret = |top: &Path| top.join("aaa/secret").exists();
    let stages = fs::read_dir(target.parent().unwrap()).unwrap().map(|it| it.unwrap().path());
    let stages = stages.filter(|it| it.to_string_lossy().contains(".sshoal-new-"));
    let begun: Vec<_> = stages.collect();
    assert!(begun.len() == 1, "{begun:?}");
    // What comes first of a tree is the file system's choice; then it is as if it had been this.
    if !has_secret(&begun[0]) {
        fs::create_dir_all(begun[0].join("aaa")).unwrap();
        fs::copy(source.join("aaa/secret"), begun[0].join("aaa/secret")).unwrap();
    }
    let from = format!("{}/", source.display());
    ends(&world, "push", &[&from, &far(&world, &target), "--exclude", "secret"], 0);
    assert!(target.join("aaa").exists() && !has_secret(&target));
    fs::remove_file(source.join("aaa/secret")).unwrap();
    assert!(fs::read(target.join("larger")).unwrap() == fs::read(source.join("larger")).unwrap());
    assert_eq!(temporaries(target.parent().unwrap()), [""; 0]);
}

/// The patterns match the names of the source, not the one that it has until it is whole.
#[test]
fn a_pattern_that_matches_the_name_of_a_stage_leaves_nothing_out() {
    let world = World::new();
    let source = world.served("source");
    make_tree(&source);
    fs::create_dir(source.join("build")).unwrap();
    fs::write(source.join("build/out"), "not for all").unwrap();
    fs::write(source.join("larger"), noise(6 << 20)).unwrap();
    let place = world.served("place");
    fs::create_dir(&place).unwrap();
    let link = slow_link(&world);
    let to = far(&world, &place);
    let words = ["--compress=never", "--exclude", ".source*", "--exclude", "/source/build"];
    let words: Vec<&str> = [&[source.to_str().unwrap(), &*to], &words[..]].concat();
    let owned: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let mut process = begun(&world, &link, "push", &owned, "tar");
    process.signal(Signal::KILL);
    process.wait(LIMIT);
    eventually(LIMIT, "the end of its logins", || world.sshd().session_pids().is_empty());
    ends(&world, "push", &words, 0);
    assert!(!place.join("source/build").exists());
    let modified = fs::metadata(&source).unwrap().modified().unwrap();
    fs::remove_dir_all(source.join("build")).unwrap();
    fs::File::open(&source).unwrap().set_modified(modified).unwrap();
    assert_same(&place.join("source"), &source);
    assert_eq!(temporaries(&place), [""; 0]);
}

/// Also if the source is a file that gets another name, which a pattern matches.
#[test]
fn a_file_under_a_new_name_is_completed() {
    let world = World::new();
    fs::write(world.served("noise"), noise(6 << 20)).unwrap();
    let (from, to) = (world.served("noise").display().to_string(), world.served("noise.bak"));
    let link = slow_link(&world);
    let far_to = far(&world, &to);
    let words = [&*from, &*far_to, "--compress=never", "--exclude", "*.bak"];
    let owned: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let mut process = begun(&world, &link, "push", &owned, "tar");
    // The stream ends, and its copy is completed over the other link.
    link.cut();
    process.wait(LIMIT);
    eventually(LIMIT, "the end of its logins", || world.sshd().session_pids().is_empty());
    assert!(!to.exists() || fs::read(&to).unwrap() == noise(6 << 20));
    ends(&world, "push", &words, 0);
    assert!(fs::read(&to).unwrap() == noise(6 << 20));
}
