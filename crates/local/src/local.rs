//! A local directory, and what is open in it.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base::{Location, Table};

use crate::error::Error;
use crate::file::File;
use crate::glance::LocalDevice;
use crate::listing::Listing;
use crate::mountpoint;
use crate::root::Root;
use crate::threads::Threads;

/// A directory of this machine as a [`base::Remote`].
///
/// To be used within a tokio runtime.
#[derive(Debug)]
pub struct Local {
    pub(crate) root: Arc<Root>,
    pub(crate) location: Location,
    /// Where names need not wait, if there is such a place.
    pub(crate) device: Option<LocalDevice>,
    pub(crate) threads: Threads,
    pub(crate) files: Table<File>,
    /// Held by whoever fetches the next batch, also while that is on its way.
    pub(crate) listings: Table<Arc<tokio::sync::Mutex<Listing>>>,
    /// Held by who enters the orders of two files, so that no two of them wait for each other.
    pub(crate) entering: Mutex<()>,
}

impl Local {
    /// Opens the directory `path`; links are followed this once. From here on it is that
    /// directory, whatever its name becomes.
    ///
    /// May wait for the disk or the network that it is on.
    ///
    /// # Errors
    /// When it is no directory, or may not be entered, or on a kernel before Linux 5.6.
    pub fn open(path: impl AsRef<Path>) -> Result<Local, Error> {
        let path = path.as_ref();
        let root = Root::open(path).map_err(|errno| Error::of(path, errno))?;
        let source = format!("local:{}", path.display());
        Ok(Local {
            device: LocalDevice::of(&root),
            root: Arc::new(root),
            location: Location { source, host: "localhost".to_owned() },
            threads: Threads::new(),
            files: Table::default(),
            listings: Table::default(),
            entering: Mutex::new(()),
        })
    }

    /// Whether `mountpoint` is a directory somewhere below this one. Mounted there, this remote
    /// would be in itself: a look into the mount would wait for the mount. So it is to be refused.
    ///
    /// To be asked before the mount. May wait as [`Local::open`].
    ///
    /// # Errors
    /// When `mountpoint` is no directory, or one of those above it may not be looked at.
    pub fn contains(&self, mountpoint: impl AsRef<Path>) -> Result<bool, Error> {
        self.depth_of(mountpoint.as_ref(), false).map(|depth| depth.is_some_and(|depth| depth > 0))
    }

    /// Whether this directory is `mountpoint` itself or below it.
    ///
    /// Asked before the mount: it will be covered then. That does no harm to this remote, which
    /// does not go by names, but nobody else will see the directory. Asked when the mount is there,
    /// of a directory that was opened since: it is the mount's own, and to be refused.
    ///
    /// May wait as [`Local::open`], when it is in the mount for that.
    ///
    /// # Errors
    /// As [`Local::contains`].
    pub fn is_within(&self, mountpoint: impl AsRef<Path>) -> Result<bool, Error> {
        self.depth_of(mountpoint.as_ref(), true).map(|depth| depth.is_some())
    }

    fn depth_of(&self, mountpoint: &Path, root_inside: bool) -> Result<Option<usize>, Error> {
        let told = |errno| Error::of(mountpoint, errno);
        let other = mountpoint::open(mountpoint).map_err(told)?;
        let (inner, outer) = match root_inside {
            true => (self.root.fd(), other.as_fd()),
            false => (other.as_fd(), self.root.fd()),
        };
        mountpoint::depth_below(inner, outer).map_err(told)
    }
}
