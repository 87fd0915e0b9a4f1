//! Files of this machine that have the content of open ones, for a kernel that reads them itself.
//!
//! Only where nothing can be changed through the mount ([`Config::backing_from_bytes`]): who reads
//! past this layer sees nothing of what is written through it. Which opens may go that way at the
//! same time is the business of whoever talks to the kernel.
//!
//! [`Config::backing_from_bytes`]: crate::Config::backing_from_bytes

use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::{Access, Attr};

use crate::shared::Shared;
use crate::{Handle, Vfs};

impl Vfs {
    /// The file of this machine that has the whole content of the open file, which nothing
    /// changes any more; `None` where there is none, or where it is not wanted.
    #[must_use]
    pub fn backing(&self, handle: Handle) -> Option<Arc<OwnedFd>> {
        self.config.backing_from_bytes?;
        let file = self.files.get(handle.0).ok()?;
        let attr = file.inode.state().last_attr()?;
        if file.access != Access::Read || !self.wants_backing(&attr) {
            return None;
        }
        self.remote.backing(file.remote.opened()?)
    }

    /// Gives `handle` back as if its open had found that another file has taken the name: the
    /// inode loses its names, so that whoever looks them up again gets a new one, and those who
    /// have it open keep what they have.
    pub fn detach(&self, handle: Handle) {
        let ino = self.files.get(handle.0).map(|file| file.inode.ino);
        self.release(handle);
        if let Ok(ino) = ino {
            self.tree().orphan(ino);
        }
    }
}

impl Shared {
    /// Whether a file with these attributes is to be read by the kernel itself, if that can be.
    pub(crate) fn wants_backing(&self, attr: &Attr) -> bool {
        self.config.backing_from_bytes.is_some_and(|bytes| attr.size >= bytes)
    }
}
