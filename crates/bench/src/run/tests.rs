//! Runs of subjects and works that do nothing but fail in the ways in which real ones do.

pub(crate) mod fake;

use std::sync::Arc;
use std::time::Duration;

use crate::failure::Failure;
use crate::progress::Progress;
use crate::results::{Outcome, Results};

use super::{rotated, turns};
use fake::{Act, Log, Refused, Scene};

fn outcome<'a>(results: &'a Results, subject: &str, step: &str, round: u32) -> &'a Outcome {
    let measure = format!("fake.{step}");
    let mut found = results.samples.iter().filter(|sample| {
        sample.subject == subject && sample.measure == measure && sample.round == round
    });
    let sample = found.next().unwrap_or_else(|| panic!("no sample of {measure} of {subject}"));
    assert!(found.next().is_none(), "two samples of {measure} of {subject}");
    &sample.outcome
}

/// `ok`, or the kind of failure.
fn told(results: &Results, subject: &str, step: &str) -> &'static str {
    match outcome(results, subject, step, 0) {
        Outcome::Measured(_) => "ok",
        Outcome::Failed { failure } => match failure {
            Failure::Failed { .. } => "failed",
            Failure::TimedOut { .. } => "timed out",
            Failure::WrongData { .. } => "wrong",
            Failure::NotTried { .. } => "not tried",
            Failure::Interrupted => "interrupted",
        },
    }
}

fn all_told<'a>(
    results: &Results,
    subject: &str,
    steps: &[&'a str],
) -> Vec<(&'a str, &'static str)> {
    steps.iter().map(|step| (*step, told(results, subject, step))).collect()
}

#[test]
fn all_do_all_in_turn() {
    let mut scene = Scene::new(&["a", "b", "c"], &["one", "two"]);
    scene.rounds = 3;
    let mut kept = 0;
    let results = scene.run_keeping(&mut |results| {
        kept += 1;
        assert!(results.partial.is_some());
        assert_eq!(results.samples.len(), kept * 6);
    });
    assert_eq!(kept, 2, "after each round but the last");
    assert_eq!(results.partial, None);
    assert_eq!(results.samples.len(), 18);
    let order: Vec<&str> =
        results.samples.iter().step_by(2).map(|sample| sample.subject.as_str()).collect();
    assert_eq!(order, ["a", "b", "c", "b", "c", "a", "c", "a", "b"]);
    let ids: Vec<&str> = results.measures.iter().map(|measure| measure.id.as_str()).collect();
    assert_eq!(ids, ["fake.one", "fake.two"]);
    assert_eq!(results.summaries.len(), 6);
    assert_eq!(scene.log.count("start"), 9, "a session for a work of a subject in a round");
    assert_eq!(scene.log.count("stop"), 9);
    assert_eq!(scene.log.count("abandon"), 0);
    let seeds: Vec<u64> = scene.log.seeds();
    assert_eq!(seeds, [7, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9]);
}

/// A second program was built with what the first one had left in the subject's cache.
#[test]
fn only_a_step_that_asks_for_it_keeps_the_cache_on_the_disk() {
    let steps = ["cold one", "hot one", "kept one", "cold two", "kept two"];
    let scene = Scene::new(&["a"], &steps);
    let results = scene.run();
    assert!(steps.iter().all(|step| told(&results, "a", step) == "ok"));
    let log = |prefix| scene.log.count(prefix);
    assert_eq!((log("start"), log("forget"), log("remount")), (1, 1, 2));

    // Whose session failed has an empty cache.
    let mut scene = Scene::new(&["a"], &steps);
    scene.act("a", "hot one", Act::Fail);
    let told = all_told(&scene.run(), "a", &steps);
    assert_eq!(
        told.iter().map(|it| it.1).collect::<Vec<_>>(),
        ["ok", "failed", "not tried", "ok", "ok"]
    );
}

#[test]
fn a_failure_costs_the_session_and_what_it_warms() {
    let mut scene = Scene::new(&["a", "b"], &["one", "cold", "hot", "hotter", "last"]);
    scene.act("a", "cold", Act::Fail);
    scene.act("b", "one", Act::Wrong);
    let results = scene.run();
    assert_eq!(
        all_told(&results, "a", &["one", "cold", "hot", "hotter", "last"]),
        [
            ("one", "ok"),
            ("cold", "failed"),
            ("hot", "not tried"),
            ("hotter", "not tried"),
            ("last", "ok")
        ]
    );
    assert_eq!(told(&results, "b", "one"), "wrong");
    assert_eq!(told(&results, "b", "hotter"), "ok");
    assert_eq!((scene.log.count("start"), scene.log.count("stop")), (4, 4));
    assert_eq!(scene.log.count("forget"), 1, "before the cold step, but not of a new session");
    assert_eq!(results.partial, None);
}

#[test]
fn what_hangs_is_left_behind_and_soon_given_up() {
    let mut scene = Scene::new(&["a", "b"], &["one", "two", "three", "four"]);
    scene.act("a", "one", Act::Hang);
    scene.act("b", "one", Act::Hang);
    scene.act("b", "two", Act::Hang);
    scene.deadline = Duration::from_secs(1);
    let results = scene.run();
    let steps = ["one", "two", "three", "four"];
    assert_eq!(
        all_told(&results, "a", &steps),
        [("one", "timed out"), ("two", "ok"), ("three", "ok"), ("four", "ok")]
    );
    assert_eq!(
        all_told(&results, "b", &steps),
        [("one", "timed out"), ("two", "timed out"), ("three", "not tried"), ("four", "not tried")]
    );
    assert_eq!(scene.log.count("abandon"), 3);
    assert_eq!(scene.log.count("start"), 4);
}

#[test]
fn a_subject_that_hangs_now_and_then_is_not_given_up() {
    let steps = ["one", "two", "three", "four"];
    let mut scene = Scene::new(&["a"], &steps);
    scene.act("a", "one", Act::Hang);
    scene.act("a", "three", Act::Hang);
    scene.deadline = Duration::from_secs(1);
    let told = all_told(&scene.run(), "a", &steps);
    let outcomes: Vec<&str> = told.iter().map(|it| it.1).collect();
    assert_eq!(outcomes, ["timed out", "ok", "timed out", "ok"]);
}

#[test]
fn what_does_not_start_is_given_up() {
    let mut scene = Scene::new(&["a", "b"], &["one", "two", "three"]);
    scene.rounds = 5;
    scene.refuse("a", Refused::Start);
    let results = scene.run();
    assert_eq!(
        all_told(&results, "a", &["one", "two", "three"]),
        [("one", "failed"), ("two", "failed"), ("three", "not tried")]
    );
    assert_eq!(scene.log.count("refuse"), 6, "two in each of three rounds, then no more");
    match outcome(&results, "a", "one", 4) {
        Outcome::Failed { failure: Failure::NotTried { why } } => {
            assert!(why.contains("3 works in a row"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(outcome(&results, "b", "three", 4), Outcome::Measured(_)));
}

#[test]
fn who_cannot_choose_is_not_given_up() {
    let steps = ["one", "two", "three", "four", "five"];
    let mut scene = Scene::new(&["a"], &steps);
    for step in ["one", "two", "three"] {
        scene.tune(step, "aes128-ctr");
    }
    scene.refuse("a", Refused::Tuning);
    scene.act("a", "four", Act::Fail);
    let results = scene.run();
    let (not_tried, failed, ok) = ("not tried", "failed", "ok");
    let told: Vec<_> =
        steps.into_iter().zip([not_tried, not_tried, not_tried, failed, ok]).collect();
    assert_eq!(all_told(&results, "a", &steps), told);
}

#[test]
fn steps_that_are_nothing_for_a_subject_are_not_missed() {
    let mut scene = Scene::new(&["a", "b"], &["one", "two"]);
    scene.act("a", "one", Act::Pass);
    let results = scene.run();
    assert_eq!(results.samples.len(), 3);
    assert!(!results.samples.iter().any(|s| s.subject == "a" && s.measure == "fake.one"));
}

#[test]
fn a_step_past_the_subject_is_no_part_of_a_run_on_another_machine() {
    let scene = Scene::new(&["a"], &["one", "here"]);
    let text = Log::default();
    let results = scene.run_shown(&mut Progress::lines(text.clone()));
    assert_eq!(results.samples.len(), 1, "{:?}", results.samples);
    assert!(text.lines().iter().any(|line| line.starts_with("[1/1] ")), "{:?}", text.lines());
}

#[test]
fn what_cannot_forget_is_not_called_cold() {
    let mut scene = Scene::new(&["a", "b"], &["one", "cold", "hot"]);
    scene.refuse("a", Refused::Forget);
    let results = scene.run();
    assert_eq!(told(&results, "a", "cold-as-cached"), "ok");
    assert_eq!(told(&results, "b", "cold"), "ok");
    assert_eq!(results.samples.len(), 6);
    let titles: Vec<&str> = results.measures.iter().map(|m| m.title.as_str()).collect();
    assert_eq!(titles, ["one", "cold", "cold, caches as they were", "hot"]);
}

#[test]
fn equal_tunings_share_a_session() {
    let mut scene = Scene::new(&["a"], &["one", "two", "three"]);
    scene.tune("two", "aes128-ctr");
    scene.tune("three", "aes128-ctr");
    scene.run();
    assert_eq!(scene.log.all("start"), ["start a", "start a aes128-ctr"]);
    assert_eq!(scene.log.count("stop"), 2);
}

#[test]
fn a_session_that_does_not_stop_is_ended_and_told_of() {
    let mut scene = Scene::new(&["a"], &["one"]);
    scene.refuse("a", Refused::Stop);
    let results = scene.run();
    assert_eq!(told(&results, "a", "one"), "ok");
    assert_eq!(scene.log.count("abandon"), 1);
    let warned = results.warnings.iter().any(|warning| warning.contains("ended by force"));
    assert!(warned, "{:?}", results.warnings);
}

#[test]
fn an_interrupted_run_is_partial_and_leaves_nothing() {
    let mut scene = Scene::new(&["a", "b"], &["one", "two", "three"]);
    scene.act("b", "two", Act::Interrupt);
    let results = scene.run();
    assert_eq!(results.partial.as_deref(), Some("interrupted"));
    assert_eq!(results.samples.len(), 4, "three of a, one of b");
    assert_eq!(results.summaries.len(), 4);
    assert_eq!(scene.log.count("start"), 2);
    assert_eq!(scene.log.count("stop"), 2, "in order, though interrupted");
    assert!(scene.is_clean());
}

#[test]
fn a_run_that_is_interrupted_by_another_thread_does_not_wait_for_the_step() {
    let mut scene = Scene::new(&["a"], &["one"]);
    scene.act("a", "one", Act::Hang);
    let executor = scene.executor.clone();
    let log = Arc::clone(&scene.log);
    let interrupter = std::thread::spawn(move || {
        log.wait_for("hang");
        executor.interrupt();
    });
    let results = scene.run();
    interrupter.join().unwrap();
    assert_eq!(results.partial.as_deref(), Some("interrupted"));
    assert!(results.samples.is_empty());
    assert!(scene.is_clean());
}

#[test]
fn data_that_cannot_be_made_or_laid_out_leave_the_work_out() {
    let mut scene = Scene::new(&["a"], &["one"]);
    scene.refuse("fake", Refused::Make);
    let results = scene.run();
    assert_eq!(results.samples.len(), 0);
    assert_eq!(results.left_out[0].name, "fake");
    assert_eq!(results.partial.as_deref(), Some("nothing was measured"));
    let mut scene = Scene::new(&["a", "b"], &["one"]);
    scene.refuse("storage of b", Refused::Put);
    let results = scene.run();
    assert_eq!(results.left_out.len(), 1);
    assert_eq!(results.left_out[0].name, "fake on storage of b");
    assert_eq!(told(&results, "a", "one"), "ok");
    assert_eq!(results.samples.len(), 1);
}

#[test]
fn a_panic_takes_everything_down() {
    let mut scene = Scene::new(&["a"], &["one"]);
    scene.act("a", "one", Act::Panic);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scene.run()));
    assert!(panicked.is_err());
    assert_eq!(scene.log.count("abandon"), 1);
    assert!(scene.is_clean());
}

/// The disk would be busy with them while the first subject is measured.
#[test]
fn prepared_data_are_on_the_disk_before_the_first_step() {
    let scene = Scene::new(&["a"], &["one"]);
    let text = Log::default();
    let results = scene.run_shown(&mut Progress::lines(text.clone()));
    let lines = text.lines();
    let wanted = ["preparing fake", "writing the data to the disk"];
    assert!(lines.len() > 2 && lines.iter().zip(wanted).all(|(it, to)| it.trim_end() == to));
    assert_eq!(results.warnings.iter().find(|it| it.contains("to the disk")), None);
}

#[test]
fn a_line_for_each_work_of_each_subject_in_each_round() {
    let mut scene = Scene::new(&["a", "b"], &["one", "two"]);
    scene.rounds = 2;
    scene.act("b", "two", Act::Fail);
    let text = Log::default();
    let results = scene.run_shown(&mut Progress::lines(text.clone()));
    let lines = text.lines();
    let bouts: Vec<&String> = lines.iter().filter(|line| line.starts_with('[')).collect();
    assert_eq!(bouts.len(), 4, "{lines:?}");
    assert!(bouts[0].starts_with("[2/8] round 1 of 2: fake: a: "), "{}", bouts[0]);
    assert!(bouts[0].contains("left"), "{}", bouts[0]);
    assert!(bouts[1].contains(", 1 of 2 failed"), "{}", bouts[1]);
    assert!(bouts[3].starts_with("[8/8] round 2 of 2: ") && !bouts[3].contains("left"));
    assert_eq!(lines.iter().filter(|line| line.starts_with("b: fake.two: ")).count(), 2);
    assert_eq!(results.samples.len(), 8);
}

#[test]
fn each_round_begins_with_the_next() {
    let orders: Vec<Vec<usize>> =
        (0..4).map(|round| rotated(&[0, 1, 2], round).collect()).collect();
    assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
    assert_eq!(rotated(&[], 3).count(), 0);
}

#[test]
fn the_control_is_at_a_distance() {
    assert_eq!(turns(3, None), [0, 1, 2]);
    assert_eq!(turns(2, Some((1, 0))), [0, 1]);
    for count in 4..9 {
        for of in 0..count - 1 {
            let turns = turns(count, Some((count - 1, of)));
            let mut sorted = turns.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..count).collect::<Vec<_>>());
            let place = |of: usize| turns.iter().position(|&subject| subject == of).unwrap();
            let apart = place(count - 1).abs_diff(place(of));
            let apart = apart.min(count - apart);
            assert!(apart >= count / 2, "{turns:?}: {of} and {}", count - 1);
        }
    }
}
