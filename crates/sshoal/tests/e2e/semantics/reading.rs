//! What a read may return, whoever changes the file meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, SeekFrom, fcntl_getfl, fcntl_setfl};

use super::{counted, traffic};
use crate::behaviours::pattern;
use crate::process::{eventually, shell};
use crate::world::World;

/// A1: a file grows on the server (a log) while it is read here: never zeros, never other bytes.
#[test]
fn a1_a_growing_file_is_never_padded() {
    let world = World::new();
    let content = pattern(3 << 20);
    fs::write(world.served("log"), b"").unwrap();
    let mount = world.mount(&[]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut log = OpenOptions::new().append(true).open(world.served("log")).unwrap();
            for piece in content.chunks(1_777) {
                log.write_all(piece).unwrap();
                std::thread::sleep(Duration::from_micros(500));
            }
            done.store(true, Ordering::Release);
        });
        // One that follows it through one descriptor, as `tail -f`.
        scope.spawn(|| {
            let log = File::open(mount.at("log")).unwrap();
            let (mut at, mut buffer) = (0, vec![0; 10_000]);
            let deadline = Instant::now() + Duration::from_secs(60);
            while at < content.len() {
                let read = log.read_at(&mut buffer, at as u64).unwrap();
                assert!(buffer[..read] == content[at..at + read], "wrong bytes at {at}");
                at += read;
                if read == 0 {
                    assert!(Instant::now() < deadline, "stuck at {at}");
                    // `tail` looks at the size, too.
                    let _ = log.metadata().unwrap();
                }
            }
        });
        // And one that reads it anew all the time.
        scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Acquire) {
                let read = fs::read(mount.at("log")).unwrap();
                assert!(content.starts_with(&read), "wrong bytes in the first {}", read.len());
                assert!(read.len() >= last, "it has shrunk");
                last = read.len();
            }
        });
    });
    assert!(fs::read(mount.at("log")).unwrap() == content);
}

/// A6: whoever has it open reads one of the files to its end, whoever opens it later the new one.
#[test]
fn a6_a_replaced_file_is_never_mixed_with_its_successor() {
    replaced_all_the_time(&["-o", "open_revalidate=0"], 2);
}

/// The same where opens are granted by what was told within the last second, and nearly each time
/// the file is another one when it is read: what cannot be read as a whole is stale.
#[test]
fn a6_a_file_that_is_opened_late_is_never_mixed_with_its_successor() {
    replaced_all_the_time(&[], 1);
}

/// At most one read out of `stale_share` may find the file replaced under it: the busier the
/// machine, the more often it is, since the writer does not wait for anything.
fn replaced_all_the_time(options: &[&str], stale_share: usize) {
    let world = World::new();
    let write = |version: usize| {
        // Now longer, now shorter, now of the same length.
        let len = 300_000 + [0, 0, 70_000, 1][version % 4];
        fs::write(world.served("next"), vec![b'a' + (version % 26) as u8; len]).unwrap();
        fs::rename(world.served("next"), world.served("file")).unwrap();
    };
    write(0);
    let mount = world.mount(options);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = std::collections::BTreeSet::new();
                let (mut reads, mut stale) = (0, 0);
                while !done.load(Ordering::Acquire) {
                    reads += 1;
                    let read = match fs::read(mount.at("file")) {
                        Ok(read) => read,
                        // Replaced twice between the kernel's look-up and its open.
                        Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {
                            stale += 1;
                            continue;
                        }
                        Err(error) => panic!("{error}"),
                    };
                    let first = read[0];
                    let other = read.iter().position(|byte| *byte != first);
                    assert!(
                        other.is_none(),
                        "two versions in one file: {first} up to {other:?} of {}, then {}",
                        read.len(),
                        read[other.unwrap_or_default()]
                    );
                    assert!((300_000..=370_000).contains(&read.len()), "{}", read.len());
                    seen.insert(first);
                }
                eprintln!("{reads} reads, {stale} found the file replaced twice");
                assert!(stale * stale_share < reads, "{stale} of {reads}");
                assert!(seen.len() > 3, "the test has seen little: {seen:?}");
            });
        }
        for version in 1..300 {
            write(version);
            std::thread::sleep(Duration::from_millis(5));
        }
        done.store(true, Ordering::Release);
    });
    let last = fs::read(world.served("file")).unwrap();
    eventually(Duration::from_secs(3), "the last version", || {
        fs::read(mount.at("file")).unwrap() == last
    });
}

/// A6, one after the other: the descriptor stays with the old file.
#[test]
fn a6_an_open_file_stays_the_same_file_when_replaced() {
    let world = World::new();
    let (old, new) = (vec![b'o'; 2 << 20], vec![b'n'; 2 << 20]);
    fs::write(world.served("file"), &old).unwrap();
    let mount = world.mount(&[]);
    let held = File::open(mount.at("file")).unwrap();
    let mut piece = vec![0; 4096];
    held.read_exact_at(&mut piece, 0).unwrap();
    fs::write(world.served("next"), &new).unwrap();
    fs::rename(world.served("next"), world.served("file")).unwrap();
    assert!(fs::read(mount.at("file")).unwrap() == new);
    for at in [0, 1 << 20, (2 << 20) - 4096] {
        held.read_exact_at(&mut piece, at).unwrap();
        assert!(piece.iter().all(|byte| *byte == b'o'), "at {at}");
    }
    // Replaced through this mount, too.
    let held = File::open(mount.at("file")).unwrap();
    fs::write(mount.at("next"), &old).unwrap();
    fs::rename(mount.at("next"), mount.at("file")).unwrap();
    held.read_exact_at(&mut piece, 1 << 20).unwrap();
    assert!(piece.iter().all(|byte| *byte == b'n'));
    assert!(fs::read(mount.at("file")).unwrap() == old);
}

/// A2: each read sees each write before it, through whatever descriptor.
#[test]
fn a2_direct_and_cached_descriptors_agree() {
    let world = World::new();
    let mount = world.mount(&[]);
    fs::write(mount.at("file"), vec![0; 1 << 20]).unwrap();
    let open = |flags: i32| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(mount.at("file"))
            .unwrap()
    };
    let files = [open(0), open(libc::O_DIRECT), open(0), open(libc::O_DIRECT)];
    let mut expected = vec![0_u8; 1 << 20];
    let mut state = 12345_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..600 {
        let (writer, reader) = (&files[random(4)], &files[random(4)]);
        let len = 1 + random(20_000);
        let at = random(expected.len() - len);
        let data = vec![round as u8 | 1; len];
        writer.write_all_at(&data, at as u64).unwrap();
        expected[at..at + len].copy_from_slice(&data);
        let from = at.saturating_sub(5_000);
        let mut read = vec![0; (len + 10_000).min(expected.len() - from)];
        reader.read_exact_at(&mut read, from as u64).unwrap();
        assert!(read == expected[from..from + read.len()], "round {round}, at {at}");
        assert_eq!(files[0].metadata().unwrap().len(), 1 << 20);
    }
    drop(files);
    assert!(fs::read(world.served("file")).unwrap() == expected);
}

/// A2 and close-to-open for mappings: msync and close bring the pages to the server.
#[test]
fn a2_data_written_through_a_mapping_is_in_the_file() {
    let world = World::new();
    let content = pattern(300_000);
    fs::write(world.served("file"), &content).unwrap();
    let mount = world.mount(&[]);
    let file = OpenOptions::new().read(true).write(true).open(mount.at("file")).unwrap();
    let mut mapping = Mapping::new(&file, content.len());
    assert!(*mapping.bytes() == content[..]);
    mapping.bytes()[123_456..123_466].copy_from_slice(b"0123456789");
    // Another descriptor sees it at once, the server after msync.
    let mut read = [0; 10];
    File::open(mount.at("file")).unwrap().read_exact_at(&mut read, 123_456).unwrap();
    assert_eq!(&read, b"0123456789");
    mapping.sync();
    assert_eq!(fs::read(world.served("file")).unwrap()[123_456..123_466], *b"0123456789");
    // A write is seen in the mapping.
    file.write_all_at(b"written", 200_000).unwrap();
    assert_eq!(mapping.bytes()[200_000..200_007], *b"written");
    mapping.bytes()[0] = b'!';
    drop(mapping);
    drop(file);
    eventually(Duration::from_secs(10), "pages that nobody synced are written", || {
        fs::read(world.served("file")).unwrap()[0] == b'!'
    });
    let mut expected = content;
    expected[123_456..123_466].copy_from_slice(b"0123456789");
    expected[200_000..200_007].copy_from_slice(b"written");
    expected[0] = b'!';
    assert!(fs::read(world.served("file")).unwrap() == expected);
}

/// As ext4 does: each write obeys the flag that its descriptor has then.
#[test]
fn a_descriptor_may_begin_and_cease_to_append() {
    let world = World::new();
    let mount = world.mount(&[]);
    let open = OpenOptions::new().read(true).append(true).create(true).open(mount.at("file"));
    let mut file = open.unwrap();
    file.write_all(b"0123456789").unwrap();
    let flags = fcntl_getfl(&file).unwrap();
    fcntl_setfl(&file, flags - OFlags::APPEND).unwrap();
    file.write_all_at(b"AB", 2).unwrap();
    fcntl_setfl(&file, flags).unwrap();
    file.write_all(b"end").unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(world.served("file")).unwrap(), b"01AB456789end");
    drop(file);
    // The end is that at the server.
    let mut file = OpenOptions::new().write(true).open(mount.at("file")).unwrap();
    fcntl_setfl(&file, fcntl_getfl(&file).unwrap() | OFlags::APPEND).unwrap();
    let theirs = OpenOptions::new().append(true).open(world.served("file"));
    theirs.unwrap().write_all(b"theirs").unwrap();
    file.write_all(b"ours").unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(world.served("file")).unwrap(), b"01AB456789endtheirsours");
    drop(file);
    // A program that copies on the server falls back.
    let file = OpenOptions::new().append(true).open(mount.at("file")).unwrap();
    fcntl_setfl(&file, fcntl_getfl(&file).unwrap() - OFlags::APPEND).unwrap();
    fs::write(world.served("source"), "copied").unwrap();
    let source = File::open(mount.at("source")).unwrap();
    let (mut from, mut to) = (0, 0);
    let copied = rustix::fs::copy_file_range(&source, Some(&mut from), &file, Some(&mut to), 6);
    assert_eq!(copied, Ok(6));
    drop((source, file));
    assert_eq!(fs::read(world.served("file")).unwrap(), b"copied6789endtheirsours");
    // The file that others append to has another name now; this one must not write over that.
    let mut file = OpenOptions::new().write(true).open(mount.at("file")).unwrap();
    fcntl_setfl(&file, fcntl_getfl(&file).unwrap() | OFlags::APPEND).unwrap();
    fs::rename(world.served("file"), world.served("file.1")).unwrap();
    let mut theirs = OpenOptions::new().append(true).open(world.served("file.1")).unwrap();
    theirs.write_all(b"more").unwrap();
    let written = file.write_all(b"lost").and_then(|()| file.sync_all());
    assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read(world.served("file.1")).unwrap(), b"copied6789endtheirsoursmore");
    drop(file);
    mount.unmount();
}

#[test]
fn a_removed_file_can_be_opened_by_its_descriptor() {
    let world = World::new();
    let mount = world.mount(&[]);
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
    let file = File::create_new(mount.at("file")).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    let reader = open(&mount.at("file")).unwrap();
    fs::remove_file(mount.at("file")).unwrap();
    drop(file);
    let by_descriptor = format!("/proc/self/fd/{}", reader.as_raw_fd());
    assert_eq!(fs::read(&by_descriptor).unwrap(), b"content");
    let second = open(Path::new(&by_descriptor)).unwrap();
    drop(reader);
    second.write_all_at(b"CON", 0).unwrap();
    second.sync_all().unwrap();
    let mut text = [0; 7];
    second.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"CONtent");
    // As `echo new > /dev/stdout` does.
    fs::write(format!("/proc/self/fd/{}", second.as_raw_fd()), b"new").unwrap();
    assert_eq!(second.metadata().unwrap().len(), 3);
    second.read_exact_at(&mut text[..3], 0).unwrap();
    assert_eq!(&text[..3], b"new");
    drop(second);
    mount.unmount();
}

/// A2: a mapping is written back in place, also one of a descriptor that appends.
#[test]
fn a2_a_mapping_of_an_appending_descriptor_is_written_in_place() {
    let world = World::new();
    let mut content = pattern(10_000);
    fs::write(world.served("file"), &content).unwrap();
    let mount = world.mount(&[]);
    let mut file = OpenOptions::new().read(true).append(true).open(mount.at("file")).unwrap();
    let mut mapping = Mapping::new(&file, content.len());
    for round in 0..3 {
        mapping.bytes()[5_000] = round;
        mapping.sync();
        content[5_000] = round;
        assert!(fs::read(world.served("file")).unwrap() == content, "round {round}");
        file.write_all(b"appended").unwrap();
        file.sync_all().unwrap();
        content.extend(b"appended");
    }
    drop(file);
    mapping.bytes()[9_999] = b'!';
    content[9_999] = b'!';
    drop(mapping);
    eventually(Duration::from_secs(10), "pages are written after the last close", || {
        fs::read(world.served("file")).unwrap() == content
    });
}

/// A shared mapping of a file.
struct Mapping {
    address: *mut libc::c_void,
    len: usize,
}

#[allow(unsafe_code, reason = "mappings have no safe interface")]
impl Mapping {
    fn new(file: &File, len: usize) -> Mapping {
        use std::os::fd::AsRawFd;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(address, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapping { address, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is there until it is dropped and as long as this; the file is not
        // cut meanwhile, and the one reference is this.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.len) }
    }

    fn sync(&self) {
        // SAFETY: only writes out what is mapped there.
        assert_eq!(unsafe { libc::msync(self.address, self.len, libc::MS_SYNC) }, 0);
    }
}

#[allow(unsafe_code, reason = "mappings have no safe interface")]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is mapped, and nobody has a reference to it any more.
        unsafe { libc::munmap(self.address, self.len) };
    }
}

/// copy_file_range(2) lets the server copy; so does cp(1).
#[test]
fn copies_on_the_server_move_no_bytes() {
    let world = World::new();
    let content = pattern(8 << 20);
    fs::write(world.served("source"), &content).unwrap();
    let (link, mount) = counted(&world, &[]);
    let source = File::open(mount.at("source")).unwrap();
    let target = File::create(mount.at("target")).unwrap();
    let before = traffic(&link);
    let (mut from, mut to) = (1_000, 0);
    while from < content.len() as u64 {
        let left = content.len() - from as usize;
        let copied = rustix::fs::copy_file_range(
            source.as_fd(),
            Some(&mut from),
            target.as_fd(),
            Some(&mut to),
            left,
        );
        assert!(copied.unwrap() > 0);
    }
    let moved = traffic(&link) - before;
    assert!(moved < 256 << 10, "{moved} bytes moved");
    assert_eq!(target.metadata().unwrap().len(), (content.len() - 1_000) as u64);
    drop(target);
    assert!(fs::read(world.served("target")).unwrap() == content[1_000..]);
    assert!(fs::read(mount.at("target")).unwrap() == content[1_000..]);

    let before = traffic(&link);
    shell("cp \"$1\" \"$2\"", &[&mount.at("source"), &mount.at("copy")]);
    let moved = traffic(&link) - before;
    assert!(moved < 1 << 20, "cp moved {moved} bytes");
    assert!(fs::read(world.served("copy")).unwrap() == content);
    // Within one file that cannot be asked of the server, and works all the same.
    shell(
        "dd if=\"$1\" of=\"$1\" bs=64k count=1 seek=200 conv=notrunc status=none",
        &[&mount.at("copy")],
    );
    assert_eq!(fs::metadata(world.served("copy")).unwrap().len(), 201 * (64 << 10));
}

#[test]
fn all_is_data_up_to_the_end() {
    let world = World::new();
    fs::write(world.served("file"), pattern(10_000)).unwrap();
    let mount = world.mount(&[]);
    let file = File::open(mount.at("file")).unwrap();
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(SeekFrom::Data(500)), Ok(500));
    assert_eq!(seek(SeekFrom::Hole(500)), Ok(10_000));
    assert_eq!(seek(SeekFrom::Data(10_000)), Err(rustix::io::Errno::NXIO));
}
