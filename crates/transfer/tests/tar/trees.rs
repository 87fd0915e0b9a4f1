//! Trees with all that a tree can have, and what is kept of it.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// All that is kept of one entry.
#[derive(Debug, PartialEq, Eq)]
pub struct Kept {
    mode: u32,
    mtime: (i64, i64),
    owner: (u32, u32),
    content: Vec<u8>,
}

impl Kept {
    pub fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    /// Whether both have the same content.
    pub fn has_content_of(&self, other: &Kept) -> bool {
        self.content == other.content
    }

    /// Whether all is kept; of a directory, the time to the second.
    pub fn is_like(&self, other: &Kept) -> bool {
        self.is_like_to_the_second(other) && (self.is_dir() || self.mtime == other.mtime)
    }

    /// As [`Kept::is_like`], with all times to the second.
    pub fn is_like_to_the_second(&self, other: &Kept) -> bool {
        let all = |it: &Kept| (it.mode, it.mtime.0, it.owner);
        all(self) == all(other) && self.content == other.content
    }
}

/// Everything below `top`, and `top` itself as the empty name.
pub fn kept(top: &Path) -> BTreeMap<Vec<u8>, Kept> {
    let mut tree = BTreeMap::new();
    let mut todo = vec![top.to_owned()];
    while let Some(path) = todo.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let content = if stat.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_vec()
        } else if stat.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if stat.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let name = path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec();
        let mtime = (stat.mtime(), stat.mtime_nsec());
        let owner = (stat.uid(), stat.gid());
        tree.insert(name, Kept { mode: stat.mode(), mtime, owner, content });
    }
    tree
}

fn aged(path: &Path, perm: u32, nanos: u64) {
    let file = File::open(path).unwrap();
    file.set_permissions(Permissions::from_mode(perm)).unwrap();
    let time = UNIX_EPOCH + Duration::new(1_500_000_000, 0) + Duration::from_nanos(nanos);
    file.set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// Makes a tree with a bit of everything.
pub fn make(top: &Path) {
    fs::create_dir_all(top.join("sub/deep/er")).unwrap();
    fs::create_dir(top.join("empty")).unwrap();
    let long = "n".repeat(200);
    let odd = std::ffi::OsStr::from_bytes(b"-odd \xff\n'\"$name");
    let files = [
        (top.join("a"), 0o644, 0),
        (top.join("sub/b"), 0o600, 1),
        (top.join("sub/deep/er/c"), 0o1755, 123_456_789),
        (top.join(&long), 0o444, 999_999_999),
        (top.join("sub/deep").join(&long), 0o640, 5),
        (top.join(odd), 0o640, 5_000),
    ];
    for (number, (path, perm, nanos)) in files.iter().enumerate() {
        let content: Vec<u8> = (0..number * 70_001).map(|at| (at % 251) as u8).collect();
        fs::write(path, content).unwrap();
        aged(path, *perm, *nanos);
    }
    symlink("/nowhere/at/all", top.join("absolute")).unwrap();
    symlink("../a", top.join("sub/up")).unwrap();
    symlink("l".repeat(180), top.join("long-link")).unwrap();
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    sparse.write_all_at(b"island", 1 << 20).unwrap();
    for directory in ["sub/deep/er", "sub/deep", "empty", "sub", ""] {
        aged(&top.join(directory), 0o750, 77);
    }
}

/// Bytes that a file takes on the disk.
pub fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}
