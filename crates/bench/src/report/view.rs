//! The figures of a run in the order of workloads, units, measures, subjects.

use crate::measure::{Cache, Measure, Unit};
use crate::results::{Measured, Outcome, Results, SubjectInfo, Summary};
use crate::stats::{self, FailureLine, Index, Noise};
use crate::units::{self, Scale};

/// A run, ready to be shown. Summaries and warnings are made from the samples, so that a report
/// never contradicts them.
pub(super) struct View<'a> {
    pub(super) results: &'a Results,
    pub(super) index: Index<'a>,
    pub(super) noise: Option<Noise>,
    pub(super) summaries: Vec<Summary>,
    pub(super) failures: Vec<FailureLine>,
    pub(super) warnings: Vec<String>,
}

/// The measures of one workload that have the same unit.
pub(super) struct Figures<'v> {
    unit: Unit,
    pub(super) scale: Scale,
    /// Subjects with any sample in it.
    pub(super) subjects: Vec<&'v SubjectInfo>,
    /// A figure for each subject.
    pub(super) rows: Vec<(&'v Measure, Vec<Figure<'v>>)>,
}

/// One measure of one subject.
pub(super) enum Figure<'v> {
    Value { summary: &'v Summary, is_best: bool, wrong_data: bool },
    Failed { wrong_data: bool },
    Absent,
}

impl<'a> View<'a> {
    pub(super) fn of(results: &'a Results) -> View<'a> {
        let index = Index::of(results);
        let noise = Noise::of(results, &index);
        let mut warnings = stats::warnings(results);
        let known = warnings.len();
        for warning in &results.warnings {
            if !warnings[..known].contains(warning) {
                warnings.push(warning.clone());
            }
        }
        View {
            results,
            noise,
            summaries: stats::summarize(results),
            failures: stats::failures(results),
            warnings,
            index,
        }
    }

    /// The workloads with samples, by name.
    pub(super) fn families(&self) -> Vec<(&str, Vec<Figures<'_>>)> {
        let mut names: Vec<&str> = Vec::new();
        for summary in &self.summaries {
            if !names.contains(&family_of(&summary.measure)) {
                names.push(family_of(&summary.measure));
            }
        }
        let tables = |name| self.tables(|measure| family_of(&measure.id) == name);
        names.into_iter().map(|name| (name, tables(name))).collect()
    }

    /// Some measures with samples, in a table for each unit.
    pub(super) fn tables(&self, wanted: impl Fn(&Measure) -> bool) -> Vec<Figures<'_>> {
        let sampled = |measure: &&Measure| self.summaries.iter().any(|s| s.measure == measure.id);
        let mut tables: Vec<Vec<&Measure>> = Vec::new();
        for measure in self.results.measures.iter().filter(sampled).filter(|it| wanted(it)) {
            match tables.iter_mut().find(|table| table[0].unit == measure.unit) {
                Some(table) => table.push(measure),
                None => tables.push(vec![measure]),
            }
        }
        tables.into_iter().map(|table| self.figures(table)).collect()
    }

    /// The median over the rounds of something of the samples of one measure of one subject.
    pub(super) fn median_of(
        &self,
        measure: &str,
        subject: &str,
        of: impl Fn(&Measured) -> Option<f64>,
    ) -> Option<f64> {
        let cell = self.index.cell(measure, subject)?;
        stats::median(&cell.measured().filter_map(of).collect::<Vec<_>>())
    }

    fn figures<'v>(&'v self, measures: Vec<&'v Measure>) -> Figures<'v> {
        let has = |subject: &&SubjectInfo| {
            measures.iter().any(|measure| self.index.cell(&measure.id, &subject.name).is_some())
        };
        let subjects: Vec<&SubjectInfo> = self.results.subjects.iter().filter(has).collect();
        let unit = measures[0].unit;
        let row = |measure: &'v Measure| {
            let medians = subjects.iter().filter(|subject| competes(subject)).filter_map(|it| {
                self.summary(&measure.id, &it.name).filter(|s| s.n > 0).map(|s| s.spread.median)
            });
            let best = medians.reduce(if unit.more_is_better() { f64::max } else { f64::min });
            (measure, subjects.iter().map(|subject| self.figure(measure, subject, best)).collect())
        };
        Figures {
            unit,
            scale: units::scale(unit),
            rows: measures.iter().map(|measure| row(measure)).collect(),
            subjects,
        }
    }

    fn figure(&self, measure: &Measure, subject: &SubjectInfo, best: Option<f64>) -> Figure<'_> {
        let wrong_data = self.failures.iter().any(|line| {
            line.wrong_data && line.measure == measure.id && line.subject == subject.name
        });
        match self.summary(&measure.id, &subject.name) {
            Some(summary) if summary.n > 0 => {
                let is_best = competes(subject) && Some(summary.spread.median) == best;
                Figure::Value { summary, is_best, wrong_data }
            }
            Some(_) => Figure::Failed { wrong_data },
            None => Figure::Absent,
        }
    }

    pub(super) fn summary(&self, measure: &str, subject: &str) -> Option<&Summary> {
        self.summaries.iter().find(|s| s.measure == measure && s.subject == subject)
    }

    /// Samples whose data were compared with the expected data, and all with a value.
    pub(super) fn verified(&self) -> (usize, usize) {
        let outcomes = self.results.samples.iter().map(|sample| &sample.outcome);
        outcomes.fold((0, 0), |(verified, all), outcome| match outcome {
            Outcome::Measured(measured) => (verified + usize::from(measured.verified), all + 1),
            Outcome::Failed { .. } => (verified, all),
        })
    }
}

impl Figures<'_> {
    /// `more is better` or its opposite.
    pub(super) fn direction(&self) -> &'static str {
        if self.unit.more_is_better() { "more is better" } else { "less is better" }
    }
}

/// The workload of a measure: its id up to the first dot.
pub(super) fn family_of(measure: &str) -> &str {
    measure.split('.').next().unwrap_or(measure)
}

fn cache_word(cache: Cache) -> Option<&'static str> {
    match cache {
        Cache::Cold => Some("cold"),
        Cache::Hot => Some("hot"),
        Cache::Direct => Some("direct"),
        Cache::None => None,
    }
}

/// Some words of a measure, and the state of the cache where the words do not say it.
fn with_cache(words: &str, measure: &Measure) -> String {
    match cache_word(measure.cache) {
        Some(state) if !words.contains(state) => format!("{words}, {state}"),
        _ => words.to_owned(),
    }
}

/// Title and cache of a measure.
pub(super) fn title(measure: &Measure) -> String {
    with_cache(&measure.title, measure)
}

/// Id and cache of a measure, for a terminal; without the workload unless `whole`.
pub(super) fn label(measure: &Measure, whole: bool) -> String {
    let own = match measure.id.split_once('.') {
        Some((_, own)) if !whole => own,
        _ => &measure.id,
    };
    with_cache(own, measure)
}

/// Whether a subject competes: neither a yardstick (local disk, floor) nor a control.
pub(super) fn competes(subject: &SubjectInfo) -> bool {
    subject.control_of.is_none() && !matches!(subject.kind.as_str(), "local" | "floor")
}

/// The name in at most `most` characters. It is cut in the middle, since variants of one program
/// differ in their ends.
pub(super) fn shortened(name: &str, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    let head = most / 2;
    let tail = name.chars().skip(length - (most - head).saturating_sub(1));
    name.chars().take(head).chain(['…']).chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("sshfs (control)", 15), "sshfs (control)");
        assert_eq!(shortened("sshoal:Compression=yes", 15), "sshoal:…ion=yes");
        assert_eq!(shortened("sshoal:Compression=no", 15), "sshoal:…sion=no");
        assert_eq!(shortened("grün-öl-übung", 6), "grü…ng");
    }
}
