//! The four jobs on an honest subject, and on subjects that lie.

use std::fs;

use super::*;
use crate::failure::Failure;
use crate::size::{Extent, FioSize};
use crate::workload::tests::world::{STORAGE, Use, World, step, tiny};

fn small() -> Size {
    Size { fio: FioSize::of(2 << 20), random_seconds: 0.1, ..tiny() }
}

#[test]
fn the_jobs_are_measured_and_verified() {
    let world = World::of(&Fio, small());
    for by in [Use::Mount(STORAGE), Use::Sftp] {
        // Twice, since a job writes over what one before it has left.
        for step in Fio.steps(&world.size).iter().chain(&Fio.steps(&world.size)) {
            let measure = step.measure.clone();
            let measured = world.run(step, by).expect(&measure.id);
            assert!(measured.verified && measured.value > 0.0, "{}", measure.id);
            assert!((0.1..10.0).contains(&measured.seconds), "{} s", measured.seconds);
            let per_second = measured.operations as f64 / measured.seconds;
            match measure.unit {
                Unit::PerSecond => {
                    assert_eq!(measured.value, per_second);
                    let latency = measured.latency.unwrap();
                    assert!(latency.count > 0 && latency.p50_us > 0.0);
                }
                _ => assert!((measured.value / per_second / 131_072.0 - 1.0).abs() < 0.001),
            }
        }
    }
}

#[test]
fn jobs_of_the_whole_file_visit_each_record_once_in_the_published_order() {
    let fio = FioSize { jobs: Extent::Whole, ..small().fio };
    let world = World::of(&Fio, Size { fio, ..small() });
    for by in [Use::Mount(STORAGE), Use::Sftp] {
        let mut ids = Vec::new();
        for step in Fio.steps(&world.size) {
            let measure = step.measure.clone();
            let measured = world.run(&step, by).expect(&measure.id);
            assert!(measured.verified && measured.value > 0.0, "{}", measure.id);
            assert_eq!(measured.bytes, 2 << 20, "{}", measure.id);
            let record = if measure.id.contains("rand") { 4 << 10 } else { 128 << 10 };
            assert_eq!(measured.operations, (2 << 20) / record, "{}", measure.id);
            ids.push(measure.id);
        }
        let published = ["fio.write-all", "fio.read-all", "fio.randwrite-all", "fio.randread-all"];
        assert_eq!(ids, published);
    }
    let fio = FioSize { jobs: Extent::Both, ..small().fio };
    assert_eq!(Fio.steps(&Size { fio, ..small() }).len(), 8);
}

/// A short record at the end of the file would be counted as a whole one.
#[test]
fn a_file_of_the_least_length_is_verified() {
    let bytes = Size::whole_records(200 << 10);
    let size = Size { fio: FioSize { jobs: Extent::Both, ..FioSize::of(bytes) }, ..small() };
    let world = World::of(&Fio, size);
    for step in Fio.steps(&world.size) {
        let measured = world.run(&step, Use::Mount(STORAGE)).expect(&step.measure.id);
        assert!(measured.verified, "{}", step.measure.id);
    }
}

#[test]
fn a_subject_that_shows_other_data_is_found() {
    let world = World::of(&Fio, small());
    let file = world.copy_storage("copy").join(READ_FILE);
    let zeros = vec![0; 2 << 20];
    fs::write(file, zeros).unwrap();
    for id in ["fio.read", "fio.randread"] {
        let failure = world.run(&step(&Fio, &world.size, id), Use::Mount("copy")).unwrap_err();
        assert!(matches!(failure, Failure::WrongData { .. }), "{id}: {failure}");
    }
}

#[test]
fn a_subject_whose_writes_do_not_arrive_is_found() {
    let world = World::of(&Fio, small());
    world.copy_storage("copy");
    for id in ["fio.write", "fio.randwrite"] {
        let failure = world.run(&step(&Fio, &world.size, id), Use::Mount("copy")).unwrap_err();
        let why = failure.to_string();
        assert!(why.contains("were written, and 0 have changed"), "{id}: {why}");
    }
}

#[test]
fn a_name_with_a_colon_is_one_file() {
    let world = World::of(&Fio, small());
    fs::rename(world.copy_storage("copy"), world.dir.path().join("a:b")).unwrap();
    world.run(&step(&Fio, &world.size, "fio.read"), Use::Mount("a:b")).unwrap();
}

#[test]
fn no_more_blocks_change_than_there_are() {
    let changed = |shape: Shape, writes| shape.changed_blocks(1 << 20, writes);
    assert_eq!(changed(RANDOM, 0), 0);
    assert_eq!(changed(RANDOM, 255), 255);
    assert_eq!(changed(RANDOM, 256), 256);
    assert_eq!(changed(RANDOM, 1_000_000), 256);
    assert_eq!(changed(SEQUENTIAL, 3), 96);
    assert_eq!(changed(SEQUENTIAL, 9), 256);
}
