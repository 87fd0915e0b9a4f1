//! In which order files took their turns, and how far ahead it is worth asking.
//!
//! A file takes a *turn* when it is opened on what the server has told since its turn before, so
//! once in each time that a validation counts, however often it is opened. What followed its last
//! turn is likely to follow its next one.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::Ino;
use crate::moment::Moment;

/// Turns that are remembered: those of a tree of twice the files that the largest units of a
/// compiler include, 128 KiB.
const KEPT: usize = 1 << 14;

/// Files ahead of who opens them: at first, at least and at most. 64 at 0.5 ms are there before
/// they are wanted; 256 are enough for 2500 files a second at 100 ms.
const WINDOW: (usize, usize, usize) = (64, 8, 256);

/// Turns that are looked at for one file of the window. Others have been taken again since, by
/// files that several readers open in orders of their own.
const LOOKS: usize = 4;

/// Answers that were too old, less those that were of use, before the window is made smaller.
const TOO_OLD: u32 = 16;

/// See the [module](self).
pub(crate) struct Turns {
    kept: VecDeque<Ino>,
    /// The number of the first that is kept. None has the number 0.
    first: u64,
    /// Files that are being asked about; each ends when that is over.
    on_their_way: HashMap<Ino, watch::Receiver<()>>,
    window: usize,
    /// Turns taken since it was looked ahead last.
    since_look: usize,
    too_old: u32,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            kept: VecDeque::new(),
            first: 1,
            on_their_way: HashMap::new(),
            window: WINDOW.0,
            since_look: 0,
            too_old: 0,
        }
    }
}

impl Turns {
    /// `ino` takes a turn. Tells its number.
    pub(crate) fn take(&mut self, ino: Ino) -> u64 {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(ino);
        self.since_look += 1;
        self.first + self.kept.len() as u64 - 1
    }

    /// Whether so many turns have been taken that a few files can be asked about together.
    pub(crate) fn is_due(&self) -> bool {
        self.since_look * 4 >= self.window
    }

    /// The turns between the ones with these numbers, as they were taken, as many as are worth a
    /// look; and how many files of them may be ahead.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> (Vec<(u64, Ino)>, usize) {
        self.since_look = 0;
        let Some(skipped) = (from + 1).checked_sub(self.first) else {
            return (Vec::new(), 0);
        };
        let turns = (from + 1..to).zip(self.kept.iter().skip(skipped as usize).copied());
        (turns.take(self.window * LOOKS).collect(), self.window)
    }

    /// `ino` is asked about, until what is returned is dropped after [`Turns::end`]. `None` when
    /// that is so already, or too many are.
    pub(crate) fn begin(&mut self, ino: Ino) -> Option<watch::Sender<()>> {
        if self.on_their_way.len() >= self.window || self.on_their_way.contains_key(&ino) {
            return None;
        }
        let (ended, end) = watch::channel(());
        self.on_their_way.insert(ino, end);
        Some(ended)
    }

    /// That is over.
    pub(crate) fn end(&mut self, ino: Ino) {
        self.on_their_way.remove(&ino);
    }

    /// The end of the question about `ino`, if one is on its way.
    pub(crate) fn on_its_way(&self, ino: Ino) -> Option<watch::Receiver<()>> {
        self.on_their_way.get(&ino).cloned()
    }

    /// Somebody has to wait for an answer.
    pub(crate) fn came_late(&mut self) {
        self.window = (self.window * 2).min(WINDOW.2);
    }

    /// An answer was there, and of use.
    pub(crate) fn came_in_time(&mut self) {
        self.too_old = self.too_old.saturating_sub(1);
        if self.window < WINDOW.0 {
            self.window += 1;
        }
    }

    /// An answer was too old when its file was opened. Some always are, of files that were not
    /// opened this time; when most are, fewer files ahead are enough.
    pub(crate) fn came_early(&mut self) {
        self.too_old += 1;
        if self.too_old >= TOO_OLD {
            self.too_old = 0;
            self.window = (self.window / 2).max(WINDOW.1);
        }
    }
}

/// When a file took its last [turn](crate::validate_ahead).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    number: u64,
    since: Moment,
    /// Since the turn before it, in milliseconds; 0 for the first.
    pause_ms: u32,
    /// Questions that have been sent ahead since.
    questions: u8,
}

impl Turn {
    /// The turn with this number, on a validation asked for at `since` or later.
    pub(crate) fn new(number: u64, since: Instant, before: Option<Turn>) -> Turn {
        let pause = before.map(|before| since.saturating_duration_since(before.since()));
        let pause_ms =
            pause.map_or(0, |pause| u32::try_from(pause.as_millis()).unwrap_or(u32::MAX));
        Turn { number, since: since.into(), pause_ms, questions: 0 }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn since(&self) -> Instant {
        self.since.instant().expect("not never")
    }

    /// How long it had been since the turn before it.
    pub(crate) fn pause(&self) -> Duration {
        Duration::from_millis(self.pause_ms.into())
    }

    /// The same, of a file that has been asked about once more.
    pub(crate) fn asked_ahead(self) -> Turn {
        Turn { questions: self.questions.saturating_add(1), ..self }
    }

    /// How often it has been asked about since.
    pub(crate) fn questions(&self) -> u8 {
        self.questions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_a_turn_is_found_while_it_is_kept() {
        let mut turns = Turns::default();
        assert_eq!((1..=5).map(|at| turns.take(Ino(10 + at))).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(turns.between(2, 5).0, [(3, Ino(13)), (4, Ino(14))]);
        assert_eq!((turns.between(4, 5).0, turns.between(5, 5).0), (vec![], vec![]));
        for at in 0..KEPT as u64 {
            assert_eq!(turns.take(Ino(100 + at)), 6 + at);
        }
        let last = 5 + KEPT as u64;
        assert_eq!(turns.between(4, last), (Vec::new(), 0), "forgotten");
        let (next, window) = turns.between(5, last);
        assert_eq!(next[0], (6, Ino(100)));
        assert_eq!((next.len(), window), (WINDOW.0 * LOOKS, WINDOW.0));
        assert_eq!(turns.kept.len(), KEPT);
    }

    #[test]
    fn no_more_are_asked_about_than_the_window_has_room_for() {
        let mut turns = Turns::default();
        let asked: Vec<_> = (0..999).map_while(|at| turns.begin(Ino(at))).collect();
        assert_eq!(asked.len(), WINDOW.0);
        turns.end(Ino(7));
        assert!(turns.begin(Ino(6)).is_none(), "it is asked about already");
        assert!(turns.begin(Ino(7)).is_some() && turns.begin(Ino(2000)).is_none());
        for _ in 0..9 {
            turns.came_late();
        }
        assert_eq!(turns.window, WINDOW.2);
        for _ in 0..9 * TOO_OLD {
            turns.came_early();
        }
        assert_eq!(turns.window, WINDOW.1);
        for _ in 0..999 {
            turns.came_in_time();
            turns.came_early();
        }
        assert_eq!(turns.window, WINDOW.0, "half of them are worth it");
    }
}
