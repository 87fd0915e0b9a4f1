//! What the figures cost: CPU of both sides, and memory.

use crate::measure::{Measure, Unit};
use crate::results::{SubjectInfo, Summary};

use super::number;
use super::view::{View, family_of};

/// For what amount of work CPU seconds are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Per {
    Gigabyte,
    ThousandOperations,
}

impl Per {
    pub(super) fn name(self) -> &'static str {
        match self {
            Per::Gigabyte => "CPU seconds per GB",
            Per::ThousandOperations => "CPU seconds per 1000 operations",
        }
    }
}

/// CPU of all measures that have one for the amount: a row for each, a cell for each subject.
pub(super) struct CpuTable<'v> {
    pub(super) per: Per,
    pub(super) subjects: Vec<&'v SubjectInfo>,
    pub(super) rows: Vec<CpuRow<'v>>,
}

/// One measure.
pub(super) struct CpuRow<'v> {
    pub(super) measure: &'v Measure,
    /// Client and server; `None` for what was not measured.
    pub(super) cells: Vec<(Option<f64>, Option<f64>)>,
}

impl CpuRow<'_> {
    /// A cell as `client / server`.
    pub(super) fn shown(cell: (Option<f64>, Option<f64>)) -> String {
        match cell {
            (None, None) => "–".to_owned(),
            (client, server) => {
                let shown = |side: Option<f64>| side.map_or("–".to_owned(), number::significant);
                format!("{} / {}", shown(client), shown(server))
            }
        }
    }
}

/// Tables of CPU. Measures that move data are told per gigabyte, the others per thousand
/// operations.
pub(super) fn cpu<'v>(view: &'v View<'_>) -> Vec<CpuTable<'v>> {
    let tables = [Per::Gigabyte, Per::ThousandOperations].map(|per| cpu_table(view, per));
    tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

fn cpu_table<'v>(view: &'v View<'_>, per: Per) -> CpuTable<'v> {
    let measures = || {
        let suits = |id: &str| per_of(view, id) == Some(per);
        view.results.measures.iter().filter(move |measure| suits(&measure.id))
    };
    let cell = |id: &str, subject: &SubjectInfo| {
        view.summary(id, &subject.name).map_or((None, None), |summary| sides(summary, per))
    };
    let subjects: Vec<&SubjectInfo> = view
        .results
        .subjects
        .iter()
        .filter(|subject| measures().any(|measure| cell(&measure.id, subject) != (None, None)))
        .collect();
    let rows = measures().map(|measure| CpuRow {
        measure,
        cells: subjects.iter().map(|subject| cell(&measure.id, subject)).collect(),
    });
    CpuTable { per, rows: rows.collect(), subjects }
}

/// Client and server; nothing of a subject without processes, such as the local disk.
fn sides(summary: &Summary, per: Per) -> (Option<f64>, Option<f64>) {
    let sides = match per {
        Per::Gigabyte => (summary.client_cpu_s_per_gb, summary.server_cpu_s_per_gb),
        Per::ThousandOperations => (summary.client_cpu_s_per_kop, summary.server_cpu_s_per_kop),
    };
    match sides {
        (Some(0.0), None) => (None, None),
        sides => sides,
    }
}

fn per_of(view: &View<'_>, measure: &str) -> Option<Per> {
    let of_measure = || view.summaries.iter().filter(|summary| summary.measure == measure);
    let has = |per: Per| of_measure().any(|summary| sides(summary, per) != (None, None));
    let unit = view.results.measures.iter().find(|known| known.id == measure)?.unit;
    let preferred = match unit {
        Unit::BytesPerSecond => [Per::Gigabyte, Per::ThousandOperations],
        _ => [Per::ThousandOperations, Per::Gigabyte],
    };
    preferred.into_iter().find(|&per| has(per))
}

/// Greatest memory of the client side for each family: name, and bytes for each subject.
pub(super) struct MemoryTable<'v> {
    pub(super) subjects: Vec<&'v SubjectInfo>,
    pub(super) rows: Vec<(&'v str, Vec<Option<u64>>)>,
}

/// Memory of all subjects that have any.
pub(super) fn memory<'v>(view: &'v View<'_>) -> MemoryTable<'v> {
    let peak = |family: &str, subject: &SubjectInfo| {
        let of_both = |s: &&Summary| s.subject == subject.name && family_of(&s.measure) == family;
        view.summaries.iter().filter(of_both).filter_map(|s| s.peak_memory_bytes).max()
    };
    let mut families: Vec<&str> = Vec::new();
    for measure in &view.results.measures {
        let name = family_of(&measure.id);
        if !families.contains(&name) {
            families.push(name);
        }
    }
    let subjects: Vec<&SubjectInfo> = view
        .results
        .subjects
        .iter()
        .filter(|subject| families.iter().any(|family| peak(family, subject).is_some()))
        .collect();
    let rows = families
        .into_iter()
        .map(|family| (family, subjects.iter().map(|s| peak(family, s)).collect::<Vec<_>>()))
        .filter(|(_, cells)| cells.iter().any(Option::is_some));
    MemoryTable { rows: rows.collect(), subjects }
}
