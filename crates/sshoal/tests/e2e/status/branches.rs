//! Branches that come, go and change while the mount is used.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};

use super::{Hosts, branch, mounted, refused, status};
use crate::world::names;

/// Two hosts, of which the first is mounted such that branches can be added.
fn hosts() -> Hosts {
    let hosts = Hosts::new(&["alpha", "beta"]);
    fs::write(hosts.served("alpha", "both"), "alpha's").unwrap();
    fs::write(hosts.served("beta", "both"), "beta's").unwrap();
    fs::create_dir(hosts.served("beta", "dir")).unwrap();
    fs::write(hosts.served("beta", "dir/only"), "here").unwrap();
    hosts
}

#[test]
fn a_branch_comes_and_goes_and_is_seen_at_once() {
    let hosts = hosts();
    let (alpha, beta) = (hosts.fleet.source("alpha"), hosts.fleet.source("beta"));
    let mount = mounted(&hosts, &[format!("{alpha}=rw")], &[]);
    // The kernel has both for a while: what is there, and what is not.
    assert_eq!(names(mount.place()), ["both"]);
    assert!(fs::metadata(mount.at("dir")).is_err());

    assert_eq!(branch(mount.place(), &["add", &beta]), "");
    assert_eq!(names(mount.place()), ["both", "dir"]);
    assert_eq!(fs::read_to_string(mount.at("dir/only")).unwrap(), "here");
    assert_eq!(fs::read_to_string(mount.at("both")).unwrap(), "alpha's");
    let list = branch(mount.place(), &["list"]);
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines[0].starts_with(&alpha) && lines[1].starts_with(&beta) && lines.len() == 2);
    assert!(lines[1].ends_with("  rw  required  connected"), "{list}");
    let told = status(mount.place());
    assert_eq!(told["status"]["union"]["create"], "epff");
    assert_eq!(told["status"]["sources"][1]["hosts"][0]["host"], "beta");
    let twice = refused(mount.place(), &["add", &beta]);
    assert!(twice.contains("twice"), "{twice}");

    // What comes to the other branch takes over what it hid.
    branch(mount.place(), &["rm", &alpha]);
    assert_eq!(fs::read_to_string(mount.at("both")).unwrap(), "beta's");
    assert_eq!(fs::read_to_string(hosts.served("alpha", "both")).unwrap(), "alpha's");
    let last = refused(mount.place(), &["rm", &beta]);
    assert!(last.contains("last branch"), "{last}");
    let unknown = refused(mount.place(), &["rm", "gamma:/x"]);
    assert!(
        unknown.contains("branch 'gamma:/x': no such branch\n  `sshoal branch list"),
        "{unknown}"
    );
    assert_eq!(names(mount.place()), ["both", "dir"]);
    mount.unmount();
}

#[test]
fn a_branch_is_made_read_only_and_writable_again() {
    let hosts = hosts();
    let (alpha, beta) = (hosts.fleet.source("alpha"), hosts.fleet.source("beta"));
    let mount = mounted(&hosts, &[alpha.clone(), format!("P={beta}=nc")], &[]);
    let error = |result: std::io::Result<()>| result.unwrap_err().kind();
    let write = |name: &str| fs::write(mount.at(name), "new");
    assert_eq!(error(write("P/new")), ErrorKind::ReadOnlyFilesystem);
    write("P/both").unwrap();
    branch(mount.place(), &["set", &alpha, "ro"]);
    assert_eq!(error(write("both")), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(error(write("new")), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(status(mount.place())["status"]["sources"][0]["mode"], "ro");
    branch(mount.place(), &["set", &format!("P={beta}"), "rw"]);
    write("P/new").unwrap();
    branch(mount.place(), &["set", &alpha, "rw"]);
    write("both").unwrap();
    assert_eq!(fs::read(hosts.served("alpha", "both")).unwrap(), b"new");
    assert_eq!(fs::read(hosts.served("beta", "new")).unwrap(), b"new");
    mount.unmount();
}

#[test]
fn open_files_stay_usable_when_their_branch_is_removed() {
    let hosts = hosts();
    let (alpha, beta) = (hosts.fleet.source("alpha"), hosts.fleet.source("beta"));
    let mount = mounted(&hosts, &[alpha, beta.clone()], &[]);
    let mut reading = File::open(mount.at("dir/only")).unwrap();
    let mut writing = File::create(mount.at("dir/new")).unwrap();
    writing.write_all(b"before, ").unwrap();
    branch(mount.place(), &["rm", &beta]);
    assert_eq!(names(mount.place()), ["both"]);
    let mut text = String::new();
    reading.read_to_string(&mut text).unwrap();
    assert_eq!(text, "here");
    writing.write_all(b"after").unwrap();
    writing.sync_all().unwrap();
    drop(writing);
    assert_eq!(fs::read(hosts.served("beta", "dir/new")).unwrap(), b"before, after");
    drop(reading);
    mount.unmount();
}

#[test]
fn a_branch_that_cannot_be_added_is_an_error_and_changes_nothing() {
    let hosts = hosts();
    let (alpha, beta) = (hosts.fleet.source("alpha"), hosts.fleet.source("beta"));
    hosts.fleet.link("beta").refuse();
    let mount = mounted(&hosts, &[format!("{alpha}=rw")], &[]);
    let away = refused(mount.place(), &["add", &beta]);
    assert!(away.contains("beta") && away.to_lowercase().contains("connect"), "{away}");
    let grammar = refused(mount.place(), &["add", "no colon"]);
    assert!(grammar.contains("source 'no colon'"), "{grammar}");
    let inside = refused(mount.place(), &["add", &format!("local:{}", mount.place().display())]);
    assert!(inside.contains("mount"), "{inside}");
    assert_eq!(branch(mount.place(), &["list"]).lines().count(), 1);
    hosts.fleet.link("beta").accept();
    branch(mount.place(), &["add", &beta]);
    let mut text = String::new();
    File::open(mount.at("dir/only")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "here");
    mount.unmount();

    // A plain mount is no union, and says how to mount one.
    let mount = mounted(&hosts, std::slice::from_ref(&alpha), &[]);
    let plain = refused(mount.place(), &["add", &beta]);
    assert!(plain.contains("no branches") && plain.contains("=rw"), "{plain}");
    assert_eq!(branch(mount.place(), &["list"]).lines().count(), 1);
    mount.unmount();
}
