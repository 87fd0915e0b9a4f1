//! Unions of several hosts through a real mount: they agree with the reference model, and a branch
//! that is dead slows nobody down who does not need it.
//!
//! What a union does with each call, in all modes and policies, is tested in its crate.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use sandbox::fleet::{Fleet, Plan};
use testkit::model::{DirSubject, Runs, run};

use crate::helper::plan_with_helper;
use crate::hosts::Hosts;
use crate::mount::Mount;
use crate::process::eventually;
use crate::world::{is_big_run, names};

const HOSTS: [&str; 3] = ["alpha", "beta", "gamma"];

/// How long anything may take that a test waits for.
const LIMIT: Duration = Duration::from_secs(60);

/// Calls of which the median is taken.
const CALLS: usize = 101;

/// What a call may take on a busy machine without anybody waiting for anything.
const BUSY: Duration = Duration::from_millis(100);

/// All three, each with its place in front and its words behind.
#[track_caller]
fn mounted(hosts: &Hosts, words: [(&str, &str); 3], options: &[&str]) -> Mount {
    let sources = HOSTS.iter().zip(words);
    let sources =
        sources.map(|(host, (before, behind))| before.to_owned() + &hosts.source(host) + behind);
    hosts.mount(&sources.collect::<Vec<_>>(), options)
}

fn runs() -> Runs {
    Runs { lists: if is_big_run() { 500 } else { 40 }, most_ops: 60 }
}

/// With these words behind the sources, and whatever policy puts all of one directory together.
#[track_caller]
fn agrees(words: [&str; 3], options: &[&str]) {
    agree(&Hosts::new(&HOSTS), words, options);
}

#[track_caller]
fn agree(hosts: &Hosts, words: [&str; 3], options: &[&str]) {
    let mount = mounted(hosts, words.map(|words| ("", words)), options);
    run(runs(), || DirSubject::below(mount.place(), false));
    mount.unmount();
}

#[test]
fn with_all_branches_writable() {
    agrees(["", "", ""], &[]);
}

#[test]
fn with_a_first_branch_that_takes_nothing_new() {
    agrees(["=nc", "=ro", "=rw"], &["-o", "create=ff"]);
}

/// The files have identities, and other sources could have files without.
#[test]
fn with_the_helper_on_one_host() {
    let mixed = |name: &str| match name {
        "beta" => plan_with_helper(name),
        _ => Plan::new(name),
    };
    agree(&Hosts::of(HOSTS.map(mixed)), ["=nc", "=rw", ""], &["-o", "create=ff"]);
}

#[test]
fn with_the_helper_and_watches() {
    let hosts = Hosts::of(HOSTS.map(plan_with_helper));
    agree(&hosts, ["=nc", "=rw", ""], &["-o", "create=ff,consistency=watch"]);
}

#[test]
fn read_only_first_with_all_copies_removed() {
    agrees(["=ro", "", ""], &["-o", "create=epff,action=all,dir_cache=no"]);
}

/// What happens on the others is none of its business.
#[test]
fn with_an_optional_branch_that_comes_and_goes() {
    let hosts = Hosts::new(&HOSTS);
    let mount = mounted(&hosts, [("", ""), ("", ""), ("", "=optional")], &[]).with_errors();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let link = hosts.fleet.link("gamma");
        scope.spawn(move || {
            let mut here = true;
            // Ends when the other side is dropped.
            while stopped
                .recv_timeout(Duration::from_millis(300))
                .is_err_and(|it| it == std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                if here {
                    link.refuse()
                } else {
                    link.accept()
                }
                link.cut();
                here = !here;
            }
            link.accept();
        });
        run(runs(), || DirSubject::below(mount.place(), false));
        drop(stop);
    });
    mount.unmount();
}

/// The median of what it takes to look at a name that is asked for each time.
fn median(path: &Path) -> Duration {
    let took = |_| {
        let begun = Instant::now();
        fs::symlink_metadata(path).unwrap();
        begun.elapsed()
    };
    let mut all: Vec<Duration> = (0..CALLS).map(took).collect();
    all.sort();
    all[CALLS / 2]
}

/// The first of three, which is asked for every name, goes away by `end`; calls for the others take
/// no longer than before.
#[track_caller]
fn the_others_are_as_quick(words: [(&str, &str); 3], files: [&str; 2], end: impl Fn(&Fleet)) {
    // So long a server that says nothing may be a slow one.
    let options = ["-o", "dir_cache=no,request_timeout=3"];
    let hosts = Hosts::new(&HOSTS);
    for host in HOSTS {
        hosts.put(host, host, host);
    }
    let mount = mounted(&hosts, words, &options).with_errors();
    let before = files.map(|file| median(&mount.at(file)));
    end(&hosts.fleet);
    // A host that says nothing is known to be away when its time is over.
    let known = eventually(LIMIT, "it is known", || {
        let begun = Instant::now();
        files.iter().all(|file| fs::symlink_metadata(mount.at(file)).is_ok())
            && begun.elapsed() < BUSY
    });
    let after = files.map(|file| median(&mount.at(file)));
    println!("before {before:?}, after {after:?}, which was so within {known:.2?}");
    for (before, after) in before.into_iter().zip(after) {
        assert!(after < 10 * before.max(BUSY / 10), "{before:?} became {after:?}");
    }
    if words[0].1 == "=optional" {
        assert_eq!(names(mount.place()), ["beta", "gamma"], "what is optional is left out");
    }
    let link = hosts.fleet.link("alpha");
    link.accept();
    link.resume();
    let back = eventually(LIMIT, "it is back", || {
        let alpha = if words[0].0.is_empty() { "alpha" } else { "A/alpha" };
        fs::symlink_metadata(mount.at(alpha)).is_ok()
    });
    println!("back within {back:.2?}");
    mount.unmount();
}

const PLACED: [(&str, &str); 3] = [("A=", ""), ("B=", ""), ("C=", "")];
const OPTIONAL: [(&str, &str); 3] = [("", "=optional"), ("", ""), ("", "")];

fn refuse(fleet: &Fleet) {
    fleet.link("alpha").refuse();
    fleet.link("alpha").cut();
}

#[test]
fn an_optional_branch_that_refuses_delays_no_call() {
    the_others_are_as_quick(OPTIONAL, ["beta", "gamma"], refuse);
}

#[test]
fn a_place_that_refuses_delays_no_call() {
    the_others_are_as_quick(PLACED, ["B/beta", "C/gamma"], refuse);
}

#[test]
fn a_stalled_place_delays_no_call() {
    the_others_are_as_quick(PLACED, ["B/beta", "C/gamma"], |fleet| fleet.link("alpha").stall());
}

#[test]
fn an_optional_branch_that_is_stalled_is_waited_for_once() {
    the_others_are_as_quick(OPTIONAL, ["beta", "gamma"], |fleet| fleet.link("alpha").stall());
}

/// Who asks for all of a directory gets all of it, or is told that it is not to be had.
#[test]
fn a_listing_needs_required_branches_and_omits_optional_ones() {
    let hosts = Hosts::new(&HOSTS);
    for host in HOSTS {
        hosts.put(host, host, host);
    }
    let words = [("", ""), ("", "=required"), ("", "=optional")];
    let mount = mounted(&hosts, words, &["-o", "dir_cache=no,soft=1"]).with_errors();
    assert_eq!(names(mount.place()), ["alpha", "beta", "gamma"]);
    for (host, without) in [("gamma", Some(["alpha", "beta"])), ("beta", None)] {
        let link = hosts.fleet.link(host);
        link.refuse();
        link.cut();
        match without {
            Some(names_left) => {
                eventually(LIMIT, "it is left out", || names(mount.place()) == names_left);
            }
            None => {
                let listed =
                    fs::read_dir(mount.place()).and_then(Iterator::collect::<Result<Vec<_>, _>>);
                let error = listed.expect_err("a part of the directory").raw_os_error();
                assert_eq!(error, Some(libc::ETIMEDOUT));
            }
        }
        link.accept();
        eventually(LIMIT, "it is back", || {
            let listed = fs::read_dir(mount.place()).map(|dir| dir.flatten().count());
            listed.is_ok_and(|count| count == HOSTS.len())
        });
    }
    mount.unmount();
}

/// Also of what is merged, hidden, and put into places.
#[test]
fn inode_numbers_are_the_same_after_a_remount() {
    let hosts = Hosts::new(&HOSTS);
    for host in HOSTS {
        fs::create_dir(hosts.fleet.directory(host).join("merged")).unwrap();
        hosts.put(host, &format!("merged/{host}"), host);
        hosts.put(host, "hidden", host);
    }
    let words = [("", ""), ("", ""), ("place/deep=", "")];
    let numbers = |mount: &Mount| {
        let dirs = ["", "merged", "place", "place/deep", "place/deep/merged"];
        let entries = dirs.iter().flat_map(|dir| fs::read_dir(mount.at(dir)).unwrap());
        let mut numbers: Vec<_> = entries
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let name = entry.path().strip_prefix(mount.place()).unwrap().to_owned();
                (name, entry.metadata().unwrap().ino())
            })
            .collect();
        numbers.sort();
        numbers
    };
    let mount = mounted(&hosts, words, &[]);
    let before = numbers(&mount);
    assert_eq!(before.len(), 9, "{before:?}");
    mount.unmount();
    let mount = mounted(&hosts, words, &[]);
    assert_eq!(numbers(&mount), before);
    mount.unmount();
}
