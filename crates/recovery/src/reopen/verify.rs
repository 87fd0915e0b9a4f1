//! Whether what a server had acknowledged is still there after it was started anew.

use std::sync::Arc;

use base::{Access, Errno, OpenFlags, RemotePath, Result};

use super::{Fresh, all};
use crate::Core;
use crate::file::Body;
use crate::link::is_loss;
use crate::log::Covered;
use crate::unsynced::{Digest, Piece};

/// Reads on their way at once.
const AT_ONCE: usize = 16;

/// Compares what is unsynced, if the server may have lost it. What is lost is told by the file's next
/// write or fsync. An error says that it could not be looked.
pub(super) async fn look(core: &Arc<Core>, body: &Body, name: &RemotePath) -> Result<()> {
    let then = {
        let mut state = body.lock();
        if state.unsynced.is_empty() {
            // The next write tells of which run it is.
            state.run = None;
            return Ok(());
        }
        state.run.clone()
    };
    let now = match core.inner.server_run().await {
        Err(errno) if is_loss(errno) => return Err(errno),
        now => now.unwrap_or(None),
    };
    if then == now {
        return Ok(());
    }
    let there = match is_there(core, body, name).await? {
        Some(there) => there,
        // A connection that was lost before it had told its run was most likely only lost.
        None => then.is_none(),
    };
    if !there {
        body.tell(core, "the server was restarted and has lost what was written and not synced");
    }
    let mut state = body.lock();
    state.run = now;
    if !there {
        state.unsynced.clear();
        state.kept_error = Some(Errno::EIO);
    }
    Ok(())
}

/// Whether all that was acknowledged is in the file; `None` when that cannot be compared.
async fn is_there(core: &Core, body: &Body, name: &RemotePath) -> Result<Option<bool>> {
    let pieces = {
        let state = body.lock();
        let Some(mut pieces) = state.unsynced.pieces() else { return Ok(None) };
        let covered = |piece: &Piece| state.log.covers(&(piece.offset..piece.offset + piece.len));
        if pieces.iter().any(|piece| covered(piece) == Covered::Partly) {
            return Ok(None);
        }
        // The rest will be written anew.
        pieces.retain(|piece| covered(piece) == Covered::Not);
        pieces
    };
    let inner = &*core.inner;
    let opened = match inner.open(name, OpenFlags::existing(Access::Read)).await {
        Ok(opened) => opened,
        Err(errno) if is_loss(errno) => return Err(errno),
        // Who may not read cannot compare.
        Err(_) => return Ok(None),
    };
    let fresh = Fresh::new(inner, opened.fh);
    for piece in pieces {
        if digest(core, &fresh, &piece).await? != Some(piece.digest) {
            return Ok(Some(false));
        }
    }
    Ok(Some(true))
}

/// The digest of what is in the place of `piece`; `None` when the file ends before.
async fn digest(core: &Core, file: &Fresh<'_>, piece: &Piece) -> Result<Option<Digest>> {
    let offsets: Vec<u64> =
        (piece.offset..piece.offset + piece.len).step_by(piece.step as usize).collect();
    let mut whole: Option<Digest> = None;
    for some in offsets.chunks(AT_ONCE) {
        let reads = some.iter().enumerate();
        let reads =
            reads.map(|(index, at)| (index, core.inner.read(file.fh(), *at, piece.step as u32)));
        let mut parts = all(reads.collect()).await;
        parts.sort_by_key(|(index, _)| *index);
        for (_, data) in parts {
            let data = data?;
            if data.len() as u64 != piece.step {
                return Ok(None);
            }
            let part = match data.pieces() {
                [bytes] => Digest::of(bytes),
                _ => Digest::of(&data.to_vec()),
            };
            whole = Some(whole.map_or(part, |whole| whole.then(part)));
        }
    }
    Ok(whole)
}
