//! One direction: when each byte is due at the other end. Pure, with time as an argument.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bytes under way at most, for each connection and direction, where the rate is not limited.
/// With 100 ms of delay this is 640 MB/s, more than ssh does.
const UNLIMITED_MAX_BYTES: usize = 64 * 1024 * 1024;

/// Least bound of what is under way: a small product of rate and round trip must still let whole
/// packets pass.
const LIMITED_MIN_BYTES: usize = 128 * 1024;

/// Bytes taken at once where the rate is not limited.
const UNLIMITED_CHUNK_BYTES: usize = 256 * 1024;

/// Least bytes taken at once: a packet of an Ethernet.
const CHUNK_MIN_BYTES: u64 = 1500;

/// Pieces a second into which a limited flow is cut at most, so that it is smooth to 1 ms.
const CHUNKS_PER_SECOND: u64 = 1000;

/// What all connections share in one direction: the wire.
#[derive(Debug)]
pub(super) struct Lane {
    delay: Duration,
    rate_bytes_per_s: Option<u64>,
    /// When the last byte will have been put onto the wire.
    free_at: Instant,
}

impl Lane {
    pub(super) fn new(delay: Duration, rate_bytes_per_s: Option<u64>, now: Instant) -> Lane {
        let rate_bytes_per_s = rate_bytes_per_s.map(|rate| rate.max(1));
        Lane { delay, rate_bytes_per_s, free_at: now }
    }

    /// How many bytes to take from the source at once.
    pub(super) fn chunk_bytes(&self) -> usize {
        match self.rate_bytes_per_s {
            None => UNLIMITED_CHUNK_BYTES,
            Some(rate) => (rate / CHUNKS_PER_SECOND)
                .clamp(CHUNK_MIN_BYTES, UNLIMITED_CHUNK_BYTES as u64)
                as usize,
        }
    }

    /// How many bytes may be under way in one flow: what fits onto the wire, on both ways.
    fn window_bytes(&self) -> usize {
        match self.rate_bytes_per_s {
            None => UNLIMITED_MAX_BYTES,
            Some(rate) => {
                let product = rate as f64 * self.delay.as_secs_f64() * 2.0;
                (product as usize).clamp(LIMITED_MIN_BYTES, UNLIMITED_MAX_BYTES)
            }
        }
    }

    /// Puts `len` bytes onto the wire; tells when they arrive.
    fn carry(&mut self, len: usize, now: Instant) -> Instant {
        if let Some(rate) = self.rate_bytes_per_s {
            let takes = Duration::from_secs_f64(len as f64 / rate as f64);
            self.free_at = self.free_at.max(now) + takes;
            return self.free_at + self.delay;
        }
        now + self.delay
    }
}

/// What is under way in one direction of one connection.
#[derive(Debug, Default)]
pub(super) struct Flow {
    chunks: VecDeque<Chunk>,
    queued_bytes: usize,
    /// The source has ended; the end itself is the last chunk.
    ended: bool,
    /// The sink took less than it was offered: it has to be waited for.
    pub(super) is_blocked: bool,
}

#[derive(Debug)]
struct Chunk {
    due: Instant,
    /// Empty for the end.
    bytes: Vec<u8>,
    /// How many of them are gone.
    sent: usize,
}

/// What may be handed to the sink.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Offer<'a> {
    /// Nothing before that time, if ever.
    Nothing,
    /// These.
    Bytes(&'a [u8]),
    /// The end.
    End,
}

impl Flow {
    /// Whether the source may be read.
    pub(super) fn wants(&self, lane: &Lane) -> bool {
        !self.ended && self.queued_bytes < lane.window_bytes()
    }

    /// Takes bytes of the source; none for its end.
    pub(super) fn push(&mut self, bytes: Vec<u8>, lane: &mut Lane, now: Instant) {
        self.ended |= bytes.is_empty();
        self.queued_bytes += bytes.len();
        let due = lane.carry(bytes.len(), now);
        self.chunks.push_back(Chunk { due, bytes, sent: 0 });
    }

    /// What is due.
    pub(super) fn offer(&self, now: Instant) -> Offer<'_> {
        match self.chunks.front() {
            Some(chunk) if chunk.due > now => Offer::Nothing,
            Some(chunk) if chunk.bytes.is_empty() => Offer::End,
            Some(chunk) => Offer::Bytes(&chunk.bytes[chunk.sent..]),
            None => Offer::Nothing,
        }
    }

    /// When there is something to do without the sink's asking.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.is_blocked { None } else { self.chunks.front().map(|chunk| chunk.due) }
    }

    /// The sink took `len` bytes of what was offered; or, with 0, the end.
    pub(super) fn taken(&mut self, len: usize) {
        let Some(chunk) = self.chunks.front_mut() else { return };
        chunk.sent += len;
        self.queued_bytes -= len;
        if chunk.sent == chunk.bytes.len() {
            self.chunks.pop_front();
        }
    }

    /// Whether the sink has got the end.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.chunks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(50);

    #[test]
    fn bytes_arrive_in_order_after_the_delay() {
        let start = Instant::now();
        let mut lane = Lane::new(DELAY, None, start);
        let mut flow = Flow::default();
        flow.push(b"abc".to_vec(), &mut lane, start);
        flow.push(Vec::new(), &mut lane, start + DELAY / 2);
        assert_eq!(flow.due(), Some(start + DELAY));
        assert_eq!(flow.offer(start + DELAY / 2), Offer::Nothing);
        assert_eq!(flow.offer(start + DELAY), Offer::Bytes(b"abc"));
        flow.taken(2);
        assert_eq!(flow.offer(start + DELAY), Offer::Bytes(b"c"));
        flow.taken(1);
        assert_eq!(flow.offer(start + DELAY), Offer::Nothing);
        assert_eq!(flow.offer(start + DELAY * 2), Offer::End);
        assert!(!flow.is_over());
        flow.taken(0);
        assert!(flow.is_over() && !flow.wants(&lane));
    }

    #[test]
    fn the_rate_is_shared_and_idle_time_is_lost() {
        let start = Instant::now();
        let mut lane = Lane::new(DELAY, Some(1000), start);
        let (mut one, mut other) = (Flow::default(), Flow::default());
        one.push(vec![0; 100], &mut lane, start);
        other.push(vec![0; 100], &mut lane, start);
        let after = |millis| start + Duration::from_millis(millis) + DELAY;
        assert_eq!((one.due(), other.due()), (Some(after(100)), Some(after(200))));
        // Nothing was sent for a while: that does not make the wire faster later.
        let mut late = Flow::default();
        late.push(vec![0; 100], &mut lane, start + Duration::from_secs(1));
        assert_eq!(late.due(), Some(after(1100)));
    }

    #[test]
    fn what_is_under_way_is_bounded_by_rate_and_delay() {
        let start = Instant::now();
        let mut lane = Lane::new(DELAY, Some(10_000_000), start);
        assert_eq!((lane.window_bytes(), lane.chunk_bytes()), (1_000_000, 10_000));
        let mut flow = Flow::default();
        let mut pushed = 0;
        while flow.wants(&lane) {
            flow.push(vec![0; 10_000], &mut lane, start);
            pushed += 1;
        }
        assert_eq!(pushed, 100);
        flow.taken(10_000);
        assert!(flow.wants(&lane));
        let slow = Lane::new(DELAY, Some(0), start);
        assert_eq!((slow.window_bytes(), slow.chunk_bytes()), (128 * 1024, 1500));
    }
}
