//! Whether unstable writes survived a restart of the server.

use std::sync::Arc;

use base::{Access, Errno, OpenFlags, OpenGuard, RemotePath, Result, join_in_order};

use crate::Core;
use crate::change_log::Covered;
use crate::file::{OpenFile, Phase};
use crate::unstable::{Digest, Extent};

/// Reads in flight at once.
const MAX_IN_FLIGHT: usize = 16;

/// Compares the unstable writes with the file, if the server may have lost them. The next write or
/// fsync of the file reports a loss. An error means that this could not be checked.
pub(super) async fn check(core: &Arc<Core>, file: &OpenFile, path: &RemotePath) -> Result<()> {
    // The verifier that later writes record.
    core.write_verifier.request(core);
    let old_verifier = {
        let mut state = file.lock();
        if state.unstable.is_empty() {
            // The next write sets the verifier.
            state.write_verifier = None;
            return Ok(());
        }
        state.write_verifier.clone()
    };
    let new_verifier = match core.inner.write_verifier().await {
        Err(errno) if errno.is_loss() => return Err(errno),
        new_verifier => new_verifier.unwrap_or(None),
    };
    if old_verifier == new_verifier {
        return Ok(());
    }
    if old_verifier.is_none() && has_live_handle(core, file).await {
        file.lock().write_verifier = new_verifier;
        return Ok(());
    }
    let is_intact = match is_intact_on_server(core, file, path).await? {
        Some(is_intact) => is_intact,
        // A connection that was lost before its verifier was known was most likely lost without a
        // restart.
        None => old_verifier.is_none(),
    };
    let is_lost = {
        let mut state = file.lock();
        state.write_verifier = new_verifier;
        // Another check may have found the loss since.
        let is_lost = !is_intact && !state.unstable.is_empty();
        if is_lost {
            state.unstable.clear();
            state.deferred_error = Some(Errno::EIO);
        }
        is_lost
    };
    if is_lost {
        file.warn(core, "the server restarted and lost data that was written but not synced");
    }
    Ok(())
}

/// Whether a handle of the file answers. The server has not restarted since it was opened, and that
/// open has made this check for all writes before it.
async fn has_live_handle(core: &Core, file: &OpenFile) -> bool {
    let usable = file.lock().usable_inner();
    let Some((_handle, fh)) = usable else { return false };
    core.inner.fstat(fh).await.is_ok()
}

/// Whether all acknowledged data is in the file; `None` if that cannot be compared.
async fn is_intact_on_server(
    core: &Core,
    file: &OpenFile,
    path: &RemotePath,
) -> Result<Option<bool>> {
    let (extents, next) = {
        let state = file.lock();
        let Some(mut extents) = state.unstable.extents() else { return Ok(None) };
        let covered =
            |extent: &Extent| state.log.covers(&(extent.offset..extent.offset + extent.len));
        if extents.iter().any(|extent| covered(extent) == Covered::Partly) {
            return Ok(None);
        }
        // The other extents will be replayed.
        extents.retain(|extent| covered(extent) == Covered::Not);
        (extents, state.log.next())
    };
    let inner = &*core.inner;
    let opened = match inner.open(path, OpenFlags::existing(Access::Read)).await {
        Ok(opened) => opened,
        Err(errno) if errno.is_loss() => return Err(errno),
        // Without permission to read, nothing can be compared.
        Err(_) => return Ok(None),
    };
    let guard = OpenGuard::new(inner, opened.fh);
    let mut is_certain = true;
    for extent in extents {
        let found = digest(core, &guard, &extent).await?;
        if found == Some(extent.digest) {
            continue;
        }
        let state = file.lock();
        // Through handles that are not lost, the file may be changed in the meantime.
        let may_be_overwritten = state.phase == Phase::Open && state.log.next() != next;
        // Appends of other clients do not make the file shorter.
        let may_be_elsewhere = extent.is_appended && found.is_some();
        if !may_be_overwritten && !may_be_elsewhere {
            return Ok(Some(false));
        }
        is_certain = false;
    }
    Ok(is_certain.then_some(true))
}

/// The digest of the content at `extent`; `None` if the file ends before its end.
async fn digest(core: &Core, guard: &OpenGuard<'_>, extent: &Extent) -> Result<Option<Digest>> {
    let offsets: Vec<u64> =
        (extent.offset..extent.offset + extent.len).step_by(extent.write_len as usize).collect();
    let mut whole: Option<Digest> = None;
    for some in offsets.chunks(MAX_IN_FLIGHT) {
        let reads = some.iter().map(|at| core.inner.read(guard.fh(), *at, extent.write_len as u32));
        for data in join_in_order(reads).await {
            let data = data?;
            if data.len() as u64 != extent.write_len {
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
