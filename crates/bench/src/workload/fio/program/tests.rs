//! Against what fio 3.33 printed.

use super::*;

/// `fio --name=bench --ioengine=libaio --direct=1 --rw=randwrite --bs=4096 --iodepth=32
/// --time_based --runtime=50ms --size=2097152 --end_fsync=1 --output-format=json+`
const SAMPLE: &[u8] = include_bytes!("../../../../tests/fixtures/fio-3.33.json");

#[test]
fn a_sample_of_fio() {
    let figures = parse(SAMPLE, Direction::Write).unwrap();
    assert_eq!((figures.seconds, figures.bytes, figures.operations), (0.054, 6_795_264, 1659));
    let latency = figures.latency.unwrap();
    assert_eq!(latency.count, 1659);
    // fio's own word of the median is 569.3 us and of the mean 962.3 us; its bins are 1.6 % wide.
    assert!((latency.p50_us / 569.3 - 1.0).abs() < 0.02, "{}", latency.p50_us);
    assert!((latency.mean_us / 962.3 - 1.0).abs() < 0.02, "{}", latency.mean_us);
    assert!((4050.0..4250.0).contains(&latency.max_us), "{}", latency.max_us);
}

#[test]
fn warnings_in_front_are_read_over() {
    let warned = [b"note: both iodepth >= 1 and synchronous I/O engine\n", SAMPLE].concat();
    assert_eq!(parse(&warned, Direction::Write), parse(SAMPLE, Direction::Write));
}

#[test]
fn a_job_that_did_nothing_or_failed_is_a_failure() {
    assert!(parse(SAMPLE, Direction::Read).is_err(), "it only wrote");
    let failed = String::from_utf8_lossy(SAMPLE).replace("\"error\" : 0", "\"error\" : 5");
    let failure = parse(failed.as_bytes(), Direction::Write).unwrap_err();
    assert!(failure.to_string().contains("Input/output error"), "{failure}");
    assert!(parse(b"fio: unknown option", Direction::Write).is_err());
    assert!(parse(b"{}", Direction::Write).is_err());
}
