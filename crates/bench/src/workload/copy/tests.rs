//! Each step over a directory of the local disk: right when all is right, and never when not.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::*;
use crate::results::SubjectInfo;
use crate::workload::tests::world::{STORAGE, Use, World, step, tiny};

#[test]
fn every_step_is_right_over_the_disk_itself() {
    let world = World::of(&Copy, tiny());
    for step in Copy.steps(&world.size) {
        let id = step.measure.id.clone();
        let measured = world.run(&step, Use::Mount(STORAGE)).expect(&id);
        assert!(measured.verified && measured.operations > 60, "{id}: {measured:?}");
    }
    let left = fs::read_dir(world.storage().join("copy")).unwrap().count();
    assert_eq!(left, 2, "nothing but both trees is left");
}

#[test]
fn one_file_in_a_hundred_is_longer_and_younger() {
    let size = Size { tree_files: 250, ..tiny() };
    let world = World::of(&Copy, size);
    let mut changed = 0;
    let mut todo = vec![world.corpus().join(SOURCE)];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            let below = path.strip_prefix(world.corpus().join(SOURCE)).unwrap();
            let other = world.corpus().join(CHANGED).join(below).symlink_metadata().unwrap();
            if stat.is_dir() {
                todo.push(path);
            } else if stat.len() != other.len() {
                assert_eq!((other.len(), other.mtime()), (stat.len() + 8, stat.mtime() + 86_400));
                changed += 1;
            } else {
                assert_eq!(stat.mtime(), other.mtime(), "{}", path.display());
            }
        }
    }
    assert_eq!(changed, 3);
}

#[test]
fn a_copy_that_is_not_brought_up_to_date_is_found() {
    let world = World::of(&Copy, tiny());
    // It leaves alone what is there.
    for id in ["copy.out.changed", "copy.in.changed"] {
        let ran = world.run(&step(&Copy, &world.size, id), Use::Copy("-an"));
        assert!(ran.is_err(), "{id}");
    }
}

#[test]
fn programs_that_copy_everything_are_asked_for_one_copy() {
    let steps = Copy.steps(&tiny());
    let of = |subject: &SubjectInfo| steps.iter().filter(|step| step.concerns(subject)).count();
    for (name, count) in [
        ("scp", 2),
        ("scp:ssh_command=/opt/hpn/bin/ssh", 2),
        ("scp:Compression=no", 2),
        ("hpnssh", 2),
        ("tar", 2),
        ("sshoal-copy:tar", 2),
        ("sshoal-copy:tar:ssh_command=hpnssh", 2),
        ("rsync", 6),
        ("rsync:-W", 6),
        ("rsync:ssh_command=hpnssh", 6),
        ("sshoal-copy", 6),
        ("sshoal-copy:sftp", 6),
    ] {
        let subject = SubjectInfo::new(name, "copy", "");
        assert_eq!(of(&subject), count, "{name}");
        let control = format!("{name} (control)");
        let control = SubjectInfo { name: control, control_of: Some(name.to_owned()), ..subject };
        assert_eq!(of(&control), count, "the control of {name}");
    }
}
