//! Pseudo-random numbers that are the same on every machine.
//!
//! SplitMix64: one addition and a finalizer a number; each seed gives another sequence.

/// A sequence.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `bound`, which is not 0; the bias of a bound far below 2^64 does not matter here.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// One of them; there is at least one.
    pub(super) fn one_of<'a, T>(&mut self, these: &'a [T]) -> &'a T {
        &these[self.below(these.len())]
    }

    /// In another order.
    pub(super) fn shuffle<T>(&mut self, these: &mut [T]) {
        for last in (1..these.len()).rev() {
            these.swap(last, self.below(last + 1));
        }
    }
}
