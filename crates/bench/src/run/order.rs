//! Who comes when: in turn, so that whatever changes in the machine meanwhile (heat, another
//! program, a disk that fills) meets everybody alike.

/// The order of `count` subjects in one round: A B C, then B C A, then C A B …
///
/// `count` is 0 for nobody.
pub(super) fn rotated(turns: &[usize], round: u32) -> impl Iterator<Item = usize> + '_ {
    let first = if turns.is_empty() { 0 } else { round as usize % turns.len() };
    turns[first..].iter().chain(&turns[..first]).copied()
}

/// All subjects by number, as they take turns: the control stands as far from what it controls
/// as it can, since neighbours in time are more alike than others.
pub(super) fn turns(count: usize, control: Option<(usize, usize)>) -> Vec<usize> {
    let mut turns: Vec<usize> = (0..count).collect();
    if let Some((control, of)) = control {
        turns.retain(|&subject| subject != control);
        let at = turns.iter().position(|&subject| subject == of).unwrap_or(0);
        let opposite = (at + turns.len() / 2) % turns.len().max(1);
        turns.insert((opposite + 1).min(turns.len()), control);
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_begins_with_the_next() {
        let orders: Vec<Vec<usize>> =
            (0..4).map(|round| rotated(&[0, 1, 2], round).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
        assert_eq!(rotated(&[], 3).count(), 0);
    }

    #[test]
    fn the_control_is_at_a_distance() {
        assert_eq!(turns(3, None), [0, 1, 2]);
        assert_eq!(turns(2, Some((1, 0))), [0, 1]);
        for count in 4..9 {
            for of in 0..count - 1 {
                let turns = turns(count, Some((count - 1, of)));
                let mut sorted = turns.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..count).collect::<Vec<_>>());
                let place = |of: usize| turns.iter().position(|&subject| subject == of).unwrap();
                let apart = place(count - 1).abs_diff(place(of));
                let apart = apart.min(count - apart);
                assert!(apart >= count / 2, "{turns:?}: {of} and {}", count - 1);
            }
        }
    }
}
