//! `sshoal where`, and `run` in unions and pools.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use sandbox::fleet::{Fleet, Plan};
use serde_json::Value;

use super::{ready, run_in};
use crate::mount::Mount;
use crate::process::{Ended, run, run_within};
use crate::world::{World, program, program_path};

fn place_of(words: &[&str], path: &Path) -> Ended {
    run(program().arg("where").args(words).arg(path))
}

#[test]
fn paths_are_told_with_their_host() {
    let world = World::new();
    let served = world.served("").canonicalize().unwrap();
    fs::create_dir(world.served("dir")).unwrap();
    std::os::unix::fs::symlink("/etc", world.served("link")).unwrap();
    let odd = "odd\n\u{1b}[2J";
    fs::write(world.served(odd), "content").unwrap();
    let mount = ready(world.mount(&[]));
    let of = |name: &str| format!("testhost:{}", served.join(name).display());
    for name in ["dir", "link", "dir/new", odd] {
        let ended = place_of(&[], &mount.at(name));
        assert_eq!(ended.stdout, of(name) + "\n", "{ended:?}");
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    }
    let ended = place_of(&["-0"], mount.place());
    assert_eq!(ended.stdout, format!("testhost:{}\0", served.display()));

    // One of several that is in no mount, and JSON.
    let ended = run(program().args(["where", "--json", "/usr"]).arg(mount.at(odd)));
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("'/usr': not in a mount of sshoal"), "{ended:?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let [path] = &document["paths"].as_array().unwrap()[..] else { panic!("{document}") };
    assert_eq!((&path["host"], &path["port"]), (&"testhost".into(), &Value::Null));
    let missing = place_of(&[], &mount.at("missing/new"));
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");

    // scp takes it as it is.
    fs::write(world.served("a b"), "copied").unwrap();
    let mut scp = Command::new("scp");
    scp.arg("-F").arg(world.sshd().config_path()).arg("-q");
    let place = place_of(&[], &mount.at("a b")).stdout;
    let copy = world.local("copy");
    let ended = run(scp.arg(place.trim_end_matches('\n')).arg(&copy));
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(fs::read(copy).unwrap(), b"copied");
    mount.unmount();
}

#[test]
fn a_path_in_a_mount_whose_daemon_hangs_is_an_error() {
    let world = World::new();
    fs::create_dir(world.served("dir")).unwrap();
    let mount = ready(world.mount(&[]));
    let said = format!("'{}': no reply within 2 s", mount.place().display());
    let (dir, inside) = (mount.at("dir"), mount.at("dir/new"));
    let link = world.local("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    let inside = inside.to_str().unwrap();
    let assert_told = |code: i32, command: &mut Command| {
        let ended = run_within(Duration::from_secs(60), command);
        assert_eq!(ended.status.code(), Some(code), "{command:?}: {ended:?}");
        assert!(ended.stderr.contains(&said), "{command:?}: {ended:?}");
    };
    // In a directory that the kernel knows already.
    let mut current = Command::new("sh");
    let script = "kill -STOP \"$1\" && exec \"$2\" run true";
    current.args(["-c", script, "sh", &mount.daemon().pid().to_string()]).arg(program_path());
    current.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR").current_dir(&dir);
    assert_told(125, &mut current);
    mount.daemon().stop();
    for words in [
        &["where", inside][..],
        &["where", link.join("new").to_str().unwrap()],
        &["stats", inside],
        &["profile", inside],
        &["set", inside],
        &["umount", inside],
        &["cache", "check", inside],
        &["cache", "unpin", inside],
    ] {
        assert_told(1, program().args(words));
    }
    assert_told(125, program().args(["run", "-C", inside, "true"]));
    mount.daemon().signal(Signal::CONT);
    mount.unmount();
}

/// A bind mount shows a part of the file system, and the command must not run in another one.
#[test]
fn a_bind_mount_is_another_directory_of_the_mount() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: mount --bind takes root");
        return;
    }
    let world = World::new();
    fs::create_dir_all(world.served("a/b")).unwrap();
    let mount = ready(world.mount(&[]));
    let script = "mount --bind \"$1/a\" \"$2\" && cd \"$2/b\" && \"$3\" where . && \"$3\" run pwd; umount \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.arg(mount.place()).arg(world.mountpoint()).arg(crate::world::program_path());
    let ended = run(command.env_remove("XDG_RUNTIME_DIR").env_remove("SSH_AUTH_SOCK"));
    let served = world.served("a/b").canonicalize().unwrap();
    let expected = format!("testhost:{0}\n{0}\n", served.display());
    assert_eq!(ended.stdout, expected, "{ended:?}");
    mount.unmount();
}

/// A mount hides those below its mount point that were made before it.
#[test]
fn a_hidden_mount_is_not_taken_for_the_visible_one() {
    let world = World::new();
    fs::create_dir_all(world.served("before")).unwrap();
    fs::create_dir_all(world.served("later/sub")).unwrap();
    let place = world.mountpoint();
    let sub = place.join("sub");
    fs::create_dir(&sub).unwrap();
    let mount = |name: &str, place: &Path| {
        let mut command = world.command();
        command.arg("-f").arg(world.source_of(&world.served(name))).arg(place);
        ready(Mount::start(command, place.to_owned()))
    };
    let before = mount("before", &sub);
    // A shell that stays in the mount that is to be hidden.
    let mut shell = Command::new("sh");
    shell.args(["-c", "read _; exec \"$0\" run pwd"]).arg(crate::world::program_path());
    shell.current_dir(&sub).env_remove("XDG_RUNTIME_DIR").env_remove("SSH_AUTH_SOCK");
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let shell = shell.spawn().unwrap();
    let later = mount("later", &place);

    let served = world.served("later/sub").canonicalize().unwrap();
    let ended = place_of(&[], &sub.join("new"));
    assert_eq!(ended.stdout, format!("testhost:{}/new\n", served.display()), "{ended:?}");
    let ended = run_in(&sub, &["pwd"]);
    assert_eq!(ended.stdout, format!("{}\n", served.display()), "{ended:?}");
    // Its standard input ends, and it goes on.
    let ended = shell.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("hidden by a mount that was made later"), "{said}");
    assert!(ended.stdout.is_empty(), "{ended:?}");
    later.unmount();
    before.unmount();
}

fn mount(fleet: &Fleet, place: &Path, sources: &[String]) -> Mount {
    fs::create_dir_all(place).unwrap();
    let mut command = program();
    command.arg("-F").arg(fleet.config_path()).arg("-f").args(sources).arg(place);
    ready(Mount::start(command, place.to_owned()))
}

#[test]
fn in_a_union_the_branch_decides() {
    let fleet = Fleet::start([Plan::new("alpha"), Plan::new("beta")]).unwrap();
    let dir = tempfile::Builder::new().prefix("e2e-").tempdir().unwrap();
    let local = dir.path().canonicalize().unwrap().join("local");
    for host in ["alpha", "beta"] {
        fs::create_dir(fleet.directory(host).join(format!("of-{host}"))).unwrap();
        fs::create_dir(fleet.directory(host).join("both")).unwrap();
    }
    fs::create_dir_all(local.join("here")).unwrap();
    let (alpha, beta) = (fleet.source("alpha"), fleet.source("beta"));
    let sources =
        [alpha, beta.clone(), format!("P/Q={beta}"), format!("L=local:{}", local.display())];
    let union = mount(&fleet, &dir.path().join("mnt"), &sources);
    let at = |host: &str, name: &str| {
        let directory = fleet.directory(host).canonicalize().unwrap();
        directory.join(name).display().to_string()
    };
    for (name, host, below) in [
        ("of-alpha", "alpha", "of-alpha"),
        ("of-beta", "beta", "of-beta"),
        ("both", "alpha", "both"),
        ("P/Q/of-beta", "beta", "of-beta"),
    ] {
        let place = at(host, below);
        let ended = place_of(&[], &union.at(name));
        assert_eq!(ended.stdout, format!("{host}:{place}\n"), "{ended:?}");
        let ended = place_of(&[], &union.at(format!("{name}/new")));
        assert_eq!(ended.stdout, format!("{host}:{place}/new\n"), "{ended:?}");
        let ended = run_in(&union.at(name), &["pwd"]);
        assert_eq!(ended.stdout, format!("{place}\n"), "{ended:?}");
    }
    // A local branch is on this machine.
    let here = local.join("here");
    assert_eq!(place_of(&[], &union.at("L/here")).stdout, format!("{}\n", here.display()));
    let ended = run_in(&union.at("L/here"), &["sh", "-c", "pwd; touch made; exit 3"]);
    assert_eq!(ended.stdout, format!("{}\n", here.display()), "{ended:?}");
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    assert!(union.at("L/here/made").exists());
    for (word, code) in [("no-such-command", 127), ("./made", 126)] {
        let ended = run_in(&union.at("L/here"), &[word]);
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        assert!(ended.stderr.contains("cannot be run: "), "{ended:?}");
    }
    // A directory of no branch.
    let ended = run_in(&union.at("P"), &["pwd"]);
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    assert!(ended.stderr.contains("no branch has this directory"), "{ended:?}");
    union.unmount();
}

#[test]
fn in_a_pool_the_gateway_in_use_decides() {
    let plans = ["gw1", "gw2"].map(|name| Plan::new(name).serving("data"));
    let mut fleet = Fleet::start(plans).unwrap();
    let dir = tempfile::Builder::new().prefix("e2e-").tempdir().unwrap();
    let data = fleet.directory("gw1").canonicalize().unwrap();
    let source = format!("gw1,gw2:{}=failover", data.display());
    let pool = mount(&fleet, &dir.path().join("mnt"), &[source]);
    let ended = place_of(&[], pool.place());
    assert_eq!(ended.stdout, format!("gw1:{}\n", data.display()), "{ended:?}");
    fleet.kill("gw1");
    assert_eq!(fs::read_dir(pool.place()).unwrap().count(), 0);
    let ended = run_in(pool.place(), &["pwd"]);
    assert_eq!(ended.stdout, format!("{}\n", data.display()), "{ended:?}");
    assert_eq!(place_of(&[], pool.place()).stdout, format!("gw2:{}\n", data.display()));
    pool.unmount();
}
