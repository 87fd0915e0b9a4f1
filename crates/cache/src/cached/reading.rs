//! Reads, and what else is asked of an open file.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::{Attr, Data, Errno, Fh, Result};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::files::{Content, File};
use super::filling::{Filling, Read};
use super::{Core, count};
use crate::{CHUNK_BYTES, Damaged, Object, Validator};

/// Longest read that is made in place, in bytes, if it is in the page cache. To copy and
/// to verify it takes some 50 us, in which this thread serves nobody else; to ask another thread
/// takes 10.
const IN_PLACE_MAX_BYTES: u32 = 256 << 10;

impl Core {
    pub(crate) async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        let file = self.files.get(fh)?;
        if !file.access.reads() {
            return Err(Errno::EBADF);
        }
        match file.content() {
            Content::Server => {}
            Content::Whole(object) => match read_whole(object, offset, len).await {
                Ok(data) => return Ok(self.count_here(data)),
                Err(Damaged) => self.repair(&file),
            },
            Content::Part(filling) => {
                if let Some(data) = read_part(&file, &filling, offset, len).await {
                    return Ok(self.count_here(data));
                }
            }
        }
        self.read_there(&file, offset, len).await
    }

    fn count_here(&self, data: Data) -> Data {
        count(&self.counters.read_here_bytes, data.len() as u64);
        data
    }

    async fn read_there(&self, file: &Arc<File>, offset: u64, len: u32) -> Result<Data> {
        if file.offline {
            let path = file.path().unwrap_or_default();
            return Err(self.misses.tell("a part of the content is", &path));
        }
        let fh = file.server().await?;
        let data = self.inner.read(fh, offset, len).await?;
        count(&self.counters.read_there_bytes, data.len() as u64);
        if let Content::Part(filling) = file.content() {
            self.filler.took(file, &filling, Read { offset, asked: len, data: &data });
        }
        Ok(data)
    }

    /// What was taken for the whole content is damaged. The store has thrown it away; what is read
    /// from the server makes it whole again.
    fn repair(&self, file: &Arc<File>) {
        count(&self.counters.damaged, 1);
        // Its handle at the server is opened after this, and compared.
        let tick = self.changes.tick();
        let path = file.path().filter(|_| !file.offline);
        let filling = path.and_then(|path| self.filling(&path, &file.attr, tick));
        file.is_damaged(filling);
    }

    pub(crate) async fn fstat(&self, fh: Fh) -> Result<Attr> {
        let file = self.files.get(fh)?;
        if let Some(fh) = file.opened() {
            let attr = self.inner.fstat(fh).await?;
            if !file.is_changing() && Validator::of(&attr) != file.validator() {
                // The same file with another content: it is shown as it is now.
                file.read_from_server();
            }
            return Ok(attr);
        }
        let path =
            file.path().filter(|path| !file.offline && self.standing(path) == super::Standing::Ask);
        let Some(path) = path else { return Ok(file.attr) };
        match self.ask_attr(&path).await {
            Ok(attr) if Validator::of(&attr) == file.validator() => Ok(attr),
            Err(error @ (Errno::EHOSTDOWN | Errno::ETIMEDOUT)) if !self.config.stale_ok => {
                Err(error)
            }
            // The name leads to another content. This file goes on with the one that it has.
            _ => Ok(file.attr),
        }
    }

    /// The file that has the whole content of an open one, all of it verified.
    pub(crate) fn backing(&self, fh: Fh) -> Option<Arc<OwnedFd>> {
        if !self.config.backing {
            return None;
        }
        let file = self.files.get(fh).ok()?;
        match file.content() {
            // Verified when it was opened, which is not done twice.
            Content::Whole(object) if file.is_proven() && object.verify().is_ok() => {
                Some(object.file())
            }
            _ => None,
        }
    }
}

/// Reads what is whole, verified.
async fn read_whole(object: Object, offset: u64, len: u32) -> std::result::Result<Data, Damaged> {
    let end = object.len().min(offset.saturating_add(u64::from(len)));
    if offset >= end {
        return Ok(Data::new());
    }
    // One of a single chunk is read when it is opened.
    if object.len() <= CHUNK_BYTES {
        return object.read(offset, len as usize).map(Data::from);
    }
    if len <= IN_PLACE_MAX_BYTES
        && let Some(bytes) = object.read_now(offset, len as usize)?
    {
        return Ok(bytes.into());
    }
    let read = waiting_for_disk(move || object.read(offset, len as usize)).await;
    // Without a runtime to read on, nobody gets the answer.
    read.unwrap_or(Err(Damaged)).map(Data::from)
}

/// Does `read` on a thread that may wait for the disk, and goes on with the operation there: a
/// second change of threads would cost as much as the first. `None` if there is no such thread.
async fn waiting_for_disk<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, answer) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let answer = read();
        // Nobody may want it any more.
        base::task::batch(|| drop(done.send(answer)));
    });
    answer.await.ok()
}

/// Reads what is there of a content that is not whole; `None` unless it is all there.
async fn read_part(file: &File, filling: &Arc<Filling>, offset: u64, len: u32) -> Option<Data> {
    let end = file.attr.size.min(offset.saturating_add(u64::from(len)));
    if offset >= end {
        // Whether it ends there still, the server tells, if it can be asked.
        return file.offline.then(Data::new);
    }
    if !filling.partial.missing(offset..end).is_empty() {
        return None;
    }
    let partial = filling.partial.clone();
    let read = waiting_for_disk(move || partial.read(offset, (end - offset) as usize)).await;
    let bytes: Option<Bytes> = read?;
    bytes.map(Data::from)
}
