//! A server that does not answer, but whose connection stands.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Caller, RECONNECT, SECOND};
use crate::behaviours::pattern;
use crate::process::eventually;
use crate::world::World;

const MIB: usize = 1 << 20;

/// Calls that have to ask the server. The paths are those of `blocked_calls_can_be_ended`. Those
/// that change a directory have one each: the kernel lets them wait for each other, and who waits
/// for such a lock hears no signal before the one who holds it has.
const CALLS: [(&str, &str, &str); 10] = [
    ("stat", "other", "ready; stat $ARGV[0]"),
    ("open", "file", "ready; open F, '<', $ARGV[0]"),
    (
        "cached read",
        "file",
        "open F, '<', $ARGV[0]; ready; sysseek F, 24 << 20, 0; sysread F, $x, 4096",
    ),
    (
        "direct read",
        "file",
        "use Fcntl; sysopen F, $ARGV[0], O_RDONLY | 040000; sysread F, $x, 4096;
         ready; sysseek F, 20 << 20, 0; sysread F, $x, 65536",
    ),
    ("listing", "dir", "ready; opendir D, $ARGV[0]; readdir D"),
    ("create", "a/new", "ready; open F, '>', $ARGV[0]"),
    ("unlink", "b/removed", "ready; unlink $ARGV[0]"),
    ("mkdir", "c/made", "ready; mkdir $ARGV[0]"),
    (
        "fsync",
        "synced",
        "use IO::Handle; open F, '>', $ARGV[0]; syswrite F, 'x'; ready; syswrite F, 'y'; F->sync",
    ),
    ("close", "closed", "open F, '>', $ARGV[0]; ready; syswrite F, 'x' x 100000; close F"),
];

#[test]
fn blocked_calls_can_be_ended() {
    let world = World::new();
    let content = pattern(32 * MIB);
    fs::write(world.served("file"), &content).unwrap();
    for name in ["dir", "a", "b", "c"] {
        fs::create_dir(world.served(name)).unwrap();
    }
    for signal in [Signal::INT, Signal::KILL] {
        for name in ["other", "b/removed", "synced", "closed"] {
            fs::write(world.served(name), b"content").unwrap();
        }
        let mount = world.mount(&["-o", "dir_cache=no"]);
        let mut callers: Vec<_> = CALLS
            .iter()
            .map(|(what, name, script)| (what, Caller::start(script, &mount.at(name))))
            .collect();
        world.sshd().stop();
        for (_, caller) in &mut callers {
            caller.block();
        }
        for (what, caller) in callers {
            let took = caller.end_by(signal);
            eprintln!("{what}, {signal:?}: {took:?}");
        }
        world.sshd().cont();
        // The mount works on, and the late answers have confused nobody.
        assert!(fs::read(mount.at("file")).unwrap() == content);
        assert_eq!(fs::read(mount.at("other")).unwrap(), b"content");
        fs::write(mount.at("after"), b"after").unwrap();
        assert_eq!(fs::read(world.served("after")).unwrap(), b"after");
        // Whether these were made is the server's affair; here it is known, either way.
        for name in ["a/new", "b/removed", "c/made"] {
            let (here, there) = (mount.at(name).exists(), world.served(name).exists());
            assert_eq!(here, there, "{name}");
        }
        let _ = fs::remove_dir(world.served("c/made"));
        let _ = fs::remove_file(world.served("a/new"));
    }
}

#[test]
fn a_direct_read_with_a_handler_is_interrupted() {
    let world = World::new();
    fs::write(world.served("file"), pattern(8 * MIB)).unwrap();
    let mount = world.mount(&[]);
    let script = "use Fcntl; sysopen F, $ARGV[0], O_RDONLY | 040000 or die; \
                  $SIG{INT} = sub {}; ready; sysseek F, 4 << 20, 0; \
                  my $got = sysread F, $x, 65536; my $error = $! + 0; \
                  print defined $got ? \"got $got\\n\" : \"errno $error\\n\"; \
                  print 'then ', sysread(F, $x, 65536), \"\\n\"";
    let mut caller = Caller::start(script, &mount.at("file"));
    world.sshd().stop();
    caller.block();
    let begun = Instant::now();
    caller.process.signal(Signal::INT);
    assert_eq!(caller.line(), format!("errno {}\n", libc::EINTR));
    let took = begun.elapsed();
    // Not as long as the server may only be slow.
    assert!(took >= SECOND && took < 2 * SECOND, "{took:?}");
    world.sshd().cont();
    assert_eq!(caller.line(), "then 65536\n", "the descriptor works on");
    assert!(caller.process.wait(SECOND * 10).success());
}

#[test]
fn cat_in_the_middle_of_a_file_can_be_ended_and_started_anew() {
    let world = World::new();
    let content = pattern(64 * MIB);
    fs::write(world.served("file"), &content).unwrap();
    let mount = world.mount(&[]);
    for (round, signal) in [Signal::INT, Signal::KILL, Signal::TERM].into_iter().enumerate() {
        let mut command = std::process::Command::new("cat");
        let copy = File::create(world.local("copy")).unwrap();
        let mut cat = crate::process::Process::spawn(command.arg(mount.at("file")).stdout(copy));
        let reached = (round as u64 + 1) << 20;
        eventually(Duration::from_secs(30), "cat reads", || {
            fs::metadata(world.local("copy")).unwrap().len() >= reached
        });
        world.sshd().stop();
        // What was on its way may carry it a little further, or to the end.
        let begun = Instant::now();
        cat.signal(signal);
        cat.wait(SECOND);
        eprintln!("{signal:?}: {:?}", begun.elapsed());
        let copy = fs::read(world.local("copy")).unwrap();
        assert!(content.starts_with(&copy), "what was read is right");
        world.sshd().cont();
    }
    assert!(fs::read(mount.at("file")).unwrap() == content);
}

/// A server that is stopped for longer than `request_timeout` counts as lost; calls wait for a new
/// connection (`hard`), and have the outcome that they would have had.
#[test]
fn calls_go_on_over_a_new_connection_after_request_timeout() {
    let world = World::new();
    let content = pattern(4 * MIB);
    fs::write(world.served("file"), &content).unwrap();
    let mount = world.mount(&["-o", "request_timeout=2,dir_cache=no"]).with_errors();
    let open = File::open(mount.at("file")).unwrap();
    world.sshd().stop();
    let calls: [(&str, &(dyn Fn() -> std::io::Result<()> + Sync)); 4] = [
        ("stat", &|| fs::metadata(mount.at("file")).map(drop)),
        ("open", &|| File::open(mount.at("file")).map(drop)),
        ("read", &|| open.read_exact_at(&mut [0; 4096], 2 << 20)),
        ("listing", &|| fs::read_dir(mount.place())?.try_for_each(|it| it.map(drop))),
    ];
    std::thread::scope(|scope| {
        for (what, call) in calls {
            scope.spawn(move || {
                let begun = Instant::now();
                let result = call();
                let took = begun.elapsed();
                eprintln!("{what}: {result:?} after {took:?}");
                assert!(took < Duration::from_secs(30), "{what} took {took:?}");
                result.unwrap_or_else(|error| panic!("{what}: {error}"));
            });
        }
    });
    // The stopped server is still there; a new one answers.
    eventually(RECONNECT, "a new connection", || fs::metadata(mount.at("file")).is_ok());
    assert!(fs::read(mount.at("file")).unwrap() == content);
}

#[test]
fn a_server_that_is_slow_but_answers_is_waited_for() {
    let world = World::new();
    fs::write(world.served("file"), b"content").unwrap();
    let mount = world.mount(&["-o", "request_timeout=30,dir_cache=no"]);
    world.sshd().stop();
    let read = read_in_background(&mount.at("file"));
    let mut other = Caller::start("ready; stat $ARGV[0]", &mount.at("other"));
    other.block();
    assert!(!read.is_finished());
    world.sshd().cont();
    assert_eq!(read.join().unwrap().unwrap(), b"content");
    assert!(other.process.wait(SECOND * 10).success());
}

fn read_in_background(path: &Path) -> std::thread::JoinHandle<std::io::Result<Vec<u8>>> {
    let path = path.to_owned();
    std::thread::spawn(move || fs::read(path))
}
