//! mkdir, rmdir, unlink, symlink, link, rename, readlink: operations on names.

use std::sync::Arc;

use base::{Attr, Errno, FileKind, Name, RemotePath, RenameMode, Result};
use tokio::time::Instant;

use crate::inode::Inode;
use crate::{Entry, Ino, Vfs, links, name};

/// Bits of a mode that are permissions.
const PERM_BITS: u32 = 0o7777;

/// A change of names on its way; ends when dropped, however it ended. What was known of the names
/// and of the attributes of their directories does not count any longer after it.
pub(crate) struct NamesChange<'a> {
    vfs: &'a Vfs,
    names: Vec<(Ino, Name)>,
    /// What is below the names may have another path afterwards.
    moves: bool,
}

impl Drop for NamesChange<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut tree = self.vfs.tree();
        for (dir, name) in &self.names {
            tree.end_name(*dir, name);
            tree.changed_here(*dir);
            tree.rebind(*dir, name, now);
        }
        if self.moves {
            tree.end_move();
        }
    }
}

impl Vfs {
    pub(crate) fn change_names(&self, names: &[(Ino, &Name)]) -> NamesChange<'_> {
        let mut tree = self.tree();
        for (dir, name) in names {
            tree.begin_name(*dir, name);
        }
        let names = names.iter().map(|(dir, name)| (*dir, (*name).clone())).collect();
        NamesChange { vfs: self, names, moves: false }
    }

    /// The same for a rename.
    fn move_names(&self, from: (Ino, &Name), to: (Ino, &Name)) -> NamesChange<'_> {
        let mut change = self.change_names(&[from, to]);
        let mut tree = self.tree();
        let moved = tree.child(from.0, from.1);
        change.moves = moved.is_none_or(|moved| moved.kind == FileKind::Directory);
        if change.moves {
            tree.begin_move();
        }
        drop(tree);
        change
    }

    /// Makes a directory.
    pub async fn mkdir(&self, parent: Ino, name_bytes: &[u8], perm: u32) -> Result<Entry> {
        let name = name(name_bytes)?;
        let path = self.path(parent)?.join(&name);
        let change = self.change_names(&[(parent, &name)]);
        let making = self.remote.mkdir(&path, perm);
        // One whose permissions are to be mended is seen before that, or the server insists.
        let is_it = |attr: &Attr| attr.is_dir() && perm & !attr.perm & PERM_BITS == 0;
        self.made(parent, &name, &path, change, making, is_it).await
    }

    /// Makes a symbolic link.
    pub async fn symlink(&self, parent: Ino, name_bytes: &[u8], target: &[u8]) -> Result<Entry> {
        let name = name(name_bytes)?;
        let path = self.path(parent)?.join(&name);
        let change = self.change_names(&[(parent, &name)]);
        let making = self.remote.symlink(target, &path);
        let is_it = |attr: &Attr| attr.kind == FileKind::Symlink;
        self.made(parent, &name, &path, change, making, is_it).await
    }

    /// The entry of a name that this mount makes. What it is is asked right behind that, so that
    /// one round trip does for both. A remote may answer that before it has made it: then it was
    /// absent, or what is told is not what `is_it` takes for the new thing, and it is asked again.
    async fn made(
        &self,
        parent: Ino,
        name: &Name,
        path: &RemotePath,
        change: NamesChange<'_>,
        making: impl Future<Output = Result<()>>,
        is_it: impl FnOnce(&Attr) -> bool,
    ) -> Result<Entry> {
        let mut asked = self.asked();
        let (made, told) = tokio::join!(making, self.remote.lstat(path));
        made?;
        let attr = match told.ok().filter(is_it) {
            Some(attr) => attr,
            None => {
                asked = self.asked();
                self.remote.lstat(path).await?
            }
        };
        drop(change);
        let inode = {
            let mut tree = self.tree();
            // Whatever had this name before was gone when the name was made.
            tree.unbind(parent, name);
            tree.see(parent, name, &attr, Instant::now()).inode()
        };
        self.learn(&inode, &attr, asked);
        if attr.is_dir() {
            // What somebody else has put in meanwhile may be taken for absent as any name that was
            // asked for now.
            self.tree().made_directory(inode.ino, path, asked);
        }
        self.entry(&inode, &attr).inspect_err(|_| self.forget(inode.ino, 1))
    }

    /// Makes `name` in `parent` a further name of the file `ino`. Both names are one inode here,
    /// as long as the kernel knows it.
    pub async fn link(&self, ino: Ino, parent: Ino, name_bytes: &[u8]) -> Result<Entry> {
        let name = name(name_bytes)?;
        let inode = self.inode(ino)?;
        if inode.kind == FileKind::Directory {
            return Err(Errno::EPERM);
        }
        let existing = self.path(ino)?;
        let path = self.path(parent)?.join(&name);
        let change = self.change_names(&[(parent, &name)]);
        self.remote.link(&existing, &path).await?;
        let attr = self.attr(&inode).await?;
        drop(change);
        {
            let mut tree = self.tree();
            tree.bind(ino, parent, &name, Instant::now());
            tree.count(ino);
        }
        {
            let mut state = inode.state();
            state.nlink += 1;
            state.touch();
        }
        self.entry(&inode, &attr).inspect_err(|_| self.forget(ino, 1))
    }

    /// Removes a name that is no directory's. A file that is open lives on.
    pub async fn unlink(&self, parent: Ino, name_bytes: &[u8]) -> Result<()> {
        let name = name(name_bytes)?;
        let path = self.path(parent)?.join(&name);
        let known = self.tree().child(parent, &name);
        if let Some(known) = known {
            self.open_granted(&known).await;
        }
        let _change = self.change_names(&[(parent, &name)]);
        let removed = self.remote.unlink(&path).await;
        self.removed(parent, &name, removed)
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, parent: Ino, name_bytes: &[u8]) -> Result<()> {
        let name = name(name_bytes)?;
        let path = self.path(parent)?.join(&name);
        let _change = self.change_names(&[(parent, &name)]);
        let removed = self.remote.rmdir(&path).await;
        self.removed(parent, &name, removed)
    }

    fn removed(&self, parent: Ino, name: &Name, result: Result<()>) -> Result<()> {
        if matches!(result, Ok(()) | Err(Errno::ENOENT)) {
            let inode = {
                let mut tree = self.tree();
                tree.removed(parent, name);
                tree.unbind(parent, name)
            };
            lose_link(inode);
        }
        result
    }

    /// Gives `from` the name `to`.
    pub async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let (from_name, to_name) = (name(from.1)?, name(to.1)?);
        let from_path = self.path(from.0)?.join(&from_name);
        let to_path = self.path(to.0)?.join(&to_name);
        let replaced = self.tree().child(to.0, &to_name);
        if let Some(replaced) = replaced {
            self.open_granted(&replaced).await;
        }
        let _change = self.move_names((from.0, &from_name), (to.0, &to_name));
        self.remote.rename(&from_path, &to_path, mode).await?;
        // Two names of one file stay as they are, and only the server may know that they are; so
        // nothing is said of the old name.
        let (moved, replaced) = self.tree().rename((from.0, &from_name), (to.0, &to_name));
        if let Some(moved) = moved {
            moved.state().touch();
        }
        lose_link(replaced);
        Ok(())
    }

    /// The target of a symbolic link, as far as [`Links`](crate::Links) lets the kernel see it.
    pub async fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let path = self.path(ino)?;
        let target = self.remote.readlink(&path).await?;
        let dir = path.parent().ok_or(Errno::EINVAL)?;
        links::present(&self.config, &dir, target).inspect_err(|_| {
            tracing::debug!(%path, "the target of this link is not inside the mount");
        })
    }
}

fn lose_link(inode: Option<Arc<Inode>>) {
    if let Some(inode) = inode {
        let mut state = inode.state();
        state.nlink = state.nlink.saturating_sub(1);
        state.touch();
    }
}
