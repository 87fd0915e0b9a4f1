//! The circumstances of a run, in words.

use super::view::View;
use crate::results::{LinkReport, Results};
use crate::units;

/// Names and values of what two runs that are compared should have in common.
pub(crate) fn circumstances(results: &Results) -> Vec<(&'static str, String)> {
    let (settings, environment) = (&results.settings, &results.environment);
    vec![
        ("program", results.program.clone()),
        ("size", settings.size.clone()),
        ("rounds", settings.rounds.to_string()),
        ("repeats", settings.repeats.clone().unwrap_or_default()),
        ("factor", settings.factor.map(|factor| factor.to_string()).unwrap_or_default()),
        ("reference", settings.reference.clone()),
        ("seed", settings.seed.to_string()),
        ("deadline of a step", format!("{} s", units::significant(settings.deadline_s))),
        ("link", asked_link(&results.link)),
        ("system", environment.system.clone()),
        ("kernel", environment.kernel.clone()),
        ("CPU", format!("{}, {}", environment.cpu, units::counted(environment.cpus.into(), "CPU"))),
        ("CPU flags", environment.cpu_flags.join(" ")),
        ("memory", format!("{} MiB", units::mebibytes(environment.memory_bytes))),
        ("scratch directory on", environment.scratch.clone()),
        ("server", environment.server.clone()),
    ]
}

/// A quantity of a workload, in the unit in which its name ends.
fn quantity(name: &str, value: f64) -> String {
    match name.ends_with("bytes") {
        true => units::binary_size(value as u64),
        false => value.to_string(),
    }
}

/// Those, and what belongs to this run alone.
pub(super) fn facts(view: &View<'_>) -> Vec<(&'static str, String)> {
    let results = view.results;
    let mut facts = vec![
        ("began", results.started.clone()),
        ("took", units::run_time(results.seconds)),
        ("load at the start", units::significant(results.environment.load)),
    ];
    facts.extend(circumstances(results).into_iter().map(|(name, value)| match name {
        "link" => (name, link(view)),
        _ => (name, value),
    }));
    let quantities = results.settings.quantities.iter();
    let quantities = quantities.map(|(name, &value)| format!("{name} {}", quantity(name, value)));
    facts.push(("quantities", quantities.collect::<Vec<_>>().join(", ")));
    let noise = view.noise.as_ref().map(|noise| units::percent(noise.typical() - 1.0));
    facts.push(("noise", noise.unwrap_or("not known: no control".to_owned())));
    let (verified, measured) = view.verified();
    facts.push(("verified", format!("the data of {verified} of {measured} samples")));
    facts.push(("method", "docs/benchmarking.md, section Method".to_owned()));
    facts.retain(|(_, value)| !value.is_empty());
    facts
}

/// The link, asked for and measured.
pub(super) fn link(view: &View<'_>) -> String {
    let link = &view.results.link;
    let asked = asked_link(link);
    match round_trip_and_rate(link.measured_rtt_us, link.measured_bytes_per_s).as_str() {
        "" => asked,
        measured => format!("{asked}; measured {measured}"),
    }
}

fn asked_link(link: &LinkReport) -> String {
    match round_trip_and_rate(link.asked_rtt_us, link.asked_bytes_per_s).as_str() {
        "" => link.name.clone(),
        asked => format!("{} (asked for {asked})", link.name),
    }
}

/// As far as they are known.
fn round_trip_and_rate(rtt_us: Option<f64>, bytes_per_s: Option<f64>) -> String {
    let parts = [rtt_us.map(units::duration_us), bytes_per_s.map(units::bit_rate)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
