//! Invalidation of everything: the remote shows another tree than before, so all caches are
//! dropped, including the kernel's.

use std::pin::Pin;
use std::sync::Arc;

use base::{FileKind, Name};

use crate::inode::Inode;
use crate::shared::Shared;
use crate::{Ino, Vfs};

/// The interface to the kernel's caches.
pub trait Invalidate: Send + Sync {
    /// Drops the pages and attributes of `ino`. Must not block.
    fn content(&self, ino: Ino);

    /// Drops all names, including negative entries, and the attributes of the root. `in_root` are
    /// the known names in the root, for a kernel that can drop only single names; it keeps what is
    /// below them until its time-outs. Must not block. By default the kernel keeps all of it so
    /// long.
    fn names(&self, _in_root: &[Name]) {}

    /// Makes a name, or its absence, be looked up again. Must not block. Returns false if there is
    /// too much to do. By default the kernel keeps it until its time-out.
    fn name(&self, _dir: Ino, _name: &Name) -> bool {
        true
    }

    /// Drops the attributes of `ino`, as [`Invalidate::name`] drops a name.
    fn attributes(&self, _ino: Ino) -> bool {
        true
    }

    /// Whether a file can be mapped whose open bypasses the page cache.
    fn maps_direct_files(&self) -> bool {
        true
    }

    /// Like [`Invalidate::content`]; returns when the kernel has done that, and waits for no other
    /// request to the kernel. No operation may await it for which the kernel holds a lock of a page
    /// or of the file. By default it is assumed that the kernel does it at once.
    fn content_dropped(&self, ino: Ino) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.content(ino);
        Box::pin(std::future::ready(()))
    }

    /// Requests the kernel to forget these inodes, if they are not in use, since there are too
    /// many. Must neither block nor call the file system. By default the kernel keeps them.
    fn evict(&self, _inodes: Vec<Eviction>) {}
}

/// An inode that the kernel may forget, and a name that leads to it.
#[derive(Clone, Debug)]
pub struct Eviction {
    /// Its node id.
    pub ino: Ino,
    /// Its kind. A directory has no entries that the kernel knows.
    pub kind: FileKind,
    /// The directory that contains it.
    pub parent: Ino,
    /// Its name there.
    pub name: Name,
}

impl Shared {
    /// Sets the interface to the kernel's caches.
    pub(crate) fn set_invalidate(&self, invalidate: Arc<dyn Invalidate>) {
        self.tree().set_kernel(invalidate.clone());
        // Set once, by the owner of the file system.
        let _ = self.invalidate.set(invalidate);
    }

    /// The kernel's pages of `inode` may hold bytes that are not in the file: drops them, also for
    /// descriptors that are open.
    pub(crate) fn drop_pages(&self, inode: &Inode) {
        inode.state().distrust_pages();
        if let Some(invalidate) = self.invalidate.get() {
            invalidate.content(inode.ino);
        }
    }
}

impl Vfs {
    /// Invalidates all cached names, attributes and contents, here and in the kernel. For a change
    /// of the remote as a whole: a branch came or went. Answers to requests that were sent before
    /// this call are not cached either.
    ///
    /// Open files stay the same files, and no inode changes its number. Takes time in proportion to
    /// the number of inodes, a tenth of a second for a million, during which lookups wait.
    pub fn invalidate_all(&self) {
        let in_root = self.tree().invalidate_all();
        self.known_xattrs.lock().note_change();
        if let Some(invalidate) = self.invalidate.get() {
            invalidate.names(&in_root);
        }
    }
}
