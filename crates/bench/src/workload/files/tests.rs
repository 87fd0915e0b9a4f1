//! Both ways over a directory of the local disk, right and wrong.

use std::fs;

use super::*;
use crate::failure::Failure;
use crate::workload::tests::world::{STORAGE, Use, World, step, tiny};

#[test]
fn a_file_goes_both_ways_by_a_mount_and_by_a_copier() {
    let world = World::of(&Files, tiny());
    let steps = Files.steps(&world.size);
    let ids: Vec<_> = steps.iter().map(|step| step.measure.id.clone()).collect();
    assert_eq!(
        ids,
        ["files.out.default", "files.in.default", "files.out.aes128-gcm", "files.in.aes128-gcm"]
    );
    for step in steps {
        for by in [Use::Mount(STORAGE), Use::Copy("-a")] {
            let measured = world.run(&step, by).unwrap();
            assert!(measured.verified);
            assert_eq!(measured.bytes, 1 << 20);
            let speed = measured.bytes as f64 / measured.seconds;
            assert!((measured.value - speed).abs() < 1.0);
        }
    }
    assert_eq!(fs::read_dir(world.storage().join("files")).unwrap().count(), 1);
}

#[test]
fn a_wrong_byte_and_a_lost_file_are_found() {
    let world = World::of(&Files, tiny());
    let shown = world.copy_storage("shown").join(LARGE);
    let run = |id| world.run(&step(&Files, &world.size, id), Use::Mount("shown"));
    let mut bytes = fs::read(&shown).unwrap();
    bytes[500_000] ^= 1;
    fs::write(&shown, bytes).unwrap();
    let failure = run("files.out.default").unwrap_err();
    assert!(matches!(failure, Failure::WrongData { .. }), "{failure}");
    // What is written to `shown` never reaches the storage.
    run("files.in.default").unwrap_err();
}

#[test]
fn a_cipher_says_nothing_of_what_has_none() {
    let info = |kind: &str, name: &str| SubjectInfo::new(name, kind, "");
    let size = tiny();
    let by_cipher = step(&Files, &size, "files.in.aes128-gcm");
    assert_eq!(by_cipher.tuning.cipher.as_deref(), Some("aes128-gcm@openssh.com"));
    for (kind, name) in [("local", "local"), ("target", "nfs"), ("copy", "ftp")] {
        assert!(!by_cipher.concerns(&info(kind, name)), "{name}");
        assert!(step(&Files, &size, "files.in.default").concerns(&info(kind, name)));
    }
    for (kind, name) in [("mount", "sshfs"), ("copy", "scp"), ("floor", "ssh-cat")] {
        assert!(by_cipher.concerns(&info(kind, name)), "{name}");
    }
}
