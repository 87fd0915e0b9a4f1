//! Names that another machine has removed while they are valid here.
//!
//! The name, or its directory, is gone. The call that detects it fails with `ENOENT`, and the name
//! is invalidated. There are two exceptions:
//!
//! - An open fails with `ESTALE`, once. The kernel then walks the path again and finds the name
//!   absent, so that an open with `O_CREAT` creates the file: FUSE's OPEN does not have that flag.
//!   The kernel repeats a call only once, and the application would get a second `ESTALE`. So an
//!   open that fails again after the name was found once more is `ENOENT`.
//! - A file with other names made through this mount is reached by the next of them.

use std::sync::Arc;

use base::{Errno, RemotePath, Result};

use crate::inode::Inode;
use crate::lookup::MAX_ATTEMPTS;
use crate::shared::Shared;
use crate::tree::RequestStamp;

impl Shared {
    /// The server has no file at `path`, the path of `inode` at `stamp`. Returns whether the inode
    /// has another path by now, with which the call must be repeated.
    pub(crate) fn has_other_path(
        &self,
        inode: &Arc<Inode>,
        path: &RemotePath,
        stamp: RequestStamp,
    ) -> bool {
        let mut tree = self.tree();
        let present = tree.path(inode.ino);
        if !tree.path_unchanged_since(inode.ino, stamp.seq) || present.as_ref() != Some(path) {
            return present.is_some();
        }
        let several = !tree.has_one_path(inode.ino);
        if let Some((parent, name)) = tree.used_name(inode.ino)
            && tree.name_unchanged_since(parent, &name, stamp.seq)
        {
            tree.note_absent(parent, &name);
            if several {
                if let Some(inode) = tree.unbind(parent, &name) {
                    inode.state().lose_link();
                }
                return true;
            }
        }
        drop(tree);
        self.invalidate_inode(inode);
        false
    }

    /// The name of `inode`, or one above it, has become that of another kind of file, as `error`
    /// shows. Returns the error of the open that has found this.
    pub(crate) fn open_error_of_other_kind(&self, inode: &Inode, error: Errno) -> Errno {
        self.invalidate_inode(inode);
        self.open_error(inode, error)
    }

    /// The error of an open of `inode` that ended with `error`, since the name is gone or has
    /// become that of another kind of file.
    pub(crate) fn open_error(&self, inode: &Inode, error: Errno) -> Errno {
        if inode.state().send_back_to_lookup() { self.tree().send_back() } else { error }
    }

    /// The result of a `request` for a path of the file, repeated for another of its names if the
    /// first one is gone.
    pub(crate) async fn by_any_path<T, F: Future<Output = Result<T>>>(
        &self,
        inode: &Arc<Inode>,
        request: impl Fn(RemotePath) -> F,
    ) -> Result<T> {
        for attempt in 1.. {
            self.await_moves(inode.ino).await;
            let (path, stamp) = (self.path(inode.ino)?, self.stamp_request());
            match request(path.clone()).await {
                Err(Errno::ENOENT)
                    if attempt < MAX_ATTEMPTS && self.has_other_path(inode, &path, stamp) => {}
                done => return done,
            }
        }
        unreachable!("the last attempt returns")
    }
}
