//! Appends whose answers were lost, looked for in the file.
//!
//! An append that is sent twice is there twice. So the file's end is read: it must be what was
//! acknowledged, followed by a beginning of what was not. What is there counts as written, the rest is
//! sent. If it is anything else (somebody else appends as well), nobody can tell what has become of
//! them, and their writers are told so (`EIO`).
//!
//! A server that has much to do may carry out what it had received only when there is a new
//! connection already: an append that is sent again before that is there twice. So the file is
//! looked at no sooner than [`LATE`] after the loss.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, Attr, OpenFlags, OpenGuard, RemotePath, Result};
use bytes::Bytes;

use crate::Core;
use crate::change_log::Change;
use crate::file::{FileState, OpenFile};
use crate::unstable::Digest;

/// Time for a busy server to carry out what it had received before the connection was lost. Over
/// loopback a new connection takes a tenth of it. Only appends without an answer wait for it.
const LATE: Duration = Duration::from_secs(1);

/// Bytes that are read at once.
const PIECE_BYTES: u32 = 1 << 20;

/// Waits until appends in doubt, if there are any, have arrived or never will.
pub(super) async fn wait(file: &OpenFile) {
    let lost_at = {
        let state = file.lock();
        state.lost_at.filter(|_| state.log.has_appends_in_doubt())
    };
    if let Some(lost_at) = lost_at {
        tokio::time::sleep_until(lost_at + LATE).await;
    }
}

/// Looks what has arrived of the appends in doubt, and answers those who wait for them. An error says
/// that it could not be looked.
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
        // Nothing else that is in doubt could have moved the end (`turn`).
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

/// How many bytes of the appends are in the file; `None` when something else is.
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
                        self.unstable.record(*number, at..at + here, Some(digest));
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
            let change = Change::Append { data: data.clone(), arrived: 0 };
            self.may_have_happened(*number, &change, &is_future);
            self.log.answer(*number, Err(base::Errno::EIO));
        }
    }
}
