//! `sshoal pull` and `sshoal push`, by each engine, over real ssh.

mod broken;
mod copies;
mod display;
mod full_at_close;
mod hostile;
mod logins;
mod streams;
mod together;
mod unseen;
mod usage;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::process::{Ended, run};
use crate::world::{World, program};

/// Engines that can be asked for.
const ENGINES: [&str; 3] = ["auto", "tar", "sftp"];

/// `sshoal WAY -F CONFIG WORDS`.
fn command(world: &World, way: &str, words: &[&str]) -> Command {
    let mut command = program();
    command.arg(way).arg("-F").arg(world.sshd().config_path()).args(words);
    command
}

#[track_caller]
fn ends(world: &World, way: &str, words: &[&str], code: i32) -> Ended {
    let ended = run(&mut command(world, way, words));
    assert_eq!(ended.status.code(), Some(code), "{way} {words:?}: {ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    ended
}

/// `host:path`, for a path of the server.
fn far(world: &World, path: &Path) -> String {
    format!("{}:{}", world.sshd().alias(), path.display())
}

/// A tree of a few hundred files with all that is kept of one.
fn make_tree(top: &Path) {
    for directory in 0..12 {
        let path = top.join(format!("dir{directory}/sub"));
        fs::create_dir_all(&path).unwrap();
        for file in 0..25 {
            let content = vec![b'a' + file as u8; directory * file * 37];
            fs::write(path.join(format!("file{file}")), content).unwrap();
        }
    }
    fs::create_dir(top.join("empty")).unwrap();
    fs::write(top.join("large"), vec![5; 3 << 20]).unwrap();
    fs::write(top.join("-odd name\n$x"), "odd").unwrap();
    fs::write(top.join("n".repeat(240)), "long").unwrap();
    symlink("../no/where", top.join("dir0/link")).unwrap();
    symlink("/absolute", top.join("dir1/link")).unwrap();
    for (name, perm) in [("large", 0o600), ("dir3/sub/file3", 0o755), ("dir4/sub/file4", 0o440)] {
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(perm)).unwrap();
    }
    let aged = Command::new("find")
        .arg(top)
        .args(["-depth", "-exec", "touch", "-h", "-d", "2020-02-02 02:02:02.25", "{}", "+"])
        .status();
    assert!(aged.unwrap().success());
}

/// Mode, second of last change, owner, and content.
type Entry = (u32, i64, (u32, u32), Vec<u8>);

/// Everything that `rsync -a` keeps.
fn kept(top: &Path) -> BTreeMap<Vec<u8>, Entry> {
    let mut tree = BTreeMap::new();
    let mut todo = vec![top.to_owned()];
    while let Some(path) = todo.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let content = if stat.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_vec()
        } else if stat.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else {
            fs::read(&path).unwrap()
        };
        let name = path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec();
        tree.insert(name, (stat.mode(), stat.mtime(), (stat.uid(), stat.gid()), content));
    }
    tree
}

#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (kept(one), kept(other));
    let names = |tree: &BTreeMap<Vec<u8>, Entry>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&one), names(&other));
    for (name, entry) in &one {
        assert!(other[name] == *entry, "{} differs", name.escape_ascii());
    }
}

/// The last line of `--json`.
fn summary(ended: &Ended) -> serde_json::Value {
    let line = ended.stdout.lines().last().unwrap_or_default();
    let summary: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(summary["event"], "summary", "{ended:?}");
    summary
}

/// Names in `place` that no user has made.
fn temporaries(place: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![place.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.contains(".sshoal-") {
                found.push(name);
            }
            if path.symlink_metadata().unwrap().is_dir() {
                todo.push(path);
            }
        }
    }
    found
}
