//! The order in which the records of a file are visited.

use super::job::Order;
use crate::corpus::content::mix;

/// Rounds of the network that permutes; four make a good permutation of good round functions
/// (Luby and Rackoff, 1988).
const ROUNDS: u64 = 4;

/// Record numbers, pass after pass without end; each pass has each record once.
///
/// The random order has no stride that a readahead could recognise.
#[derive(Clone, Debug)]
pub struct Walk {
    order: Order,
    records: u64,
    /// Bits of one half of the permuted numbers.
    half_bits: u32,
    next: u64,
    pass: u64,
}

impl Walk {
    /// A walk over this number of records, at least one.
    pub fn new(order: Order, records: u64) -> Walk {
        let records = records.max(1);
        let bits = u64::BITS - (records - 1).leading_zeros();
        Walk { order, records, half_bits: bits.div_ceil(2).max(1), next: 0, pass: 0 }
    }

    /// Records in a pass.
    pub fn records(&self) -> u64 {
        self.records
    }

    fn permuted(&self, index: u64, seed: u64) -> u64 {
        // The network permutes the next greater power of four; what falls outside of the file is
        // sent through it again until it falls inside, three times on the average at most.
        let mut value = index;
        loop {
            value = self.network(value, seed);
            if value < self.records {
                return value;
            }
        }
    }

    fn network(&self, value: u64, seed: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let key = mix(seed ^ (round << 56) ^ right);
            (left, right) = (right, left ^ (key & mask));
        }
        left << self.half_bits | right
    }
}

impl Iterator for Walk {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.next == self.records {
            (self.next, self.pass) = (0, self.pass + 1);
        }
        let index = self.next;
        self.next += 1;
        Some(match self.order {
            Order::Sequential => index,
            Order::Random { seed } => self.permuted(index, mix(seed).wrapping_add(self.pass)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_visits_each_record_once_and_the_next_in_another_order() {
        for records in [1, 2, 3, 4, 5, 63, 64, 65, 1000, 16384] {
            let walk = Walk::new(Order::Random { seed: 5 }, records);
            let visited: Vec<u64> = walk.take(2 * records as usize).collect();
            let (first, second) = visited.split_at(records as usize);
            for pass in [first, second] {
                let mut sorted = pass.to_vec();
                sorted.sort_unstable();
                assert!(sorted.iter().copied().eq(0..records), "{records} records");
            }
            assert!(records < 5 || first != second, "{records} records");
        }
    }

    #[test]
    fn the_random_order_has_neither_runs_nor_a_stride() {
        let visited: Vec<u64> = Walk::new(Order::Random { seed: 9 }, 10_000).take(10_000).collect();
        let steps: Vec<i64> = visited.windows(2).map(|two| two[1] as i64 - two[0] as i64).collect();
        let near = steps.iter().filter(|step| step.abs() <= 2).count();
        let kept = steps.windows(2).filter(|two| two[0] == two[1]).count();
        // Four of 10,000 steps are expected to be that short, and one to be as the one before.
        assert!(near < 30 && kept < 20, "{near} short steps, {kept} repeated ones");
    }

    #[test]
    fn orders_belong_to_seeds() {
        let order = |seed| Walk::new(Order::Random { seed }, 1000).take(1000).collect::<Vec<_>>();
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn in_sequence_it_begins_anew_at_the_end() {
        let walk = Walk::new(Order::Sequential, 3);
        assert_eq!(walk.take(7).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
    }
}
