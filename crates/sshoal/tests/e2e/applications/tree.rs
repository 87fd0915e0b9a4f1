//! A tree of files to be carried about, with everything in it that makes copying hard.

use std::ffi::OsStr;
use std::fs::{self, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::behaviours::pattern;

/// Small directories, as sources have them.
const DIRS: usize = 60;
const FILES_IN_EACH: usize = 15;

/// Around the sizes of a page, of a request and of the kernel's readahead.
const SIZES: [usize; 10] =
    [0, 1, 4_095, 4_097, 32_768, 131_073, 261_120, 261_121, 1_048_576, 3_000_001];

/// Bytes that names may have, and that need care: no UTF-8, a line's end, a shell's letters.
const NAMES: [&[u8]; 7] = [
    b"with space",
    b"line\nend",
    b"\xff\xfe",
    b"-rf",
    b"$(x)`y`'z'\"",
    "\u{fc}\u{6f22}".as_bytes(),
    b"...",
];

/// 2001-09-09, and a second for each file.
const FIRST_TIME: u64 = 1_000_000_000;

/// Makes the tree at `root`, which must not exist.
pub fn make(root: &Path) {
    let mut files = 0_u64;
    let mut file = |path: &Path, content: &[u8], perm: u32| {
        fs::write(path, content).unwrap();
        fs::set_permissions(path, Permissions::from_mode(perm)).unwrap();
        files += 1;
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(FIRST_TIME + files);
        let times = FileTimes::new().set_accessed(time).set_modified(time);
        fs::File::open(path).unwrap().set_times(times).unwrap();
    };
    for dir in 0..DIRS {
        // Three levels of four, and so on.
        let path = root.join(format!("d{}", dir % 4)).join(format!("e{}", dir / 4 % 4));
        let path = path.join(format!("f{}", dir / 16));
        fs::create_dir_all(&path).unwrap();
        for number in 0..FILES_IN_EACH {
            let content = pattern(dir * 97 + number * 1_013);
            let perm = [0o644, 0o600, 0o755, 0o444][number % 4];
            file(&path.join(format!("file-{number}.c")), &content, perm);
        }
        symlink("file-0.c", path.join("link")).unwrap();
        symlink("../../nowhere", path.join("dangling")).unwrap();
    }
    let sizes = root.join("sizes");
    fs::create_dir(&sizes).unwrap();
    for size in SIZES {
        file(&sizes.join(size.to_string()), &pattern(size), 0o640);
    }
    let names = root.join("names");
    fs::create_dir(&names).unwrap();
    for name in NAMES {
        file(&names.join(OsStr::from_bytes(name)), name, 0o644);
    }
    file(&names.join("n".repeat(255)), b"as long as a name may be", 0o644);
    fs::create_dir_all(root.join("empty/er")).unwrap();
    fs::set_permissions(root.join("empty/er"), Permissions::from_mode(0o500)).unwrap();
    symlink("empty", root.join("to-a-directory")).unwrap();
}
