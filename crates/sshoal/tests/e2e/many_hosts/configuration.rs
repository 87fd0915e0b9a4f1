//! Mounts with a name.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::Value;

use super::{Hosts, content, names};
use crate::mount::Mount;
use crate::process::{Ended, eventually, run, succeed};
use crate::status::status;
use crate::world::{program, refusal};

/// Hosts with a configuration file, and mount points `one`, `two` and so on.
struct Configured {
    hosts: Hosts,
}

impl Configured {
    /// `{one}` and so on in `text` are mount points, `{alpha}` and so on sources, `{F}` is ssh's
    /// configuration.
    fn new(names: &[&str], text: &str) -> Configured {
        let configured = Configured { hosts: Hosts::new(names) };
        let hosts = &configured.hosts;
        let mut text = text.replace("{F}", hosts.fleet.config_path().to_str().unwrap());
        for name in names {
            text = text.replace(&format!("{{{name}}}"), &hosts.source(name));
        }
        for place in ["one", "two", "three"] {
            fs::create_dir(hosts.local(place)).unwrap();
            text = text.replace(&format!("{{{place}}}"), hosts.local(place).to_str().unwrap());
        }
        fs::create_dir_all(hosts.local("config/sshoal")).unwrap();
        fs::write(configured.file(), text).unwrap();
        fs::set_permissions(configured.file(), fs::Permissions::from_mode(0o600)).unwrap();
        configured
    }

    fn file(&self) -> PathBuf {
        self.hosts.local("config/sshoal/config.toml")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = program();
        command.env("XDG_CONFIG_HOME", self.hosts.local("config")).args(words);
        command
    }

    /// Unmounts in the way of a user, which waits for the daemon.
    #[track_caller]
    fn umount(&self, place: &str) {
        succeed(program().arg("umount").arg(self.hosts.local(place)));
    }
}

const TWO: &str = "
[defaults.options]
ssh_config = '{F}'
[mount.first]
mountpoint = '{one}'
sources = ['{alpha}', 'B={beta}=ro']
[mount.second]
mountpoint = '{two}'
sources = '{beta}'
options = ['ro']
";

#[test]
fn a_mount_is_made_by_its_name() {
    let configured = Configured::new(&["alpha", "beta"], TWO);
    configured.hosts.put("alpha", "a", "of alpha");
    configured.hosts.put("beta", "b", "of beta");
    let place = configured.hosts.local("one");
    let mount = Mount::start(configured.command(&["mount", "-f", "first"]), place.clone());
    assert_eq!(content(mount.at("a")), "of alpha");
    assert_eq!(content(mount.at("B/b")), "of beta");
    assert!(fs::write(mount.at("B/b"), "new").is_err());
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = format!("first {} fuse.sshoal ", place.display());
    assert!(table.contains(&line), "{table}");
    mount.unmount();
    // Somewhere else, with other options, and by mount(8)'s helper.
    let place = configured.hosts.local("three");
    let mut command = configured.command(&["mount", "second", "-f", "-o", "rw"]);
    command.arg(&place);
    let mount = Mount::start(command, place.clone());
    fs::write(mount.at("new"), "new").unwrap();
    mount.unmount();
    let mut command = configured.command(&["second"]);
    succeed(command.arg0("mount.fuse.sshoal").arg(&place).args(["-o", "rw,_netdev"]));
    assert_eq!(names(&place), ["b", "new"]);
    configured.umount("three");
}

#[test]
fn all_are_mounted_and_one_that_fails_stops_no_other() {
    let mut configured = Configured::new(&["alpha", "beta"], TWO);
    configured.hosts.put("alpha", "a", "of alpha");
    configured.hosts.put("beta", "b", "of beta");
    configured.hosts.fleet.kill("alpha");
    let Ended { status, stderr, .. } = run(&mut configured.command(&["mount", "--all"]));
    assert_eq!(status.code(), Some(1));
    assert!(stderr.contains("sshoal: alpha: "), "{stderr}");
    assert!(stderr.ends_with("sshoal: mount --all: not mounted: first\n"), "{stderr}");
    assert_eq!(names(configured.hosts.local("two")), ["b"]);
    configured.hosts.fleet.restart("alpha").unwrap();
    // Once more: what is mounted stays, what is not is mounted.
    for _ in 0..2 {
        succeed(&mut configured.command(&["mount", "--all"]));
        assert_eq!(names(configured.hosts.local("one")), ["B", "a"]);
    }
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let second = configured.hosts.local("two");
    assert_eq!(table.matches(second.to_str().unwrap()).count(), 1, "mounted once");
    configured.umount("one");
    configured.umount("two");
}

#[test]
fn all_are_mounted_from_the_outside_inwards_and_each_place_once() {
    let text = "
[defaults.options]
ssh_config = '{F}'
[mount.inner]
mountpoint = '{one}/sub'
sources = '{beta}'
[mount.outer]
mountpoint = '{one}'
sources = '{alpha}'
[mount.again]
mountpoint = '{one}/'
sources = '{beta}'
[mount.nowhere]
sources = '{alpha}'
";
    let mut configured = Configured::new(&["alpha", "beta"], text);
    configured.hosts.put("alpha", "sub/a", "of alpha");
    configured.hosts.put("beta", "b", "of beta");
    let Ended { status, stdout, stderr, .. } = run(&mut configured.command(&["config", "check"]));
    assert_eq!(status.code(), Some(1));
    assert!(stdout.ends_with("config.toml: 4 mounts, 1 error\n"), "{stdout}");
    assert!(stderr.contains("mount 'again' has the mount point of mount 'outer'"), "{stderr}");
    let all = |configured: &Configured, missing: &str| {
        let Ended { status, stderr, .. } = run(&mut configured.command(&["mount", "--all"]));
        assert_eq!(status.code(), Some(1));
        assert!(stderr.contains("mount 'again' has the mount point of"), "{stderr}");
        assert!(stderr.contains("mount 'nowhere': note: skipped"), "{stderr}");
        assert!(stderr.ends_with(&format!("not mounted: {missing}\n")), "{stderr}");
        stderr
    };
    configured.hosts.fleet.kill("alpha");
    let said = all(&configured, "again, outer, inner");
    assert!(said.contains("mount 'inner': is inside mount 'outer', which is not"), "{said}");
    configured.hosts.fleet.restart("alpha").unwrap();
    for _ in 0..2 {
        all(&configured, "again");
        assert_eq!(names(configured.hosts.local("one")), ["sub"]);
        assert_eq!(names(configured.hosts.local("one").join("sub")), ["b"]);
    }
    configured.umount("one/sub");
    configured.umount("one");
}

#[test]
fn a_dead_mount_is_made_again_and_one_of_another_type_is_not() {
    let text = "
[defaults.options]
ssh_config = '{F}'
[mount.first]
mountpoint = '{one}'
sources = '{alpha}'
[mount.second]
mountpoint = '{two}'
sources = '{alpha}'
options = ['subtype=other']
";
    let configured = Configured::new(&["alpha"], text);
    configured.hosts.put("alpha", "a", "of alpha");
    let lines = |place: &str| {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let field = format!(" {} ", configured.hosts.local(place).display());
        table.lines().filter(|line| line.contains(&field)).map(str::to_owned).collect::<Vec<_>>()
    };
    // The kernel requests the attributes of the root if the directory is accessed.
    let accesses = || {
        let mut command = program();
        command.args(["stats", "--total", "--json"]).arg(configured.hosts.local("one"));
        let stats: Value = serde_json::from_str(&succeed(&mut command)).unwrap();
        stats["operations"]["getattr"]["count"].as_u64().unwrap_or(0)
    };
    for is_again in [false, true] {
        let before = is_again.then(accesses);
        succeed(&mut configured.command(&["mount", "--all"]));
        let second = lines("two");
        assert!(second.len() == 1 && second[0].contains(" fuse.other "), "{second:?}");
        // A mount with an unreachable host would block.
        assert!(!is_again || before == Some(accesses()));
    }
    let said = refusal(&mut configured.command(&["mount", "second"]));
    assert!(said.contains("second (fuse.other) is already mounted here"), "{said}");
    let pid = status(&configured.hosts.local("one"))["pid"].as_i64().unwrap();
    let daemon = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(daemon, Signal::KILL).unwrap();
    eventually(Duration::from_secs(10), "it is dead", || {
        status(&configured.hosts.local("one"))["daemon"] == "dead"
    });
    succeed(&mut configured.command(&["mount", "--all"]));
    assert_eq!(names(configured.hosts.local("one")), ["a"]);
    assert_eq!((lines("one").len(), lines("two").len()), (1, 1));
    configured.umount("one");
    configured.umount("two");
}

#[test]
fn mistakes_are_reported_with_their_line_and_correct_mounts_work() {
    let text = "
[mount.good]
mountpoint = '{one}'
sources = '{alpha}'
options = ['ssh_config={F}']
[mount.bad]
mountpiont = '{two}'
sources = ['{alpha}=rw,ro']
";
    let configured = Configured::new(&["alpha"], text);
    let Ended { status, stdout, stderr, .. } = run(&mut configured.command(&["config", "check"]));
    assert_eq!(status.code(), Some(1));
    let file = configured.file();
    assert!(
        stderr.starts_with(&format!("sshoal: {}:7:1: no such key", file.display())),
        "{stderr}"
    );
    assert!(stderr.contains("\n  did you mean 'mountpoint'?\n"), "{stderr}");
    assert!(stderr.contains(&format!("sshoal: {}:8:12: source '", file.display())), "{stderr}");
    assert_eq!(stdout, format!("{}: 2 mounts, 2 errors\n", file.display()));
    let said = refusal(&mut configured.command(&["mount", "bad"]));
    assert!(said.contains(":7:1: no such key") && said.contains("config check"), "{said}");
    let place = configured.hosts.local("one");
    let mount = Mount::start(configured.command(&["mount", "good", "-f"]), place);
    assert_eq!(names(mount.place()), [""; 0]);
    mount.unmount();
    let shown = succeed(&mut configured.command(&["config", "show", "good"]));
    assert!(shown.starts_with("[mount.good]") && shown.contains("config.toml:4\n"), "{shown}");
    let Ended { status, stderr, .. } = run(&mut configured.command(&["mount", "--all"]));
    assert_eq!(status.code(), Some(1));
    assert!(stderr.ends_with("not mounted: bad\n"), "{stderr}");
    configured.umount("one");
}

#[test]
fn a_file_that_others_can_write_to_is_refused() {
    let configured = Configured::new(&[], TWO);
    fs::set_permissions(configured.file(), fs::Permissions::from_mode(0o666)).unwrap();
    for words in [&["config", "check"][..], &["mount", "first"], &["mount", "--all"]] {
        let said = refusal(&mut configured.command(words));
        assert!(said.contains("writable by others\n  chmod go-w '"), "{said}");
    }
    fs::remove_file(configured.file()).unwrap();
    let said = refusal(&mut configured.command(&["mount", "first"]));
    assert!(said.starts_with("sshoal: mount 'first': not in the configuration\n"), "{said}");
    let said = refusal(&mut configured.command(&["mount", "--all"]));
    assert!(said.contains("no mounts in the configuration file"), "{said}");
    let said = refusal(&mut configured.command(&["mount", "--all", "-f"]));
    assert!(said.contains("takes no other arguments"), "{said}");
    let nothing = succeed(&mut configured.command(&["config", "check"]));
    assert!(nothing.starts_with("No configuration file; searched /etc/"), "{nothing}");
}
