//! The cache on disk, through real mounts: what it promises (docs/semantics.md), what it knows of
//! contents, what the kernel does with it, and the commands.

mod commands;
mod digests;
mod failing;
mod identity;
mod keeping;
mod kernel;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::behaviours::pattern;
use crate::mount::Mount;
use crate::process::{Ended, eventually, run};
use crate::world::{World, names, program};

/// How long something may take that takes a tenth of a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Long enough ago that a time of change is beyond doubt, and that the file is not one which is
/// being worked on.
const OLD: Duration = Duration::from_secs(7200);

/// Where the cache of a test is.
fn cache_dir(world: &World) -> PathBuf {
    world.local("cache")
}

/// The option for a cache of the test's own, with others behind it.
fn with_cache(world: &World, more: &str) -> String {
    let comma = if more.is_empty() { "" } else { "," };
    // However full the machine's disk is.
    format!("-ocache=disk,cache_dir={},cache_free=0{comma}{more}", cache_dir(world).display())
}

/// A mount with a cache, which can be asked.
#[track_caller]
fn mount(world: &World, more: &str) -> Mount {
    ready(world.mount(&[&with_cache(world, more)]))
}

/// A mount is in the kernel's table a little earlier than it can be asked.
#[track_caller]
fn ready(mount: Mount) -> Mount {
    eventually(LIMIT, "an answer", || status(mount.place()).is_some());
    mount
}

/// What the daemon of a mount tells of itself.
fn status(place: &Path) -> Option<Value> {
    let ended = run(program().args(["status", "--json"]).arg(place));
    let told: Value = serde_json::from_str(&ended.stdout).ok()?;
    let status = told["mounts"][0]["status"].clone();
    (!status.is_null()).then_some(status)
}

/// What it tells of its cache.
#[track_caller]
fn disk(mount: &Mount, field: &str) -> u64 {
    let told = status(mount.place()).unwrap();
    told["disk"][field].as_u64().unwrap_or_else(|| panic!("{field}: {told}"))
}

/// A file on the server that nobody has changed for long.
fn put(world: &World, name: &str, content: &[u8]) {
    let path = world.served(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    age(&path);
}

fn age(path: &Path) {
    set_modified(path, SystemTime::now() - OLD);
}

fn set_modified(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Some files in some directories, of sizes around those at which something changes.
fn put_tree(world: &World) -> Vec<(String, Vec<u8>)> {
    let sizes = [0, 1, 4096, 70_000, (128 << 10) + 1, 3 << 20];
    let mut files = Vec::new();
    for (number, size) in sizes.into_iter().enumerate() {
        let name = format!("dir{}/deeper/file{number}", number % 2);
        let mut content = pattern(size);
        content.iter_mut().for_each(|byte| *byte = byte.wrapping_add(number as u8));
        put(world, &name, &content);
        files.push((name, content));
    }
    std::os::unix::fs::symlink("deeper/file0", world.served("dir0/link")).unwrap();
    files
}

#[track_caller]
fn read_all(mount: &Mount, files: &[(String, Vec<u8>)]) {
    for (name, content) in files {
        assert!(fs::read(mount.at(name)).unwrap() == *content, "{name}");
    }
}

/// Runs `sshoal` with these words.
fn sshoal(words: &[&str], paths: &[&Path]) -> Ended {
    let mut command: Command = program();
    command.args(words).args(paths);
    run(&mut command)
}

/// The same, which has to succeed in silence but for what it prints.
#[track_caller]
fn told(words: &[&str], paths: &[&Path]) -> String {
    let ended = sshoal(words, paths);
    assert!(ended.status.success() && ended.stderr.is_empty(), "{words:?}: {ended:?}");
    ended.stdout
}

/// All files below `dir`.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found
}
