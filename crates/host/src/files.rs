//! What goes through the handle of an open file.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use base::{Attr, Data, Errno, Fh, RemotePath, Result};
use bytes::Bytes;
use sftp::Extension;

use crate::handles::{OpenFile, OpenHandle};
use crate::host::Host;
use crate::order::{EVERYTHING, Turn};
use crate::piece::{LARGE_BYTES, Piece, Read, Write};
use crate::probe::Probe;
use crate::{attr, errno, gather, piece};

/// Parts of long reads and writes are so many bytes or a multiple: a page.
const PART_MULTIPLE_BYTES: u32 = 4096;

impl Host {
    /// The file, if its session lives. If not, a connection is waited for, and the handle is
    /// stale then: it is here that handles would be opened anew.
    pub(crate) async fn live_file(&self, fh: Fh) -> Result<Arc<OpenFile>> {
        self.living(self.handles.file(fh)?).await
    }

    async fn living(&self, file: Arc<OpenFile>) -> Result<Arc<OpenFile>> {
        if !file.open.session.is_alive() {
            self.metadata().await?;
            return Err(Errno::ESTALE);
        }
        Ok(file)
    }

    /// Closes the file, and returns what the server answers if something may have been written
    /// through one of its handles: CLOSE goes out right behind what was sent through them.
    pub(crate) async fn finish_file(&self, fh: Fh) -> Result<()> {
        let file = self.living(self.handles.remove_file(fh)?).await?;
        if !file.named.may_change() {
            // Closed behind the last of the reads under way, which keep no order.
            return Ok(());
        }
        let mut turn = Some(file.enter(EVERYTHING, true, Some(file.open.session.slot)));
        if let Some(turn) = &turn {
            turn.come().await;
        }
        let all = file.all_handles();
        let mut closing = pin!(gather::all(all.iter().filter_map(|open| open.close())));
        let answers = poll_fn(|context| {
            let polled = closing.as_mut().poll(context);
            // It was sent, and changes nothing that others of this path would wait for.
            turn = None;
            polled
        });
        for (answer, open) in answers.await.into_iter().zip(&all) {
            if let Err(error) = answer {
                return Err(Probe(&open.session).close(&error, file.named.name()).await);
            }
        }
        Ok(())
    }

    pub(crate) async fn read_file(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        let file = self.live_file(fh).await?;
        check_range(offset, u64::from(len)).map_err(|_| Errno::EINVAL)?;
        let max_read = file.open.session.max_read;
        let may_change = file.named.may_change();
        if len < LARGE_BYTES && len <= max_read && !may_change {
            let OpenHandle { session, handle, .. } = &*file.open;
            let first = session.client.read(handle, offset, len).await;
            let first = first.map_err(|error| errno::from_handle(&error))?;
            return fill(&file.open, first, offset, len).await.map(|(data, _)| data);
        }
        let route = file.route(&self.pool, u64::from(len), len >= LARGE_BYTES, false);
        let bytes = offset..offset + u64::from(len);
        let turn = may_change.then(|| file.enter(bytes, false, route.slot()));
        let piece = |at, len| {
            let read = Read { offset: offset + u64::from(at), len };
            Piece::new(read, route.clone(), &self.pool.gates, turn.clone())
        };
        if len <= max_read {
            let (open, answer) = piece::one(turn.clone(), piece(0, len)).await;
            let first = answer.map_err(|error| errno::from_handle(&error))?;
            return fill(&open, first, offset, len).await.map(|(data, _)| data);
        }
        let parts: Vec<_> = parts(len, max_read).collect();
        let pieces = parts.iter().map(|(at, len)| piece(*at, *len)).collect();
        let answers = piece::all(turn.clone(), pieces).await;
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
        let file = self.live_file(fh).await?;
        check_range(offset, data.len() as u64)?;
        let len = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
        let max_write = file.open.session.max_write;
        let route = file.route(&self.pool, u64::from(len), len >= LARGE_BYTES, true);
        let bytes = match file.flags.append {
            true => EVERYTHING,
            false => offset..offset + u64::from(len),
        };
        let turn = Some(file.enter(bytes, true, route.slot()));
        let at = |part: u32| (!file.flags.append).then(|| offset + u64::from(part));
        let piece = |at: u32, len: u32| {
            let part = data.slice(at as usize..(at + len) as usize);
            let write = Write { offset: offset + u64::from(at), data: part };
            Piece::new(write, route.clone(), &self.pool.gates, turn.clone())
        };
        if len <= max_write {
            let (open, answer) = piece::one(turn.clone(), piece(0, len)).await;
            return written(&file, &open, answer, at(0), len).await;
        }
        let pieces = parts(len, max_write).map(|(at, len)| piece(at, len)).collect();
        let answers = piece::all(turn.clone(), pieces).await;
        for ((part, _), (open, answer)) in parts(len, max_write).zip(answers) {
            written(&file, &open, answer, at(part), len).await?;
        }
        Ok(())
    }

    /// Any handle will do for the server's fsync, which is of the file; but all writes before it
    /// have to be with the server.
    pub(crate) async fn fsync_file(&self, fh: Fh) -> Result<()> {
        let file = self.live_file(fh).await?;
        let open = file.any_lane(self.pool.active());
        let turn = file.enter(EVERYTHING, false, Some(open.session.slot));
        match piece::in_turn(&turn, open.session.client.fsync(&open.handle)).await {
            Ok(()) => Ok(()),
            Err(error) => {
                let name = file.named.name();
                Err(Probe(&open.session).handle(&error, &open.handle, name, 0).await)
            }
        }
    }

    /// OpenSSH's server gives no fsync for what OPENDIR opened, but OPEN opens a directory for
    /// reading just as well, and that handle it syncs.
    pub(crate) async fn fsync_dir(&self, path: &RemotePath) -> Result<()> {
        let session = self.metadata().await?;
        if !session.offers(Extension::Fsync) {
            return Err(Errno::EOPNOTSUPP);
        }
        let full = session.path(path)?;
        let open = session.client.open(&full, sftp::OpenFlags::READ, sftp::FileAttrs::default());
        let handle = match open.await {
            Ok(handle) => handle,
            // A server that refuses to open directories so.
            Err(error) if crate::open::is_failure(&error) => return Err(Errno::EOPNOTSUPP),
            Err(error) => return Err(Probe(&session).opendir(&error, path).await),
        };
        let open = OpenHandle::new(session, handle);
        let synced = open.session.client.fsync(&open.handle).await;
        synced.map_err(|error| errno::from_handle(&error))
    }

    pub(crate) async fn stat_file(&self, fh: Fh) -> Result<Attr> {
        let file = self.live_file(fh).await?;
        let open = &file.open;
        let look = open.session.client.fstat(&open.handle);
        let attrs = match file.named.may_change() {
            true => piece::in_turn(&file.enter(EVERYTHING, false, Some(0)), look).await,
            false => look.await,
        };
        attr::from_wire(&attrs.map_err(|error| errno::from_handle(&error))?)
    }
}

impl OpenFile {
    /// Takes a place in the order of what goes through the handles of this path.
    pub(crate) fn enter(&self, bytes: Range<u64>, changes: bool, slot: Option<usize>) -> Arc<Turn> {
        Arc::new(self.named.order.enter(bytes, changes, slot))
    }
}

/// Cuts `len` bytes into parts of about the same length, none longer than `most`: a last one of a
/// few bytes would cost as much as the others.
fn parts(len: u32, most: u32) -> impl Iterator<Item = (u32, u32)> {
    let even = len.div_ceil(len.div_ceil(most).max(1));
    let part = even.next_multiple_of(PART_MULTIPLE_BYTES).min(most);
    (0..len).step_by(part as usize).map(move |at| (at, part.min(len - at)))
}

/// What became of a write of `len` bytes, or of a part of one that begins at `offset`.
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
            let of = (&open.handle, file.named.name());
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

/// Asks for what is missing of one piece until it is whole or the file has ended; tells whether
/// it has. A server may give less than there is, and only its word is the end.
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
