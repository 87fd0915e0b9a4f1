//! Each warning is given for what it is about, and not otherwise.

use super::*;
use crate::failure::Failure;
use crate::measure::Unit;
use crate::stats::tests::Run;

const UNIT: Unit = Unit::PerSecond;

/// Six quiet rounds with a control, on an idle machine.
fn quiet() -> Run {
    let mut run = Run::new(6).subject("sshfs (control)", Some("sshfs"));
    run.results.environment.cpus = 4;
    for step in 0..4 {
        let id = format!("step.{step}");
        run = run
            .values(&id, UNIT, "sshfs", &[100.0, 101.0, 99.0, 100.5, 99.5, 100.0])
            .values(&id, UNIT, "sshfs (control)", &[100.0, 99.0, 101.0, 99.5, 100.5, 100.0])
            .values(&id, UNIT, "sshoal", &[200.0, 199.0, 201.0, 200.5, 199.5, 200.0]);
    }
    run
}

fn expect_one(results: &Results, part: &str) {
    let found = warnings(results);
    assert!(found.iter().filter(|warning| warning.contains(part)).count() == 1, "{found:#?}");
}

#[test]
fn a_quiet_run_has_none() {
    assert_eq!(warnings(&quiet().results), [""; 0]);
}

#[test]
fn the_machine_is_judged() {
    let mut run = quiet();
    let environment = &mut run.results.environment;
    environment.cpus = 1;
    environment.load = 1.5;
    environment.scratch = "tmpfs".to_owned();
    environment.cpu_flags = vec!["hypervisor".to_owned()];
    for part in
        ["only one CPU", "busy when the run began", "in memory", "virtual machine", "no AES"]
    {
        expect_one(&run.results, part);
    }
}

#[test]
fn a_link_that_is_not_what_was_asked_for_is_named() {
    let mut run = quiet();
    run.results.link.asked_rtt_us = Some(500.0);
    run.results.link.measured_rtt_us = Some(540.0);
    run.results.link.asked_bytes_per_s = Some(125e6);
    run.results.link.measured_bytes_per_s = Some(100e6);
    let found = warnings(&run.results);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("800 Mbit/s") && found[0].contains("1.00 Gbit/s"), "{found:?}");
}

#[test]
fn noise_is_named_with_the_worst_figures() {
    let run = quiet().values("wild", UNIT, "sshoal", &[50.0, 150.0, 60.0, 140.0, 100.0, 90.0]);
    expect_one(&run.results, "in 1 of 13 figures, most in wild of sshoal");
}

#[test]
fn a_control_that_is_loud_or_off_is_named() {
    let with_wild = |controls: &[f64]| {
        quiet().values("wild", UNIT, "sshfs", &[100.0; 6]).values(
            "wild",
            UNIT,
            "sshfs (control)",
            controls,
        )
    };
    expect_one(&with_wild(&[150.0; 6]).results, "on one side of 1 in wild (1.50×)");
    let mut run = with_wild(&[150.0, 100.0, 100.0, 100.0, 99.0, 100.0]);
    assert_eq!(warnings(&run.results), [""; 0], "one measure of five");
    run.results.measures.retain(|measure| measure.id == "wild");
    expect_one(&run.results, "differs from its original by up to 50.0 % in a typical measure");
}

#[test]
fn a_run_without_control_or_with_few_rounds_says_what_it_cannot_tell() {
    let run = Run::new(3).values("step", UNIT, "sshfs", &[1.0, 1.0, 1.0]);
    expect_one(&run.results, "There is no control");
    expect_one(&run.results, "With 3 rounds there is no interval of 95 %");
}

#[test]
fn wrong_data_comes_first() {
    let mut run = quiet().failure("step.1", "sshoal", 2, Failure::wrong("block 3"));
    run.results.partial = Some("interrupted".to_owned());
    let found = warnings(&run.results);
    assert!(found[0].starts_with("Wrong data: step.1 of sshoal."), "{found:?}");
    assert!(found[1].contains("interrupted"), "{found:?}");
}
