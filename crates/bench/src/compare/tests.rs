//! What counts as a regression, and what does not.

use super::*;
use crate::failure::Failure;
use crate::measure::Unit;
use crate::results::{Measured, Outcome, Requests, Usage, Wire};
use crate::stats::tests::Run;

const READ: &str = "iozone.read";
const FIND: &str = "tree.find";

fn run(ours: &[f64], peer: &[f64]) -> Run {
    let values = |run: Run, of: &str, values: &[f64]| {
        let times: Vec<f64> = values.iter().map(|value| 1.0 / value).collect();
        run.values(READ, Unit::BytesPerSecond, of, values).values(FIND, Unit::Seconds, of, &times)
    };
    let run = Run::new(5).subject("sshfs (control)", Some("sshfs"));
    let run = values(run, "sshoal", ours);
    let run = values(run, "sshfs", peer);
    values(run, "sshfs (control)", peer)
}

const BEFORE: [f64; 5] = [100.0, 101.0, 99.0, 100.5, 99.5];

fn scaled(factor: f64) -> [f64; 5] {
    BEFORE.map(|value| value * factor)
}

fn verdict(comparison: &Comparison, measure: &str, subject: &str) -> Verdict {
    let found = |change: &&Change| change.measure.id == measure && change.subject == subject;
    comparison.changes.iter().find(found).unwrap().verdict
}

#[test]
fn a_run_is_the_same_as_itself() {
    let run = run(&BEFORE, &BEFORE).results;
    let comparison = compare(&run, &run, 0.1);
    assert!(comparison.changes.iter().all(|change| change.verdict == Verdict::Same));
    assert_eq!(comparison.changes.len(), 6);
    assert_eq!(comparison.regressions().count(), 0);
    assert_eq!(comparison.notes, [""; 0]);
    assert!(comparison.to_string().contains("0 regressions of sshoal past 10.0 %"), "{comparison}");
}

#[test]
fn worse_past_noise_and_tolerance_is_a_regression_whatever_the_unit() {
    let old = run(&BEFORE, &BEFORE).results;
    let new = run(&scaled(0.8), &BEFORE).results;
    let comparison = compare(&old, &new, 0.1);
    assert_eq!(verdict(&comparison, READ, "sshoal"), Verdict::Worse);
    assert_eq!(verdict(&comparison, FIND, "sshoal"), Verdict::Worse);
    assert_eq!(verdict(&comparison, READ, "sshfs"), Verdict::Same);
    assert_ne!(comparison.regressions().count(), 0);
    assert!(comparison.to_string().contains("2 regressions of sshoal past 10.0 %"), "{comparison}");
    let back = compare(&new, &old, 0.1);
    assert_eq!(verdict(&back, READ, "sshoal"), Verdict::Better);
    assert_eq!(back.regressions().count(), 0);
}

#[test]
fn within_the_tolerance_it_is_the_same() {
    let old = run(&BEFORE, &BEFORE).results;
    let new = run(&scaled(0.93), &BEFORE).results;
    assert_eq!(verdict(&compare(&old, &new, 0.1), READ, "sshoal"), Verdict::Same);
    assert_eq!(compare(&old, &new, 0.05).regressions().count(), 2);
}

#[test]
fn what_noise_explains_is_no_regression() {
    let wild = [60.0, 150.0, 100.0, 130.0, 75.0];
    let old = run(&wild, &BEFORE).results;
    let comparison = compare(&old, &run(&wild.map(|v| v * 0.8), &BEFORE).results, 0.1);
    assert_eq!(verdict(&comparison, READ, "sshoal"), Verdict::Same);
    assert_eq!(comparison.regressions().count(), 0);
}

#[test]
fn a_run_with_nothing_and_something_has_infinite_noise() {
    let (some, steady) = ([0.0, 0.0, 5.0, 6.0, 7.0], [9.0; 5]);
    assert_eq!(spread_of_both(&some, &steady), f64::INFINITY);
    assert_eq!(spread_of_both(&steady, &[0.0; 5]), 1.0);
}

#[test]
fn a_peer_does_not_decide() {
    let old = run(&BEFORE, &BEFORE).results;
    let comparison = compare(&old, &run(&BEFORE, &scaled(0.5)).results, 0.1);
    assert_eq!(verdict(&comparison, READ, "sshfs"), Verdict::Worse);
    assert_eq!(comparison.regressions().count(), 0);
    assert!(comparison.to_string().contains("worse      iozone.read of sshfs"), "{comparison}");
}

/// The run with these costs in each sample of sshoal.
fn with_costs(mut run: Results, cost: impl Fn(&mut Measured)) -> Results {
    for sample in run.samples.iter_mut().filter(|sample| sample.subject == "sshoal") {
        if let Outcome::Measured(measured) = &mut sample.outcome {
            cost(measured);
        }
    }
    run
}

#[test]
fn costs_that_changed_are_shown_and_are_no_regression() {
    let cost = |bytes: u64, requests: u64, user_s: f64| {
        with_costs(run(&BEFORE, &BEFORE).results, |it| {
            it.wire = Some(Wire { to_server_bytes: bytes, from_server_bytes: 5_000_000 });
            let server = [("read".to_owned(), requests), ("open".to_owned(), 1)].into();
            it.requests = Some(Requests { server, ..Requests::default() });
            it.client = Usage { user_s, ..Usage::default() };
        })
    };
    let old = cost(1_000_000, 1_000, 0.10);
    let comparison = compare(&old, &cost(2_500_000, 400, 0.14), 0.1);
    assert_eq!(comparison.regressions().count(), 0);
    let text = comparison.to_string();
    for (verdict, what, values) in
        [("more", "bytes sent", "1.00 → 2.50 MB"), ("less", "requests to the server", "1000 → 401")]
    {
        let line = text.lines().find(|line| line.starts_with(verdict)).expect(verdict);
        assert!(line.contains(&format!("{FIND} of sshoal")) || line.contains(READ), "{line}");
        assert!(line.contains(what) && line.contains(values), "{line}");
        assert!(line.chars().count() <= 100, "{line}");
    }
    // Four hundredths of a second are four ticks, and five million bytes stay the same.
    assert!(!text.contains("client, user") && !text.contains("received"), "{text}");
    assert!(compare(&old, &cost(1_050_000, 1_050, 0.10), 0.1).costs.iter().all(|it| it.is_same));
    // What only one of them knows is not compared: client CPU, twice for each subject.
    let without = compare(&run(&BEFORE, &BEFORE).results, &old, 0.1);
    assert!(without.costs.iter().all(|it| it.cost.starts_with("client")), "{without:?}");
}

#[test]
fn costs_of_timed_steps_are_for_as_many_operations() {
    let timed = |operations: u64, bytes: u64| {
        with_costs(run(&BEFORE, &BEFORE).results, |it| {
            it.operations = operations;
            it.wire = Some(Wire { to_server_bytes: bytes, from_server_bytes: 0 });
        })
    };
    let old = timed(1_000, 1_000_000);
    let comparison = compare(&old, &timed(3_000, 3_000_000), 0.1);
    assert!(comparison.costs.iter().all(|it| it.is_same), "{comparison}");
    let comparison = compare(&old, &timed(3_000, 6_000_000), 0.1);
    assert!(comparison.to_string().contains("1.00 → 2.00 MB"), "{comparison}");
    // What varies from round to round by more says nothing.
    let wild = |factor: u64| {
        let mut run = timed(1, 0);
        for (number, sample) in run.samples.iter_mut().enumerate() {
            if let Outcome::Measured(measured) = &mut sample.outcome {
                let bytes = [100_000, 900_000, 300_000, 500_000, 200_000][number % 5];
                measured.wire =
                    Some(Wire { to_server_bytes: factor * bytes, from_server_bytes: 0 });
            }
        }
        run
    };
    let comparison = compare(&wild(1), &wild(2), 0.1);
    assert!(comparison.costs.iter().all(|it| it.is_same), "{comparison}");
}

#[test]
fn failing_and_wrong_data_are_regressions_and_recovery_is_none() {
    let old = run(&BEFORE, &BEFORE).failure("new.step", "sshoal", 0, Failure::failed("no")).results;
    let mut new = run(&BEFORE, &BEFORE);
    new.results.samples.retain(|s| s.subject != "sshoal" || s.measure != FIND);
    let new = new.failure(FIND, "sshoal", 0, Failure::failed("EIO"));
    let new = new.failure(READ, "sshoal", 0, Failure::wrong("block 1")).results;
    let comparison = compare(&old, &new, 0.1);
    assert_eq!(verdict(&comparison, FIND, "sshoal"), Verdict::FailsNow);
    assert_eq!(verdict(&comparison, READ, "sshoal"), Verdict::WrongData);
    assert_ne!(comparison.regressions().count(), 0);
    let back = compare(&new, &old, 0.1);
    assert_eq!(verdict(&back, FIND, "sshoal"), Verdict::Better);
    let neither = compare(&new, &new, 0.1);
    assert_eq!(verdict(&neither, FIND, "sshoal"), Verdict::Same);
    assert_eq!(neither.regressions().count(), 0);
    assert_eq!(back.regressions().count(), 0);
}

#[test]
fn a_figure_that_is_absent_from_its_work_is_a_regression() {
    let mut old = run(&BEFORE, &BEFORE).results;
    old.settings.works = ["iozone", "tree"].map(str::to_owned).into();
    let mut new = old.clone();
    new.samples.retain(|sample| sample.measure != FIND);
    let comparison = compare(&old, &new, 0.1);
    assert_eq!(verdict(&comparison, FIND, "sshoal"), Verdict::Absent);
    assert_eq!(verdict(&comparison, FIND, "sshfs"), Verdict::Absent);
    assert_eq!(comparison.regressions().count(), 1);
    assert!(comparison.to_string().contains("absent     tree.find of sshoal"), "{comparison}");
    // It was not done yet.
    let partial = Results { partial: Some("interrupted".to_owned()), ..new };
    assert_eq!(compare(&old, &partial, 0.1).regressions().count(), 0);
}

#[test]
fn works_and_subjects_of_one_run_only_are_named() {
    let mut old = run(&BEFORE, &BEFORE).results;
    old.settings.works = ["iozone", "tree"].map(str::to_owned).into();
    let mut new = old.clone();
    new.settings.works.pop();
    new.samples.retain(|sample| sample.measure != FIND && sample.subject != "sshfs");
    new.subjects.retain(|subject| subject.name != "sshfs");
    let comparison = compare(&old, &new, 0.1);
    assert_eq!(comparison.regressions().count(), 0);
    let subjects = "subjects: sshoal, sshfs, sshfs (control) → sshoal, sshfs (control)";
    assert_eq!(comparison.notes, ["works: iozone, tree → iozone", subjects]);
}

#[test]
fn circumstances_that_differ_are_named() {
    let old = run(&BEFORE, &BEFORE).results;
    let mut new = old.clone();
    new.environment.kernel = "Linux 7.0".to_owned();
    new.link.name = "wan".to_owned();
    new.settings.size = "full".to_owned();
    new.partial = Some("interrupted".to_owned());
    let text = compare(&old, &new, 0.1).to_string();
    for part in [
        "kernel: none → Linux 7.0",
        "link: none → wan",
        "size: none → full",
        "The new run is not complete: interrupted.",
    ] {
        assert!(text.contains(part), "{part} in:\n{text}");
    }
}

#[test]
fn other_quantities_are_named_before_other_circumstances() {
    let mut old = run(&BEFORE, &BEFORE).results;
    let mut new = old.clone();
    let quantities = |bytes: f64| [("iozone.random_bytes".to_owned(), bytes)].into();
    old.settings.quantities = quantities(8.0 * 1024.0 * 1024.0);
    new.link.name = "wan".to_owned();
    // An older file has none.
    assert!(!compare(&new, &old, 0.1).to_string().contains("iozone.random_bytes"));
    new.settings.quantities = quantities(1024.0 * 1024.0);
    let notes = compare(&old, &new, 0.1).notes;
    assert_eq!(notes[0], "iozone.random_bytes: 8388608 → 1048576");
    new.settings.quantities = old.settings.quantities.clone();
    assert_eq!(compare(&old, &new, 0.1).notes, ["link: none → wan"]);
    // Two links of the same name.
    old.link.name = "wan".to_owned();
    new.link.asked_rtt_us = Some(5000.0);
    assert_eq!(compare(&old, &new, 0.1).notes, ["link: wan → wan (asked for 5.00 ms)"]);
}

#[test]
fn single_rounds_are_judged_by_the_tolerance_and_say_so() {
    let one = |value: f64| Run::new(1).values(READ, Unit::PerSecond, "sshoal", &[value]).results;
    let comparison = compare(&one(100.0), &one(80.0), 0.1);
    assert_ne!(comparison.regressions().count(), 0);
    assert!(comparison.notes.iter().any(|note| note.contains("may be chance")));
}
