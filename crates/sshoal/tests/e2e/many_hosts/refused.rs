//! Sources that cannot be mounted together; what the grammar alone refuses is tested with it.

use std::fs;

use super::{Hosts, put};
use crate::world::{program, refusal};

#[test]
fn a_mount_point_inside_of_a_local_source() {
    let hosts = Hosts::new(&["alpha"]);
    let inner = hosts.local("outer/inner");
    fs::create_dir_all(&inner).unwrap();
    let source = format!("local:{}", hosts.local("outer").display());
    for sources in [vec![source.clone()], vec![hosts.source("alpha"), source]] {
        let said = refusal(hosts.command().args(&sources).arg(&inner));
        assert!(said.contains("is inside the source 'local:/"), "{said}");
        assert!(said.ends_with("\n  a mount cannot contain itself\n"), "{said}");
    }
}

#[test]
fn a_local_source_that_is_missing_or_a_file() {
    let hosts = Hosts::new(&["alpha"]);
    put(&hosts.local("file"), "");
    for (name, why) in [("missing", "no such directory"), ("file", "not a directory")] {
        let source = format!("local:{}", hosts.local(name).display());
        let said = hosts.refusal(&[hosts.source("alpha"), source.clone()], &[]);
        assert!(said.contains(&format!("source '{source}'")) && said.contains(why), "{said}");
    }
}

#[test]
fn as_sshfs_there_is_one_source() {
    use std::os::unix::process::CommandExt;
    let said = refusal(program().arg0("sshfs").args(["a:", "b:", "/mnt"]));
    assert!(said.starts_with("sshfs: source 'b:': unexpected: sshfs mounts a single"), "{said}");
}

/// What was learnt of one host before another failed is given back.
#[test]
fn a_refused_mount_leaves_no_session() {
    let mut hosts = Hosts::new(&["alpha", "beta"]);
    hosts.fleet.kill("beta");
    hosts.refusal(&[hosts.source("alpha"), hosts.source("beta")], &[]);
    let alpha = hosts.fleet.sshd("alpha");
    crate::process::eventually(std::time::Duration::from_secs(10), "alpha has no session", || {
        alpha.session_pids().is_empty()
    });
}
