//! FUSE passthrough: which open files the kernel reads directly from a local backing file.
//!
//! While an inode is open, the kernel requires that all its opens use passthrough with the same
//! backing file, or that none does; other opens fail with EIO (`fuse_file_io_open`). The kernel
//! ends an open before it sends RELEASE, so the counts kept here are never less than the kernel's.
//!
//! Invariants:
//! 1. An inode is never open in both modes. If the backing file appears only when the inode is
//!    already open, further opens are ordinary ones. If the content has changed since the inode was
//!    opened with passthrough, the open is refused: [`Verdict::NeedsNewInode`].
//! 2. A backing file stays registered until the last open with it was released, since the kernel
//!    looks its number up after it has read the reply.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::Mutex;
use fuse::BackingId;

/// The open inodes of a mount, and their modes.
pub struct Passthrough {
    kernel: fuse::Passthrough,
    inodes: Mutex<HashMap<u64, OpenInode>>,
    /// Whether the kernel has refused a backing file; it would refuse all others.
    refused: AtomicBool,
    /// Number of opens with passthrough, for the statistics.
    opens: AtomicU64,
}

/// An inode that is open.
struct OpenInode {
    opens: u64,
    /// The backing file of all opens; `None`: they are ordinary ones.
    backing: Option<(Arc<BackingId>, FileId)>,
}

/// Device and inode number of a backing file.
type FileId = (u64, u64);

/// How an inode is to be opened.
pub enum Verdict {
    /// Without passthrough.
    Ordinary,
    /// The kernel reads this backing file.
    Passthrough(Arc<BackingId>),
    /// The file can be opened only as another inode. The open is not counted.
    NeedsNewInode,
}

impl Passthrough {
    pub fn new(kernel: fuse::Passthrough) -> Passthrough {
        Passthrough {
            kernel,
            inodes: Mutex::default(),
            refused: AtomicBool::new(false),
            opens: AtomicU64::new(0),
        }
    }

    /// Number of opens with passthrough so far.
    pub fn opens(&self) -> u64 {
        self.opens.load(Ordering::Relaxed)
    }

    /// Decides how `ino` is opened, and counts the open. `backing` contains the whole content, if
    /// there is such a file.
    pub fn open(&self, ino: u64, backing: Option<&OwnedFd>) -> Verdict {
        let file = backing.and_then(file_id);
        let mut inodes = self.inodes.lock();
        let inode = inodes.entry(ino).or_insert_with(|| {
            let registered = backing.zip(file);
            let registered = registered.and_then(|(it, file)| Some((self.register(it)?, file)));
            OpenInode { opens: 0, backing: registered }
        });
        let verdict = match &inode.backing {
            None => Verdict::Ordinary,
            Some((_, same)) if Some(*same) != file => return Verdict::NeedsNewInode,
            Some((backing, _)) => {
                self.opens.fetch_add(1, Ordering::Relaxed);
                Verdict::Passthrough(backing.clone())
            }
        };
        inode.opens += 1;
        verdict
    }

    /// Counts the end of one open.
    pub fn release(&self, ino: u64) {
        let mut inodes = self.inodes.lock();
        let Some(inode) = inodes.get_mut(&ino) else { return };
        inode.opens -= 1;
        // The backing file is unregistered without holding the lock.
        let last = if inode.opens == 0 { inodes.remove(&ino) } else { None };
        drop(inodes);
        drop(last);
    }

    fn register(&self, backing: &OwnedFd) -> Option<Arc<BackingId>> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        let registered = self.kernel.register(backing.as_fd()).inspect_err(|error| {
            // Without the privilege, or with the cache on a stacked file system, the kernel
            // refuses all other files as well.
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
