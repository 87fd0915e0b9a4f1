//! What differs between two runs besides their figures.

use crate::report::circumstances;
use crate::results::Results;
use crate::stats::{Noise, median};
use crate::units;

use super::BetweenRuns;
use super::Change;

/// Change of a measured link that is worth a note.
const LINK_TOLERANCE: f64 = 0.10;

/// Change of what did not change that is worth a note.
const YARDSTICK_TOLERANCE: f64 = 0.05;

/// One line for each difference, the gravest first.
pub(super) fn differences(
    old: &Results,
    new: &Results,
    changes: &[Change],
    noise: &BetweenRuns<'_>,
) -> Vec<String> {
    let mut notes = Vec::new();
    partial(old, new, &mut notes);
    quantities(old, new, &mut notes);
    facts(old, new, &mut notes);
    link(old, new, &mut notes);
    subjects(old, new, &mut notes);
    notes.extend(yardsticks(new, changes));
    if noise.is_unknown() {
        notes.push(
            "Neither run has rounds enough, or a control, to know its noise: a difference may be \
             chance. Take --rounds 4 or more."
                .to_owned(),
        );
    }
    notes
}

fn partial(old: &Results, new: &Results, notes: &mut Vec<String>) {
    for (which, run) in [("old", old), ("new", new)] {
        if let Some(why) = &run.partial {
            notes.push(format!("The {which} run is not complete: {why}."));
        }
    }
    if old.schema != new.schema {
        notes.push(format!(
            "The files have different schemas ({} and {}): some fields may have other meanings.",
            old.schema, new.schema
        ));
    }
}

fn differ(notes: &mut Vec<String>, what: &str, old: &str, new: &str) {
    if old != new {
        let or_none =
            |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
        notes.push(format!("{what}: {} → {}", or_none(old), or_none(new)));
    }
}

/// Those that both runs have; older files have none.
fn quantities(old: &Results, new: &Results, notes: &mut Vec<String>) {
    let begin = notes.len();
    for (name, &now) in &new.settings.quantities {
        if let Some(&before) = old.settings.quantities.get(name) {
            differ(notes, name, &before.to_string(), &now.to_string());
        }
    }
    if notes.len() > begin {
        let why = "The works had other quantities: their figures are not of the same work.";
        notes.insert(begin, why.to_owned());
    }
}

/// Machine, settings, and the programs that both have.
fn facts(old: &Results, new: &Results, notes: &mut Vec<String>) {
    for ((what, before), (_, now)) in circumstances(old).into_iter().zip(circumstances(new)) {
        differ(notes, what, &before, &now);
    }
    for (program, version) in &new.environment.versions {
        let mut versions = old.environment.versions.iter();
        if let Some((_, before)) = versions.find(|(name, _)| name == program) {
            differ(notes, program, before, version);
        }
    }
}

fn link(old: &Results, new: &Results, notes: &mut Vec<String>) {
    let mut check = |what: &str, old: Option<f64>, new: Option<f64>, show: fn(f64) -> String| {
        let Some((old, new)) = old.zip(new) else { return };
        if (new / old - 1.0).abs() > LINK_TOLERANCE {
            notes.push(format!("{what} of the link: {} → {}", show(old), show(new)));
        }
    };
    let (a, b) = (&old.link, &new.link);
    check("round trip", a.measured_rtt_us, b.measured_rtt_us, units::duration_us);
    check("rate", a.measured_bytes_per_s, b.measured_bytes_per_s, units::bit_rate);
}

fn subjects(old: &Results, new: &Results, notes: &mut Vec<String>) {
    for subject in &new.subjects {
        let Some(before) = old.subjects.iter().find(|s| s.name == subject.name) else { continue };
        let name = &subject.name;
        differ(notes, &format!("{name}, version"), &before.version, &subject.version);
        let cipher = |cipher: &Option<String>| cipher.clone().unwrap_or_default();
        differ(
            notes,
            &format!("{name}, cipher"),
            &cipher(&before.cipher),
            &cipher(&subject.cipher),
        );
    }
}

/// Subjects that are the same in both runs show whether the machine is the same.
fn yardsticks(new: &Results, changes: &[Change]) -> Option<String> {
    let ratios: Vec<f64> =
        changes.iter().filter(|change| !change.judged).filter_map(|change| change.ratio).collect();
    let typical = median(&ratios)?;
    let index = crate::stats::Index::of(new);
    let noise = Noise::of(new, &index).map_or(1.0, |noise| noise.overall());
    let moved = typical.ln().abs() > (1.0 + YARDSTICK_TOLERANCE).ln() && ratios.len() > 2;
    moved.then(|| {
        format!(
            "What is not judged (peers, floors) is typically {} as fast as in the old run, with \
             noise of {}: the machine or the link may not be the same.",
            units::ratio(typical),
            units::percent(noise - 1.0)
        )
    })
}
