//! Which open files the kernel reads by itself, from a file of this machine (FUSE passthrough).
//!
//! The kernel allows it for all opens of an inode or for none, and all of them with the same
//! backing file, for as long as one of them lasts; other opens would fail with EIO
//! (`fuse_file_io_open`). It takes back an open before it says so by RELEASE, so what is counted
//! here is never less than what it has open.
//!
//! Invariants:
//! 1. An inode that is open in the one way is never opened in the other. Where a backing file is
//!    there too late, the open goes the ordinary way; where the content of the name is another one
//!    by now than that which is being read, it is [`Verdict::Parted`]: another inode.
//! 2. A backing file stays registered until the last open with it was released, since the kernel
//!    looks its number up after it has read our reply.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuse::{BackingId, Passthrough};

/// The opens of a mount's inodes.
pub struct Ways {
    kernel: Passthrough,
    inodes: Mutex<HashMap<u64, Way>>,
    /// The kernel has refused a backing file, and would refuse all others.
    refused: AtomicBool,
    through: AtomicU64,
}

/// How an inode is open, and how often.
enum Way {
    Ordinary { opens: u64 },
    Through { opens: u64, backing: Arc<BackingId>, file: FileId },
}

/// Device and inode number of a backing file.
type FileId = (u64, u64);

/// What becomes of an open.
pub enum Verdict {
    /// It goes the ordinary way.
    Ordinary,
    /// The kernel reads this file itself.
    Through(Arc<BackingId>),
    /// It can be opened as another inode only. It is not counted.
    Parted,
}

impl Ways {
    pub fn new(kernel: Passthrough) -> Ways {
        Ways {
            kernel,
            inodes: Mutex::default(),
            refused: AtomicBool::new(false),
            through: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Way>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many opens have been left to the kernel.
    pub fn through(&self) -> u64 {
        self.through.load(Ordering::Relaxed)
    }

    /// Decides about an open of `ino`, and counts it. `backing` has its whole content, if there is
    /// such a file.
    pub fn open(&self, ino: u64, backing: Option<&OwnedFd>) -> Verdict {
        let file = backing.and_then(file_id);
        let mut inodes = self.lock();
        match inodes.get_mut(&ino) {
            Some(Way::Ordinary { opens }) => {
                *opens += 1;
                Verdict::Ordinary
            }
            Some(Way::Through { opens, backing, file: same }) => {
                if Some(*same) != file {
                    return Verdict::Parted;
                }
                *opens += 1;
                self.through.fetch_add(1, Ordering::Relaxed);
                Verdict::Through(backing.clone())
            }
            None => {
                let registered = backing
                    .zip(file)
                    .and_then(|(backing, file)| Some((self.register(backing)?, file)));
                let (way, verdict) = match registered {
                    None => (Way::Ordinary { opens: 1 }, Verdict::Ordinary),
                    Some((backing, file)) => {
                        self.through.fetch_add(1, Ordering::Relaxed);
                        let verdict = Verdict::Through(backing.clone());
                        (Way::Through { opens: 1, backing, file }, verdict)
                    }
                };
                inodes.insert(ino, way);
                verdict
            }
        }
    }

    /// Takes one open back.
    pub fn release(&self, ino: u64) {
        let mut inodes = self.lock();
        let Some(Way::Ordinary { opens } | Way::Through { opens, .. }) = inodes.get_mut(&ino)
        else {
            return;
        };
        *opens -= 1;
        // Given back to the kernel without the lock.
        let last = if *opens == 0 { inodes.remove(&ino) } else { None };
        drop(inodes);
        drop(last);
    }

    fn register(&self, backing: &OwnedFd) -> Option<Arc<BackingId>> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        let registered = self.kernel.register(backing.as_fd()).inspect_err(|error| {
            // Without the right to it, or where the cache is on a file system that is stacked
            // itself, all other files would fare the same.
            tracing::debug!(%error, "passthrough is not available");
            self.refused.store(true, Ordering::Relaxed);
        });
        registered.ok().map(Arc::new)
    }
}

fn file_id(file: &OwnedFd) -> Option<FileId> {
    let stat = rustix::fs::fstat(file).ok()?;
    Some((stat.st_dev, stat.st_ino))
}
