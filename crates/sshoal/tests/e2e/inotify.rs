//! File watchers (W4): what processes that watch the mount see of changes at the server.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};

use crate::helper::served_by_helper;
use crate::mount::{Mount, umount};
use crate::process::{eventually, succeed};
use crate::watch::{SOON, requests, wait_for_watches, watched, watching_with};
use crate::world::World;

const REPEATING: &str = "consistency=watch";

/// What an event says: its kind, its name, and its cookie, which is zero but for renames.
pub type Event = (String, String, u32);

/// A process that watches; this one.
pub struct Watcher {
    inotify: OwnedFd,
    names: BTreeMap<i32, String>,
    pub seen: Vec<Event>,
}

impl Watcher {
    /// Watches these entries of the mount.
    pub fn new(mount: &Mount, entries: &[&str]) -> Watcher {
        let inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let mut watcher = Watcher { inotify, names: BTreeMap::new(), seen: Vec::new() };
        entries.iter().for_each(|entry| watcher.add(mount, entry));
        watcher
    }

    fn add(&mut self, mount: &Mount, entry: &str) {
        let kinds = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::MOVE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let number = add_watch(&self.inotify, mount.at(entry), kinds).unwrap();
        self.names.insert(number, entry.to_owned());
    }

    /// Reads what there is.
    pub fn read(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        while let Ok(event) = reader.next() {
            assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW));
            let kind = format!("{:?}", event.events());
            let kind = kind.trim_start_matches("ReadFlags(").trim_end_matches(')').to_owned();
            let name = event.file_name().map_or("", |name| name.to_str().unwrap());
            let watched = &self.names[&event.wd()];
            let name = [watched.as_str(), name].join("/").trim_matches('/').to_owned();
            self.seen.push((kind, name, event.cookie()));
        }
    }

    /// See [`Watcher::until_link`].
    #[track_caller]
    fn until(&mut self, world: &World, marker: &str) -> Vec<(String, String)> {
        self.until_link(&world.served(marker), marker)
    }

    /// All events up to that of the creation of `marker`, which is made `there` after them.
    #[track_caller]
    pub fn until_link(&mut self, there: &Path, marker: &str) -> Vec<(String, String)> {
        symlink("nowhere", there).unwrap();
        let last = ("CREATE".to_owned(), marker.to_owned());
        let mut found = Vec::new();
        let mut is_last = false;
        while !is_last {
            let deadline = Instant::now() + SOON;
            while self.seen.is_empty() {
                assert!(Instant::now() < deadline, "the marker is missing behind {found:?}");
                self.read();
            }
            for (kind, name, _) in self.seen.drain(..) {
                is_last |= (&kind, &name) == (&last.0, &last.1);
                found.push((kind, name));
            }
        }
        found.pop();
        found
    }
}

/// A shell that changes files, in a process of its own. A child that another test has forked has
/// copies of the descriptors of this process until it calls exec, and would delay a close.
pub struct Shell {
    process: Child,
    commands: ChildStdin,
    done: BufReader<ChildStdout>,
}

impl Shell {
    pub fn new() -> Shell {
        let script = "while read -r line; do eval \"$line\"; echo; done";
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = shell.spawn().unwrap();
        let (commands, done) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Shell { process, commands, done: BufReader::new(done) }
    }

    /// Runs a command, and waits for its end.
    pub fn run(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
        let mut line = String::new();
        self.done.read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "{command}");
    }

    pub fn write(&mut self, path: &Path, content: &str) {
        self.run(&format!("printf %s '{content}' > '{}'", path.display()));
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn events(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned())).collect()
}

/// The repeated removal of a name must not remove what a local process has created there since.
#[test]
fn w4_what_is_created_here_stays() {
    let (world, mount) = watching_with(REPEATING);
    let _watcher = Watcher::new(&mount, &["dir"]);
    let (there, here) = (world.served("dir/f"), mount.at("dir/f"));
    for number in 0..100 {
        fs::write(&here, "content").unwrap();
        fs::remove_file(&there).unwrap();
        // From none to some ms after the report.
        std::thread::sleep(Duration::from_micros(number * 50));
        fs::write(&here, "created again").unwrap();
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {
            assert_eq!(fs::metadata(&here).unwrap().len(), 13, "{number}");
        }
    }
    mount.unmount();
}

#[test]
fn w4_each_kind_of_change_is_an_event() {
    let (world, mount) = watching_with(REPEATING);
    let mut watcher = Watcher::new(&mount, &["dir"]);
    let (there, mut shell) = (|name: &str| world.served(name), Shell::new());
    shell.write(&there("dir/new"), "content");
    let created = [("CREATE", "dir/new"), ("MODIFY", "dir/new"), ("CLOSE_WRITE", "dir/new")];
    assert_eq!(watcher.until(&world, "dir/1"), events(&created));
    assert_eq!(fs::read_to_string(mount.at("dir/new")).unwrap(), "content");

    fs::set_permissions(there("dir/new"), Permissions::from_mode(0o640)).unwrap();
    assert_eq!(watcher.until(&world, "dir/2"), events(&[("ATTRIB", "dir/new")]));
    assert_eq!(fs::metadata(mount.at("dir/new")).unwrap().mode() & 0o777, 0o640);

    shell.run(&format!("exec 3>> '{}'; printf %s ' and more' >&3", there("dir/new").display()));
    assert_eq!(watcher.until(&world, "dir/3"), events(&[("MODIFY", "dir/new")]));
    assert_eq!(fs::read_to_string(mount.at("dir/new")).unwrap(), "content and more");
    shell.run("exec 3>&-");
    assert_eq!(watcher.until(&world, "dir/4"), events(&[("CLOSE_WRITE", "dir/new")]));

    fs::create_dir(there("dir/sub")).unwrap();
    assert_eq!(watcher.until(&world, "dir/5"), events(&[("CREATE | ISDIR", "dir/sub")]));
    fs::set_permissions(there("dir/below"), Permissions::from_mode(0o750)).unwrap();
    assert_eq!(watcher.until(&world, "dir/6"), events(&[("ATTRIB | ISDIR", "dir/below")]));
    assert!(mount.at("dir/below/file").exists());
    symlink("new", there("dir/link")).unwrap();
    fs::hard_link(there("dir/new"), there("dir/hard")).unwrap();
    fs::remove_file(there("dir/hard")).unwrap();
    let links = [("CREATE", "dir/link"), ("CREATE", "dir/hard"), ("DELETE", "dir/hard")];
    assert_eq!(watcher.until(&world, "dir/7"), events(&links));
    assert_eq!(fs::read_link(mount.at("dir/link")).unwrap(), Path::new("new"));

    fs::rename(there("dir/new"), there("dir/other")).unwrap();
    let moved = [("MOVED_FROM", "dir/new"), ("MOVED_TO", "dir/other")];
    assert_eq!(watcher.until(&world, "dir/8"), events(&moved));
    assert!(!mount.at("dir/new").exists() && mount.at("dir/other").exists());
    fs::rename(there("dir/sub"), there("dir/tree")).unwrap();
    let moved = [("MOVED_FROM | ISDIR", "dir/sub"), ("MOVED_TO | ISDIR", "dir/tree")];
    assert_eq!(watcher.until(&world, "dir/9"), events(&moved));
    fs::remove_file(there("dir/other")).unwrap();
    fs::remove_dir(there("dir/tree")).unwrap();
    let removed = [("DELETE", "dir/other"), ("DELETE | ISDIR", "dir/tree")];
    assert_eq!(watcher.until(&world, "dir/10"), events(&removed));
    assert!(!mount.at("dir/tree").exists());
    mount.unmount();
}

#[test]
fn w4_a_rename_between_directories_has_one_cookie() {
    let (world, mount) = watching_with(REPEATING);
    let mut watcher = Watcher::new(&mount, &["dir", "dir/below"]);
    fs::rename(world.served("dir/file"), world.served("dir/below/moved")).unwrap();
    eventually(SOON, "both halves are seen", || {
        watcher.read();
        watcher.seen.len() == 2
    });
    let [(from, from_name, cookie), (to, to_name, same)] = &watcher.seen[..] else { panic!() };
    assert_eq!((from.as_str(), from_name.as_str()), ("MOVED_FROM", "dir/file"));
    assert_eq!((to.as_str(), to_name.as_str()), ("MOVED_TO", "dir/below/moved"));
    assert!(cookie == same && *cookie != 0);
    // Out of what is mounted, and into it.
    watcher.seen.clear();
    fs::rename(world.served("dir/below/moved"), world.local("outside")).unwrap();
    fs::rename(world.local("outside"), world.served("dir/back")).unwrap();
    let seen = watcher.until(&world, "dir/1");
    assert_eq!(seen, events(&[("DELETE", "dir/below/moved"), ("CREATE", "dir/back")]));
    mount.unmount();
}

/// As a checkout at the server makes them.
#[test]
fn w4_of_many_changes_each_is_seen_once() {
    let (world, mount) = watching_with(REPEATING);
    let mut watcher = Watcher::new(&mount, &["dir"]);
    let (mut shell, mut seen) = (Shell::new(), BTreeMap::<(String, String), u32>::new());
    for part in 0..4 {
        let names: Vec<_> = (0..500).map(|number| format!("dir/{part}-{number}")).collect();
        names.iter().for_each(|name| shell.write(&world.served(name), name));
        for event in watcher.until(&world, &format!("dir/written{part}")) {
            *seen.entry(event).or_default() += 1;
        }
        names.iter().for_each(|name| fs::remove_file(world.served(name)).unwrap());
        for event in watcher.until(&world, &format!("dir/removed{part}")) {
            *seen.entry(event).or_default() += 1;
        }
    }
    for kind in ["CREATE", "MODIFY", "CLOSE_WRITE", "DELETE"] {
        assert_eq!(seen.keys().filter(|(seen, _)| seen == kind).count(), 2000, "{kind}");
    }
    let several: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).collect();
    assert!(seen.len() == 8000 && several.is_empty(), "{several:?}");
    mount.unmount();
}

#[test]
fn w4_local_changes_are_seen_once() {
    let (world, mount) = watching_with(REPEATING);
    let (mut watcher, mut shell) = (Watcher::new(&mount, &["dir"]), Shell::new());
    for number in 0..100 {
        let name = format!("dir/{number}");
        let (own, theirs) = (format!("{name}-own"), format!("{name}-theirs"));
        shell.write(&world.served(&theirs), "theirs");
        shell.write(&mount.at(&own), "own");
        fs::rename(world.served(&theirs), world.served(format!("{theirs}-moved"))).unwrap();
        fs::rename(mount.at(&own), mount.at(format!("{own}-moved"))).unwrap();
        fs::remove_file(mount.at(format!("{own}-moved"))).unwrap();
        fs::remove_file(world.served(format!("{theirs}-moved"))).unwrap();
    }
    let mut seen = BTreeMap::<(String, String), u32>::new();
    for event in watcher.until(&world, "dir/end") {
        *seen.entry(event).or_default() += 1;
    }
    // The marker has overtaken none of the server's reports of local changes.
    let kinds = [
        ("CREATE", ""),
        ("MODIFY", ""),
        ("CLOSE_WRITE", ""),
        ("MOVED_FROM", ""),
        ("MOVED_TO", "-moved"),
        ("DELETE", "-moved"),
    ];
    for number in 0..100 {
        for (kind, suffix) in kinds {
            for by in ["own", "theirs"] {
                let event = (kind.to_owned(), format!("dir/{number}-{by}{suffix}"));
                assert_eq!(seen.remove(&event), Some(1), "{event:?}");
            }
        }
    }
    assert!(seen.is_empty(), "{seen:?}");
    mount.unmount();
}

/// An editor that watches its file; the file is written, and then replaced.
#[test]
fn w4_a_watch_of_a_file_sees_its_changes() {
    let (world, mount) = watching_with(REPEATING);
    let mut reader = File::open(mount.at("dir/file")).unwrap();
    let mut watcher = Watcher::new(&mount, &["dir/file", "dir"]);
    let mut log = OpenOptions::new().append(true).open(world.served("dir/file")).unwrap();
    log.write_all(b", and more").unwrap();
    let both = [("MODIFY", "dir/file"), ("MODIFY", "dir/file")];
    assert_eq!(watcher.until(&world, "dir/1"), events(&both));
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content of dir/file, and more");
    drop(log);
    watcher.until(&world, "dir/2");
    fs::write(world.served("dir/.file"), "replaced").unwrap();
    fs::rename(world.served("dir/.file"), world.served("dir/file")).unwrap();
    let seen = watcher.until(&world, "dir/3");
    // It has lost its name.
    assert!(seen.contains(&("ATTRIB".to_owned(), "dir/file".to_owned())), "{seen:?}");
    assert!(seen.contains(&("MOVED_TO".to_owned(), "dir/file".to_owned())), "{seen:?}");
    assert_eq!(fs::read_to_string(mount.at("dir/file")).unwrap(), "replaced");
    // Its process goes on reading it.
    assert_eq!(reader.metadata().unwrap().len(), 29);
    drop(reader);
    mount.unmount();
}

/// What is mounted on a watched directory belongs to this machine.
#[test]
fn w4_what_is_mounted_on_a_directory_is_not_touched() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can mount");
        return;
    }
    let (world, mount) = watching_with(REPEATING);
    let mut watcher = Watcher::new(&mount, &["dir", "dir/below"]);
    fs::create_dir(world.local("own")).unwrap();
    fs::write(world.local("own/file"), "local").unwrap();
    let before = fs::metadata(world.local("own/file")).unwrap().modified().unwrap();
    let over = mount.at("dir/below");
    succeed(Command::new("mount").arg("--bind").arg(world.local("own")).arg(&over));
    fs::write(world.served("dir/below/file"), "changed").unwrap();
    fs::rename(world.served("dir/below/file"), world.served("dir/below/other")).unwrap();
    fs::remove_file(world.served("dir/below/other")).unwrap();
    fs::write(world.served("dir/below/new"), "").unwrap();
    watcher.until(&world, "dir/1");
    let names: Vec<_> = fs::read_dir(world.local("own")).unwrap().map(|it| it.unwrap()).collect();
    let after = fs::metadata(world.local("own/file")).unwrap().modified().unwrap();
    succeed(Command::new("umount").arg(&over));
    assert_eq!((names.len(), after), (1, before));
    mount.unmount();
}

/// Nothing but the watch itself uses the directory.
#[test]
fn w4_a_directory_needs_no_use_and_a_lost_connection_ends_nothing() {
    let world = served_by_helper("");
    fs::create_dir(world.served("dir")).unwrap();
    let mount = world.mount(&["-o", REPEATING]);
    let (mut watcher, mut shell) = (Watcher::new(&mount, &["dir"]), Shell::new());
    eventually(SOON, "its directories are watched", || watched(&mount)["directories"] == 2);
    shell.write(&world.served("dir/new"), "");
    let written = [("CREATE", "dir/new"), ("CLOSE_WRITE", "dir/new")];
    assert_eq!(watcher.until(&world, "dir/1"), events(&written));

    world.sshd().kill_sftp_servers();
    eventually(SOON, "the loss is noticed", || watched(&mount)["losses"] == 1);
    eventually(SOON, "the directories are watched again", || watched(&mount)["directories"] == 2);
    shell.write(&world.served("dir/newer"), "");
    let written = [("CREATE", "dir/newer"), ("CLOSE_WRITE", "dir/newer")];
    assert_eq!(watcher.until(&world, "dir/2"), events(&written));
    mount.unmount();
}

/// More than a thousand reports, after which the watch of an unused directory ends.
#[test]
fn w4_events_need_no_requests() {
    let (world, mount) = watching_with(REPEATING);
    let (mut watcher, mut shell) = (Watcher::new(&mount, &["dir"]), Shell::new());
    watcher.until(&world, "dir/0");
    let before = requests(&mount);
    for number in 1..=20 {
        for name in 0..100 {
            shell.write(&world.served(format!("dir/{number}-{name}")), "");
        }
        assert_eq!(watcher.until(&world, &format!("dir/{number}")).len(), 200);
    }
    // But those for the next reports.
    let without_reports = |mut kinds: serde_json::Value| {
        kinds.as_object_mut().unwrap().remove("watch");
        kinds
    };
    assert_eq!(without_reports(requests(&mount)), without_reports(before));
    mount.unmount();
}

#[test]
fn w4_only_with_inotify_and_a_mount_that_may_be_written() {
    let world = served_by_helper("");
    fs::create_dir(world.served("dir")).unwrap();
    for options in ["consistency=watch,inotify=no", "consistency=watch,ro"] {
        let mount = world.mount(&["-o", options]);
        wait_for_watches(&mount, 2);
        let mut watcher = Watcher::new(&mount, &["dir"]);
        fs::write(world.served("dir/new"), "").unwrap();
        eventually(SOON, "the file is seen", || mount.at("dir/new").exists());
        // A local change is an event, after those that there would be.
        let local = File::create(mount.at("dir/local")).map(drop);
        assert_eq!(local.is_ok(), !options.ends_with("ro"));
        watcher.read();
        assert!(!watcher.seen.iter().any(|(_, name, _)| name == "dir/new"), "{:?}", watcher.seen);
        mount.unmount();
        fs::remove_file(world.served("dir/new")).unwrap();
    }
}

/// A process with a working directory and an open file in what others remove, and create again.
#[test]
fn what_is_in_use_stays_in_use() {
    let (world, mount) = watching_with(REPEATING);
    let mut watcher = Watcher::new(&mount, &["dir", "dir/below"]);
    let mut reader = File::open(mount.at("dir/below/file")).unwrap();
    fs::remove_file(world.served("dir/below/file")).unwrap();
    fs::remove_dir(world.served("dir/below")).unwrap();
    fs::create_dir(world.served("dir/below")).unwrap();
    let seen = watcher.until(&world, "dir/1");
    assert!(seen.contains(&("DELETE | ISDIR".to_owned(), "dir/below".to_owned())), "{seen:?}");
    assert!(seen.contains(&("CREATE | ISDIR".to_owned(), "dir/below".to_owned())), "{seen:?}");
    // The new directory is alive.
    File::create(mount.at("dir/below/own")).unwrap();
    assert!(world.served("dir/below/own").exists());
    let mut text = String::new();
    let _ = reader.read_to_string(&mut text);
    drop(reader);
    let listed = succeed(Command::new("ls").arg(mount.at("dir/below")));
    assert_eq!(listed.trim(), "own");
    mount.unmount();
}

#[test]
fn an_idle_mount_is_not_busy_and_a_killed_one_ends() {
    let (world, mut mount) = watching_with(REPEATING);
    let mut watcher = Watcher::new(&mount, &["dir"]);
    fs::write(world.served("dir/new"), "").unwrap();
    watcher.until(&world, "dir/1");
    drop(watcher);
    // Not a lazy one.
    succeed(Command::new("fusermount3").arg("-u").arg(mount.place()));
    assert_eq!(mount.wait_ended(), Some(0));

    let mut mount = world.mount(&["-o", REPEATING]);
    wait_for_watches(&mount, 3);
    let mut watcher = Watcher::new(&mount, &["dir"]);
    watcher.until(&world, "dir/2");
    let writer = std::thread::spawn({
        let dir = world.served("dir");
        move || (0..2000).for_each(|number| fs::write(dir.join(format!("{number}")), "").unwrap())
    });
    eventually(SOON, "some are seen", || {
        watcher.read();
        watcher.seen.len() > 100
    });
    mount.daemon().signal(rustix::process::Signal::KILL);
    assert_eq!(mount.wait_ended(), None);
    writer.join().unwrap();
    drop(watcher);
    umount(&[], mount.place());
}
