//! Command lines that make no sense, and what they are told.

use super::{ends, far};
use crate::process::run;
use crate::world::{World, program};

#[test]
fn wrong_arguments_exit_with_a_hint_and_code_2() {
    for (words, said) in [
        (&["pull", "a", "b"][..], "on another machine\n"),
        (&["pull", "h:a", "h:b"], "on this machine\n"),
        (&["push", "a", "b"], "on another machine\n"),
        (&["push", "h:a", "h:b"], "on this machine\n"),
        (&["pull", "h:a"], "usage: sshoal pull"),
        (&["pull", "--bogus", "h:a", "b"], "--bogus"),
        (&["pull", "-o", "cache=disk,offline", "h:a", "b"], "a copy contacts the host"),
        (&["pull", "--max-delete", "3", "h:a", "b"], "--delete"),
        (&["pull", "-q", "-v", "h:a", "b"], "cannot be used with"),
        (&["pull", "--engine", "tar", "-n", "h:a", "b"], "--dry-run"),
        (&["pull", "--compress", "lzma", "h:a", "b"], "auto, never, zstd or gzip"),
        (&["pull", "-o", "nonsense=1", "h:a", "b"], "nonsense"),
        (&["pull", "h:a=ro", "b"], "for mounts"),
        (&["pull", "--uid-map", "x", "h:a", "b"], "two numbers"),
        (&["pull", "--exclude", "a[", "h:a", "b"], "a [ has no ]"),
    ] {
        let ended = run(program().args(words));
        assert_eq!(ended.status.code(), Some(2), "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(said), "{words:?}: {ended:?}");
        assert_eq!(ended.stdout, "");
    }
    for way in ["pull", "push"] {
        let help = run(program().args([way, "--help"]));
        assert_eq!(help.status.code(), Some(0));
        assert!(help.stdout.contains("Exit status:"), "{help:?}");
    }
}

#[test]
fn a_missing_source_is_an_error() {
    let world = World::new();
    let to = world.local("to");
    let to = to.to_str().unwrap();
    let missing = far(&world, &world.served("missing"));
    let ended = ends(&world, "pull", &[&missing, to], 1);
    assert!(ended.stderr.contains("No such file or directory"), "{ended:?}");
    let ended = ends(&world, "pull", &[&format!("{missing}/in/it"), to], 3);
    assert!(ended.stderr.contains("no such directory"), "{ended:?}");
    let ended = ends(&world, "push", &[&format!("{to}-not"), &missing], 1);
    assert!(ended.stderr.contains("No such file or directory"), "{ended:?}");
    let deep = format!("{to}/not/there");
    let ended = ends(&world, "pull", &[&far(&world, &world.served("")), &deep], 3);
    assert!(ended.stderr.contains("target '"), "{ended:?}");
}
