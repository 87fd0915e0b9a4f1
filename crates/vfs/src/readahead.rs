//! Readahead: data that readers of an open file will request next.
//!
//! The kernel reads ahead too, but only 128 KiB (`read_ahead_kb`), which on a long link is a small
//! part of what could be in flight. So the reads that it sends are analysed ([`pattern`]), and the
//! data that comes next is fetched and kept ([`blocks`]) until the readers reach it. The remote
//! suggests how far ahead ([`base::Window`]), within a bound for the mount.
//!
//! All handles that have a file open through the page cache share the readahead, as they share the
//! pages: a block is fetched once for all readers. So do handles that bypass the page cache only
//! because the kernel may use another size, for which it does not read ahead.
//!
//! Invariants:
//! 1. A reader waits only for the data that it has requested, and its own requests are sent before
//!    those of the readahead.
//! 2. Fetched data is used only if nothing has changed the content since its request: no local
//!    write, truncation or copy, and no other validator from the server. An open that drops the
//!    kernel's pages drops the fetched data too, since it would fill the pages again.
//! 3. An error of a fetch is not reported: the reader sends its own request.
//! 4. All blocks of all open files, including those in flight, are within the mount's bound, and no
//!    older than [`blocks::KEPT_FOR`] when they are used.
//! 5. A fetch whose block is no longer wanted is cancelled.
//!
//! Not for `O_DIRECT` and the option `direct_io`, which request the present content, nor under
//! `strict`.

mod blocks;
mod pattern;

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use base::{Data, Errno, Fh, Mutex, Result, Window};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::open::OpenFile;
use crate::shared::Shared;
use crate::{Vfs, inode};
use blocks::{Blocks, Taken, Ticket};
use pattern::{FIRST_WINDOW, Patterns, Reach};

/// Requests of one piece, at most. A reader waits for a whole piece, so a piece is a small part of
/// the window; but each piece is a task.
const PIECE_REQUESTS: u64 = 4;

/// Pieces in a window, at least.
const PIECES: u64 = 8;

/// Bytes of all blocks of a mount.
#[derive(Debug, Default)]
pub(crate) struct UsedBytes(AtomicU64);

/// A part of the mount's bound, given back when dropped.
#[derive(Debug)]
struct Reservation {
    bytes: u64,
    used: Arc<UsedBytes>,
}

impl Reservation {
    fn take(used: &Arc<UsedBytes>, bytes: u64) -> Reservation {
        used.0.fetch_add(bytes, Ordering::Relaxed);
        Reservation { bytes, used: used.clone() }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.used.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Held by a block as long as it is wanted.
#[derive(Debug)]
struct Claim {
    /// The fetch holds it too: its answer needs the memory, even if it is no longer wanted.
    _reservation: Arc<Reservation>,
    /// Cancels the fetch when dropped.
    _wanted: oneshot::Sender<()>,
}

/// One piece to be fetched.
struct Piece {
    range: Range<u64>,
    ticket: Ticket,
    reservation: Arc<Reservation>,
    wanted: oneshot::Receiver<()>,
}

/// The readahead of one file, for all its open handles.
#[derive(Debug)]
pub(crate) struct Readahead {
    state: Mutex<State>,
    used: Arc<UsedBytes>,
}

#[derive(Debug, Default)]
struct State {
    patterns: Patterns,
    blocks: Blocks<Claim>,
    /// The content of the blocks (see `inode::State::content_generation`).
    content_generation: u64,
}

impl Readahead {
    fn new(used: Arc<UsedBytes>) -> Arc<Readahead> {
        Arc::new(Readahead { state: Mutex::default(), used })
    }

    /// Drops the data that has waited for its reader for too long.
    fn invalidate(&self) {
        self.state.lock().blocks.invalidate(Instant::now());
    }

    /// Drops the data that is not of `content_generation`.
    fn keep_only(&self, content_generation: u64) {
        let waiting = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.content_generation, content_generation)
                == content_generation
            {
                return;
            }
            state.patterns.restart();
            state.blocks.clear()
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The next part of `range`; waits while it is in flight, and sets `waited` then.
    async fn take(&self, range: &Range<u64>, waited: &mut bool) -> Taken {
        poll_fn(|context| {
            let found = self.state.lock().blocks.take(range, Instant::now(), context.waker());
            match found {
                Taken::InFlight => {
                    *waited = true;
                    Poll::Pending
                }
                found => Poll::Ready(found),
            }
        })
        .await
    }

    /// A read begins. Returns the pieces to fetch, registered as in flight.
    fn note(&self, read: Range<u64>, reach: Reach) -> Vec<Piece> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let waited = !state.blocks.has(read.start);
        let mut pieces = Vec::new();
        for range in state.patterns.note(read, waited, reach) {
            if state.blocks.overlaps(&range) {
                continue;
            }
            let reservation = Arc::new(Reservation::take(&self.used, range.end - range.start));
            let (wanted_by_block, wanted) = oneshot::channel();
            let claim = Claim { _reservation: reservation.clone(), _wanted: wanted_by_block };
            if let Some(ticket) = state.blocks.begin(range.clone(), now, claim) {
                pieces.push(Piece { range, ticket, reservation, wanted });
            }
        }
        pieces
    }

    fn arrive(&self, ticket: Ticket, result: Result<Data>) {
        let waiting = self.state.lock().blocks.arrive(ticket, result);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Shared {
    /// The readahead for a file that is being opened, whose inode has this state.
    pub(crate) fn readahead(&self, state: &mut inode::State) -> Option<Arc<Readahead>> {
        if self.live(|it| it.readahead_bytes) == 0 {
            return None;
        }
        Some(state.readahead.upgrade().unwrap_or_else(|| {
            let ahead = Readahead::new(self.readahead_used.clone());
            state.readahead = Arc::downgrade(&ahead);
            ahead
        }))
    }
}

impl Vfs {
    /// Reads `range` of an open file, from fetched data where possible, and fetches the data that
    /// the reader is likely to request next.
    pub(crate) async fn read_ahead(
        &self,
        file: &Arc<OpenFile>,
        fh: Fh,
        range: Range<u64>,
    ) -> Result<Data> {
        let (content_generation, size) = {
            let state = file.inode.state();
            (state.content_generation(), state.last_attr().map_or(u64::MAX, |attr| attr.size))
        };
        let Some(ahead) = file.readahead.get() else {
            self.counters.reads_requested.add(1);
            return self.read_over_end(fh, range, size).await;
        };
        ahead.keep_only(content_generation);
        let pieces = ahead.note(range.clone(), self.reach(size));
        // The reader's own requests are polled, and so sent, first.
        let (data, ()) = tokio::join!(self.assemble(ahead, fh, range, size), async {
            self.fetch(file, ahead, pieces);
        });
        data
    }

    /// How far ahead one stream of a file of `size` bytes may be.
    fn reach(&self, size: u64) -> Reach {
        let Window { bytes, request_bytes } = self.remote.suggested_window();
        let mut free = self.readahead_free();
        if free < FIRST_WINDOW {
            // A reader may have stopped.
            self.files.each(|file| {
                if let Some(ahead) = file.readahead.get() {
                    ahead.invalidate();
                }
            });
            free = self.readahead_free();
        }
        let window = bytes.min(free);
        let request = u64::from(request_bytes).max(1);
        let requests = (window / PIECES / request).clamp(1, PIECE_REQUESTS);
        Reach { window, piece: request * requests, end: size }
    }

    fn readahead_free(&self) -> u64 {
        let used = self.readahead_used.0.load(Ordering::Relaxed);
        self.live(|it| it.readahead_bytes).saturating_sub(used)
    }

    /// Reads `range` of a file that had `size` bytes. The kernel requests whole pages, and a remote
    /// that has read up to the end needs another request to recognize the end. So the part behind
    /// the end is requested at the same time, and not a round trip later.
    async fn read_over_end(&self, fh: Fh, range: Range<u64>, size: u64) -> Result<Data> {
        let Range { start, end } = range;
        if size <= start || end <= size {
            return self.remote.read(fh, start, (end - start) as u32).await;
        }
        let (data, behind) = tokio::join!(
            self.remote.read(fh, start, (size - start) as u32),
            self.remote.read(fh, size, (end - size) as u32),
        );
        let mut data = data?;
        // If the file ended earlier, the data behind was written later.
        if data.len() as u64 == size - start {
            data.append(behind?);
        }
        Ok(data)
    }

    /// Assembles `range` of a file that had `size` bytes. Returns less at the end of the file.
    async fn assemble(
        &self,
        ahead: &Readahead,
        fh: Fh,
        range: Range<u64>,
        size: u64,
    ) -> Result<Data> {
        let mut data = Data::new();
        let mut left = range;
        let (mut waited, mut requested) = (false, false);
        while !left.is_empty() {
            match ahead.take(&left, &mut waited).await {
                Taken::Data(part) => {
                    left.start += part.len() as u64;
                    data.append(part);
                }
                Taken::EndOfFile | Taken::InFlight => break,
                Taken::Missing(until) => {
                    requested = true;
                    let missing = until - left.start;
                    let part = self.read_over_end(fh, left.start..until, size).await?;
                    let got = part.len() as u64;
                    data.append(part);
                    left.start += got;
                    if got < missing {
                        break;
                    }
                }
            }
        }
        let counter = match (requested, waited) {
            (true, _) => &self.counters.reads_requested,
            (false, true) => &self.counters.reads_waited,
            (false, false) => &self.counters.reads_ahead,
        };
        counter.add(1);
        Ok(data)
    }

    /// Sends the requests for pieces that were registered.
    fn fetch(&self, file: &OpenFile, ahead: &Arc<Readahead>, pieces: Vec<Piece>) {
        if pieces.is_empty() {
            return;
        }
        // The answer could be older or newer than the write.
        let written = file.inode.state().changes_in_flight() > 0;
        for Piece { range, ticket, reservation, wanted } in pieces {
            if written {
                ahead.arrive(ticket, Err(Errno::EAGAIN));
                continue;
            }
            // The fetch keeps the handle open, but not the blocks.
            let (remote, handle, ahead) =
                (self.remote.clone(), file.remote.clone(), Arc::downgrade(ahead));
            self.background.start(async move {
                let _reservation = reservation;
                let fetched = async {
                    let fh = handle.fh().await?;
                    remote.read(fh, range.start, (range.end - range.start) as u32).await
                };
                tokio::select! {
                    biased;
                    result = fetched => {
                        if let Some(ahead) = ahead.upgrade() {
                            ahead.arrive(ticket, result);
                        }
                    }
                    _ = wanted => {}
                }
            });
        }
    }
}
