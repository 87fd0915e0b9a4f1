//! read, write, copy_file_range, fallocate, lseek.
//!
//! [`readahead`](crate::readahead) fetches data ahead of reads,
//! [`write_behind`](crate::write_behind) coalesces and completes writes.

use std::sync::Arc;

use base::{Access, Allocation, Attr, Data, Errno, Fh, OpenFlags, Result, Seek};
use bytes::Bytes;

use crate::lookup::{MAX_COMPARISONS, same_file};
use crate::open::{OpenFile, OpenRequest};
use crate::prefetch::files::read_attached;
use crate::remote_file::RemoteFile;
use crate::write_behind::Target;
use crate::{Change, Handle, Vfs};

impl Vfs {
    /// Up to `len` bytes from `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// `ESTALE` if the file ends before a size that the kernel uses, and the kernel would ignore
    /// the end of the data.
    pub async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Data> {
        let file = self.files.get(handle.0)?;
        if !file.access.reads() {
            return Err(Errno::EBADF);
        }
        let end = offset.saturating_add(u64::from(len));
        if file.take_missing_pages(offset) {
            self.prefetch.files.note_missing_pages();
        }
        let (updates, seq) = (file.inode.state().kernel_updates(), self.change_counter.now());
        file.inode.writes.clear_to_read(file.number, offset..end).await;
        if let Some(data) = self.read_from_prefetched(&file, offset, len).await {
            self.counters.reads_prefetched.add(1);
            return Ok(data);
        }
        let fh = file.fh().await?;
        let mut data = self.read_ahead(&file, fh, offset..end).await?;
        // The kernel fills the rest of its pages with zeros. It then uses the size that the end of
        // the data shows; but if it has got or dropped attributes meanwhile, it keeps its size, and
        // shows the zeros as content.
        loop {
            let got = data.len() as u64;
            if got >= u64::from(len) || !file.inode.state().kernel_size_exceeds(offset + got) {
                return Ok(data);
            }
            // Past the page cache, what is there is returned.
            let rest = match file.is_direct() {
                true => Data::new(),
                false => self.remote.read(fh, offset + got, len - got as u32).await?,
            };
            if rest.is_empty() {
                self.check_end(&file, fh, updates, seq).await?;
                return Ok(data);
            }
            data.append(rest);
        }
    }

    /// A file has ended before a size that the kernel may use. `ESTALE` if the kernel would show
    /// zeros behind the end, or if an immutable file has another size than before.
    async fn check_end(&self, file: &OpenFile, fh: Fh, updates: u32, seq: u64) -> Result<()> {
        let immutable = {
            let state = file.inode.state();
            state.last_attr().filter(|_| self.keeps_attr_forever(&state))
        };
        if let Some(known) = immutable {
            // Some file systems, such as sysfs, report sizes that no content has.
            let is_same = self.remote.fstat(fh).await?.size == known.size;
            return if is_same { Ok(()) } else { Err(Errno::ESTALE) };
        }
        if file.is_direct() {
            // Only a mapping fills pages.
            let is_ignored = file.inode.state().ignores_short_reply(updates, seq);
            if is_ignored {
                self.drop_pages(&file.inode);
            }
            return Ok(());
        }
        let is_used = file.inode.state().note_short_reply(updates, seq);
        if is_used { Ok(()) } else { Err(Errno::ESTALE) }
    }

    /// Reads from the prefetched content; `None` if the server must be requested.
    async fn read_from_prefetched(&self, file: &OpenFile, offset: u64, len: u32) -> Option<Data> {
        let fetched = file.fetched.as_ref().filter(|_| file.remote.opened().is_none())?;
        let (data, all) = read_attached(fetched, &file.inode, offset, len).await?;
        let end = offset + data.len() as u64;
        // The kernel may have got a greater size.
        let short = data.len() < len as usize && file.inode.state().kernel_size_exceeds(end);
        if all && !short {
            file.note_read_to_end();
        }
        if short {
            return None;
        }
        // Another call may have opened the handle meanwhile, with another content.
        file.remote.opened().is_none().then_some(data)
    }

    /// Writes all of `data`, at `offset` or, for a file opened with `O_APPEND`, at the end.
    pub async fn write(&self, handle: Handle, offset: u64, data: Bytes) -> Result<()> {
        let file = self.files.get(handle.0)?;
        file.take_error()?;
        self.write_out(file, offset, data, !self.config.sync_writes, false).await
    }

    /// As [`Vfs::write`], but it is the caller that says whether the handle `appends`: fcntl(2) may
    /// have changed that since the open. A `synchronous` write is to be on the server's disk when it
    /// returns, as with `RWF_DSYNC`.
    ///
    /// # Errors
    /// Those of the open; `EIO` if the name leads to no file any more, or to another one.
    pub async fn write_in_mode(
        &self,
        handle: Handle,
        offset: u64,
        data: Bytes,
        appends: bool,
        synchronous: bool,
    ) -> Result<()> {
        let file = self.files.get(handle.0)?;
        file.take_error()?;
        if file.append == appends {
            let return_early = !self.config.sync_writes;
            return self.write_out(file, offset, data, return_early, synchronous).await;
        }
        let twin = match self.own_twin(&file).await {
            Ok(twin) => twin,
            // It cannot be opened without a name. The offset is the end as far as the kernel knows.
            Err(_) if appends && self.tree().was_removed_here(file.inode.ino) => file.clone(),
            Err(error) => return Err(error),
        };
        self.write_out(twin.clone(), offset, data, false, false).await?;
        match file.syncs_write(synchronous) {
            true => self.remote.fsync(twin.fh().await?).await,
            false => Ok(()),
        }
    }

    /// Writes pages of a shared mapping at their offset in the file, even through a handle that
    /// appends. Returns when the server has acknowledged them: no `write` waits for that, and the
    /// kernel reports an error from here to all open handles of the file, but a deferred error
    /// would go to one handle only. The error of an earlier `write` is left for its caller.
    ///
    /// # Errors
    /// `EIO` if the file can no longer be opened to write in place.
    pub async fn write_back(&self, handle: Handle, offset: u64, data: Bytes) -> Result<()> {
        let file = self.files.get(handle.0)?;
        let file = if file.append { self.twin(&file).await? } else { file };
        self.write_out(file, offset, data, false, false).await
    }

    /// The same file opened to write in place if `file` appends, and to append otherwise: another
    /// open file, or a new one that lives as long as `file` is open.
    async fn twin(&self, file: &Arc<OpenFile>) -> Result<Arc<OpenFile>> {
        let is_twin = |open: &Arc<OpenFile>| open.access.writes() && open.append != file.append;
        match self.open_files(&file.inode).find(is_twin) {
            Some(writer) => Ok(writer),
            None => self.own_twin(file).await,
        }
    }

    /// As [`Vfs::twin`], but never another open file, whose errors are those of other processes.
    async fn own_twin(&self, file: &Arc<OpenFile>) -> Result<Arc<OpenFile>> {
        file.twin.get_or_try_init(|| self.open_twin(file)).await.cloned()
    }

    async fn open_twin(&self, file: &OpenFile) -> Result<Arc<OpenFile>> {
        let append = !file.append;
        let request = OpenRequest { append, ..OpenRequest::plain(Access::Write) };
        let flags = OpenFlags { append, ..OpenFlags::existing(request.access) };
        for _ in 0..MAX_COMPARISONS {
            file.inode.writes.drained().await;
            let Ok(path) = self.path(file.inode.ino) else { break };
            let fh = file.fh().await?;
            // Together, so that the file hardly has time to change in between.
            let opening = async {
                let opened = self.remote.open(&path, flags).await?;
                Ok((RemoteFile::open(self.remote.clone(), opened.fh), opened.attr))
            };
            let (opened, own) = tokio::join!(opening, self.remote.fstat(fh));
            let (remote, attr) = match opened {
                Ok(opened) => opened,
                Err(Errno::ENOENT) => break,
                Err(error) => return Err(error),
            };
            let is_same =
                |own: Attr| own.is_same_file(&attr).unwrap_or_else(|| same_file(&own, &attr));
            if own.is_ok_and(is_same) {
                return Ok(self.new_open_file(&file.inode, remote, request, None));
            }
        }
        let how = if append { "at the end" } else { "in place" };
        tracing::warn!(ino = file.inode.ino.0, "the open file cannot be written {how}");
        Err(Errno::EIO)
    }

    /// With `return_early`, returns when the write is in flight, unless it is `synchronous` and the
    /// kernel sends no FSYNC for it.
    async fn write_out(
        &self,
        file: Arc<OpenFile>,
        offset: u64,
        data: Bytes,
        return_early: bool,
        synchronous: bool,
    ) -> Result<()> {
        if !file.access.writes() {
            return Err(Errno::EBADF);
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        let (target, range) = match file.append {
            true => (Target::End(offset), 0..u64::MAX),
            false => (Target::Offset(offset), offset..end),
        };
        file.inode.writes.clear_to_write(file.number, range).await;
        let synchronous = file.syncs_write(synchronous);
        // The server may refuse the offset, and then `write` should fail.
        let far = !file.append && file.is_far(offset);
        let return_early = return_early && !synchronous && !far;
        self.write_behind(&file, target, data, return_early).await?;
        if far {
            file.note_far_end(end);
        }
        if synchronous { self.fsync(Handle(file.number)).await } else { Ok(()) }
    }

    /// Copies on the server, without a transfer of the bytes. Returns the number of bytes.
    /// `EOPNOTSUPP` if the server cannot do that, and for a copy within one file.
    pub async fn copy_file_range(
        &self,
        from: (Handle, u64),
        to: (Handle, u64),
        len: u64,
    ) -> Result<u64> {
        let source = self.files.get(from.0.0)?;
        let target = self.files.get(to.0.0)?;
        if !source.access.reads() || !target.access.writes() {
            return Err(Errno::EBADF);
        }
        // The kernel refuses a descriptor that appends; this one does no longer (fcntl(2)).
        if source.inode.ino == target.inode.ino || target.append {
            return Err(Errno::EOPNOTSUPP);
        }
        let (from_fh, to_fh) = (source.fh().await?, target.fh().await?);
        source.inode.writes.drained().await;
        target.inode.writes.drained().await;
        let _change = Change::begin(&target.inode, &self.change_counter);
        {
            let mut state = target.inode.state();
            state.note_content_change();
            state.forget_created_here();
        }
        target.note_write();
        self.remote.copy((from_fh, from.1), (to_fh, to.1), len).await
    }

    /// Reserves or frees `len` bytes at `offset`. `EOPNOTSUPP` if the server cannot do that.
    pub async fn fallocate(
        &self,
        handle: Handle,
        how: Allocation,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let file = self.files.get(handle.0)?;
        if !self.remote.may_exceed_sftp() {
            return Err(Errno::EOPNOTSUPP);
        }
        if !file.access.writes() {
            return Err(Errno::EBADF);
        }
        let fh = file.fh().await?;
        file.inode.writes.drained().await;
        let _change = Change::begin(&file.inode, &self.change_counter);
        {
            let mut state = file.inode.state();
            state.note_content_change();
            state.forget_created_here();
        }
        file.note_write();
        self.remote.fallocate(fh, how, offset, len).await
    }

    /// The position of the next data or hole at or after `offset`. If the server does not report
    /// holes, a file is all data, with the implicit hole at its end.
    pub async fn lseek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let file = self.files.get(handle.0)?;
        if self.remote.may_exceed_sftp() {
            let fh = file.fh().await?;
            file.inode.writes.drained().await;
            match self.remote.seek(fh, offset, what).await {
                Err(Errno::EOPNOTSUPP) => {}
                found => return found,
            }
        }
        let size = self.attr(&file.inode).await?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        Ok(if what == Seek::Data { offset } else { size })
    }
}
