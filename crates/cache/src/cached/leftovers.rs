//! What was read while the disk was too slow for it, fetched again when nobody reads.
//!
//! A reader waits for no disk, so what comes in faster than it is written is left out, and a large
//! file that was read once would be here with holes. They are filled as soon as nobody has read
//! from the server for a moment, one piece after the other, so that whoever comes meanwhile waits
//! for one piece at most. It ends when somebody does come, and goes on after him.
//!
//! Only what somebody has read is fetched so. Parts of files that nobody wanted stay where they
//! are, and so does what another state of the file has in their place. What waits at the end of a
//! mount is left to whoever reads it next.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Access, OpenFlags, RemotePath, Result};

use super::files::{Content, File};
use super::warm::Closing;
use super::{Core, count};
use crate::Validator;
use crate::partial::chunks::widened;

/// For how long nobody must have read from the server.
const QUIET: Duration = Duration::from_secs(1);

/// Bytes that are asked for at once.
const PIECE_BYTES: u64 = 512 << 10;

/// Files that wait, at most. With their ranges they take some megabytes.
const MAX_FILES: usize = 1024;

/// Ranges of a file that are remembered, at most.
const MAX_RANGES: usize = 256;

/// What was left out of one content, in whole chunks.
#[derive(Debug, Default)]
pub(crate) struct LeftOut(Vec<Range<u64>>);

impl LeftOut {
    /// `len` bytes at `offset` of a content of `size`.
    pub(crate) fn add(&mut self, offset: u64, len: u64, size: u64) {
        let range = widened(offset..offset.saturating_add(len), size);
        // Mostly it is read in order.
        if let Some(last) = self.0.last_mut()
            && last.start <= range.start
            && range.start <= last.end
        {
            last.end = last.end.max(range.end);
        } else if self.0.len() < MAX_RANGES {
            self.0.push(range);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

struct Waiting {
    path: RemotePath,
    validator: Validator,
    left_out: LeftOut,
}

#[derive(Default)]
struct State {
    files: VecDeque<Waiting>,
    /// Somebody is at work on them.
    working: bool,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Leftovers {
    state: Mutex<State>,
    /// Bytes that were read from the server for it.
    fetched_bytes: AtomicU64,
}

impl Leftovers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one; without one the work is over.
    fn next(&self) -> Option<Waiting> {
        let mut state = self.lock();
        let next = state.files.pop_front();
        state.working = next.is_some();
        next
    }
}

impl Core {
    /// `file` is closed: what was left out of it is fetched later.
    pub(crate) fn finish_later(self: &Arc<Self>, file: &File) {
        let Content::Part(filling) = file.content() else { return };
        let left_out = filling.take_left_out();
        let Some(path) = file.path().filter(|_| !left_out.is_empty()) else { return };
        let begin = {
            let mut state = self.leftovers.lock();
            if state.files.len() >= MAX_FILES {
                return;
            }
            let validator = file.validator();
            state.files.push_back(Waiting { path, validator, left_out });
            !std::mem::replace(&mut state.working, true)
        };
        if !begin {
            return;
        }
        let (core, mut wanted) = (self.clone(), self.filler.wanted());
        tokio::spawn(async move {
            tokio::select! {
                () = core.fetch_leftovers() => {}
                // Nothing is ever sent: it ends with the mount.
                _ = wanted.changed() => {}
            }
        });
    }

    async fn fetch_leftovers(self: &Arc<Self>) {
        while let Some(file) = self.leftovers.next() {
            self.until_quiet().await;
            let path = file.path.clone();
            if let Err(error) = self.fetch_rest(file).await {
                tracing::debug!(%path, %error, "the rest of a content is not fetched");
            }
        }
    }

    /// Bytes that were read from the server for others.
    fn read_by_others(&self) -> u64 {
        let all = self.counters.read_there_bytes.load(Ordering::Relaxed);
        all.saturating_sub(self.leftovers.fetched_bytes.load(Ordering::Relaxed))
    }

    async fn until_quiet(&self) {
        loop {
            let before = self.read_by_others();
            tokio::time::sleep(QUIET).await;
            if self.read_by_others() == before {
                return;
            }
        }
    }

    async fn fetch_rest(self: &Arc<Self>, waiting: Waiting) -> Result<()> {
        let opened = self.open(&waiting.path, OpenFlags::existing(Access::Read)).await?;
        let _closing = Closing(self, opened.fh);
        let file = self.files.get(opened.fh)?;
        if file.offline || file.validator() != waiting.validator {
            return Ok(());
        }
        let Content::Part(filling) = file.content() else { return Ok(()) };
        let before = self.read_by_others();
        for range in &waiting.left_out.0 {
            for missing in filling.partial.missing(range.clone()) {
                let mut at = missing.start;
                while at < missing.end {
                    let len = PIECE_BYTES.min(missing.end - at);
                    self.filler.room_for(len).await;
                    if self.read_by_others() != before {
                        // The next who begins finds out what is still missing.
                        self.leftovers.lock().files.push_back(waiting);
                        return Ok(());
                    }
                    let read = self.read(opened.fh, at, len as u32).await?.len() as u64;
                    count(&self.leftovers.fetched_bytes, read);
                    if read == 0 {
                        return Ok(());
                    }
                    at += read;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CHUNK_BYTES;

    #[test]
    fn what_is_left_out_in_order_is_one_range() {
        let mut left_out = LeftOut::default();
        let size = 10 * CHUNK_BYTES + 5;
        left_out.add(CHUNK_BYTES + 7, 10, size);
        left_out.add(CHUNK_BYTES + 17, CHUNK_BYTES, size);
        left_out.add(3 * CHUNK_BYTES, 1, size);
        assert_eq!(left_out.0, std::slice::from_ref(&(CHUNK_BYTES..4 * CHUNK_BYTES)));
        left_out.add(size - 1, 1, size);
        assert_eq!(left_out.0[1], 10 * CHUNK_BYTES..size);
        for chunk in (0..2 * MAX_RANGES as u64).rev() {
            left_out.add(2 * chunk * CHUNK_BYTES, 1, u64::MAX);
        }
        assert_eq!(left_out.0.len(), MAX_RANGES);
    }
}
