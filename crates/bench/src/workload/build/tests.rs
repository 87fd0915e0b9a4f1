//! A real build of the small program, right and wrong; what is chosen when.

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::results::SubjectInfo;
use crate::workload::tests::world::{STORAGE, Use, World, step, tiny};

fn run(world: &World, id: &str, shown: &'static str) -> Result<Measured, Failure> {
    world.run(&step(&Build, &world.size, id), Use::Mount(shown))
}

#[test]
fn the_generated_program_is_built_and_wrong_sources_are_found() {
    let world = World::of(&Build, tiny());
    for id in ["build.generated.cold", "build.generated.again", "build.generated.remounted"] {
        let measured = run(&world, id, STORAGE).expect(id);
        assert!(measured.verified);
        // Twenty modules and what calls them.
        assert_eq!(measured.operations, 9);
    }

    let shown = world.copy_storage("shown").join("build/generated");
    let change = |name: &str, from: &str, to: &str| {
        let text = fs::read_to_string(shown.join(name)).unwrap();
        assert!(text.contains(from), "{name}");
        fs::write(shown.join(name), text.replacen(from, to, 1)).unwrap();
    };
    // Compiles to another object.
    change("src/module_7.c", "static long step_3", "long step_3");
    let failure = run(&world, "build.generated.cold", "shown").unwrap_err();
    assert!(failure.to_string().contains("module_7.o is not like"), "{failure}");
    fs::remove_file(shown.join("include/part_3.h")).unwrap();
    let failure = run(&world, "build.generated.cold", "shown").unwrap_err();
    assert!(failure.to_string().contains("part_3.h"), "{failure}");
}

/// Sources of the user's with a `configure`, whose objects have the time in them or have not.
fn own(reproducible: bool) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let configure = "#!/bin/sh\nprintf 'one.o:\\n\\tgcc %s -c -o one.o %s/one.c\\n' \
\"$OPTIONS\" \"$(dirname \"$0\")\" > Makefile\n";
    fs::write(dir.path().join("configure"), configure).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path().join("configure"), mode).unwrap();
    let text = if reproducible { "\"one\"" } else { "__FILE__" };
    fs::write(dir.path().join("one.c"), format!("const char *one = {text};\n")).unwrap();
    dir
}

#[test]
fn sources_of_the_users_are_built_and_verified_as_far_as_that_goes() {
    for reproducible in [true, false] {
        let own = own(reproducible);
        let size = Size { build_source: Some(own.path().to_owned()), ..tiny() };
        let world = World::of(&Build, size);
        let measured = run(&world, "build.own.cold", STORAGE).unwrap();
        assert_eq!((measured.operations, measured.verified), (1, reproducible));
    }
    let empty = tempfile::tempdir().unwrap();
    let size = Size { build_source: Some(empty.path().to_owned()), ..tiny() };
    assert!(Build.steps(&size).is_empty());
    assert!(Build.lacks(&size)[0].why.contains("neither Kbuild, nor CMakeLists.txt"));
}

#[test]
fn a_build_that_made_less_or_more_is_found() {
    let objects = |names: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        Objects::of(dir.path()).unwrap()
    };
    let expected = objects(&["a.o", "lib/b.o", "lib/readme", "scripts/tool.o"]);
    assert_eq!(expected.count(), 2);
    assert_eq!(expected.check(&objects(&["a.o", "lib/b.o"]), true), Ok(true));
    let why = |names: &[&str]| expected.check(&objects(names), false).unwrap_err().to_string();
    assert!(why(&["a.o"]).contains("lib/b.o was not built"));
    assert!(why(&["a.o", "lib/b.o", "c.o"]).contains("c.o was built"));
}

#[test]
fn a_build_of_the_original_that_makes_nothing_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let objects = Objects::of(dir.path()).unwrap();
    assert!(objects.save(&dir.path().join("objects.json")).is_err());
}

#[test]
fn two_projects_of_different_size_are_built_by_as_many_jobs_as_wanted() {
    let projects = Projects::Two { smaller: 2, larger: 4 };
    let world = World::of(&Build, Size { projects, jobs: 3, ..tiny() });
    for (id, modules) in [("build.smaller.cold", 2), ("build.larger.cold", 4)] {
        let measured = run(&world, id, STORAGE).expect(id);
        assert_eq!((measured.operations, measured.verified), (modules + 1, true));
    }
    let objects = tempfile::tempdir().unwrap();
    let project = Project::generated("smaller", 2);
    let command = project.command(&world.storage(), objects.path(), 3);
    assert_eq!(command.get_args().last().unwrap(), "3");
    assert!(command.get_args().any(|word| word.to_string_lossy().contains(r#"-j"$3""#)));
}

#[test]
fn only_a_subject_with_a_cache_on_the_disk_builds_with_it() {
    let steps = Build.steps(&tiny());
    let ids = |name: &str| -> Vec<&str> {
        let info = SubjectInfo::new(name, "mount", "");
        let steps = steps.iter().filter(|step| step.concerns(&info));
        steps.map(|step| step.measure.id.trim_start_matches("build.generated.")).collect()
    };
    assert_eq!(ids("sshoal"), ["cold", "again"]);
    assert_eq!(ids("sshoal:ro,cache=disk"), ["cold", "again", "remounted"]);
    let kept: Vec<bool> = steps.iter().map(|step| step.keeps_disk_cache).collect();
    assert_eq!(kept, [false, false, true]);
}

#[test]
fn what_is_built_depends_on_the_scale() {
    let sshfs = SubjectInfo::new("sshfs", "mount", "");
    let ids = |scale| -> Vec<String> {
        let steps = Build.steps(&Size::of(scale)).into_iter();
        steps.filter(|step| step.concerns(&sshfs)).map(|step| step.measure.id).collect()
    };
    assert_eq!(ids(Scale::Quick), ["build.generated.cold", "build.generated.again"]);
    match check_kernel() {
        Ok(()) => {
            assert_eq!(ids(Scale::Normal), ["build.kernel_lib.cold", "build.kernel_lib.again"]);
            assert_eq!(ids(Scale::Full)[2..], ["build.kernel.cold", "build.kernel.again"]);
        }
        Err(left_out) => {
            assert_eq!(ids(Scale::Normal), ["build.generated.cold", "build.generated.again"]);
            assert_eq!(ids(Scale::Full), ids(Scale::Normal));
            assert_eq!(Build.lacks(&Size::of(Scale::Full)), [left_out]);
        }
    }
}
