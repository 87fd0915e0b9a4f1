//! Reads, writes, fsync and the last close through the handle of an open file.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use base::{Data, Errno, Fh, Result};
use bytes::Bytes;
use sftp::Extension;

use crate::chunk_request::{ChunkRequest, LARGE_BYTES, Read, Write};
use crate::handles::{OpenFile, OpenHandle};
use crate::host::Host;
use crate::probe::Probe;
use crate::range_lock::{Ticket, WHOLE_FILE};
use crate::{chunk_request, errno};

/// Chunks of long reads and writes are multiples of this, a page.
const PART_MULTIPLE_BYTES: u32 = 4096;

impl Host {
    /// The file, if its session is alive. Otherwise waits for a connection and returns `ESTALE`: a
    /// new handle can be opened then.
    pub(crate) async fn live_file(&self, fh: Fh) -> Result<Arc<OpenFile>> {
        self.live(self.handles.files.get(fh.0)?).await
    }

    /// The file to change, if its session is alive. Otherwise `ESTALE` at once, which says that
    /// nothing was sent.
    pub(crate) fn file_to_change(&self, fh: Fh) -> Result<Arc<OpenFile>> {
        let file = self.handles.files.get(fh.0)?;
        if file.open.session.is_alive() { Ok(file) } else { Err(Errno::ESTALE) }
    }

    async fn live(&self, file: Arc<OpenFile>) -> Result<Arc<OpenFile>> {
        if !file.open.session.is_alive() {
            self.metadata().await?;
            return Err(Errno::ESTALE);
        }
        Ok(file)
    }

    /// Closes the file. If one of its handles may have written, returns the server's reply to
    /// CLOSE, which is sent right behind the requests through these handles.
    pub(crate) async fn finish_file(&self, fh: Fh) -> Result<()> {
        let file = self.live(self.handles.files.remove(fh.0).ok_or(Errno::EBADF)?).await?;
        if !file.open_path.may_change() {
            // The last read in progress closes it; reads have no order.
            return Ok(());
        }
        let mut ticket = Some(file.enter(WHOLE_FILE, true, Some(file.open.session.slot)));
        if let Some(ticket) = &ticket {
            ticket.ready().await;
        }
        let all = file.all_handles();
        let mut closing = pin!(base::join_in_order(all.iter().map(|open| open.close())));
        let answers = poll_fn(|context| {
            let polled = closing.as_mut().poll(context);
            // CLOSE was sent, and does not conflict with other requests for this path.
            ticket = None;
            polled
        });
        for (answer, open) in answers.await.into_iter().zip(&all) {
            if let Err(error) = answer {
                return Err(Probe(&open.session).close(&error, file.open_path.name()).await);
            }
        }
        Ok(())
    }

    pub(crate) async fn read_file(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        let file = self.live_file(fh).await?;
        check_range(offset, u64::from(len)).map_err(|_| Errno::EINVAL)?;
        let may_change = file.open_path.may_change();
        let OpenHandle { session, handle, .. } = &*file.open;
        if len < LARGE_BYTES && len <= session.max_read && !may_change {
            let first = session.client.read(handle, offset, len).await;
            let first = first.map_err(|error| errno::from_handle(&error))?;
            return fill(&file.open, first, offset, len).await.map(|(data, _)| data);
        }
        let route = file.route(&self.pool, u64::from(len), len >= LARGE_BYTES, false);
        let max_read = route.lowest(|session| session.max_read);
        let bytes = offset..offset + u64::from(len);
        let ticket = may_change.then(|| file.enter(bytes, false, route.slot()));
        let request = |at, len| {
            let read = Read { offset: offset + u64::from(at), len };
            ChunkRequest::new(read, route.clone(), &self.pool.flow, ticket.clone())
        };
        if len <= max_read {
            let (open, answer) = chunk_request::one(ticket.clone(), request(0, len)).await;
            let first = answer.map_err(|error| errno::from_handle(&error))?;
            return fill(&open, first, offset, len).await.map(|(data, _)| data);
        }
        let parts: Vec<_> = parts(len, max_read).collect();
        let requests = parts.iter().map(|(at, len)| request(*at, *len)).collect();
        let answers = chunk_request::all(ticket.clone(), requests).await;
        let mut data = Data::new();
        for ((at, len), (open, answer)) in parts.into_iter().zip(answers) {
            let first = answer.map_err(|error| errno::from_handle(&error))?;
            let (part, ended) = fill(&open, first, offset + u64::from(at), len).await?;
            data.append(part);
            if ended {
                break;
            }
        }
        Ok(data)
    }

    pub(crate) async fn write_file(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        let file = self.file_to_change(fh)?;
        check_range(offset, data.len() as u64)?;
        let len = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
        let route = file.route(&self.pool, u64::from(len), len >= LARGE_BYTES, true);
        let max_write = route.lowest(|session| session.max_write);
        let bytes = match file.flags.append {
            true => WHOLE_FILE,
            false => offset..offset + u64::from(len),
        };
        let ticket = Some(file.enter(bytes, true, route.slot()));
        let at = |part: u32| (!file.flags.append).then(|| offset + u64::from(part));
        let request = |at: u32, len: u32| {
            let part = data.slice(at as usize..(at + len) as usize);
            let write = Write { offset: offset + u64::from(at), data: part };
            ChunkRequest::new(write, route.clone(), &self.pool.flow, ticket.clone())
        };
        if len <= max_write {
            let (open, answer) = chunk_request::one(ticket.clone(), request(0, len)).await;
            return written(&file, &open, answer, at(0), len).await;
        }
        let requests = parts(len, max_write).map(|(at, len)| request(at, len)).collect();
        let answers = chunk_request::all(ticket.clone(), requests).await;
        for ((part, _), (open, answer)) in parts(len, max_write).zip(answers) {
            written(&file, &open, answer, at(part), len).await?;
        }
        Ok(())
    }

    /// Any handle serves, since the server's fsync is of the file; but all earlier writes must have
    /// been received by the server.
    pub(crate) async fn fsync_file(&self, fh: Fh) -> Result<()> {
        let file = self.live_file(fh).await?;
        let open = file.any_handle(self.pool.active());
        let ticket = file.enter(WHOLE_FILE, false, Some(open.session.slot));
        if self.config().fsync_workaround && !open.session.offers(Extension::Fsync) {
            // The answer shows that the server has received what was sent before.
            let received = open.session.client.fstat(&open.handle);
            let received = chunk_request::in_order(&ticket, received).await;
            return received.map(drop).map_err(|error| errno::from_handle(&error));
        }
        match chunk_request::in_order(&ticket, open.session.client.fsync(&open.handle)).await {
            Ok(()) => Ok(()),
            Err(error) => {
                let name = file.open_path.name();
                Err(Probe(&open.session).handle(&error, &open.handle, name, 0).await)
            }
        }
    }
}

impl OpenFile {
    /// Enters the range lock of this path.
    pub(crate) fn enter(
        &self,
        bytes: Range<u64>,
        changes: bool,
        slot: Option<usize>,
    ) -> Arc<Ticket> {
        Arc::new(self.open_path.range_lock.enter(bytes, changes, slot))
    }
}

/// Splits `len` bytes into chunks of similar length, none longer than `most`: a last chunk of a few
/// bytes would cost as much as the others.
fn parts(len: u32, most: u32) -> impl Iterator<Item = (u32, u32)> {
    let even = len.div_ceil(len.div_ceil(most).max(1));
    let part = even.next_multiple_of(PART_MULTIPLE_BYTES).min(most);
    (0..len).step_by(part as usize).map(move |at| (at, part.min(len - at)))
}

/// The result of a write of `len` bytes, or of a chunk of it at `offset`.
async fn written(
    file: &OpenFile,
    open: &OpenHandle,
    answer: sftp::Result<()>,
    offset: Option<u64>,
    len: u32,
) -> Result<()> {
    match answer {
        Ok(()) => Ok(()),
        Err(error) => {
            let probe = Probe(&open.session);
            let of = (&open.handle, file.open_path.name());
            Err(probe.write(&error, of, offset, u64::from(len)).await)
        }
    }
}

/// No file has bytes past `i64::MAX`.
fn check_range(offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(Errno::EFBIG),
    }
}

/// Requests the missing bytes of a read until it is complete or the file ends; returns whether the
/// file ended. A server may return fewer bytes than there are; only its EOF is the end.
async fn fill(
    open: &OpenHandle,
    first: Option<Bytes>,
    offset: u64,
    len: u32,
) -> Result<(Data, bool)> {
    let mut data = Data::new();
    let (mut next, mut got) = (first, 0);
    while let Some(bytes) = next {
        got += bytes.len() as u32;
        data.push(bytes);
        if got == len {
            return Ok((data, false));
        }
        let rest = open.session.client.read(&open.handle, offset + u64::from(got), len - got);
        next = rest.await.map_err(|error| errno::from_handle(&error))?;
    }
    Ok((data, true))
}
