//! Known samples, computed by hand, and properties that hold for all.

use proptest::prelude::*;

use super::*;
use crate::failure::Failure;
use crate::measure::{Cache, Unit};
use crate::results::{Outcome, Ratio, Sample, Settings, SubjectInfo};

/// A run that is built a value at a time.
pub(crate) struct Run {
    pub(crate) results: Results,
}

impl Run {
    pub(crate) fn new(rounds: u32) -> Run {
        let settings = Settings { rounds, reference: "sshfs".to_owned(), ..Settings::default() };
        let results = Results { settings, ..Results::default() };
        Run { results }.subject("sshoal", None).subject("sshfs", None)
    }

    pub(crate) fn subject(mut self, name: &str, control_of: Option<&str>) -> Run {
        self.results.subjects.push(SubjectInfo {
            name: name.to_owned(),
            kind: "mount".to_owned(),
            version: String::new(),
            command: String::new(),
            cipher: None,
            control_of: control_of.map(str::to_owned),
        });
        self
    }

    pub(crate) fn values(mut self, measure: &str, unit: Unit, of: &str, values: &[f64]) -> Run {
        if self.results.measures.iter().all(|known| known.id != measure) {
            let (id, title) = (measure.to_owned(), measure.to_owned());
            self.results.measures.push(Measure { id, title, unit, cache: Cache::None });
        }
        for (round, &value) in (0..).zip(values) {
            let measured = Measured { value, ..Measured::default() };
            self.add(measure, of, round, Outcome::Measured(measured));
        }
        self
    }

    pub(crate) fn failure(mut self, measure: &str, of: &str, round: u32, failure: Failure) -> Run {
        self.add(measure, of, round, Outcome::Failed { failure });
        self
    }

    fn add(&mut self, measure: &str, subject: &str, round: u32, outcome: Outcome) {
        let (measure, subject) = (measure.to_owned(), subject.to_owned());
        self.results.samples.push(Sample { measure, subject, round, at_s: 0.0, outcome });
    }

    fn ratio(&self, measure: &str, subject: &str) -> Option<Ratio> {
        let mut summaries = summarize(&self.results).into_iter();
        summaries.find(|s| s.measure == measure && s.subject == subject)?.ratio
    }
}

const READ: &str = "iozone.read";
const FIND: &str = "tree.find";

#[test]
fn a_summary_is_that_of_the_samples() {
    let run = Run::new(5)
        .values(READ, Unit::BytesPerSecond, "sshoal", &[410.0, 400.0, 420.0, 390.0])
        .failure(READ, "sshoal", 4, Failure::failed("EIO"))
        .values(READ, Unit::BytesPerSecond, "sshfs", &[205.0, 200.0, 200.0, 200.0, 200.0]);
    let summaries = summarize(&run.results);
    assert_eq!(summaries.len(), 2);
    let ours = &summaries[0];
    assert_eq!((ours.subject.as_str(), ours.n, ours.failed), ("sshoal", 4, 1));
    assert_eq!((ours.spread.median, ours.spread.low, ours.spread.high), (405.0, 397.5, 412.5));
    assert_eq!((ours.spread.min, ours.spread.max), (390.0, 420.0));
    let ratio = ours.ratio.as_ref().unwrap();
    // Rounds: 2.0, 2.0, 2.1, 1.95.
    assert_eq!((ratio.to.as_str(), ratio.value), ("sshfs", 2.0));
    assert_eq!((ratio.low, ratio.high), (1.95, 2.1));
    assert_eq!((ratio.n, ratio.level), (4, Some(0.875)));
    assert_eq!(summaries[1].ratio, None, "the reference has no ratio to itself");
}

#[test]
fn ratios_are_of_the_same_round_and_above_1_is_better() {
    // The machine is twice as fast in every other round: the ratio does not move.
    let run = Run::new(4).values(FIND, Unit::Seconds, "sshoal", &[1.0, 2.0, 1.0, 2.0]).values(
        FIND,
        Unit::Seconds,
        "sshfs",
        &[3.0, 6.0, 3.0, 6.0],
    );
    let ratio = run.ratio(FIND, "sshoal").unwrap();
    assert_eq!((ratio.value, ratio.low, ratio.high), (3.0, 3.0, 3.0));
    assert!(!ratio.significant, "without a control nothing is");
    assert_eq!(ratio.noise, None);
}

#[test]
fn a_difference_counts_beyond_the_interval_and_the_control() {
    let control = |run: Run, values: &[f64]| {
        run.subject("sshfs (control)", Some("sshfs"))
            .values(READ, Unit::PerSecond, "sshfs", &[100.0; 6])
            .values(READ, Unit::PerSecond, "sshfs (control)", values)
    };
    let quiet = [101.0, 99.5, 100.0, 100.5, 99.0, 100.0];
    let judge = |ours: &[f64], controls: &[f64]| {
        let run = control(Run::new(6), controls);
        let run = run.values(READ, Unit::PerSecond, "sshoal", ours);
        run.ratio(READ, "sshoal").unwrap()
    };
    let clear = judge(&[110.0, 111.0, 109.0, 112.0, 110.0, 110.0], &quiet);
    assert!(clear.significant);
    // The greatest |ln ratio| of the control is ln(1/0.99).
    assert!((clear.noise.unwrap() - 1.0 / 0.99).abs() < 1e-12);
    assert_eq!(clear.level, Some(0.96875));
    let worse = judge(&[90.0; 6], &quiet);
    assert!(worse.significant && worse.value < 1.0);
    let crossing = judge(&[110.0, 111.0, 99.0, 112.0, 110.0, 110.0], &quiet);
    assert!(!crossing.significant, "a round on the other side of 1");
    let small = judge(&[100.5; 6], &quiet);
    assert!(!small.significant, "within the control's noise");
    let loud = judge(&[110.0; 6], &[120.0, 85.0, 100.0, 100.0, 115.0, 90.0]);
    assert!(!loud.significant, "a loud control hides it");
    let few = judge(&[200.0, 200.0], &quiet);
    assert_eq!((few.significant, few.n, few.level), (false, 2, None));
}

/// Twenty measures whose control differs by 2 %, and one with the given values of the control.
fn beside_quiet_measures(control: &[f64]) -> Run {
    let mut run = Run::new(6).subject("sshfs (control)", Some("sshfs"));
    let quiet = (0..20).map(|step| (format!("quiet.{step}"), [1.02; 6].to_vec()));
    for (id, values) in quiet.chain([(READ.to_owned(), control.to_vec())]) {
        run = run.values(&id, Unit::Seconds, "sshfs", &[1.0; 6]).values(
            &id,
            Unit::Seconds,
            "sshfs (control)",
            &values,
        );
    }
    run
}

#[test]
fn each_measure_has_noise_of_its_own() {
    let run = beside_quiet_measures(&[1.0, 2.0, 1.0, 0.5, 1.0, 1.0]);
    let noise = Noise::of(&run.results, &Index::of(&run.results)).unwrap();
    assert!((noise.typical() - 1.02).abs() < 1e-9, "{noise:?}");
    assert!((noise.factor("quiet.0") - 1.02).abs() < 1e-9, "one loud measure hides no other");
    assert!((noise.factor(READ) - 2.0).abs() < 1e-9);
    assert_eq!(noise.factor("unknown"), noise.typical());
    assert_eq!(noise.off(), [], "on both sides of 1");
}

#[test]
fn a_measure_is_not_quieter_than_is_typical() {
    let run = beside_quiet_measures(&[1.0; 6]);
    let noise = Noise::of(&run.results, &Index::of(&run.results)).unwrap();
    assert!((noise.factor(READ) - 1.02).abs() < 1e-9);
}

#[test]
fn a_control_on_one_side_of_1_is_off() {
    let run = beside_quiet_measures(&[2.0, 2.1, 1.9, 2.0, 2.0, 2.2]);
    let noise = Noise::of(&run.results, &Index::of(&run.results)).unwrap();
    assert_eq!(noise.off(), [(READ, 0.5)]);
}

#[test]
fn cpu_is_told_for_gigabytes_and_for_thousands_of_operations() {
    let mut run = Run::new(3).values(READ, Unit::PerSecond, "sshfs", &[1.0; 3]);
    for (at, sample) in run.results.samples.iter_mut().enumerate() {
        let Outcome::Measured(measured) = &mut sample.outcome else { panic!() };
        measured.bytes = 500_000_000;
        measured.operations = 2_000;
        let user_s = [1.0, 2.0, 9.0][at];
        measured.client =
            Usage { user_s, system_s: 0.5, peak_memory_bytes: 7 + at as u64, context_switches: 0 };
        measured.server = (at == 0).then_some(Usage { user_s: 0.25, ..Usage::default() });
    }
    let summary = &summarize(&run.results)[0];
    assert_eq!(summary.client_cpu_s_per_gb, Some(5.0));
    assert_eq!(summary.client_cpu_s_per_kop, Some(1.25));
    assert_eq!(summary.server_cpu_s_per_gb, Some(0.5));
    assert_eq!(summary.server_cpu_s_per_kop, Some(0.125));
    assert_eq!(summary.peak_memory_bytes, Some(9));
}

#[test]
fn nothing_measured_is_no_number() {
    let run = Run::new(2)
        .values(READ, Unit::PerSecond, "sshfs", &[f64::NAN, 5.0])
        .failure(READ, "sshoal", 0, Failure::Interrupted)
        .failure(READ, "sshoal", 1, Failure::wrong("block 7"));
    let summaries = summarize(&run.results);
    assert_eq!((summaries[0].n, summaries[0].failed, summaries[0].spread.median), (0, 2, 0.0));
    assert_eq!(summaries[0].ratio, None);
    assert_eq!((summaries[1].n, summaries[1].failed, summaries[1].spread.median), (1, 1, 5.0));
    let lines = failures(&run.results);
    assert_eq!(lines.len(), 3);
    assert!(lines[0].wrong_data && lines[0].why.contains("block 7"), "wrong data comes first");
    assert_eq!(lines[1].why, "the value is not a number");
}

#[test]
fn the_same_failure_in_several_rounds_is_one_line() {
    let failure = || Failure::failed("no route");
    let run = Run::new(3)
        .failure(READ, "sshoal", 0, failure())
        .failure(READ, "sshoal", 2, failure())
        .failure(READ, "sshfs", 1, failure());
    let lines = failures(&run.results);
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0].rounds, [0, 2]);
}

fn any_unit() -> impl Strategy<Value = Unit> {
    prop_oneof![
        Just(Unit::BytesPerSecond),
        Just(Unit::PerSecond),
        Just(Unit::Seconds),
        Just(Unit::Microseconds),
    ]
}

fn positive() -> impl Strategy<Value = f64> {
    1e-3..1e6_f64
}

proptest! {
    #[test]
    fn a_value_is_as_good_as_itself(value in positive(), unit in any_unit()) {
        prop_assert_eq!(ratio_of(value, value, unit), Some(1.0));
    }

    #[test]
    fn a_better_value_has_a_greater_ratio(
        a in positive(), b in positive(), reference in positive(), unit in any_unit(),
    ) {
        let better = if unit.more_is_better() { a > b } else { a < b };
        let (of_a, of_b) = (ratio_of(a, reference, unit), ratio_of(b, reference, unit));
        prop_assert!(!better || of_a >= of_b);
        let back = ratio_of(reference, a, unit).unwrap();
        prop_assert!((of_a.unwrap() * back - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_order_of_samples_does_not_matter(
        ours in prop::collection::vec(positive(), 1..12),
        theirs in prop::collection::vec(positive(), 1..12),
        unit in any_unit(),
        seed in any::<u64>(),
    ) {
        let mut run = Run::new(12)
            .subject("sshfs (control)", Some("sshfs"))
            .values(READ, unit, "sshfs", &theirs)
            .values(READ, unit, "sshoal", &ours)
            .values(READ, unit, "sshfs (control)", &theirs);
        let before = summarize(&run.results);
        let len = run.results.samples.len();
        for at in (1..len).rev() {
            let to = (seed.wrapping_mul(at as u64 | 1) >> 7) as usize % (at + 1);
            run.results.samples.swap(at, to);
        }
        prop_assert_eq!(summarize(&run.results), before);
    }

    #[test]
    fn spreads_are_in_order_and_hold_the_median(
        values in prop::collection::vec(positive(), 1..40),
    ) {
        let spread = Spread::of(&values).unwrap();
        prop_assert!(spread.min <= spread.low && spread.low <= spread.median);
        prop_assert!(spread.median <= spread.high && spread.high <= spread.max);
        let interval = median_interval(&values).unwrap();
        prop_assert!(interval.low <= spread.median && spread.median <= interval.high);
        prop_assert!(interval.level.is_none_or(|level| values.len() < 6 || level >= 0.95));
        let mut reversed = values.clone();
        reversed.reverse();
        prop_assert_eq!(Spread::of(&reversed), Some(spread));
    }

    #[test]
    fn a_control_that_is_the_same_has_no_noise(
        values in prop::collection::vec(positive(), 1..12), unit in any_unit(),
    ) {
        let run = Run::new(12)
            .subject("sshfs (control)", Some("sshfs"))
            .values(READ, unit, "sshfs", &values)
            .values(READ, unit, "sshfs (control)", &values);
        let ratio = run.ratio(READ, "sshfs (control)").unwrap();
        prop_assert_eq!((ratio.value, ratio.significant, ratio.noise), (1.0, false, Some(1.0)));
    }
}
