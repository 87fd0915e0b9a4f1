//! An open descriptor refers to the file that was opened, even if others remove, rename or replace
//! its name at the server.

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use super::served_by_helper;
use crate::process::eventually;
use crate::watch::SOON;

/// Longer than the mount takes to see a change at the server, as a rule.
const PAUSE: Duration = Duration::from_millis(1500);

pub const MODES: [&str; 2] = ["consistency=close-to-open", "consistency=watch"];

/// As a build that removes its directory and makes it again.
#[test]
fn a_mounted_directory_that_is_replaced_is_shown() {
    for mode in MODES {
        let world = served_by_helper("");
        fs::create_dir_all(world.served("root/old")).unwrap();
        let mount = world.mount_of(&world.source_of(&world.served("root")), &["-o", mode]);
        let names = || -> Vec<_> {
            fs::read_dir(mount.place()).unwrap().map(|it| it.unwrap().file_name()).collect()
        };
        assert_eq!(names(), ["old"], "{mode}");
        fs::rename(world.served("root"), world.served("away")).unwrap();
        fs::create_dir(world.served("root")).unwrap();
        fs::write(world.served("root/new"), "content").unwrap();
        eventually(SOON, "the new directory is shown", || {
            fs::metadata(mount.place()).is_ok() && names() == ["new"]
        });
        assert_eq!(fs::read(mount.at("new")).unwrap(), b"content", "{mode}");
        fs::write(world.served("root/newer"), "").unwrap();
        eventually(SOON, "a change in it is shown", || names().len() == 2);
        mount.unmount();
    }
}

/// As an editor saves.
#[test]
fn attributes_are_set_on_the_open_file_and_not_on_its_replacement() {
    for mode in MODES {
        let world = served_by_helper("");
        fs::write(world.served("f"), "old").unwrap();
        fs::set_permissions(world.served("f"), Permissions::from_mode(0o644)).unwrap();
        let mount = world.mount(&["-o", mode]);
        let file = OpenOptions::new().read(true).write(true).open(mount.at("f")).unwrap();
        file.read_at(&mut [0; 8], 0).unwrap();
        fs::hard_link(world.served("f"), world.served("f~")).unwrap();
        fs::write(world.served("t"), "new").unwrap();
        fs::set_permissions(world.served("t"), Permissions::from_mode(0o640)).unwrap();
        let replaced_at = SystemTime::now() - Duration::from_secs(1000);
        let times = FileTimes::new().set_modified(replaced_at);
        File::options().write(true).open(world.served("t")).unwrap().set_times(times).unwrap();
        fs::rename(world.served("t"), world.served("f")).unwrap();
        sleep(PAUSE);
        file.set_permissions(Permissions::from_mode(0o666)).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)).unwrap();
        let seen = |name| {
            let found = fs::metadata(world.served(name)).unwrap();
            (found.mode() & 0o777, found.modified().unwrap())
        };
        assert_eq!(seen("f"), (0o640, replaced_at), "{mode}");
        assert_eq!(seen("f~"), (0o666, SystemTime::UNIX_EPOCH), "{mode}");
        // Neither are those of a file whose name is gone.
        fs::remove_file(world.served("f")).unwrap();
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        assert_eq!(seen("f~").0, 0o600, "{mode}");
        drop(file);
        mount.unmount();
    }
}

#[test]
fn a_time_that_was_set_does_not_hide_a_later_change() {
    for mode in MODES {
        let world = served_by_helper("");
        fs::write(world.served("f"), "content").unwrap();
        let mount = world.mount(&["-o", mode]);
        let set = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
        let later = set + Duration::from_nanos(1000);
        let file = File::options().write(true).open(mount.at("f")).unwrap();
        file.set_times(FileTimes::new().set_modified(set)).unwrap();
        drop(file);
        assert_eq!(fs::metadata(mount.at("f")).unwrap().modified().unwrap(), set);
        let file = File::options().write(true).open(world.served("f")).unwrap();
        file.set_times(FileTimes::new().set_modified(later)).unwrap();
        crate::process::eventually(Duration::from_secs(25), "the time is the later one", || {
            fs::metadata(mount.at("f")).unwrap().modified().unwrap() == later
        });
        mount.unmount();
    }
}

/// C3: also in the mount that has read it before, without a disk cache.
#[test]
fn a_file_that_is_rewritten_in_place_with_its_old_time_is_read_again() {
    for mode in MODES {
        let world = served_by_helper("");
        let set = SystemTime::now() - Duration::from_secs(10_000);
        let put = |text: &str| {
            fs::write(world.served("f"), text).unwrap();
            let file = File::options().write(true).open(world.served("f")).unwrap();
            file.set_times(FileTimes::new().set_modified(set)).unwrap();
        };
        put("first");
        let mount = world.mount(&["-o", mode]);
        assert_eq!(fs::read_to_string(mount.at("f")).unwrap(), "first", "{mode}");
        put("other");
        sleep(PAUSE);
        assert_eq!(fs::read_to_string(mount.at("f")).unwrap(), "other", "{mode}");
        mount.unmount();
    }
}

/// Also if the open had needed no request.
#[test]
fn an_open_file_has_attributes_when_its_name_is_gone() {
    for mode in MODES {
        for change in ["removed", "renamed", "replaced"] {
            let world = served_by_helper("");
            fs::write(world.served("f"), "content").unwrap();
            let mount = world.mount(&["-o", mode]);
            // Its pages are kept if it was read after the second of its time.
            sleep(Duration::from_secs(2));
            assert_eq!(fs::read(mount.at("f")).unwrap(), b"content");
            let file = File::open(mount.at("f")).unwrap();
            match change {
                "removed" => fs::remove_file(world.served("f")).unwrap(),
                "renamed" => fs::rename(world.served("f"), world.served("g")).unwrap(),
                _ => {
                    fs::write(world.served("g"), "another one").unwrap();
                    fs::rename(world.served("g"), world.served("f")).unwrap();
                }
            }
            sleep(PAUSE);
            assert_eq!(file.metadata().unwrap().len(), 7, "{mode}: {change}");
            drop(file);
            mount.unmount();
        }
    }
}

/// L4: a log that is rotated at the server while the connection is lost.
#[test]
fn a_log_that_was_rotated_during_an_outage_stays_open() {
    let world = served_by_helper("");
    let mount = world.mount(&[]);
    let mut log = OpenOptions::new().append(true).create(true).open(mount.at("log")).unwrap();
    log.write_all(b"one\n").unwrap();
    log.sync_all().unwrap();
    world.sshd().kill_sessions();
    fs::rename(world.served("log"), world.served("log.1")).unwrap();
    fs::write(world.served("log"), "new\n").unwrap();
    log.write_all(b"two\n").unwrap();
    log.sync_all().unwrap();
    assert_eq!(fs::read_to_string(world.served("log.1")).unwrap(), "one\ntwo\n");
    drop(log);
    assert_eq!(fs::read_to_string(world.served("log")).unwrap(), "new\n");
    mount.unmount();
}

/// As backups that share unchanged files. Only one of the two names is looked at meanwhile.
#[test]
fn a_call_by_one_name_does_not_change_the_file_that_has_taken_the_other() {
    const CALLS: [&str; 3] = ["chmod", "create", "truncate"];
    let run = |call: &str, path: &Path| match call {
        "chmod" => fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap(),
        "create" => drop(File::create(path).unwrap()),
        _ => File::options().write(true).open(path).unwrap().set_len(1).unwrap(),
    };
    for mode in MODES {
        let world = served_by_helper("");
        let names = |call| (format!("{call}1"), format!("{call}2"));
        for call in CALLS {
            let (one, other) = names(call);
            fs::write(world.served(&one), "content").unwrap();
            fs::hard_link(world.served(&one), world.served(&other)).unwrap();
        }
        let mount = world.mount(&["-o", mode]);
        for call in CALLS {
            let (one, other) = names(call);
            for name in [&one, &other] {
                assert_eq!(fs::read_to_string(mount.at(name)).unwrap(), "content");
            }
            fs::write(world.served("new"), "precious").unwrap();
            fs::set_permissions(world.served("new"), Permissions::from_mode(0o644)).unwrap();
            fs::rename(world.served("new"), world.served(&one)).unwrap();
            sleep(PAUSE);
            run(call, &mount.at(&other));
            let what = format!("{mode}, {call}");
            assert_eq!(fs::read_to_string(world.served(&one)).unwrap(), "precious", "{what}");
            let mode = |name| fs::metadata(world.served(name)).unwrap().mode() & 0o777;
            assert_eq!(mode(&one), 0o644, "{what}");
            let changed = mode(&other) == 0o600
                || fs::read_to_string(world.served(&other)).unwrap() != "content";
            assert!(changed, "{what}");
            assert_eq!(fs::read_to_string(mount.at(&one)).unwrap(), "precious", "{what}");
        }
        mount.unmount();
    }
}

/// As tools for backups rotate their directories.
#[test]
fn linked_files_are_read_after_their_directories_were_renamed_at_the_server() {
    for mode in MODES {
        let world = served_by_helper("");
        for dir in ["a", "b"] {
            fs::create_dir(world.served(dir)).unwrap();
        }
        fs::write(world.served("a/f"), "content").unwrap();
        fs::hard_link(world.served("a/f"), world.served("b/f")).unwrap();
        let mount = world.mount(&["-o", mode]);
        for path in ["a/f", "b/f"] {
            assert_eq!(fs::read_to_string(mount.at(path)).unwrap(), "content");
        }
        fs::rename(world.served("b"), world.served("c")).unwrap();
        fs::rename(world.served("a"), world.served("b")).unwrap();
        sleep(PAUSE);
        for path in ["b/f", "c/f"] {
            assert_eq!(fs::read_to_string(mount.at(path)).unwrap(), "content", "{mode}, {path}");
        }
        mount.unmount();
    }
}
