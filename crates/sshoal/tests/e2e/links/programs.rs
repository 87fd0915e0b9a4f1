//! dd, rsync, tar and readers, through an outage of the only link.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::{Line, Outage, SOON, outage_time};
use crate::behaviours::pattern;
use crate::mount::Mount;
use crate::process::{LIMIT, Process, eventually, shell};

const MIB: u64 = 1 << 20;

/// So slow that every program is on its way when the link breaks.
const RATE_BYTES_PER_S: u64 = 20 * MIB;

/// What each program has to move, in bytes: about two seconds.
const CONTENT_BYTES: u64 = 40 * MIB;

/// The link breaks when so much of it has crossed.
const BREAKS_AFTER_BYTES: u64 = 10 * MIB;

/// What a user is told when an outage is long, by the log.
const TOLD: &str = "not responding, still trying";

/// Starts the program, breaks the link while it works, mends it, and sees it end well.
#[track_caller]
fn through_an_outage(line: &Line, mount: &Mount, outage: Outage, command: &mut Command) {
    let before = line.moved_bytes();
    let errors = line.local("errors");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&errors).unwrap());
    let mut process = Process::spawn(command);
    line.wait_moved(before, BREAKS_AFTER_BYTES);
    line.outage(outage, mount);
    let status = process.wait(LIMIT);
    let said = fs::read_to_string(&errors).unwrap();
    assert!(status.success(), "{outage:?}, {command:?}: {status}: {said}");
}

/// The user was told once, if the outage was long enough for it.
#[track_caller]
fn assert_told_once(mount: &Mount) {
    let words = mount.words();
    let expected = usize::from(outage_time().as_secs() > 10);
    assert_eq!(words.matches(TOLD).count(), expected, "{words}");
    assert!(!words.contains("panicked"), "{words}");
}

fn put_file(path: &Path) {
    fs::write(path, pattern(CONTENT_BYTES as usize)).unwrap();
}

/// Files of many sizes with times of their own.
fn put_tree(root: &Path) {
    let sizes = [0, 100, 10_000, 40_000, 131_073, 700_000];
    let (mut bytes, mut number) = (0, 0);
    while bytes < CONTENT_BYTES {
        let dir = root.join(format!("dir{}/sub{}", number % 5, number % 11));
        fs::create_dir_all(&dir).unwrap();
        let len = sizes[number % sizes.len()] + number;
        let path = dir.join(format!("file {number}"));
        fs::write(&path, pattern(len)).unwrap();
        let time = std::time::Duration::from_secs(1_000_000_000 + number as u64);
        File::open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH + time).unwrap();
        bytes += len as u64;
        number += 1;
    }
}

/// Bytes, kinds, permissions, names, and times, by two programs that know both trees from disk.
#[track_caller]
fn assert_same_tree(one: &Path, other: &Path) {
    assert_eq!(shell("diff -r --no-dereference \"$1\" \"$2\"", &[one, other]), "");
    assert_eq!(shell("rsync -acni --delete \"$1\"/ \"$2\"/", &[one, other]), "");
}

const OUTAGES: [Outage; 2] = [Outage::Cut, Outage::Stall];

/// L1: `conv=fsync` and exit code 0 say that all of it is on the server's disk.
#[test]
fn dd_with_fsync_goes_on() {
    for outage in OUTAGES {
        let line = Line::new(Some(RATE_BYTES_PER_S));
        put_file(&line.local("source"));
        let mount = line.mount(&[]);
        let mut command = Command::new("dd");
        command.arg(format!("if={}", line.local("source").display()));
        command.arg(format!("of={}", mount.at("target").display()));
        through_an_outage(&line, &mount, outage, command.args(["bs=128k", "conv=fsync"]));
        assert!(
            fs::read(line.served("target")).unwrap() == fs::read(line.local("source")).unwrap()
        );
        if outage == Outage::Cut {
            assert_told_once(&mount);
        }
        mount.unmount();
    }
}

/// L1
#[test]
fn rsync_into_the_mount_goes_on() {
    for outage in OUTAGES {
        let line = Line::new(Some(RATE_BYTES_PER_S));
        put_tree(&line.local("source"));
        let mount = line.mount(&[]);
        let mut command = Command::new("rsync");
        command.arg("-a").arg(line.local("source/")).arg(mount.at("target"));
        through_an_outage(&line, &mount, outage, &mut command);
        mount.unmount();
        assert_same_tree(&line.local("source"), &line.served("target"));
    }
}

/// L1
#[test]
fn rsync_out_of_the_mount_goes_on() {
    for outage in OUTAGES {
        let line = Line::new(Some(RATE_BYTES_PER_S));
        put_tree(&line.served("source"));
        let mount = line.mount(&[]);
        let mut command = Command::new("rsync");
        command.arg("-a").arg(mount.at("source/")).arg(line.local("target"));
        through_an_outage(&line, &mount, outage, &mut command);
        mount.unmount();
        assert_same_tree(&line.served("source"), &line.local("target"));
    }
}

/// L1
#[test]
fn tar_into_the_mount_goes_on() {
    for outage in OUTAGES {
        let line = Line::new(Some(RATE_BYTES_PER_S));
        put_tree(&line.local("source"));
        shell("tar -C \"$1\" -cf \"$2\" source", &[&line.local(""), &line.local("archive")]);
        let mount = line.mount(&[]);
        let mut command = Command::new("tar");
        command.arg("-C").arg(mount.place()).arg("-xf").arg(line.local("archive"));
        through_an_outage(&line, &mount, outage, &mut command);
        mount.unmount();
        assert_same_tree(&line.local("source"), &line.served("source"));
    }
}

/// A1 and L1: a reader in the middle of a file gets the rest of it, and what else is open stays
/// open. A connection that stands still for longer than the limit is given up for a new one.
#[test]
fn open_files_stay_open_and_a_reader_goes_on() {
    let limit = format!("request_timeout={}", outage_time().as_secs() / 2);
    for (outage, options) in
        [(Outage::Cut, &[][..]), (Outage::Stall, &[]), (Outage::Stall, &["-o", limit.as_str()])]
    {
        let line = Line::new(Some(RATE_BYTES_PER_S));
        put_file(&line.served("source"));
        let content = pattern(CONTENT_BYTES as usize);
        fs::write(line.served("idle"), "idle").unwrap();
        let mount = line.mount(options);
        let idle = File::open(mount.at("idle")).unwrap();
        let written = File::create_new(mount.at("written")).unwrap();
        written.write_all_at(b"before", 0).unwrap();
        let removed = File::create_new(mount.at("renamed")).unwrap();
        fs::rename(mount.at("renamed"), mount.at("new name")).unwrap();
        let reached = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut file = File::open(mount.at("source")).unwrap();
                let (mut got, mut block) = (Vec::new(), vec![0; 128 << 10]);
                loop {
                    let count = file.read(&mut block).unwrap();
                    got.extend_from_slice(&block[..count]);
                    reached.store(got.len() as u64, Ordering::Relaxed);
                    if count == 0 {
                        return got;
                    }
                }
            });
            eventually(SOON, "the reader is in the middle", || {
                reached.load(Ordering::Relaxed) >= BREAKS_AFTER_BYTES
            });
            line.break_it(outage);
            // No program is started meanwhile: it would inherit the file and close it, which waits
            // for what was written. It may have to wait.
            let meanwhile = scope.spawn(|| written.write_all_at(b" meanwhile", 6));
            std::thread::sleep(outage_time());
            line.mend(outage);
            meanwhile.join().unwrap().unwrap();
            assert!(reader.join().unwrap() == content, "{outage:?}: wrong bytes");
        });
        let mut bytes = [0; 4];
        idle.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"idle");
        written.write_all_at(b" after", 16).unwrap();
        written.sync_all().unwrap();
        assert_eq!(fs::read(line.served("written")).unwrap(), b"before meanwhile after");
        removed.write_all_at(b"by its new name", 0).unwrap();
        removed.sync_all().unwrap();
        assert_eq!(fs::read(line.served("new name")).unwrap(), b"by its new name");
        drop((idle, written, removed));
        line.assert_nothing_leaked(&mount, 8);
        mount.unmount();
    }
}
