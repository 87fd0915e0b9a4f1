//! The samples of a run so far, and the results made from them.

use std::collections::HashSet;
use std::time::Instant;

use crate::failure::Result;
use crate::measure::{AS_CACHED, Cache, Measure};
use crate::plan::Plan;
use crate::results::{LeftOut, Measured, Outcome, Results, SCHEMA, Sample, SubjectInfo};
use crate::stats;

/// Why results are partial that were written while the run went on.
pub(super) const UNFINISHED: &str = "the run had not ended when this was written";

/// The samples and notes of a run.
pub(super) struct ResultLog {
    begun: Instant,
    /// All but what follows from the samples. Its measures are those that may come; only those with
    /// a sample are reported. Its warnings are what happened beside the steps.
    results: Results,
}

impl ResultLog {
    pub(super) fn open(plan: &Plan) -> ResultLog {
        let results = Results {
            schema: SCHEMA,
            started: jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
            subjects: plan.subjects.iter().map(|subject| subject.info()).collect(),
            ..plan.results.clone()
        };
        ResultLog { begun: Instant::now(), results }
    }

    /// Announces a measure. One that cannot be taken cold everywhere has a sister for that.
    pub(super) fn expect(&mut self, measure: Measure) {
        let sister = (measure.cache == Cache::Cold).then(|| as_it_was(&measure));
        self.results.measures.push(measure);
        self.results.measures.extend(sister);
    }

    pub(super) fn subject(&self, number: usize) -> &SubjectInfo {
        &self.results.subjects[number]
    }

    pub(super) fn subject_name(&self, subject: usize) -> &str {
        &self.subject(subject).name
    }

    /// Writes down one sample.
    pub(super) fn enter(
        &mut self,
        measure: &Measure,
        subject: usize,
        round: u32,
        outcome: Result<Measured>,
    ) {
        let sample = Sample {
            measure: measure.id.clone(),
            subject: self.subject_name(subject).to_owned(),
            round,
            at_s: self.begun.elapsed().as_secs_f64(),
            outcome: match outcome {
                Ok(measured) => Outcome::Measured(measured),
                Err(failure) => Outcome::Failed { failure },
            },
        };
        self.results.samples.push(sample);
    }

    /// Whether there is no sample, not even a failure.
    pub(super) fn is_empty(&self) -> bool {
        self.results.samples.is_empty()
    }

    /// Notes, once, what the reader of the figures has to know.
    pub(super) fn note(&mut self, text: String) {
        if !self.results.warnings.contains(&text) {
            self.results.warnings.push(text);
        }
    }

    pub(super) fn leave_out(&mut self, left_out: LeftOut) {
        self.results.left_out.push(left_out);
    }

    /// The results as they are; `partial` says why they are not all.
    pub(super) fn so_far(&self, plan: &Plan, partial: Option<String>) -> Results {
        let sampled: HashSet<&str> =
            self.results.samples.iter().map(|sample| sample.measure.as_str()).collect();
        let mut results = Results {
            seconds: self.begun.elapsed().as_secs_f64(),
            partial,
            // The ciphers of their connections are known after the first start.
            subjects: plan.subjects.iter().map(|subject| subject.info()).collect(),
            ..self.results.clone()
        };
        results.measures.retain(|measure| sampled.contains(measure.id.as_str()));
        results.summaries = stats::summarize(&results);
        results.warnings.splice(..0, stats::warnings(&results));
        results
    }
}

/// The measure of a subject whose caches cannot be dropped, which is not to be compared with one
/// that was cold.
pub(super) fn as_it_was(cold: &Measure) -> Measure {
    Measure {
        id: format!("{}{AS_CACHED}", cold.id),
        title: format!("{}, caches as they were", cold.title),
        unit: cold.unit,
        cache: Cache::None,
    }
}
