//! Copies within the server.
//!
//! `copy-data` tells only whether it went well, and blocks its session while it runs; a length of
//! zero would mean "to the end". So the length is fixed beforehand by the size of the source, and
//! it goes in pieces, between which other requests get their turn.
//!
//! A copy within one file must not be asked for: not all servers refuse it, and where the ranges
//! overlap it would read what it has just written. Two handles may be of one file without anybody
//! knowing (hard links), so overlapping ranges are copied only between files that differ in their
//! attributes.

use std::sync::Arc;

use base::{Errno, Fh, Result};
use sftp::Extension;

use crate::handles::OpenHandle;
use crate::host::Host;
use crate::order::EVERYTHING;
use crate::piece::{Copy, Piece, Route};
use crate::probe::Probe;
use crate::{attr, errno, gather, piece};

/// Bytes in one request: about 10 ms of a server that copies 800 MB/s, in which nothing else on
/// that session is answered; on a slow link still far more than a round trip's worth.
const PIECE_BYTES: u64 = 8 * 1024 * 1024;

impl Host {
    pub(crate) async fn copy_range(
        &self,
        from: Fh,
        from_offset: u64,
        to: Fh,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let (source, target) = (self.live_file(from).await?, self.live_file(to).await?);
        let session = &source.open.session;
        // Handles of another session mean nothing to this one.
        if !session.offers(Extension::CopyData)
            || !Arc::ptr_eq(session, &target.open.session)
            || source.same_path(&target)
        {
            return Err(Errno::EOPNOTSUPP);
        }
        let slot = Some(session.slot);
        let turns = self.handles.enter_both(|| {
            [source.enter(EVERYTHING, false, slot), target.enter(EVERYTHING, true, slot)]
        });
        for turn in &turns {
            turn.come().await;
        }
        let [_source_turn, turn] = turns;
        let (from, to) = (&source.open, &target.open);
        let (before, other) =
            gather::both(session.client.fstat(&from.handle), session.client.fstat(&to.handle))
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
            let part = PIECE_BYTES.min(len - done);
            let copy = Copy {
                from: from.clone(),
                from_offset: from_offset + done,
                to_offset: to_offset + done,
                len: part,
            };
            let route = Route::One(to.clone());
            let piece = Piece::new(copy, route, &self.pool.gates, Some(turn.clone()));
            match copied(to, piece::one(None, piece).await.1).await {
                Ok(()) => done += part,
                // What is copied is copied; the next call will meet the error.
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }
}

async fn copied(to: &OpenHandle, answer: sftp::Result<()>) -> Result<()> {
    let Err(error) = answer else { return Ok(()) };
    match Probe(&to.session).handle(&error, &to.handle, None, 0).await {
        // Whatever it is, reading and writing will tell.
        Errno::EIO if error.status().is_some() => Err(Errno::EOPNOTSUPP),
        errno => Err(errno),
    }
}
