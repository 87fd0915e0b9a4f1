//! All steps on an honest subject of each kind, and on one that lies.

use std::fs;

use super::*;
use crate::workload::tests::world::{STORAGE, Use, World, step, tiny};

fn small() -> Size {
    Size { random_seconds: 0.5, latency_operations: 40, ..tiny() }
}

#[test]
fn every_operation_is_timed() {
    let world = World::of(&Latency::default(), small());
    for by in [Use::Mount(STORAGE), Use::Sftp] {
        for step in Latency::default().steps(&world.size) {
            if !world.suits(&step, by) {
                continue;
            }
            let measure = step.measure.clone();
            let measured = world.run(&step, by).expect(&measure.id);
            let latency = measured.latency.unwrap();
            assert_eq!(measured.value, latency.p50_us);
            let expected = if measure.id.starts_with("latency.list") { 10 } else { 40 };
            assert_eq!(latency.count, expected, "{}", measure.id);
            assert!(measured.verified && latency.p50_us > 0.0, "{}", measure.id);
        }
    }
    let left: Vec<_> = fs::read_dir(world.storage().join("names")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let copied = fs::read_dir(world.storage().join("latency")).unwrap();
    let copied = copied.filter(|entry| {
        entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("copied")
    });
    assert_eq!(copied.count(), 0);
}

#[test]
fn changes_at_the_server_are_made_only_on_this_machine() {
    let here = crate::storage::Directory::new("storage", "/nonexistent");
    let there = here.clone().mounted();
    let steps = Latency::default().steps(&small());
    let left_out: Vec<&str> = steps
        .iter()
        .filter(|step| step.suits_storage(&here) && !step.suits_storage(&there))
        .map(|step| step.measure.id.as_str())
        .collect();
    assert_eq!(left_out, ["latency.see-change"]);
}

#[test]
fn copies_that_are_not_under_way_are_no_company() {
    let world = World::of(&Latency::default(), small());
    let copy = world.copy_storage("copy");
    fs::remove_file(copy.join(LARGE)).unwrap();
    let step = step(&Latency::default(), &world.size, "latency.list-beside");
    let failure = world.run(&step, Use::Mount("copy")).unwrap_err();
    assert!(failure.to_string().contains("before its time"), "{failure}");
}

#[test]
fn a_subject_that_shows_something_else_is_found() {
    let world = World::of(&Latency::default(), small());
    let copy = world.copy_storage("copy");
    fs::write(copy.join(MANY).join("file-000007"), "x").unwrap();
    fs::write(copy.join(MANY).join("absent-000007"), "").unwrap();
    fs::write(copy.join(LISTED).join("dir-000003/stranger"), "").unwrap();
    fs::write(copy.join(LARGE), vec![0; 1 << 20]).unwrap();
    for id in ["stat-unknown", "stat-known", "stat-absent", "list", "read-4k"] {
        let step = step(&Latency::default(), &world.size, &format!("latency.{id}"));
        let failure = world.run(&step, Use::Mount("copy")).unwrap_err();
        assert!(matches!(failure, Failure::WrongData { .. }), "{id}: {failure}");
    }
}

#[test]
fn a_subject_whose_changes_do_not_arrive_is_found() {
    let world = World::of(&Latency::default(), small());
    fs::create_dir(world.copy_storage("copy").join("names")).unwrap();
    for id in ["create", "mkdir"] {
        let step = step(&Latency::default(), &world.size, &format!("latency.{id}"));
        world.run(&step, Use::Mount("copy")).unwrap_err();
    }
}

#[test]
fn nothing_is_removed_that_was_not_made() {
    let world = World::of(&Latency::default(), small());
    for id in ["latency.unlink", "latency.rmdir"] {
        let step = step(&Latency::default(), &world.size, id);
        let failure = world.run(&step, Use::Mount(STORAGE)).unwrap_err();
        assert!(matches!(failure, Failure::NotTried { .. }), "{failure}");
    }
}
