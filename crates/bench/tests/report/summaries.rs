//! The file: readable for good, and what is in it follows from its samples.

use bench::compare::{Verdict, compare};
use bench::results::{Outcome, Results, SCHEMA};
use bench::stats::{summarize, warnings};

use super::{FIXTURE, fixture};

#[test]
fn the_fixture_is_read_and_written_without_loss() {
    let results = fixture();
    assert_eq!(results.schema, SCHEMA);
    let again: Results =
        serde_json::from_str(&serde_json::to_string_pretty(&results).unwrap()).unwrap();
    assert_eq!(again, results);
    let before: serde_json::Value = serde_json::from_str(FIXTURE).unwrap();
    let after = serde_json::to_value(&results).unwrap();
    assert_eq!(after, before, "a field of the schema was renamed, dropped, or never in it");
}

#[test]
fn summaries_and_warnings_follow_from_the_samples() {
    let results = fixture();
    let summaries = summarize(&results);
    assert_eq!(summaries.len(), results.summaries.len());
    for (now, then) in summaries.iter().zip(&results.summaries) {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
        assert_eq!((&now.measure, &now.subject), (&then.measure, &then.subject));
        assert_eq!((now.n, now.failed), (then.n, then.failed), "{}", now.measure);
        assert!(
            near(now.spread.median, then.spread.median) && near(now.spread.low, then.spread.low),
            "{now:?} {then:?}"
        );
        let ratios = now.ratio.as_ref().zip(then.ratio.as_ref());
        assert_eq!(ratios.is_some(), now.ratio.is_some() || then.ratio.is_some());
        if let Some((now, then)) = ratios {
            assert!(near(now.value, then.value) && near(now.low, then.low), "{now:?} {then:?}");
            assert_eq!(now.significant, then.significant, "{now:?}");
        }
    }
    // The last one is of single rounds that are far from the others, which older versions gave.
    assert_eq!(warnings(&results), results.warnings[..3]);
}

#[test]
fn a_comparison_fits_the_terminal_and_finds_what_was_slowed_down() {
    let old = fixture();
    let mut text = FIXTURE.to_owned();
    text = text.replace("\"started\": \"2026-11-21", "\"started\": \"2026-11-22");
    let mut new: Results = serde_json::from_str(&text).unwrap();
    for sample in &mut new.samples {
        let slowed = sample.measure == "iozone.write" && sample.subject == "sshoal";
        if let (true, Outcome::Measured(measured)) = (slowed, &mut sample.outcome) {
            measured.value *= 0.7;
        }
    }
    let comparison = compare(&old, &new, 0.1);
    let found: Vec<_> = comparison.regressions().collect();
    assert_eq!(found.len(), 1, "{comparison}");
    assert_eq!(found[0].verdict, Verdict::Worse);
    assert_eq!(compare(&new, &old, 0.1).regressions().count(), 0);
    for line in comparison.to_string().lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}
