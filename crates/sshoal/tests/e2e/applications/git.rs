//! git, which depends on true error numbers, atomic renames, links and exact `stat`s.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::process::succeed;
use crate::world::World;

/// Directories and files in each, of a repository of 2,100 files.
const DIRS: usize = 70;
const FILES: usize = 30;

/// git without the settings of whoever runs the test.
#[track_caller]
fn git(dir: &Path, words: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "gc.auto=0", "-C"]).arg(dir).args(words);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Test");
        command.env(format!("GIT_{who}_EMAIL"), "test@localhost");
    }
    succeed(&mut command)
}

fn make_repository(dir: &Path) {
    fs::create_dir(dir).unwrap();
    git(dir, &["init", "-q", "-b", "main"]);
    for sub in 0..DIRS {
        let sub = dir.join(format!("part{}/dir{sub}", sub % 7));
        fs::create_dir_all(&sub).unwrap();
        for file in 0..FILES {
            let lines =
                (0..file * 11 % 90).map(|line| format!("{}: {line} of {file}\n", sub.display()));
            fs::write(sub.join(format!("file{file}.txt")), lines.collect::<String>()).unwrap();
        }
    }
    std::os::unix::fs::symlink("part0", dir.join("link")).unwrap();
    git(dir, &["add", "."]);
    git(dir, &["commit", "-q", "-m", "first"]);
}

#[test]
fn a_repository_is_cloned_and_worked_in() {
    let world = World::new();
    let origin = world.local("origin");
    make_repository(&origin);
    let mount = world.mount(&[]);
    let clone = mount.at("clone");
    git(mount.place(), &["clone", "-q", origin.to_str().unwrap(), "clone"]);
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    assert_eq!(git(&clone, &["ls-files"]).lines().count(), DIRS * FILES + 1);

    // Many files changed, moved, made and removed at once.
    git(&clone, &["checkout", "-q", "-b", "work"]);
    git(&clone, &["mv", "part1", "moved"]);
    git(&clone, &["rm", "-q", "-r", "part2/dir2"]);
    for dir in 0..DIRS / 7 {
        let file = clone.join(format!("part3/dir{}/file7.txt", dir * 7 + 3));
        fs::write(&file, "another content\n").unwrap();
        fs::write(file.with_extension("new"), "a new file\n").unwrap();
    }
    git(&clone, &["add", "-A"]);
    git(&clone, &["commit", "-q", "-m", "second"]);
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    git(&clone, &["stash", "list"]);
    git(&clone, &["checkout", "-q", "main"]);
    git(&clone, &["merge", "-q", "--no-ff", "-m", "merged", "work"]);
    git(&clone, &["gc", "-q", "--prune=now"]);
    git(&clone, &["fsck", "--strict", "--no-progress"]);
    git(&clone, &["push", "-q", "origin", "work"]);
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    mount.unmount();

    // What is on the server is the same repository, and so it is after mounting again.
    let tree = git(&world.served("clone"), &["rev-parse", "main^{tree}"]);
    assert_eq!(tree, git(&origin, &["rev-parse", "work^{tree}"]));
    git(&world.served("clone"), &["fsck", "--strict", "--no-progress"]);
    let mount = world.mount(&[]);
    assert_eq!(git(&mount.at("clone"), &["status", "--porcelain"]), "");
    git(&mount.at("clone"), &["diff-index", "--quiet", "HEAD"]);
    git(&mount.at("clone"), &["checkout", "-q", "HEAD~1"]);
    assert_eq!(git(&mount.at("clone"), &["status", "--porcelain"]), "");
    mount.unmount();
}

/// Objects are made by linking and renaming, refs by locks that are files; none may be lost when
/// several processes do that.
#[test]
fn commits_of_several_worktrees_at_once() {
    let world = World::new();
    let mount = world.mount(&[]);
    let main = mount.at("main");
    fs::create_dir(&main).unwrap();
    git(&main, &["init", "-q", "-b", "main"]);
    git(&main, &["commit", "-q", "--allow-empty", "-m", "first"]);
    const WORKTREES: usize = 4;
    const COMMITS: usize = 10;
    std::thread::scope(|scope| {
        for number in 0..WORKTREES {
            let (name, place) = (format!("w{number}"), mount.at(format!("w{number}")));
            git(&main, &["worktree", "add", "-q", "-b", &name, place.to_str().unwrap()]);
            scope.spawn(move || {
                for commit in 0..COMMITS {
                    fs::write(place.join(format!("file{commit}")), format!("{number}")).unwrap();
                    git(&place, &["add", "-A"]);
                    git(&place, &["commit", "-q", "-m", "more"]);
                }
            });
        }
    });
    for number in 0..WORKTREES {
        let count = git(&main, &["rev-list", "--count", &format!("main..w{number}")]);
        assert_eq!(count, format!("{COMMITS}\n"));
    }
    git(&main, &["fsck", "--strict", "--no-progress"]);
    mount.unmount();
}
