//! Attributes, times, owners, hard links, file systems.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    Access, AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, accessat, utimensat,
};
use rustix::io::Errno;

use super::{Behaviour, Pair};

pub(super) const ALL: &[(&str, Behaviour)] = &[
    ("statvfs", statvfs),
    ("chmod", chmod),
    ("chown_", chown_),
    ("utimens", utimens),
    ("utimens_now", utimens_now),
    ("utimens_omit", utimens_omit),
    ("utimens_of_a_link", utimens_of_a_link),
    ("hard_links", hard_links),
    ("access", access),
    ("extended_attributes", extended_attributes),
];

fn statvfs(pair: &Pair) {
    let here = rustix::fs::statvfs(pair.mount.place()).unwrap();
    let there = rustix::fs::statvfs(pair.world.served("")).unwrap();
    assert_eq!(
        (here.f_blocks * here.f_frsize, here.f_files, here.f_namemax),
        (there.f_blocks * there.f_frsize, there.f_files, there.f_namemax)
    );
    // Others write to this disk at the same time.
    let used = |figures: &rustix::fs::StatVfs| figures.f_bfree * figures.f_frsize;
    assert!(used(&here).abs_diff(used(&there)) < 4 << 30);
}

fn chmod(pair: &Pair) {
    let (here, there) = pair.both("mode");
    fs::write(&here, b"").unwrap();
    for mode in [0o600, 0o755, 0o4711, 0o2770, 0o000, 0o644] {
        fs::set_permissions(&here, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(&here).unwrap().mode() & 0o7777, mode);
        assert_eq!(fs::metadata(&there).unwrap().mode() & 0o7777, mode);
    }
    fs::remove_file(&here).unwrap();
}

fn chown_(pair: &Pair) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (here, there) = pair.both("owner");
    fs::write(&here, b"").unwrap();
    for (uid, gid) in [(Some(1234), Some(5678)), (Some(4321), None), (None, Some(8765))] {
        chown(&here, uid, gid).unwrap();
        let (ours, theirs) = (fs::metadata(&here).unwrap(), fs::metadata(&there).unwrap());
        assert_eq!((ours.uid(), ours.gid()), (theirs.uid(), theirs.gid()));
        assert_eq!(ours.uid(), uid.unwrap_or(4321));
        assert_eq!(ours.gid(), gid.unwrap_or(5678));
    }
    // A link itself, not what it leads to.
    symlink("owner", pair.mount.at("owner_link")).unwrap();
    lchown(pair.mount.at("owner_link"), Some(77), Some(78)).unwrap();
    let link = fs::symlink_metadata(pair.world.served("owner_link")).unwrap();
    assert_eq!((link.uid(), link.gid()), (77, 78));
    assert_eq!(fs::metadata(&there).unwrap().uid(), 4321);
    fs::remove_file(&here).unwrap();
    fs::remove_file(pair.mount.at("owner_link")).unwrap();
}

fn time(tv_sec: i64, tv_nsec: i64) -> Timespec {
    Timespec { tv_sec, tv_nsec: tv_nsec as _ }
}

fn set(path: &std::path::Path, atime: Timespec, mtime: Timespec, flags: AtFlags) {
    let times = Timestamps { last_access: atime, last_modification: mtime };
    utimensat(CWD, path, &times, flags).unwrap();
}

fn utimens(pair: &Pair) {
    let (here, there) = pair.both("times");
    for path in [&here, &pair.mount.at("times_dir")] {
        if path == &here {
            fs::write(path, b"").unwrap()
        } else {
            fs::create_dir(path).unwrap()
        };
        set(path, time(1_000_000_000, 5), time(1_234_567_890, 987_654_321), AtFlags::empty());
        let meta = fs::metadata(path).unwrap();
        assert_eq!((meta.atime(), meta.mtime()), (1_000_000_000, 1_234_567_890));
        assert_eq!(meta.mtime_nsec(), 987_654_321, "while the kernel remembers the file");
    }
    let meta = fs::metadata(&there).unwrap();
    assert_eq!((meta.atime(), meta.mtime()), (1_000_000_000, 1_234_567_890));
    fs::remove_file(&here).unwrap();
    fs::remove_dir(pair.mount.at("times_dir")).unwrap();
}

fn is_now(time: SystemTime) -> bool {
    let now = SystemTime::now();
    let apart = now.duration_since(time).or_else(|_| time.duration_since(now)).unwrap();
    apart < Duration::from_secs(30)
}

fn utimens_now(pair: &Pair) {
    let (here, there) = pair.both("now");
    fs::write(&here, b"").unwrap();
    set(&here, time(1, 0), time(2, 0), AtFlags::empty());
    set(&here, time(0, UTIME_NOW), time(0, UTIME_NOW), AtFlags::empty());
    for path in [&here, &there] {
        let meta = fs::metadata(path).unwrap();
        assert!(is_now(meta.accessed().unwrap()) && is_now(meta.modified().unwrap()), "{meta:?}");
    }
    fs::remove_file(&here).unwrap();
}

fn utimens_omit(pair: &Pair) {
    let (here, there) = pair.both("omitted");
    fs::write(&here, b"").unwrap();
    set(&here, time(1_000, 0), time(2_000, 0), AtFlags::empty());
    let times = |path: &std::path::Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.atime(), meta.mtime())
    };
    set(&here, time(3_000, 0), time(0, UTIME_OMIT), AtFlags::empty());
    assert_eq!((times(&here), times(&there)), ((3_000, 2_000), (3_000, 2_000)));
    set(&here, time(0, UTIME_OMIT), time(4_000, 0), AtFlags::empty());
    assert_eq!((times(&here), times(&there)), ((3_000, 4_000), (3_000, 4_000)));
    set(&here, time(0, UTIME_OMIT), time(0, UTIME_OMIT), AtFlags::empty());
    assert_eq!((times(&here), times(&there)), ((3_000, 4_000), (3_000, 4_000)));
    set(&here, time(0, UTIME_NOW), time(0, UTIME_OMIT), AtFlags::empty());
    assert_eq!((times(&here).1, times(&there).1), (4_000, 4_000));
    assert!(is_now(fs::metadata(&there).unwrap().accessed().unwrap()));
    // The epoch itself is a time as any other.
    set(&here, time(0, 0), time(0, 0), AtFlags::empty());
    assert_eq!((times(&here), times(&there)), ((0, 0), (0, 0)));
    fs::remove_file(&here).unwrap();
}

fn utimens_of_a_link(pair: &Pair) {
    let (here, there) = pair.both("timed_link");
    symlink("nowhere", &here).unwrap();
    set(&here, time(5_000, 0), time(6_000, 0), AtFlags::SYMLINK_NOFOLLOW);
    for path in [&here, &there] {
        let meta = fs::symlink_metadata(path).unwrap();
        assert_eq!((meta.atime(), meta.mtime()), (5_000, 6_000));
    }
    fs::remove_file(&here).unwrap();
}

fn hard_links(pair: &Pair) {
    let (here, there) = pair.dir("hard");
    let (one, two) = (here.join("one"), here.join("two"));
    fs::write(&one, b"shared").unwrap();
    assert_eq!(fs::metadata(&one).unwrap().nlink(), 1);
    fs::hard_link(&one, &two).unwrap();
    let (first, second) = (fs::metadata(&one).unwrap(), fs::metadata(&two).unwrap());
    assert_eq!((first.ino(), first.nlink()), (second.ino(), second.nlink()));
    assert_eq!(first.nlink(), 2);
    assert_eq!((first.mtime(), first.ctime()), (second.mtime(), second.ctime()));
    assert_eq!((first.mode(), first.size()), (second.mode(), second.size()));
    assert_eq!(fs::read(&two).unwrap(), b"shared");
    // A change through one name is seen through the other.
    fs::write(&two, b"changed").unwrap();
    assert_eq!(fs::read(&one).unwrap(), b"changed");
    fs::remove_file(&two).unwrap();
    assert_eq!(fs::metadata(&one).unwrap().nlink(), 1);
    assert_eq!(fs::read(there.join("one")).unwrap(), b"changed");
    let taken = fs::hard_link(&one, &here).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AlreadyExists);
    fs::remove_dir_all(&here).unwrap();
}

fn access(pair: &Pair) {
    let (here, _) = pair.both("accessible");
    fs::write(&here, b"").unwrap();
    fs::set_permissions(&here, fs::Permissions::from_mode(0o644)).unwrap();
    let ask = |what| accessat(CWD, &here, what, AtFlags::empty());
    assert_eq!(ask(Access::EXISTS | Access::READ_OK | Access::WRITE_OK), Ok(()));
    assert_eq!(ask(Access::EXEC_OK), Err(Errno::ACCESS), "not even for root");
    fs::set_permissions(&here, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(ask(Access::EXEC_OK), Ok(()));
    let absent = accessat(CWD, pair.mount.at("absent"), Access::EXISTS, AtFlags::empty());
    assert_eq!(absent, Err(Errno::NOENT));
    fs::remove_file(&here).unwrap();
}

fn extended_attributes(pair: &Pair) {
    let (here, _) = pair.both("extended");
    fs::write(&here, b"").unwrap();
    let mut value = [0u8; 16];
    let got = rustix::fs::getxattr(&here, "user.test", &mut value);
    assert_eq!(got, Err(Errno::OPNOTSUPP));
    assert_eq!(rustix::fs::listxattr(&here, &mut [0u8; 16][..]), Err(Errno::OPNOTSUPP));
    let _open = File::open(&here).unwrap();
    fs::remove_file(&here).unwrap();
}
