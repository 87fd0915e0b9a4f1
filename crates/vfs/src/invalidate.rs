//! Beginning anew: the remote shows another tree than before, so what is known of it is asked for
//! again, by us and by the kernel.

use std::sync::Arc;

use base::{FileKind, Name};

use crate::shared::Shared;
use crate::{Ino, Vfs};

/// Who can have the kernel drop what it has cached and is not true any longer.
pub trait Invalidate: Send + Sync {
    /// The pages and attributes of `ino`. Must not block.
    fn content(&self, ino: Ino);

    /// All names, also those that it took for absent, and the attributes of the root. Where the
    /// kernel cannot be told of all names, `in_root` are those known in the root; what lies below
    /// goes with them. Must not block. By default the kernel goes on until its time-outs.
    fn names(&self, _in_root: &[Name]) {}

    /// More inodes are known than there is room for: these are to be forgotten, if nobody uses
    /// them. Must neither block nor call the file system. By default the kernel keeps them.
    fn evict(&self, _inodes: Vec<Eviction>) {}
}

/// An inode that the kernel may forget, and a name that leads to it.
#[derive(Clone, Debug)]
pub struct Eviction {
    /// What the kernel calls it by.
    pub ino: Ino,
    /// What it is. A directory has nothing below it that the kernel counts.
    pub kind: FileKind,
    /// The directory that it is in.
    pub parent: Ino,
    /// Its name there.
    pub name: Name,
}

impl Shared {
    /// Has the kernel drop what is not true any longer, from now on, by `invalidate`.
    pub(crate) fn set_invalidate(&self, invalidate: Arc<dyn Invalidate>) {
        self.tree().set_kernel(invalidate.clone());
        // Set once, by who has made this.
        let _ = self.invalidate.set(invalidate);
    }
}

impl Vfs {
    /// Asks anew for everything that is known of names, attributes and content, and has the kernel
    /// do so. For when the remote has changed as a whole: a branch came or went. What was asked
    /// for before this call is not kept either.
    ///
    /// Files that are open stay the files that they are, and no inode changes its number. Takes
    /// time in proportion to the inodes that are known, a tenth of a second for a million, in
    /// which look-ups wait.
    pub fn invalidate_all(&self) {
        let in_root = self.tree().invalidate_all();
        if let Some(invalidate) = self.invalidate.get() {
            invalidate.names(&in_root);
        }
    }
}
