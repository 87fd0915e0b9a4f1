//! `consistency=watch` (W1 to W3): mounts and a server with the helper, which programs of the
//! server and other mounts change.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::helper::served_by_helper;
use crate::mount::Mount;
use crate::process::{eventually, succeed};
use crate::status::status;
use crate::world::{World, program};

/// The promise is one second. A busy machine may take longer, but not as long as the 20 s for which
/// attributes of old files are valid otherwise.
pub const SOON: Duration = Duration::from_secs(10);

/// Longer than all time-outs without a watch.
const LONG: Duration = Duration::from_secs(22);

/// Sets a time for which attributes are cached for long.
pub fn make_old(path: &Path) {
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let times = FileTimes::new().set_modified(long_ago);
    File::options().read(true).open(path).unwrap().set_times(times).unwrap();
}

/// A server with some files, and a mount that watches their directories.
fn watching() -> (World, Mount) {
    watching_with("consistency=watch")
}

/// The same, with these options.
pub fn watching_with(options: &str) -> (World, Mount) {
    let world = served_by_helper("");
    fs::create_dir_all(world.served("dir/below")).unwrap();
    for name in ["file", "dir/file", "dir/below/file"] {
        fs::write(world.served(name), format!("content of {name}")).unwrap();
        make_old(&world.served(name));
    }
    for name in ["dir/below", "dir", ""] {
        make_old(&world.served(name));
    }
    let mount = world.mount(&["-o", options]).with_errors();
    look_at_all(&mount);
    wait_for_watches(&mount, 3);
    (world, mount)
}

fn look_at_all(mount: &Mount) {
    succeed(Command::new("ls").arg("-lR").arg(mount.place()));
}

pub fn watched(mount: &Mount) -> Value {
    status(mount.place())["status"]["cache"]["watched"].clone()
}

pub fn wait_for_watches(mount: &Mount, directories: u64) {
    eventually(SOON, "its directories are watched", || {
        look_at_all(mount);
        watched(mount)["directories"] == directories
    });
    // Listed again since: the answers are from a time at which they were watched.
    sleep(Duration::from_millis(300));
    look_at_all(mount);
}

/// The requests that the mount has sent by kind to all hosts, but those for a root itself: its
/// attributes are known since the connection began, and are requested once more when they expire.
pub fn requests(mount: &Mount) -> Value {
    let stats = succeed(program().args(["stats", "--total", "--json"]).arg(mount.place()));
    let stats: Value = serde_json::from_str(&stats).unwrap();
    let mut all = serde_json::Map::new();
    for host in stats["hosts"].as_array().unwrap() {
        for (kind, count) in host["requests"].as_object().unwrap() {
            let before = all.get(kind).and_then(Value::as_u64).unwrap_or_default();
            all.insert(kind.clone(), (before + count.as_u64().unwrap()).into());
        }
    }
    all.remove("stat");
    Value::Object(all)
}

/// On a busy machine a report may come so late that it costs a request, so there are three tries,
/// without those in which somebody made the kernel drop what it knows. `use_all` must not read: the
/// kernel may drop pages at any time.
#[track_caller]
pub fn assert_needs_no_requests(mount: &Mount, use_all: impl Fn()) {
    let mut seen = vec![(requests(mount), watched(mount))];
    let mut tries = 0;
    while tries < 3 && seen.len() < 10 {
        let dropped = caches_dropped();
        sleep(LONG);
        use_all();
        let now = (requests(mount), watched(mount));
        if seen.last().unwrap().0 == now.0 {
            return;
        }
        tries += usize::from(caches_dropped() == dropped);
        seen.push(now);
    }
    panic!("requests, and the state of the watches: {seen:#?}");
}

/// How often the kernel's caches were dropped by `/proc/sys/vm/drop_caches`, as benchmarks do.
fn caches_dropped() -> Vec<String> {
    let counters = fs::read_to_string("/proc/vmstat").unwrap();
    counters.lines().filter(|line| line.starts_with("drop_")).map(str::to_owned).collect()
}

/// The only use of the mount is the one that connects.
#[test]
fn w1_a_delayed_connection_is_watched_as_soon_as_it_is_there() {
    let world = served_by_helper("");
    fs::write(world.served("file"), "content").unwrap();
    let mount = world.mount(&["-o", "consistency=watch,delay_connect"]);
    assert_eq!(fs::metadata(mount.at("file")).unwrap().len(), 7);
    eventually(SOON, "its directory is watched", || watched(&mount)["directories"] == 1);
    mount.unmount();
}

#[test]
fn w1_changes_at_the_server_are_seen() {
    let (world, mount) = watching();
    let (there, here) = (world.served("dir/file"), mount.at("dir/file"));
    let is = |content: &str| fs::read_to_string(&here).is_ok_and(|it| it == content);

    // Written in place, with the old time.
    fs::write(&there, "other, longer content").unwrap();
    make_old(&there);
    eventually(SOON, "the size is the new one", || fs::metadata(&here).unwrap().len() == 21);
    assert!(is("other, longer content"));
    // Replaced, as by an editor or rsync.
    fs::write(world.served("dir/.new"), "replaced").unwrap();
    make_old(&world.served("dir/.new"));
    fs::rename(world.served("dir/.new"), &there).unwrap();
    eventually(SOON, "the new file is seen", || is("replaced"));
    assert!(!mount.at("dir/.new").exists());
    // Attributes.
    fs::set_permissions(&there, fs::Permissions::from_mode(0o751)).unwrap();
    eventually(SOON, "the mode is seen", || fs::metadata(&here).unwrap().mode() & 0o777 == 0o751);
    // Names, absent before.
    assert!(!mount.at("dir/new").exists());
    fs::write(world.served("dir/new"), "new").unwrap();
    eventually(SOON, "the file is there", || mount.at("dir/new").exists());
    fs::rename(world.served("dir/new"), world.served("dir/below/moved")).unwrap();
    eventually(SOON, "it has moved", || {
        !mount.at("dir/new").exists() && mount.at("dir/below/moved").exists()
    });
    fs::remove_file(world.served("dir/below/moved")).unwrap();
    let names = |dir: &str| {
        let names = fs::read_dir(mount.at(dir)).unwrap().map(|it| it.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    eventually(SOON, "it is removed", || names("dir/below") == ["file"]);

    // A whole tree: what was watched below it has another path.
    fs::rename(world.served("dir"), world.served("tree")).unwrap();
    eventually(SOON, "the tree has moved", || names("") == ["file", "tree"]);
    assert_eq!(fs::read_to_string(mount.at("tree/file")).unwrap(), "replaced");
    wait_for_watches(&mount, 3);
    fs::write(world.served("tree/below/file"), "changed in its new place").unwrap();
    eventually(SOON, "the change is seen", || {
        fs::read_to_string(mount.at("tree/below/file")).unwrap() == "changed in its new place"
    });
    mount.unmount();
}

#[test]
fn w1_what_does_not_change_is_not_requested() {
    let (_world, mount) = watching();
    let use_all = |then: fn(File, &str)| {
        look_at_all(&mount);
        for name in ["file", "dir/file", "dir/below/file"] {
            then(File::open(mount.at(name)).unwrap(), name);
            assert!(!mount.at(format!("{name}-absent")).exists());
        }
    };
    use_all(|file, name| {
        assert_eq!(io::read_to_string(file).unwrap(), format!("content of {name}"));
    });
    assert_needs_no_requests(&mount, || use_all(|_, _| ()));
    mount.unmount();
}

/// `tail -f`: a descriptor that stays open.
#[test]
fn w1_an_open_descriptor_reads_what_was_appended() {
    let (world, mount) = watching();
    let mut reader = File::open(mount.at("dir/file")).unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content of dir/file");
    for round in 0..5 {
        let mut log = OpenOptions::new().append(true).open(world.served("dir/file")).unwrap();
        writeln!(log, "line {round}").unwrap();
        eventually(SOON, "the line is read", || {
            reader.read_to_string(&mut text).unwrap();
            text.ends_with(&format!("line {round}\n"))
        });
    }
    // The first page was read before.
    reader.seek(SeekFrom::Start(0)).unwrap();
    let mut again = String::new();
    reader.read_to_string(&mut again).unwrap();
    assert_eq!(again, text);
    drop(reader);
    mount.unmount();
}

#[test]
fn w1_two_mounts_see_what_each_other_changes() {
    let (world, one) = watching();
    let other = world.mount(&["-o", "consistency=watch"]);
    look_at_all(&other);
    wait_for_watches(&other, 3);
    for round in 0..5 {
        let (from, to) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let content = format!("round {round}");
        fs::write(from.at("dir/new"), &content).unwrap();
        assert_eq!(fs::read_to_string(from.at("dir/new")).unwrap(), content);
        eventually(SOON, "the other mount reads it", || {
            fs::read_to_string(to.at("dir/new")).is_ok_and(|it| it == content)
        });
        fs::rename(to.at("dir/new"), to.at("dir/below/new")).unwrap();
        eventually(SOON, "the first mount has the new name", || {
            from.at("dir/below/new").exists() && !from.at("dir/new").exists()
        });
        fs::remove_file(from.at("dir/below/new")).unwrap();
        assert!(!from.at("dir/below/new").exists());
        eventually(SOON, "it is removed", || !to.at("dir/below/new").exists());
    }
    other.unmount();
    one.unmount();
}

/// What is watched is the directory, and not the link that leads to it.
#[test]
fn w1_the_root_may_be_a_symbolic_link() {
    let world = served_by_helper("");
    fs::create_dir(world.served("real")).unwrap();
    fs::write(world.served("real/file"), "content").unwrap();
    make_old(&world.served("real/file"));
    make_old(&world.served("real"));
    symlink("real", world.served("link")).unwrap();
    let source = world.source_of(&world.served("link"));
    let mount = world.mount_of(&source, &["-o", "consistency=watch"]);
    wait_for_watches(&mount, 1);
    assert!(!mount.at("new").exists());
    fs::write(world.served("real/file"), "changed").unwrap();
    make_old(&world.served("real/file"));
    fs::write(world.served("real/new"), "new").unwrap();
    eventually(SOON, "the new file is there", || mount.at("new").exists());
    assert_eq!(fs::read_to_string(mount.at("file")).unwrap(), "changed");
    mount.unmount();
}

/// The log is rotated while a program has it open.
#[test]
fn w1_an_open_file_that_loses_its_name_is_still_seen_to_grow() {
    let (world, mount) = watching();
    let reader = File::open(mount.at("dir/file")).unwrap();
    let length = || reader.metadata().unwrap().len();
    assert_eq!(length(), 19);
    fs::rename(world.served("dir/file"), world.served("dir/file.1")).unwrap();
    fs::write(world.served("dir/file"), "the next log").unwrap();
    eventually(SOON, "the next log is seen", || {
        fs::metadata(mount.at("dir/file")).is_ok_and(|it| it.len() == 12)
    });
    let mut writer = OpenOptions::new().append(true).open(world.served("dir/file.1")).unwrap();
    writer.write_all(b" and more").unwrap();
    // It is not watched any more: the time-outs of close-to-open.
    eventually(2 * LONG, "the old log grows", || length() == 28);
    drop(reader);
    mount.unmount();
}

#[test]
fn w2_a_lost_connection_makes_everything_be_asked_for_again() {
    let (world, mount) = watching();
    // Stopped, so that the changes are made before the loss is noticed.
    world.sshd().stop();
    fs::write(world.served("dir/file"), "changed meanwhile").unwrap();
    make_old(&world.served("dir/file"));
    fs::remove_file(world.served("file")).unwrap();
    world.sshd().kill_sftp_servers();
    eventually(SOON, "the loss is noticed", || watched(&mount)["losses"] == 1);
    assert_eq!(fs::read_to_string(mount.at("dir/file")).unwrap(), "changed meanwhile");
    assert!(!mount.at("file").exists());
    wait_for_watches(&mount, 3);
    fs::write(world.served("dir/below/file"), "changed later").unwrap();
    eventually(SOON, "the change is seen", || {
        fs::read_to_string(mount.at("dir/below/file")).unwrap() == "changed later"
    });
    mount.unmount();
}

/// More changes than the queue of the server has room for, while the helper is stopped.
#[test]
fn w2_an_overflow_makes_everything_be_asked_for_again() {
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let most: usize = most.trim().parse().unwrap();
    if most > 100_000 {
        eprintln!("skipped: the queue has room for {most} events");
        return;
    }
    let (world, mount) = watching();
    world.sshd().stop();
    for number in 0..most / 2 + 100 {
        let name = world.served(format!("dir/many{}", number % 2));
        fs::write(&name, "").unwrap();
        fs::remove_file(&name).unwrap();
    }
    // The events of this one are lost.
    fs::write(world.served("dir/below/file"), "behind the others").unwrap();
    make_old(&world.served("dir/below/file"));
    world.sshd().cont();
    eventually(SOON, "the overflow is noticed", || watched(&mount)["losses"] == 1);
    assert_eq!(fs::read_to_string(mount.at("dir/below/file")).unwrap(), "behind the others");
    wait_for_watches(&mount, 3);
    mount.unmount();
}

#[test]
fn w3_own_changes_need_few_requests() {
    let (_world, mount) = watching();
    for number in 0..50 {
        fs::write(mount.at(format!("dir/own{number}")), format!("own {number}")).unwrap();
    }
    fs::remove_file(mount.at("dir/own0")).unwrap();
    fs::rename(mount.at("dir/own1"), mount.at("dir/renamed")).unwrap();
    assert!(!mount.at("dir/own0").exists() && mount.at("dir/renamed").exists());
    sleep(Duration::from_secs(3));
    let open_all = || {
        look_at_all(&mount);
        let name = |number| mount.at(format!("dir/own{number}"));
        (2..50).map(|number| File::open(name(number)).unwrap()).collect::<Vec<_>>()
    };
    let read_all = || {
        for (number, file) in (2..50).zip(open_all()) {
            assert_eq!(io::read_to_string(file).unwrap(), format!("own {number}"));
        }
    };
    read_all();
    sleep(Duration::from_secs(2));
    read_all();
    assert_needs_no_requests(&mount, || drop(open_all()));
    mount.unmount();
}

#[test]
fn a_shell_that_truncates_truncates() {
    let (world, mount) = watching();
    for content in ["a long content\n", "short\n", "a longer content than before\n"] {
        let script = "printf '%s' \"$2\" > \"$1\"";
        let path = mount.at("dir/file");
        succeed(Command::new("sh").args(["-c", script, "sh"]).arg(&path).arg(content));
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
        assert_eq!(fs::read_to_string(world.served("dir/file")).unwrap(), content);
    }
    mount.unmount();
}

/// The kernel does not report what changes in sysfs.
#[test]
fn a_file_system_without_events_is_as_with_close_to_open() {
    let world = served_by_helper("");
    let source = world.source_of(Path::new("/sys/kernel"));
    let mount = world.mount_of(&source, &["-o", "consistency=watch,ro"]);
    succeed(Command::new("ls").arg("-l").arg(mount.place()));
    eventually(SOON, "the status says so", || {
        fs::read_dir(mount.place()).unwrap().for_each(drop);
        let _ = fs::metadata(mount.at("no such entry"));
        watched(&mount)["problem"].as_str().is_some_and(|it| it.contains("does not report"))
    });
    assert_eq!(watched(&mount)["directories"], 0);
    mount.unmount();
}

#[test]
fn without_the_helper_the_mount_says_that_nothing_is_watched() {
    let world = World::new();
    fs::write(world.served("file"), "content").unwrap();
    let mount = world.mount(&["-o", "consistency=watch"]).with_errors();
    assert_eq!(fs::read_to_string(mount.at("file")).unwrap(), "content");
    assert!(mount.words().contains("the server does not report changes"), "{}", mount.words());
    assert_eq!(watched(&mount)["problem"], "the server does not report changes");
    mount.unmount();
}
