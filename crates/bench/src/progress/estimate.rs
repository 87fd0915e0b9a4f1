//! How long the rest will take, from how long the same took before.

use std::collections::HashMap;
use std::time::Duration;

/// What is done once a round: a step of a subject.
pub(super) type Key = (usize, (&'static str, usize));

/// What is known of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    left: u32,
    done: u32,
    seconds: f64,
}

/// Knows all that is to be done.
#[derive(Debug, Default)]
pub(super) struct Estimate {
    keys: HashMap<Key, Known>,
}

impl Estimate {
    /// Something is to be done so many times.
    pub(super) fn expect(&mut self, key: Key, times: u32) {
        self.keys.entry(key).or_default().left += times;
    }

    /// It was done once, or was nothing to do (`None`), and then never will be.
    pub(super) fn done(&mut self, key: Key, took: Option<Duration>) {
        let known = self.keys.entry(key).or_default();
        match took {
            Some(took) => {
                known.left = known.left.saturating_sub(1);
                known.done += 1;
                known.seconds += took.as_secs_f64();
            }
            None => known.left = 0,
        }
    }

    /// How many are done, and how many there are in all.
    pub(super) fn counts(&self) -> (u64, u64) {
        let done: u64 = self.keys.values().map(|known| u64::from(known.done)).sum();
        let left: u64 = self.keys.values().map(|known| u64::from(known.left)).sum();
        (done, done + left)
    }

    /// The time left: a key takes what it took before; else what its step took with others; else
    /// what the average one took. `None` as long as nothing is known.
    pub(super) fn left(&self) -> Option<Duration> {
        let mut steps: HashMap<(&str, usize), Mean> = HashMap::new();
        let mut all = Mean::default();
        for ((_, step), known) in &self.keys {
            steps.entry(*step).or_default().add(known);
            all.add(known);
        }
        let fallback = all.value()?;
        let seconds: f64 = self
            .keys
            .iter()
            .map(|((_, step), known)| {
                let mut own = Mean::default();
                own.add(known);
                let other = steps.get(step).and_then(Mean::value);
                f64::from(known.left) * own.value().or(other).unwrap_or(fallback)
            })
            .sum();
        Some(Duration::from_secs_f64(seconds))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    done: u32,
    seconds: f64,
}

impl Mean {
    fn add(&mut self, known: &Known) {
        self.done += known.done;
        self.seconds += known.seconds;
    }

    fn value(&self) -> Option<f64> {
        (self.done > 0).then(|| self.seconds / f64::from(self.done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_same_step_takes_as_long_as_before() {
        let mut estimate = Estimate::default();
        for subject in 0..2 {
            for step in 0..2 {
                estimate.expect((subject, ("w", step)), 3);
            }
        }
        assert_eq!((estimate.counts(), estimate.left()), ((0, 12), None));
        estimate.done((0, ("w", 0)), Some(SECOND * 10));
        // Two more of it, three of the same step by the other, six of a step that nobody knows.
        assert_eq!(estimate.left(), Some(SECOND * 110));
        estimate.done((0, ("w", 1)), Some(SECOND));
        estimate.done((1, ("w", 0)), Some(SECOND * 20));
        assert_eq!(estimate.left(), Some(SECOND * (2 * 10 + 2 + 2 * 20 + 3)));
        assert_eq!(estimate.counts(), (3, 12));
    }

    #[test]
    fn what_is_nothing_for_a_subject_is_not_waited_for() {
        let mut estimate = Estimate::default();
        estimate.expect((0, ("w", 0)), 2);
        estimate.expect((1, ("w", 0)), 2);
        estimate.done((1, ("w", 0)), None);
        estimate.done((0, ("w", 0)), Some(SECOND));
        assert_eq!((estimate.counts(), estimate.left()), ((1, 2), Some(SECOND)));
    }
}
