//! Peers that fail, hang or lie: told of as such, and the run goes on.

use bench::failure::Failure;

use super::scene::{Scene, assert_all_measured, outcomes};

/// For a peer that hangs: the deadline is waited for, and sshoal has to do better.
const HANGING: [&str; 4] = ["--work", "files", "--deadline", "6"];

/// One fake beside sshoal, and a run that ends with this code.
#[track_caller]
fn with_fake(scene: &Scene, code: i32, fake: &str, words: &[&str]) -> bench::results::Results {
    let words = [&["--peers", "none", "--subject", fake], words].concat();
    let (results, ended) = scene.results(code, &words);
    assert_all_measured(&results, "sshoal");
    assert!(ended.stderr.contains("fake: "), "{}", ended.stderr);
    results
}

#[test]
fn one_that_fails_to_mount() {
    let scene = Scene::new();
    let fake = scene.script("fake", "echo 'no such luck' >&2; exit 1");
    let results = with_fake(&scene, 0, &fake, &["--work", "files"]);
    let (measured, failures) = outcomes(&results, "fake");
    assert_eq!(measured, 0);
    assert!(failures[0].to_string().contains("no such luck"), "{failures:?}");
    assert!(matches!(failures.last(), Some(Failure::NotTried { .. })), "{failures:?}");
}

#[test]
fn one_that_never_mounts() {
    let scene = Scene::new();
    let fake = scene.script("fake", "exec sleep 1000");
    let results = with_fake(&scene, 0, &fake, &HANGING);
    let (measured, failures) = outcomes(&results, "fake");
    assert_eq!(measured, 0);
    assert!(matches!(failures[0], Failure::TimedOut { .. }), "{failures:?}");
}

#[test]
fn one_that_shows_wrong_data() {
    let scene = Scene::new();
    // Mounts a copy in which a byte of each file is another one.
    let fake = scene.script(
        "fake",
        r#"
for word; do
    shift
    case $word in
        *:/*)
            dir=${word#*:}
            rm -rf "$dir.copy" && cp -r "$dir" "$dir.copy"
            find "$dir.copy" -type f -size +0 | while read -r file; do
                printf '\377\376\375' | dd of="$file" bs=1 seek=5000 conv=notrunc 2>/dev/null
            done
            word=$word.copy
            ;;
    esac
    set -- "$@" "$word"
done
exec "$sshoal" "$@""#,
    );
    let results = with_fake(&scene, 3, &fake, &["--work", "iozone"]);
    let (_, failures) = outcomes(&results, "fake");
    let is_wrong = |failure: &&Failure| matches!(failure, Failure::WrongData { .. });
    let of_read = results
        .samples
        .iter()
        .find(|sample| sample.subject == "fake" && sample.measure == "iozone.read");
    assert!(failures.iter().any(is_wrong), "{failures:?}");
    let outcome = &of_read.unwrap().outcome;
    assert!(matches!(outcome, bench::results::Outcome::Failed { failure } if is_wrong(&failure)));
}

#[test]
fn one_that_hangs_once_it_is_mounted() {
    let scene = Scene::new();
    let fake = scene.script(
        "fake",
        r#"
"$sshoal" "$@" &
for mountpoint; do :; done
until grep -q " $mountpoint " /proc/self/mountinfo; do sleep 0.01; done
kill -STOP $!
wait"#,
    );
    let results = with_fake(&scene, 0, &fake, &HANGING);
    // A step may have ended before the daemon was stopped.
    let (_measured, failures) = outcomes(&results, "fake");
    let timed_out = |failure: &&&Failure| matches!(failure, Failure::TimedOut { .. });
    assert_eq!(failures.iter().filter(timed_out).count(), 2, "{failures:?}");
}

#[test]
fn one_that_is_not_installed_is_left_out_with_the_package_to_install() {
    let scene = Scene::new();
    let out = scene.path("out");
    let mut command = scene.command(&["--quick", "--rounds", "1", "--work", "files"]);
    command.args(["--peers", "sshfs,tar"]).arg("--out").arg(&out);
    command.env("PATH", scene.path_without(&["sshfs"]));
    let ended = crate::process::run(&mut command);
    assert_eq!(ended.status.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    scene.assert_clean();
    let results = bench::run::read(&out).unwrap();
    let left_out = results.left_out.iter().find(|left_out| left_out.name == "sshfs").unwrap();
    assert_eq!(left_out.remedy.as_deref(), Some("install the package sshfs"));
    assert!(ended.stderr.contains("left out: sshfs: "), "{}", ended.stderr);
    assert_all_measured(&results, "sshoal");
}

#[test]
fn without_any_peer_bench_warns_and_continues() {
    let scene = Scene::new();
    let (results, ended) = scene.results(0, &["--peers", "none", "--work", "files"]);
    assert!(ended.stderr.contains("there is no peer to compare with"), "{}", ended.stderr);
    assert_eq!(results.subjects.len(), 1);
}
