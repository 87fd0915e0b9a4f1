//! What is wrong with a command line is said before anything runs.

use std::fs;

use crate::world::World;

use super::scene::Scene;

#[test]
fn names_and_quantities() {
    let scene = Scene::new();
    for (words, said) in [
        (
            &["--work", "latncy"][..],
            "work 'latncy': there is no such work\n  did you mean 'latency'?",
        ),
        (&["--peers", "sshfz"], "there is no subject 'sshfz' (did you mean 'sshfs'?)"),
        (&["--size", "1Q"], "'1Q' is not a size such as 64M or 16G"),
        (&["--size", "0M"], "'0M' is not a size such as 64M or 16G"),
        (&["--size", "\u{1b}"], "'\\u{1b}' is not a size such as 64M or 16G"),
        (&["--size", "1K"], "less than a record"),
        (&["--tolerance", "much"], "'much' is not a percentage below 100, such as 10%"),
        (&["--link", "rtt=soon"], "--link 'rtt=soon'"),
        (&["--subject", "sshoal"], "not of the form NAME=COMMAND"),
        (&["--target", "=/mnt"], "not of the form NAME=DIR"),
        (&["--subject", "x=a 'b"], "not a command line"),
        (&["--subject", "x=/no/such/program"], "subject 'x': "),
        (&["--subject", "sshfs=true"], "subject 'sshfs': asked for twice"),
        (&["--reference", "nfs"], "reference 'nfs': not among the subjects: sshoal, sshfs"),
        (&["--no-sshoal", "--peers", "none"], "no subject is left to measure"),
        (&["--host", "@nobody"], "'@nobody' is no [user@]host[:dir]"),
        (&["--work", ","], "no work is left to do: none was named"),
        (&["--tree", "/no/such/dir"], "\"/no/such/dir\": No such file or directory"),
        (&["--build-tree", "/etc/passwd"], "\"/etc/passwd\": not a directory"),
        (&["--work", "build", "--build-tree", "/etc"], "/etc has neither Kbuild"),
        (&["--scratch", "/no/such/dir"], "\"/no/such/dir\": No such file or directory"),
        (&["--out", "/proc/nothing"], "--out '/proc/nothing'"),
        (&["--compare", "/no/such/file"], "\"/no/such/file\": No such file or directory"),
        (&["--size", "900T", "--work", "iozone"], "are free, and the works need"),
    ] {
        let stderr = scene.refusal(words);
        assert!(stderr.contains(said), "{words:?}: {stderr}");
        assert!(!stderr.contains("round 1"), "nothing was measured: {stderr}");
    }
}

#[test]
fn targets() {
    let scene = Scene::new();
    let plain = scene.path("plain");
    fs::create_dir(&plain).unwrap();
    let refused = |target: &str| scene.refusal(&["--peers", "none", "--target", target]);
    let stderr = refused(&format!("x={}", plain.display()));
    assert!(stderr.contains("is not a mount point"), "{stderr}");
    let stderr = refused(&format!("x={}", scene.path("none").display()));
    assert!(stderr.contains("No such file or directory"), "{stderr}");
    let world = World::new();
    let mount = world.mount(&["-o", "ro"]);
    let stderr = refused(&format!("x={}", mount.at("").display()));
    assert!(stderr.contains("read-only"), "{stderr}");
}

#[test]
fn a_host_that_does_not_answer() {
    let scene = Scene::new();
    // Nobody listens on the first port.
    let config = scene.path("config");
    fs::write(&config, "").unwrap();
    let config = config.to_str().unwrap();
    let words = ["--peers", "none", "--host", "127.0.0.1", "-p", "1", "-F", config];
    let stderr = scene.refusal(&words);
    assert!(stderr.contains("Connection refused"), "{stderr}");
}
