//! A server whose tar sends what nobody asked for.

use std::fs;

use sandbox::sshd::Options;

use super::{assert_same, ends, far, make_tree};
use crate::process::shell;
use crate::world::World;

/// Makes the archive `$1` of names that lead out of where it is unpacked, into `$2`.
const EVIL: &str = r#"
    outside=$2; at=$(mktemp -d); cd "$at"; echo evil > x; ln -s "$outside" l
    add() { tar -rPf "$1" --transform "s,^x$,$2,;s,^l$,$2,S" "$3"; }
    add "$1" ../evil x
    add "$1" ./../evil x
    add "$1" "$outside/evil" x
    add "$1" ./source/../../evil x
    add "$1" ./source/dir0/../../../evil x
    add "$1" ./source/planted l
    add "$1" ./source/planted/evil x
    add "$1" ./source/dir1 l
    add "$1" ./source/dir1/sub/file3 x
    rm -r "$at""#;

#[test]
fn cve_2025_45582_nothing_leaves_the_target_whatever_tar_sends() {
    let dir = tempfile::tempdir().unwrap();
    let (programs, archive) = (dir.path().join("programs"), dir.path().join("archive"));
    fs::create_dir(&programs).unwrap();
    let force = format!(
        "ForceCommand PATH={}:$PATH; export PATH; exec sh -c \"$SSH_ORIGINAL_COMMAND\"",
        programs.display()
    );
    let world = World::with(Options { settings: vec![force], ..Options::default() });
    let outside = world.local("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "precious").unwrap();
    shell(EVIL, &[&archive, &outside]);
    let fake = format!(
        "#!/bin/sh\n[ \"$1\" != --version ] || exec /bin/tar --version\ncat '{}'\n",
        archive.display()
    );
    sandbox::write_program(programs.join("tar"), fake).unwrap();
    make_tree(&world.served("source"));
    let from = far(&world, &world.served("source"));
    let around = world.local("around");
    fs::create_dir(&around).unwrap();
    let target = around.join("target");
    // Into a place where nothing is, and into one where something is.
    for spoiled in [false, true] {
        if spoiled {
            fs::remove_dir_all(target.join("source/dir1")).unwrap();
        }
        let words = [&from[..], target.to_str().unwrap(), "--engine", "tar", "--delete"];
        ends(&world, "pull", &words, 0);
        assert_same(&target.join("source"), &world.served("source"));
        let entries = |place| fs::read_dir(place).unwrap().count();
        assert_eq!((entries(&around), entries(&target), entries(&outside)), (1, 1, 1));
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"precious");
    }
}
