//! Reading and writing.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Behaviour, Pair};

pub(super) const ALL: &[(&str, Behaviour)] = &[
    ("open_and_read", open_and_read),
    ("open_and_write", open_and_write),
    ("append", append),
    ("seek", seek),
    ("fsync", fsync),
    ("truncate_by_name", truncate_by_name),
    ("truncate_by_descriptor", truncate_by_descriptor),
    ("open_then_unlink", open_then_unlink),
    ("open_write_only_then_read", open_write_only_then_read),
    ("open_for_ioctl_alone", open_for_ioctl_alone),
    ("holes_are_zeros", holes_are_zeros),
];

/// Bytes in which no two places look alike.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0u64..).flat_map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()).take(len).collect()
}

fn open_and_read(pair: &Pair) {
    let (here, there) = pair.both("read");
    let content = pattern(300_001);
    pair.put(&there, &content);
    assert!(fs::read(&here).unwrap() == content);
    let file = File::open(&here).unwrap();
    let mut middle = vec![0; 70_000];
    file.read_exact_at(&mut middle, 131_000).unwrap();
    assert!(middle == content[131_000..201_000]);
    assert_eq!(file.read_at(&mut middle, 300_001).unwrap(), 0, "the end");
    assert_eq!(file.read_at(&mut middle, 299_999).unwrap(), 2, "short only at the end");
    fs::remove_file(&here).unwrap();
}

fn open_and_write(pair: &Pair) {
    let (here, there) = pair.both("write");
    let content = pattern(400_003);
    pair.put(&there, b"");
    let mut file = OpenOptions::new().write(true).open(&here).unwrap();
    for chunk in content.chunks(7_777) {
        file.write_all(chunk).unwrap();
    }
    drop(file);
    assert!(fs::read(&there).unwrap() == content, "close has waited for the server");
    assert!(fs::read(&here).unwrap() == content);
    fs::remove_file(&here).unwrap();
}

fn append(pair: &Pair) {
    let (here, there) = pair.both("append");
    pair.put(&there, b"one\n");
    let mut file = OpenOptions::new().append(true).open(&here).unwrap();
    file.write_all(b"two\n").unwrap();
    file.write_all(b"three\n").unwrap();
    drop(file);
    assert_eq!(fs::read_to_string(&there).unwrap(), "one\ntwo\nthree\n");
    assert_eq!(fs::read_to_string(&here).unwrap(), "one\ntwo\nthree\n");
    fs::remove_file(&here).unwrap();
}

fn seek(pair: &Pair) {
    let (here, there) = pair.both("seek");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&here).unwrap();
    file.write_all(b"hello, world").unwrap();
    file.seek(SeekFrom::Start(7)).unwrap();
    file.write_all(b"there").unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b"!").unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello, there!");
    drop(file);
    assert_eq!(fs::read_to_string(&there).unwrap(), "hello, there!");
    fs::remove_file(&here).unwrap();
}

fn fsync(pair: &Pair) {
    let (here, there) = pair.both("fsync");
    let mut file = File::create(&here).unwrap();
    file.write_all(b"first").unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(&there).unwrap(), b"first", "there while the file is open");
    file.write_all(b" second").unwrap();
    file.sync_data().unwrap();
    assert_eq!(fs::read(&there).unwrap(), b"first second");
    drop(file);
    fs::remove_file(&here).unwrap();
}

fn truncate_by_name(pair: &Pair) {
    let (here, there) = pair.both("truncate");
    let content = pattern(10_240);
    for size in [10_241, 10_239, 0, 5] {
        pair.put(&there, &content);
        // The mount may still take the file for what it was; the truncation may not.
        OpenOptions::new().write(true).open(&here).unwrap().set_len(size).unwrap();
        let mut expected = content.clone();
        expected.resize(size as usize, 0);
        assert_eq!(fs::metadata(&here).unwrap().size(), size);
        assert!(fs::read(&here).unwrap() == expected, "{size}");
        assert!(fs::read(&there).unwrap() == expected, "{size}");
    }
    pair.put(&there, &content);
    rustix::fs::open(&here, OFlags::WRONLY | OFlags::TRUNC, 0.into()).unwrap();
    assert_eq!(fs::metadata(&there).unwrap().size(), 0);
    assert_eq!(fs::read(&here).unwrap(), b"");
    fs::remove_file(&here).unwrap();
}

fn truncate_by_descriptor(pair: &Pair) {
    let (here, there) = pair.both("ftruncate");
    let content = pattern(10_240);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&here).unwrap();
    file.write_all_at(&content, 0).unwrap();
    for size in [10_250, 10_000, 0, 7] {
        file.set_len(size).unwrap();
        assert_eq!(file.metadata().unwrap().size(), size);
        assert_eq!(fs::metadata(&there).unwrap().size(), size);
    }
    drop(file);
    assert_eq!(fs::read(&there).unwrap(), [0; 7]);
    assert_eq!(fs::read(&here).unwrap(), [0; 7]);
    fs::remove_file(&here).unwrap();
}

fn open_then_unlink(pair: &Pair) {
    let (here, there) = pair.both("unlinked");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&here).unwrap();
    file.write_all(b"foo").unwrap();
    fs::remove_file(&here).unwrap();
    assert_eq!(fs::metadata(&here).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!there.exists());
    assert!(
        fs::read_dir(pair.mount.place()).unwrap().all(|it| it.unwrap().file_name() != "unlinked")
    );
    file.write_all(b"bar").unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "foobar");
    assert_eq!(file.metadata().unwrap().size(), 6);
}

/// Linux's access mode 3: for whoever may read and write, to do neither.
fn open_for_ioctl_alone(pair: &Pair) {
    let (here, there) = pair.both("mode3");
    pair.put(&there, b"content");
    let mode = OFlags::from_bits_retain(OFlags::ACCMODE.bits());
    let file = File::from(rustix::fs::open(&here, mode, rustix::fs::Mode::empty()).unwrap());
    assert_eq!(file.metadata().unwrap().len(), 7);
    let (read, written) = (file.read_at(&mut [0], 0), file.write_at(b"x", 0));
    for result in [read, written] {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
    }
    drop(file);
    assert_eq!(fs::read(&there).unwrap(), b"content");
    fs::remove_file(&here).unwrap();
}

fn open_write_only_then_read(pair: &Pair) {
    let (here, there) = pair.both("write_only");
    pair.put(&there, b"x");
    let file = OpenOptions::new().write(true).open(&here).unwrap();
    let error = file.read_at(&mut [0], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::BADF.raw_os_error()));
    let file = File::open(&here).unwrap();
    let error = file.write_at(&[0], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::BADF.raw_os_error()));
    fs::remove_file(&here).unwrap();
}

fn holes_are_zeros(pair: &Pair) {
    let (here, there) = pair.both("hole");
    let file = File::create(&here).unwrap();
    file.write_all_at(b"end", 1_000_000).unwrap();
    drop(file);
    let mut expected = vec![0; 1_000_000];
    expected.extend(b"end");
    assert!(fs::read(&here).unwrap() == expected);
    assert!(fs::read(&there).unwrap() == expected);
    fs::remove_file(&here).unwrap();
}
