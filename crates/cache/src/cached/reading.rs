//! Reads, and other operations on open files.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::{Attr, Data, Errno, Fh, Result};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::Core;
use super::files::{Content, File};
use super::write_behind::Fetch;
use crate::{CHUNK_BYTES, Damaged, Object, Validator};

/// Longest read that is made on the runtime's own thread if it is in the page cache, in bytes.
/// Copying and verifying it takes some 50 us, during which the thread serves nothing else; a hop to
/// another thread takes 10 us.
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
                Ok(data) => return Ok(self.count_local(data)),
                Err(Damaged) => self.repair(&file),
            },
            Content::Part(fetch) => {
                if let Some(data) = read_part(&file, &fetch, offset, len).await {
                    return Ok(self.count_local(data));
                }
            }
        }
        self.read_remote(&file, offset, len).await
    }

    fn count_local(&self, data: Data) -> Data {
        self.counters.add(|it| it.read_here_bytes += data.len() as u64);
        data
    }

    async fn read_remote(&self, file: &Arc<File>, offset: u64, len: u32) -> Result<Data> {
        if file.offline {
            let path = file.path().unwrap_or_default();
            return Err(self.missed_offline("a part of the content is", &path));
        }
        let fh = file.open_server_handle().await?;
        let data = self.inner.read(fh, offset, len).await?;
        self.counters.add(|it| it.read_there_bytes += data.len() as u64);
        if let Content::Part(fetch) = file.content() {
            self.write_behind.add_read(file, &fetch, offset, len, &data);
            if self.write_behind.must_flush() {
                self.flush_all();
            }
        }
        Ok(data)
    }

    /// Handles a damaged content. The store has removed it; bytes read from the server complete it
    /// again.
    fn repair(&self, file: &Arc<File>) {
        // Taken before its handle at the server is opened and compared.
        let stamp = self.stamp();
        let path = file.path().filter(|_| !file.offline);
        let fetch = path.and_then(|path| self.fetch_for(&path, &file.attr, stamp));
        file.refetch(fetch);
    }

    pub(crate) async fn fstat(&self, fh: Fh) -> Result<Attr> {
        let file = self.files.get(fh)?;
        if let Some(fh) = file.server_handle() {
            let attr = self.inner.fstat(fh).await?;
            if !file.is_changing() && Validator::of(&attr) != file.validator() {
                // The same file with another content: its present content is shown.
                file.read_from_server();
                if let Some(path) = file.path() {
                    // The other descriptors fill the pages of the same inode.
                    self.files.recognize(&path, &attr);
                }
            }
            return Ok(attr);
        }
        let path = file
            .path()
            .filter(|path| !file.offline && self.read_policy(path) == super::ReadPolicy::Server);
        let Some(path) = path else { return Ok(file.attr) };
        match self.request_attr(&path).await {
            Ok(attr) if file.recognize(&attr) => Ok(attr),
            Err(error) if error.is_loss() && !self.stale_ok() => Err(error),
            // The name leads to another content. This file keeps its own.
            _ => Ok(file.attr),
        }
    }

    /// The file with the whole, verified content of an open one.
    pub(crate) fn backing(&self, fh: Fh) -> Option<Arc<OwnedFd>> {
        if !self.config.backing {
            return None;
        }
        let file = self.files.get(fh).ok()?;
        match file.content() {
            Content::Whole(object) if object.is_verified() => Some(object.file()),
            _ => None,
        }
    }
}

/// Reads a whole content, verified.
async fn read_whole(object: Object, offset: u64, len: u32) -> std::result::Result<Data, Damaged> {
    let end = object.len().min(offset.saturating_add(u64::from(len)));
    if offset >= end {
        return Ok(Data::new());
    }
    // A content of one chunk is read when it is opened.
    if object.len() <= CHUNK_BYTES {
        return object.read(offset, len as usize).map(Data::from);
    }
    if len <= IN_PLACE_MAX_BYTES
        && let Some(bytes) = object.read_now(offset, len as usize)?
    {
        return Ok(bytes.into());
    }
    let read = on_blocking_thread(move || object.read(offset, len as usize)).await;
    // Without a runtime there is no caller.
    read.unwrap_or(Err(Damaged)).map(Data::from)
}

/// Runs `read` on a thread that may wait for the disk, and continues the operation there: a second
/// change of threads would cost as much as the first. `None` without such a thread.
async fn on_blocking_thread<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, answer) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let answer = read();
        // The caller may be gone.
        base::task::batch(|| drop(done.send(answer)));
    });
    answer.await.ok()
}

/// Reads from a content that is not whole; `None` unless all of the range is cached.
async fn read_part(file: &File, fetch: &Arc<Fetch>, offset: u64, len: u32) -> Option<Data> {
    let end = file.attr.size.min(offset.saturating_add(u64::from(len)));
    if offset >= end {
        // The server is queried, if possible, whether the file still ends there.
        return file.offline.then(Data::new);
    }
    if !fetch.partial.missing(offset..end).is_empty() {
        return None;
    }
    let partial = fetch.partial.clone();
    let read = on_blocking_thread(move || partial.read(offset, (end - offset) as usize)).await;
    let bytes: Option<Bytes> = read?;
    bytes.map(Data::from)
}
