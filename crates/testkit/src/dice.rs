//! Reproducible random choices.

use std::time::Duration;

/// Pseudo-random numbers, the same for the same seed. (SplitMix64)
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Dice for a part of a run, independent of those for other parts.
    pub fn of_part(seed: u64, part: &str, number: u64) -> Dice {
        let of_name =
            part.bytes().fold(mixed(seed ^ number), |hash, byte| mixed(hash ^ u64::from(byte)));
        Dice::new(of_name)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        let number = mixed(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// A number from 0 to `bound` - 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.any() % bound
    }

    /// A position in a list of this length.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A time shorter than `most`.
    pub fn time(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.below(most.as_micros() as u64))
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of several values.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }
}

/// The difference of the states of SplitMix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number of SplitMix64 behind this state.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(STEP);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_reproduces_its_choices_and_parts_differ() {
        let rolls = |mut dice: Dice| (0..8).map(|_| dice.below(1_000_000)).collect::<Vec<_>>();
        assert_eq!(rolls(Dice::new(7)), rolls(Dice::new(7)));
        assert_ne!(rolls(Dice::new(7)), rolls(Dice::new(8)));
        assert_ne!(rolls(Dice::of_part(7, "cuts", 0)), rolls(Dice::of_part(7, "cuts", 1)));
        assert_ne!(rolls(Dice::of_part(7, "cuts", 0)), rolls(Dice::of_part(7, "kills", 0)));
        let mut dice = Dice::new(0);
        assert!((0..1000).filter(|_| dice.chance(25)).count().abs_diff(250) < 60);
    }
}
