//! The kernel's requests as operations of the [`Vfs`], and its answers as FUSE's.
//!
//! Nothing is decided here. The two crates do not know each other; this is the one place that
//! knows both.

use std::sync::Arc;

use base::{Access, AttrChange, Data, Errno, FileKind, Name, RenameMode, Result, Timestamp};
use bytes::Bytes;
use fuse::{Context, Create, DirSink, Open, PlusSink, SetTime};
use vfs::{Handle, Ino, ListedEntry, Listing, Looked, OpenRequest, Seek, Stat, Surplus, Vfs};

use crate::attributes::Attribute;

/// `st_blksize`: what `cat`, `cp` and stdio read at a time. One request of the kernel's usual
/// readahead, so that programs which read past the page cache do not ask for single pages.
const BLOCK_SIZE: u32 = 128 << 10;

/// A [`Vfs`] as a FUSE file system.
pub struct Adapter {
    vfs: Arc<Vfs>,
    /// Extended attributes tell where files are.
    tells_places: bool,
}

impl Adapter {
    pub fn new(vfs: Arc<Vfs>) -> Adapter {
        Adapter { vfs, tells_places: false }
    }

    /// Has [extended attributes](crate::attributes) tell where files are. What it costs: before the
    /// first write to a file the kernel asks for another attribute, and is answered without asking
    /// anybody; see [`fuse::Config::handle_killpriv`], which is to be set with this.
    #[must_use]
    pub fn telling_places(mut self) -> Adapter {
        self.tells_places = true;
        self
    }
}

fn attr(stat: &Stat) -> fuse::Attr {
    let Stat { number, attr, nlink, ctime, .. } = *stat;
    fuse::Attr {
        ino: number,
        kind: attr.kind,
        perm: attr.perm,
        nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        size: attr.size,
        blocks: attr.size.div_ceil(512),
        blksize: BLOCK_SIZE,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime,
    }
}

fn attr_reply(stat: &Stat) -> fuse::AttrReply {
    fuse::AttrReply { attr: attr(stat), ttl: stat.ttl }
}

fn entry(entry: &vfs::Entry) -> fuse::Entry {
    fuse::Entry {
        ino: entry.ino.0,
        generation: 0,
        attr: attr(&entry.stat),
        attr_ttl: entry.stat.ttl,
        entry_ttl: entry.ttl,
    }
}

fn opened(opened: vfs::Opened) -> fuse::Opened {
    let mut reply = fuse::Opened::new(opened.handle.0);
    reply.flags.keep_cache = opened.keep_cache;
    reply.flags.direct_io = opened.direct_io;
    reply.flags.parallel_direct_writes = opened.direct_io;
    reply
}

fn open_request(flags: i32) -> Result<OpenRequest> {
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Access::Read,
        libc::O_WRONLY => Access::Write,
        libc::O_RDWR => Access::ReadWrite,
        _ => return Err(Errno::EINVAL),
    };
    Ok(OpenRequest {
        access,
        append: flags & libc::O_APPEND != 0,
        truncate: flags & libc::O_TRUNC != 0,
        direct: flags & libc::O_DIRECT != 0,
        // Has the bit of O_DSYNC in it.
        sync: flags & libc::O_SYNC != 0,
    })
}

fn set_time(time: SetTime) -> Timestamp {
    match time {
        SetTime::Now => Timestamp::now(),
        SetTime::At(time) => time,
    }
}

/// Both kinds of the kernel's listings.
enum Sink<'a> {
    Names(&'a mut DirSink),
    Plus(&'a mut PlusSink),
}

impl Listing for Sink<'_> {
    fn has_room(&self, name: &[u8]) -> bool {
        match self {
            Sink::Names(sink) => sink.has_room(name.len()),
            Sink::Plus(sink) => sink.has_room(name.len()),
        }
    }

    fn push(&mut self, listed: ListedEntry<'_>) {
        let ListedEntry { name, number, kind, next_offset, entry: found } = listed;
        let fitted = match self {
            Sink::Names(sink) => sink.push(number, next_offset, kind, name),
            Sink::Plus(sink) => match &found {
                Some(found) => sink.push(&entry(found), next_offset, name),
                None => sink.push_name(number, next_offset, kind, name),
            },
        };
        debug_assert!(fitted, "there was room for it");
    }
}

/// Instead of an offset of what is to be dropped.
const ATTRIBUTES_ONLY: i64 = -1;

const UNHEARD: &str = "too many changes at once for the kernel to hear of all";

/// Tells the kernel what is not true any longer.
struct Kernel(fuse::Notifier);

impl vfs::Invalidate for Kernel {
    fn content(&self, ino: Ino) {
        if !self.0.inval_inode(ino.0, 0, 0) {
            tracing::warn!("{UNHEARD}");
        }
    }

    fn names(&self, in_root: &[Name]) {
        let name = |all: bool, name: &Name| self.0.inval_entry(Ino::ROOT.0, name.as_bytes()) && all;
        let told = self.0.expire_all_names() || in_root.iter().fold(true, name);
        if !self.0.inval_inode(Ino::ROOT.0, ATTRIBUTES_ONLY, 0) || !told {
            tracing::warn!("{UNHEARD}");
        }
    }

    fn surplus(&self, inodes: Vec<Surplus>) {
        if self.0.prunes() {
            let inos: Vec<u64> = inodes.iter().map(|inode| inode.ino.0).collect();
            // It is asked again for what it does not hear of.
            let _ = self.0.prune(&inos);
            return;
        }
        // A directory may be somebody's working directory, which has to keep its name.
        let files = inodes.iter().filter(|inode| inode.kind != FileKind::Directory);
        for file in files {
            if !self.0.inval_entry(file.parent.0, file.name.as_bytes()) {
                break;
            }
        }
    }
}

impl fuse::Filesystem for Adapter {
    fn init(&self, started: &fuse::Started) {
        self.vfs.set_invalidate(Arc::new(Kernel(started.notifier.clone())));
    }

    async fn destroy(&self) {
        self.vfs.end_background();
        self.vfs.drain().await;
    }

    async fn lookup(&self, _: &Context, parent: u64, name: &[u8]) -> Result<fuse::Entry> {
        match self.vfs.lookup(Ino(parent), name).await? {
            Looked::Found(found) => Ok(entry(&found)),
            Looked::Absent(ttl) if ttl.is_zero() => Err(Errno::ENOENT),
            Looked::Absent(ttl) => Ok(fuse::Entry::negative(ttl)),
        }
    }

    fn forget(&self, ino: u64, count: u64) {
        self.vfs.forget(Ino(ino), count);
    }

    async fn getattr(&self, _: &Context, ino: u64, _: Option<u64>) -> Result<fuse::AttrReply> {
        Ok(attr_reply(&self.vfs.getattr(Ino(ino)).await?))
    }

    async fn setattr(
        &self,
        _: &Context,
        ino: u64,
        change: &fuse::SetAttr,
    ) -> Result<fuse::AttrReply> {
        if change.kill_suidgid {
            self.vfs.drop_set_ids(Ino(ino)).await?;
        }
        let handle = change.fh.map(Handle);
        let change = AttrChange {
            perm: change.mode.map(|mode| mode & 0o7777),
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            atime: change.atime.map(set_time),
            mtime: change.mtime.map(set_time),
        };
        Ok(attr_reply(&self.vfs.setattr(Ino(ino), change, handle).await?))
    }

    async fn readlink(&self, _: &Context, ino: u64) -> Result<Vec<u8>> {
        self.vfs.readlink(Ino(ino)).await
    }

    async fn symlink(
        &self,
        _: &Context,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<fuse::Entry> {
        Ok(entry(&self.vfs.symlink(Ino(parent), name, target).await?))
    }

    async fn mknod(
        &self,
        _: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        _: u32,
        _: u32,
    ) -> Result<fuse::Entry> {
        let kind = match mode & libc::S_IFMT {
            0 => FileKind::Regular,
            _ => FileKind::from_mode(mode).ok_or(Errno::EINVAL)?,
        };
        Ok(entry(&self.vfs.mknod(Ino(parent), name, kind, mode & 0o7777).await?))
    }

    async fn mkdir(
        &self,
        _: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        _: u32,
    ) -> Result<fuse::Entry> {
        Ok(entry(&self.vfs.mkdir(Ino(parent), name, mode & 0o7777).await?))
    }

    async fn unlink(&self, _: &Context, parent: u64, name: &[u8]) -> Result<()> {
        self.vfs.unlink(Ino(parent), name).await
    }

    async fn rmdir(&self, _: &Context, parent: u64, name: &[u8]) -> Result<()> {
        self.vfs.rmdir(Ino(parent), name).await
    }

    async fn rename(
        &self,
        _: &Context,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            _ => return Err(Errno::EINVAL),
        };
        self.vfs.rename((Ino(parent), name), (Ino(new_parent), new_name), mode).await
    }

    async fn link(
        &self,
        _: &Context,
        ino: u64,
        new_parent: u64,
        new_name: &[u8],
    ) -> Result<fuse::Entry> {
        Ok(entry(&self.vfs.link(Ino(ino), Ino(new_parent), new_name).await?))
    }

    async fn open(&self, _: &Context, ino: u64, open: &Open) -> Result<fuse::Opened> {
        if open.kill_suidgid {
            self.vfs.drop_set_ids(Ino(ino)).await?;
        }
        Ok(opened(self.vfs.open(Ino(ino), open_request(open.flags)?).await?))
    }

    async fn create(
        &self,
        _: &Context,
        parent: u64,
        name: &[u8],
        create: &Create,
    ) -> Result<(fuse::Entry, fuse::Opened)> {
        let request = open_request(create.flags)?;
        let exclusive = create.flags & libc::O_EXCL != 0;
        let perm = create.mode & 0o7777;
        let (made, file) = self.vfs.create(Ino(parent), name, perm, exclusive, request).await?;
        Ok((entry(&made), opened(file)))
    }

    async fn read(&self, _: &Context, _: u64, read: &fuse::Read) -> Result<Data> {
        self.vfs.read(Handle(read.fh), read.offset, read.size).await
    }

    async fn write(&self, _: &Context, ino: u64, write: &fuse::Write, data: Bytes) -> Result<u32> {
        if write.kill_suidgid {
            self.vfs.drop_set_ids(Ino(ino)).await?;
        }
        let len = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
        let handle = Handle(write.fh);
        if write.cached {
            self.vfs.write_back(handle, write.offset, data).await?;
        } else {
            self.vfs.write(handle, write.offset, data).await?;
        }
        Ok(len)
    }

    async fn flush(&self, _: &Context, _: u64, fh: u64, _: u64) -> Result<()> {
        self.vfs.flush(Handle(fh)).await
    }

    async fn release(&self, _: &Context, _: u64, release: &fuse::Release) -> Result<()> {
        self.vfs.release(Handle(release.fh));
        Ok(())
    }

    async fn fsync(&self, _: &Context, _: u64, fh: u64, _: bool) -> Result<()> {
        self.vfs.fsync(Handle(fh)).await
    }

    async fn opendir(&self, _: &Context, ino: u64, _: i32) -> Result<fuse::Opened> {
        Ok(fuse::Opened::new(self.vfs.opendir(Ino(ino)).await?.0))
    }

    async fn readdir(
        &self,
        _: &Context,
        _: u64,
        fh: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> Result<()> {
        self.vfs.readdir(vfs::DirHandle(fh), offset, false, &mut Sink::Names(sink)).await
    }

    async fn readdirplus(
        &self,
        _: &Context,
        _: u64,
        fh: u64,
        offset: u64,
        sink: &mut PlusSink,
    ) -> Result<()> {
        self.vfs.readdir(vfs::DirHandle(fh), offset, true, &mut Sink::Plus(sink)).await
    }

    async fn releasedir(&self, _: &Context, _: u64, fh: u64, _: i32) -> Result<()> {
        self.vfs.releasedir(vfs::DirHandle(fh));
        Ok(())
    }

    async fn fsyncdir(&self, _: &Context, ino: u64, _: u64, _: bool) -> Result<()> {
        self.vfs.fsyncdir(Ino(ino)).await
    }

    async fn statfs(&self, _: &Context, ino: u64) -> Result<fuse::Statfs> {
        let figures = self.vfs.statfs(Ino(ino)).await?;
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Ok(fuse::Statfs {
            blocks: figures.blocks,
            blocks_free: figures.blocks_free,
            blocks_available: figures.blocks_available,
            files: figures.files,
            files_free: figures.files_free,
            block_size: small(figures.block_size),
            fragment_size: small(figures.fragment_size),
            name_max: small(figures.name_max),
        })
    }

    async fn getxattr(&self, _: &Context, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        if !self.tells_places {
            // Then the kernel does not ask again.
            return Err(Errno::ENOSYS);
        }
        let attribute = Attribute::named(name)?;
        attribute.value(self.vfs.locate(Ino(ino)).await)
    }

    async fn access(&self, _: &Context, ino: u64, mask: u32) -> Result<()> {
        self.vfs.access(Ino(ino), mask).await
    }

    async fn lseek(&self, _: &Context, _: u64, fh: u64, offset: i64, whence: u32) -> Result<u64> {
        let what = match whence as i32 {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        self.vfs.lseek(Handle(fh), offset, what).await
    }

    async fn copy_file_range(
        &self,
        _: &Context,
        _: u64,
        copy: &fuse::CopyFileRange,
    ) -> Result<u64> {
        let from = (Handle(copy.fh_in), copy.offset_in);
        let to = (Handle(copy.fh_out), copy.offset_out);
        self.vfs.copy_file_range(from, to, copy.len).await
    }
}
