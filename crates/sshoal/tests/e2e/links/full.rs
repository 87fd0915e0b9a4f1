//! A server whose disk is full, and a link that breaks while it is.
//!
//! What must hold: whoever writes is told ENOSPC and nothing else, at the write, the fsync or the
//! close; what fsync has acknowledged is there; and when there is room again, the file that was
//! open all the time goes on, with the right bytes in what is written again.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use sandbox::fleet::{Fleet, Plan};
use sandbox::leftover;
use sandbox::link::LinkOptions;
use sandbox::sshd::{Options, SftpServer};
use tempfile::TempDir;

use super::{HOST, SOON, outage_time};
use crate::behaviours::pattern;
use crate::mount::Mount;
use crate::process::eventually;
use crate::world::program;

const MIB: usize = 1 << 20;

/// The server's disk.
const ROOM_BYTES: usize = 16 * MIB;

/// What else is on it, in whose place there is room later.
const FILLER_BYTES: usize = 8 * MIB;

/// What is written: with the filler more than there is room for, without it less.
const CONTENT_BYTES: usize = 12 * MIB;

/// What one write writes.
const BLOCK_BYTES: usize = 64 << 10;

/// So many blocks, then fsync.
const BLOCKS_PER_SYNC: usize = 8;

/// So slow that writes are on their way when the link breaks.
const RATE_BYTES_PER_S: u64 = 20 << 20;

/// A server with a small disk of its own, and a mount of it.
struct Disk {
    mount: Option<Mount>,
    fleet: Fleet,
    dir: TempDir,
}

impl Disk {
    fn new() -> Disk {
        let dir = tempfile::Builder::new().prefix("e2e-").tempdir().unwrap();
        // In the namespace of the server, which outlives each of its sessions. The directory on
        // which it lies has to stay: with it the kernel would take the disk away.
        let script = format!(
            "mkdir -p {place} && {{ mountpoint -q {place} || \
             mount -t tmpfs -o size={ROOM_BYTES} tmpfs {place}; }} && \
             exec /usr/lib/openssh/sftp-server\n",
            place = dir.path().join("small").display()
        );
        let options = Options { sftp_server: SftpServer::Command(script), ..Options::default() };
        let rate_bytes_per_s = Some(RATE_BYTES_PER_S);
        let link = LinkOptions { rate_bytes_per_s, ..LinkOptions::default() };
        let fleet = Fleet::start([Plan::new(HOST).with(options).behind(link)]).unwrap();
        assert!(fleet.sshd(HOST).is_isolated(), "this test needs root");
        let place = dir.path().join("mnt");
        fs::create_dir(&place).unwrap();
        let mut command = program();
        command.arg("-F").arg(fleet.config_path()).arg("-f");
        command.arg(format!("{HOST}:{}", dir.path().join("small").display())).arg(&place);
        let mount = Some(Mount::start(command, place).with_errors());
        Disk { mount, fleet, dir }
    }

    fn mount(&self) -> &Mount {
        self.mount.as_ref().unwrap()
    }

    /// A path on the disk, as the server sees it.
    fn on_server(&self, name: &str) -> PathBuf {
        let pid = self.fleet.sshd(HOST).pid().unwrap();
        let place = self.dir.path().join("small");
        PathBuf::from(format!("/proc/{pid}/root{}", place.display())).join(name)
    }

    fn cut(&self) {
        self.fleet.link(HOST).refuse();
        self.fleet.link(HOST).cut();
    }

    fn mend(&self) {
        self.fleet.link(HOST).accept();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the server's log:\n{}---", self.fleet.log());
        } else {
            self.mount.take();
            leftover::assert_none(self.dir.path());
        }
    }
}

/// A program that writes a file from its start to its end, with an fsync now and then.
struct Writer {
    file: File,
    content: Vec<u8>,
    errors: Vec<io::Error>,
    /// What an fsync has acknowledged, before anything failed.
    synced_bytes: usize,
}

impl Writer {
    fn new(file: File) -> Writer {
        let mut content = pattern(CONTENT_BYTES);
        for (number, block) in content.chunks_mut(BLOCK_BYTES).enumerate() {
            block[..8].copy_from_slice(&number.to_ne_bytes());
        }
        Writer { file, content, errors: Vec::new(), synced_bytes: 0 }
    }

    /// Writes and syncs what is in this range; goes on after errors, which it keeps.
    fn write(&mut self, bytes: Range<usize>) {
        for (number, at) in bytes.clone().step_by(BLOCK_BYTES).enumerate() {
            let block = &self.content[at..at + BLOCK_BYTES];
            self.errors.extend(self.file.write_all_at(block, at as u64).err());
            if number % BLOCKS_PER_SYNC == BLOCKS_PER_SYNC - 1 {
                match self.file.sync_all() {
                    Ok(()) if self.errors.is_empty() => self.synced_bytes = at + BLOCK_BYTES,
                    Ok(()) => {}
                    Err(error) => self.errors.push(error),
                }
            }
        }
    }

    /// The disk was full, and nothing else was wrong.
    #[track_caller]
    fn assert_full(&mut self) {
        assert!(!self.errors.is_empty(), "nobody was told that the disk is full");
        let is_full = |error: &io::Error| error.raw_os_error() == Some(libc::ENOSPC);
        assert!(self.errors.iter().all(is_full), "{:?}", self.errors);
        assert!(self.synced_bytes > 0, "{:?}", self.errors);
        self.errors.clear();
    }
}

#[track_caller]
fn assert_content(disk: &Disk, name: &str, expected: &[u8]) {
    let there = fs::read(disk.on_server(name)).unwrap();
    let differs = there.iter().zip(expected).position(|(one, other)| one != other);
    assert!(there.len() >= expected.len() && differs.is_none(), "{} {differs:?}", there.len());
}

/// The way of a file whose writer is told that the disk is full, and tries again when it is not.
/// `meanwhile` is done once while blocks are written for which there is no room.
fn writes_through_a_full_disk(meanwhile: impl FnOnce(&Disk) + Send) {
    let disk = Disk::new();
    fs::write(disk.on_server("filler"), pattern(FILLER_BYTES)).unwrap();
    let mut writer = Writer::new(File::create_new(disk.mount().at("file")).unwrap());
    let room_bytes = ROOM_BYTES - FILLER_BYTES;
    writer.write(0..room_bytes / 2);
    assert!(writer.errors.is_empty(), "{:?}", writer.errors);
    std::thread::scope(|scope| {
        scope.spawn(|| meanwhile(&disk));
        writer.write(room_bytes / 2..CONTENT_BYTES);
    });
    let synced_bytes = writer.synced_bytes;
    writer.assert_full();
    assert_content(&disk, "file", &writer.content[..synced_bytes]);

    // The same open file goes on: what was refused is written once more.
    fs::remove_file(disk.on_server("filler")).unwrap();
    writer.write(synced_bytes..CONTENT_BYTES);
    assert!(writer.errors.is_empty(), "{:?}", writer.errors);
    assert_eq!(writer.synced_bytes, CONTENT_BYTES);
    assert_content(&disk, "file", &writer.content);
    crate::faults::close(writer.file).unwrap();
    let read = fs::read(disk.mount().at("file")).unwrap();
    assert!(read == writer.content, "wrong bytes are read");
}

#[test]
fn an_open_file_goes_on_when_there_is_room_again() {
    writes_through_a_full_disk(|_| {});
}

/// The error of a write that was sent again is the server's, and not that of the link.
#[test]
fn a_link_that_breaks_while_the_disk_is_full_changes_nothing() {
    writes_through_a_full_disk(|disk| {
        let full = || fs::metadata(disk.on_server("file")).unwrap().len();
        eventually(SOON, "the disk is nearly full", || {
            full() as usize > ROOM_BYTES - FILLER_BYTES - MIB
        });
        disk.cut();
        std::thread::sleep(outage_time());
        disk.mend();
    });
}

/// There is room again before the link is back: who has not been told of an error is told of none.
#[test]
fn room_that_is_made_while_the_link_is_away_is_used() {
    let disk = Disk::new();
    fs::write(disk.on_server("filler"), pattern(ROOM_BYTES - MIB)).unwrap();
    let mut writer = Writer::new(File::create_new(disk.mount().at("file")).unwrap());
    writer.write(0..BLOCK_BYTES * BLOCKS_PER_SYNC);
    assert!(writer.errors.is_empty(), "{:?}", writer.errors);
    disk.cut();
    std::thread::scope(|scope| {
        let rest = BLOCK_BYTES * BLOCKS_PER_SYNC..CONTENT_BYTES;
        scope.spawn(|| writer.write(rest));
        std::thread::sleep(outage_time());
        fs::remove_file(disk.on_server("filler")).unwrap();
        disk.mend();
    });
    assert!(writer.errors.is_empty(), "{:?}", writer.errors);
    crate::faults::close(writer.file).unwrap();
    assert_content(&disk, "file", &writer.content);
}
