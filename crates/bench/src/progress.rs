//! The progress of a run, on standard error: a bar with the time left on a terminal, otherwise a
//! line for each workload of each subject in each round.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

use crate::failure::{Failure, Result};
use crate::results::Measured;

/// How often the bar is drawn, a second.
const DRAWN_PER_S: u8 = 8;

/// The display of one run.
pub struct Progress {
    /// Hidden, unless standard error is a terminal.
    bar: ProgressBar,
    /// In place of the bar.
    lines: Option<Box<dyn Write + Send>>,
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
            return Progress::lines(std::io::stderr());
        }
        let target = ProgressDrawTarget::stderr_with_hz(DRAWN_PER_S);
        let bar =
            ProgressBar::with_draw_target(Some(0), target).with_finish(ProgressFinish::AndClear);
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {prefix}  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, ..Progress::hidden() }
    }

    /// Nothing is shown.
    pub fn hidden() -> Progress {
        let (bar, since) = (ProgressBar::hidden(), Instant::now());
        let (estimate, trial) = (Estimate::default(), Tally::default());
        Progress { bar, lines: None, estimate, since, trial }
    }

    /// Lines to somewhere else.
    pub fn lines(to: impl Write + Send + 'static) -> Progress {
        Progress { lines: Some(Box::new(to)), ..Progress::hidden() }
    }

    /// Says one thing that is not about a step.
    pub fn say(&mut self, text: &str) {
        match &mut self.lines {
            // A closed standard error does not end the run.
            Some(to) => drop(writeln!(to, "{text}").and_then(|()| to.flush())),
            None => self.bar.println(text),
        }
    }

    /// Reports an action before the first step.
    pub(crate) fn prepare(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        if self.lines.is_some() {
            self.say(what);
        }
        self.since = Instant::now();
    }

    /// Announces steps.
    pub(crate) fn expect(&mut self, steps: u32) {
        self.estimate.expected += u64::from(steps);
    }

    /// Takes steps back that are nothing for a subject.
    pub(crate) fn drop_expected(&mut self, steps: u32) {
        self.estimate.expected -= u64::from(steps).min(self.estimate.expected);
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, subject: &str, workload: &str, title: &str) {
        self.bar.set_message(format!("{subject}: {workload}: {title}"));
    }

    /// A step has ended.
    pub(crate) fn done(&mut self, outcome: &Result<Measured>) {
        let took = self.since.elapsed();
        self.since = Instant::now();
        self.estimate.add(took);
        self.trial.seconds += took.as_secs_f64();
        self.trial.steps += 1;
        self.trial.failed += u32::from(outcome.is_err());
        self.bar.set_length(self.estimate.expected);
        self.bar.set_position(self.estimate.done);
        self.bar.set_prefix(self.estimate.left().map(left).unwrap_or_default());
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
        if trial.steps == 0 || self.lines.is_none() {
            return;
        }
        let Estimate { done, expected, .. } = self.estimate;
        let failed = match trial.failed {
            0 => String::new(),
            failed => format!(", {failed} of {} failed", trial.steps),
        };
        let left = match self.estimate.left() {
            Some(time) if done < expected => format!("; {}", left(time)),
            _ => String::new(),
        };
        let round = round + 1;
        self.say(&format!(
            "[{done}/{expected}] round {round} of {rounds}: {workload}: {subject}: \
             {:.1} s{failed}{left}",
            trial.seconds
        ));
    }

    /// Clears the bar.
    pub(crate) fn end(&mut self) {
        self.bar.finish_and_clear();
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

/// The number of steps, and the time that the rest will take.
#[derive(Debug, Default)]
struct Estimate {
    expected: u64,
    done: u64,
    seconds: f64,
}

impl Estimate {
    fn add(&mut self, took: Duration) {
        self.done += 1;
        self.seconds += took.as_secs_f64();
    }

    /// The time left, if each step takes as long as those before on the average.
    fn left(&self) -> Option<Duration> {
        let mean = self.seconds / self.done as f64;
        let left = self.expected.saturating_sub(self.done);
        (self.done > 0).then(|| Duration::from_secs_f64(mean * left as f64))
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
        let mut progress = Progress::hidden();
        progress.expect(12);
        assert_eq!(progress.estimate.left(), None);
        progress.estimate.add(SECOND * 10);
        assert_eq!(progress.estimate.left(), Some(SECOND * 110));
        progress.estimate.add(SECOND * 2);
        assert_eq!(progress.estimate.left(), Some(SECOND * 60));
        assert_eq!(progress.estimate.done, 2);
    }

    #[test]
    fn what_is_nothing_for_a_subject_is_not_waited_for() {
        let mut progress = Progress::hidden();
        progress.expect(2);
        progress.expect(2);
        progress.drop_expected(2);
        progress.estimate.add(SECOND);
        let Estimate { expected, done, .. } = progress.estimate;
        assert_eq!((done, expected, progress.estimate.left()), (1, 2, Some(SECOND)));
    }
}
