//! All steps on an honest subject of each kind, and one by one.

use super::*;
use crate::failure::Failure;
use crate::workload::tests::world::{STORAGE, Use, World, step, tiny};

fn small() -> Size {
    Size { random_seconds: 0.5, metadata_files: 50, ..tiny() }
}

#[test]
fn every_kind_is_counted() {
    let world = World::of(&Metadata::default(), small());
    for by in [Use::Mount(STORAGE), Use::Sftp] {
        for step in Metadata::default().steps(&world.size) {
            let id = step.measure.id.clone();
            let measured = world.run(&step, by).expect(&id);
            assert!(measured.verified, "{id}");
            assert_eq!(measured.operations, 50, "{id}");
            assert_eq!(measured.value, 50.0 / measured.seconds, "{id}");
        }
    }
}

#[test]
fn nothing_is_removed_that_was_not_made() {
    let world = World::of(&Metadata::default(), small());
    for id in ["metadata.unlink", "metadata.rmdir"] {
        let step = step(&Metadata::default(), &world.size, id);
        let failure = world.run(&step, Use::Mount(STORAGE)).unwrap_err();
        assert!(matches!(failure, Failure::NotTried { .. }), "{failure}");
    }
}
