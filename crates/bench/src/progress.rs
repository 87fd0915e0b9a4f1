//! The progress of a run, on standard error: a bar with the time left on a terminal, otherwise a
//! line for each workload of each subject in each round.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::results::Measured;

/// How often the bar is drawn, a second.
const DRAWN_PER_S: u8 = 8;

/// Where to.
enum Shown {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
    Nowhere,
}

/// The display of one run.
pub struct Progress {
    shown: Shown,
    estimate: Estimate,
    /// When the last step ended: the next one's time is counted from there, so that the start of
    /// its session is in it.
    since: Instant,
    /// Of the current trial.
    trial: Tally,
}

/// Of one workload of one subject in one round.
#[derive(Default)]
struct Tally {
    steps: u32,
    failed: u32,
    seconds: f64,
}

impl Progress {
    /// On standard error: a bar if it is a terminal, else lines.
    pub fn on_stderr() -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress::new(Shown::Lines(Box::new(std::io::stderr())));
        }
        let target = ProgressDrawTarget::stderr_with_hz(DRAWN_PER_S);
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = "{bar:24} {pos}/{len}  {prefix}  {wide_msg}";
        bar.set_style(
            ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        Progress::new(Shown::Bar(bar))
    }

    /// Nothing is shown.
    pub fn hidden() -> Progress {
        Progress::new(Shown::Nowhere)
    }

    /// Lines to somewhere else.
    pub fn lines(to: impl Write + Send + 'static) -> Progress {
        Progress::new(Shown::Lines(Box::new(to)))
    }

    fn new(shown: Shown) -> Progress {
        let trial = Tally::default();
        Progress { shown, estimate: Estimate::default(), since: Instant::now(), trial }
    }

    /// Says one thing that is not about a step.
    pub fn say(&mut self, text: &str) {
        match &mut self.shown {
            Shown::Bar(bar) => bar.println(text),
            // A closed standard error does not end the run.
            Shown::Lines(to) => drop(writeln!(to, "{text}").and_then(|()| to.flush())),
            Shown::Nowhere => {}
        }
    }

    /// Reports an action before the first step.
    pub(crate) fn prepare(&mut self, what: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.set_message(what.to_owned()),
            _ => self.say(what),
        }
        self.since = Instant::now();
    }

    /// Announces that a step of a subject will be done `times` times.
    pub(crate) fn expect(&mut self, subject: usize, step: (&'static str, usize), times: u32) {
        self.estimate.expect((subject, step), times);
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, subject: &str, workload: &str, title: &str) {
        if let Shown::Bar(bar) = &self.shown {
            bar.set_message(format!("{subject}: {workload}: {title}"));
        }
    }

    /// A step has ended; `None` when it was nothing for the subject.
    pub(crate) fn done(
        &mut self,
        subject: usize,
        step: (&'static str, usize),
        outcome: Option<&Result<Measured, Failure>>,
    ) {
        let took = self.since.elapsed();
        self.since = Instant::now();
        self.estimate.done((subject, step), outcome.map(|_| took));
        self.trial.seconds += took.as_secs_f64();
        if let Some(outcome) = outcome {
            self.trial.steps += 1;
            self.trial.failed += u32::from(outcome.is_err());
        }
        if let Shown::Bar(bar) = &self.shown {
            let (done, all) = self.estimate.counts();
            bar.set_length(all);
            bar.set_position(done);
            bar.set_prefix(self.estimate.left().map(left).unwrap_or_default());
        }
    }

    /// A step has failed, which is worth a line on a terminal, too.
    pub(crate) fn failed(&mut self, subject: &str, measure: &str, failure: &Failure) {
        if !matches!(failure, Failure::NotTried { .. }) {
            self.say(&format!("{subject}: {measure}: {failure}"));
        }
    }

    /// All steps of a workload of a subject in a round are done.
    pub(crate) fn trial_done(&mut self, subject: &str, workload: &str, round: u32, rounds: u32) {
        let trial = std::mem::take(&mut self.trial);
        self.since = Instant::now();
        if trial.steps == 0 || matches!(self.shown, Shown::Bar(_)) {
            return;
        }
        let (done, all) = self.estimate.counts();
        let failed = match trial.failed {
            0 => String::new(),
            failed => format!(", {failed} of {} failed", trial.steps),
        };
        let left = match self.estimate.left() {
            Some(time) if done < all => format!("; {}", left(time)),
            _ => String::new(),
        };
        let round = round + 1;
        self.say(&format!(
            "[{done}/{all}] round {round} of {rounds}: {workload}: {subject}: {:.1} s{failed}{left}",
            trial.seconds
        ));
    }

    /// Clears the bar.
    pub(crate) fn end(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// `about 5 min left`.
fn left(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    match seconds {
        0..=90 => format!("about {seconds} s left"),
        91..=5400 => format!("about {} min left", seconds.div_ceil(60)),
        _ => format!("about {:.1} h left", seconds as f64 / 3600.0),
    }
}

/// A step of a subject, done once a round.
type Key = (usize, (&'static str, usize));

/// The number of steps, and the time that the rest will take.
#[derive(Debug, Default)]
struct Estimate {
    left: HashMap<Key, u32>,
    done: u32,
    seconds: f64,
}

impl Estimate {
    fn expect(&mut self, key: Key, times: u32) {
        *self.left.entry(key).or_default() += times;
    }

    /// A step was done, or does not suit the subject (`None`) and never will.
    fn done(&mut self, key: Key, took: Option<Duration>) {
        let left = self.left.entry(key).or_default();
        match took {
            Some(took) => {
                *left = left.saturating_sub(1);
                self.done += 1;
                self.seconds += took.as_secs_f64();
            }
            None => *left = 0,
        }
    }

    /// Steps done, and all steps.
    fn counts(&self) -> (u64, u64) {
        let left: u64 = self.left.values().map(|&left| u64::from(left)).sum();
        (self.done.into(), u64::from(self.done) + left)
    }

    /// The time left, if each step takes as long as those before on the average.
    fn left(&self) -> Option<Duration> {
        let (done, all) = self.counts();
        let mean = self.seconds / done as f64;
        (done > 0).then(|| Duration::from_secs_f64(mean * (all - done) as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_left() {
        for (seconds, expected) in [
            (0, "about 0 s left"),
            (90, "about 90 s left"),
            (91, "about 2 min left"),
            (5400, "about 90 min left"),
            (9000, "about 2.5 h left"),
        ] {
            assert_eq!(left(Duration::from_secs(seconds)), expected);
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_rest_takes_as_long_as_before() {
        let mut estimate = Estimate::default();
        for subject in 0..2 {
            for step in 0..2 {
                estimate.expect((subject, ("w", step)), 3);
            }
        }
        assert_eq!((estimate.counts(), estimate.left()), ((0, 12), None));
        estimate.done((0, ("w", 0)), Some(SECOND * 10));
        assert_eq!(estimate.left(), Some(SECOND * 110));
        estimate.done((0, ("w", 1)), Some(SECOND * 2));
        assert_eq!(estimate.left(), Some(SECOND * 60));
        assert_eq!(estimate.counts(), (2, 12));
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
