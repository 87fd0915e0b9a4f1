//! Unions of hosts with `sshoal helper`: inodes (H1, H2) and watches (W1 to W3).

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
use crate::watch::{SOON, assert_needs_no_requests, make_old, watched};

pub(super) fn two_helpers() -> Hosts {
    Hosts::of(["alpha", "beta"].map(plan_with_helper))
}

pub(super) fn sources(hosts: &Hosts) -> [String; 2] {
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

/// H2: replaced by a file of the same source, and by one of another source, which does not tell
/// files apart.
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

/// Without extended attributes, of which merged directories have none that are cached.
fn look_at_all(mount: &Mount) {
    succeed(Command::new("find").arg(mount.place()).args(["-printf", "%s %p\\n"]));
}

pub(super) fn wait_for_watches(mount: &Mount, directories: u64) {
    eventually(SOON, "its directories are watched", || {
        look_at_all(mount);
        watched(mount)["directories"] == directories
    });
    // Listed again since: the answers are from a time at which they were watched.
    std::thread::sleep(Duration::from_millis(300));
    look_at_all(mount);
}

/// Both hosts have `dir`, and each a directory of its own in it.
fn watching() -> (Hosts, Mount) {
    let hosts = two_helpers();
    for host in ["alpha", "beta"] {
        for name in [format!("dir/{host}"), format!("dir/of-{host}/file")] {
            put(&hosts.served(host, &name), &format!("content of {name}"));
            make_old(&hosts.served(host, &name));
        }
        for name in [&format!("dir/of-{host}"), "dir", ""] {
            make_old(&hosts.served(host, name));
        }
    }
    let mount = hosts.mount(&sources(&hosts), &["-o", "consistency=watch"]).with_errors();
    wait_for_watches(&mount, 4);
    (hosts, mount)
}

#[test]
fn w1_changes_at_any_source_are_seen() {
    let (hosts, mount) = watching();
    for host in ["alpha", "beta"] {
        let (there, here) = (hosts.served(host, format!("dir/{host}")), format!("dir/{host}"));
        fs::write(&there, "other, longer content, with the old time").unwrap();
        make_old(&there);
        eventually(SOON, "the content is seen", || {
            reads(mount.at(&here), "other, longer content, with the old time")
        });
        assert!(!mount.at("dir/new").exists());
        fs::write(hosts.served(host, "dir/new"), host).unwrap();
        eventually(SOON, "the file is there", || mount.at("dir/new").exists());
        assert_eq!(content(mount.at("dir/new")), host);
        fs::remove_file(hosts.served(host, "dir/new")).unwrap();
        eventually(SOON, "it is removed", || !mount.at("dir/new").exists());
    }
    // A name that another source hides, and does not hide any more.
    fs::write(hosts.served("alpha", "dir/beta"), "hides").unwrap();
    make_old(&hosts.served("alpha", "dir/beta"));
    eventually(SOON, "the hiding file is seen", || reads(mount.at("dir/beta"), "hides"));
    fs::remove_file(hosts.served("alpha", "dir/beta")).unwrap();
    eventually(SOON, "the hidden file is seen", || {
        reads(mount.at("dir/beta"), "other, longer content, with the old time")
    });
    mount.unmount();
}

/// The only use of the mount is the one that connects.
#[test]
fn w1_delayed_connections_are_watched_as_soon_as_they_are_there() {
    let hosts = two_helpers();
    put(&hosts.served("alpha", "file"), "content");
    let mount = hosts.mount(&sources(&hosts), &["-o", "consistency=watch,delay_connect"]);
    assert_eq!(fs::metadata(mount.at("file")).unwrap().len(), 7);
    eventually(SOON, "its directory is watched", || watched(&mount)["directories"] == 1);
    mount.unmount();
}

/// A source that did not have the directory is not watched there until then.
#[test]
fn w1_a_source_that_gets_a_directory_is_watched_in_it() {
    let (hosts, mount) = watching();
    assert_eq!(names(mount.at("dir/of-alpha")), ["file"]);
    put(&hosts.served("beta", "dir/of-alpha/deep/first"), "first");
    eventually(SOON, "the first file is seen", || {
        names(mount.at("dir/of-alpha")) == ["deep", "file"]
    });
    wait_for_watches(&mount, 5);
    assert!(!mount.at("dir/of-alpha/second").exists());
    fs::write(hosts.served("beta", "dir/of-alpha/second"), "second").unwrap();
    eventually(SOON, "the second file is seen", || {
        mount.at("dir/of-alpha/second").exists()
            && names(mount.at("dir/of-alpha")) == ["deep", "file", "second"]
    });
    // And one that loses it.
    fs::remove_dir_all(hosts.served("beta", "dir/of-alpha")).unwrap();
    eventually(SOON, "they are removed", || names(mount.at("dir/of-alpha")) == ["file"]);
    fs::write(hosts.served("alpha", "dir/of-alpha/third"), "third").unwrap();
    eventually(SOON, "the third file is seen", || mount.at("dir/of-alpha/third").exists());
    mount.unmount();
}

#[test]
fn w1_what_does_not_change_is_not_requested_of_any_source() {
    let (_hosts, mount) = watching();
    let use_all = || {
        look_at_all(&mount);
        for host in ["alpha", "beta"] {
            File::open(mount.at(format!("dir/{host}"))).unwrap();
            assert!(!mount.at(format!("dir/of-{host}/absent")).exists());
        }
    };
    for host in ["alpha", "beta"] {
        content(mount.at(format!("dir/{host}")));
    }
    use_all();
    assert_needs_no_requests(&mount, use_all);
    mount.unmount();
}

#[test]
fn w2_a_lost_source_makes_everything_be_asked_for_again() {
    let (hosts, mount) = watching();
    let beta = hosts.fleet.sshd("beta");
    // Stopped, so that the changes are made before the loss is noticed.
    beta.stop();
    fs::write(hosts.served("beta", "dir/beta"), "changed meanwhile").unwrap();
    make_old(&hosts.served("beta", "dir/beta"));
    fs::write(hosts.served("beta", "dir/new"), "new").unwrap();
    beta.kill_sftp_servers();
    eventually(SOON, "the loss is noticed", || watched(&mount)["losses"] == 1);
    assert_eq!(content(mount.at("dir/beta")), "changed meanwhile");
    assert!(mount.at("dir/new").exists());
    wait_for_watches(&mount, 4);
    for host in ["alpha", "beta"] {
        fs::write(hosts.served(host, format!("dir/of-{host}/file")), "changed later").unwrap();
        eventually(SOON, "the change is seen", || {
            reads(mount.at(format!("dir/of-{host}/file")), "changed later")
        });
    }
    mount.unmount();
}

#[test]
fn w3_own_changes_are_seen_at_once_and_need_few_requests() {
    let (_hosts, mount) = watching();
    for host in ["alpha", "beta"] {
        for number in 0..20 {
            fs::write(mount.at(format!("dir/of-{host}/own{number}")), "own").unwrap();
        }
        fs::remove_file(mount.at(format!("dir/of-{host}/own0"))).unwrap();
        assert!(!mount.at(format!("dir/of-{host}/own0")).exists());
    }
    std::thread::sleep(Duration::from_secs(3));
    look_at_all(&mount);
    std::thread::sleep(Duration::from_secs(2));
    look_at_all(&mount);
    assert_needs_no_requests(&mount, || look_at_all(&mount));
    mount.unmount();
}

/// A source that reports nothing may get any name at any time.
#[test]
fn beside_a_source_without_the_helper_only_places_are_watched() {
    let hosts = Hosts::of([plan_with_helper("alpha"), Plan::new("beta")]);
    put(&hosts.served("alpha", "dir/a"), "a");
    put(&hosts.served("beta", "dir/b"), "b");
    let merged = hosts.mount(&sources(&hosts), &["-o", "consistency=watch"]);
    eventually(SOON, "the status says so", || {
        look_at_all(&merged);
        let problem = watched(&merged)["problem"].clone();
        problem.as_str().is_some_and(|it| it.contains("a source does not report"))
    });
    assert_eq!(watched(&merged)["directories"], 0);
    fs::write(hosts.served("beta", "dir/new"), "new").unwrap();
    eventually(4 * SOON, "the new file is seen", || names(merged.at("dir")) == ["a", "b", "new"]);
    merged.unmount();
    let placed = [format!("A={}", hosts.source("alpha")), format!("B={}", hosts.source("beta"))];
    let mount = hosts.mount(&placed, &["-o", "consistency=watch"]);
    // The root, and all of alpha's.
    wait_for_watches(&mount, 3);
    fs::write(hosts.served("alpha", "dir/new"), "new").unwrap();
    eventually(SOON, "the new file is seen", || names(mount.at("A/dir")) == ["a", "new"]);
    mount.unmount();
}
