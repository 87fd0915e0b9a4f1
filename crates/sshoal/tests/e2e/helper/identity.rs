//! An open descriptor refers to the file that was opened, even if others remove, rename or replace
//! its name at the server.

use std::ffi::CString;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use rustix::mount::{MountFlags, UnmountFlags};

use super::served_by_helper;
use crate::process::run;
use crate::world::Places;

/// Longer than the mount takes to see a change at the server, as a rule.
const PAUSE: Duration = Duration::from_millis(1500);

const MODES: [&str; 2] = ["consistency=close-to-open", "consistency=watch"];

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

/// A file system that is mounted at this place until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(kind: &str, place: &Path, options: &str) -> Mounted {
        let options = CString::new(options).unwrap();
        rustix::mount::mount(kind, place, kind, MountFlags::empty(), &*options).unwrap();
        Mounted(place.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// As in a container: the first change of a file of its image gives it another time of creation, and
/// another inode number if it has several names.
#[test]
fn a_file_of_an_overlay_stays_the_same_when_it_is_changed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can mount");
        return;
    }
    for mode in MODES {
        // The server has the mounts that are there when it starts.
        let places = Places::new();
        let _tmpfs = Mounted::new("tmpfs", places.path(), "");
        let [lower, upper, work, served] =
            ["lower", "upper", "work", "served"].map(|name| places.path().join(name));
        for dir in [&lower, &upper, &work, &served] {
            fs::create_dir(dir).unwrap();
        }
        for name in ["f", "log", "linked"] {
            fs::write(lower.join(name), "content").unwrap();
        }
        fs::hard_link(lower.join("linked"), lower.join("other")).unwrap();
        let path = |path: &Path| path.display().to_string();
        let layers = [("lowerdir", &lower), ("upperdir", &upper), ("workdir", &work)];
        let options = layers.map(|(option, layer)| format!("{option}={}", path(layer)));
        let _overlay = Mounted::new("overlay", &served, &options.join(","));
        let world = served_by_helper("");
        let mount = world.mount_of(&world.source_of(&served), &["-o", mode]);
        let open = |name: &str| OpenOptions::new().read(true).write(true).open(mount.at(name));
        for name in ["f", "linked"] {
            let file = open(name).unwrap();
            file.write_all_at(b"changed", 0).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 7, "{mode}: {name}");
            world.sshd().kill_sessions();
            file.write_all_at(b"again, longer", 0).unwrap();
            file.sync_all().unwrap();
            drop(file);
            let content = fs::read_to_string(served.join(name)).unwrap();
            assert_eq!(content, "again, longer", "{mode}: {name}");
        }
        let script = format!("exec 3>>{}; echo ,one >&3; echo ,two >&3", path(&mount.at("log")));
        let ended = run(Command::new("sh").args(["-ec", &script.replace("echo", "/bin/echo")]));
        assert!(ended.status.success(), "{mode}: {}", ended.stderr);
        assert_eq!(fs::read_to_string(served.join("log")).unwrap(), "content,one\n,two\n");
        mount.unmount();
    }
}
