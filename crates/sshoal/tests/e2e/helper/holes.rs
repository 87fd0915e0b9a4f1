//! Sparse files.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::served_by_helper;
use crate::process::shell;

const MIB: u64 = 1 << 20;

/// Bytes that a file occupies on its disk.
fn occupied(path: &Path) -> u64 {
    File::open(path).unwrap().sync_all().unwrap();
    fs::metadata(path).unwrap().blocks() * 512
}

/// Data and holes as lseek(2) shows them.
fn extents(path: &Path) -> Vec<(u64, u64)> {
    let file = File::open(path).unwrap();
    let (mut at, mut extents) = (0, Vec::new());
    while let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).unwrap();
        extents.push((data, at));
    }
    extents
}

#[test]
fn space_is_reserved_and_freed() {
    let world = served_by_helper("");
    let mount = world.mount(&[]);
    let (here, there) = (mount.at("file"), world.served("file"));
    let mut file = File::options().read(true).write(true).create_new(true).open(&here).unwrap();
    let (none, keep) = (FallocateFlags::empty(), FallocateFlags::KEEP_SIZE);
    file.write_all(&vec![7; 3 << 20]).unwrap();
    // After the writes that were not acknowledged yet.
    fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, MIB, MIB).unwrap();
    let mut content = vec![7; 3 << 20];
    content[1 << 20..2 << 20].fill(0);
    let mut read = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut read).unwrap();
    assert!(read == content && fs::read(&there).unwrap() == content);
    assert_eq!(occupied(&there), 2 * MIB);
    assert_eq!(extents(&here), [(0, MIB), (2 * MIB, 3 * MIB)]);
    assert_eq!(extents(&there), extents(&here));
    fallocate(&file, keep, 3 * MIB, MIB).unwrap();
    assert_eq!((fs::metadata(&here).unwrap().len(), occupied(&there)), (3 * MIB, 3 * MIB));
    fallocate(&file, none, 3 * MIB, 2 * MIB).unwrap();
    assert_eq!(fs::metadata(&here).unwrap().len(), 5 * MIB);
    assert_eq!(fs::metadata(&there).unwrap().len(), 5 * MIB);
    // A write into the hole is seen, also after the hole was read.
    file.write_all_at(b"data", MIB + 10).unwrap();
    let mut four = [0; 4];
    file.read_exact_at(&mut four, MIB + 10).unwrap();
    assert_eq!(&four, b"data");
    // What the server's file system cannot do fails in the same way.
    let other = File::options().write(true).create_new(true).open(world.served("other")).unwrap();
    other.set_len(MIB).unwrap();
    let zeros = FallocateFlags::ZERO_RANGE;
    assert_eq!(fallocate(&file, zeros, 0, 4096), fallocate(&other, zeros, 0, 4096));
    assert!(fallocate(&file, none, 1 << 62, 1 << 40).is_err());
    let reader = File::open(&here).unwrap();
    assert_eq!(fallocate(&reader, none, 0, 1), Err(Errno::BADF));
    assert!(file.seek(SeekFrom::End(0)).unwrap() == 5 * MIB);
}

#[test]
fn cp_and_rsync_keep_holes() {
    let world = served_by_helper("");
    let mount = world.mount(&[]);
    fs::create_dir(world.local("tree")).unwrap();
    let sparse = world.local("tree/sparse");
    let file = File::create(&sparse).unwrap();
    for at in [4, 30, 59] {
        file.write_all_at(&[b'x'; 1 << 20], at * MIB).unwrap();
    }
    file.set_len(64 * MIB).unwrap();
    let (content, most) = (fs::read(&sparse).unwrap(), 4 * MIB);
    assert!(occupied(&sparse) <= most);
    for copy in ["cp -a --sparse=always \"$1\" \"$2\"", "rsync -aAXS \"$1/\" \"$2/\""] {
        let name = &copy[..2];
        shell(copy, &[&world.local("tree"), &mount.at(name)]);
        let there = world.served(name).join("sparse");
        assert!(fs::read(&there).unwrap() == content && occupied(&there) <= most, "{copy}");
        let back = world.local(format!("{name}-back"));
        assert_eq!(extents(&mount.at(name).join("sparse")), extents(&there), "{copy}");
        shell(copy, &[&mount.at(name), &back]);
        let back = back.join("sparse");
        assert!(fs::read(&back).unwrap() == content && occupied(&back) <= most, "{copy}");
    }
}
