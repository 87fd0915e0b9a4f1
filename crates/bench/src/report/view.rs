//! What all forms of the report show: figures in the order of families, units, rows, columns.

use crate::measure::{Cache, Measure, Unit};
use crate::results::{Outcome, Results, SubjectInfo, Summary};
use crate::stats::{self, FailureLine, Index, Noise};

use super::number::{self, Scale};

/// A run, ready to be shown. Summaries and warnings are made anew from the samples, so that a
/// report never contradicts them.
pub(super) struct View<'a> {
    pub(super) results: &'a Results,
    pub(super) index: Index<'a>,
    pub(super) noise: Option<Noise>,
    pub(super) summaries: Vec<Summary>,
    pub(super) failures: Vec<FailureLine>,
    pub(super) warnings: Vec<String>,
}

/// The measures of one work.
pub(super) struct Family<'v> {
    pub(super) name: &'v str,
    pub(super) tables: Vec<Table<'v>>,
}

/// The measures of one work that have the same unit.
pub(super) struct Table<'v> {
    pub(super) unit: Unit,
    pub(super) scale: Scale,
    /// Subjects with anything in it.
    pub(super) subjects: Vec<&'v SubjectInfo>,
    pub(super) rows: Vec<Row<'v>>,
}

/// One measure: a cell for each subject of the table.
pub(super) struct Row<'v> {
    pub(super) measure: &'v Measure,
    pub(super) cells: Vec<Cell<'v>>,
}

/// One measure of one subject.
#[derive(Clone, Copy)]
pub(super) enum Cell<'v> {
    Value { summary: &'v Summary, best: bool, wrong_data: bool },
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

    pub(super) fn families(&self) -> Vec<Family<'_>> {
        let mut families: Vec<Family<'_>> = Vec::new();
        for measure in &self.results.measures {
            let name = family_of(&measure.id);
            match families.iter_mut().find(|family| family.name == name) {
                Some(family) => self.place(measure, &mut family.tables),
                None => {
                    let mut tables = Vec::new();
                    self.place(measure, &mut tables);
                    families.push(Family { name, tables });
                }
            }
        }
        for table in families.iter_mut().flat_map(|family| &mut family.tables) {
            self.fill(table);
        }
        families.iter_mut().for_each(|family| family.tables.retain(|t| !t.subjects.is_empty()));
        families.retain(|family| !family.tables.is_empty());
        families
    }

    fn place<'v>(&'v self, measure: &'v Measure, tables: &mut Vec<Table<'v>>) {
        let row = Row { measure, cells: Vec::new() };
        match tables.iter_mut().find(|table| table.unit == measure.unit) {
            Some(table) => table.rows.push(row),
            None => tables.push(Table {
                unit: measure.unit,
                scale: number::scale(measure.unit),
                subjects: Vec::new(),
                rows: vec![row],
            }),
        }
    }

    fn fill<'v>(&'v self, table: &mut Table<'v>) {
        let has = |subject: &&SubjectInfo| {
            table.rows.iter().any(|row| self.index.cell(&row.measure.id, &subject.name).is_some())
        };
        table.subjects = self.results.subjects.iter().filter(has).collect();
        for row in &mut table.rows {
            row.cells =
                table.subjects.iter().map(|subject| self.cell(row.measure, subject)).collect();
            mark_best(row, &table.subjects, table.unit);
        }
    }

    pub(super) fn summary(&self, measure: &str, subject: &str) -> Option<&Summary> {
        self.summaries.iter().find(|s| s.measure == measure && s.subject == subject)
    }

    fn cell<'v>(&'v self, measure: &Measure, subject: &SubjectInfo) -> Cell<'v> {
        let wrong_data = self.failures.iter().any(|line| {
            line.wrong_data && line.measure == measure.id && line.subject == subject.name
        });
        match self.summary(&measure.id, &subject.name) {
            Some(summary) if summary.n > 0 => Cell::Value { summary, best: false, wrong_data },
            Some(_) => Cell::Failed { wrong_data },
            None => Cell::Absent,
        }
    }

    /// Samples whose data were compared with what they had to be, and all that have a value.
    pub(super) fn verified(&self) -> (usize, usize) {
        let outcomes = self.results.samples.iter().map(|sample| &sample.outcome);
        outcomes.fold((0, 0), |(verified, all), outcome| match outcome {
            Outcome::Measured(measured) => (verified + usize::from(measured.verified), all + 1),
            Outcome::Failed { .. } => (verified, all),
        })
    }
}

/// Of those that compete.
fn mark_best(row: &mut Row<'_>, subjects: &[&SubjectInfo], unit: Unit) {
    let competitors = || subjects.iter().map(|subject| competes(subject));
    let medians = row.cells.iter().zip(competitors()).filter(|&(_, competes)| competes);
    let medians = medians.filter_map(|(cell, _)| cell.median());
    let best = medians.reduce(if unit.more_is_better() { f64::max } else { f64::min });
    for (cell, competes) in row.cells.iter_mut().zip(competitors()) {
        if let Cell::Value { summary, best: is_best, .. } = cell {
            *is_best = competes && Some(summary.median) == best;
        }
    }
}

impl Cell<'_> {
    pub(super) fn median(&self) -> Option<f64> {
        match self {
            Cell::Value { summary, .. } => Some(summary.median),
            Cell::Failed { .. } | Cell::Absent => None,
        }
    }

    /// What stands in the place of a number, if there is none.
    pub(super) fn word(&self) -> Option<&'static str> {
        match self {
            Cell::Value { .. } => None,
            Cell::Failed { wrong_data: true } => Some("wrong data"),
            Cell::Failed { wrong_data: false } => Some("failed"),
            Cell::Absent => Some("–"),
        }
    }
}

impl Table<'_> {
    /// `more is better` or its opposite.
    pub(super) fn direction(&self) -> &'static str {
        if self.unit.more_is_better() { "more is better" } else { "less is better" }
    }
}

/// The work of a measure: what is before the first dot.
pub(super) fn family_of(measure: &str) -> &str {
    measure.split('.').next().unwrap_or(measure)
}

/// What is cached, as a word, unless the question does not arise.
pub(super) fn cache_word(cache: Cache) -> Option<&'static str> {
    match cache {
        Cache::Cold => Some("cold"),
        Cache::Hot => Some("hot"),
        Cache::Direct => Some("direct"),
        Cache::None => None,
    }
}

/// Title and cache of a measure. The word is left out where the title has it.
pub(super) fn title(measure: &Measure) -> String {
    match cache_word(measure.cache) {
        Some(word) if !measure.title.contains(word) => format!("{}, {word}", measure.title),
        _ => measure.title.clone(),
    }
}

/// Subjects that compete: not the yardsticks (local disk, floors) and not a control.
pub(super) fn competes(subject: &SubjectInfo) -> bool {
    subject.control_of.is_none() && !matches!(subject.kind.as_str(), "local" | "floor")
}
