use super::*;

use std::process::Command;

fn parse(text: &str) -> LinkSpec {
    text.parse().unwrap_or_else(|failure| panic!("{text}: {failure}"))
}

#[test]
fn units_are_what_they_say() {
    for (text, rtt_ns, rate) in [
        ("rtt=0.5ms,rate=1gbit", Some(500_000), Some(125_000_000)),
        ("rate=1Gbit/s, rtt=500us", Some(500_000), Some(125_000_000)),
        ("rtt=200000ns", Some(200_000), None),
        ("rtt=1s", Some(1_000_000_000), None),
        ("rtt=0ms", Some(0), None),
        ("rate=128kbit", None, Some(16_000)),
        ("rate=10MB/s", None, Some(10_000_000)),
        ("rate=2.5 GB", None, Some(2_500_000_000)),
        ("rate=64KiB", None, Some(65_536)),
    ] {
        let spec = parse(text);
        assert_eq!(spec.name, "custom");
        assert_eq!(spec.rtt.map(|rtt| rtt.as_nanos()), rtt_ns, "{text}");
        assert_eq!(spec.rate_bytes_per_s, rate, "{text}");
    }
}

#[test]
fn presets_are_known_by_name() {
    assert_eq!(parse("loopback"), LinkSpec::loopback());
    assert_eq!(LinkSpec::loopback().options(), None);
    for (name, rtt_us, rate) in [
        ("lan", 500, 125_000_000),
        ("wan", 40_000, 25_000_000),
        ("intercontinental", 200_000, 12_500_000),
    ] {
        let options = parse(name).options().unwrap();
        assert_eq!(options.rtt, Duration::from_micros(rtt_us));
        assert_eq!(options.rate_bytes_per_s, Some(rate));
    }
}

#[test]
fn what_is_wrong_is_told_with_what_is_right() {
    for (text, part) in [
        ("lna", "there are loopback, lan, wan, intercontinental, and the form rtt="),
        ("", "is no link"),
        ("rtt=1ms,", "is no link"),
        ("loss=1%", "is no link"),
        ("rtt=1", "with ns, us, ms or s"),
        ("rtt=-1ms", "with ns, us, ms or s"),
        ("rtt=1.2.3ms", "with ns, us, ms or s"),
        ("rtt=11s", "up to 10 s"),
        ("rate=1", "kbit, mbit or gbit"),
        ("rate=0gbit", "at least 16 kB"),
        ("rate=9999999GB", "at least 16 kB"),
        ("rate=1mb", "kB, MB or GB"),
        ("rtt=1ms,rtt=2ms", "has rtt twice"),
        ("rtt=1\u{1b}ms", "\\u{1b}"),
    ] {
        let failure = text.parse::<LinkSpec>().unwrap_err().to_string();
        assert!(failure.contains(part), "{text}: {failure}");
    }
}

/// How right a link is depends on what else the machine does; a link that is off by more than 10 %
/// is a warning of the report. Load can only add to the delay.
#[test]
fn the_measured_round_trip_has_the_delay_in_it() {
    let options = LinkOptions { rtt: Duration::from_millis(10), rate_bytes_per_s: Some(2_000_000) };
    let (link, figures) = through_tcp(Some(options)).unwrap();
    assert!(figures.rtt_us >= 10_000.0 && figures.bytes_per_s > 0.0, "{figures:?}");
    assert!(link.unwrap().bytes_from_target() > 0);
    let (link, bare) = through_tcp(None).unwrap();
    assert!(link.is_none() && bare.rtt_us > 0.0 && bare.bytes_per_s > 0.0, "{bare:?}");
}

#[test]
fn a_report_tells_what_was_asked_for_and_what_it_is() {
    let figures = Figures { rtt_us: 640.0, bytes_per_s: 1e8 };
    let report = parse("lan").report(figures);
    assert_eq!(report.name, "lan");
    assert_eq!((report.asked_rtt_us, report.asked_bytes_per_s), (Some(500.0), Some(125e6)));
    assert_eq!((report.measured_rtt_us, report.measured_bytes_per_s), (Some(640.0), Some(1e8)));
}

#[test]
fn a_hosts_link_is_measured_through_ssh() {
    // `sh -c` stands for ssh: it runs what comes as its last word.
    let ssh = || {
        let mut command = Command::new("sh");
        command.arg("-c");
        command
    };
    let figures = through_ssh(ssh).unwrap();
    assert!(figures.rtt_us > 1.0 && figures.bytes_per_s > 0.0, "{figures:?}");
    let failure = through_ssh(|| Command::new("false")).unwrap_err();
    assert!(failure.to_string().starts_with("cannot measure the link through ssh"), "{failure}");
}
