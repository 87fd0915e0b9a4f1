//! All steps on an honest subject of each kind, and on one that lies.

use std::fs;

use super::*;
use crate::failure::Failure;
use crate::size::Extent;
use crate::workload::tests::world::{STORAGE, Use, World, step, tiny};

/// Files of different lengths, so that the random tests need one of their own.
fn small() -> Size {
    let iozone = IozoneSize { random_bytes: 1 << 19, ..IozoneSize::of(1 << 20) };
    Size { iozone, random_seconds: 0.1, ..tiny() }
}

/// As published: the whole file, through the page cache.
fn whole(random: Extent) -> Size {
    let size = small();
    Size { iozone: IozoneSize { random, ..size.iozone }, ..size }
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
        let whole = world.size.iozone.sequential_bytes;
        assert!(random || measured.bytes == whole, "{id} {}", measured.bytes);
    }
    assert_nothing_is_left(&world);
}

/// Nothing but the files to read.
fn assert_nothing_is_left(world: &World) {
    let left = fs::read_dir(world.storage().join("iozone")).unwrap();
    let mut left: Vec<_> =
        left.map(|entry| Path::new("iozone").join(entry.unwrap().file_name())).collect();
    let mut expected = Iozone::default().data(&world.size);
    left.sort();
    expected.sort();
    assert_eq!(left, expected);
}

#[test]
fn the_whole_file_is_read_and_written_at_random_places() {
    for (random, ids) in [
        (Extent::Whole, ["random-read-all", "random-write-all"].as_slice()),
        (Extent::Both, &["random-read", "random-read-all", "random-write", "random-write-all"]),
    ] {
        let world = World::of(&Iozone::default(), whole(random));
        for by in [Use::Mount(STORAGE), Use::Sftp] {
            let measured = run_all(&world, by);
            let at_random = measured.iter().filter(|(id, _)| id.contains("random"));
            let at_random: Vec<_> = at_random.cloned().collect();
            assert_eq!(self::ids(&at_random), ids);
            for (id, measured) in at_random.iter().filter(|(id, _)| id.ends_with("-all")) {
                assert_eq!((measured.operations, measured.bytes), (128, 1 << 19), "{id}");
                assert!(measured.verified && measured.latency.is_some(), "{id}");
                assert_eq!(measured.value, 128.0 / measured.seconds);
            }
        }
        assert_nothing_is_left(&world);
    }
}

#[test]
fn a_last_record_that_is_a_part_and_equal_lengths_are_right_too() {
    let iozone = IozoneSize { random: Extent::Both, ..IozoneSize::of((1 << 19) + 4096) };
    let world = World::of(&Iozone::default(), Size { iozone, random_seconds: 0.1, ..tiny() });
    let measured = run_all(&world, Use::Mount(STORAGE));
    assert_eq!(measured.len(), 8);
    let operations =
        |id: &str| measured.iter().find(|(measured, _)| measured == id).unwrap().1.operations;
    assert_eq!((operations("iozone.read"), operations("iozone.random-write-all")), (9, 129));
}

#[test]
fn data_that_compress_are_for_named_subjects_and_have_their_own_files() {
    let size = small();
    let iozone = IozoneSize { compressible_for: &["fake", "sshfs", "sshfs:opt4"], ..size.iozone };
    let world = World::of(&Iozone::default(), Size { iozone, ..size });
    let measured = run_all(&world, Use::Mount(STORAGE));
    assert_eq!(measured.len(), 12);
    for (id, measured) in &measured[6..] {
        assert!(id.starts_with("iozone.compressible.") && measured.verified, "{id}");
    }
    assert_nothing_is_left(&world);
    let concerned = |name: &str, id: &str| {
        let step = step(&Iozone::default(), &world.size, id);
        step.concerns(&SubjectInfo::new(name, "mount", ""))
    };
    let compressible = |name| concerned(name, "iozone.compressible.read");
    assert!(compressible("sshfs") && compressible("sshfs:opt4") && !compressible("sshfs:opt1"));
    assert!(concerned("sshfs:opt1", "iozone.read"));
    let control = SubjectInfo {
        control_of: Some("sshfs".to_owned()),
        ..SubjectInfo::new("sshfs (control)", "mount", "")
    };
    let step_of = |id| step(&Iozone::default(), &world.size, id);
    assert!(step_of("iozone.compressible.read").concerns(&control));
    let copy = world.copy_storage("copy");
    fs::copy(copy.join("iozone/read-1048576"), copy.join("iozone/compressible.read-1048576"))
        .unwrap();
    let step = step(&Iozone::default(), &world.size, "iozone.compressible.read");
    let failure = world.run(&step, Use::Mount("copy")).unwrap_err();
    assert!(matches!(failure, Failure::WrongData { .. }), "{failure}");
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
    for file in [1 << 20, 1 << 19].map(|bytes| Data::Incompressible.read_file(bytes)) {
        let mut bytes = fs::read(copy.join(&file)).unwrap();
        // In each block, since a timed test on a busy machine visits few of them.
        bytes.chunks_mut(4096).for_each(|block| block[4000] ^= 1);
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
    let bytes = 40 * content::BLOCK_BYTES as u64;
    let after = |seed, operations| {
        let target = Target::Path(PathBuf::new());
        let transfer = Transfer::at_random(target, bytes, seed, Until::Pass);
        digest_after(Data::Incompressible, &transfer, operations)
    };
    let whole = |seed| corpus::digest_content(seed, bytes);
    assert_eq!(after(1, 0), whole(WRITE_SEEDS[1]));
    assert_eq!(after(1, 40), whole(WRITE_SEEDS[2]));
    assert_eq!(after(1, 1000), whole(WRITE_SEEDS[2]));
    assert_ne!(after(1, 20), after(1, 21));
    assert_ne!(after(1, 20), after(2, 20));
}
