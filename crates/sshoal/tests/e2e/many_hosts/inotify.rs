//! File watchers in unions (W4).

use std::fs;

use super::helper::{sources, two_helpers, wait_for_watches};
use super::{Hosts, content, put};
use crate::inotify::{Shell, Watcher, events};
use crate::mount::Mount;
use crate::process::eventually;
use crate::watch::SOON;

const WATCHING: &str = "consistency=watch,action=all";

/// What a watcher sees of changes at the servers.
struct Seen<'h> {
    hosts: &'h Hosts,
    watcher: Watcher,
    shell: Shell,
    markers: u32,
}

impl<'h> Seen<'h> {
    fn new(hosts: &'h Hosts, mount: &Mount, entries: &[&str]) -> Seen<'h> {
        let (watcher, shell) = (Watcher::new(mount, entries), Shell::new());
        Seen { hosts, watcher, shell, markers: 0 }
    }

    /// The events of what was done at `host`, in whose directory `there`, which is `here` in the
    /// mount, a marker follows. Equal events in succession are one.
    #[track_caller]
    fn until(&mut self, host: &str, there: &str, here: &str) -> Vec<(String, String)> {
        self.markers += 1;
        let marker = format!("marker{}", self.markers);
        let there = self.hosts.served(host, there).join(&marker);
        let mut seen =
            self.watcher.until_link(&there, format!("{here}/{marker}").trim_start_matches('/'));
        seen.dedup();
        seen
    }

    /// The events of this command, run in the directory `dir` of `host`.
    #[track_caller]
    fn of(&mut self, host: &str, command: &str) -> Vec<(String, String)> {
        let dir = self.hosts.served(host, "dir");
        self.shell.run(&format!("cd '{}' && {command}", dir.display()));
        self.until(host, "dir", "dir")
    }
}

/// Both hosts have `dir`, and in it `both`, and each a file of its own.
fn watching() -> (Hosts, Mount) {
    let hosts = two_helpers();
    for host in ["alpha", "beta"] {
        for name in [format!("dir/{host}"), "dir/both".into(), "dir/twice".into()] {
            put(&hosts.served(host, name), host);
        }
    }
    put(&hosts.served("alpha", "dir/of-alpha/file"), "alpha");
    let mount = hosts.mount(&sources(&hosts), &["-o", WATCHING]).with_errors();
    wait_for_watches(&mount, 3);
    (hosts, mount)
}

#[test]
fn w4_changes_of_visible_entries_are_seen() {
    let (hosts, mount) = watching();
    let mut seen = Seen::new(&hosts, &mount, &["dir"]);
    // Of each source.
    for host in ["alpha", "beta"] {
        let name = format!("dir/new-{host}");
        let of_name = |kind| (kind, name.as_str());
        let created = ["CREATE", "MODIFY", "CLOSE_WRITE"].map(of_name);
        let command = format!("printf content > new-{host}");
        assert_eq!(seen.of(host, &command), events(&created));
        assert_eq!(content(mount.at(&name)), "content");
        let command = format!("printf more >> new-{host}");
        assert_eq!(seen.of(host, &command), events(&created[1..]));
        let command = format!("chmod 640 new-{host}");
        assert_eq!(seen.of(host, &command), events(&[("ATTRIB", &name)]));
        let moved = format!("dir/moved-{host}");
        let command = format!("mv new-{host} moved-{host}");
        let both = [("MOVED_FROM", name.as_str()), ("MOVED_TO", &moved)];
        assert_eq!(seen.of(host, &command), events(&both));
        assert_eq!(seen.of(host, &format!("rm moved-{host}")), events(&[("DELETE", &moved)]));
    }
    // Hidden.
    for command in ["printf other > both", "chmod 640 both", "rm both", "printf more > both"] {
        assert_eq!(seen.of("beta", command), []);
    }
    assert_eq!(content(mount.at("dir/both")), "alpha");
    let appended = [("MODIFY", "dir/both"), ("CLOSE_WRITE", "dir/both")];
    assert_eq!(seen.of("alpha", "printf +more >> both"), events(&appended));
    assert_eq!(seen.of("beta", "mv both beta-alone"), events(&[("CREATE", "dir/beta-alone")]));
    mount.unmount();
}

#[test]
fn w4_what_is_hidden_or_revealed_is_a_change_of_the_content() {
    let (hosts, mount) = watching();
    let mut seen = Seen::new(&hosts, &mount, &["dir"]);
    let changed = events(&["ATTRIB", "MODIFY", "CLOSE_WRITE"].map(|kind| (kind, "dir/beta")));
    let is_change = |seen: &[(String, String)]| {
        changed.iter().all(|event| seen.contains(event))
            && seen.iter().all(|event| changed.contains(event))
    };
    let hidden = seen.of("alpha", "printf hiding > beta");
    assert!(is_change(&hidden), "{hidden:?}");
    assert_eq!(content(mount.at("dir/beta")), "hiding");
    assert_eq!(seen.of("beta", "printf other > beta"), []);
    let revealed = seen.of("alpha", "rm beta");
    assert!(is_change(&revealed), "{revealed:?}");
    assert_eq!(content(mount.at("dir/beta")), "other");
    let replaced = seen.of("alpha", "mv alpha beta");
    assert!(replaced.contains(&("DELETE".into(), "dir/alpha".into())), "{replaced:?}");
    assert!(is_change(&replaced[1..]), "{replaced:?}");
    // A file in the place of a directory.
    assert_eq!(seen.of("beta", "mkdir kind"), events(&[("CREATE | ISDIR", "dir/kind")]));
    let kinds = seen.of("alpha", "ln -s nowhere kind");
    assert_eq!(kinds, events(&[("DELETE | ISDIR", "dir/kind"), ("CREATE", "dir/kind")]));
    let kinds = seen.of("alpha", "rm kind");
    assert_eq!(kinds, events(&[("DELETE", "dir/kind"), ("CREATE | ISDIR", "dir/kind")]));
    mount.unmount();
}

#[test]
fn w4_a_merged_directory_is_one() {
    let (hosts, mount) = watching();
    let mut seen = Seen::new(&hosts, &mount, &["dir", "dir/of-alpha"]);
    assert_eq!(seen.of("alpha", "mkdir sub"), events(&[("CREATE | ISDIR", "dir/sub")]));
    assert_eq!(seen.of("beta", "mkdir sub"), []);
    assert_eq!(seen.of("beta", "chmod 750 sub"), events(&[("ATTRIB | ISDIR", "dir/sub")]));
    assert_eq!(seen.of("alpha", "rmdir sub"), []);
    assert_eq!(seen.of("beta", "rmdir sub"), events(&[("DELETE | ISDIR", "dir/sub")]));
    // Another source gets a watched directory, which nothing but the watch uses.
    assert_eq!(seen.of("beta", "mkdir of-alpha"), []);
    for host in ["beta", "alpha"] {
        let mut number = 0;
        eventually(SOON, "its changes are seen", || {
            number += 1;
            let name = format!("dir/of-alpha/{host}{number}");
            fs::write(hosts.served(host, &name), "").unwrap();
            seen.watcher.read();
            let prefix = format!("dir/of-alpha/{host}");
            seen.watcher.seen.iter().any(|(_, name, _)| name.starts_with(&prefix))
        });
    }
    mount.unmount();
}

#[test]
fn w4_local_changes_of_several_sources_are_seen_once() {
    let (hosts, mount) = watching();
    let mut seen = Seen::new(&hosts, &mount, &["dir"]);
    let here = |name: &str| mount.at(name).display().to_string();
    seen.shell.run(&format!("rm '{}'", here("dir/twice")));
    let mut all = seen.until("alpha", "dir", "dir");
    all.extend(seen.until("beta", "dir", "dir"));
    assert_eq!(all, events(&[("DELETE", "dir/twice")]));
    assert!(["alpha", "beta"].iter().all(|host| !hosts.served(host, "dir/twice").exists()));
    seen.shell.run(&format!("mv '{}' '{}'", here("dir/both"), here("dir/other")));
    let mut all = seen.until("alpha", "dir", "dir");
    all.extend(seen.until("beta", "dir", "dir"));
    assert_eq!(all, events(&[("MOVED_FROM", "dir/both"), ("MOVED_TO", "dir/other")]));
    mount.unmount();
}

#[test]
fn w4_a_source_is_seen_in_its_place() {
    let hosts = two_helpers();
    put(&hosts.served("alpha", "place/dir/hidden"), "alpha");
    put(&hosts.served("beta", "dir/file"), "beta");
    let placed = format!("place={}", hosts.source("beta"));
    let mount = hosts.mount(&[hosts.source("alpha"), placed], &["-o", WATCHING]).with_errors();
    // The root, its place, and the directory in it.
    wait_for_watches(&mount, 3);
    let mut seen = Seen::new(&hosts, &mount, &["", "place", "place/dir"]);
    seen.shell.write(&hosts.served("beta", "dir/new"), "");
    let created = [("CREATE", "place/dir/new"), ("CLOSE_WRITE", "place/dir/new")];
    assert_eq!(seen.until("beta", "dir", "place/dir"), events(&created));
    fs::remove_file(hosts.served("beta", "dir/new")).unwrap();
    let removed = events(&[("DELETE", "place/dir/new")]);
    assert_eq!(seen.until("beta", "dir", "place/dir"), removed);
    // What is at the place stays there.
    fs::rename(hosts.served("alpha", "place"), hosts.served("alpha", "renamed")).unwrap();
    let appeared = events(&[("CREATE | ISDIR", "renamed")]);
    assert_eq!(seen.until("alpha", "", ""), appeared);
    mount.unmount();
}
