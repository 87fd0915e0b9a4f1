//! What a reader has to know to trust the figures, each with what to do about it. Nothing here
//! looks at the machine: all of it follows from the results.

use crate::results::{Environment, LinkReport, Results};
use crate::units;

use super::{Index, Noise, Spread, failures};

/// Quartile distance, as a part of the median, above which a figure is called noisy.
const WIDE_SPREAD: f64 = 0.10;

/// Noise of the control above which small differences cannot be seen.
const LOUD: f64 = 1.10;

/// Load for each CPU at the start above which the machine was not idle.
const BUSY: f64 = 0.3;

/// How far a link may be from what was asked for.
const LINK_TOLERANCE: f64 = 0.10;

/// Rounds from which on an interval of 95 % exists.
const ROUNDS_FOR_INTERVAL: u32 = 6;

/// How many examples a warning gives.
const EXAMPLES: usize = 3;

/// All warnings, the gravest first. Each is one line: what, why it matters, what to do.
pub fn warnings(results: &Results) -> Vec<String> {
    let index = Index::of(results);
    let mut warnings = Vec::new();
    warnings.extend(wrong_data(results));
    warnings.extend(results.partial.as_ref().map(|why| {
        format!("The run is not complete: {why}. Figures that are missing were not measured.")
    }));
    warnings.extend(of_control(results, &index));
    warnings.extend(of_rounds(results));
    warnings.extend(of_machine(&results.environment));
    warnings.extend(of_link(&results.link));
    warnings.extend(of_spread(results, &index));
    warnings
}

fn wrong_data(results: &Results) -> Option<String> {
    let mut found: Vec<String> = failures(results)
        .into_iter()
        .filter(|line| line.wrong_data)
        .map(|line| format!("{} of {}", line.measure, line.subject))
        .collect();
    found.dedup();
    (!found.is_empty()).then(|| {
        format!(
            "Wrong data: {}. These samples do not count, however fast they came. Do not use the \
             subject before the cause is known.",
            examples(&found)
        )
    })
}

fn of_control(results: &Results, index: &Index<'_>) -> Vec<String> {
    let Some(noise) = Noise::of(results, index) else {
        return vec![
            "There is no control (the same subject twice), so no difference can be told from \
             chance. Run without --no-control."
                .to_owned(),
        ];
    };
    let mut warnings = Vec::new();
    if noise.typical() > LOUD {
        warnings.push(format!(
            "The control differs from its original by up to {} in a typical measure: smaller \
             differences mean nothing. Close other programs, take more rounds (--rounds) or a \
             larger size.",
            units::percent(noise.typical() - 1.0)
        ));
    }
    let off: Vec<String> =
        noise.off().iter().map(|&(id, ratio)| format!("{id} ({})", units::ratio(ratio))).collect();
    if !off.is_empty() {
        warnings.push(format!(
            "The whole interval of the control is on one side of 1 in {}. There only greater \
             differences are significant; take more rounds (--rounds) to see whether it stays.",
            examples(&off)
        ));
    }
    warnings
}

fn of_rounds(results: &Results) -> Option<String> {
    let rounds = results.settings.rounds;
    (rounds < ROUNDS_FOR_INTERVAL).then(|| {
        format!(
            "With {} there is no interval of 95 %: the ranges of the ratios are those of the \
             rounds. Take --rounds {ROUNDS_FOR_INTERVAL} or more for one.",
            units::counted(u64::from(rounds), "round")
        )
    })
}

fn of_machine(environment: &Environment) -> Vec<String> {
    let mut warnings = Vec::new();
    let cpus = f64::from(environment.cpus.max(1));
    if environment.load > BUSY * cpus {
        warnings.push(format!(
            "The machine was busy when the run began (load {} on {}). Close other programs and \
             repeat.",
            units::significant(environment.load),
            units::counted(environment.cpus.into(), "CPU")
        ));
    }
    if environment.cpus == 1 {
        warnings.push(
            "There is only one CPU: client, server and cipher take turns on it, so figures are \
             lower than between two machines. Use a machine with more, or --host."
                .to_owned(),
        );
    }
    let has = |flag: &str| environment.cpu_flags.iter().any(|known| known == flag);
    if has("hypervisor") {
        warnings.push(
            "This is a virtual machine: other guests can take its CPU unseen. Trust ratios more \
             than figures, and repeat at another time."
                .to_owned(),
        );
    }
    if !environment.cpu_flags.is_empty() && !has("aes") {
        warnings.push(
            "The CPU has no AES instructions: AES ciphers are slow here, and the figures do not \
             hold for a machine that has them. Try chacha20-poly1305 (--ciphers)."
                .to_owned(),
        );
    }
    if ["tmpfs", "ramfs"].iter().any(|kind| environment.scratch.contains(kind)) {
        warnings.push(
            "The scratch directory is in memory: no write meets a disk, and fsync costs nothing. \
             Give a directory on a disk (--scratch) to measure with one."
                .to_owned(),
        );
    }
    warnings
}

fn of_link(link: &LinkReport) -> Vec<String> {
    let mut warnings = Vec::new();
    type Shown = fn(f64) -> String;
    let mut check = |what: &str, asked: Option<f64>, measured: Option<f64>, show: Shown| {
        let (Some(asked), Some(measured)) = (asked, measured) else { return };
        if (measured / asked - 1.0).abs() > LINK_TOLERANCE {
            warnings.push(format!(
                "The link's {what} was measured to be {}, not the {} asked for. The figures are \
                 those of the measured link; close other programs, or ask for one that this \
                 machine can keep up with.",
                show(measured),
                show(asked)
            ));
        }
    };
    check("round trip", link.asked_rtt_us, link.measured_rtt_us, units::duration_us);
    check("rate", link.asked_bytes_per_s, link.measured_bytes_per_s, units::bit_rate);
    warnings
}

fn of_spread(results: &Results, index: &Index<'_>) -> Option<String> {
    let mut figures = 0;
    let mut wide: Vec<(f64, String)> = Vec::new();
    for measure in &results.measures {
        for subject in &results.subjects {
            let values = index.values(&measure.id, &subject.name);
            let Some(spread) = Spread::of(&values).filter(|_| values.len() > 1) else { continue };
            figures += 1;
            if spread.relative() > WIDE_SPREAD {
                wide.push((spread.relative(), format!("{} of {}", measure.id, subject.name)));
            }
        }
    }
    wide.sort_by(|a, b| b.0.total_cmp(&a.0));
    let worst: Vec<String> = wide
        .iter()
        .map(|(relative, name)| format!("{name} ({})", units::percent(*relative)))
        .collect();
    (!worst.is_empty()).then(|| {
        format!(
            "The quartiles are more than {} of the median apart in {} of {figures} figures, most \
             in {}. Close other programs, take more rounds (--rounds) or a larger size.",
            units::percent(WIDE_SPREAD),
            worst.len(),
            examples(&worst)
        )
    })
}

/// The first few, and how many more there are.
fn examples(names: &[String]) -> String {
    let shown = names.iter().take(EXAMPLES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(EXAMPLES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
