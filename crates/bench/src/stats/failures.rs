//! What did not work, told once for each reason.

use crate::failure::Failure;
use crate::results::{Outcome, Results};

/// One reason for which samples of one measure of one subject are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureLine {
    /// [`crate::measure::Measure::id`].
    pub measure: String,
    /// [`crate::results::SubjectInfo::name`].
    pub subject: String,
    /// The failure's own words.
    pub why: String,
    /// In which it happened.
    pub rounds: Vec<u32>,
    /// The step was done, and the data were not what they had to be.
    pub wrong_data: bool,
}

/// All failures of a run: wrong data first, then in the order in which they happened.
#[must_use]
pub fn failures(results: &Results) -> Vec<FailureLine> {
    let mut lines: Vec<FailureLine> = Vec::new();
    for sample in &results.samples {
        let (why, wrong_data) = match &sample.outcome {
            Outcome::Failed { failure } => {
                (failure.to_string(), matches!(failure, Failure::WrongData { .. }))
            }
            Outcome::Measured(measured) if !measured.value.is_finite() => {
                ("the value is not a number".to_owned(), false)
            }
            Outcome::Measured(_) => continue,
        };
        let same = |line: &&mut FailureLine| {
            line.measure == sample.measure && line.subject == sample.subject && line.why == why
        };
        match lines.iter_mut().find(same) {
            Some(line) => line.rounds.push(sample.round),
            None => lines.push(FailureLine {
                measure: sample.measure.clone(),
                subject: sample.subject.clone(),
                why,
                rounds: vec![sample.round],
                wrong_data,
            }),
        }
    }
    lines.sort_by_key(|line| !line.wrong_data);
    lines
}
