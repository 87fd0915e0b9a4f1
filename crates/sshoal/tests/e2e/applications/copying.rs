//! rsync, tar, cp, mv, rm, find, du.

use std::fs;
use std::path::Path;

use super::tree;
use crate::process::shell;
use crate::world::World;

/// Compares bytes and link targets, which diff does, and kinds, permissions, times and names,
/// which rsync does.
#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    assert_same_but(one, other, "");
}

/// The same after names were moved out of directories and back, which leaves its time there.
#[track_caller]
fn assert_same_but_times_of_directories(one: &Path, other: &Path) {
    assert_same_but(one, other, "--omit-dir-times");
}

#[track_caller]
fn assert_same_but(one: &Path, other: &Path, words: &str) {
    let differences = shell("diff -r --no-dereference \"$1\" \"$2\"", &[one, other]);
    assert_eq!(differences, "");
    let script = format!("rsync -ani --delete {words} \"$1\"/ \"$2\"/");
    assert_eq!(shell(&script, &[one, other]), "");
}

#[test]
fn rsync_there_and_back() {
    let world = World::new();
    let (source, back) = (world.local("source"), world.local("back"));
    tree::make(&source);
    let mount = world.mount(&[]);
    shell("rsync -a \"$1\"/ \"$2\"", &[&source, &mount.at("copy")]);
    let differences =
        shell("rsync -aci --delete --dry-run \"$1\"/ \"$2\"", &[&source, &mount.at("copy")]);
    assert_eq!(differences, "");
    mount.unmount();
    assert_same(&source, &world.served("copy"));

    let mount = world.mount(&[]);
    shell("rsync -a \"$1\"/ \"$2\"", &[&mount.at("copy"), &back]);
    mount.unmount();
    assert_same(&source, &back);
}

/// What rsync does when something has changed: a new file beside the old one takes its name, or
/// the old one is changed in place.
#[test]
fn rsync_brings_a_copy_up_to_date() {
    let world = World::new();
    let source = world.local("source");
    tree::make(&source);
    let mount = world.mount(&[]);
    let copy = mount.at("copy");
    shell("rsync -a \"$1\"/ \"$2\"", &[&source, &copy]);
    for words in ["", "--inplace --no-whole-file", "--no-whole-file"] {
        let script = "
            cd \"$1\"
            for file in d0/e*/f*/file-1.c sizes/3000001; do echo \"$3\" >>\"$file\"; done
            rm -r d1/e1; mkdir d1/e1; echo new >d1/e1/new; mv d2 d2-moved; mv d2-moved d2
        ";
        shell(script, &[&source, &copy, Path::new(words)]);
        shell(&format!("rsync -a --delete {words} \"$1\"/ \"$2\""), &[&source, &copy]);
        assert_same(&source, &copy);
        assert_same(&source, &world.served("copy"));
    }
    mount.unmount();
}

#[test]
fn tar_in_and_out() {
    let world = World::new();
    let (source, back) = (world.local("source"), world.local("back"));
    tree::make(&source);
    fs::create_dir(&back).unwrap();
    let mount = world.mount(&[]);
    let copy = mount.at("copy");
    fs::create_dir(&copy).unwrap();
    shell("tar -C \"$1\" -cf - . | tar -C \"$2\" -xpf -", &[&source, &copy]);
    assert_same(&source, &copy);
    // An archive that lies in the mount, and tar's own comparison.
    shell("tar -C \"$1\" -cf \"$2\" .", &[&source, &mount.at("archive")]);
    shell("tar -C \"$1\" -df \"$2\"", &[&copy, &mount.at("archive")]);
    mount.unmount();
    assert_same(&source, &world.served("copy"));

    let mount = world.mount(&[]);
    shell("tar -C \"$1\" -cf - . | tar -C \"$2\" -xpf -", &[&mount.at("copy"), &back]);
    mount.unmount();
    assert_same(&source, &back);
}

#[test]
fn trees_are_copied_moved_and_removed_inside_of_a_mount() {
    let world = World::new();
    tree::make(&world.served("source"));
    let mount = world.mount(&[]);
    shell("cp -a \"$1\" \"$2\"", &[&mount.at("source"), &mount.at("copy")]);
    assert_same(&world.served("source"), &world.served("copy"));
    // A directory's new name holds for all below it at once.
    shell("mv \"$1\" \"$2\"", &[&mount.at("copy/d0"), &mount.at("copy/empty/moved")]);
    shell("mv \"$1\" \"$2\"", &[&mount.at("copy"), &mount.at("other")]);
    assert_same(&mount.at("source/d0"), &mount.at("other/empty/moved"));
    assert!(!world.served("copy").exists() && !mount.at("other/d0").exists());
    shell("mv \"$1\" \"$2\"", &[&mount.at("other/empty/moved"), &mount.at("other/d0")]);
    assert_same_but_times_of_directories(&world.served("source"), &world.served("other"));
    // To another file system and back, where mv copies and removes.
    shell("mv \"$1\" \"$2\"", &[&mount.at("other"), &world.local("away")]);
    assert!(!world.served("other").exists());
    assert_same_but_times_of_directories(&world.served("source"), &world.local("away"));
    shell("mv \"$1\" \"$2\"", &[&world.local("away"), &mount.at("other")]);
    assert_same_but_times_of_directories(&mount.at("source"), &mount.at("other"));

    shell("rm -rf \"$1\" \"$2\"", &[&mount.at("other"), &mount.at("source")]);
    assert_eq!(fs::read_dir(mount.place()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(world.served("")).unwrap().count(), 0);
    mount.unmount();
}

/// What walks a tree sees there what it sees on the server.
#[test]
fn find_and_du_see_the_server_s_tree() {
    let world = World::new();
    tree::make(&world.served("source"));
    let mount = world.mount(&[]);
    let walks = [
        "find . | LC_ALL=C sort",
        "find . -type l -printf '%p %l\\n' | LC_ALL=C sort",
        "find . -type f -size +3k -perm 600 -newermt 2001-09-09 -printf '%p %s %m %Ts\\n' | LC_ALL=C sort",
        "find . -name '*.c' -print0 | xargs -0 cat | cksum",
        "find . -xtype l | LC_ALL=C sort",
        "find . -empty | LC_ALL=C sort",
        "du -ab --time . | LC_ALL=C sort -k 4",
        // Without what SFTP does not tell: link counts and blocks.
        "ls -lAR --time-style=+%s . | grep -v ^total | sed 's/^\\([-dlrwx]*\\) *[0-9]* /\\1 /'",
        "grep -rlc pattern . || :",
    ];
    for walk in walks {
        let seen = shell(&format!("cd \"$1\"; {walk}"), &[&mount.at("source")]);
        let there = shell(&format!("cd \"$1\"; {walk}"), &[&world.served("source")]);
        assert_eq!(seen, there, "{walk}");
    }
    mount.unmount();
}
