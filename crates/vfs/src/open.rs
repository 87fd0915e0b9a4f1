//! open, create, mknod, flush, fsync, release: the life of an open file.
//!
//! Under close-to-open, each open learns from the server whether the name still leads to the
//! content that the kernel has pages of. If another file has taken the name while the old one is
//! open here, the open fails with `ESTALE`; the kernel then looks the name up again by itself and
//! gets a new inode, so that pages of two files never mix.

use std::sync::{Arc, Mutex, PoisonError};

use base::{Access, Attr, Create, Errno, Fh, FileKind, OpenFlags, Remote, RemotePath, Result};
use tokio::time::Instant;

use crate::config::{Consistency, PageCache};
use crate::inode::{Inode, OpenHandle, Validator};
use crate::{Change, Entry, Handle, Ino, Vfs, name};

/// How an application opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// Reading, writing or both.
    pub access: Access,
    /// `O_APPEND`
    pub append: bool,
    /// `O_TRUNC`
    pub truncate: bool,
    /// `O_DIRECT`
    pub direct: bool,
}

impl OpenRequest {
    /// Neither appending nor cutting, through the page cache.
    #[must_use]
    pub fn plain(access: Access) -> OpenRequest {
        OpenRequest { access, append: false, truncate: false, direct: false }
    }

    fn flags(self, create: Create) -> OpenFlags {
        OpenFlags { access: self.access, create, truncate: self.truncate, append: self.append }
    }
}

/// An open file, to be given back with [`Vfs::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// What to call it by.
    pub handle: Handle,
    /// The kernel's pages of it are still right.
    pub keep_cache: bool,
    /// Reads and writes are to go past the kernel's page cache.
    pub direct_io: bool,
}

/// One open file. Closed at the remote when the last user of it is gone.
pub(crate) struct OpenFile {
    pub(crate) number: u64,
    pub(crate) inode: Arc<Inode>,
    pub(crate) fh: Fh,
    pub(crate) access: Access,
    pub(crate) append: bool,
    remote: Arc<dyn Remote>,
    state: Mutex<FileState>,
    lost: Arc<LostWrite>,
}

/// The error of a write that nobody was left to be told of.
pub(crate) type LostWrite = Mutex<Option<Errno>>;

#[derive(Default)]
struct FileState {
    /// Why a write failed that had been acknowledged before.
    error: Option<Errno>,
    /// How many writes to the file had failed when this was asked last.
    failures_seen: u64,
    /// Written through since the last flush.
    written: bool,
}

impl OpenFile {
    fn with<T>(&self, body: impl FnOnce(&mut FileState) -> T) -> T {
        body(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A write that was acknowledged has failed. The first error is the one that is reported.
    pub(crate) fn fail(&self, error: Errno) {
        self.inode.state().write_failed(error);
        self.with(|state| state.error = state.error.or(Some(error)));
    }

    /// The error of an acknowledged write through any handle of the file, if it has failed since
    /// this one was opened and told of the last. With this it is reported.
    fn take_failure(&self) -> Result<()> {
        let (failures, last) = self.inode.state().failed_writes();
        let seen = self.with(|state| std::mem::replace(&mut state.failures_seen, failures));
        last.filter(|_| failures > seen).map_or(Ok(()), Err)
    }

    /// The error of an earlier write, which with this is reported.
    pub(crate) fn take_error(&self) -> Result<()> {
        self.with(|state| state.error.take()).map_or(Ok(()), Err)
    }

    pub(crate) fn note_write(&self) {
        self.with(|state| state.written = true);
    }

    fn take_written(&self) -> bool {
        self.with(|state| std::mem::take(&mut state.written))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(error) = self.with(|state| state.error) {
            tracing::error!(%error, "a write failed after its file had been closed");
            *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
        self.remote.close(self.fh);
    }
}

impl Vfs {
    /// Opens the file `ino`.
    pub async fn open(&self, ino: Ino, request: OpenRequest) -> Result<Opened> {
        let inode = self.inode(ino)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            FileKind::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        if request.truncate {
            inode.writes.drained().await;
        }
        let path = self.path(ino)?;
        let mut tick = self.ticks.now();
        let change = request.truncate.then(|| {
            inode.state().forget_pages();
            Change::begin(&inode, &self.ticks)
        });
        let opened = self.remote.open(&path, request.flags(Create::Never)).await;
        if let Some(alone_until) = change.and_then(Change::end) {
            // Nothing but this truncation has happened, and the attributes are from after it.
            tick = alone_until;
        }
        let opened = opened.inspect_err(|error| {
            if matches!(*error, Errno::ENOENT | Errno::ELOOP | Errno::EISDIR | Errno::ENOTDIR) {
                inode.state().expire();
            }
        });
        let opened = match opened {
            // The path may have led elsewhere when the server saw it.
            Err(Errno::ENOENT) if !self.tree().paths_unchanged_since(tick) => Err(Errno::ESTALE),
            opened => opened,
        }?;
        let file = self.file(&inode, opened.fh, request);
        if !self.is_same(&inode, &path, &opened.attr, tick).await? {
            self.tree().orphan(ino);
            return Err(Errno::ESTALE);
        }
        if self.config.page_cache != PageCache::Always
            && inode.state().doubt_other_than(opened.attr.size)
        {
            // Reads end where the kernel takes the end of the file to be. To make it ask for the
            // attributes again, the open is sent back to the name, but not twice: a file may grow
            // all the time, and an open by `/proc/self/fd` looks no name up.
            self.learn(&inode, &opened.attr, tick);
            return Err(Errno::ESTALE);
        }
        Ok(self.register(file, &opened.attr, tick, request))
    }

    /// Whether the content that was opened under a name of `inode` is of the same file.
    async fn is_same(
        &self,
        inode: &Arc<Inode>,
        path: &RemotePath,
        attr: &Attr,
        tick: u64,
    ) -> Result<bool> {
        if !self.is_still(inode, path, attr, tick).await {
            return Ok(false);
        }
        let changed = {
            let state = inode.state();
            state.last_attr().is_some_and(|old| Validator::of(&old) != Validator::of(attr))
        };
        Ok(!changed || self.names_agree(inode, tick).await?)
    }

    /// Makes and opens a file. If it is there already, it is opened unless `exclusive`.
    pub async fn create(
        &self,
        parent: Ino,
        name_bytes: &[u8],
        perm: u32,
        exclusive: bool,
        request: OpenRequest,
    ) -> Result<(Entry, Opened)> {
        let name = name(name_bytes)?;
        let path = self.path(parent)?.join(&name);
        let create = if exclusive { Create::Exclusive(perm) } else { Create::IfAbsent(perm) };
        let change = self.change_names(&[(parent, &name)]);
        let known = self.tree().child(parent, &name);
        if let Some(known) = &known {
            known.writes.drained().await;
        }
        let tick = self.ticks.now();
        let cut = known.as_ref().filter(|_| request.truncate).map(|known| {
            known.state().forget_pages();
            Change::begin(known, &self.ticks)
        });
        let opened = self.remote.open(&path, request.flags(create)).await?;
        drop(cut);
        let unclosed = Unclosed { remote: &self.remote, fh: Some(opened.fh) };
        let replaced = match &known {
            Some(known) => exclusive || !self.is_still(known, &path, &opened.attr, tick).await,
            None => false,
        };
        drop(change);
        let inode = {
            let mut tree = self.tree();
            if let Some(known) = known.filter(|_| replaced) {
                tree.orphan(known.ino);
            }
            tree.see(parent, &name, &opened.attr, Instant::now()).inode()
        };
        self.learn(&inode, &opened.attr, tick);
        let entry = self.entry(&inode, &opened.attr).inspect_err(|_| self.forget(inode.ino, 1))?;
        let file = self.file(&inode, unclosed.take(), request);
        Ok((entry, self.register(file, &opened.attr, tick, request)))
    }

    /// Makes a regular file without opening it. Others cannot be made over SFTP: `EPERM`.
    pub async fn mknod(
        &self,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u32,
    ) -> Result<Entry> {
        if kind != FileKind::Regular {
            return Err(Errno::EPERM);
        }
        let request = OpenRequest::plain(Access::Write);
        let (entry, opened) = self.create(parent, name, perm, true, request).await?;
        self.release(opened.handle);
        Ok(entry)
    }

    fn file(&self, inode: &Arc<Inode>, fh: Fh, request: OpenRequest) -> Arc<OpenFile> {
        Arc::new(OpenFile {
            number: self.files.number(),
            inode: inode.clone(),
            fh,
            access: request.access,
            append: request.append,
            remote: self.remote.clone(),
            state: Mutex::new(FileState {
                failures_seen: inode.state().failed_writes().0,
                ..FileState::default()
            }),
            lost: self.lost_write.clone(),
        })
    }

    /// Enters an open file, with what it tells about its inode.
    fn register(
        &self,
        file: Arc<OpenFile>,
        attr: &Attr,
        tick: u64,
        request: OpenRequest,
    ) -> Opened {
        let mut state = file.inode.state();
        let quiet = state.unchanged_since(tick);
        let trust = self.config.consistency == Consistency::Timeout;
        let validated = self.config.page_cache == PageCache::Validated;
        // Two files that cannot be told apart must not share pages, nor be told apart by mistake
        // if they are one. Reads of the second past the pages are right either way.
        let doubtful = quiet && validated && !trust && state.is_doubtful(attr);
        if quiet && !self.counts_for_ever(&state) {
            state.learn(*attr, Instant::now(), self.timeout(file.inode.kind));
        }
        let same_pages = |state: &mut crate::inode::State, trust| {
            if quiet {
                return state.validate_pages(attr, trust);
            }
            // Written here at this moment: what pages hold is named by no validator.
            state.forget_pages();
            false
        };
        let keep_cache = match self.config.page_cache {
            _ if doubtful => true,
            PageCache::Validated => same_pages(&mut state, trust),
            PageCache::SameTime => same_pages(&mut state, true),
            PageCache::Always => true,
            PageCache::Never => false,
        };
        let direct_io = doubtful || request.direct || self.config.page_cache == PageCache::Never;
        state.open.push(OpenHandle { fh: file.fh, access: file.access, cached: !direct_io });
        drop(state);
        let handle = Handle(file.number);
        self.files.insert(file.number, file);
        Opened { handle, keep_cache, direct_io }
    }

    /// One of the descriptors of this open file is being closed: what was written through it is
    /// at the server when this returns, or the error says why not.
    pub async fn flush(&self, handle: Handle) -> Result<()> {
        let file = self.files.get(handle.0)?;
        if file.take_written() {
            self.settle(&file).await;
        } else {
            // Another descriptor of this open file may be being closed, or its close have been
            // interrupted, with writes still on their way.
            file.inode.writes.drained_of(file.number).await;
        }
        file.take_error()
    }

    /// Waits for the writes of `file`'s inode, and learns what they have made of it. The question
    /// goes out right behind the writes, so that one round trip does for both.
    async fn settle(&self, file: &OpenFile) {
        let inode = &file.inode;
        inode.writes.drained_but(file.number).await;
        // What comes of writes through other handles, or not sent yet, the answer cannot tell.
        let begun = {
            let state = inode.state();
            let ahead = inode.writes.sent_through(file.number);
            (state.changing() as usize == ahead).then(|| state.begun())
        };
        let (attr, ()) = tokio::join!(self.remote.fstat(file.fh), inode.writes.drained());
        if let (Ok(attr), Some(begun)) = (attr, begun) {
            let mut state = inode.state();
            if state.settled_since(begun) {
                state.learn(attr, Instant::now(), self.timeout(inode.kind));
                state.pages_written(&attr);
            }
        }
    }

    /// Everything written to the file so far is on the server's disk when this returns.
    /// `EINVAL`, as fsync(2) has it, when the server cannot promise that.
    pub async fn fsync(&self, handle: Handle) -> Result<()> {
        let file = self.files.get(handle.0)?;
        file.inode.writes.drained_but(file.number).await;
        let (synced, ()) = tokio::join!(self.remote.fsync(file.fh), file.inode.writes.drained());
        let own = file.take_error();
        let any = file.take_failure();
        own.and(any)?;
        synced.map_err(no_fsync)
    }

    /// The same for the names in a directory.
    pub async fn fsyncdir(&self, ino: Ino) -> Result<()> {
        let path = self.path(ino)?;
        self.remote.fsyncdir(&path).await.map_err(no_fsync)
    }

    /// The last descriptor of this open file is gone. Waits for nothing.
    pub fn release(&self, handle: Handle) {
        if let Some(file) = self.files.remove(handle.0) {
            file.inode.state().open.retain(|open| open.fh != file.fh);
        }
    }
}

fn no_fsync(error: Errno) -> Errno {
    if error == Errno::EOPNOTSUPP { Errno::EINVAL } else { error }
}

/// Closes a handle that nobody has taken over.
struct Unclosed<'a> {
    remote: &'a Arc<dyn Remote>,
    fh: Option<Fh>,
}

impl Unclosed<'_> {
    fn take(mut self) -> Fh {
        self.fh.take().expect("taken once, since this consumes it")
    }
}

impl Drop for Unclosed<'_> {
    fn drop(&mut self) {
        if let Some(fh) = self.fh {
            self.remote.close(fh);
        }
    }
}
