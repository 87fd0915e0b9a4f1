//! `--advise`: what it measures here, and what follows.

use rustix::process::Signal;

use super::ending::ended_at;
use super::scene::{Scene, read};

#[test]
fn ciphers_are_measured_and_settings_judged() {
    let scene = Scene::new();
    let out = scene.path("out");
    let ended = scene.run(&["--quick", "--advise", "--out", out.to_str().unwrap()]);
    assert_eq!(ended.status.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    let json = read(out.join("advice.json"));
    // Every server of the last ten years has these, and a private one is here.
    for words in ["chacha20-poly1305@openssh.com", "aes128-ctr", r#""path": "loopback""#] {
        assert!(json.contains(words), "{words}: {json}");
    }
    assert!(!json.contains(r#""ciphers": []"#) && !json.contains(r#""items": []"#), "{json}");
    let settings = json.lines().filter_map(|line| line.trim().strip_prefix(r#""setting": ""#));
    for setting in settings.map(|line| line.trim_end_matches(['"', ','])) {
        assert!(ended.stdout.contains(setting), "{setting}: {}", ended.stdout);
    }
    assert!(ended.stdout.contains("MB/s"), "{}", ended.stdout);
    assert!(ended.stdout.contains("advice.json"), "{}", ended.stdout);
}

#[test]
fn advise_interrupted_in_the_middle_leaves_nothing_behind() {
    let scene = Scene::new();
    ended_at(&scene, "ciphers", Signal::INT, &["--advise"]);
    assert!(!scene.path("out").join("advice.json").exists());
}
