//! All steps on an honest subject of each kind, and on one that lies.

use std::fs;

use super::*;
use crate::workload::tests::world::{STORAGE, Use, World, step, tiny};

fn small() -> Size {
    Size { random_file_bytes: 1 << 19, random_seconds: 0.1, ..tiny() }
}

/// Runs the steps that suit, in order; gives the ids of those that were measured.
fn run_all(world: &World, by: Use) -> Vec<(String, Measured)> {
    let mut measured = Vec::new();
    for step in Iozone::default().steps(&world.size) {
        if world.suits(&step, by) {
            let id = step.measure.id.clone();
            measured.push((id.clone(), world.run(&step, by).expect(&id)));
        }
    }
    measured
}

fn ids(measured: &[(String, Measured)]) -> Vec<&str> {
    measured.iter().map(|(id, _)| id.trim_start_matches("iozone.")).collect()
}

#[test]
fn every_kind_of_subject_does_what_it_can() {
    let world = World::of(&Iozone::default(), small());
    let all = ["write", "rewrite", "read", "reread", "random-read", "random-write"];
    let mounted = run_all(&world, Use::Mount(STORAGE));
    assert_eq!(ids(&mounted), all);
    let sftp = run_all(&world, Use::Sftp);
    assert_eq!(ids(&sftp), ["write", "rewrite", "read", "random-read", "random-write"]);
    for (id, measured) in mounted.iter().chain(&sftp) {
        assert!(measured.verified && measured.value > 0.0 && measured.seconds > 0.0, "{id}");
        let random = id.contains("random");
        assert_eq!(measured.latency.is_some(), random, "{id}");
        assert!(random || measured.bytes == world.size.file_bytes, "{id} {}", measured.bytes);
    }
    let left: Vec<_> = fs::read_dir(world.storage().join("iozone")).unwrap().collect();
    assert_eq!(left.len(), 2, "more than the files to read is left: {left:?}");
}

#[test]
fn a_step_without_the_one_before_is_not_tried() {
    let world = World::of(&Iozone::default(), small());
    for id in ["iozone.rewrite", "iozone.random-write"] {
        let step = step(&Iozone::default(), &world.size, id);
        let failure = world.run(&step, Use::Mount(STORAGE)).unwrap_err();
        assert!(matches!(failure, Failure::NotTried { .. }), "{failure}");
    }
}

#[test]
fn a_subject_that_shows_other_data_is_found() {
    let world = World::of(&Iozone::default(), small());
    let copy = world.copy_storage("copy");
    for file in [read_file(1 << 20), read_file(1 << 19)] {
        let mut bytes = fs::read(copy.join(&file)).unwrap();
        bytes[4096 * 50] ^= 1;
        fs::write(copy.join(&file), bytes).unwrap();
    }
    for id in ["iozone.read", "iozone.reread", "iozone.random-read"] {
        let step = step(&Iozone::default(), &world.size, id);
        let failure = world.run(&step, Use::Mount("copy")).unwrap_err();
        assert!(matches!(failure, Failure::WrongData { .. }), "{id}: {failure}");
    }
}

#[test]
fn a_subject_whose_writes_do_not_arrive_is_found() {
    let world = World::of(&Iozone::default(), small());
    world.copy_storage("copy");
    let write = step(&Iozone::default(), &world.size, "iozone.write");
    world.run(&write, Use::Mount("copy")).unwrap_err();
}

#[test]
fn the_expected_digest_goes_from_the_old_content_to_the_new() {
    let bytes = 40 * u64::from(BLOCK_BYTES);
    let order = Order::Random { seed: 1 };
    let whole = |seed| corpus::digest_content(seed, bytes);
    assert_eq!(digest_after(bytes, order, 0), whole(WRITE_SEEDS[1]));
    assert_eq!(digest_after(bytes, order, 40), whole(WRITE_SEEDS[2]));
    assert_eq!(digest_after(bytes, order, 1000), whole(WRITE_SEEDS[2]));
    let half = digest_after(bytes, order, 20);
    assert_ne!(half, digest_after(bytes, order, 21));
    assert_ne!(half, digest_after(bytes, Order::Random { seed: 2 }, 20));
}
