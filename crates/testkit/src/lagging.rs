//! A gateway with the caches of a machine that has mounted a network file system: for some time it
//! shows cached names, attributes, listings and pages, in spite of changes by other clients.
//! Changes through the gateway are visible at once, and an open revalidates the file.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crate::MemRemote;
use crate::tree::{Follow, Ino};
use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DirEntry, Errno, Fh, FileKind, Mutex, Name, OpenFlags,
    Opened, Remote, RemotePath, RenameMode, Result, Seek, SetXattr, StatVfs,
};
use bytes::Bytes;
use tokio::time::Instant;

/// Cached values with their expiry times.
type Seen<K, V> = HashMap<K, (Instant, V)>;

fn get<K: Hash + Eq, V: Clone>(seen: &Seen<K, V>, key: &K) -> Option<V> {
    let (until, value) = seen.get(key)?;
    (*until > Instant::now()).then(|| value.clone())
}

#[derive(Default)]
struct Caches {
    /// The inode of a name, `None` for a negative entry.
    names: Seen<RemotePath, Option<Ino>>,
    attrs: Seen<Ino, Attr>,
    listings: Seen<Ino, Vec<DirEntry>>,
    pages: Seen<Ino, Arc<Vec<u8>>>,
    files: HashMap<Fh, Ino>,
    open_listings: HashMap<Dh, VecDeque<DirEntry>>,
}

/// A gateway that lags behind changes by other gateways to `server`.
pub struct Lagging {
    server: Arc<MemRemote>,
    lag: Duration,
    caches: Mutex<Caches>,
}

impl Lagging {
    /// A gateway to `server` that caches for `lag`.
    pub fn new(server: Arc<MemRemote>, lag: Duration) -> Lagging {
        Lagging { server, lag, caches: Mutex::default() }
    }

    fn until(&self) -> Instant {
        Instant::now() + self.lag
    }

    fn now_at(&self, path: &RemotePath) -> Option<Ino> {
        self.server.edit(|tree| tree.lookup(path, Follow::No)).ok()
    }

    /// The inode of the name, by the cache.
    fn resolve(&self, path: &RemotePath) -> Option<Ino> {
        if let Some(seen) = get(&self.caches.lock().names, path) {
            return seen;
        }
        // A removed target is shown too, by the cache.
        let found = self.server.edit(|tree| {
            let ino = tree.lookup(path, Follow::No)?;
            tree.hold(ino);
            Ok(ino)
        });
        if matches!(found, Ok(_) | Err(Errno::ENOENT)) {
            self.caches.lock().names.insert(path.clone(), (self.until(), found.ok()));
        }
        found.ok()
    }

    fn attr(&self, ino: Ino) -> Attr {
        if let Some(attr) = get(&self.caches.lock().attrs, &ino) {
            return attr;
        }
        let attr = self.server.edit(|tree| tree.attr(ino));
        self.caches.lock().attrs.insert(ino, (self.until(), attr));
        attr
    }

    /// Fails if the name has a negative entry.
    fn check(&self, path: &RemotePath) -> Result<()> {
        match get(&self.caches.lock().names, path) {
            Some(None) => Err(Errno::ENOENT),
            _ => Ok(()),
        }
    }

    fn forget_ino(&self, ino: Option<Ino>) {
        let mut caches = self.caches.lock();
        if let Some(ino) = ino {
            caches.attrs.remove(&ino);
            caches.pages.remove(&ino);
            caches.listings.remove(&ino);
        }
    }

    /// Invalidates the cache after a change through this gateway: of the name, its inode, its
    /// parent directory, and the names below it.
    fn changed(&self, path: &RemotePath, before: Option<Ino>) {
        self.forget_ino(before);
        self.forget_ino(self.now_at(path));
        if let Some(parent) = path.parent() {
            self.forget_ino(self.now_at(&parent));
        }
        let below = [path.as_bytes(), b"/"].concat();
        let mut caches = self.caches.lock();
        caches.names.retain(|name, _| name != path && !name.as_bytes().starts_with(&below));
        drop(caches);
        self.found_above(path);
    }

    /// Caches the parent directories of `path` as found.
    fn found_above(&self, path: &RemotePath) {
        let mut above = path.parent();
        while let Some(directory) = above {
            let names = &mut self.caches.lock().names;
            if names.get(&directory).is_some_and(|(_, found)| found.is_none()) {
                names.remove(&directory);
            }
            above = directory.parent();
        }
    }

    fn ino_of(&self, fh: Fh) -> Option<Ino> {
        self.caches.lock().files.get(&fh).copied()
    }

    /// The content, by the cache.
    fn page(&self, ino: Ino) -> Arc<Vec<u8>> {
        if let Some(page) = get(&self.caches.lock().pages, &ino) {
            return page;
        }
        let page = self.server.edit(|tree| tree.read(ino, 0, u64::MAX)).unwrap();
        let page = Arc::new(page);
        self.caches.lock().pages.insert(ino, (self.until(), page.clone()));
        page
    }
}

/// Executes a change of one path, and invalidates the cache.
macro_rules! change {
    ($self:ident, $path:ident, $call:expr) => {{
        let before = $self.now_at($path);
        let result = $call.await;
        $self.changed($path, before);
        result
    }};
}

#[async_trait]
impl Remote for Lagging {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        let Some(ino) = self.resolve(path) else {
            // For the precise error.
            return self.server.lstat(path).await.and(Err(Errno::ENOENT));
        };
        Ok(self.attr(ino))
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        self.check(path)?;
        self.server.readlink(path).await
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        self.check(path)?;
        let dh = self.server.opendir(path).await?;
        let ino = self.now_at(path).ok_or(Errno::ENOENT)?;
        let seen = get(&self.caches.lock().listings, &ino);
        let entries = match seen {
            Some(entries) => entries,
            None => {
                let mut entries = Vec::new();
                while let Some(batch) = self.server.readdir(dh).await? {
                    entries.extend(batch);
                }
                self.caches.lock().listings.insert(ino, (self.until(), entries.clone()));
                entries
            }
        };
        self.caches.lock().open_listings.insert(dh, entries.into());
        Ok(dh)
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        let mut caches = self.caches.lock();
        let entries = caches.open_listings.get_mut(&dh).ok_or(Errno::EBADF)?;
        let batch = entries.drain(..entries.len().min(100)).collect::<Vec<_>>();
        Ok((!batch.is_empty()).then_some(batch))
    }

    fn closedir(&self, dh: Dh) {
        self.caches.lock().open_listings.remove(&dh);
        self.server.closedir(dh);
    }

    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        if flags.create == base::Create::Never {
            self.check(path)?;
        }
        let before = self.now_at(path);
        let opened = self.server.open(path, flags).await?;
        let ino = self.now_at(path).unwrap();
        if flags.truncate || before != Some(ino) {
            self.changed(path, before);
        }
        // Close-to-open: the open revalidates the file and its name.
        self.forget_ino(Some(ino));
        self.caches.lock().names.remove(path);
        self.resolve(path);
        self.found_above(path);
        let attr = self.attr(ino);
        self.caches.lock().files.insert(opened.fh, ino);
        Ok(Opened { attr, ..opened })
    }

    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        self.server.fstat(fh).await?;
        Ok(self.attr(self.ino_of(fh).ok_or(Errno::EBADF)?))
    }

    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        let page = self.ino_of(fh).map(|ino| self.page(ino));
        self.server.read(fh, offset, len).await?;
        let page = page.ok_or(Errno::EBADF)?;
        let start = page.len().min(offset as usize);
        let end = page.len().min(start + len as usize);
        Ok(Bytes::copy_from_slice(&page[start..end]).into())
    }

    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        // Invalidated before and after: a concurrent read may cache an old state in between.
        self.forget_ino(self.ino_of(fh));
        let call = self.server.write(fh, offset, data);
        let result = call.await;
        self.forget_ino(self.ino_of(fh));
        result
    }

    async fn fsync(&self, fh: Fh) -> Result<()> {
        self.server.fsync(fh).await
    }

    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        self.server.fsyncdir(path).await
    }

    fn close(&self, fh: Fh) {
        self.caches.lock().files.remove(&fh);
        self.server.close(fh);
    }

    async fn finish(&self, fh: Fh) -> Result<()> {
        self.caches.lock().files.remove(&fh);
        self.server.finish(fh).await
    }

    async fn flush(&self, fh: Fh) -> Result<()> {
        self.server.flush(fh).await
    }

    async fn setattr(&self, path: &RemotePath, attrs: AttrChange) -> Result<()> {
        self.check(path)?;
        change!(self, path, self.server.setattr(path, attrs))
    }

    async fn fsetattr(&self, fh: Fh, attrs: AttrChange) -> Result<()> {
        let result = self.server.fsetattr(fh, attrs).await;
        self.forget_ino(self.ino_of(fh));
        result
    }

    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        change!(self, path, self.server.mkdir(path, perm))
    }

    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        self.check(path)?;
        change!(self, path, self.server.rmdir(path))
    }

    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        self.check(path)?;
        change!(self, path, self.server.unlink(path))
    }

    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        change!(self, path, self.server.symlink(target, path))
    }

    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        self.check(existing)?;
        change!(self, new, self.server.link(existing, new))
    }

    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        self.check(from)?;
        let replaced = self.now_at(to);
        let result = change!(self, from, self.server.rename(from, to, mode));
        self.changed(to, replaced);
        result
    }

    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        self.check(path)?;
        self.server.statvfs(path).await
    }

    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        let result = self.server.copy(from, to, len).await;
        self.forget_ino(self.ino_of(to.0));
        result
    }

    async fn mknod(
        &self,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<()> {
        change!(self, path, self.server.mknod(path, kind, perm, device))
    }

    async fn fallocate(&self, fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()> {
        let result = self.server.fallocate(fh, how, offset, len).await;
        self.forget_ino(self.ino_of(fh));
        result
    }

    async fn seek(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        self.server.seek(fh, offset, what).await
    }

    fn may_exceed_sftp(&self) -> bool {
        self.server.may_exceed_sftp()
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        self.check(path)?;
        self.server.getxattr(path, name).await
    }

    async fn listxattr(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        self.check(path)?;
        self.server.listxattr(path).await
    }

    async fn entries_with_xattrs(&self, dir: &RemotePath) -> Result<Vec<Name>> {
        self.check(dir)?;
        self.server.entries_with_xattrs(dir).await
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        self.check(path)?;
        change!(self, path, self.server.setxattr(path, name, value, mode))
    }

    async fn removexattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        self.check(path)?;
        change!(self, path, self.server.removexattr(path, name))
    }
}
