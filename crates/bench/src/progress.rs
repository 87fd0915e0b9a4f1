//! The progress of a run, on standard error: a bar with the time left on a terminal, otherwise a
//! line for each workload of each subject in each round.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{
    HumanDuration, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressState, ProgressStyle,
};

use crate::failure::{Failure, Result};
use crate::results::Measured;

/// How often the bar is drawn, a second.
const DRAWN_PER_S: u8 = 8;

/// The display of one run.
pub struct Progress {
    /// Hidden, unless standard error is a terminal. It counts the steps in any case.
    bar: ProgressBar,
    /// In place of the bar.
    lines: Option<Box<dyn Write + Send>>,
    trial: Tally,
}

/// Of one workload of one subject in one round.
struct Tally {
    steps: u32,
    failed: u32,
    since: Instant,
}

impl Tally {
    fn new() -> Tally {
        Tally { steps: 0, failed: 0, since: Instant::now() }
    }
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
        let template = "{bar:24} {pos}/{len}  about {left} left  {wide_msg}";
        let style = ProgressStyle::with_template(template);
        let left = |bar: &ProgressState, to: &mut dyn fmt::Write| {
            let left = time_left(bar.elapsed(), bar.pos(), bar.len().unwrap_or(0));
            // A string.
            let _ = write!(to, "{}", HumanDuration(left));
        };
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.with_key("left", left));
        Progress { bar, ..Progress::hidden() }
    }

    /// Nothing is shown.
    pub fn hidden() -> Progress {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        Progress { bar, lines: None, trial: Tally::new() }
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
        self.trial = Tally::new();
        self.bar.reset_elapsed();
    }

    /// Announces steps.
    pub(crate) fn expect(&mut self, steps: u32) {
        self.bar.inc_length(steps.into());
    }

    /// Takes steps back that are nothing for a subject.
    pub(crate) fn drop_expected(&mut self, steps: u32) {
        self.bar.dec_length(steps.into());
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, subject: &str, workload: &str, title: &str) {
        self.bar.set_message(format!("{subject}: {workload}: {title}"));
    }

    /// A step has ended.
    pub(crate) fn done(&mut self, outcome: &Result<Measured>) {
        self.trial.steps += 1;
        self.trial.failed += u32::from(outcome.is_err());
        self.bar.inc(1);
    }

    /// A step has failed, which is worth a line on a terminal, too.
    pub(crate) fn failed(&mut self, subject: &str, measure: &str, failure: &Failure) {
        if !matches!(failure, Failure::NotTried { .. }) {
            self.say(&format!("{subject}: {measure}: {failure}"));
        }
    }

    /// All steps of a workload of a subject in a round are done.
    pub(crate) fn trial_done(&mut self, subject: &str, workload: &str, round: u32, rounds: u32) {
        let Tally { steps, failed, since } = std::mem::replace(&mut self.trial, Tally::new());
        if steps == 0 || self.lines.is_none() {
            return;
        }
        let failed = match failed {
            0 => String::new(),
            failed => format!(", {failed} of {steps} failed"),
        };
        let (done, expected) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let left = match expected > done {
            true => {
                let left = time_left(self.bar.elapsed(), done, expected);
                format!("; about {} left", HumanDuration(left))
            }
            false => String::new(),
        };
        let (round, seconds) = (round + 1, since.elapsed().as_secs_f64());
        self.say(&format!(
            "[{done}/{expected}] round {round} of {rounds}: {workload}: {subject}: \
             {seconds:.1} s{failed}{left}"
        ));
    }

    /// Clears the bar.
    pub(crate) fn end(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The time that the other of `expected` steps take if they take as long on average as those that
/// are `done`. The bar's own estimate follows the latest steps, and those of one subject may take a
/// hundred times as long as those of another.
fn time_left(elapsed: Duration, done: u64, expected: u64) -> Duration {
    let left = expected.saturating_sub(done) as f64 / done.max(1) as f64;
    elapsed.mul_f64(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_all_steps() {
        let minute = Duration::from_secs(60);
        assert_eq!(time_left(minute, 10, 40), 3 * minute);
        assert_eq!(time_left(minute, 0, 2), 2 * minute);
        assert_eq!(time_left(minute, 4, 4), Duration::ZERO);
    }

    #[test]
    fn what_is_nothing_for_a_subject_is_not_waited_for() {
        let mut progress = Progress::hidden();
        progress.expect(2);
        progress.expect(2);
        progress.drop_expected(2);
        progress.done(&Ok(Measured::default()));
        assert_eq!((progress.bar.position(), progress.bar.length()), (1, Some(2)));
    }
}
