//! Local files with the content of open files, which the kernel can read itself.
//!
//! Only for mounts where nothing can be changed ([`Config::backing_from_bytes`]): a reader that
//! bypasses this layer does not see writes. The caller, which talks to the kernel, decides which
//! opens may use a local file at the same time.
//!
//! [`Config::backing_from_bytes`]: crate::Config::backing_from_bytes

use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::{Access, Attr, Errno};

use crate::shared::Shared;
use crate::{Handle, Vfs};

impl Vfs {
    /// The local file with the whole, immutable content of the open file; `None` if there is none,
    /// or none is wanted.
    pub fn backing(&self, handle: Handle) -> Option<Arc<OwnedFd>> {
        self.config.backing_from_bytes?;
        let file = self.files.get(handle.0).ok()?;
        let attr = file.inode.state().last_attr()?;
        if file.access != Access::Read || !self.wants_backing(&attr) {
            return None;
        }
        self.remote.backing(file.remote.opened()?)
    }

    /// Releases `handle` as if its open had found that another file has taken the name: the inode
    /// loses its names, so that the next lookup creates a new one, and the other open handles stay
    /// valid. Returns the error of that open.
    pub fn detach(&self, handle: Handle) -> Errno {
        let ino = self.files.get(handle.0).map(|file| file.inode.ino);
        self.release(handle);
        ino.map_or_else(|error| error, |ino| self.tree().note_replaced(ino))
    }
}

impl Shared {
    /// Whether the kernel should read a file with these attributes itself, if possible.
    pub(crate) fn wants_backing(&self, attr: &Attr) -> bool {
        self.config.backing_from_bytes.is_some_and(|bytes| attr.size >= bytes)
    }
}
