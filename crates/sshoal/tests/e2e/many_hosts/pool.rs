//! Several gateways to one directory.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandbox::fleet::Plan;
use sandbox::link::LinkOptions;

use super::{Hosts, content};
use crate::behaviours::pattern;
use crate::process::{LIMIT, Process, eventually};

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
fn a_pool_mode_behind_the_source_overrides_the_option() {
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

/// Bytes that somebody writes who is on his way when his gateway dies, some seconds' worth.
const WRITTEN_BYTES: usize = 40 << 20;

/// L1: who writes through a gateway that dies goes on through another one, and all is there.
#[test]
fn a_write_continues_when_its_gateway_dies() {
    let link = LinkOptions { rate_bytes_per_s: Some(20 << 20), ..LinkOptions::default() };
    let plan = |name| Plan::new(name).serving("shared").behind(link);
    let mut hosts = Hosts::of(["gw1", "gw2"].map(plan));
    fs::write(hosts.local("source"), pattern(WRITTEN_BYTES)).unwrap();
    let source = format!("gw1,gw2:{}", hosts.fleet.directory("gw1").display());
    let mount = hosts.mount(&[source], &[]).with_errors();
    let carried = |hosts: &Hosts, name| hosts.fleet.link(name).bytes_to_target();
    let mut command = Command::new("dd");
    command.arg(format!("if={}", hosts.local("source").display()));
    command.arg(format!("of={}", mount.at("target").display()));
    command.args(["bs=128k", "conv=fsync"]).stdin(Stdio::null()).stderr(Stdio::null());
    let mut dd = Process::spawn(&mut command);
    let by = |hosts: &Hosts| {
        ["gw1", "gw2"].into_iter().find(|name| carried(hosts, name) > WRITTEN_BYTES as u64 / 4)
    };
    eventually(Duration::from_secs(60), "it is on its way", || by(&hosts).is_some());
    let dead = by(&hosts).unwrap();
    hosts.fleet.kill(dead);
    assert!(dd.wait(LIMIT).success());
    let same = fs::read(hosts.served("gw1", "target")).unwrap() == pattern(WRITTEN_BYTES);
    assert!(same, "wrong bytes");
    mount.unmount();
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
