//! Copies within the server.
//!
//! `copy-data` reports only success or failure, and blocks its session while it runs; a length of
//! zero would mean "to the end". So the length is fixed first, by the size of the source, and the
//! copy is split into requests, between which the server answers others.
//!
//! A copy within one file must not be requested: not all servers refuse it, and with overlapping
//! ranges it would read what it has just written. Two handles may be of one file without the client
//! knowing (hard links), so overlapping ranges are copied only between files whose attributes
//! differ.

use std::sync::Arc;

use base::{Errno, Fh, Result};
use sftp::Extension;

use crate::chunk_request::{Change, ChunkRequest, Route};
use crate::handles::OpenHandle;
use crate::host::Host;
use crate::probe::Probe;
use crate::range_lock::WHOLE_FILE;
use crate::{attr, chunk_request, errno, pipelined};

/// Bytes in one request: about 10 ms for a server that copies 800 MB/s, in which it answers nothing
/// else on that session; on a slow link still far more than a round trip's worth.
const CHUNK_BYTES: u64 = 8 * 1024 * 1024;

impl Host {
    pub(crate) async fn copy_range(
        &self,
        (from, from_offset): (Fh, u64),
        (to, to_offset): (Fh, u64),
        len: u64,
    ) -> Result<u64> {
        let (source, target) = (self.live_file(from).await?, self.live_file(to).await?);
        let session = &source.open.session;
        // A handle is valid only on its own session.
        if !session.offers(Extension::CopyData)
            || !Arc::ptr_eq(session, &target.open.session)
            || source.same_path(&target)
        {
            return Err(Errno::EOPNOTSUPP);
        }
        let slot = Some(session.slot);
        let tickets = self.handles.enter_both(|| {
            [source.enter(WHOLE_FILE, false, slot), target.enter(WHOLE_FILE, true, slot)]
        });
        for ticket in &tickets {
            ticket.ready().await;
        }
        let [_source_ticket, ticket] = tickets;
        let (from, to) = (&source.open, &target.open);
        let (before, other) =
            pipelined::both(session.client.fstat(&from.handle), session.client.fstat(&to.handle))
                .await;
        let failed = |error| errno::from_handle(&error);
        let (before, other) = (before.map_err(failed)?, other.map_err(failed)?);
        let size = attr::from_wire(&before)?.size;
        let len = len.min(size.saturating_sub(from_offset));
        if to_offset.checked_add(len).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(Errno::EFBIG);
        }
        let overlap = from_offset < to_offset + len && to_offset < from_offset + len;
        if overlap && before == other {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut done = 0;
        while done < len {
            let part = CHUNK_BYTES.min(len - done);
            let (from, from_at, to_at) = (from.clone(), from_offset + done, to_offset + done);
            let copy = Change(move |to: &OpenHandle| {
                to.session.client.copy_data(&from.handle, from_at, part, &to.handle, to_at)
            });
            let route = Route::One(to.clone());
            let request = ChunkRequest::new(copy, route, &self.pool.flow, Some(ticket.clone()));
            match copied(to, chunk_request::one(None, request).await.1).await {
                Ok(()) => done += part,
                // Reports the bytes copied so far; the next call returns the error. After a loss,
                // some of this part may have been copied, too.
                Err(errno) if done > 0 && !errno.is_loss() => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }
}

async fn copied(to: &OpenHandle, answer: sftp::Result<()>) -> Result<()> {
    let Err(error) = answer else { return Ok(()) };
    match Probe(&to.session).handle(&error, &to.handle, None, 0).await {
        // The caller then reads and writes instead, and gets the precise error.
        Errno::EIO if error.status().is_some() => Err(Errno::EOPNOTSUPP),
        errno => Err(errno),
    }
}
