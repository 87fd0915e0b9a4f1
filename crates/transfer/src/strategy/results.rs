//! What streams and runs have done, and the one outcome that it adds up to.

use std::time::Duration;

use super::Copied;
use crate::outcome::{Outcome, Stop};
use crate::tar::StreamOutcome;

/// What has been done so far.
#[derive(Default)]
pub(super) struct Results {
    /// Each with whether it copied all of its source.
    streams: Vec<(StreamOutcome, bool)>,
    runs: Option<Outcome>,
    engines: Vec<&'static str>,
    notes: Vec<String>,
    link_share: Option<f64>,
}

impl Results {
    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(super) fn note_stream(&mut self, stream: StreamOutcome, is_whole: bool) {
        self.note_engine("tar");
        self.note_link(stream.link_bytes, stream.elapsed, stream.rate);
        self.streams.push((stream, is_whole));
    }

    pub(super) fn note_run(&mut self, run: Outcome) {
        self.runs = Some(match self.runs.take() {
            None => run,
            Some(before) => sum(before, run),
        });
    }

    pub(super) fn note_link(&mut self, bytes: u64, elapsed: Duration, rate: Option<f64>) {
        let used = bytes as f64 / elapsed.as_secs_f64().max(1e-6);
        self.link_share = rate.map(|rate| used / rate.max(1.0)).or(self.link_share);
    }

    pub(super) fn note_engine(&mut self, engine: &'static str) {
        if !self.engines.contains(&engine) {
            self.engines.push(engine);
        }
    }

    /// The user asked for the end before a run started.
    pub(super) fn interrupted(&mut self) {
        self.runs = Some(Outcome { stopped: Some(Stop::Asked), ..Outcome::default() });
    }

    /// Whether a run ended early.
    pub(super) fn is_stopped(&self) -> bool {
        self.runs.as_ref().is_some_and(|run| run.stopped.is_some())
    }

    pub(super) fn copied(self) -> Copied {
        let mut outcome = self.runs;
        let mut streams = self.streams;
        streams.sort_by_key(|(_, is_whole)| *is_whole);
        for (stream, is_whole) in &streams {
            outcome = Some(match (outcome, is_whole) {
                (None, _) => stream.outcome(),
                (Some(others), true) => sum(stream.outcome(), others),
                // The run has counted as unchanged what the stream has copied.
                (Some(run), false) => stream.followed_by(run),
            });
        }
        Copied {
            outcome: outcome.unwrap_or_default(),
            engines: self.engines,
            notes: self.notes,
            link_share: self.link_share,
        }
    }
}

/// The outcome of two runs of different sources.
fn sum(mut one: Outcome, other: Outcome) -> Outcome {
    let (sum, more) = (&mut one.counts, other.counts);
    sum.entries += more.entries;
    sum.dirs_made += more.dirs_made;
    sum.files_copied += more.files_copied;
    sum.links_made += more.links_made;
    sum.names_made += more.names_made;
    sum.attrs_set += more.attrs_set;
    sum.unchanged += more.unchanged;
    sum.skipped += more.skipped;
    sum.failed += more.failed;
    sum.deleted += more.deleted;
    sum.bytes += more.bytes;
    sum.bytes_copied += more.bytes_copied;
    sum.bytes_resumed += more.bytes_resumed;
    one.problems.extend(other.problems);
    one.problems_total += other.problems_total;
    one.stopped = one.stopped.or(other.stopped);
    one.deletions_withheld += other.deletions_withheld;
    one.deletions_limited |= other.deletions_limited;
    one.owners_refused |= other.owners_refused;
    one.elapsed += other.elapsed;
    one.waited_for_source += other.waited_for_source;
    one.waited_for_target += other.waited_for_target;
    one
}
