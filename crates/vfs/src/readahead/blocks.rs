//! Data that was fetched for one open file and not read yet.
//!
//! Invariants:
//! 1. Blocks do not overlap.
//! 2. A block is dropped when as many bytes were returned as it has: from then on the kernel has
//!    them.
//! 3. A block that was dropped while in flight is not stored when it arrives.

use std::collections::BTreeMap;
use std::ops::Range;
use std::task::Waker;
use std::time::Duration;

use base::{Data, Result};
use tokio::time::Instant;

/// How long fetched data may wait for its reader. After that the server is requested again: a
/// reader that pauses gets the present content when it continues.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(3);

/// Unique for each block, so that an answer for a dropped block is not taken for that of its
/// successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    start: u64,
    number: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Blocks<C> {
    by_start: BTreeMap<u64, Block<C>>,
    next: u64,
}

impl<C> Default for Blocks<C> {
    fn default() -> Blocks<C> {
        Blocks { by_start: BTreeMap::new(), next: 0 }
    }
}

#[derive(Debug)]
struct Block<C> {
    number: u64,
    /// As requested.
    end: u64,
    requested_at: Instant,
    /// Bytes that were returned.
    served: u64,
    content: Content,
    /// Dropped with the block.
    _claim: C,
}

#[derive(Debug)]
enum Content {
    InFlight(Vec<Waker>),
    /// Up to the end of the block or of the file.
    Data(Data),
}

/// The data at the beginning of a range.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The first bytes.
    Data(Data),
    /// The file ended before it when the block was fetched.
    EndOfFile,
    /// In flight; the waker was stored.
    InFlight,
    /// None up to this offset.
    Missing(u64),
}

impl<C> Blocks<C> {
    /// Whether the bytes from `offset` on have arrived.
    pub(super) fn has(&self, offset: u64) -> bool {
        let before = self.by_start.range(..=offset).next_back();
        before.is_some_and(|(_, block)| {
            block.end > offset && matches!(block.content, Content::Data(_))
        })
    }

    /// Whether a part of `range` has arrived or is in flight.
    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        let before = self.by_start.range(..range.end).next_back();
        before.is_some_and(|(_, block)| block.end > range.start)
    }

    /// Registers a block that is about to be fetched, unless a part of it is known. The block holds
    /// `claim`.
    pub(super) fn begin(&mut self, range: Range<u64>, now: Instant, claim: C) -> Option<Ticket> {
        if range.is_empty() || self.overlaps(&range) {
            return None;
        }
        let number = self.next;
        self.next += 1;
        let content = Content::InFlight(Vec::new());
        let end = range.end;
        let block = Block { number, end, requested_at: now, served: 0, content, _claim: claim };
        self.by_start.insert(range.start, block);
        Some(Ticket { start: range.start, number })
    }

    /// A block has arrived, or failed. Returns the wakers of its readers, to be woken without the
    /// lock.
    pub(super) fn arrive(&mut self, ticket: Ticket, result: Result<Data>) -> Vec<Waker> {
        let Some(block) = self.by_start.get_mut(&ticket.start) else { return Vec::new() };
        if block.number != ticket.number {
            return Vec::new();
        }
        match result {
            Ok(data) => wakers(std::mem::replace(&mut block.content, Content::Data(data))),
            // The reader sends its own request and gets its own error.
            Err(_) => self.remove(ticket.start),
        }
    }

    /// Takes the data at the beginning of `range`.
    pub(super) fn take(&mut self, range: &Range<u64>, now: Instant, waker: &Waker) -> Taken {
        let Some(start) = self.first_from(range.start).filter(|start| *start < range.end) else {
            return Taken::Missing(range.end);
        };
        if start > range.start {
            return Taken::Missing(start);
        }
        let Some(block) = self.by_start.get_mut(&start) else { return Taken::Missing(range.end) };
        let data = match &mut block.content {
            Content::InFlight(wakers) => {
                if !wakers.iter().any(|known| known.will_wake(waker)) {
                    wakers.push(waker.clone());
                }
                return Taken::InFlight;
            }
            Content::Data(data) => data,
        };
        if now.saturating_duration_since(block.requested_at) > KEPT_FOR {
            let end = block.end.min(range.end);
            self.remove(start);
            return Taken::Missing(end);
        }
        let has_until = start + data.len() as u64;
        if range.start >= has_until {
            self.remove(start);
            return Taken::EndOfFile;
        }
        let end = range.end.min(has_until);
        let taken = data.slice((range.start - start) as usize..(end - start) as usize);
        block.served += end - range.start;
        if block.served >= block.end - start {
            self.remove(start);
        }
        Taken::Data(taken)
    }

    /// The beginning of the block that contains `offset`, or of the first one after it.
    fn first_from(&self, offset: u64) -> Option<u64> {
        let before = self.by_start.range(..=offset).next_back();
        let holds = before.filter(|(_, block)| block.end > offset).map(|(start, _)| *start);
        holds.or_else(|| self.by_start.range(offset..).next().map(|(start, _)| *start))
    }

    /// Drops all blocks. Returns the wakers of their readers.
    pub(super) fn clear(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.by_start)
            .into_values()
            .flat_map(|block| wakers(block.content))
            .collect()
    }

    /// Drops the blocks that have waited for too long.
    pub(super) fn invalidate(&mut self, now: Instant) {
        let old = |block: &Block<C>| now.saturating_duration_since(block.requested_at) > KEPT_FOR;
        let starts: Vec<u64> = self
            .by_start
            .iter()
            .filter(|(_, block)| old(block) && matches!(block.content, Content::Data(_)))
            .map(|(start, _)| *start)
            .collect();
        for start in starts {
            self.remove(start);
        }
    }

    fn remove(&mut self, start: u64) -> Vec<Waker> {
        let Some(block) = self.by_start.remove(&start) else { return Vec::new() };
        wakers(block.content)
    }
}

fn wakers(content: Content) -> Vec<Waker> {
    match content {
        Content::InFlight(wakers) => wakers,
        Content::Data(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Errno;
    use bytes::Bytes;
    use std::sync::{Arc, LazyLock};
    use std::task::Wake;

    /// The same waker each time, as for one task.
    struct Nobody;
    impl Wake for Nobody {
        fn wake(self: Arc<Self>) {}
    }

    fn data(range: Range<u8>) -> Data {
        Data::from(Bytes::from_iter(range))
    }

    fn take(blocks: &mut Blocks<()>, range: Range<u64>) -> Taken {
        static WAKER: LazyLock<Waker> = LazyLock::new(|| Waker::from(Arc::new(Nobody)));
        blocks.take(&range, Instant::now(), &WAKER)
    }

    /// Bytes of all blocks.
    fn bytes(blocks: &Blocks<()>) -> u64 {
        blocks.by_start.iter().map(|(start, block)| block.end - start).sum()
    }

    /// Blocks that have arrived.
    fn with(ranges: impl IntoIterator<Item = Range<u8>>) -> Blocks<()> {
        let mut blocks = Blocks::default();
        for range in ranges {
            let bytes = u64::from(range.start)..u64::from(range.end);
            let ticket = blocks.begin(bytes, Instant::now(), ()).unwrap();
            blocks.arrive(ticket, Ok(data(range.clone())));
        }
        blocks
    }

    #[test]
    fn returned_data_is_dropped() {
        let mut blocks = with([10..20, 20..30]);
        assert_eq!(bytes(&blocks), 20);
        assert_eq!(take(&mut blocks, 14..25), Taken::Data(data(14..20)), "up to the next block");
        assert_eq!(take(&mut blocks, 10..14), Taken::Data(data(10..14)), "in whatever order");
        assert_eq!(take(&mut blocks, 10..14), Taken::Missing(14));
        assert_eq!(take(&mut blocks, 20..25), Taken::Data(data(20..25)));
        assert_eq!(take(&mut blocks, 25..40), Taken::Data(data(25..30)));
        assert!(blocks.by_start.is_empty() && bytes(&blocks) == 0);
    }

    #[test]
    fn missing_data_ends_where_a_block_begins() {
        let mut blocks = with([10..20, 30..40]);
        assert_eq!(take(&mut blocks, 0..50), Taken::Missing(10));
        assert_eq!(take(&mut blocks, 20..50), Taken::Missing(30));
        assert_eq!(take(&mut blocks, 40..50), Taken::Missing(50));
        assert_eq!(take(&mut blocks, 0..5), Taken::Missing(5));
        assert_eq!(take(&mut blocks, 15..50), Taken::Data(data(15..20)));
    }

    #[test]
    fn an_end_of_file_is_reported() {
        let mut blocks = Blocks::default();
        let ticket = blocks.begin(10..20, Instant::now(), ()).unwrap();
        blocks.arrive(ticket, Ok(data(10..13)));
        assert_eq!(take(&mut blocks, 10..20), Taken::Data(data(10..13)));
        assert_eq!(take(&mut blocks, 13..20), Taken::EndOfFile);
        assert_eq!(take(&mut blocks, 13..20), Taken::Missing(20), "asked for anew the next time");
    }

    #[test]
    fn overlapping_ranges_are_not_fetched_twice() {
        let mut blocks = with(std::iter::once(10..20));
        for range in [5..11, 10..20, 12..15, 19..30, 0..40] {
            assert_eq!(blocks.begin(range, Instant::now(), ()), None);
        }
        assert!(blocks.begin(0..10, Instant::now(), ()).is_some());
        assert!(blocks.begin(20..30, Instant::now(), ()).is_some());
    }

    #[test]
    fn readers_are_woken_by_arrival_failure_and_clearing() {
        let now = Instant::now();
        for outcome in 0..3 {
            let mut blocks = Blocks::default();
            let ticket = blocks.begin(0..10, now, ()).unwrap();
            assert_eq!(take(&mut blocks, 5..10), Taken::InFlight);
            assert_eq!(take(&mut blocks, 5..10), Taken::InFlight);
            let woken = match outcome {
                0 => blocks.arrive(ticket, Ok(data(0..10))),
                1 => blocks.arrive(ticket, Err(Errno::EIO)),
                _ => blocks.clear(),
            };
            assert_eq!(woken.len(), 1, "once for each");
            let taken = take(&mut blocks, 5..10);
            assert_eq!(taken == Taken::Data(data(5..10)), outcome == 0);
            assert_eq!(taken == Taken::Missing(10), outcome > 0);
        }
    }

    #[test]
    fn an_answer_for_a_dropped_block_is_dropped() {
        let mut blocks = Blocks::default();
        let old = blocks.begin(0..10, Instant::now(), ()).unwrap();
        blocks.clear();
        let new = blocks.begin(0..10, Instant::now(), ()).unwrap();
        blocks.arrive(old, Ok(data(50..60)));
        assert_eq!(take(&mut blocks, 0..10), Taken::InFlight);
        blocks.arrive(new, Ok(data(0..10)));
        assert_eq!(take(&mut blocks, 0..10), Taken::Data(data(0..10)));
    }

    #[tokio::test(start_paused = true)]
    async fn data_that_waits_too_long_is_requested_again() {
        let mut blocks = with([0..10, 10..20]);
        tokio::time::advance(KEPT_FOR + Duration::from_millis(1)).await;
        assert_eq!(take(&mut blocks, 0..10), Taken::Missing(10));
        assert_eq!(bytes(&blocks), 10);
        blocks.invalidate(Instant::now());
        assert_eq!(bytes(&blocks), 0);
    }
}
