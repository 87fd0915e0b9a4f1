//! mkdir, rmdir, unlink, symlink, link, rename, readlink: operations on names.

use std::sync::Arc;

use base::{Attr, Errno, FileKind, Name, RemotePath, RenameMode, Result, Timestamp};
use tokio::time::Instant;

use crate::inode::Inode;
use crate::lookup::MAX_ATTEMPTS;
use crate::name_changes::Puts;
use crate::{Entry, Ino, Vfs, links, name};

/// Bits of a mode that are permissions.
const PERM_BITS: u32 = 0o7777;

/// A change of names on its way; ends when dropped, however it ended. What was known of the names
/// and of the attributes of their directories does not count any longer after it.
pub(crate) struct NamesChange<'a> {
    vfs: &'a Vfs,
    names: Vec<(Ino, Name, Puts)>,
    /// The files that have these names.
    inodes: Vec<Arc<Inode>>,
    /// What is below the names may have another path afterwards.
    moves: bool,
}

impl NamesChange<'_> {
    /// The files that had the names when the change began.
    pub(crate) fn inodes(&self) -> &[Arc<Inode>] {
        &self.inodes
    }
}

impl Drop for NamesChange<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut tree = self.vfs.tree();
        for (dir, name, puts) in &self.names {
            tree.end_name(*dir, name, *puts);
            tree.changed_here(*dir);
            tree.rebind(*dir, name, now);
        }
        if self.moves {
            tree.end_move();
        }
        drop(tree);
        self.inodes.iter().for_each(|inode| inode.state().end_renaming());
        self.vfs.renamed.notify_waiters();
    }
}

impl Vfs {
    pub(crate) fn change_names(&self, names: &[(Ino, &Name, Puts)]) -> NamesChange<'_> {
        let mut tree = self.tree();
        let mut inodes = Vec::new();
        for (dir, name, puts) in names {
            tree.begin_name(*dir, name, *puts);
            inodes.extend(tree.child(*dir, name).filter(|it| it.kind == FileKind::Regular));
        }
        inodes.iter().for_each(|inode| inode.state().begin_renaming());
        let names = names.iter().map(|(dir, name, puts)| (*dir, (*name).clone(), *puts)).collect();
        NamesChange { vfs: self, names, inodes, moves: false }
    }

    /// The same for a rename.
    fn move_names(&self, from: (Ino, &Name), to: (Ino, &Name)) -> NamesChange<'_> {
        let moved = self.tree().child(from.0, from.1);
        let puts = moved.as_ref().map_or(Puts::New, |moved| Puts::Inode(moved.ino));
        let mut change = self.change_names(&[(from.0, from.1, Puts::Nothing), (to.0, to.1, puts)]);
        let mut tree = self.tree();
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
        let change = self.change_names(&[(parent, &name, Puts::New)]);
        let making = self.remote.mkdir(&path, perm);
        // One whose permissions are to be mended is seen before that, or the server insists.
        let is_it = |attr: &Attr| attr.is_dir() && perm & !attr.perm & PERM_BITS == 0;
        let expected = self.expected(parent, FileKind::Directory, perm, 0);
        self.made(parent, &name, &path, change, making, is_it, expected).await
    }

    /// Makes a symbolic link.
    pub async fn symlink(&self, parent: Ino, name_bytes: &[u8], target: &[u8]) -> Result<Entry> {
        let name = name(name_bytes)?;
        let path = self.path(parent)?.join(&name);
        let change = self.change_names(&[(parent, &name, Puts::New)]);
        let making = self.remote.symlink(target, &path);
        let is_it = |attr: &Attr| attr.kind == FileKind::Symlink;
        let expected = self.expected(parent, FileKind::Symlink, 0o777, target.len() as u64);
        self.made(parent, &name, &path, change, making, is_it, expected).await
    }

    /// What this mount makes in `parent`, as far as that is known without asking.
    fn expected(&self, parent: Ino, kind: FileKind, perm: u32, size: u64) -> Attr {
        let dir = self.tree().get(parent).and_then(|dir| dir.state().last_attr());
        let owner = self.config.login.or(dir.map(|dir| (dir.uid, dir.gid)));
        let (uid, gid) = owner.unwrap_or_default();
        let now = Timestamp::from_secs(Timestamp::now().secs);
        Attr { kind, perm: perm & PERM_BITS, size, uid, gid, atime: now, mtime: now }
    }

    /// The entry of a name that this mount makes. What it is is asked right behind that, so that
    /// one round trip does for both. A remote may answer that before it has made it: then it was
    /// absent, or what is told is not what `is_it` takes for the new thing, and it is asked again.
    /// Where no answer comes, it is what was `expected`.
    #[expect(clippy::too_many_arguments, reason = "two callers that differ in all of them")]
    async fn made(
        &self,
        parent: Ino,
        name: &Name,
        path: &RemotePath,
        change: NamesChange<'_>,
        making: impl Future<Output = Result<()>>,
        is_it: impl FnOnce(&Attr) -> bool,
        expected: Attr,
    ) -> Result<Entry> {
        let mut asked = self.asked();
        let (made, told) = tokio::join!(making, self.remote.lstat(path));
        made?;
        let told = match told.ok().filter(is_it) {
            Some(attr) => Some(attr),
            None => {
                asked = self.asked();
                let told = self.remote.lstat(path).await;
                told.ok().filter(|attr| attr.kind == expected.kind)
            }
        };
        drop(change);
        // It was made, so the caller gets no error because this is not known; nor does the kernel
        // take it for true.
        let attr = told.unwrap_or(expected);
        let inode = {
            let mut tree = self.tree();
            // Whatever had this name before was gone when the name was made.
            tree.unbind(parent, name);
            tree.see(parent, name, &attr, Instant::now()).inode()
        };
        inode.state().change_time();
        if told.is_none() {
            return self.entry(&inode, &attr).inspect_err(|_| self.forget(inode.ino, 1));
        }
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
        let path = self.path(parent)?.join(&name);
        let change = self.change_names(&[(parent, &name, Puts::Inode(ino))]);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let existing = self.path(ino)?;
            let asked = self.asked();
            match self.remote.link(&existing, &path).await {
                Err(Errno::ENOENT)
                    if self.is_elsewhere(&inode, &existing, asked) && attempt < MAX_ATTEMPTS => {}
                linked => break linked?,
            }
        }
        // The name is there from here on, whether or not its attributes are to be had.
        self.tree().bind(ino, parent, &name, Instant::now());
        {
            let mut state = inode.state();
            state.nlink += 1;
            state.touch();
        }
        drop(change);
        let attr = match self.attr(&inode).await {
            Ok(attr) => attr,
            Err(error) => inode.state().last_attr().ok_or(error)?,
        };
        self.tree().count(ino);
        self.entry(&inode, &attr).inspect_err(|_| self.forget(ino, 1))
    }

    /// Removes a name that is no directory's. A file that is open lives on.
    pub async fn unlink(&self, parent: Ino, name_bytes: &[u8]) -> Result<()> {
        let name = name(name_bytes)?;
        let path = self.path(parent)?.join(&name);
        let change = self.change_names(&[(parent, &name, Puts::Nothing)]);
        self.open_granted(change.inodes()).await;
        let removed = self.remote.unlink(&path).await;
        self.removed(parent, &name, removed)
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, parent: Ino, name_bytes: &[u8]) -> Result<()> {
        let name = name(name_bytes)?;
        let path = self.path(parent)?.join(&name);
        let _change = self.change_names(&[(parent, &name, Puts::Nothing)]);
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
        let change = self.move_names((from.0, &from_name), (to.0, &to_name));
        self.open_granted(change.inodes()).await;
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
        let target = self.remote.readlink(&path).await.inspect_err(|error| {
            // It is gone, or something else.
            if matches!(*error, Errno::ENOENT | Errno::EINVAL)
                && let Ok(link) = self.inode(ino)
            {
                self.outdate(&link);
            }
        })?;
        let dir = path.parent().ok_or(Errno::EINVAL)?;
        links::present(&self.config, &dir, target).inspect_err(|_| {
            tracing::debug!(%path, "the target of this link is not inside the mount");
        })
    }
}

pub(crate) fn lose_link(inode: Option<Arc<Inode>>) {
    if let Some(inode) = inode {
        let mut state = inode.state();
        state.nlink = state.nlink.saturating_sub(1);
        state.touch();
    }
}
