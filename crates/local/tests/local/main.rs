//! A local directory on the file systems of this machine.

mod confined;
mod conformance;
mod model;
mod mountpoint;
mod opening;
mod order;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use local::Local;
use tempfile::TempDir;

/// A local directory, removed at the end of the test.
struct Real {
    local: Arc<Local>,
    /// Contains the directory that is served, and beside it what must never be reached.
    dir: TempDir,
}

impl Real {
    /// In the directory for temporary files.
    fn new() -> Real {
        Real::below(&std::env::temp_dir())
    }

    fn below(parent: &Path) -> Real {
        let dir = tempfile::Builder::new().prefix("local-").tempdir_in(parent).unwrap();
        std::fs::create_dir(dir.path().join("root")).unwrap();
        std::fs::write(dir.path().join("outside"), "outside").unwrap();
        let local = Arc::new(Local::open(dir.path().join("root")).unwrap());
        Real { local, dir }
    }

    /// An absolute path in the root.
    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("root").join(name)
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.at(name), content).unwrap();
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }
}

/// Parents of test directories: on a disk, and in memory where a tmpfs exists.
fn parents() -> Vec<PathBuf> {
    let memory = PathBuf::from("/dev/shm");
    let mut parents = vec![std::env::temp_dir()];
    parents.extend(memory.is_dir().then_some(memory));
    parents
}

/// Descriptors of this process that lead to `dir` or below it.
fn descriptors_below(dir: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = all.flatten().filter_map(|descriptor| descriptor.path().read_link().ok());
    targets.filter(|target| target.starts_with(dir)).count()
}

/// Polls a call once, which queues it in the handle's order.
fn poll_once<T>(call: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    Pin::new(call).poll(&mut Context::from_waker(Waker::noop()))
}
