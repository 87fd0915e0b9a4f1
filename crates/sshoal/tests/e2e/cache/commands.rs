//! `sshoal cache` and `sshoal warm`, while mounts use the cache.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::{cache_dir, disk, mount, put, put_tree, read_all, sshoal, told};
use crate::behaviours::pattern;
use crate::process::eventually;
use crate::world::World;

#[track_caller]
fn json(words: &[&str], paths: &[&Path]) -> Value {
    let text = told(&[&words[..1], &["--json"], &words[1..]].concat(), paths);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn warm_fetches_a_tree_before_it_is_read() {
    let mut world = World::new();
    let files = put_tree(&world);
    let all: u64 = files.iter().map(|(_, content)| content.len() as u64).sum();
    let count = files.len() as u64;
    let first = mount(&world, "consistency=immutable");
    let before = json(&["cache", "check"], &[first.place()]);
    assert_eq!((&before["files"], &before["whole_files"]), (&count.into(), &0.into()));
    let said = told(&["warm", "-j", "3"], &[first.place()]);
    assert!(said.contains(&format!("{count} files")) && said.contains(" fetched ("), "{said}");
    let after = json(&["cache", "check"], &[first.place()]);
    assert_eq!((&after["whole_files"], &after["present_bytes"]), (&count.into(), &all.into()));
    let again = json(&["warm"], &[first.place()]);
    assert_eq!((&again["fetched_files"], &again["fetched_bytes"]), (&0.into(), &0.into()));
    let said = told(&["cache", "check"], &[&first.at("dir0"), &first.at(&files[1].0)]);
    assert!(said.ends_with("files cached\n"), "{said}");
    first.unmount();
    world.sshd_mut().end();
    let offline = mount(&world, "consistency=immutable,offline");
    read_all(&offline, &files);
    assert_eq!(fs::read_link(offline.at("dir0/link")).unwrap(), Path::new("deeper/file0"));
    offline.unmount();
}

#[test]
fn a_list_is_fetched_and_what_fails_is_named() {
    let world = World::new();
    let files = put_tree(&world);
    let mount = mount(&world, "");
    let list = world.local("list");
    let names: Vec<String> =
        files[..2].iter().map(|(name, _)| mount.at(name).to_str().unwrap().to_owned()).collect();
    fs::write(&list, names.join("\n")).unwrap();
    let said = told(&["warm", "--from"], &[&list]);
    assert!(said.starts_with("2 files (1 B): "), "{said}");
    let ended = sshoal(&["warm"], &[&mount.at("none")]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("none': No such file"), "{ended:?}");
    // The others are fetched.
    let ended = sshoal(&["warm"], &[&mount.at("none"), &mount.at(&files[2].0)]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("none': No such file"), "{ended:?}");
    assert!(ended.stdout.starts_with("1 file"), "{ended:?}");
    let ended = sshoal(&["cache", "pin"], &[&mount.at("none"), &mount.at(&files[2].0)]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let ended = sshoal(&["warm"], &[&world.served("")]);
    assert!(ended.stderr.contains("not in a mount of sshoal"), "{ended:?}");
    mount.unmount();
}

#[test]
fn a_mount_without_a_cache_says_how_to_get_one() {
    let world = World::new();
    let mount = super::ready(world.mount(&[]));
    for words in [&["warm"][..], &["cache", "check"], &["cache", "pin"]] {
        let ended = sshoal(words, &[mount.place()]);
        assert_eq!(ended.status.code(), Some(1));
        assert!(ended.stderr.contains("cache=disk"), "{ended:?}");
    }
    let ended = sshoal(&["cache", "status", "--dir"], &[&world.local("none")]);
    assert!(ended.stderr.contains("does not exist"), "{ended:?}");
    assert!(!world.local("none").exists());
    mount.unmount();
}

#[test]
fn the_cache_commands_work_while_the_store_is_in_use() {
    let world = World::new();
    let files = put_tree(&world);
    let mount = mount(&world, "");
    told(&["warm"], &[mount.place()]);
    let dir = cache_dir(&world);
    let status = json(&["cache", "status", "--dir"], &[&dir]);
    assert!(status["used_bytes"].as_u64().unwrap() > 3 << 20, "{status}");
    let listed = json(&["cache", "ls", "--dir"], &[&dir]);
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), files.len());
    let of_largest = listed.iter().find(|it| it["size_bytes"] == 3 << 20).unwrap();
    assert_eq!(of_largest["places"][0]["path"], files.last().unwrap().0.as_str());
    let text = told(&["cache", "ls", "--dir"], &[&dir]);
    assert_eq!(text.lines().count(), files.len());
    assert!(told(&["cache", "verify", "--dir"], &[&dir]).contains("checksums match: "));

    // What is pinned stays.
    let (pinned, content) = &files[5];
    assert_eq!(told(&["cache", "pin"], &[&mount.at(pinned)]), "");
    assert_eq!(json(&["cache", "pin"], &[&mount.at(pinned)])["failed"], 0);
    assert_eq!(json(&["cache", "status", "--dir"], &[&dir])["pins"][0]["path"], pinned.as_str());
    // Less than any of them takes, so that it does not matter in which order they were used. One
    // stays as long as the mount has it open, to make its digests.
    eventually(Duration::from_secs(60), "what is not pinned goes", || {
        told(&["cache", "gc", "--size", "1K", "--dir"], &[&dir]);
        json(&["cache", "check"], &[&mount.at(&files[4].0)])["present_bytes"] == 0
    });
    let left = json(&["cache", "check"], &[&mount.at(pinned)]);
    assert_eq!(left["present_bytes"], content.len());
    // Also after the file was removed at the server.
    fs::remove_file(world.served(pinned)).unwrap();
    eventually(Duration::from_secs(60), "the removal is seen", || !mount.at(pinned).exists());
    told(&["cache", "unpin"], &[&mount.at(pinned)]);
    assert_eq!(json(&["cache", "status", "--dir"], &[&dir])["pins"], serde_json::json!([]));
    let ended = sshoal(&["cache", "unpin"], &[&mount.at(pinned)]);
    assert!(ended.stderr.contains("not pinned"), "{ended:?}");

    told(&["cache", "clear", "--dir"], &[&dir]);
    assert_eq!(json(&["cache", "check"], &[mount.place()])["whole_files"], 0);
    put(&world, pinned, content);
    eventually(Duration::from_secs(60), "the file is seen", || mount.at(pinned).exists());
    read_all(&mount, &files);
    mount.unmount();
}

#[test]
fn pins_that_together_are_larger_than_the_cache_give_a_warning() {
    let world = World::new();
    for number in 0..16u8 {
        let mut content = pattern(300 << 10);
        content.iter_mut().for_each(|byte| *byte = byte.wrapping_add(number));
        put(&world, &format!("dir{}/file{number}", number % 2), &content);
    }
    let mount = mount(&world, "cache_size=4M");
    let first = mount.at("dir0");
    told(&["cache", "pin"], &[&first]);
    told(&["warm"], &[&first]);
    let ended = sshoal(&["cache", "pin"], &[&mount.at("dir1")]);
    assert!(ended.stderr.contains("4.7 MiB") && ended.stderr.contains("cache_size"), "{ended:?}");
    mount.unmount();
}

/// Who ends the command ends the fetching.
#[test]
fn fetching_ends_with_the_command() {
    let world = World::new();
    for number in 0..8 {
        put(&world, &format!("file{number}"), &pattern(4 << 20));
    }
    let mount = mount(&world, "");
    world.sshd().stop();
    let mut command = crate::world::program();
    command.args(["warm", "-j", "2"]).arg(mount.place());
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut warm = crate::process::Process::spawn(&mut command);
    assert!(warm.try_wait(std::time::Duration::from_millis(500)).is_none());
    warm.signal(rustix::process::Signal::INT);
    assert!(warm.try_wait(super::LIMIT).is_some());
    world.sshd().cont();
    // Nothing of it goes on: the daemon is idle and ends at once.
    assert_eq!(disk(&mount, "missed_offline"), 0);
    mount.unmount();
}
