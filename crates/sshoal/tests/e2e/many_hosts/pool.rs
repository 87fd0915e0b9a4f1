//! Several gateways to one directory.

use std::fs;

use testkit::fleet::Plan;

use super::{Hosts, content};
use crate::behaviours::pattern;

const GATEWAYS: [&str; 3] = ["gw1", "gw2", "gw3"];

fn hosts() -> (Hosts, String) {
    let hosts = Hosts::of(GATEWAYS.map(|name| Plan::new(name).serving("shared")));
    let directory = hosts.fleet.directory("gw1").display().to_string();
    (hosts, format!("gw1,gw2,gw3:{directory}"))
}

#[test]
fn three_gateways_are_one_source_in_each_mode() {
    let (hosts, source) = hosts();
    for mode in ["balance", "hash", "failover"] {
        let mount = hosts.mount(std::slice::from_ref(&source), &["-o", &format!("pool={mode}")]);
        let large = pattern(8 << 20);
        fs::write(mount.at("large"), &large).unwrap();
        for number in 0..30 {
            fs::write(mount.at(format!("file{number}")), format!("{mode} {number}")).unwrap();
        }
        assert!(fs::read(mount.at("large")).unwrap() == large);
        for number in 0..30 {
            assert_eq!(content(mount.at(format!("file{number}"))), format!("{mode} {number}"));
        }
        mount.unmount();
        assert!(fs::read(hosts.served("gw1", "large")).unwrap() == large);
    }
}

#[test]
fn a_word_behind_the_source_counts_more_than_the_option() {
    let (hosts, source) = hosts();
    for number in 0..50 {
        hosts.put("gw1", &format!("file{number}"), "content");
    }
    let before: Vec<u64> = GATEWAYS.map(|name| hosts.fleet.link(name).bytes_to_target()).into();
    let mount = hosts.mount(&[source + "=failover"], &["-o", "pool=balance,dir_cache=no"]);
    let connected: Vec<u64> = GATEWAYS.map(|name| hosts.fleet.link(name).bytes_to_target()).into();
    assert!(connected.iter().zip(&before).all(|(now, before)| now > before), "all are connected");
    for number in 0..50 {
        assert_eq!(content(mount.at(format!("file{number}"))), "content");
    }
    let asked: Vec<u64> = GATEWAYS.map(|name| hosts.fleet.link(name).bytes_to_target()).into();
    let work: Vec<u64> = asked.iter().zip(&connected).map(|(now, then)| now - then).collect();
    assert!(work[0] > 10 * work[1].max(work[2]).max(1), "the first does it: {work:?}");
}

#[test]
fn a_gateway_that_dies_is_done_without() {
    let (mut hosts, source) = hosts();
    let mount = hosts.mount(&[source], &["-o", "dir_cache=no"]).with_errors();
    fs::write(mount.at("file"), "before").unwrap();
    for name in ["gw1", "gw2"] {
        hosts.fleet.kill(name);
        for number in 0..20 {
            assert_eq!(content(mount.at("file")), "before");
            fs::write(mount.at(format!("{name}-{number}")), "after").unwrap();
        }
    }
    assert_eq!(content(hosts.served("gw3", "gw2-19")), "after");
}

#[test]
fn a_gateway_that_is_down_is_no_obstacle_for_mounting() {
    let (mut hosts, source) = hosts();
    hosts.put("gw1", "file", "content");
    hosts.fleet.kill("gw2");
    let mount = hosts.mount(&[source], &[]).with_errors();
    assert_eq!(content(mount.at("file")), "content");
    assert!(mount.words().contains("mounted without gw2: "), "{}", mount.words());
}
