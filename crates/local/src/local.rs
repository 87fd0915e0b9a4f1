//! A local directory and its open handles.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base::{Location, Table};
use tokio::sync::Notify;

use crate::blocking::BlockingPool;
use crate::cached_attr::{LocalDevice, local_device};
use crate::error::Error;
use crate::file::File;
use crate::listing::Listing;
use crate::locks::Locks;
use crate::mountpoint;
use crate::root::Root;

/// A local directory as a [`base::Remote`].
///
/// To be used within a tokio runtime.
#[derive(Debug)]
pub struct Local {
    pub(crate) root: Arc<Root>,
    pub(crate) location: Location,
    /// Where attributes can be read from memory; `None` if the root is not on a local file system.
    pub(crate) device: Option<LocalDevice>,
    pub(crate) pool: BlockingPool,
    pub(crate) files: Table<File>,
    /// The lock is held while the next batch is being read.
    pub(crate) listings: Table<Arc<tokio::sync::Mutex<Listing>>>,
    /// Locks for the owners that callers name.
    pub(crate) locks: Arc<Locks>,
    /// Notified by each unlock.
    pub(crate) unlocked: Arc<Notify>,
    /// Held while a caller queues for the locks of two files, so that two callers cannot deadlock.
    pub(crate) pair_lock: Mutex<()>,
}

impl Local {
    /// Opens the directory `path`, following links. From then on it is that directory, also if it
    /// is renamed.
    ///
    /// May block on the disk or the network.
    ///
    /// # Errors
    /// When it is not a directory, or may not be searched, or on a kernel before Linux 5.6.
    pub fn open(path: impl AsRef<Path>) -> Result<Local, Error> {
        let path = path.as_ref();
        let root = Root::open(path).map_err(|errno| Error::from_errno(path, errno))?;
        let source = format!("local:{}", path.display());
        Ok(Local {
            device: local_device(&root),
            root: Arc::new(root),
            location: Location { source, host: "localhost".to_owned() },
            pool: BlockingPool::new(),
            files: Table::default(),
            listings: Table::default(),
            locks: Arc::default(),
            unlocked: Arc::default(),
            pair_lock: Mutex::new(()),
        })
    }

    /// Whether `mountpoint` is a directory below this one. Mounted there, this remote would contain
    /// itself: a listing of the mount would wait for the mount. So it has to be refused.
    ///
    /// To be called before mounting. May block as [`Local::open`] may.
    ///
    /// # Errors
    /// When `mountpoint` is not a directory, or one of the directories above it cannot be read.
    pub fn contains(&self, mountpoint: impl AsRef<Path>) -> Result<bool, Error> {
        self.depth_of(mountpoint.as_ref(), false).map(|depth| depth.is_some_and(|depth| depth > 0))
    }

    /// Whether this directory is `mountpoint` itself or below it.
    ///
    /// Called before mounting: the mount will cover the directory. This remote does not use names,
    /// so it works on, but no other process will see the directory. Called while the mount exists,
    /// for a directory that was opened since: it belongs to the mount itself, and has to be
    /// refused.
    ///
    /// May block as [`Local::open`] may, then on the mount itself.
    ///
    /// # Errors
    /// When `mountpoint` is not a directory, or one of the directories above it cannot be read.
    pub fn is_within(&self, mountpoint: impl AsRef<Path>) -> Result<bool, Error> {
        self.depth_of(mountpoint.as_ref(), true).map(|depth| depth.is_some())
    }

    fn depth_of(&self, mountpoint: &Path, root_inside: bool) -> Result<Option<usize>, Error> {
        let error = |errno| Error::from_errno(mountpoint, errno);
        let other = mountpoint::open(mountpoint).map_err(error)?;
        let (inner, outer) = match root_inside {
            true => (self.root.fd(), other.as_fd()),
            false => (other.as_fd(), self.root.fd()),
        };
        mountpoint::depth_below(inner, outer).map_err(error)
    }
}
