//! Fetching ahead what the readers of an open file will ask for next.
//!
//! The kernel reads ahead too, but 128 KiB (`read_ahead_kb`), which over a long way is a small
//! part of what could be on its way. So the reads that it sends are watched ([`pattern`]), and
//! what comes next is fetched and kept ([`blocks`]) until they get there. How far ahead is the
//! remote's to say ([`base::Window`]), within a bound for the mount.
//!
//! All who have a file open through the page cache share what was fetched, as they share the
//! pages: a block is fetched once, whoever reads it.
//!
//! Invariants:
//! 1. A reader waits for nothing but what it has asked for, and what it asks for itself goes out
//!    before what is fetched ahead.
//! 2. What was fetched ahead is used only while nothing has changed the content since it was asked
//!    for: no write, truncation or copy made here, and no other validator learned from the server.
//!    An open that drops the kernel's pages drops it too, since it would fill them again.
//! 3. An error of a fetch is nobody's error: the reader asks again.
//! 4. Blocks of all open files together, those on their way among them, are within the mount's
//!    bound, and no older than [`blocks::KEPT_FOR`] when they are used.
//! 5. A fetch whose block nobody wants any more is given up.
//!
//! Not for `O_DIRECT` and `direct_io`, which ask for the content as it is now, nor under `strict`.

mod blocks;
mod pattern;

use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use base::{Data, Errno, Fh, Result, Window};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::open::OpenFile;
use crate::shared::Shared;
use crate::{Vfs, inode};
use blocks::{Blocks, Taken, Ticket};
use pattern::{FIRST_WINDOW, Patterns, Reach};

/// Requests that one piece is fetched with, at most. A reader waits for a whole piece, so a piece
/// is a small part of the window; but each piece is a task.
const PIECE_REQUESTS: u64 = 4;

/// Pieces that fit into a window, at least.
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

/// What a block has for as long as it is wanted.
#[derive(Debug)]
struct Claim {
    /// The fetch has one too: its answer needs the memory, whether or not anybody wants it.
    _reservation: Arc<Reservation>,
    /// Tells the fetch when it is dropped.
    _wanted: oneshot::Sender<()>,
}

/// One piece that is to be fetched.
struct Piece {
    range: Range<u64>,
    ticket: Ticket,
    reservation: Arc<Reservation>,
    wanted: oneshot::Receiver<()>,
}

/// What was fetched ahead of one file, for all who have it open.
#[derive(Debug)]
pub(crate) struct Readahead {
    state: Mutex<State>,
    used: Arc<UsedBytes>,
}

#[derive(Debug, Default)]
struct State {
    patterns: Patterns,
    blocks: Blocks<Claim>,
    /// The content that the blocks are of (see `inode::State::content_generation`).
    content_generation: u64,
}

impl Readahead {
    fn new(used: Arc<UsedBytes>) -> Arc<Readahead> {
        Arc::new(Readahead { state: Mutex::default(), used })
    }

    /// Gives up what has waited for its reader for too long.
    fn invalidate(&self) {
        self.lock().blocks.invalidate(Instant::now());
    }

    /// Gives up what is not of `content_generation` any longer.
    fn keep_only(&self, content_generation: u64) {
        let waiting = {
            let mut state = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next part of `range`, once it is known whether it was fetched.
    async fn take(&self, range: &Range<u64>) -> Taken {
        poll_fn(|context| {
            let found = self.lock().blocks.take(range, Instant::now(), context.waker());
            match found {
                Taken::InFlight => Poll::Pending,
                found => Poll::Ready(found),
            }
        })
        .await
    }

    /// A read begins. Returns the pieces to fetch ahead, entered as on their way.
    fn note(&self, read: Range<u64>, reach: Reach) -> Vec<Piece> {
        let now = Instant::now();
        let mut state = self.lock();
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
        let waiting = self.lock().blocks.arrive(ticket, result);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Shared {
    /// For a file that is being opened through the page cache, whose inode has this state.
    pub(crate) fn readahead(&self, state: &mut inode::State) -> Option<Arc<Readahead>> {
        if self.config.readahead_bytes == 0 {
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
    /// Reads `range` of an open file, from what was fetched ahead where that is there, and fetches
    /// ahead what the reader is likely to ask for next.
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
            return self.read_over_end(fh, range, size).await;
        };
        ahead.keep_only(content_generation);
        let pieces = ahead.note(range.clone(), self.reach(size));
        // What is asked for itself is polled, and so sent, first.
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
            // Somebody has stopped reading, perhaps.
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
        self.config.readahead_bytes.saturating_sub(used)
    }

    /// Reads `range` of a file that had `size` bytes. The kernel asks for whole pages, and a remote
    /// that has read up to the end has to ask again to know that it is the end. So what is behind
    /// it is asked for at the same time, and not a round trip later.
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
        // If it ended before, whatever came behind has been put there since.
        if data.len() as u64 == size - start {
            data.append(behind?);
        }
        Ok(data)
    }

    /// Puts `range` together, of a file that had `size` bytes. Ends early at the end of the file.
    async fn assemble(
        &self,
        ahead: &Readahead,
        fh: Fh,
        range: Range<u64>,
        size: u64,
    ) -> Result<Data> {
        let mut data = Data::new();
        let mut left = range;
        while !left.is_empty() {
            match ahead.take(&left).await {
                Taken::Data(part) => {
                    left.start += part.len() as u64;
                    data.append(part);
                }
                Taken::EndOfFile | Taken::InFlight => break,
                Taken::Missing(until) => {
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
        Ok(data)
    }

    /// Sends for pieces that were entered.
    fn fetch(&self, file: &OpenFile, ahead: &Arc<Readahead>, pieces: Vec<Piece>) {
        if pieces.is_empty() {
            return;
        }
        // Its answer could be older or newer than the write.
        let written = file.inode.state().changes_in_flight() > 0;
        for Piece { range, ticket, reservation, wanted } in pieces {
            if written {
                ahead.arrive(ticket, Err(Errno::EAGAIN));
                continue;
            }
            // The handle stays open for it, but the blocks end with those who have the file open.
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
