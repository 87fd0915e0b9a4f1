//! Finding appends without a reply in the file.
//!
//! An append that is sent twice is in the file twice. So the end of the file is read. Behind the
//! acknowledged content there must be a prefix of the unanswered appends: these bytes were written,
//! the rest is sent. Any other content (another client appends as well) makes the outcome unknown,
//! and the writers get `EIO`.
//!
//! A busy server may execute requests of the old connection when a new one is already open. An
//! append that is replayed before that is in the file twice. So the file is read no sooner than
//! [`LATE`] after the loss.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, Attr, OpenFlags, OpenGuard, RemotePath, Result};
use bytes::Bytes;

use crate::Core;
use crate::change_log::Change;
use crate::file::{FileState, OpenFile};
use crate::unstable::Digest;

/// Time for a busy server to execute the requests that it has received before the connection was
/// lost. Over loopback a new connection takes a tenth of it. Only unanswered appends and exchanges
/// wait for it.
pub(crate) const LATE: Duration = Duration::from_secs(1);

/// Bytes of one read.
const PIECE_BYTES: u32 = 1 << 20;

/// If appends are in doubt, waits until they have arrived or never will.
pub(super) async fn wait(file: &OpenFile) {
    let lost_at = {
        let state = file.lock();
        state.lost_at.filter(|_| state.log.has_appends_in_doubt())
    };
    if let Some(lost_at) = lost_at {
        tokio::time::sleep_until(lost_at + LATE).await;
    }
}

/// Checks which bytes of the appends in doubt have arrived, and completes their callers. An error
/// means that this could not be checked.
pub(super) async fn resolve(
    core: &Arc<Core>,
    file: &OpenFile,
    path: &RemotePath,
    attr: &Attr,
) -> Result<()> {
    let (appends, base) = {
        let mut state = file.lock();
        let appends = state.log.take_appends_in_doubt();
        if appends.is_empty() {
            return Ok(());
        }
        // No other change in doubt could have moved the end (`change_queue`).
        (appends, state.expected.size())
    };
    let arrived = match base {
        Some(base) => arrived(core, path, base, attr.size, &appends).await?,
        None => None,
    };
    if arrived.is_none() {
        file.warn(core, "data appended when the connection was lost may or may not be in the file");
    }
    let mut state = file.lock();
    match arrived {
        Some(bytes) => state.appends_arrived(core, &appends, bytes),
        None => state.appends_unknown(core, &appends),
    }
    Ok(())
}

/// The number of bytes of the appends that are in the file; `None` if it has other content.
async fn arrived(
    core: &Core,
    path: &RemotePath,
    base: u64,
    size: u64,
    appends: &[(u64, Bytes)],
) -> Result<Option<u64>> {
    let Some(more) = size.checked_sub(base) else { return Ok(None) };
    let stream: Vec<u8> = appends.iter().flat_map(|(_, data)| data.iter().copied()).collect();
    if more > stream.len() as u64 {
        return Ok(None);
    }
    if more == 0 {
        return Ok(Some(0));
    }
    let inner = &*core.inner;
    let opened = inner.open(path, OpenFlags::existing(Access::Read)).await?;
    let guard = OpenGuard::new(inner, opened.fh);
    let mut at = 0;
    while at < more {
        let len = u64::from(PIECE_BYTES).min(more - at) as u32;
        let data = inner.read(guard.fh(), base + at, len).await?.to_vec();
        let expected = &stream[at as usize..][..len as usize];
        if data != expected {
            return Ok(None);
        }
        at += u64::from(len);
    }
    Ok(Some(more))
}

impl FileState {
    fn appends_arrived(&mut self, core: &Core, appends: &[(u64, Bytes)], mut bytes: u64) {
        let is_future = |time| core.clock.is_future(time);
        for (number, data) in appends {
            let here = bytes.min(data.len() as u64);
            bytes -= here;
            if here > 0 {
                let at = self.expected.size();
                self.expected.appended(here, &is_future);
                match at {
                    Some(at) if core.write_verifier.may_be_available() => {
                        let digest = Digest::of(&data[..here as usize]);
                        self.unstable.record_append(*number, at..at + here, Some(digest));
                    }
                    _ => {}
                }
            }
            if self.log.append_arrived(*number, here as usize) {
                self.log.answer(*number, Ok(()));
            }
        }
    }

    fn appends_unknown(&mut self, core: &Core, appends: &[(u64, Bytes)]) {
        let is_future = |time| core.clock.is_future(time);
        for (number, data) in appends {
            let change = Change::Append { end: 0, data: data.clone(), arrived: 0 };
            self.may_have_happened(*number, &change, &is_future);
            self.log.answer(*number, Err(base::Errno::EIO));
        }
    }
}
