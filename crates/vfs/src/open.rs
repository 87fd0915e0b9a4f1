//! open, create, mknod, fsync, release: the life of an open file. Its closes are in [`flush`].
//!
//! Under close-to-open, each open checks with the server whether the name still leads to the
//! content of the kernel's pages. If another file has taken the name while the old one is open
//! here, the open fails with `ESTALE`; the kernel then repeats the lookup and gets a new inode, so
//! pages of two files never mix.
//!
//! [`flush`]: crate::flush

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use base::{
    Access, Attr, AttrChange, Create, Errno, Fh, FileKind, Mutex, OpenFlags, Remote, RemotePath,
    Result,
};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::config::{Consistency, PageCache};
use crate::inode::{Inode, KernelSize, OpenHandle, State, StateVersion, Validator};
use crate::lookup::{MAX_ATTEMPTS, MAX_COMPARISONS};
use crate::name_changes::BoundTo;
use crate::prefetch::Revisit;
use crate::prefetch::files::AttachedFile;
use crate::readahead::Readahead;
use crate::remote_file::RemoteFile;
use crate::server_close::{PendingAnswer, WrittenHandle};
use crate::shared::Shared;
use crate::tree::{RequestStamp, Tree};
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
    /// `O_SYNC` or `O_DSYNC`
    pub sync: bool,
}

impl OpenRequest {
    /// An open through the page cache that neither appends nor truncates and is not synchronous.
    pub fn plain(access: Access) -> OpenRequest {
        OpenRequest { access, append: false, truncate: false, direct: false, sync: false }
    }

    fn flags(self, create: Create) -> OpenFlags {
        OpenFlags { access: self.access, create, truncate: self.truncate, append: self.append }
    }
}

/// An open file; must be returned with [`Vfs::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its handle.
    pub handle: Handle,
    /// The kernel's pages of the file are still valid.
    pub keep_cache: bool,
    /// Reads and writes must bypass the kernel's page cache.
    pub direct_io: bool,
    /// The kernel may use another size than that of the file: its attributes must be invalidated
    /// before it gets this reply.
    pub invalidate_attributes: bool,
}

/// One open file. Its remote handle is closed when its last user is dropped.
pub(crate) struct OpenFile {
    pub(crate) number: u64,
    pub(crate) inode: Arc<Inode>,
    pub(crate) remote: Arc<RemoteFile>,
    pub(crate) access: Access,
    pub(crate) append: bool,
    /// Cached data of any age was valid when it was opened.
    stale: bool,
    /// The whole content, prefetched before the open.
    pub(crate) fetched: Option<AttachedFile>,
    /// Readahead for its readers; unset where there is none.
    pub(crate) readahead: OnceLock<Arc<Readahead>>,
    /// The same file opened to write in place if this one appends, and to append otherwise.
    pub(crate) twin: OnceCell<Arc<OpenFile>>,
    /// Held by a close: those of one open file wait for each other.
    pub(crate) flushing: tokio::sync::Mutex<()>,
    state: Mutex<FileState>,
    lost_write: Arc<LostWrite>,
    shared: Weak<Shared>,
}

/// The relation of an opened file to the open handles and the name of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    /// It is the file of the inode, or cannot be distinguished from it.
    Same,
    /// It has taken the name of the inode's file.
    Replacement,
    /// It has lost the name.
    Replaced,
}

/// A write is far if it begins this many bytes behind the known end of its file. Sparse files of
/// usual sizes are written without waiting; file systems with a limit have 2 TiB (ext3) or 16 TiB
/// (ext4).
const FAR_BYTES: u64 = 1 << 40;

/// The error of a write that no call could report.
pub(crate) type LostWrite = Mutex<Option<Errno>>;

#[derive(Default)]
struct FileState {
    /// Why a write failed that had returned.
    error: Option<Errno>,
    /// `ESTALE` was reported: the file is another one from then on, and a write that returns early
    /// would not report it.
    is_stale: bool,
    /// Number of failed writes of the file that this open file has reported, or keeps in `error`.
    failures_seen: u64,
    /// There were writes since the last flush.
    written: bool,
    /// The answer to the flush that has closed the file at the server.
    server_close: Option<PendingAnswer>,
    /// Writes bypass the kernel's page cache: the kernel sends no FSYNC for a synchronous one.
    direct_io: bool,
    /// It was opened for synchronous writes.
    sync: bool,
    /// The end of the furthest far write that the server has acknowledged.
    far_end: u64,
    /// The prefetched content was read to its end: the kernel has it now.
    read_to_end: bool,
    /// The kernel was told to keep its pages, and has requested none of them so far.
    pages_kept: bool,
}

impl OpenFile {
    /// Whether reads and writes bypass the kernel's page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.with(|file| file.direct_io)
    }

    /// The remote handle, opened by the first caller that needs it.
    pub(crate) fn fh(&self) -> impl Future<Output = Result<Fh>> + Send + use<> {
        self.remote.fh()
    }

    fn with<T>(&self, body: impl FnOnce(&mut FileState) -> T) -> T {
        body(&mut self.state.lock())
    }

    /// Whether a write at `offset` begins far behind the known end of the file: perhaps behind the
    /// largest size that the server's file system allows.
    pub(crate) fn is_far(&self, offset: u64) -> bool {
        let Some(near) = offset.checked_sub(FAR_BYTES) else { return false };
        self.with(|state| state.far_end <= near) && !self.inode.state().kernel_size_exceeds(near)
    }

    /// The server has acknowledged a [far](OpenFile::is_far) write that ends at `end`.
    pub(crate) fn note_far_end(&self, end: u64) {
        self.with(|state| state.far_end = state.far_end.max(end));
    }

    /// A write that had returned has failed. The first error is the one that is reported.
    pub(crate) fn fail(&self, error: Errno) {
        let mut inode = self.inode.state();
        inode.write_failed(error);
        self.with(|state| {
            state.error = state.error.or(Some(error));
            state.failures_seen += 1;
        });
    }

    /// Drops the kernel's pages: they contain bytes of a failed write.
    pub(crate) fn drop_pages(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.drop_pages(&self.inode);
        }
    }

    /// Keeps an error for a call that can report it, or for the log.
    pub(crate) fn keep_error(&self, error: Errno) {
        self.with(|state| state.error = state.error.or(Some(error)));
    }

    /// The error that was not reported yet, or stays.
    pub(crate) fn error(&self) -> Option<Errno> {
        self.with(|state| state.error.or(state.is_stale.then_some(Errno::ESTALE)))
    }

    /// The error was reported.
    pub(crate) fn clear_error(&self) {
        let _ = self.take_error();
    }

    /// The error of a write through any handle of the file that had returned, and failed since this
    /// open file last reported an error. The caller reports it.
    fn take_failure(&self) -> Result<()> {
        let inode = self.inode.state();
        let (failures, last) = inode.failed_writes();
        let seen = self.with(|state| std::mem::replace(&mut state.failures_seen, failures));
        last.filter(|_| failures > seen).map_or(Ok(()), Err)
    }

    /// The error of an earlier write. The caller reports it.
    pub(crate) fn take_error(&self) -> Result<()> {
        let error = self.error();
        self.with(|state| {
            state.is_stale |= error == Some(Errno::ESTALE);
            state.error = None;
        });
        error.map_or(Ok(()), Err)
    }

    pub(crate) fn note_write(&self) {
        self.remote.note_write(|| WrittenHandle::new(self.shared.clone(), &self.inode));
        self.with(|state| state.written = true);
    }

    /// Closes the file at the server, once, and returns when the server has answered, also to an
    /// earlier close that did not wait for it. The error is kept for the caller.
    pub(crate) async fn close_at_server(self: &Arc<OpenFile>, remote: &Arc<dyn Remote>) {
        let Some(fh) = self.remote.opened() else { return };
        let earlier = self.with(|state| state.server_close.clone());
        let answer = earlier.unwrap_or_else(|| self.begin_server_close(remote, fh));
        answer.arrived().await;
    }

    /// Called with the lock of the inode's state, when all writes were sent: the server will be asked
    /// for the answer to its close, unless it was before. A write that begins later is not among
    /// those that the answer is about.
    pub(crate) fn expect_server_close(&self) {
        if self.remote.opened().is_some() && self.with(|state| state.server_close.is_none()) {
            self.remote.set_flushed(true);
        }
    }

    fn begin_server_close(self: &Arc<OpenFile>, remote: &Arc<dyn Remote>, fh: Fh) -> PendingAnswer {
        let (remote, file) = (remote.clone(), self.remote.clone());
        let flushed = async move {
            let answer = remote.flush(fh).await;
            if answer == Err(Errno::EOPNOTSUPP) {
                file.set_flushed(false);
            }
            answer
        };
        let written = WrittenHandle::new(self.shared.clone(), &self.inode);
        let answer = written.close_at_server(fh, flushed, self);
        self.with(|state| state.server_close = Some(answer.clone()));
        answer
    }

    pub(crate) fn note_read_to_end(&self) {
        self.with(|state| state.read_to_end = true);
    }

    /// The kernel reads at `offset`. Returns whether it was assumed to have that page.
    pub(crate) fn take_missing_pages(&self, offset: u64) -> bool {
        self.with(|state| std::mem::take(&mut state.pages_kept)) && offset == 0
    }

    /// Whether a write has to be synced here: it is `synchronous`, or all are, and the kernel sends
    /// no FSYNC for it.
    pub(crate) fn syncs_write(&self, synchronous: bool) -> bool {
        self.with(|state| state.direct_io && (state.sync || synchronous))
    }

    pub(crate) fn take_written(&self) -> bool {
        self.with(|state| std::mem::take(&mut state.written))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(error) = self.with(|state| state.error) {
            tracing::error!(%error, "a write failed after its file had been closed");
            *self.lost_write.lock() = Some(error);
        }
    }
}

impl Vfs {
    /// Opens the file `ino`.
    pub async fn open(&self, ino: Ino, request: OpenRequest) -> Result<Opened> {
        let known = || self.try_deferred_open(&self.inode(ino)?, request);
        self.or_stale(ino, self.open_uncached(ino, request), known).await
    }

    async fn open_uncached(&self, ino: Ino, request: OpenRequest) -> Result<Opened> {
        let inode = self.inode(ino)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            FileKind::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        let plain = request == OpenRequest::plain(Access::Read);
        let mut revisit =
            if plain { self.prefetch.record_visit(&self.shared, &inode) } else { None };
        let deferred = self.try_deferred_open(&inode, request)?;
        // Files whose pages the kernel has are mostly opened in an order that predicts nothing: a
        // compiler opens its headers more often than any other program opens files.
        let has_pages = deferred.is_some_and(|opened| opened.keep_cache);
        let contents = &self.prefetch.files;
        let may_predict = !has_pages || contents.may_miss_pages() || contents.has_order();
        if may_predict
            && request.access == Access::Read
            && let Ok(path) = self.path(ino)
        {
            self.prefetch.prefetch_after_open(&self.shared, &path);
        }
        if let Some(opened) = deferred {
            self.prefetch.revalidate_followers(&self.shared, revisit);
            return Ok(opened);
        }
        let waited = self.prefetch.await_fetch(&self.shared, &inode).await
            || self.prefetch.await_revalidation(&inode).await;
        if waited && let Some(opened) = self.try_deferred_open(&inode, request)? {
            self.prefetch.revalidate_followers(&self.shared, revisit);
            return Ok(opened);
        }
        if request.truncate {
            inode.writes.drained().await;
        }
        // Deferred handles first, so that this one can be compared with them.
        self.force_deferred_opens([&inode]).await;
        self.counters.opens_requested.add(1);
        self.shared.note_file_use(ino);
        for _ in 0..MAX_ATTEMPTS {
            if let Some(opened) = self.open_at_server(&inode, request, revisit.take()).await? {
                return Ok(opened);
            }
            self.await_renames(&inode).await;
            if request.truncate && self.path(ino).is_err() {
                // The file that has taken the name may be the one that was truncated.
                break;
            }
        }
        // The kernel looks the name up again, and opens the file that it finds.
        Err(Errno::ESTALE)
    }

    /// The open files of `inode`.
    pub(crate) fn open_files(&self, inode: &Inode) -> impl Iterator<Item = Arc<OpenFile>> {
        let numbers: Vec<u64> = inode.state().open.iter().map(|open| open.file).collect();
        numbers.into_iter().filter_map(|number| self.files.get(number).ok())
    }

    /// Opens a removed file by a handle that is open: the kernel opens `/proc/self/fd/N` without a
    /// name. `ESTALE` if this mount has not removed it, or there is no such handle.
    async fn open_nameless(
        &self,
        inode: &Arc<Inode>,
        request: OpenRequest,
    ) -> Result<Option<Opened>> {
        let access = request.access;
        let serves = |file: &Arc<OpenFile>| {
            (file.access.reads() || !access.reads())
                && (file.access.writes() && file.append == request.append || !access.writes())
                && (file.access.writes() || !request.truncate)
        };
        if !self.tree().was_removed_here(inode.ino) {
            return Err(self.tree().note_lost_name(inode.ino));
        }
        let open = self.open_files(inode).find(serves).ok_or(Errno::ESTALE)?;
        inode.writes.drained().await;
        if request.truncate {
            inode.state().note_content_change();
            let _change = Change::begin(inode, &self.change_counter);
            let empty = AttrChange { size: Some(0), ..AttrChange::default() };
            self.remote.fsetattr(open.fh().await?, empty).await?;
        }
        let stamp = self.stamp_request();
        let attr = self.attr_by_handle(inode).await.ok_or(Errno::ESTALE)?;
        let file = self.new_open_file(inode, open.remote.clone(), request, None);
        self.register(&file, &attr, stamp, request, None)
    }

    /// Waits until no name of `inode`, and no directory on its path, is being renamed through this
    /// mount.
    async fn await_renames(&self, inode: &Inode) {
        let is_settled =
            |tree: &mut Tree| !inode.state().is_renaming() && !tree.is_moving(inode.ino);
        self.once_names_allow(|tree| is_settled(tree).then_some(())).await;
    }

    /// Opens the file by its name at the server. `None` if the name may have led to another file,
    /// or to none, meanwhile.
    async fn open_at_server(
        &self,
        inode: &Arc<Inode>,
        request: OpenRequest,
        revisit: Option<Revisit>,
    ) -> Result<Option<Opened>> {
        let ino = inode.ino;
        let (path, place) = {
            let tree = self.tree();
            (tree.path(ino), tree.used_name(ino))
        };
        let Some(path) = path else { return self.open_nameless(inode, request).await };
        let mut stamp = self.stamp_request();
        let first_stamp = stamp;
        let change = request.truncate.then(|| {
            inode.state().note_content_change();
            Change::begin(inode, &self.change_counter)
        });
        // Polled, and so sent, before the revalidations.
        let flags = request.flags(Create::Never);
        let opening = self.shared.open_remote(inode, &path, flags, &mut stamp);
        let (opened, ()) = tokio::join!(opening, async {
            self.prefetch.revalidate_followers(&self.shared, revisit)
        });
        // Closed if it is not used.
        let opened =
            opened.map(|opened| (RemoteFile::open(self.remote.clone(), opened.fh), opened.attr));
        if let Some(alone_until) = change.and_then(Change::end) {
            // Only this truncation has happened, and the attributes are from after it.
            stamp.seq = alone_until;
        }
        let (remote, attr) = match opened {
            Err(Errno::ENOENT) => {
                // If another machine has removed the name, the kernel decides: it may have to
                // create the file.
                if self.path_changed_since(ino, &path, first_stamp) {
                    return Ok(None);
                }
                self.has_other_path(inode, &path, stamp);
                return Err(self.open_error(inode, Errno::ENOENT));
            }
            Err(error @ (Errno::ELOOP | Errno::EISDIR | Errno::ENOTDIR)) => {
                return Err(self.open_error_of_other_kind(inode, error));
            }
            opened => opened?,
        };
        let file = self.new_open_file(inode, remote, request, None);
        let may_be_other_file = || {
            let (tree, seq) = (self.tree(), first_stamp.seq);
            let Some(place) = &place else { return true };
            if request.access.writes() {
                return tree.may_have_led_elsewhere_since(&path, place, ino, seq);
            }
            // A reader may get the file that is taking the name: no later open uses the pages of an
            // inode that has lost its name.
            if tree.path(ino).is_none() {
                return false;
            }
            let above = tree.used_name(place.0).zip(path.parent());
            !tree.has_path(ino, &path)
                || above.is_some_and(|(above, dir)| {
                    tree.may_have_led_elsewhere_since(&dir, &above, place.0, seq)
                })
        };
        for attempt in 1..=MAX_COMPARISONS {
            let known = inode.state().version();
            if !self.is_same_file(inode, &path, &attr, stamp).await? {
                if self.path_changed_since(ino, &path, first_stamp) {
                    return Ok(None);
                }
                return Err(self.tree().note_replaced(ino));
            }
            match self.relation(inode, &path, &file.remote, &attr, stamp).await {
                Relation::Same => {}
                Relation::Replacement if !self.path_changed_since(ino, &path, first_stamp) => {
                    return Err(self.tree().note_replaced(ino));
                }
                Relation::Replacement | Relation::Replaced => return Ok(None),
            }
            if may_be_other_file() {
                // Writes must go through the inode of that file, and its content must not fill the
                // pages of this one.
                return Ok(None);
            }
            // After the last attempt, a file that grows all the time is accepted.
            let known = (attempt < MAX_COMPARISONS).then_some(known);
            if let Some(opened) = self.register(&file, &attr, stamp, request, known)? {
                let mut tree = self.tree();
                if let Some((dir, name)) = place.filter(|_| tree.path(ino).as_ref() == Some(&path))
                {
                    tree.reconcile_listing(dir, &name, Some(&attr), stamp);
                }
                return Ok(Some(opened));
            }
        }
        unreachable!("the last look accepts what is known")
    }

    /// The relation of the file opened as `remote` by the name `path`, with the attributes `attr`,
    /// to the file of the inode. Both are compared by their handles where that is possible: the
    /// name may lead to a third file by now, with the size and time of one of them.
    ///
    /// There is nothing to compare if the inode has no other handle, and no change or answer since
    /// the request.
    async fn relation(
        &self,
        inode: &Inode,
        path: &RemotePath,
        remote: &RemoteFile,
        attr: &Attr,
        stamp: RequestStamp,
    ) -> Relation {
        let may_be_other = {
            let state = inode.state();
            let of_open = Validator::of(attr);
            let differs = |known: Attr| Validator::of(&known) != of_open;
            let is_overtaken =
                state.received_at() > stamp.at && state.last_attr().is_some_and(differs);
            !state.unchanged_since(stamp.seq)
                || is_overtaken
                || state.open.iter().any(|open| open.validator != of_open)
        };
        let Some(fh) = remote.opened().filter(|_| may_be_other) else { return Relation::Same };
        let mut relation = Relation::Same;
        for _ in 0..MAX_COMPARISONS {
            inode.writes.drained().await;
            let changes_begun = inode.state().changes_begun();
            let (of_name, of_file, of_inode) = tokio::join!(
                self.remote.lstat(path),
                self.remote.fstat(fh),
                self.attr_by_handle(inode)
            );
            let of_name = match (of_name, &of_file) {
                (Ok(attr), Ok(_)) => Some(Validator::of(&attr)),
                (Err(Errno::ENOENT), Ok(_)) => None,
                _ => return Relation::Same,
            };
            let of_file = of_file.ok().map(|attr| Validator::of(&attr));
            let is_named = of_name == of_file;
            let is_same = match of_inode {
                Some(attr) => Some(Validator::of(&attr)) == of_file,
                None => is_named,
            };
            if is_same {
                return Relation::Same;
            }
            // A file that is written all the time is accepted.
            if inode.state().no_change_since_count(changes_begun) {
                relation = if is_named { Relation::Replacement } else { Relation::Replaced };
            }
        }
        relation
    }

    /// Whether the file opened under a name of `inode` is the file of the inode.
    async fn is_same_file(
        &self,
        inode: &Arc<Inode>,
        path: &RemotePath,
        attr: &Attr,
        stamp: RequestStamp,
    ) -> Result<bool> {
        if !self.may_be_same_file(inode, path, attr, stamp).await {
            return Ok(false);
        }
        let changed = {
            let state = inode.state();
            state.last_attr().is_some_and(|old| Validator::of(&old) != Validator::of(attr))
        };
        Ok(!changed || self.names_agree(inode, stamp.seq).await?)
    }

    /// Creates and opens a file. If it exists, it is opened, unless `exclusive`.
    pub async fn create(
        &self,
        parent: Ino,
        name_bytes: &[u8],
        perm: u32,
        exclusive: bool,
        request: OpenRequest,
    ) -> Result<(Entry, Opened)> {
        let name = name(name_bytes)?;
        let create = if exclusive { Create::Exclusive(perm) } else { Create::IfAbsent(perm) };
        let (path, mut change) = self.begin_name_change(parent, &name, BoundTo::New).await?;
        let known = self.tree().child(parent, &name);
        if let Some(known) = &known {
            known.writes.drained().await;
        }
        self.force_deferred_opens(change.inodes()).await;
        let mut stamp = self.stamp_request();
        let truncation = known.as_ref().filter(|_| request.truncate).map(|known| {
            known.state().note_content_change();
            Change::begin(known, &self.change_counter)
        });
        let opened = self.remote.open(&path, request.flags(create)).await?;
        change.succeed();
        if let Some(alone_until) = truncation.and_then(Change::end) {
            // As in `open_at_server`.
            stamp.seq = alone_until;
        }
        let remote = RemoteFile::open(self.remote.clone(), opened.fh);
        let replaced = match &known {
            Some(known) => {
                let relation = || self.relation(known, &path, &remote, &opened.attr, stamp);
                exclusive
                    || !self.may_be_same_file(known, &path, &opened.attr, stamp).await
                    || relation().await != Relation::Same
            }
            None => false,
        };
        drop(change);
        let is_new = known.is_none() || replaced;
        let shown = match &known {
            // As in `link`: another process has written to the file meanwhile.
            Some(known) if !replaced && known.state().changed_since(stamp.seq) => {
                self.attr(known).await.unwrap_or(opened.attr)
            }
            _ => opened.attr,
        };
        let inode = {
            let mut tree = self.tree();
            if let Some(known) = known.filter(|_| replaced) {
                tree.orphan(known.ino);
            }
            tree.record_lookup(parent, &name, &opened.attr, Instant::now())
        };
        if is_new {
            inode.state().expect_new_mtime();
            inode.state().begin_quiet_time();
        }
        self.record_attr(&inode, &opened.attr, stamp);
        let mut entry = self.entry(&inode, &shown).inspect_err(|_| self.forget(inode.ino, 1))?;
        if self.has_locked_files(parent) {
            entry.ttl = Duration::ZERO;
        }
        let file = self.new_open_file(&inode, remote, request, None);
        let registered = self.register_in(&mut inode.state(), &file, &opened.attr, stamp, request);
        if exclusive {
            inode.state().set_created_here(opened.attr, true);
        }
        Ok((entry, registered))
    }

    /// Creates a regular file without opening it, or a FIFO, a socket or a device with these
    /// numbers. `EPERM` if the server cannot create such an entry: SFTP has no request for it.
    pub async fn mknod(
        &self,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<Entry> {
        if kind != FileKind::Regular {
            return self.make_special(parent, name, kind, perm, device).await;
        }
        let request = OpenRequest::plain(Access::Write);
        let (entry, opened) = self.create(parent, name, perm, true, request).await?;
        self.release(opened.handle);
        Ok(entry)
    }

    pub(crate) fn new_open_file(
        &self,
        inode: &Arc<Inode>,
        remote: Arc<RemoteFile>,
        request: OpenRequest,
        fetched: Option<AttachedFile>,
    ) -> Arc<OpenFile> {
        Arc::new(OpenFile {
            number: self.files.number(),
            inode: inode.clone(),
            remote,
            access: request.access,
            append: request.append,
            stale: self.serves_stale(inode.ino),
            fetched,
            readahead: OnceLock::new(),
            twin: OnceCell::new(),
            flushing: tokio::sync::Mutex::default(),
            state: Mutex::new(FileState {
                failures_seen: inode.state().failed_writes().0,
                ..FileState::default()
            }),
            lost_write: self.lost_write.clone(),
            shared: Arc::downgrade(&self.shared),
        })
    }

    /// Registers a file that was opened by its name, and records its attributes. `None` if the
    /// inode is no longer at the version `known`: the file may be another one than the files that
    /// are open already. `ESTALE` if the kernel has to request the attributes first.
    fn register(
        &self,
        file: &Arc<OpenFile>,
        attr: &Attr,
        stamp: RequestStamp,
        mut request: OpenRequest,
        known: Option<StateVersion>,
    ) -> Result<Option<Opened>> {
        let is_second = self.tree().may_open_again();
        let mut state = file.inode.state();
        let unchanged = state.unchanged_since(stamp.seq);
        let overtaken = |known: StateVersion| match unchanged {
            true => known != state.version(),
            false => known.has_newer_open(&state.version()),
        };
        if known.is_some_and(overtaken) {
            return Ok(None);
        }
        if self.config.page_cache != PageCache::Always {
            // Reads end at the kernel's size of the file. To make the kernel request the attributes
            // again, the open is sent back to the lookup, but not twice: a file may grow all the
            // time, and an open by `/proc/self/fd` does not look up any name. Then it bypasses the
            // page cache, for which the size has no meaning.
            match state.expire_kernel_size(attr.size) {
                KernelSize::Right => {}
                KernelSize::Wrong if !is_second => {
                    self.record_in(&mut state, &file.inode, attr, stamp, Instant::now());
                    return Err(Errno::ESTALE);
                }
                KernelSize::Wrong => state.note_uncertain_kernel_size(),
                KernelSize::WrongAgain => {
                    state.note_uncertain_kernel_size();
                    request.direct = true;
                }
            }
        }
        Ok(Some(self.register_in(&mut state, file, attr, stamp, request)))
    }

    /// Registers an open file of the inode that has `state`, and records its attributes.
    fn register_in(
        &self,
        state: &mut State,
        file: &Arc<OpenFile>,
        attr: &Attr,
        stamp: RequestStamp,
        request: OpenRequest,
    ) -> Opened {
        let unchanged = state.unchanged_since(stamp.seq);
        // Two files that cannot be distinguished must not share pages, and one file must not be
        // taken for two. If the second open bypasses the page cache, both cases are correct.
        let validated = self.config.page_cache == PageCache::Validated;
        let trust = self.config.consistency == Consistency::Timeout;
        let may_be_other = unchanged && validated && !trust && state.may_be_other_file(attr);
        self.record_in(state, &file.inode, attr, stamp, Instant::now());
        if request.access.writes() {
            state.begin_writing(attr);
        }
        let keep_cache =
            may_be_other || self.keep_pages(file, state, attr, unchanged, Instant::now());
        self.insert_open_file(file, state, attr, request, (keep_cache, may_be_other))
    }

    /// Registers an open file whose handle is deferred; `None` if the inode is no longer validated
    /// for that.
    pub(crate) fn register_deferred(
        &self,
        file: Arc<OpenFile>,
        attr: &Attr,
        request: OpenRequest,
    ) -> Option<Opened> {
        let mut state = file.inode.state();
        let is_current = self.validated(&state, file.inode.kind, file.stale) == Some(*attr);
        let is_unopened = file.remote.opened().is_none();
        // Another open may have been deferred meanwhile, with a handle of its own.
        let shared = state.open.iter().all(|open| Arc::ptr_eq(&open.remote, &file.remote));
        if !is_current || !is_unopened || !shared {
            return None;
        }
        let fetched = file.fetched.as_ref().and_then(Weak::upgrade);
        let read_from = fetched.map_or_else(Instant::now, |fetched| fetched.requested_at());
        let keep_cache = self.keep_pages(&file, &mut state, attr, true, read_from);
        Some(self.insert_open_file(&file, &mut state, attr, request, (keep_cache, false)))
    }

    /// Whether the kernel's pages are of the content that `attr` names and nothing is being written
    /// to it (`unchanged`). If not, they are dropped, and filled with content read at `read_from`
    /// or later.
    fn keep_pages(
        &self,
        file: &OpenFile,
        state: &mut State,
        attr: &Attr,
        unchanged: bool,
        read_from: Instant,
    ) -> bool {
        let same_pages = |state: &mut State, trust| {
            if unchanged {
                return state.validate_pages(attr, trust, read_from) && !state.may_drop_pages();
            }
            // It is being written locally: no validator names the content of the pages.
            state.invalidate_pages_and_size();
            false
        };
        match self.config.page_cache {
            PageCache::Validated => same_pages(state, self.trusts_racy(file.stale)),
            PageCache::SameTime => same_pages(state, true),
            PageCache::Always => state.restore_page_trust(),
            PageCache::Never => false,
        }
    }

    fn insert_open_file(
        &self,
        file: &Arc<OpenFile>,
        state: &mut State,
        attr: &Attr,
        request: OpenRequest,
        (keep_cache, may_be_other): (bool, bool),
    ) -> Opened {
        let bypasses = may_be_other || request.direct || self.config.page_cache == PageCache::Never;
        let invalidate_attributes = !file.stale && state.take_uncertain_kernel_size();
        // The kernel would use the other size for its pages until it gets attributes, and it may
        // drop these as well. Reads that bypass the page cache end where the data ends.
        let can_map = || self.invalidate.get().is_none_or(|kernel| kernel.maps_direct_files());
        let direct_io = bypasses || invalidate_attributes && file.access.reads() && can_map();
        let keep_cache = keep_cache && !invalidate_attributes;
        if !bypasses
            && file.access.reads()
            && let Some(ahead) = self.readahead(state)
        {
            // Set only here.
            let _ = file.readahead.set(ahead);
        }
        file.with(|file| {
            file.direct_io = direct_io;
            file.sync = request.sync;
            file.pages_kept = keep_cache && !direct_io;
        });
        state.note_opened();
        state.open.push(OpenHandle {
            file: file.number,
            remote: file.remote.clone(),
            validator: Validator::of(attr),
            access: file.access,
            cached: !direct_io,
        });
        let handle = Handle(file.number);
        self.files.insert(file.number, file.clone());
        Opened { handle, keep_cache, direct_io, invalidate_attributes }
    }

    /// Returns when all earlier writes to the file are on the server's disk. `EINVAL`, as in
    /// fsync(2), if the server cannot promise that.
    pub async fn fsync(&self, handle: Handle) -> Result<()> {
        let file = self.files.get(handle.0)?;
        file.inode.writes.drained_but(file.number).await;
        let synced = async { self.remote.fsync(file.fh().await?).await };
        let (synced, ()) = tokio::join!(synced, file.inode.writes.drained());
        let own = file.take_error();
        let any = file.take_failure();
        own.and(any)?;
        synced.map_err(no_fsync)
    }

    /// Returns when all earlier changes of names in a directory are on the server's disk. `EINVAL`
    /// if the server cannot promise that.
    pub async fn fsyncdir(&self, ino: Ino) -> Result<()> {
        if self.tree().was_removed_here(ino) {
            // No name in it is left to be lost.
            return Ok(());
        }
        let syncing = self.by_path(ino, |path, _| async move { self.remote.fsyncdir(&path).await });
        syncing.await.map_err(no_fsync)
    }

    /// The last descriptor of this open file was closed. Does not wait.
    pub fn release(&self, handle: Handle) {
        if let Ok(file) = self.files.get(handle.0) {
            self.end_locks_of_released(&file);
            file.inode.writes.send_of(file.number);
            self.keep_until_written(&file);
            file.twin.get().into_iter().for_each(|twin| self.keep_until_written(twin));
            self.files.remove(handle.0);
            let mut state = file.inode.state();
            state.close(file.number);
            if file.access.writes() {
                // The server reports the close, too.
                state.begin_quiet_time();
            }
            drop(state);
            if file.with(|state| state.read_to_end)
                && let Ok(path) = self.path(file.inode.ino)
            {
                self.prefetch.files.discard(&path);
            }
        }
    }
}

fn no_fsync(error: Errno) -> Errno {
    if error == Errno::EOPNOTSUPP { Errno::EINVAL } else { error }
}
