//! Unions of hosts with `sshoal helper`: inodes (H1, H2).

use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sandbox::fleet::Plan;

use super::{Hosts, content, names, put};
use crate::helper::plan_with_helper;
use crate::mount::Mount;
use crate::process::{eventually, run, succeed};
use crate::watch::{SOON, make_old};

fn two_helpers() -> Hosts {
    Hosts::of(["alpha", "beta"].map(plan_with_helper))
}

fn sources(hosts: &Hosts) -> [String; 2] {
    ["alpha", "beta"].map(|name| hosts.source(name))
}

/// Whether a file can be read, and is this: one that has just been replaced may be stale.
fn reads(path: impl AsRef<Path>, expected: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|content| content == expected)
}

/// H1: hard links made at the servers, numbers that are the same by all calls and after a remount.
#[test]
fn h1_inodes_are_those_of_the_sources() {
    let hosts = two_helpers();
    for host in ["alpha", "beta"] {
        put(&hosts.served(host, format!("dir/{host}")), &"x".repeat(50_000));
        fs::hard_link(
            hosts.served(host, format!("dir/{host}")),
            hosts.served(host, "dir").join(format!("link-{host}")),
        )
        .unwrap();
    }
    put(&hosts.local("here/file"), "local");
    put(&hosts.served("beta", "only/below/file"), "content");
    let local = format!("L=local:{}", hosts.local("here").display());
    let [alpha, beta] = sources(&hosts);
    let placed = format!("P={}", hosts.source("beta"));
    // One source cannot be given twice; beta's directory "only" is in a place, too.
    let placed = format!("{placed}/only");
    let mount = || hosts.mount(&[alpha.clone(), beta.clone(), local.clone(), placed.clone()], &[]);
    let first = mount();
    let shown = |mount: &Mount, name: &str| fs::symlink_metadata(mount.at(name)).unwrap();
    let mut numbers = Vec::new();
    let all =
        ["dir/alpha", "dir/beta", "only/below/file", "P/below/file", "dir", "only", "P/below"];
    for name in all.into_iter().chain(["L", "L/file", "P"]) {
        numbers.push((name, shown(&first, name).ino()));
    }
    let mut different: Vec<u64> = numbers.iter().map(|(_, number)| *number).collect();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), numbers.len(), "{numbers:?}");
    for host in ["alpha", "beta"] {
        let (file, link) = (format!("dir/{host}"), format!("dir/link-{host}"));
        let (file, link) = (shown(&first, &file), shown(&first, &link));
        let served = fs::metadata(hosts.served(host, format!("dir/{host}"))).unwrap();
        assert_eq!((file.ino(), file.nlink(), file.blocks()), (link.ino(), 2, served.blocks()));
        assert_eq!((file.ctime(), file.ctime_nsec()), (served.ctime(), served.ctime_nsec()));
        assert_eq!(file.created().ok(), served.created().ok());
    }
    for entry in fs::read_dir(first.at("dir")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.ino(), entry.metadata().unwrap().ino(), "{:?}", entry.file_name());
    }
    // rsync and tar take both names for one file, and du counts it once.
    let copy = hosts.local("copy");
    succeed(Command::new("rsync").arg("-aH").arg(first.at("dir")).arg(&copy));
    for host in ["alpha", "beta"] {
        assert_eq!(fs::metadata(copy.join("dir").join(host)).unwrap().nlink(), 2);
    }
    let archived =
        run(Command::new("tar").arg("-cf-").arg("-C").arg(first.place()).arg("dir")).stdout;
    assert!(archived.len() < 150_000, "each content once");
    let counted = succeed(Command::new("du").arg("-sk").arg(first.at("dir")));
    let kilobytes: u64 = counted.split_whitespace().next().unwrap().parse().unwrap();
    assert!((100..150).contains(&kilobytes), "{counted}");
    // What is written by one name is read by the other at once.
    fs::write(first.at("dir/link-beta"), "new").unwrap();
    assert_eq!(content(first.at("dir/beta")), "new");
    assert_eq!(content(first.at("dir/alpha")).len(), 50_000);
    first.unmount();
    // Whatever is used first.
    let second = mount();
    for (name, number) in numbers.into_iter().rev() {
        assert_eq!(shown(&second, name).ino(), number, "{name}");
    }
    second.unmount();
}

/// H2: replaced by a file of the same source, and by one of another source, which does not tell files
/// apart.
#[test]
fn h2_a_file_in_the_place_of_another_is_another_inode() {
    let hosts = Hosts::of([Plan::new("plain"), plan_with_helper("helped")]);
    for name in ["file", "other"] {
        put(&hosts.served("helped", name), name);
        make_old(&hosts.served("helped", name));
    }
    let mount = hosts.mount(
        &[hosts.source("plain"), hosts.source("helped")],
        &["-o", "dcache_timeout=0,acnegative=0"],
    );
    let number = || fs::metadata(mount.at("file")).unwrap().ino();
    let before = number();
    let opened = File::open(mount.at("file")).unwrap();
    fs::write(hosts.served("helped", "new"), "next").unwrap();
    make_old(&hosts.served("helped", "new"));
    fs::rename(hosts.served("helped", "new"), hosts.served("helped", "file")).unwrap();
    eventually(SOON, "the new file is seen", || number() != before);
    let replaced = number();
    assert_eq!(content(mount.at("file")), "next");
    assert_eq!(std::io::read_to_string(&opened).unwrap(), "file");
    // The first source gets a file of this name.
    fs::write(hosts.served("plain", "file"), "hide").unwrap();
    make_old(&hosts.served("plain", "file"));
    eventually(SOON, "the hiding file is seen", || reads(mount.at("file"), "hide"));
    assert!(![before, replaced].contains(&number()));
    fs::remove_file(hosts.served("plain", "file")).unwrap();
    eventually(SOON, "the hidden file is seen", || reads(mount.at("file"), "next"));
    assert_eq!(number(), replaced);
    drop(opened);
    mount.unmount();
}

/// A program that works in a merged directory, or lists it, goes on when its first source goes.
#[test]
fn a_merged_directory_stays_the_same_when_a_source_goes() {
    let mut hosts = two_helpers();
    for host in ["alpha", "beta"] {
        put(&hosts.served(host, format!("dir/sub/{host}")), host);
    }
    let [alpha, beta] = sources(&hosts);
    let mount = hosts.mount(&[alpha + "=optional", beta], &["-o", "dcache_timeout=0"]);
    let opened = File::open(mount.at("dir/sub")).unwrap();
    let before = opened.metadata().unwrap().ino();
    assert_eq!(names(mount.at("dir/sub")), ["alpha", "beta"]);
    hosts.fleet.kill("alpha");
    eventually(Duration::from_secs(30), "alpha is left out", || {
        names(mount.at("dir/sub")) == ["beta"]
    });
    assert_eq!(fs::metadata(mount.at("dir/sub")).unwrap().ino(), before);
    let by_descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&opened));
    assert_eq!(names(&by_descriptor), ["beta"]);
    hosts.fleet.restart("alpha").unwrap();
    eventually(Duration::from_secs(30), "alpha is back", || {
        names(&by_descriptor) == ["alpha", "beta"]
    });
    drop(opened);
    mount.unmount();
}
