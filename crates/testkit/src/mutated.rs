//! Short fuzzing without a fuzzer: inputs made from valid ones by a few changes.
//!
//! It has no coverage feedback, so it finds less than `make fuzz`. It is for the ordinary tests,
//! which need no nightly compiler: they run the bodies of all fuzz targets.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::dice::Dice;

/// Maximum number of changes of one input.
const MOST_CHANGES: u64 = 6;

/// Longest input, in bytes.
const MOST_BYTES: usize = 64 << 10;

/// Numbers that often cause errors, as text and as bytes.
const NUMBERS: [u64; 9] =
    [0, 1, 127, 255, 65_535, u32::MAX as u64, 1 << 33, i64::MAX as u64, u64::MAX];

/// Runs `body` with each seed, then with random changes of them until `time` is over. Without a
/// seed, the empty input is one.
///
/// # Panics
///
/// When `body` does; the input is printed before.
pub fn each(seeds: &[&[u8]], time: Duration, body: impl Fn(&[u8])) {
    let seeds = if seeds.is_empty() { &[&[][..]] } else { seeds };
    let mut dice = Dice::new(1);
    let begun = Instant::now();
    let mut inputs = 0;
    let mut try_one = |input: &[u8]| {
        inputs += 1;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(input))) {
            eprintln!("input {inputs}: b\"{}\"", input.escape_ascii());
            resume_unwind(panic);
        }
    };
    seeds.iter().for_each(|seed| try_one(seed));
    while begun.elapsed() < time {
        let mut input = dice.pick(seeds).to_vec();
        for _ in 0..=dice.below(MOST_CHANGES) {
            change(&mut input, seeds, &mut dice);
        }
        input.truncate(MOST_BYTES);
        try_one(&input);
    }
    eprintln!("{inputs} inputs");
}

fn change(input: &mut Vec<u8>, seeds: &[&[u8]], dice: &mut Dice) {
    let len = input.len() as u64;
    let mut place = |beyond: u64| dice.below(len + beyond) as usize;
    if input.is_empty() {
        input.push(dice.any() as u8);
        return;
    }
    let (from, to) = (place(0), place(1));
    let (from, to) = (from.min(to), from.max(to));
    match dice.below(9) {
        0 => input[from] ^= 1 << dice.below(8),
        1 => input[from] = dice.any() as u8,
        2 => input.insert(from, dice.any() as u8),
        3 => drop(input.drain(from..to)),
        4 => input.truncate(to),
        5 => {
            let piece = input[from..to].to_vec();
            input.splice(to..to, piece);
        }
        6 => {
            let text = dice.pick(&NUMBERS).to_string();
            input.splice(from..to.min(from + text.len()), text.into_bytes());
        }
        7 => {
            let bytes = dice.pick(&NUMBERS).to_be_bytes();
            let width = 1 << dice.below(4);
            let end = input.len().min(from + width);
            input.splice(from..end, bytes[8 - width..].iter().copied());
        }
        _ => {
            let other = dice.pick(seeds);
            let at = dice.index(other.len() + 1);
            input.truncate(from);
            input.extend_from_slice(&other[at..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_seed_is_needed() {
        let count = Cell::new(0);
        let enough = catch_unwind(AssertUnwindSafe(|| {
            each(&[], Duration::from_secs(60), |_| {
                count.set(count.get() + 1);
                assert!(count.get() < 1000, "enough");
            });
        }));
        assert_eq!(enough.unwrap_err().downcast_ref(), Some(&"enough"));
    }

    #[test]
    fn inputs_are_many_and_differ_and_a_panic_is_passed_on() {
        let seen = RefCell::new(BTreeSet::new());
        each(&[b"one", b"another seed", b""], Duration::from_millis(50), |input| {
            seen.borrow_mut().insert(input.to_vec());
        });
        assert!(seen.borrow().contains(&b"one"[..]) && seen.borrow().contains(&b""[..]));
        assert!(seen.borrow().len() > 100, "{}", seen.borrow().len());
        let count = Cell::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            each(&[b"x"], Duration::from_secs(60), |input| {
                count.set(count.get() + 1);
                assert!(input == b"x", "a bug");
            });
        }));
        assert!(outcome.is_err());
        assert!(count.get() >= 2);
    }
}
