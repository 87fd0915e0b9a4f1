//! Write-behind: coalescing, sending, and the errors of writes that the server has not acknowledged
//! yet.
//!
//! [`writes`](crate::writes) decides when a request is sent and which calls wait for it. This
//! module contains the request itself: an [`Extent`] from an application's write, several extents
//! coalesced into a [`WriteRequest`], and the task that completes it.
//!
//! Bounds: [`Config::dirty_bytes`](crate::Config) for the mount and `dirty_file_bytes` for a file.
//! At either bound the writer waits until the server has acknowledged enough earlier writes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::task::Task;
use base::{Errno, Remote, Result};
use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::Vfs;
use crate::dirty::DirtyBytes;
use crate::open::OpenFile;
use crate::tree::ChangeCounter;

/// Writes from this size on are not coalesced, since that copies them. A write of this size costs
/// about as much to copy as to send by itself.
const LARGE_BYTES: u64 = 64 << 10;

/// The kernel splits a write through its page cache at multiples of this; with larger pages, at
/// multiples of those.
const PAGE_BYTES: u64 = 4096;

/// How long the first part of a split append waits for the second. The kernel sends it as soon as
/// the first has returned, later on a busy machine; only a line that really ends with its page
/// waits in vain.
const PARTIAL_PAGE_WAIT: Duration = Duration::from_secs(1);

/// The position of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// At this offset.
    Offset(u64),
    /// At the end of the file, which the kernel assumes to be here. Some servers do not append, and
    /// write at the offset of the request.
    End(u64),
}

/// Bytes to be written, with their share of the mount's bound.
pub(crate) struct Extent {
    target: Target,
    /// It is appended and ends with a page: perhaps it is the first part of a longer write, and
    /// another machine must not append between the two.
    is_partial_page: bool,
    content: Content,
    reserved: DirtyBytes,
}

enum Content {
    /// As received.
    Single(Bytes),
    /// Several writes, copied.
    Merged(BytesMut),
}

impl Extent {
    pub(crate) fn len(&self) -> u64 {
        match &self.content {
            Content::Single(bytes) => bytes.len() as u64,
            Content::Merged(bytes) => bytes.len() as u64,
        }
    }

    /// Whether it goes to the end of the file, wherever that is.
    pub(crate) fn appends(&self) -> bool {
        matches!(self.target, Target::End(_))
    }

    /// Whether its second part may still come.
    pub(crate) fn is_partial_page(&self) -> bool {
        self.is_partial_page
    }

    /// The bytes of the file that it may change.
    pub(crate) fn range(&self) -> Range<u64> {
        match self.target {
            Target::Offset(offset) => offset..offset + self.len(),
            Target::End(_) => 0..u64::MAX,
        }
    }

    /// Where it ends, as far as the kernel knows.
    pub(crate) fn end(&self) -> u64 {
        let (Target::Offset(begin) | Target::End(begin)) = self.target;
        begin.saturating_add(self.len())
    }

    /// Whether `other` begins where this one ends, and both together have at most `most` bytes.
    pub(crate) fn can_append(&self, other: &Extent, most: u32) -> bool {
        let goes_on = match (self.target, other.target) {
            (Target::Offset(offset), Target::Offset(next)) => offset + self.len() == next,
            (Target::End(_), Target::End(_)) => self.is_partial_page,
            _ => false,
        };
        let is_cheap = other.appends() || other.len() < LARGE_BYTES;
        goes_on && is_cheap && self.len() + other.len() <= u64::from(most)
    }

    /// Appends `other`, for which [`Extent::can_append`] holds.
    pub(crate) fn append(&mut self, other: Extent) {
        let content = std::mem::replace(&mut self.content, Content::Merged(BytesMut::new()));
        let mut merged = match content {
            Content::Merged(bytes) => bytes,
            Content::Single(bytes) => {
                let mut merged = BytesMut::with_capacity(4 * bytes.len());
                merged.extend_from_slice(&bytes);
                merged
            }
        };
        match other.content {
            Content::Single(bytes) => merged.extend_from_slice(&bytes),
            Content::Merged(bytes) => merged.extend_from_slice(&bytes),
        }
        self.content = Content::Merged(merged);
        self.is_partial_page = other.is_partial_page;
        self.reserved.merge(other.reserved);
    }
}

/// One write to the remote: from [`WriteRequest::send`] to the server's answer.
pub(crate) struct WriteRequest {
    pub(crate) number: u64,
    pub(crate) extent: Extent,
    /// When it was created.
    pub(crate) begun_at: Instant,
    file: Arc<OpenFile>,
    remote: Arc<dyn Remote>,
    change_counter: Arc<ChangeCounter>,
    /// Gets the answer, if a caller waits for it.
    answer: Option<oneshot::Sender<Result<()>>>,
}

impl WriteRequest {
    /// Sends the request now. It completes even if no caller waits for it any more: later requests
    /// must not overtake it.
    pub(crate) fn send(self) {
        let WriteRequest { number, extent, file, remote, change_counter, answer, .. } = self;
        let write = InFlight { file: file.clone(), change_counter, number };
        Task::start(async move {
            let Extent { target, content, reserved, .. } = extent;
            let (Target::Offset(offset) | Target::End(offset)) = target;
            let data = match content {
                Content::Single(bytes) => bytes,
                Content::Merged(bytes) => bytes.freeze(),
            };
            let result = match file.fh().await {
                Ok(fh) => remote.write(fh, offset, data).await,
                Err(error) => Err(error),
            };
            if result.is_err() {
                file.inode.state().forget_created_here();
                file.inode.writes.forget_end();
                file.drop_pages();
            }
            // Sent to the caller that waits, or else kept for the next call.
            let unreported = match answer {
                Some(answer) => answer.send(result).err().unwrap_or(Ok(())),
                None => result,
            };
            if let Err(error) = unreported {
                file.fail(error);
            }
            // The last reference begins the close, which has to be counted before the bytes are not.
            drop(file);
            drop(write);
            drop(reserved);
        });
    }
}

/// A write, or an attribute change that is sent in the order of writes, from its beginning to the
/// server's answer. Ends when dropped.
pub(crate) struct InFlight {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) change_counter: Arc<ChangeCounter>,
    pub(crate) number: u64,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let inode = &self.file.inode;
        {
            let mut state = inode.state();
            state.end_change(self.change_counter.advance());
            inode.writes.end(self.number);
        }
        inode.writes.send_after(self.file.number);
    }
}

impl Vfs {
    /// Keeps the inode of a released file until the writes through it have ended, also if the kernel
    /// forgets it: the next lookup of its name has to wait for them.
    pub(crate) fn keep_until_written(&self, released: &OpenFile) {
        let (inode, handle) = (released.inode.clone(), released.number);
        if inode.writes.sent_through(handle) == (0, true) {
            return;
        }
        self.tree().add_lookup(inode.ino);
        self.released.insert(handle, inode.clone());
        let shared = Arc::downgrade(&self.shared);
        Task::start(async move {
            inode.writes.drained_of(handle).await;
            if let Some(shared) = shared.upgrade() {
                shared.released.remove(handle);
                shared.tree().forget(inode.ino, 1);
            }
        });
    }

    /// Writes `data` through `file`. With `return_early` it returns when the write is in flight, or
    /// was coalesced into one that waits, and a later call reports its error; without, when the
    /// server has acknowledged the write.
    pub(crate) async fn write_behind(
        &self,
        file: &Arc<OpenFile>,
        target: Target,
        data: Bytes,
        return_early: bool,
    ) -> Result<()> {
        let inode = &file.inode;
        let bytes = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
        inode.writes.wait_for_room(u64::from(bytes), self.live(|it| it.dirty_file_bytes)).await;
        let reserved = self.dirty.take(bytes).await;
        let (offset, is_partial_page) = match target {
            Target::Offset(offset) => (Some(offset), false),
            Target::End(end) => {
                let ends_with_page = (end + u64::from(bytes)) % PAGE_BYTES == 0;
                (None, return_early && ends_with_page && end % PAGE_BYTES != 0)
            }
        };
        let mut extent =
            Extent { target, is_partial_page, content: Content::Single(data), reserved };
        let small = return_early && u64::from(bytes) < LARGE_BYTES;
        let coalesce = small && !extent.appends();
        let (answer, answered) = match return_early {
            true => (None, None),
            false => {
                let (answer, answered) = oneshot::channel();
                (Some(answer), Some(answered))
            }
        };
        let (number, waits) = {
            let mut state = inode.state();
            state.note_content_change();
            state.grow_created_here(offset, u64::from(bytes));
            if small || (return_early && extent.appends()) {
                let most = self.remote.suggested_window().request_bytes;
                extent = match inode.writes.append(file.number, extent, most) {
                    Ok(()) => {
                        file.note_write();
                        drop(state);
                        inode.writes.send(file.number);
                        return Ok(());
                    }
                    Err(extent) => extent,
                };
            }
            let size = state.last_attr().filter(|_| !state.is_invalidated()).map(|attr| attr.size);
            state.begin_change(self.change_counter.advance());
            let request = |number, extent| WriteRequest {
                number,
                extent,
                begun_at: Instant::now(),
                file: file.clone(),
                remote: self.remote.clone(),
                change_counter: self.change_counter.clone(),
                answer,
            };
            let begun = inode.writes.begin(file.number, coalesce, size, extent, request);
            // A flush that has not seen this write must not clear it.
            file.note_write();
            begun
        };
        inode.writes.send(file.number);
        if waits {
            self.shared.note_coalescing(inode);
        }
        if is_partial_page {
            let inode = inode.clone();
            self.background.start(async move {
                tokio::time::sleep(PARTIAL_PAGE_WAIT).await;
                inode.writes.send_one(number);
            });
        }
        match answered {
            Some(answered) => answered.await.unwrap_or(Err(Errno::EIO)),
            None => Ok(()),
        }
    }
}
