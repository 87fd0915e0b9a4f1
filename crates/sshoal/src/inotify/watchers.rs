//! What the processes of this machine watch in the mount, as `/proc` shows it.
//!
//! A process that watches leaves no other trace: it sends no request. Those of other users are
//! visible to root only.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use base::Mutex;
use mountinfo::Device;

/// How long the result of a search is not doubted.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Found {
    numbers: HashSet<u64>,
    /// When the last search began, and how long it took.
    search: Option<(Instant, Duration)>,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Watchers {
    device: OnceLock<Device>,
    found: Mutex<Found>,
}

impl Watchers {
    /// The mount has this number.
    pub(super) fn set_device(&self, device: Device) {
        let _ = self.device.set(device);
    }

    /// Whether a process watches the inode with this number, or may have begun since the last
    /// search.
    pub(super) fn may_watch(&self, number: u64) -> bool {
        let found = self.found.lock();
        let is_fresh = found.search.is_some_and(|(began, _)| began.elapsed() < FRESH);
        !is_fresh || found.numbers.contains(&number)
    }

    /// Whether the last search has found a process that watches one of these inodes.
    pub(super) fn watch_any(&self, mut numbers: impl Iterator<Item = u64>) -> bool {
        let found = self.found.lock();
        numbers.any(|number| found.numbers.contains(&number))
    }

    /// When the last search began, and how long it took.
    pub(super) fn last_search(&self) -> Option<(Instant, Duration)> {
        self.found.lock().search
    }

    /// Searches.
    pub(super) fn find(&self) {
        let Some(device) = self.device.get() else { return };
        let began = Instant::now();
        let numbers = watched_inodes(*device);
        let search = Some((began, began.elapsed()));
        *self.found.lock() = Found { numbers, search };
    }
}

/// The inodes of a file system that other processes watch.
fn watched_inodes(device: Device) -> HashSet<u64> {
    let mut numbers = HashSet::new();
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit()) && name != own;
    for process in processes.filter(|it| it.file_name().to_str().is_some_and(is_process)) {
        // Fails for processes of other users, and for one that has just ended.
        let descriptors = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        for descriptor in descriptors {
            let target = fs::read_link(descriptor.path());
            if target.is_ok_and(|target| target == Path::new("anon_inode:inotify")) {
                let info = process.path().join("fdinfo").join(descriptor.file_name());
                let text = fs::read_to_string(info).unwrap_or_default();
                numbers.extend(text.lines().filter_map(|line| watched_inode(line, device)));
            }
        }
    }
    numbers
}

/// The inode of a line of `/proc/PID/fdinfo/FD`, if it is a watch in this file system.
fn watched_inode(line: &str, device: Device) -> Option<u64> {
    let fields = line.strip_prefix("inotify ")?;
    let field = |key: &str| {
        let value = fields.split(' ').find_map(|field| field.strip_prefix(key))?;
        u64::from_str_radix(value, 16).ok()
    };
    // The kernel's own form of a device number.
    let wanted = u64::from(device.major) << 20 | u64::from(device.minor);
    (field("sdev:")? == wanted).then(|| field("ino:")).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    use std::process::Command;

    #[test]
    fn watches_of_the_file_system_are_found_in_fdinfo() {
        let line = "inotify wd:3 ino:9e7e sdev:80002d mask:800afce ignored_mask:0 fhandle-bytes:8";
        let device = |major, minor| Device { major, minor };
        assert_eq!(watched_inode(line, device(8, 45)), Some(0x9e7e));
        assert_eq!(watched_inode(line, device(8, 46)), None);
        let anonymous = "inotify wd:1 ino:1 sdev:2d mask:fff ignored_mask:0 ";
        assert_eq!(watched_inode(anonymous, device(0, 45)), Some(1));
        for line in ["", "pos:\t0", "inotify wd:1", "inotify ino:x sdev:2d", "inotify sdev:2d"] {
            assert_eq!(watched_inode(line, device(0, 45)), None, "{line}");
        }
    }

    /// A child inherits the descriptor of an inotify instance.
    #[test]
    fn another_process_is_found() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let attr = fs::metadata(dir.path()).unwrap();
        let inherited = init(CreateFlags::empty()).unwrap();
        add_watch(&inherited, dir.path(), WatchFlags::CREATE).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let device =
            Device { major: rustix::fs::major(attr.dev()), minor: rustix::fs::minor(attr.dev()) };
        let found = watched_inodes(device);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&attr.ino()));
    }
}
