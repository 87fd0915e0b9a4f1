//! How many round trips an application waits for, by operation, with and without the helper.
//!
//! The link is so long that what the machines do is little beside it: the time that an operation
//! takes, divided by the round trip, is the number of requests that waited for one another.

use std::fs::{self, File, FileTimes, Permissions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use sandbox::link::{Link, LinkOptions};

use super::served_by_helper;
use crate::process::succeed;
use crate::world::World;

const RTT: Duration = Duration::from_millis(100);
/// A busy machine makes an operation longer, never shorter: the least of some attempts counts.
const ATTEMPTS: usize = 5;
/// Files of each directory.
const FILES: usize = 20;

/// An operation in a directory whose attributes are known and whose names are not.
struct Row {
    name: &'static str,
    /// What is not timed.
    before: fn(&Path),
    timed: fn(&Path),
    /// Most round trips over OpenSSH's server and over the helper.
    most: [u128; 2],
}

fn nothing(_: &Path) {}

fn stat(dir: &Path) {
    fs::symlink_metadata(dir.join("file0")).unwrap();
}

const ROWS: [Row; 7] = [
    Row { name: "stat", before: nothing, timed: stat, most: [1, 1] },
    Row {
        name: "open, read, close",
        before: nothing,
        timed: |dir| assert_eq!(fs::read(dir.join("file0")).unwrap(), b"content"),
        most: [3, 3],
    },
    Row {
        name: "ls -l",
        before: nothing,
        timed: |dir| {
            let listed = succeed(Command::new("ls").arg("-l").arg(dir));
            assert_eq!(listed.matches("file").count(), FILES, "{listed}");
        },
        most: [2, 1],
    },
    Row {
        name: "create, write, close",
        before: nothing,
        timed: |dir| File::create_new(dir.join("new")).unwrap().write_all(b"new").unwrap(),
        most: [3, 3],
    },
    Row {
        name: "a file of tar x",
        before: nothing,
        timed: |dir| {
            let mut file = File::create_new(dir.join("new")).unwrap();
            file.write_all(b"new").unwrap();
            file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)).unwrap();
            let own = rustix::process::geteuid().as_raw();
            fchown(&file, Some(own), None).unwrap();
            file.set_permissions(Permissions::from_mode(0o640)).unwrap();
        },
        most: [3, 3],
    },
    Row {
        name: "rename",
        before: stat,
        timed: |dir| fs::rename(dir.join("file0"), dir.join("new")).unwrap(),
        most: [2, 2],
    },
    Row {
        name: "unlink",
        before: stat,
        timed: |dir| fs::remove_file(dir.join("file0")).unwrap(),
        most: [1, 1],
    },
];

/// The round trips of each row.
fn counted(world: &World) -> [u128; ROWS.len()] {
    for row in 0..ROWS.len() {
        for attempt in 0..ATTEMPTS {
            let dir = world.served(format!("{row}-{attempt}"));
            fs::create_dir(&dir).unwrap();
            (0..FILES)
                .for_each(|file| fs::write(dir.join(format!("file{file}")), "content").unwrap());
        }
    }
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, world.sshd().port()));
    let link = Link::start(server, LinkOptions { rtt: RTT, rate_bytes_per_s: None }).unwrap();
    let mount = world.mount(&["-p", &link.port().to_string()]);
    let mut row = 0;
    let counts = ROWS.map(|Row { before, timed, .. }| {
        let attempts = (0..ATTEMPTS).map(|attempt| {
            let dir = mount.at(format!("{row}-{attempt}"));
            fs::symlink_metadata(&dir).unwrap();
            before(&dir);
            let start = Instant::now();
            timed(&dir);
            let taken = start.elapsed();
            // What goes on behind the operation is no part of the next.
            thread::sleep(RTT * 3);
            taken.as_micros() / RTT.as_micros()
        });
        let least = attempts.min().unwrap();
        row += 1;
        least
    });
    mount.unmount();
    counts
}

#[test]
fn an_operation_waits_for_few_round_trips() {
    let [plain, helper] = thread::scope(|scope| {
        [scope.spawn(|| counted(&World::new())), scope.spawn(|| counted(&served_by_helper("")))]
            .map(|counts| counts.join().unwrap())
    });
    println!("{:22} {:>6} {:>6}", "round trips", "plain", "helper");
    for (row, found) in ROWS.iter().zip(plain.into_iter().zip(helper)) {
        println!("{:22} {:>6} {:>6}", row.name, found.0, found.1);
    }
    for (row, found) in ROWS.iter().zip(plain.into_iter().zip(helper)) {
        assert!(found.0 <= row.most[0] && found.1 <= row.most[1], "{}: {found:?}", row.name);
    }
}
