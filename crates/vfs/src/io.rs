//! read, write, copy_file_range, lseek.
//!
//! A write is acknowledged when it is on its way to the server, within [`WRITE_WINDOW`] bytes for
//! the mount. Its error, if it comes to one, is kept for the next write, fsync or close of the
//! same open file.
//!
//! [`WRITE_WINDOW`]: crate::WRITE_WINDOW

use std::sync::Arc;

use base::task::Task;
use base::{Data, Errno, Result};
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::lookup::MAX_LOOKS;
use crate::open::OpenFile;
use crate::tree::Ticks;
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
        file.inode.writes.clear_of(file.number, offset..end).await;
        let mut data = self.remote.read(file.fh, offset, len).await?;
        // The kernel fills the rest of its page with zeros. If it has been told meanwhile that the
        // file goes on there, it would show them.
        for _ in 0..MAX_LOOKS {
            let got = data.len() as u64;
            if got >= u64::from(len) || !file.inode.state().told_beyond(offset + got) {
                break;
            }
            let rest = self.remote.read(file.fh, offset + got, len - got as u32).await?;
            if rest.is_empty() {
                break;
            }
            data.append(rest);
        }
        Ok(data)
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

    /// With `acknowledge`, returns when the write is on its way.
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
        let range = if file.append { 0..u64::MAX } else { offset..end };
        file.inode.writes.clear_of(file.number, range.clone()).await;

        let bytes = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
        let permit = self.write_window.clone().acquire_many_owned(bytes.min(crate::WRITE_WINDOW));
        let permit = permit.await.map_err(|_| Errno::EIO)?;
        let write = WriteOnItsWay::begin(&file, &self.ticks, range);
        let (inode, number) = (file.inode.clone(), write.number);
        let remote = self.remote.clone();
        let (answer, answered) = match acknowledge {
            true => (None, None),
            false => {
                let (answer, answered) = oneshot::channel();
                (Some(answer), Some(answered))
            }
        };
        // Goes out now, in the order of the calls, and is seen through whoever still waits for it:
        // what follows must not overtake it.
        Task::start(async move {
            let result = remote.write(file.fh, offset, data).await;
            write.end();
            drop(permit);
            // Told to who waits for it, and otherwise kept for the next call.
            let untold = match answer {
                Some(answer) => answer.send(result).err().unwrap_or(Ok(())),
                None => result,
            };
            if let Err(error) = untold {
                file.fail(error);
            }
        });
        inode.writes.sent(number);
        match answered {
            Some(answered) => answered.await.unwrap_or(Err(Errno::EIO)),
            None => Ok(()),
        }
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
        source.inode.writes.drained().await;
        target.inode.writes.drained().await;
        let _change = Change::begin(&target.inode, &self.ticks);
        target.inode.state().forget_pages();
        target.note_write();
        self.remote.copy(source.fh, from.1, target.fh, to.1, len).await
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

/// One write between its acknowledgement and the server's answer. Ends when dropped.
struct WriteOnItsWay {
    file: Arc<OpenFile>,
    ticks: Arc<Ticks>,
    number: u64,
}

impl WriteOnItsWay {
    fn begin(
        file: &Arc<OpenFile>,
        ticks: &Arc<Ticks>,
        range: std::ops::Range<u64>,
    ) -> WriteOnItsWay {
        file.note_write();
        let mut state = file.inode.state();
        state.begin_change(ticks.advance());
        state.forget_pages();
        let number = file.inode.writes.begin(file.number, range);
        drop(state);
        WriteOnItsWay { file: file.clone(), ticks: ticks.clone(), number }
    }

    fn end(self) {}
}

impl Drop for WriteOnItsWay {
    fn drop(&mut self) {
        let mut state = self.file.inode.state();
        state.end_change(self.ticks.advance());
        self.file.inode.writes.end(self.number);
    }
}
