//! What `sshoal status` tells, of mounts that are well and of others.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};

use super::{Hosts, as_somebody_else, branch, mounted, started, status};
use crate::mount::umount;
use crate::process::{Process, eventually, run};
use crate::world::names;
use crate::world::{program, program_path};

/// How long a state may take to show.
const SHOWN: Duration = Duration::from_secs(60);

#[test]
fn a_mount_that_is_well_is_described() {
    let hosts = Hosts::new(&["alpha"]);
    fs::write(hosts.served("alpha", "file"), "content").unwrap();
    let mount = mounted(&hosts, &[hosts.fleet.source("alpha")], &[]);
    let open = fs::File::open(mount.at("file")).unwrap();
    let told = status(mount.place());
    assert_eq!(told["mountpoint"], mount.place().to_str().unwrap());
    assert_eq!(
        (told["daemon"].as_str(), told["pid"].as_u64()),
        (Some("answers"), Some(u64::from(mount.daemon().pid())))
    );
    let of = &told["status"];
    assert_eq!(of["pid"], mount.daemon().pid());
    assert!(of["union"].is_null());
    let [source] = &of["sources"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!(source["source"], hosts.fleet.source("alpha"));
    assert_eq!((&source["state"], &source["why"]), (&"connected".into(), &().into()));
    let [host] = &source["hosts"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!((&host["host"], &host["state"]), (&"alpha".into(), &"connected".into()));
    assert_eq!(host["sessions"][0]["state"], "up");
    assert!(host["round_trip_us"].as_u64().is_some_and(|us| us > 0), "{told}");
    assert_eq!((&of["open"]["files"], &of["unwritten"]["bytes"]), (&1.into(), &0.into()));
    assert!(of["cache"]["inodes"].as_u64().is_some_and(|inodes| inodes >= 2), "{told}");
    drop(open);

    // All mounts, this one among them, and for people.
    let ended = run(program().arg("status"));
    let heading = format!("{}\n  process    {}, ", mount.place().display(), mount.daemon().pid());
    assert!(ended.stdout.contains(&heading), "{ended:?}");
    let ended = run(program().arg("status").arg(mount.place()));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(
        lines[2].starts_with("  source     alpha:/") && lines[2].ends_with("  connected"),
        "{ended:?}"
    );
    assert!(lines[3].starts_with("      alpha: 1 of "), "{ended:?}");
    assert_eq!(lines[4], "  unwritten  nothing");
    mount.unmount();
}

#[test]
fn status_shows_an_unreachable_host_and_waiting_calls() {
    let hosts = Hosts::new(&["alpha"]);
    fs::write(hosts.served("alpha", "file"), "content").unwrap();
    let mount = mounted(&hosts, &[hosts.fleet.source("alpha")], &[]).with_errors();
    let link = hosts.fleet.link("alpha");
    link.refuse();
    link.cut();
    let source = || status(mount.place())["status"]["sources"][0].clone();
    eventually(SHOWN, "reconnecting without a call", || source()["state"] == "reconnecting");
    let path = mount.at("file");
    let reader = std::thread::spawn(move || fs::read_to_string(path).unwrap());
    eventually(SHOWN, "a call waits", || {
        let source = source();
        source["state_ms"].is_u64() && source["waiting_calls"].as_u64() > Some(0)
    });
    let away = source();
    assert!(away["why"].as_str().is_some_and(|why| !why.is_empty()), "{away}");
    assert_ne!(away["why"], "Host is down", "the reason is known");
    assert_eq!(away["hosts"][0]["round_trip_us"], serde_json::Value::Null);
    let before = away["state_ms"].as_u64().unwrap();
    eventually(SHOWN, "it is told since when", || source()["state_ms"].as_u64() > Some(before));
    let text = run(program().arg("status").arg(mount.place())).stdout;
    assert!(
        text.contains("  reconnecting for ") && text.contains("  waiting    1 call for alpha:"),
        "{text}"
    );
    link.accept();
    assert_eq!(reader.join().unwrap(), "content");
    eventually(SHOWN, "connected again", || {
        let source = source();
        source["state"] == "connected" && source["waiting_calls"] == 0
    });
    mount.unmount();
}

#[test]
fn an_unreachable_optional_branch_is_left_out_until_it_is_required() {
    let hosts = Hosts::new(&["alpha", "beta"]);
    fs::write(hosts.served("alpha", "here"), "").unwrap();
    fs::write(hosts.served("beta", "there"), "").unwrap();
    let beta = hosts.fleet.source("beta");
    let sources = [hosts.fleet.source("alpha"), format!("{beta}=optional")];
    let mount = mounted(&hosts, &sources, &["-o", "dir_cache=no"]).with_errors();
    assert_eq!(names(mount.place()), ["here", "there"]);
    let link = hosts.fleet.link("beta");
    link.refuse();
    link.cut();
    let state = || status(mount.place())["status"]["sources"][1]["state"].clone();
    eventually(SHOWN, "left out", || names(mount.place()) == ["here"] && state() == "left-out");
    let text = run(program().arg("status").arg(mount.place())).stdout;
    assert!(text.contains("  rw  optional  left out for "), "{text}");
    branch(mount.place(), &["set", &beta, "required"]);
    assert_eq!(state(), "reconnecting");
    branch(mount.place(), &["set", &beta, "optional"]);
    assert_eq!(names(mount.place()), ["here"]);
    link.accept();
    eventually(SHOWN, "back", || names(mount.place()) == ["here", "there"]);
    assert_eq!(state(), "connected");
    mount.unmount();
}

/// Neither is the mount itself asked anything.
#[test]
fn status_shows_a_daemon_that_hangs_or_is_dead() {
    let hosts = Hosts::new(&["alpha"]);
    let mut mount = mounted(&hosts, &[hosts.fleet.source("alpha")], &[]);
    mount.daemon().stop();
    let begun = Instant::now();
    let told = status(mount.place());
    assert_eq!((&told["daemon"], &told["status"]), (&"hangs".into(), &().into()), "{told}");
    // It takes two; a busy machine may take its time as well, but not what a hang takes.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    mount.daemon().signal(Signal::CONT);
    assert_eq!(status(mount.place())["daemon"], "answers");

    mount.daemon().signal(Signal::KILL);
    assert_eq!(mount.wait_ended(), None);
    let told = status(mount.place());
    assert_eq!((&told["daemon"], &told["pid"]), (&"dead".into(), &().into()));
    assert!(told["why"].as_str().unwrap().contains("`sshoal umount` removes it"), "{told}");
    assert!(umount(&[], mount.place()).status.success());
    let ended = run(program().arg("status").arg(mount.place()));
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("nothing is mounted here"), "{ended:?}");
}

/// It has data that is not written, so the waiting goes on; but it says for what, and what helps.
#[test]
fn umount_names_a_daemon_that_is_stopped() {
    let hosts = Hosts::new(&["alpha"]);
    let mut mount = mounted(&hosts, &[hosts.fleet.source("alpha")], &[]);
    fs::write(mount.at("file"), "content").unwrap();
    let pid = mount.daemon().pid();
    mount.daemon().stop();
    let said = hosts.local("said");
    let mut command = program();
    command.arg("umount").arg(mount.place()).stderr(fs::File::create(&said).unwrap());
    let mut umounting = Process::spawn(&mut command);
    let remedy = format!("`kill -CONT {pid}` lets it go on, `kill -KILL {pid}` ends it");
    eventually(SHOWN, "it is told", || fs::read_to_string(&said).unwrap().contains(&remedy));
    assert_eq!(umounting.try_wait(Duration::from_millis(1)), None);
    mount.daemon().signal(Signal::CONT);
    assert!(umounting.wait(SHOWN).success());
    assert_eq!(mount.wait_ended(), Some(0));
    assert_eq!(fs::read(hosts.served("alpha", "file")).unwrap(), b"content");
}

#[test]
fn only_the_user_and_root_may_look() {
    if !geteuid().is_root() {
        eprintln!("skipped: it takes root to be several users");
        return;
    }
    let hosts = Hosts::new(&["alpha"]);
    fs::set_permissions(hosts.local(""), Permissions::from_mode(0o755)).unwrap();
    // Where this was built he may not be allowed to go.
    let copy = hosts.local("sshoal");
    sandbox::copy_program(program_path().as_ref(), &copy).unwrap();
    let mount = mounted(&hosts, &[hosts.fleet.source("alpha")], &[]);
    let ended = run(as_somebody_else(&copy).arg("status").arg(mount.place()));
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let said = "not permitted: mounted by user 0; only that user and root";
    assert!(ended.stdout.contains(said), "{ended:?}");
    let ended = run(as_somebody_else(&copy).args(["branch", "list"]).arg(mount.place()));
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("mounted by user 0; only that user and root"), "{ended:?}");
    let ended = run(as_somebody_else(&copy).arg("status"));
    assert!(!ended.stdout.contains("alpha:"), "{ended:?}");
    mount.unmount();

    // Root looks at what others have mounted.
    let place = hosts.local("his");
    let served = hosts.local("served by nobody");
    for dir in [&place, &served] {
        fs::create_dir(dir).unwrap();
        std::os::unix::fs::chown(dir, Some(5), Some(60)).unwrap();
    }
    let ssh = hosts.local("ssh");
    sandbox::write_program(&ssh, "#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n").unwrap();
    let mut command = as_somebody_else(&copy);
    command.arg("-f").arg(format!("-ossh_command={}", ssh.display()));
    command.env("HOME", hosts.local("")).arg(format!("host:{}", served.display())).arg(&place);
    let mut mount = started(command, &place);
    let told = status(&place);
    assert_eq!((&told["daemon"], &told["owner"]), (&"answers".into(), &5.into()), "{told}");
    let mut command = as_somebody_else(&copy);
    let ended = run(command.arg("umount").arg(&place));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    assert_eq!(mount.wait_ended(), Some(0));

    // A daemon whose record is elsewhere has not died.
    let runtime = hosts.local("runtime");
    fs::create_dir(&runtime).unwrap();
    std::os::unix::fs::chown(&runtime, Some(5), Some(60)).unwrap();
    let mut command = as_somebody_else(&copy);
    command.arg("-f").arg(format!("-ossh_command={}", ssh.display()));
    command.env("HOME", hosts.local("")).env("XDG_RUNTIME_DIR", &runtime);
    command.arg(format!("host:{}", served.display())).arg(&place);
    let mut mount = crate::mount::Mount::start(command, place.clone());
    let ended = run(as_somebody_else(&copy).arg("umount").arg(&place));
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stderr.contains("the daemon of this mount is not known here"), "{ended:?}");
    assert_eq!(mount.wait_ended(), Some(0));
}
