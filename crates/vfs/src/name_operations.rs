//! mkdir, mknod of special files, rmdir, unlink, symlink, link, rename, readlink: operations on
//! names.
//!
//! Requests name a file by its path. So that a request never changes a name in another directory,
//! the path of a name is fixed while it is being changed: the change begins when no name on the
//! path is being changed, and a rename of a directory is sent when no name below it is being
//! changed. A change waits only for changes that began before it, so no two wait for each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{
    Attr, Errno, FileKind, Location, Name, RemotePath, RenameMode, Result, Timestamp, until,
};
use tokio::time::Instant;

use crate::inode::Inode;
use crate::name_changes::BoundTo;
use crate::shared::Shared;
use crate::tree::Tree;
use crate::{Entry, Ino, Vfs, links, name};

/// The permission bits of a mode.
const PERM_BITS: u32 = 0o7777;

/// A change of names in flight. Ends when dropped, whether it succeeded or not; then the names and
/// the attributes of their directories are invalidated.
#[must_use]
pub(crate) struct NameChangeGuard<'a> {
    vfs: &'a Vfs,
    names: Vec<(Ino, Name, BoundTo)>,
    /// The files that have these names.
    inodes: Vec<Arc<Inode>>,
    /// The rename of a directory was sent.
    moves_directory: bool,
    /// The names exchange their files.
    exchanges: bool,
    has_succeeded: bool,
}

impl NameChangeGuard<'_> {
    /// The rename of a directory is about to be sent: waits until no name below `dirs` is being
    /// changed.
    async fn begin_move(&mut self, dirs: &[Ino]) {
        let begin = |tree: &mut Tree| {
            if dirs.iter().any(|dir| tree.has_changes_below(*dir)) {
                return None;
            }
            self.names.iter().for_each(|(dir, name, _)| tree.begin_move(*dir, name));
            Some(())
        };
        self.vfs.once_names_allow(begin).await;
        self.moves_directory = true;
    }

    /// The server has executed the change.
    pub(crate) fn succeed(&mut self) {
        self.has_succeeded = true;
    }

    /// The files that had the names when the change began.
    pub(crate) fn inodes(&self) -> &[Arc<Inode>] {
        &self.inodes
    }
}

impl Drop for NameChangeGuard<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut foreign = Vec::new();
        let mut tree = self.vfs.tree();
        for (dir, name, bound_to) in &self.names {
            foreign.extend(tree.end_name_change(*dir, name, *bound_to, self.has_succeeded));
            if self.exchanges {
                foreign.extend(tree.end_exchange(*dir, name, self.has_succeeded));
            }
            tree.renew_name(*dir, name, now);
            if self.moves_directory {
                tree.end_move(*dir, name);
            }
        }
        drop(tree);
        self.inodes.iter().for_each(|inode| inode.state().end_renaming());
        self.vfs.names_changed.notify_waiters();
        if let Some(repeat) = self.vfs.repeat.get().filter(|_| !foreign.is_empty()) {
            repeat.repeat(foreign);
        }
    }
}

impl Shared {
    /// The first result of `attempt`, which is repeated each time a change of names has ended.
    pub(crate) async fn once_names_allow<T>(
        &self,
        mut attempt: impl FnMut(&mut Tree) -> Option<T>,
    ) -> T {
        until(&self.names_changed, || attempt(&mut self.tree())).await
    }

    /// Waits until no rename of a directory on the path of `ino` is in flight.
    pub(crate) async fn await_moves(&self, ino: Ino) {
        self.once_names_allow(|tree| (!tree.is_moving(ino)).then_some(())).await;
    }
}

impl Vfs {
    /// Begins a change of a name. Returns the path of the name, which is fixed until the change
    /// ends.
    pub(crate) async fn begin_name_change(
        &self,
        dir: Ino,
        name: &Name,
        bound_to: BoundTo,
    ) -> Result<(RemotePath, NameChangeGuard<'_>)> {
        let begin = |tree: &mut Tree| {
            let path = self.fixed_path(tree, dir, name)?;
            Some(path.map(|path| (path, self.begin_changes(tree, &[(dir, name, bound_to)]))))
        };
        self.once_names_allow(begin).await
    }

    /// Begins the change of names of a rename. Returns also the paths of the names, and the
    /// directories that have them; `None` if no directory is moved.
    async fn begin_rename(
        &self,
        from: (Ino, &Name),
        to: (Ino, &Name),
        mode: RenameMode,
    ) -> Result<([RemotePath; 2], NameChangeGuard<'_>, Option<Vec<Ino>>)> {
        let begin = |tree: &mut Tree| {
            let from_path = self.fixed_path(tree, from.0, from.1)?;
            let paths = (from_path, self.fixed_path(tree, to.0, to.1)?);
            let (Ok(from_path), Ok(to_path)) = paths else { return Some(Err(Errno::ESTALE)) };
            let known = [from, to].map(|(dir, name)| tree.child(dir, name));
            let bound_to = |moved: &Option<Arc<Inode>>| {
                moved.as_ref().map_or(BoundTo::New, |moved| BoundTo::Inode(moved.ino))
            };
            let exchanges = mode == RenameMode::Exchange;
            let from_bound_to = if exchanges { bound_to(&known[1]) } else { BoundTo::Nothing };
            let mut moved = known.iter().take(if exchanges { 2 } else { 1 });
            let is_directory = |moved: &Arc<Inode>| moved.kind == FileKind::Directory;
            let moves_directory = moved.any(|moved| moved.as_ref().is_none_or(is_directory));
            // The server refuses to move a directory below itself.
            let below_itself = |dir| tree.is_within(from.0, dir) || tree.is_within(to.0, dir);
            let dirs = known.iter().flatten().map(|known| known.ino);
            let dirs = dirs.filter(|dir| !below_itself(*dir)).collect();
            let names = [(from.0, from.1, from_bound_to), (to.0, to.1, bound_to(&known[0]))];
            let mut change = self.begin_changes(tree, &names);
            if exchanges {
                [from, to].into_iter().for_each(|(dir, name)| tree.begin_exchange(dir, name));
                change.exchanges = true;
            }
            Some(Ok(([from_path, to_path], change, moves_directory.then_some(dirs))))
        };
        self.once_names_allow(begin).await
    }

    /// The path of a name; `None` while a name on the path of `dir` is being changed.
    fn fixed_path(&self, tree: &Tree, dir: Ino, name: &Name) -> Option<Result<RemotePath>> {
        let Some(path) = tree.path(dir) else { return Some(Err(Errno::ESTALE)) };
        (!tree.is_path_changing(dir)).then(|| Ok(path.join(name)))
    }

    fn begin_changes(
        &self,
        tree: &mut Tree,
        names: &[(Ino, &Name, BoundTo)],
    ) -> NameChangeGuard<'_> {
        let mut inodes = Vec::new();
        for (dir, name, bound_to) in names {
            tree.begin_name_change(*dir, name, *bound_to);
            inodes.extend(tree.child(*dir, name).filter(|it| it.kind == FileKind::Regular));
        }
        inodes.iter().for_each(|inode| inode.state().begin_renaming());
        let names =
            names.iter().map(|(dir, name, bound_to)| (*dir, (*name).clone(), *bound_to)).collect();
        NameChangeGuard {
            vfs: self,
            names,
            inodes,
            moves_directory: false,
            exchanges: false,
            has_succeeded: false,
        }
    }

    /// Creates a directory.
    pub async fn mkdir(&self, parent: Ino, name_bytes: &[u8], perm: u32) -> Result<Entry> {
        let name = name(name_bytes)?;
        let (path, change) = self.begin_name_change(parent, &name, BoundTo::New).await?;
        let request = self.remote.mkdir(&path, perm);
        // If permission bits are missing, the answer may be from before they are corrected; or the
        // server insists on others.
        let matches = |attr: &Attr| attr.is_dir() && perm & !attr.perm & PERM_BITS == 0;
        let expected_attr = self.expected_attr(parent, FileKind::Directory, perm, 0);
        self.finish_create(parent, &name, &path, change, request, matches, expected_attr).await
    }

    /// Creates a symbolic link.
    pub async fn symlink(&self, parent: Ino, name_bytes: &[u8], target: &[u8]) -> Result<Entry> {
        let name = name(name_bytes)?;
        let (path, change) = self.begin_name_change(parent, &name, BoundTo::New).await?;
        let request = self.remote.symlink(target, &path);
        let matches = |attr: &Attr| attr.kind == FileKind::Symlink;
        let expected_attr =
            self.expected_attr(parent, FileKind::Symlink, 0o777, target.len() as u64);
        self.finish_create(parent, &name, &path, change, request, matches, expected_attr).await
    }

    /// Creates a FIFO, a socket or a device.
    pub(crate) async fn make_special(
        &self,
        parent: Ino,
        name_bytes: &[u8],
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<Entry> {
        let name = name(name_bytes)?;
        if !self.remote.may_exceed_sftp() {
            return Err(Errno::EPERM);
        }
        let (path, change) = self.begin_name_change(parent, &name, BoundTo::New).await?;
        let made = self.remote.mknod(&path, kind, perm, device).await;
        made.map_err(|errno| if errno == Errno::EOPNOTSUPP { Errno::EPERM } else { errno })?;
        let matches = |attr: &Attr| attr.kind == kind;
        let expected_attr = self.expected_attr(parent, kind, perm, 0);
        let request = std::future::ready(Ok(()));
        self.finish_create(parent, &name, &path, change, request, matches, expected_attr).await
    }

    /// The attributes of a new file in `parent`, as far as they are known without a request.
    fn expected_attr(&self, parent: Ino, kind: FileKind, perm: u32, size: u64) -> Attr {
        let dir = self.tree().get(parent).and_then(|dir| dir.state().last_attr());
        let owner = self.config.login.or(dir.map(|dir| (dir.uid, dir.gid)));
        let (uid, gid) = owner.unwrap_or_default();
        let now = Timestamp::from_secs(Timestamp::now().secs);
        Attr { kind, perm: perm & PERM_BITS, size, uid, gid, atime: now, mtime: now, inode: None }
    }

    /// The entry of a name that this mount creates. The request for its attributes is sent right
    /// behind the `request` that creates it, so that one round trip is enough. A remote may execute
    /// it first: then the name was absent, or its attributes do not satisfy `matches`, and the
    /// request is repeated. If no answer arrives, the attributes are `expected_attr`.
    #[expect(clippy::too_many_arguments, reason = "two callers that differ in all of them")]
    async fn finish_create(
        &self,
        parent: Ino,
        name: &Name,
        path: &RemotePath,
        mut change: NameChangeGuard<'_>,
        request: impl Future<Output = Result<()>>,
        matches: impl FnOnce(&Attr) -> bool,
        expected_attr: Attr,
    ) -> Result<Entry> {
        let mut stamp = self.stamp_request();
        let (finish_create, reply) = tokio::join!(request, self.remote.lstat(path));
        finish_create?;
        change.succeed();
        let reply = match reply.ok().filter(matches) {
            Some(attr) => Some(attr),
            None => {
                stamp = self.stamp_request();
                let reply = self.remote.lstat(path).await;
                reply.ok().filter(|attr| attr.kind == expected_attr.kind)
            }
        };
        drop(change);
        // The name was created, so the caller gets no error if its attributes are unknown; but the
        // kernel does not cache them.
        let attr = reply.unwrap_or(expected_attr);
        let inode = {
            let mut tree = self.tree();
            // Any file that had this name before was gone when the name was created.
            tree.unbind(parent, name);
            tree.record_lookup(parent, name, &attr, Instant::now())
        };
        inode.state().expect_new_mtime();
        inode.state().begin_quiet_time();
        if reply.is_none() {
            return self.entry(&inode, &attr).inspect_err(|_| self.forget(inode.ino, 1));
        }
        self.record_attr(&inode, &attr, stamp);
        if attr.is_dir() {
            // Names that another machine has created in it meanwhile may be taken to be absent, as
            // any negative lookup may.
            self.tree().insert_created_directory(inode.ino, path, stamp);
        }
        self.entry(&inode, &attr).inspect_err(|_| self.forget(inode.ino, 1))
    }

    /// Makes `name` in `parent` a further name of the file `ino`. Both names are one inode here, as
    /// long as the kernel knows it.
    pub async fn link(&self, ino: Ino, parent: Ino, name_bytes: &[u8]) -> Result<Entry> {
        let name = name(name_bytes)?;
        let inode = self.inode(ino)?;
        if inode.kind == FileKind::Directory {
            return Err(Errno::EPERM);
        }
        let (path, mut change) = self.begin_name_change(parent, &name, BoundTo::Inode(ino)).await?;
        let request = |existing: RemotePath| {
            let path = &path;
            async move { self.remote.link(&existing, path).await }
        };
        self.by_any_path(&inode, request).await?;
        change.succeed();
        // The name exists from here on, even if its attributes are unknown.
        self.tree().bind(ino, parent, &name, Instant::now());
        let (known, last) = {
            let mut state = inode.state();
            let is_known = !state.is_invalidated()
                && state.last_attr().is_some_and(|attr| attr.inode.is_some());
            state.add_links(1, &self.change_counter);
            let last = state.last_attr();
            (last.filter(|_| is_known), last)
        };
        drop(change);
        let attr = match known {
            // Only its ctime has changed. If the remote reports one, it is requested when it is
            // needed.
            Some(attr) => attr,
            // The kernel uses the size in the reply even if it knows a newer one: it must not be
            // from before a local write.
            None => self.attr(&inode).await.or_else(|error| last.ok_or(error))?,
        };
        self.tree().add_lookup(ino);
        self.entry(&inode, &attr).inspect_err(|_| self.forget(ino, 1))
    }

    /// Removes the name of a file. An open file lives on.
    pub async fn unlink(&self, parent: Ino, name_bytes: &[u8]) -> Result<()> {
        let name = name(name_bytes)?;
        let (path, change) = self.begin_name_change(parent, &name, BoundTo::Nothing).await?;
        self.force_deferred_opens(change.inodes()).await;
        let finish_removal = self.remote.unlink(&path).await;
        self.finish_removal(parent, &name, change, finish_removal)
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, parent: Ino, name_bytes: &[u8]) -> Result<()> {
        let name = name(name_bytes)?;
        let (path, change) = self.begin_name_change(parent, &name, BoundTo::Nothing).await?;
        let finish_removal = self.remote.rmdir(&path).await;
        self.finish_removal(parent, &name, change, finish_removal)
    }

    fn finish_removal(
        &self,
        parent: Ino,
        name: &Name,
        mut change: NameChangeGuard<'_>,
        result: Result<()>,
    ) -> Result<()> {
        if result.is_ok() {
            change.succeed();
        }
        if matches!(result, Ok(()) | Err(Errno::ENOENT)) {
            let inode = {
                let mut tree = self.tree();
                tree.record_removal(parent, name);
                let is_dir = |inode: Arc<Inode>| inode.kind == FileKind::Directory;
                // Another machine may have moved it.
                let was_gone = result.is_err() && tree.child(parent, name).is_some_and(is_dir);
                tree.remove_name(parent, name, was_gone)
            };
            self.drop_link(inode);
        }
        result
    }

    /// Moves the name `from` to `to`, or exchanges the two (`EINVAL` if the server cannot do that).
    pub async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let (from_name, to_name) = (name(from.1)?, name(to.1)?);
        if mode == RenameMode::Exchange && !self.remote.may_exceed_sftp() {
            return Err(Errno::EINVAL);
        }
        let ([from_path, to_path], mut change, moved_dirs) =
            self.begin_rename((from.0, &from_name), (to.0, &to_name), mode).await?;
        self.force_deferred_opens(change.inodes()).await;
        if let Some(dirs) = moved_dirs {
            change.begin_move(&dirs).await;
        }
        self.remote.rename(&from_path, &to_path, mode).await?;
        change.succeed();
        if mode == RenameMode::Exchange {
            let exchanged = self.tree().exchange((from.0, &from_name), (to.0, &to_name));
            let exchanged = exchanged.iter().flatten();
            exchanged.for_each(|inode| inode.state().touch_ctime(&self.change_counter));
            return Ok(());
        }
        // Two names of one file stay as they are, and perhaps only the server knows that they are;
        // so nothing is assumed about the old name.
        let (moved, replaced) = self.tree().rename((from.0, &from_name), (to.0, &to_name));
        if let Some(moved) = &moved {
            moved.state().touch_ctime(&self.change_counter);
        }
        self.drop_link(replaced);
        drop(change);
        if let Some(moved) = moved {
            self.prefetch.request_renamed(&self.shared, &moved);
        }
        Ok(())
    }

    /// The target of a symbolic link, if [`Links`](crate::Links) lets the kernel see it.
    pub async fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let reading = self.by_path(ino, |path, _| async move {
            let target = self.remote.readlink(&path).await?;
            Ok((path, target))
        });
        let (path, target) = reading.await.inspect_err(|error| {
            // The link is gone, or is another file by now.
            if matches!(*error, Errno::ENOENT | Errno::EINVAL)
                && let Ok(link) = self.inode(ino)
            {
                self.invalidate_inode(&link);
            }
        })?;
        let mut names = self.tree().paths(ino);
        if names.is_empty() {
            names.push(path.clone());
        }
        let shown = |name: &RemotePath| {
            let dir = name.parent().ok_or(Errno::EINVAL)?;
            links::present(&self.config, &dir, target.clone())
        };
        let shown: Result<Vec<_>> = names.iter().map(shown).collect();
        // The kernel does not say which of its names it follows.
        let shown = shown.and_then(|mut all| {
            all.dedup();
            let [target] = <[_; 1]>::try_from(all).map_err(|_| Errno::EPERM)?;
            Ok(target)
        });
        shown.inspect_err(|errno| {
            if *errno == Errno::EPERM && !self.has_refused_link.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "{path}: a symbolic link that leads out of the mount is refused, as all such \
                     links are; -o no_contain_symlinks allows them"
                );
            }
        })
    }

    /// The locations of `ino`: first the one that is shown, then the others with the same name
    /// behind it; none for a directory that exists only in the mount. `EOPNOTSUPP` if the remote
    /// cannot describe itself, `ESTALE` if the file has no name any more.
    pub async fn locate(&self, ino: Ino) -> Result<Vec<Location>> {
        self.by_path(ino, |path, _| async move { self.remote.locate(&path).await }).await
    }
}

impl Shared {
    /// A file has lost a name.
    pub(crate) fn drop_link(&self, inode: Option<Arc<Inode>>) {
        if let Some(inode) = inode {
            inode.state().add_links(-1, &self.change_counter);
        }
    }
}
