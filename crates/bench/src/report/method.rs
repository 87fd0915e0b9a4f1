//! The method and the circumstances of a run, in words.

use super::view::View;
use crate::results::Results;
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
        ("link", results.link.name.clone()),
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
    facts.retain(|(_, value)| !value.is_empty());
    facts
}

/// The link, asked for and measured.
pub(super) fn link(view: &View<'_>) -> String {
    let link = &view.results.link;
    let both = |rtt: Option<f64>, rate: Option<f64>| {
        let parts = [rtt.map(units::duration_us), rate.map(units::bit_rate)];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    let asked = both(link.asked_rtt_us, link.asked_bytes_per_s);
    let measured = both(link.measured_rtt_us, link.measured_bytes_per_s);
    let mut text = link.name.clone();
    if !asked.is_empty() {
        text += &format!(" (asked for {asked})");
    }
    if !measured.is_empty() {
        text += &format!("; measured {measured}");
    }
    text
}

/// What the figures mean, as sentences.
pub(super) fn sentences(view: &View<'_>) -> Vec<String> {
    let settings = &view.results.settings;
    let (verified, measured) = view.verified();
    let noise = match &view.noise {
        Some(noise) => format!(
            "The control, the same subject measured twice in each round, differs from its \
             original by up to {} in a typical measure. A ratio is significant when it is beyond \
             that, beyond what the control shows in its measure, and all of its interval is on one \
             side of 1; other ratios are marked ≈.",
            units::percent(noise.typical() - 1.0)
        ),
        None => "There was no control, so any ratio may be chance: all are marked ≈.".to_owned(),
    };
    vec![
        format!(
            "Subjects take turns: {}, the order rotated from round to round. Figures are medians \
             of the rounds, spreads are quartiles.",
            units::counted(settings.rounds.into(), "round")
        ),
        format!(
            "Ratios say how many times better a subject is than {}: above 1 is better, for \
             every unit. They are medians of the ratios within the rounds.",
            settings.reference
        ),
        noise,
        "Cold: mounted anew, so that the client has nothing cached; the server's page cache is \
         warm. Hot: the same was done just before. Direct: past the client's page cache."
            .to_owned(),
        format!(
            "Data were compared with the expected data in {verified} of {measured} samples; the \
             others move none. Wrong data is a failure."
        ),
        "CPU is that of the subject's processes (daemon, ssh; sshd and sftp-server), without the \
         programs that use them and without kernel threads."
            .to_owned(),
    ]
}
