//! The steps over a directory that shows what is there, and over one that does not.

use std::fs;

use super::*;
use crate::results::SubjectInfo;
use crate::workload::tests::world::{STORAGE, Use, World, step, tiny};

fn size() -> Size {
    tiny()
}

fn run(world: &World, id: &str, shown: &'static str) -> Result<Measured, Failure> {
    world.run(&step(&Cache, &world.size, id), Use::Mount(shown))
}

const TREES: [&str; 4] = ["cache.first", "cache.remounted", "cache.again", "cache.revision"];
const LARGE_FILE: [&str; 3] = ["cache.large.first", "cache.large.remounted", "cache.large.random"];

#[test]
fn what_is_shown_right_is_measured() {
    let world = World::of(&Cache, size());
    for id in TREES.into_iter().chain(["cache.stat"]).chain(LARGE_FILE) {
        let measured = run(&world, id, STORAGE).expect(id);
        assert!(measured.verified && measured.value > 0.0, "{id}");
    }
    assert_eq!(run(&world, "cache.stat", STORAGE).unwrap().operations, 60);
}

#[test]
fn what_is_shown_wrong_is_found() {
    let world = World::of(&Cache, size());
    let shown = world.copy_storage("shown");
    for tree in [FIRST, SECOND] {
        fs::write(shown.join(tree).join("more"), "more").unwrap();
    }
    fs::write(shown.join(LARGE), vec![7; 1 << 20]).unwrap();
    for id in TREES.into_iter().chain(["cache.stat"]).chain(LARGE_FILE) {
        let failure = run(&world, id, "shown").expect_err(id);
        assert!(matches!(failure, Failure::WrongData { .. }), "{id}: {failure}");
    }
}

#[test]
fn another_revision_differs_in_few_files() {
    let world = World::of(&Cache, size());
    let tally = |tree: &str| Expected::load(&world.corpus(), tree).unwrap().0;
    let (first, second) = (tally(FIRST), tally(SECOND));
    assert_eq!(first.files, second.files);
    assert_ne!(first.digest, second.digest);
    assert!(second.bytes > first.bytes && second.bytes - first.bytes < 100);
}

#[test]
fn digests_are_asked_of_who_has_them_and_compared() {
    let concerned = |name: &str| {
        let info = SubjectInfo::new(name, "mount", "");
        let steps = Cache.steps(&size());
        steps.iter().any(|step| step.measure.id == "cache.digests" && step.concerns(&info))
    };
    assert!(!concerned("sshoal") && !concerned("sshfs") && !concerned("local"));
    if find_program("getfattr").is_none() || find_program("setfattr").is_none() {
        return;
    }
    assert!(concerned("sshoal:cache=disk") && concerned("sshoal:ro,cache=disk"));
    let world = World::of(&Cache, size());
    let told = fs::read_to_string(world.corpus().join(DIGESTS)).unwrap();
    assert_eq!(told.len(), 60 * 64);
    // A directory of this machine may have such attributes, if its file system has any.
    let set = |value: &str, which: &str| {
        let mut command = script(
            r#"cd -- "$1" && find . -type f -print0 | sort -z | xargs -0 -n 1 sh -c '
v=$1; [ "$v" ] || v=$(sha256sum <"$2" | cut -c 1-64); setfattr -n user.sha256 -v "$v" "$2"' sh "$2""#,
            &[world.storage().join(FIRST).join(which).as_os_str(), value.as_ref()],
        );
        command.output().unwrap().status.success()
    };
    if !set("", ".") {
        return;
    }
    let measured = run(&world, "cache.digests", STORAGE).unwrap();
    assert!(measured.verified && measured.operations == 60);
    assert!(set(&"0".repeat(64), "."));
    let failure = run(&world, "cache.digests", STORAGE).unwrap_err();
    assert!(matches!(failure, Failure::WrongData { .. }), "{failure}");
    assert!(set("short", "."));
    let failure = run(&world, "cache.digests", STORAGE).unwrap_err();
    assert!(matches!(failure, Failure::Failed { .. }), "{failure}");
}
