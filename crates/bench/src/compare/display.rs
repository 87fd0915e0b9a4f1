//! A comparison for the terminal.

use std::fmt::{self, Display, Formatter};

use crate::report::printable;
use crate::units;

use super::{Change, Comparison, Verdict};

/// Groups in which changes are shown, the gravest first, with their heading.
const GROUPS: [(&str, &[Verdict]); 7] = [
    ("wrong data", &[Verdict::WrongData]),
    ("fails now", &[Verdict::FailsNow]),
    ("worse by more than noise and tolerance", &[Verdict::Regression]),
    ("worse, within the tolerance", &[Verdict::Worse]),
    ("worse, but within the noise: take more rounds to tell", &[Verdict::Unsure]),
    ("fails in both runs", &[Verdict::FailsStill]),
    ("better", &[Verdict::Better, Verdict::WorksNow]),
];

/// Names that a list shows before it says how many more there are.
const NAMES: usize = 12;

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (heading, verdicts) in GROUPS {
            let of_group = |change: &&Change| verdicts.contains(&change.verdict);
            let mut group: Vec<&Change> = self.changes.iter().filter(of_group).collect();
            group.sort_by(|a, b| far(b).total_cmp(&far(a)));
            if !group.is_empty() {
                writeln!(f, "{heading}:")?;
                group.iter().try_for_each(|change| line(f, change))?;
                writeln!(f)?;
            }
        }
        let same = self.changes.iter().filter(|c| c.verdict == Verdict::Same).count();
        writeln!(f, "the same within the noise: {same} of {}", self.changes.len())?;
        names(f, "only in the old run", &self.only_old)?;
        names(f, "only in the new run", &self.only_new)?;
        if !self.notes.is_empty() {
            writeln!(f, "\nnot the same in both runs:")?;
            for note in &self.notes {
                writeln!(f, "  {}", printable(note))?;
            }
        }
        let regressions = self.regressions().count();
        let tolerance = units::percent(self.tolerance);
        match regressions {
            0 => writeln!(f, "\nno regression past {tolerance}"),
            n => writeln!(f, "\n{} past {tolerance}", units::counted(n as u64, "regression")),
        }
    }
}

fn far(change: &Change) -> f64 {
    change.ratio.map_or(f64::INFINITY, |ratio| ratio.ln().abs())
}

fn line(f: &mut Formatter<'_>, change: &Change) -> fmt::Result {
    let scale = units::scale(change.measure.unit);
    let shown = |value: Option<f64>| value.map_or("–".to_owned(), |value| scale.show(value));
    let name = printable(&format!("{} of {}", change.measure.id, change.subject));
    let values = format!("{} → {} {}", shown(change.old), shown(change.new), scale.short);
    let ratio = change.ratio.map_or(String::new(), units::ratio);
    let noise = units::percent(change.noise - 1.0);
    let counts = if change.judged { "" } else { "not judged" };
    writeln!(f, "  {name:<38} {values:<22} {ratio:>7}  noise {noise:<7} {counts}")
}

fn names(f: &mut Formatter<'_>, what: &str, names: &[String]) -> fmt::Result {
    if names.is_empty() {
        return Ok(());
    }
    writeln!(f, "{what}:")?;
    for name in names.iter().take(NAMES) {
        writeln!(f, "  {}", printable(name))?;
    }
    match names.len().saturating_sub(NAMES) {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more"),
    }
}
