//! What streams and runs have done, and the one outcome that it adds up to.

use super::Copied;
use crate::outcome::{Outcome, Problem, Stop};
use crate::tar::StreamOutcome;

/// What has been done so far.
#[derive(Default)]
pub(super) struct Results {
    /// Each with whether it copied all of its source.
    streams: Vec<(StreamOutcome, bool)>,
    runs: Option<Outcome>,
    engines: Vec<&'static str>,
    notes: Vec<String>,
}

impl Results {
    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(super) fn note_stream(&mut self, stream: StreamOutcome, is_whole: bool) {
        self.note_engine("tar");
        self.streams.push((stream, is_whole));
    }

    pub(super) fn note_run(&mut self, run: Outcome) {
        self.runs = Some(match self.runs.take() {
            None => run,
            Some(before) => before.and(run),
        });
    }

    pub(super) fn note_engine(&mut self, engine: &'static str) {
        if !self.engines.contains(&engine) {
            self.engines.push(engine);
        }
    }

    /// A run compares all that streams have copied.
    pub(super) fn compared_again(&mut self) {
        self.streams.iter_mut().for_each(|(_, is_whole)| *is_whole = false);
    }

    /// The user asked for the end while there was no run.
    pub(super) fn interrupted(&mut self) {
        self.note_run(Outcome { stopped: Some(Stop::Asked), ..Outcome::default() });
    }

    /// A pushed tree does not get its name, because of this problem. The deletions in it that were
    /// withheld are not the user's.
    pub(super) fn keep_stage(&mut self, problem: Problem, withheld: u64) {
        let runs = self.runs.get_or_insert_default();
        // A program may show only the first ones, and this one is of the whole tree.
        runs.problems.insert(0, problem);
        runs.problems_total += 1;
        runs.deletions_withheld -= withheld.min(runs.deletions_withheld);
    }

    /// Whether anything that was copied so far has failed.
    pub(super) fn has_problems(&self) -> bool {
        let streams = self.streams.iter().map(|(stream, _)| &stream.outcome);
        streams.chain(&self.runs).any(|outcome| outcome.problems_total > 0)
    }

    /// Whether a run ended early.
    pub(super) fn is_stopped(&self) -> bool {
        self.runs.as_ref().is_some_and(|run| run.stopped.is_some())
    }

    pub(super) fn copied(self) -> Copied {
        let mut outcome = self.runs;
        let mut streams = self.streams;
        streams.sort_by_key(|(_, is_whole)| *is_whole);
        for (stream, is_whole) in streams {
            outcome = Some(match (outcome, is_whole) {
                (None, _) => stream.outcome,
                (Some(others), true) => stream.outcome.and(others),
                // The run has counted as unchanged what the stream has copied.
                (Some(run), false) => stream.followed_by(run),
            });
        }
        Copied { outcome: outcome.unwrap_or_default(), engines: self.engines, notes: self.notes }
    }
}
