//! Several processes, several mounts, and things with several names.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::process::{Process, run, succeed};
use crate::world::World;

/// A8: appended records are never torn and never overwritten, by whichever descriptor or mount.
#[test]
fn a8_appends_do_not_overwrite_each_other() {
    const RECORDS: usize = 400;
    let world = World::new();
    let mounts = [world.mount(&[]), world.mount(&["-o", "max_conns=2"])];
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let path = mounts[writer % 2].at("log");
                scope.spawn(move || {
                    let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
                    for record in 0..RECORDS {
                        let line = format!("{writer}:{record}:{}\n", "x".repeat(record % 300));
                        log.write_all(line.as_bytes()).unwrap();
                    }
                })
            })
            .collect();
        // A child inherits the descriptors and closes them: each time, the file is flushed.
        while writers.iter().any(|writer| !writer.is_finished()) {
            assert!(Command::new("true").status().unwrap().success());
        }
    });
    let text = fs::read_to_string(world.served("log")).unwrap();
    let mut next = [0; 4];
    for line in text.lines() {
        let mut fields = line.split(':');
        let mut number = || fields.next().and_then(|it| it.parse::<usize>().ok()).expect(line);
        let (writer, record) = (number(), number());
        assert_eq!(record, next[writer], "out of order: {line}");
        assert_eq!(fields.next().unwrap().len(), record % 300, "torn: {line}");
        next[writer] += 1;
    }
    assert_eq!(next, [RECORDS; 4]);
}

/// A8 and A2: two descriptors of one process.
#[test]
fn a8_two_descriptors_append_in_turns() {
    let world = World::new();
    let mount = world.mount(&[]);
    let open = || OpenOptions::new().append(true).create(true).open(mount.at("log")).unwrap();
    let (mut one, mut two) = (open(), open());
    let mut expected = String::new();
    for round in 0..100 {
        let line = format!("line {round}\n");
        if round % 2 == 0 { &mut one } else { &mut two }.write_all(line.as_bytes()).unwrap();
        expected += &line;
        assert_eq!(one.metadata().unwrap().len(), expected.len() as u64);
    }
    assert_eq!(fs::read_to_string(mount.at("log")).unwrap(), expected);
}

/// A7: what was unlinked while open stays usable, also by another name's removal.
#[test]
fn a7_an_unlinked_file_stays_usable_through_its_descriptor() {
    let world = World::new();
    let mount = world.mount(&[]);
    let mut file =
        File::options().read(true).write(true).create_new(true).open(mount.at("file")).unwrap();
    file.write_all(b"before").unwrap();
    fs::remove_file(mount.at("file")).unwrap();
    fs::write(mount.at("file"), b"another one").unwrap();
    file.write_all(b", after").unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), 13);
    file.set_len(12).unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before, afte");
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"another one");
    // Unlinked on the server, after the first read.
    let held = File::open(mount.at("file")).unwrap();
    held.read_exact_at(&mut [0], 0).unwrap();
    fs::remove_file(world.served("file")).unwrap();
    let mut some = [0; 7];
    held.read_exact_at(&mut some, 0).unwrap();
    assert_eq!(&some, b"another");
}

/// Times that were set through the mount are shown to the nanosecond; ctime moves with changes.
#[test]
fn times_are_as_exact_as_they_were_set() {
    let world = World::new();
    let mount = world.mount(&[]);
    fs::write(mount.at("file"), b"x").unwrap();
    succeed(
        Command::new("touch").args(["-d", "2020-02-02 02:02:02.123456789"]).arg(mount.at("file")),
    );
    let meta = fs::metadata(mount.at("file")).unwrap();
    assert_eq!(meta.mtime_nsec(), 123_456_789);
    fs::copy(mount.at("file"), world.local("copy")).unwrap();
    succeed(Command::new("cp").arg("-p").arg(mount.at("file")).arg(mount.at("kept")));
    let kept = fs::metadata(mount.at("kept")).unwrap();
    assert_eq!((kept.mtime(), kept.mtime_nsec()), (meta.mtime(), 123_456_789));
    assert_eq!(fs::metadata(world.served("kept")).unwrap().mtime(), meta.mtime());
    // Another second on the server ends that.
    succeed(Command::new("touch").args(["-d", "2021-01-01 00:00:00.5"]).arg(world.served("file")));
    crate::process::eventually(Duration::from_secs(25), "the server's time", || {
        let meta = fs::metadata(mount.at("file")).unwrap();
        meta.mtime() > kept.mtime() && meta.mtime_nsec() == 0
    });
}

/// Locks hold between the processes of this machine.
#[test]
fn locks_are_those_of_this_machine() {
    let world = World::new();
    let mount = world.mount(&[]);
    let file = File::create(mount.at("lock")).unwrap();
    let try_flock = |exclusive: bool| {
        let mode = if exclusive { "-x" } else { "-s" };
        run(Command::new("flock").args(["-n", mode]).arg(mount.at("lock")).arg("true"))
            .status
            .success()
    };
    assert!(try_flock(true));
    flock(&file, FlockOperation::LockExclusive).unwrap();
    assert!(!try_flock(true) && !try_flock(false));
    flock(&file, FlockOperation::LockShared).unwrap();
    assert!(!try_flock(true) && try_flock(false));
    flock(&file, FlockOperation::Unlock).unwrap();
    assert!(try_flock(true));

    // fcntl's, by perl's own structure of it; one that waits can be ended.
    let lock = |command: &str, kind: &str| {
        format!(
            "use Fcntl qw(:DEFAULT :flock); open F, '+<', $ARGV[0] or die; \
             my $l = pack 's s x4 q q i x4', {kind}, 0, 0, 0, 0; \
             print fcntl(F, {command}, $l) ? \"got\\n\" : \"refused\\n\"; $| = 1; print ''; <STDIN>"
        )
    };
    let start = |command: &str| {
        let mut perl = Command::new("perl");
        perl.args(["-e", &format!("$| = 1; {}", lock(command, "F_WRLCK"))]).arg(mount.at("lock"));
        Process::spawn(perl.stdin(Stdio::piped()).stdout(Stdio::piped()))
    };
    let line = |process: &mut Process| {
        let mut line = [0; 16];
        let read = process.child().stdout.as_mut().unwrap().read(&mut line).unwrap();
        String::from_utf8_lossy(&line[..read]).into_owned()
    };
    let mut holder = start("F_SETLK");
    assert_eq!(line(&mut holder), "got\n");
    let mut other = start("F_SETLK");
    assert_eq!(line(&mut other), "refused\n");
    let mut waiting = start("F_SETLKW");
    assert_eq!(waiting.try_wait(Duration::from_millis(200)), None);
    let mut given_up = start("F_SETLKW");
    assert_eq!(given_up.try_wait(Duration::from_millis(100)), None);
    given_up.signal(rustix::process::Signal::INT);
    given_up.wait(Duration::from_secs(1));
    drop(holder.child().stdin.take());
    holder.wait(Duration::from_secs(5));
    assert_eq!(line(&mut waiting), "got\n", "its turn has come");
}

/// Who works in the mount keeps it, and nothing is lost when the last one leaves.
#[test]
fn umount_is_refused_while_a_working_directory_is_in_the_mount() {
    let world = World::new();
    let mount = world.mount(&[]);
    fs::create_dir(mount.at("dir")).unwrap();
    let mut standing = Process::spawn(
        Command::new("cat")
            .current_dir(mount.at("dir"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null()),
    );
    let refused = crate::mount::umount(&[], mount.place());
    assert!(refused.stderr.contains("busy"), "{}", refused.stderr);
    drop(standing.child().stdin.take());
    standing.wait(Duration::from_secs(5));
    mount.unmount();
}
