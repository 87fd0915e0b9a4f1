//! `--advise`: what it measures here, and what follows.

use rustix::process::Signal;

use super::ending::ended_at;
use super::scene::Scene;

#[test]
fn ciphers_are_measured_and_settings_judged() {
    let scene = Scene::new();
    let ended = scene.run(&["--quick", "--advise"]);
    assert_eq!(ended.status.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    // Every server of the last ten years has these ciphers.
    for words in [
        "chacha20-poly1305@openssh.com",
        "aes128-ctr",
        "loopback; server: OpenSSH_",
        "MB/s",
        "\nCiphers: ",
        "\nmax_conns: ",
        "\nCompression: ",
    ] {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
}

#[test]
fn advise_interrupted_in_the_middle_leaves_nothing_behind() {
    let scene = Scene::new();
    ended_at(&scene, "ciphers", Signal::INT, &["--advise"]);
}
