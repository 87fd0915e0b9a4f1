//! Names that the server does not have any longer, while they are valid here.
//!
//! Another machine has removed the name, or the directory that it is in. The call that finds out
//! fails with `ENOENT`, and what is known of the name is invalidated. There are two exceptions:
//!
//! - An open fails with `ESTALE`, once. The kernel then walks the path again and finds the name
//!   absent, so that an open with `O_CREAT` makes the file: FUSE's OPEN does not have that flag. The
//!   kernel repeats a call once only, and the application would get a second `ESTALE`. So an open
//!   that fails again after the name was found once more is `ENOENT`.
//! - A file with other names made here is reached by the next of them.

use std::sync::Arc;

use base::{Errno, RemotePath};

use crate::inode::Inode;
use crate::name_operations::drop_link;
use crate::shared::Shared;
use crate::tree::RequestStamp;

impl Shared {
    /// The server has nothing at `path`, by which `inode` was reached when it was `stamp`. Returns
    /// whether the inode has another path by now, by which the call is to be repeated.
    pub(crate) fn has_other_path(
        &self,
        inode: &Arc<Inode>,
        path: &RemotePath,
        stamp: RequestStamp,
    ) -> bool {
        let mut tree = self.tree();
        let present = tree.path(inode.ino);
        if !tree.paths_unchanged_since(stamp.seq) || present.as_ref() != Some(path) {
            return present.is_some();
        }
        let several = !tree.has_one_path(inode.ino);
        if let Some((parent, name)) = tree.first_name(inode.ino)
            && several
            && tree.name_unchanged_since(parent, &name, stamp.seq)
        {
            tree.reconcile_listing(parent, &name, None, stamp);
            drop_link(tree.unbind(parent, &name));
            return true;
        }
        drop(tree);
        self.invalidate_inode(inode);
        false
    }

    /// The error of an open of `inode` whose name is gone.
    pub(crate) fn open_error_of_absent(&self, inode: &Inode) -> Errno {
        if inode.state().send_back_to_lookup() { Errno::ESTALE } else { Errno::ENOENT }
    }
}
