//! Translates the kernel's requests into operations of the [`Vfs`], and its results into replies.
//!
//! It translates and decides little: how files are opened is decided in
//! [`open_modes`](crate::open_modes), which events file watchers get in [`inotify`](crate::inotify).

pub mod ending;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::{
    Access, Allocation, AttrChange, Data, Entry, Errno, FileKind, Ino, LockKind, LockRange,
    LookupResult, Mutex, Name, OnDrop, RemotePath, RenameMode, Result, Seek, SetXattr, Stat,
    StatVfs,
};
use bytes::Bytes;
use fuse::{Caller, Context, Create, DirSink, LockRequest, Open, SetTime};
use vfs::{EntrySink, Eviction, Handle, ListedEntry, OpenRequest, Vfs};

use crate::attributes::{Attribute, Attributes, digest_value};
use crate::inotify::Repeater;
use crate::open_modes::no_open::NoOpen;
use crate::open_modes::passthrough::{Passthrough, Verdict};
use crate::profile::recorder::Recorder;
use ending::Ending;

/// Returns for how long a server of what is at a path, or any server, has been silent while calls
/// wait for it.
pub type Silence = Box<dyn Fn(Option<&RemotePath>) -> Duration + Send + Sync>;

/// A [`Vfs`] as a FUSE file system.
pub struct Adapter {
    vfs: Arc<Vfs>,
    attributes: Attributes,
    /// The mount is read-only, so that no close has data to wait for.
    read_only: bool,
    /// The kernel sends locks.
    has_locks: bool,
    /// Set if the kernel supports passthrough and it is enabled.
    passthrough: OnceLock<Passthrough>,
    notifier: OnceLock<fuse::Notifier>,
    /// `None` if the kernel sends OPEN requests.
    no_open: Option<NoOpen>,
    /// Set if changes of others are repeated.
    repeater: Option<Arc<Repeater>>,
    ending: Ending,
    silence: Silence,
    recorder: Arc<Recorder>,
}

impl Adapter {
    /// A file system whose files have these [extended attributes](crate::attributes), beside those
    /// of the server. Their cost: before the first write to a file the kernel requests another
    /// attribute, which is answered without a request to the server. Set
    /// [`fuse::Config::handle_killpriv`].
    ///
    /// With `has_locks`, locks are those of the remote; set [`fuse::Config::posix_locks`] and
    /// [`fuse::Config::flock_locks`], too.
    ///
    /// With `no_open`, the kernel opens and closes files without requests. Set this only if nothing
    /// ever changes, neither at the remote nor through the mount, and passthrough is not used.
    ///
    /// With a `repeater`, the changes of others are repeated, and it has the answers to its
    /// requests.
    pub fn new(
        vfs: Arc<Vfs>,
        attributes: Attributes,
        read_only: bool,
        has_locks: bool,
        no_open: bool,
        repeater: Option<Arc<Repeater>>,
        silence: Silence,
    ) -> Adapter {
        Adapter {
            vfs,
            attributes,
            read_only,
            has_locks,
            passthrough: OnceLock::new(),
            notifier: OnceLock::new(),
            no_open: no_open.then(NoOpen::default),
            repeater,
            ending: Ending::default(),
            silence,
            recorder: Arc::default(),
        }
    }

    /// The progress of writing the remaining data at the end of the mount.
    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    /// Number of opens with passthrough so far.
    pub fn opened_through(&self) -> u64 {
        self.passthrough.get().map_or(0, Passthrough::opens)
    }

    /// Whether the kernel opens files without requests.
    pub fn has_no_open(&self) -> bool {
        self.no_open.is_some()
    }

    /// Records requests for a profile.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Invalidates everything that is cached, and returns when the kernel has done so, too: a call
    /// that begins afterwards sees the servers. If a server does not reply, the kernel may need
    /// longer than this waits for it. No operation of the file system may await this.
    pub async fn refresh(&self) {
        self.vfs.invalidate_all();
        if let Some(notifier) = self.notifier.get() {
            notifier.settled().await;
        }
    }

    /// Whether the server may have extended attributes.
    fn has_server_attributes(&self) -> Result<()> {
        match (self.vfs.may_exceed_sftp(), self.attributes.are_there()) {
            (true, _) => Ok(()),
            (false, true) => Err(Errno::EOPNOTSUPP),
            // The kernel then sends no further requests.
            (false, false) => Err(Errno::ENOSYS),
        }
    }

    /// Whether the extended attribute of this name is one of the server's. Those of this mount can
    /// not be set.
    fn is_settable(&self, name: &[u8]) -> Result<()> {
        match self.attributes.named(name) {
            Err(Errno::EOPNOTSUPP) => self.has_server_attributes(),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// An extended attribute may have changed. An access list contains the mode, which the kernel
    /// keeps: it only requests the time of the change anew.
    fn attribute_changed(&self, ino: u64, name: &[u8]) {
        if vfs::is_acl(name) {
            self.invalidate_attributes(ino);
        }
    }

    /// The kernel has other attributes of `ino` than the file, such as a mode that a request changed.
    fn invalidate_attributes(&self, ino: u64) {
        if let Some(notifier) = self.notifier.get() {
            notifier.inval_attributes(ino);
        }
    }

    /// Clears set-id bits, as the kernel requests it with a write.
    async fn drop_set_ids(&self, ino: u64) -> Result<()> {
        if never_enosys(self.vfs.drop_set_ids(Ino(ino)).await)? {
            self.invalidate_attributes(ino);
        }
        Ok(())
    }

    /// The same with a request that the kernel does not mark.
    async fn drop_set_ids_of(&self, ctx: &Context, ino: u64) -> Result<()> {
        if ctx.uid == 0 { Ok(()) } else { self.drop_set_ids(ino).await }
    }

    /// The answer to a request of the [repeater](crate::inotify)'s thread.
    fn repeated<T>(
        &self,
        answer: impl FnOnce(&Repeater) -> Option<Result<T>>,
    ) -> Option<Result<T>> {
        self.repeater.as_deref().and_then(answer)
    }

    /// The reply to an open: the handle, and how the kernel reads and caches the file.
    fn opened(&self, ino: u64, opened: vfs::Opened) -> Result<fuse::Opened> {
        let mut reply = fuse::Opened::new(opened.handle.0);
        reply.flags.keep_cache = opened.keep_cache;
        reply.flags.direct_io = opened.direct_io;
        reply.flags.parallel_direct_writes = opened.direct_io;
        // Each close may end locks.
        reply.flags.noflush = self.read_only && !self.has_locks;
        let Some(passthrough) = self.passthrough.get() else { return Ok(reply) };
        let backing = self.vfs.backing(opened.handle);
        match passthrough.open(ino, backing.as_deref()) {
            Verdict::Ordinary => {}
            Verdict::Passthrough(backing) => {
                reply.flags.passthrough = Some(backing);
                // Flags about pages are invalid with passthrough.
                reply.flags.keep_cache = false;
                reply.flags.direct_io = false;
                reply.flags.parallel_direct_writes = false;
            }
            Verdict::NeedsNewInode => {
                return Err(self.vfs.detach(opened.handle));
            }
        }
        Ok(reply)
    }
}

/// A result of the server. Its `ENOSYS` is that of one file system there; the kernel would conclude
/// that no file of the mount supports the request, and for some requests that they succeed.
fn never_enosys<T>(result: Result<T>) -> Result<T> {
    result.map_err(|errno| if errno == Errno::ENOSYS { Errno::EOPNOTSUPP } else { errno })
}

fn open_request(flags: i32) -> OpenRequest {
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Access::Read,
        libc::O_WRONLY => Access::Write,
        // 3 is specific to Linux: for ioctl(2) only, with read and write permission.
        _ => Access::ReadWrite,
    };
    OpenRequest {
        access,
        append: flags & libc::O_APPEND != 0,
        truncate: flags & libc::O_TRUNC != 0,
        direct: flags & libc::O_DIRECT != 0,
        // Includes the bit of O_DSYNC.
        sync: flags & libc::O_SYNC != 0,
    }
}

/// The server has no locks any more: another program serves the new connection.
fn no_locks(errno: Errno) -> Errno {
    if errno == Errno::EOPNOTSUPP { Errno::ENOLCK } else { errno }
}

/// Whether the caller of close(2) can still receive errors. If the caller cannot be examined,
/// errors are reported.
fn closer(caller: Caller) -> vfs::Caller {
    match caller {
        Caller::Running | Caller::Unknown => vfs::Caller::Alive,
        Caller::Executing | Caller::Ending | Caller::Kernel => vfs::Caller::Exiting,
        Caller::Killed => vfs::Caller::Killed,
    }
}

/// The reply of a READDIR or a READDIRPLUS request.
struct Sink<'a>(&'a mut DirSink);

impl EntrySink for Sink<'_> {
    fn has_room(&self, name: &[u8]) -> bool {
        self.0.has_room(name.len())
    }

    fn push(&mut self, listed: ListedEntry<'_>) {
        let ListedEntry { name, number, kind, next_offset, entry: found } = listed;
        let fitted = match &found {
            Some(found) => self.0.push(found, next_offset, name),
            None => self.0.push_name(number, next_offset, kind, name),
        };
        debug_assert!(fitted, "there was room for it");
    }
}

/// The names of mount points, each without its directory.
#[derive(Default)]
struct MountedNames {
    names: HashSet<OsString>,
    read_at: Option<Instant>,
}

impl MountedNames {
    /// The table of mounts is read again after this time. A file on which something was mounted since
    /// was used then, so it is not one of those that are evicted first.
    const LIFETIME: Duration = Duration::from_secs(1);

    /// Whether something may be mounted on a file of this name. `true` if that cannot be known.
    fn contain(&mut self, name: &Name) -> bool {
        if self.read_at.is_none_or(|at| at.elapsed() > MountedNames::LIFETIME) {
            let Ok(mounts) = mountinfo::all() else { return true };
            *self = MountedNames::of(&mounts);
        }
        self.names.contains(OsStr::from_bytes(name.as_bytes()))
    }

    fn of(mounts: &[mountinfo::Mount]) -> MountedNames {
        let names = mounts.iter().filter_map(|mount| mount.mountpoint.file_name());
        MountedNames { names: names.map(OsStr::to_owned).collect(), read_at: Some(Instant::now()) }
    }
}

/// As the offset of an invalidation: drop attributes, but no pages.
const ATTRIBUTES_ONLY: i64 = -1;

const DROPPED: &str = "notifications to the kernel were dropped: too many changes at once";

/// Sends invalidations to the kernel.
struct Kernel {
    notifier: fuse::Notifier,
    /// The kernel sends OPEN requests, so that open files are known to be in use.
    reports_opens: bool,
    maps_direct_files: bool,
    mounted: Mutex<MountedNames>,
}

impl vfs::Invalidate for Kernel {
    fn content(&self, ino: Ino) {
        if !self.notifier.inval_inode(ino.0, 0, 0) {
            tracing::warn!("{DROPPED}");
        }
    }

    fn names(&self, in_root: &[Name]) {
        // A directory in the root may be a working directory, or a mount point.
        let expire = |name: &Name| self.notifier.expire_entry(Ino::ROOT.0, name.as_bytes());
        let name = |all: bool, name: &Name| expire(name) && all;
        let all_sent = self.notifier.expire_all_names() || in_root.iter().fold(true, name);
        // The listing of the root, which the kernel may have cached.
        if !self.notifier.inval_inode(Ino::ROOT.0, 0, 0) || !all_sent {
            tracing::warn!("{DROPPED}");
        }
        self.notifier.inval_attributes(Ino::ROOT.0);
    }

    fn name(&self, dir: Ino, name: &Name) -> bool {
        self.notifier.expire_entry(dir.0, name.as_bytes())
    }

    fn attributes(&self, ino: Ino) -> bool {
        self.notifier.inval_inode(ino.0, ATTRIBUTES_ONLY, 0)
    }

    fn maps_direct_files(&self) -> bool {
        self.maps_direct_files
    }

    fn content_dropped(&self, ino: Ino) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.notifier.inval_data(ino.0))
    }

    fn evict(&self, inodes: Vec<Eviction>) {
        if self.notifier.prunes() {
            let inos: Vec<u64> = inodes.iter().map(|inode| inode.ino.0).collect();
            // The request is repeated for inodes that the kernel does not forget.
            let _ = self.notifier.prune(&inos);
            return;
        }
        if !self.reports_opens {
            // A running program or a loaded library would be shown as deleted.
            return;
        }
        // A directory may be a working directory, which has to keep its name.
        let files = inodes.iter().filter(|inode| inode.kind != FileKind::Directory);
        // The kernel would end what is mounted on a file, in any mount namespace; those of others are
        // not known here.
        let mut mounted = self.mounted.lock();
        for file in files.filter(|file| !mounted.contain(&file.name)) {
            if !self.notifier.inval_entry(file.parent.0, file.name.as_bytes()) {
                break;
            }
        }
    }
}

impl fuse::Filesystem for Adapter {
    fn init(&self, started: &fuse::Started) {
        let _ = self.notifier.set(started.notifier.clone());
        self.vfs.set_invalidate(Arc::new(Kernel {
            notifier: started.notifier.clone(),
            reports_opens: self.no_open.is_none(),
            // Without OPEN requests, all reads fill the kernel's pages.
            maps_direct_files: started.negotiated.maps_direct_files() && self.no_open.is_none(),
            mounted: Mutex::default(),
        }));
        if let Some(passthrough) = &started.passthrough {
            // INIT comes once.
            let _ = self.passthrough.set(Passthrough::new(passthrough.clone()));
        }
    }

    async fn destroy(&self) {
        self.vfs.end_background();
        if let Some(no_open) = &self.no_open {
            no_open.clear();
        }
        self.ending.drain(&self.vfs).await;
    }

    fn silent_for(&self, ino: u64) -> Duration {
        (self.silence)(self.vfs.path_of(Ino(ino)).as_ref())
    }

    fn is_recording(&self, pid: u32) -> bool {
        self.recorder.is_on(pid)
    }

    fn record(&self, finished: &fuse::Finished<'_>) {
        let path = self.vfs.path_of(Ino(finished.ino));
        self.recorder.record(finished, path);
    }

    async fn lookup(&self, ctx: &Context, parent: u64, name: &[u8]) -> Result<LookupResult> {
        if let Some(answer) = self.repeated(|it| it.lookup(&self.vfs, ctx, parent, name)) {
            return answer.map(LookupResult::Found);
        }
        match self.vfs.lookup(Ino(parent), name).await? {
            LookupResult::Absent(ttl) if ttl.is_zero() => Err(Errno::ENOENT),
            result => Ok(result),
        }
    }

    fn forget(&self, ino: u64, count: u64) {
        if let Some(no_open) = &self.no_open {
            no_open.forget(ino);
        }
        self.vfs.forget(Ino(ino), count);
    }

    async fn getattr(&self, ctx: &Context, ino: u64) -> Result<Stat> {
        if let Some(answer) = self.repeated(|it| it.getattr(&self.vfs, ctx, ino)) {
            return answer;
        }
        self.vfs.getattr(Ino(ino)).await
    }

    /// The kernel requests the time of birth with these; if no file has one, never again.
    async fn statx(&self, ino: u64) -> Result<Stat> {
        let stat = never_enosys(self.vfs.getattr(Ino(ino)).await)?;
        if stat.attr.inode.is_none() && !self.vfs.is_union() {
            return Err(Errno::ENOSYS);
        }
        Ok(stat)
    }

    async fn setattr(&self, ctx: &Context, ino: u64, change: &fuse::SetAttr) -> Result<Stat> {
        if let Some(answer) = self.repeated(|it| it.setattr(&self.vfs, ctx, ino)) {
            return answer;
        }
        if change.kill_suidgid {
            self.drop_set_ids(ino).await?;
        }
        let handle = change.fh.map(Handle);
        let set_time = |time| match time {
            SetTime::Now => self.vfs.now(Ino(ino)),
            SetTime::At(time) => time,
        };
        let times = (change.atime, change.mtime);
        let change = AttrChange {
            perm: change.mode.map(|mode| mode & 0o7777),
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            atime: change.atime.map(set_time),
            mtime: change.mtime.map(set_time),
            touch: matches!(times, (Some(SetTime::Now), Some(SetTime::Now))),
        };
        self.vfs.setattr(Ino(ino), change, handle).await
    }

    async fn readlink(&self, ino: u64) -> Result<Vec<u8>> {
        self.vfs.readlink(Ino(ino)).await
    }

    async fn symlink(&self, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.vfs.symlink(Ino(parent), name, target).await
    }

    async fn mknod(
        &self,
        ctx: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        umask: u32,
        device: (u32, u32),
    ) -> Result<Entry> {
        if let Some(answer) = self.repeated(|it| it.create(&self.vfs, ctx, parent, name, false)) {
            return answer;
        }
        let kind = match mode & libc::S_IFMT {
            0 => FileKind::Regular,
            _ => FileKind::from_mode(mode).ok_or(Errno::EINVAL)?,
        };
        let perm = self.vfs.perm_of_new(Ino(parent), mode & 0o7777, umask).await;
        self.vfs.mknod(Ino(parent), name, kind, perm, device).await
    }

    async fn mkdir(
        &self,
        ctx: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<Entry> {
        if let Some(answer) = self.repeated(|it| it.create(&self.vfs, ctx, parent, name, true)) {
            return answer;
        }
        let perm = self.vfs.perm_of_new(Ino(parent), mode & 0o7777, umask).await;
        self.vfs.mkdir(Ino(parent), name, perm).await
    }

    async fn unlink(&self, ctx: &Context, parent: u64, name: &[u8]) -> Result<()> {
        if let Some(answer) = self.repeated(|it| it.remove(&self.vfs, ctx, parent, name, false)) {
            return answer;
        }
        self.vfs.unlink(Ino(parent), name).await
    }

    async fn rmdir(&self, ctx: &Context, parent: u64, name: &[u8]) -> Result<()> {
        if let Some(answer) = self.repeated(|it| it.remove(&self.vfs, ctx, parent, name, true)) {
            return answer;
        }
        self.vfs.rmdir(Ino(parent), name).await
    }

    async fn rename(
        &self,
        ctx: &Context,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let (from, to) = ((parent, name), (new_parent, new_name));
        if let Some(answer) = self.repeated(|it| it.rename(ctx, from, to)) {
            return answer;
        }
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::EINVAL),
        };
        let (from, to) = ((Ino(parent), name), (Ino(new_parent), new_name));
        never_enosys(self.vfs.rename(from, to, mode).await)
    }

    async fn link(&self, ino: u64, new_parent: u64, new_name: &[u8]) -> Result<Entry> {
        let linked = self.vfs.link(Ino(ino), Ino(new_parent), new_name).await;
        // As link(2) says. After ENOSYS the kernel would not send it for another server, either.
        linked.map_err(|errno| if errno == Errno::ENOSYS { Errno::EPERM } else { errno })
    }

    async fn open(&self, ctx: &Context, ino: u64, open: &Open) -> Result<fuse::Opened> {
        if let Some(answer) = self.repeated(|it| it.open(&self.vfs, ctx, ino)) {
            return answer;
        }
        if self.no_open.is_some() {
            // The kernel then sends no further OPEN, keeps pages across opens, and reads without
            // a handle.
            return Err(Errno::ENOSYS);
        }
        let request = open_request(open.flags);
        let opened = never_enosys(self.vfs.open(Ino(ino), request).await)?;
        if opened.invalidate_attributes {
            self.invalidate_attributes(ino);
        }
        if open.kill_suidgid {
            let release = OnDrop(|| self.vfs.release(opened.handle));
            self.drop_set_ids(ino).await?;
            std::mem::forget(release);
        }
        let mut opened = self.opened(ino, opened)?;
        // Without written data, close has nothing to wait for and no error to report.
        opened.flags.noflush |= request.access == Access::Read && !self.has_locks;
        Ok(opened)
    }

    async fn create(
        &self,
        parent: u64,
        name: &[u8],
        create: &Create,
    ) -> Result<(Entry, fuse::Opened)> {
        let request = open_request(create.flags);
        let exclusive = create.flags & libc::O_EXCL != 0;
        let perm = self.vfs.perm_of_new(Ino(parent), create.mode & 0o7777, create.umask).await;
        let created = self.vfs.create(Ino(parent), name, perm, exclusive, request).await;
        let (made, file) = never_enosys(created)?;
        if create.kill_suidgid && !exclusive {
            let undo = OnDrop(|| {
                self.vfs.release(file.handle);
                self.vfs.forget(made.ino, 1);
            });
            self.drop_set_ids(made.ino.0).await?;
            std::mem::forget(undo);
        }
        let opened = self.opened(made.ino.0, file).inspect_err(|_| self.vfs.forget(made.ino, 1))?;
        Ok((made, opened))
    }

    async fn read(&self, ino: u64, read: &fuse::Read) -> Result<Data> {
        if let Some(no_open) = &self.no_open {
            return no_open.read(&self.vfs, ino, read.offset, read.size).await;
        }
        self.vfs.read(Handle(read.fh), read.offset, read.size).await
    }

    async fn write(&self, ino: u64, write: &fuse::Write, data: Bytes) -> Result<u32> {
        if write.kill_suidgid {
            self.drop_set_ids(ino).await?;
        }
        let len = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
        let handle = Handle(write.fh);
        let (offset, appends) = (write.offset, write.flags & libc::O_APPEND != 0);
        // Also set for a single write with RWF_DSYNC or RWF_SYNC. O_SYNC includes it.
        let synchronous = write.flags & libc::O_DSYNC != 0;
        match write.cached {
            true => self.vfs.write_back(handle, offset, data).await?,
            false => {
                self.vfs.write_in_mode(handle, offset, data, appends, synchronous).await?;
            }
        }
        Ok(len)
    }

    async fn flush(&self, ctx: &Context, fh: u64, lock_owner: u64) -> Result<()> {
        if self.no_open.is_some() {
            return Err(Errno::ENOSYS);
        }
        if self.repeated(|it| it.closed(fh)).is_some() {
            return Ok(());
        }
        let caller = || async { closer(ctx.caller().await) };
        never_enosys(self.vfs.flush_and_unlock(Handle(fh), Some(lock_owner), caller).await)
    }

    async fn release(&self, ino: u64, fh: u64) -> Result<()> {
        if self.repeated(|it| it.closed(fh)).is_some() {
            return Ok(());
        }
        self.vfs.release(Handle(fh));
        if let Some(passthrough) = self.passthrough.get() {
            passthrough.release(ino);
        }
        Ok(())
    }

    async fn fsync(&self, fh: u64) -> Result<()> {
        if self.no_open.is_some() {
            // No data was written.
            return Err(Errno::ENOSYS);
        }
        never_enosys(self.vfs.fsync(Handle(fh)).await)
    }

    async fn opendir(&self, ino: u64) -> Result<fuse::Opened> {
        if self.no_open.is_some() {
            // The kernel then sends no further OPENDIR, and caches listings (since version 7.29 of
            // the protocol, which is required).
            return Err(Errno::ENOSYS);
        }
        Ok(fuse::Opened::new(never_enosys(self.vfs.opendir(Ino(ino)).await)?.0))
    }

    async fn readdir(&self, ino: u64, fh: u64, offset: u64, sink: &mut DirSink) -> Result<()> {
        let plus = sink.is_plus();
        let sink = &mut Sink(sink);
        match &self.no_open {
            Some(no_open) => no_open.readdir(&self.vfs, ino, offset, plus, sink).await,
            None => self.vfs.readdir(vfs::DirHandle(fh), offset, plus, sink).await.map(drop),
        }
    }

    async fn releasedir(&self, fh: u64) -> Result<()> {
        self.vfs.releasedir(vfs::DirHandle(fh));
        Ok(())
    }

    async fn fsyncdir(&self, ino: u64) -> Result<()> {
        never_enosys(self.vfs.fsyncdir(Ino(ino)).await)
    }

    async fn statfs(&self, ino: u64) -> Result<StatVfs> {
        self.vfs.statfs(Ino(ino)).await
    }

    async fn getxattr(&self, ino: u64, name: &[u8], size: u32) -> Result<Vec<u8>> {
        match self.attributes.named(name) {
            Ok(Attribute::Place(place)) => place.value(self.vfs.locate(Ino(ino)).await),
            Ok(Attribute::Digest { kind, effort, is_hex }) => {
                digest_value(never_enosys(self.vfs.digest(Ino(ino), kind, effort).await)?, is_hex)
            }
            Err(Errno::EOPNOTSUPP) => {
                self.has_server_attributes()?;
                // The kernel queries it before writes, which remove it on the server.
                let is_query = name == b"security.capability" && size == 0;
                if is_query && self.vfs.is_open_for_writing(Ino(ino)) {
                    return Err(Errno::ENODATA);
                }
                never_enosys(self.vfs.getxattr(Ino(ino), name).await).map(Vec::from)
            }
            Err(errno) => Err(errno),
        }
    }

    async fn getlk(&self, request: &LockRequest) -> Result<Option<(LockRange, LockKind)>> {
        let (range, kind) = request.range.zip(request.kind).ok_or(Errno::EINVAL)?;
        let handle = Handle(request.fh);
        self.vfs.test_lock(handle, request.owner, range, kind).await.map_err(no_locks)
    }

    async fn setlk(&self, request: &LockRequest) -> Result<()> {
        let LockRequest { fh, owner, range, kind, wait } = *request;
        let range = range.ok_or(Errno::EINVAL)?;
        let done = match kind {
            Some(kind) => self.vfs.lock(Handle(fh), owner, range, kind, wait).await,
            None => self.vfs.unlock(Handle(fh), owner, range).await,
        };
        done.map_err(no_locks)
    }

    async fn listxattr(&self, ino: u64) -> Result<Vec<u8>> {
        self.has_server_attributes()?;
        let names = never_enosys(self.vfs.listxattr(Ino(ino)).await)?;
        // Those of this mount are not listed, and hide those of the server.
        let shown =
            names.iter().filter(|name| self.attributes.named(name) == Err(Errno::EOPNOTSUPP));
        Ok(shown.flat_map(|name| [&name[..], b"\0"].concat()).collect())
    }

    async fn setxattr(&self, ino: u64, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        self.is_settable(name)?;
        let mode = match flags as i32 {
            0 => SetXattr::Either,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let value = Bytes::copy_from_slice(value);
        let set = self.vfs.setxattr(Ino(ino), name, value, mode).await;
        self.attribute_changed(ino, name);
        never_enosys(set)
    }

    async fn removexattr(&self, ino: u64, name: &[u8]) -> Result<()> {
        self.is_settable(name)?;
        let removed = self.vfs.removexattr(Ino(ino), name).await;
        self.attribute_changed(ino, name);
        never_enosys(removed)
    }

    async fn access(&self, ino: u64, mask: u32) -> Result<()> {
        never_enosys(self.vfs.access(Ino(ino), mask).await)
    }

    async fn lseek(&self, fh: u64, offset: i64, whence: u32) -> Result<u64> {
        if self.no_open.is_some() {
            // The kernel then treats the file as all data, which is the answer.
            return Err(Errno::ENOSYS);
        }
        let what = match whence as i32 {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        never_enosys(self.vfs.lseek(Handle(fh), offset, what).await)
    }

    async fn fallocate(
        &self,
        ctx: &Context,
        ino: u64,
        fh: u64,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Result<()> {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let how = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocation::Reserve { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocation::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero { keep_size },
            _ => return Err(Errno::EOPNOTSUPP),
        };
        self.drop_set_ids_of(ctx, ino).await?;
        never_enosys(self.vfs.fallocate(Handle(fh), how, offset, len).await)
    }

    async fn copy_file_range(&self, ctx: &Context, copy: &fuse::CopyFileRange) -> Result<u64> {
        let from = (Handle(copy.fh_in), copy.offset_in);
        let to = (Handle(copy.fh_out), copy.offset_out);
        self.drop_set_ids_of(ctx, copy.ino_out).await?;
        never_enosys(self.vfs.copy_file_range(from, to, copy.len).await)
    }
}
