//! Recognizes the pattern of the reads of one file, and predicts the next ones.
//!
//! A *stream* is a reader that moves through the file in equal steps: in sequence, where each read
//! begins at the end of the last one, or with a *stride*, where the reads are equally far apart.
//! Several readers of one file are several streams. A read that continues no stream may be the
//! beginning of one, and nothing more is fetched for it.
//!
//! Pure: reads in, ranges to fetch out. It knows neither the remote nor what has arrived.

use std::ops::Range;

/// Streams of one file that are distinguished. A merge sort reads from more, but then only the
/// least recent one begins again.
const STREAMS: usize = 16;

/// Reads in a row that make a sequence. Two contiguous reads happen by chance in small files.
const SEQUENCE: u32 = 2;

/// A read of this size is part of a sequence if one read precedes it: the kernel sends such reads
/// only for sequential readers.
const LONG_READ: u64 = 64 << 10;

/// Equal strides in a row that make a stream. Two happen by chance too often.
const STRIDES: u32 = 3;

/// Readahead of a stream at first, in bytes: two of the kernel's usual reads. At most this much is
/// fetched in vain.
pub(super) const FIRST_WINDOW: u64 = 256 << 10;

/// A read that begins at most this far behind the end of the last one is still in sequence: the
/// kernel skips the pages that it has.
const GAP: u64 = 128 << 10;

/// A first read of this size from the beginning of the file on is the start of a whole read: for a
/// program that reads only the head of the file, the kernel reads a quarter of this.
const WHOLE_FILE: u64 = 128 << 10;

/// How far ahead to fetch, and in pieces of which size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// Bytes that one stream may be ahead, at most.
    pub(super) window: u64,
    /// Bytes of a piece.
    pub(super) piece: u64,
    /// The end of the file: nothing is fetched from here on.
    pub(super) end: u64,
}

/// The streams of one file, the most recent last.
#[derive(Debug, Default)]
pub(super) struct Patterns(Vec<Stream>);

#[derive(Clone, Debug)]
struct Stream {
    start: u64,
    end: u64,
    /// From the beginning of the read before to that of the last one; 0 if there was none.
    stride: i64,
    /// The number of reads that have continued the stream.
    run: u32,
    /// Bytes to be ahead.
    window: u64,
    /// The end of the fetched data; with a negative stride, its beginning.
    fetched_end: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sequential,
    Strided,
}

impl Patterns {
    /// Records a read. `waited` says that its data had not arrived yet. Returns the ranges to
    /// fetch, in the order in which they will be needed.
    pub(super) fn note(&mut self, read: Range<u64>, waited: bool, reach: Reach) -> Vec<Range<u64>> {
        let goes_on = |stream: &Stream| stream.goes_on(&read);
        let Some(index) = self.0.iter().rposition(|stream| goes_on(stream).is_some()) else {
            self.begin(&read);
            let whole = read.start == 0 && read.end >= WHOLE_FILE.min(reach.end);
            return match self.0.last_mut() {
                Some(stream) if whole => stream.begin_sequence(reach),
                _ => Vec::new(),
            };
        };
        let mut stream = self.0.remove(index);
        let kind = stream.goes_on(&read).unwrap_or(Kind::Sequential);
        let before = stream.clone();
        stream.step(&read, kind);
        if kind == Kind::Strided && !stream.is_established() {
            // Perhaps several readers begin, each with an equal part of the file.
            self.0.insert(index, before);
            self.evict_if_full();
        }
        if waited && stream.is_established() {
            stream.window = (stream.window * 2).min(reach.window);
        }
        let wanted = stream.wanted(reach);
        self.0.push(stream);
        wanted
    }

    /// The fetched data was dropped.
    pub(super) fn restart(&mut self) {
        for stream in &mut self.0 {
            stream.fetched_end = match stream.kind {
                Kind::Sequential => stream.end,
                Kind::Strided => stream.start,
            };
        }
    }

    fn evict_if_full(&mut self) {
        if self.0.len() == STREAMS {
            self.0.remove(0);
        }
    }

    fn begin(&mut self, read: &Range<u64>) {
        self.evict_if_full();
        let stride = self.0.last().map_or(0, |last| read.start.wrapping_sub(last.start) as i64);
        self.0.push(Stream {
            start: read.start,
            end: read.end,
            stride,
            run: 0,
            window: FIRST_WINDOW,
            fetched_end: read.end,
            kind: Kind::Strided,
        });
    }
}

impl Stream {
    /// How this read continues the stream, if it does.
    fn goes_on(&self, read: &Range<u64>) -> Option<Kind> {
        let length = read.end - read.start;
        let gap = GAP.min(length.max(self.end - self.start));
        let after = read.start >= self.end && read.start - self.end <= gap;
        // The kernel sends two reads at once, and the second may overtake the first.
        let just_before = read.end == self.start;
        if after || just_before {
            return Some(Kind::Sequential);
        }
        let stride = read.start.wrapping_sub(self.start) as i64;
        (self.stride != 0 && stride == self.stride).then_some(Kind::Strided)
    }

    fn step(&mut self, read: &Range<u64>, kind: Kind) {
        if kind != self.kind {
            (self.kind, self.run, self.fetched_end) = (kind, 0, read.end);
        }
        self.run = self.run.saturating_add(1);
        match kind {
            Kind::Sequential => {
                // If two reads overtook each other, the one at the higher offset determines the
                // next one.
                self.start = read.start.max(self.start);
                self.end = read.end.max(self.end);
                self.stride = 0;
            }
            Kind::Strided => {
                self.stride = read.start.wrapping_sub(self.start) as i64;
                (self.start, self.end) = (read.start, read.end);
            }
        }
    }

    fn is_established(&self) -> bool {
        match self.kind {
            Kind::Sequential => {
                let long = self.end - self.start >= LONG_READ;
                self.run >= if long { 1 } else { SEQUENCE }
            }
            Kind::Strided => self.run >= STRIDES,
        }
    }

    /// Treats the first read as the first of a sequence.
    fn begin_sequence(&mut self, reach: Reach) -> Vec<Range<u64>> {
        (self.kind, self.stride) = (Kind::Sequential, 0);
        self.next_pieces(reach)
    }

    fn wanted(&mut self, reach: Reach) -> Vec<Range<u64>> {
        if !self.is_established() {
            return Vec::new();
        }
        match self.kind {
            Kind::Sequential => self.next_pieces(reach),
            Kind::Strided => self.next_strides(reach),
        }
    }

    /// Refills the window when a quarter of it is used up: requests are sent together, and the data
    /// in flight hardly decreases.
    fn next_pieces(&mut self, reach: Reach) -> Vec<Range<u64>> {
        let window = self.window.min(reach.window);
        self.fetched_end = self.fetched_end.max(self.end);
        if self.fetched_end - self.end > window / 4 * 3 {
            return Vec::new();
        }
        let until = (self.end + window).min(reach.end);
        let mut pieces = Vec::new();
        while self.fetched_end < until {
            let piece = self.fetched_end..(self.fetched_end + reach.piece).min(reach.end);
            self.fetched_end = piece.end;
            pieces.push(piece);
        }
        pieces
    }

    /// The next ranges, each a stride apart and as long as the last read, as many as fit into the
    /// window. `fetched_end` is set to the beginning of the next read that was not fetched yet.
    fn next_strides(&mut self, reach: Reach) -> Vec<Range<u64>> {
        let length = self.end - self.start;
        let room = (self.window.min(reach.window) / length.max(1)).max(1);
        let next = |from: u64| from.checked_add_signed(self.stride);
        // The fetched data is behind the reader, or `done` strides in front of it.
        let distance = (self.fetched_end.wrapping_sub(self.start) as i64).checked_div(self.stride);
        let aligned = (self.fetched_end.wrapping_sub(self.start) as i64) % self.stride == 0;
        let done = distance.filter(|done| aligned && *done > 0 && *done as u64 <= room);
        let done = done.unwrap_or(0) as u64;
        if done > room / 2 {
            return Vec::new();
        }
        let mut at = if done == 0 { Some(self.start) } else { Some(self.fetched_end) };
        let mut pieces = Vec::new();
        for _ in done..room {
            let Some(start) = at.and_then(next).filter(|start| *start < reach.end) else { break };
            pieces.push(start..(start + length).min(reach.end));
            at = Some(start);
        }
        self.fetched_end = at.unwrap_or(self.start);
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const REACH: Reach = Reach { window: 4096 * KIB, piece: 256 * KIB, end: u64::MAX };

    fn all(
        patterns: &mut Patterns,
        reads: impl IntoIterator<Item = Range<u64>>,
    ) -> Vec<Range<u64>> {
        reads.into_iter().flat_map(|read| patterns.note(read, true, REACH)).collect()
    }

    /// The union of the ranges, if there is neither a gap nor an overlap.
    fn joined(ranges: &[Range<u64>]) -> Option<Range<u64>> {
        let whole = ranges.first()?.start..ranges.last()?.end;
        ranges.windows(2).all(|pair| pair[0].end == pair[1].start).then_some(whole)
    }

    #[test]
    fn a_sequence_is_fetched_once_and_further_ahead_each_time() {
        let mut patterns = Patterns::default();
        let read = |n: u64| (n + 1) * 128 * KIB..(n + 2) * 128 * KIB;
        assert!(patterns.note(read(0), true, REACH).is_empty(), "one read is no sequence");
        let fetched = all(&mut patterns, (1..64).map(read));
        let whole = joined(&fetched).expect("one after the other");
        assert_eq!(whole.start, read(1).end);
        let ahead = whole.end - read(63).end;
        assert!(ahead > REACH.window / 2 && ahead <= REACH.window + REACH.piece, "{ahead}");
    }

    #[test]
    fn a_reader_who_never_waits_is_not_fetched_further_ahead() {
        let mut patterns = Patterns::default();
        let mut end = 0;
        for n in 0..1000 {
            let read = n * 64 * KIB..(n + 1) * 64 * KIB;
            let fetched = patterns.note(read.clone(), false, REACH);
            end = fetched.last().map_or(end, |last| last.end);
            assert!(end <= read.end + FIRST_WINDOW + REACH.piece);
        }
    }

    #[test]
    fn random_reads_fetch_nothing_more() {
        let mut patterns = Patterns::default();
        let (mut state, mut fetched) = (7u64, 0);
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (state >> 33) % (1 << 19) * 4 * KIB;
            let ahead = patterns.note(start..start + 4 * KIB, true, REACH);
            fetched += ahead.len();
        }
        assert_eq!(fetched, 0);
    }

    #[test]
    fn a_long_first_read_begins_a_sequence() {
        let first = |len| Patterns::default().note(0..len, true, REACH);
        assert!(first(16 * KIB).is_empty(), "it may have been the head that was wanted");
        let whole = joined(&first(128 * KIB)).expect("at once");
        assert_eq!(whole, 128 * KIB..128 * KIB + FIRST_WINDOW);
    }

    #[test]
    fn dropped_data_is_fetched_again() {
        let mut patterns = Patterns::default();
        let read = |n: u64| n * 128 * KIB..(n + 1) * 128 * KIB;
        let fetched = all(&mut patterns, (0..16).map(read));
        assert!(joined(&fetched).is_some_and(|whole| whole.end > read(20).end));
        patterns.restart();
        let again = patterns.note(read(16), true, REACH);
        assert_eq!(again.first().map(|first| first.start), Some(read(16).end));
    }

    #[test]
    fn two_reads_that_overtook_each_other_are_one_sequence() {
        let mut patterns = Patterns::default();
        let read = |n: u64| n * 128 * KIB..(n + 1) * 128 * KIB;
        let fetched = all(&mut patterns, [1, 0, 3, 2, 5, 4].map(read));
        let whole = joined(&fetched).expect("one after the other");
        assert!(whole.start == read(1).end && whole.end > read(5).end);
    }

    #[test]
    fn readers_of_one_file_are_separate_streams() {
        let mut patterns = Patterns::default();
        for n in 0..20 {
            for base in [0, 1 << 30, 2 << 30] {
                let read = base + n * 16 * KIB..base + (n + 1) * 16 * KIB;
                let fetched = patterns.note(read.clone(), true, REACH);
                assert!(fetched.iter().all(|piece| piece.start >= read.end));
                assert!(fetched.iter().all(|piece| piece.end - base < 8 << 20));
                assert_eq!(n == 2, !fetched.is_empty() && fetched[0].start == read.end, "{n}");
            }
        }
    }

    #[test]
    fn equal_strides_are_seen_forwards_and_backwards() {
        for stride in [1 << 20, -(1 << 20)] {
            let mut patterns = Patterns::default();
            let start = |n: i64| (64 << 20) + n * stride;
            let read = |n: i64| start(n) as u64..start(n) as u64 + 8 * KIB;
            let fetched = all(&mut patterns, (0..20).map(read));
            assert!(fetched.len() >= 15, "{}", fetched.len());
            let first = fetched[0].clone();
            let n = (first.start as i64 - start(0)) / stride;
            for (index, piece) in fetched.iter().enumerate() {
                assert_eq!(*piece, read(n + index as i64), "each once, in order");
            }
            assert!(fetched.len() as i64 + n > 20, "ahead of the reader");
        }
    }

    #[test]
    fn nothing_is_fetched_past_the_end() {
        let end = 1000 * KIB + 5;
        let reach = Reach { end, ..REACH };
        let mut patterns = Patterns::default();
        let mut fetched = Vec::new();
        for n in 0..8 {
            fetched.extend(patterns.note(n * 128 * KIB..(n + 1) * 128 * KIB, true, reach));
        }
        assert_eq!(joined(&fetched).map(|whole| whole.end), Some(end));
        let mut backwards = Patterns::default();
        for n in (0..10).rev() {
            let start = n * 100 * KIB;
            let fetched = backwards.note(start..start + 4 * KIB, true, reach);
            assert!(fetched.iter().all(|piece| piece.start < start));
        }
    }
}
