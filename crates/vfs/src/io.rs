//! read, write, copy_file_range, lseek.
//!
//! How reads are fetched ahead is in [`readahead`](crate::readahead), how writes are gathered and
//! seen through in [`write_behind`](crate::write_behind).

use base::{Data, Errno, Result};
use bytes::Bytes;

use crate::lookup::MAX_LOOKS;
use crate::open::OpenFile;
use crate::write_behind::Target;
use crate::{Change, Handle, Vfs};

/// What lseek(2) is asked to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next data (`SEEK_DATA`).
    Data,
    /// The next hole (`SEEK_HOLE`).
    Hole,
}

impl Vfs {
    /// Up to `len` bytes from `offset`; fewer only at the end of the file.
    pub async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Data> {
        let file = self.files.get(handle.0)?;
        if !file.access.reads() {
            return Err(Errno::EBADF);
        }
        let end = offset.saturating_add(u64::from(len));
        if file.is_missing(offset) {
            self.contents.note_missing();
        }
        file.inode.writes.clear_to_read(file.number, offset..end).await;
        if let Some(data) = self.read_fetched(&file, offset, len).await {
            return Ok(data);
        }
        let fh = file.fh().await?;
        let mut data = self.read_ahead(&file, fh, offset..end).await?;
        // The kernel fills the rest of its page with zeros. If it has been told meanwhile that the
        // file goes on there, it would show them.
        for _ in 0..MAX_LOOKS {
            let got = data.len() as u64;
            if got >= u64::from(len) || !file.inode.state().told_beyond(offset + got) {
                break;
            }
            let rest = self.remote.read(fh, offset + got, len - got as u32).await?;
            if rest.is_empty() {
                break;
            }
            data.append(rest);
        }
        Ok(data)
    }

    /// The same from what was fetched of the file before it was opened; `None` when the server is
    /// to be asked.
    async fn read_fetched(&self, file: &OpenFile, offset: u64, len: u32) -> Option<Data> {
        let fetched = file.fetched.as_ref().filter(|_| file.remote.opened().is_none())?;
        let (data, all) = self.read_content(&file.inode, fetched, offset, len).await?;
        let end = offset + data.len() as u64;
        // The kernel may have been told that it goes on there.
        let short = data.len() < len as usize && file.inode.state().told_beyond(end);
        if all && !short {
            file.note_read_to_end();
        }
        if short {
            return None;
        }
        // It may have been opened by somebody else meanwhile, as another content.
        file.remote.opened().is_none().then_some(data)
    }

    /// Writes all of `data`, at `offset` or, for a file opened with `O_APPEND`, at the end.
    pub async fn write(&self, handle: Handle, offset: u64, data: Bytes) -> Result<()> {
        self.write_out(handle, offset, data, !self.config.sync_writes).await
    }

    /// The same for pages of a shared mapping, through whichever handle. Returns when the server
    /// has them: nobody waits in a `write` for that, and the kernel reports an error that it gets
    /// here to all who have the file open, where ours would go to that one handle alone.
    pub async fn write_back(&self, handle: Handle, offset: u64, data: Bytes) -> Result<()> {
        self.write_out(handle, offset, data, false).await
    }

    /// With `acknowledge`, returns when the write is under way.
    async fn write_out(
        &self,
        handle: Handle,
        offset: u64,
        data: Bytes,
        acknowledge: bool,
    ) -> Result<()> {
        let file = self.files.get(handle.0)?;
        if !file.access.writes() {
            return Err(Errno::EBADF);
        }
        file.take_error()?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        let (target, range) = match file.append {
            true => (Target::End(offset), 0..u64::MAX),
            false => (Target::Offset(offset), offset..end),
        };
        file.inode.writes.clear_to_write(file.number, range).await;
        let synchronous = file.syncs_writes();
        self.write_behind(&file, target, data, acknowledge && !synchronous).await?;
        if synchronous { self.fsync(handle).await } else { Ok(()) }
    }

    /// Copies on the server, without moving the bytes over the network; tells how many.
    /// `EOPNOTSUPP` where that cannot be done, and for one file with itself.
    pub async fn copy_file_range(
        &self,
        from: (Handle, u64),
        to: (Handle, u64),
        len: u64,
    ) -> Result<u64> {
        let source = self.files.get(from.0.0)?;
        let target = self.files.get(to.0.0)?;
        if !source.access.reads() || !target.access.writes() || target.append {
            return Err(Errno::EBADF);
        }
        if source.inode.ino == target.inode.ino {
            return Err(Errno::EOPNOTSUPP);
        }
        let (from_fh, to_fh) = (source.fh().await?, target.fh().await?);
        source.inode.writes.drained().await;
        target.inode.writes.drained().await;
        let _change = Change::begin(&target.inode, &self.ticks);
        {
            let mut state = target.inode.state();
            state.forget_pages();
            state.forget_made();
        }
        target.note_write();
        self.remote.copy(from_fh, from.1, to_fh, to.1, len).await
    }

    /// Where data or a hole begins at or after `offset`. SFTP tells no holes, so a file is all
    /// data, with the hole that every file has at its end.
    pub async fn lseek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let file = self.files.get(handle.0)?;
        let size = self.attr(&file.inode).await?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        Ok(if what == Seek::Data { offset } else { size })
    }
}
