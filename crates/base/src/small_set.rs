//! A set of small numbers in one integer.

/// A set of numbers below [`SmallSet::LIMIT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmallSet(u64);

impl SmallSet {
    /// The numbers in a set are below this one.
    pub const LIMIT: usize = u64::BITS as usize;

    /// The set with one bit for each number, the lowest for 0.
    pub fn from_bits(bits: u64) -> SmallSet {
        SmallSet(bits)
    }

    /// One bit for each number, the lowest for 0.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The set of this number alone.
    pub fn of(number: usize) -> SmallSet {
        SmallSet(1 << number)
    }

    /// This set and the number.
    pub fn with(self, number: usize) -> SmallSet {
        self.union(SmallSet::of(number))
    }

    /// This set without the number.
    pub fn without(self, number: usize) -> SmallSet {
        self.difference(SmallSet::of(number))
    }

    /// Whether the number is in this set.
    pub fn contains(self, number: usize) -> bool {
        self.0 & (1 << number) != 0
    }

    /// Whether no number is in this set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many numbers are in this set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The numbers in one of both sets.
    pub fn union(self, other: SmallSet) -> SmallSet {
        SmallSet(self.0 | other.0)
    }

    /// The numbers in both sets.
    pub fn intersection(self, other: SmallSet) -> SmallSet {
        SmallSet(self.0 & other.0)
    }

    /// The numbers in this set that are not in the other one.
    pub fn difference(self, other: SmallSet) -> SmallSet {
        SmallSet(self.0 & !other.0)
    }

    /// The numbers, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..SmallSet::LIMIT).filter(move |number| self.contains(*number))
    }
}

impl FromIterator<usize> for SmallSet {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> SmallSet {
        numbers.into_iter().fold(SmallSet::default(), SmallSet::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_number_fit() {
        let (first, last) = (SmallSet::of(0), SmallSet::of(SmallSet::LIMIT - 1));
        let both = first.union(last);
        assert_eq!(both.iter().collect::<SmallSet>(), both);
        assert_eq!((both.len(), both.contains(1)), (2, false));
        assert_eq!(
            (both.without(0), both.difference(last), both.intersection(last)),
            (last, first, last)
        );
    }
}
