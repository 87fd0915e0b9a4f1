//! Each step over a directory of the local disk: right when all is right, and never when not.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use tempfile::TempDir;

use super::*;
use crate::corpus::tree::RARE_WORD;
use crate::measure::Cache;
use crate::workload::tests::world::{STORAGE, Use, World, step, tiny};

fn normal() -> Size {
    let mut size = Size::of(Scale::Normal);
    size.tree_files = 60;
    size
}

/// A file of the tree that has the rare word.
fn file_with_word(root: &Path) -> PathBuf {
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                dirs.push(path);
            } else if fs::read_to_string(&path).is_ok_and(|text| text.contains(RARE_WORD)) {
                return path;
            }
        }
    }
    panic!("no file has it")
}

#[test]
fn every_step_of_a_mount_is_right_over_the_disk_itself() {
    let world = World::of(&Tree, normal());
    for step in Tree.steps(&world.size) {
        let id = step.measure.id.clone();
        let measured = world.run(&step, Use::Mount(STORAGE)).expect(&id);
        assert!(measured.verified, "{id}");
        assert!(measured.value > 0.0 && measured.value == measured.seconds, "{id}");
        assert!(measured.operations > 60 && measured.bytes > 300_000, "{id}: {measured:?}");
        assert!(measured.application.is_some(), "{id}");
    }
    let left: Vec<_> = fs::read_dir(world.storage().join("tree")).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "nothing but the source is left: {left:?}");
}

#[test]
fn media_are_copied_out_and_in() {
    let size = Size { tree_shape: TreeShape::Media, tree_files: 20, ..tiny() };
    let world = World::of(&Tree, size);
    for by in [Use::Mount(STORAGE), Use::Copy("-r")] {
        for id in ["tree.media.copy_out", "tree.media.copy_in"] {
            let measured = world.run(&step(&Tree, &world.size, id), by).expect(id);
            assert!(measured.verified && measured.bytes > 8_000_000, "{id} {}", measured.bytes);
        }
    }
    assert_eq!(Tree.steps(&world.size).len(), 2);
    let own = Size { tree_source: Some(world.corpus()), ..world.size.clone() };
    assert!(Tree.steps(&own).len() > 2, "the user's own tree is no tree of media");
}

#[test]
fn measures_differ_and_hot_follows_cold() {
    for size in [tiny(), normal()] {
        let measures: Vec<_> = Tree.steps(&size).iter().map(|step| step.measure.clone()).collect();
        let ids: BTreeSet<_> = measures.iter().map(|measure| &measure.id).collect();
        assert_eq!(ids.len(), measures.len());
        for (before, measure) in measures.iter().zip(&measures[1..]) {
            if measure.cache == Cache::Hot {
                assert_eq!(before.id.replace(".cold", ".hot"), measure.id);
            }
        }
    }
}

/// The world of a user's own tree, and that tree.
fn world_of_own_tree() -> (World, TempDir) {
    let own = tempfile::tempdir().unwrap();
    fs::create_dir(own.path().join("sub")).unwrap();
    fs::write(own.path().join("sub/file"), "TODO: this\n").unwrap();
    symlink("sub/file", own.path().join("link")).unwrap();
    (World::of(&Tree, Size { tree_source: Some(own.path().to_owned()), ..tiny() }), own)
}

fn wrong(world: &World, id: &str, shown: &'static str) -> Failure {
    world.run(&step(&Tree, &world.size, id), Use::Mount(shown)).expect_err(id)
}

/// What a mount may do wrong.
type Fault = (&'static str, fn(&Path), &'static [&'static str]);

#[test]
fn whatever_a_mount_shows_wrong_is_found() {
    let change_byte: fn(&Path) = |tree| {
        let path = file_with_word(tree);
        let mut bytes = fs::read(&path).unwrap();
        bytes[1] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let faults: &[Fault] = &[
        ("a byte", change_byte, &["tar.cold", "grep.cold", "copy_out"]),
        (
            "a shorter file",
            |tree| fs::write(file_with_word(tree), "").unwrap(),
            &["find_size.cold", "ls.cold", "tar.cold", "grep.cold", "copy_out"],
        ),
        (
            "a missing file",
            |tree| fs::remove_file(file_with_word(tree)).unwrap(),
            &["find.cold", "ls.hot", "tar.hot", "grep.hot", "copy_out"],
        ),
        (
            "one file more",
            |tree| fs::write(tree.join("more"), format!("{RARE_WORD}\n")).unwrap(),
            &["find.cold", "ls.cold", "tar.cold", "grep.cold", "copy_out"],
        ),
        (
            "nothing",
            |tree| fs::remove_dir_all(tree).unwrap(),
            &["find.cold", "ls.cold", "tar.cold", "grep.cold", "copy_out"],
        ),
    ];
    let world = World::of(&Tree, normal());
    for (name, fault, ids) in faults {
        let copy = world.copy_storage("shown");
        fault(&copy.join("tree/source"));
        for id in *ids {
            wrong(&world, &format!("tree.{id}"), "shown");
        }
        fs::remove_dir_all(copy).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn what_does_not_reach_the_place_is_found() {
    let world = World::of(&Tree, normal());
    world.copy_storage("elsewhere");
    for id in ["copy_in", "cp_in", "extract", "rm"] {
        wrong(&world, &format!("tree.{id}"), "elsewhere");
    }
}

#[test]
fn a_tree_of_the_users_is_used() {
    let (world, _own) = world_of_own_tree();
    for step in Tree.steps(&world.size) {
        let id = step.measure.id.clone();
        let measured = world.run(&step, Use::Mount(STORAGE)).expect(&id);
        assert_eq!((measured.operations, measured.bytes), (2, 11), "{id}: without its link");
    }
    assert_eq!(Tree.steps(&world.size).len(), Tree.steps(&tiny()).len());
}

#[test]
fn what_is_put_there_by_the_subject_itself_is_forgotten_before_it_is_removed() {
    let world = World::of(&Tree, tiny());
    let remove = step(&Tree, &world.size, "tree.rm");
    world.run(&remove, Use::Mount(STORAGE)).unwrap();
    assert_eq!(
        world.forgotten.load(Relaxed),
        0,
        "the runner has had it forget, and it knows no more"
    );
    world.run(&remove, Use::Target).unwrap();
    assert_eq!(world.forgotten.load(Relaxed), 1);
}
