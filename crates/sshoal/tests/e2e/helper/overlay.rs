//! Files on overlayfs, as in most containers. The first change of a file of a lower layer gives it
//! another time of creation, and another inode number if it has several names. So its numbers are no
//! identities, but all else is the server's.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use rustix::mount::{MountFlags, UnmountFlags};

use super::identity::MODES;
use super::served_by_helper;
use crate::mount::Mount;
use crate::process::{eventually, run};
use crate::watch::{SOON, assert_needs_no_requests, make_old, wait_for_watches};
use crate::world::{Places, World};

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

/// A server with a directory on overlayfs.
struct Overlay {
    world: World,
    served: PathBuf,
    _overlay: Mounted,
    _layers: Mounted,
    _places: Places,
}

impl Overlay {
    /// `fill` makes the lower layer. `None` without the right to mount.
    fn new(fill: impl FnOnce(&Path)) -> Option<Overlay> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can mount");
            return None;
        }
        let places = Places::new();
        let layers = Mounted::new("tmpfs", places.path(), "");
        let [lower, upper, work, served] =
            ["lower", "upper", "work", "served"].map(|name| places.path().join(name));
        for dir in [&lower, &upper, &work, &served] {
            fs::create_dir(dir).unwrap();
        }
        fill(&lower);
        let options = [("lowerdir", &lower), ("upperdir", &upper), ("workdir", &work)]
            .map(|(option, layer)| format!("{option}={}", layer.display()));
        let overlay = Mounted::new("overlay", &served, &options.join(","));
        // The server has the mounts that are there when it starts.
        let world = served_by_helper("");
        Some(Overlay { world, served, _overlay: overlay, _layers: layers, _places: places })
    }

    fn mount(&self, options: &str) -> Mount {
        self.world.mount_of(&self.world.source_of(&self.served), &["-o", options])
    }

    /// Changes the content at the server; size and mtime stay.
    fn change_unnoticed(&self, name: &str, content: &str) {
        let at = self.served.join(name);
        let before = fs::metadata(&at).unwrap();
        File::options().write(true).open(&at).unwrap().write_all_at(content.as_bytes(), 0).unwrap();
        set_modified(&at, before.modified().unwrap());
        assert_eq!(fs::metadata(&at).unwrap().len(), before.len());
    }
}

fn set_modified(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Files with this content, the last with two names.
fn fill(lower: &Path) {
    for name in ["f", "log", "linked"] {
        fs::write(lower.join(name), "content").unwrap();
        make_old(&lower.join(name));
    }
    fs::hard_link(lower.join("linked"), lower.join("other")).unwrap();
}

#[test]
fn a_file_of_an_overlay_stays_the_same_when_it_is_changed() {
    for mode in MODES {
        let Some(overlay) = Overlay::new(fill) else { return };
        let (mount, served) = (overlay.mount(mode), &overlay.served);
        let open = |name: &str| OpenOptions::new().read(true).write(true).open(mount.at(name));
        for name in ["f", "linked"] {
            let file = open(name).unwrap();
            file.write_all_at(b"changed", 0).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 7, "{mode}: {name}");
            overlay.world.sshd().kill_sessions();
            file.write_all_at(b"again, longer", 0).unwrap();
            file.sync_all().unwrap();
            drop(file);
            let content = fs::read_to_string(served.join(name)).unwrap();
            assert_eq!(content, "again, longer", "{mode}: {name}");
        }
        let log = mount.at("log").display().to_string();
        let script = format!("exec 3>>{log}; /bin/echo ,one >&3; /bin/echo ,two >&3");
        let ended = run(Command::new("sh").args(["-ec", &script]));
        assert!(ended.status.success(), "{mode}: {}", ended.stderr);
        assert_eq!(fs::read_to_string(served.join("log")).unwrap(), "content,one\n,two\n");
        mount.unmount();
    }
}

/// Another process of the server makes the change.
#[test]
fn an_open_descriptor_shows_a_change_at_the_server() {
    for mode in MODES {
        let Some(overlay) = Overlay::new(fill) else { return };
        let mount = overlay.mount(mode);
        for name in ["f", "linked"] {
            let file = File::open(mount.at(name)).unwrap();
            let seen = || {
                let mut seen = [0; 20];
                let len = file.read_at(&mut seen, 0).unwrap();
                String::from_utf8_lossy(&seen[..len]).into_owned()
            };
            assert_eq!(seen(), "content", "{mode}: {name}");
            fs::write(overlay.served.join(name), "changed there").unwrap();
            eventually(SOON, "a later open shows the change", || {
                fs::read_to_string(mount.at(name)).unwrap() == "changed there"
            });
            eventually(SOON, "so does the open descriptor", || seen() == "changed there");
            drop(file);
        }
        mount.unmount();
    }
}

#[test]
fn links_blocks_and_ctimes_of_an_overlay_are_the_servers() {
    for mode in MODES {
        let Some(overlay) = Overlay::new(fill) else { return };
        let mount = overlay.mount(mode);
        let compare = |expected: &[(&str, u64)]| {
            for (name, links) in expected {
                let there = fs::symlink_metadata(overlay.served.join(name)).unwrap();
                assert_eq!(there.nlink(), *links, "{mode}: {name}");
                let of = |it: &fs::Metadata| {
                    let ctime = (it.ctime(), it.ctime_nsec());
                    (it.nlink(), it.blocks(), it.modified().unwrap(), ctime)
                };
                let here = || fs::symlink_metadata(mount.at(name)).unwrap();
                eventually(SOON, name, || of(&here()) == of(&there));
            }
        };
        compare(&[("f", 1), ("linked", 2), ("other", 2)]);
        fs::hard_link(mount.at("f"), mount.at("f2")).unwrap();
        fs::write(mount.at("log"), "longer than it was").unwrap();
        compare(&[("f", 2), ("f2", 2), ("log", 1)]);
        mount.unmount();
    }
}

#[test]
fn a_change_of_an_overlay_that_leaves_size_and_mtime_is_seen() {
    let Some(overlay) = Overlay::new(fill) else { return };
    // Two files that differ in nothing but the number: in one tick of the server's clock.
    let mut twins = (0..1000).map(|number| ["x", "y"].map(|dir| format!("{dir}{number}/f")));
    let is_twin = |names: &[String; 2]| {
        let paths = names.each_ref().map(|name| overlay.served.join(name));
        for path in &paths {
            fs::create_dir(path.parent().unwrap()).unwrap();
        }
        let made = paths.each_ref().map(|path| File::create(path).unwrap());
        for (file, content) in made.iter().zip(["first", "other"]) {
            file.write_all_at(content.as_bytes(), 0).unwrap();
            let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            file.set_modified(long_ago).unwrap();
        }
        let [one, other] = made.map(|file| file.metadata().unwrap());
        (one.ctime(), one.ctime_nsec()) == (other.ctime(), other.ctime_nsec())
    };
    let [first, other] = twins.find(is_twin).unwrap();
    let read = |mount: &Mount, name: &str| fs::read_to_string(mount.at(name)).unwrap();
    let cache = overlay.world.local("cache");
    let options = format!("cache=disk,cache_dir={},cache_free=0", cache.display());
    let names = ["f", "linked", "log", &first];
    for number in 0..3 {
        let mount = overlay.mount(&options);
        for name in names {
            fs::metadata(mount.at(name)).unwrap();
        }
        // Then they are kept.
        sleep(Duration::from_millis(2200));
        let expected = ["first", "other"][number % 2];
        assert_eq!(read(&mount, &first), expected);
        let content = ["content", "CHANGED", "again.."][number];
        for name in ["f", "linked", "log"] {
            assert_eq!(read(&mount, name), content, "{name}");
        }
        if number == 1 {
            // The same again in one mount, with pages in the kernel.
            overlay.change_unnoticed("log", "in memo");
            eventually(SOON, "a change is seen", || read(&mount, "log") == "in memo");
        }
        mount.unmount();
        let next = ["CHANGED", "again..", ""][number];
        for name in ["f", "linked"] {
            overlay.change_unnoticed(name, next);
        }
        // Replaced by a rename.
        let (temporary, log) = (overlay.served.join("t"), overlay.served.join("log"));
        fs::write(&temporary, next).unwrap();
        set_modified(&temporary, fs::metadata(&log).unwrap().modified().unwrap());
        fs::rename(&temporary, &log).unwrap();
        // And by a rename that leaves its ctime.
        let [one, two] = [&first, &other].map(|it| overlay.served.join(it.trim_end_matches("/f")));
        for (from, to) in [(&one, &temporary), (&two, &one), (&temporary, &two)] {
            fs::rename(from, to).unwrap();
        }
    }
}

/// W1.
#[test]
fn w1_files_of_an_overlay_are_watched() {
    let Some(overlay) = Overlay::new(fill) else { return };
    let mount = overlay.mount("consistency=watch").with_errors();
    let is = |name: &str, content: &str| fs::read_to_string(mount.at(name)).unwrap() == content;
    wait_for_watches(&mount, 1);
    assert!(is("f", "content") && is("log", "content"));
    let look = || {
        for name in ["f", "log"] {
            assert_eq!(fs::metadata(mount.at(name)).unwrap().nlink(), 1);
            drop(File::open(mount.at(name)).unwrap());
        }
    };
    assert_needs_no_requests(&mount, look);
    overlay.change_unnoticed("f", "CHANGED");
    eventually(SOON, "the change is seen", || is("f", "CHANGED"));
    fs::hard_link(overlay.served.join("log"), overlay.served.join("new")).unwrap();
    eventually(SOON, "the new name is seen", || mount.at("new").exists());
    mount.unmount();
}
