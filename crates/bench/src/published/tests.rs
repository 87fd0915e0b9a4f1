use super::*;

use std::collections::HashSet;

use crate::measure::{Cache, Unit};
use crate::plan::Host;
use crate::size::Scale;
use crate::subject::catalog;

fn named(name: &str) -> &'static Published {
    Published::named(name).unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn options_beside_a_comparison_have_precedence() {
    let published = named("copy-ciphers");
    let alone = published.fill(Request::default(), 0.5);
    assert!(alone.without_ours);
    assert_eq!(alone.peers.as_deref(), Some(published.name));
    assert_eq!((alone.rounds, alone.link.clone().unwrap().name), (Some(3), "lan".to_owned()));
    let half = alone.size().file_bytes;
    assert!(half.abs_diff(3_921_247_501 / 2) < 1 << 17, "{half}");
    assert_eq!(alone.ciphers.unwrap().len(), published.ciphers.len());
    let given = Request {
        scale: Scale::Quick,
        peers: Some("rsync".to_owned()),
        works: Some(vec!["copy".to_owned()]),
        link: Some("wan".parse().unwrap()),
        rounds: Some(1),
        file_bytes: Some(1 << 21),
        ciphers: Some(vec!["aes256-ctr".to_owned()]),
        ..Request::default()
    };
    let filled = published.fill(given.clone(), 0.5);
    assert_eq!(filled.scale, Scale::Quick);
    assert_eq!((filled.peers, filled.works), (given.peers, given.works));
    assert_eq!((filled.link, filled.rounds), (given.link, given.rounds));
    assert_eq!((filled.file_bytes, filled.ciphers), (given.file_bytes, given.ciphers));
    let host = Some(Host::parse("server").unwrap());
    let real = published.fill(Request { host, ..Request::default() }, 1.0);
    assert_eq!(real.link, None, "no link is simulated in front of a host");
}

#[test]
fn known_figures_have_a_source_and_a_baseline() {
    let mut names = HashSet::new();
    for published in &PUBLISHED {
        assert!(names.insert(published.name), "{} twice", published.name);
        let peers = catalog::parse(published.name).expect("a group of subjects");
        let peers: Vec<String> = peers.iter().map(|spec| spec.name()).collect();
        assert!(peers.iter().any(|name| name == published.baseline), "{}", published.name);
        let known = published.figures.len() + published.runs.len();
        assert!(known == 0 || !published.source.is_empty(), "{}", published.name);
        assert!(published.subjects.contains(&published.baseline), "{}", published.name);
        for figure in published.figures {
            assert!(published.subjects.contains(&figure.subject), "{figure:?}");
            assert!(published.figure(published.baseline, figure.measure).is_some(), "{figure:?}");
        }
    }
}

#[test]
fn published_ratios_are_to_the_baseline() {
    let published = named("sshfs-iozone");
    let measure = Measure {
        id: "iozone.compressible.read".to_owned(),
        title: String::new(),
        unit: Unit::BytesPerSecond,
        cache: Cache::Cold,
    };
    let ratio = |subject| published.ratio(published.figure(subject, &measure.id)?, &measure);
    assert_eq!(ratio("sshfs"), Some(1.0));
    assert!((ratio("sshfs:opt4").unwrap() - 158.0 / 54.8).abs() < 1e-9);
    assert_eq!(ratio("nfs"), None);
}
