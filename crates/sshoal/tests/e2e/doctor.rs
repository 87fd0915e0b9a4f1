//! `sshoal doctor`: what it finds of a server, of its absence, and of a mount.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use sandbox::sshd::{Options, SftpServer};
use serde_json::Value;

use crate::helper::served_by_helper;
use crate::mount::Mount;
use crate::process::{Ended, Process, eventually, run, succeed};
use crate::world::{World, names, program, program_path};

/// The user's key in the server's directory.
const USER_KEY: &str = "user_key";

/// `sshoal doctor` with these words, by the world's configuration of ssh.
fn doctor(world: &World, words: &[&str]) -> Ended {
    let mut command = program();
    command.arg("doctor").arg("-F").arg(world.sshd().config_path()).args(words);
    run(&mut command)
}

/// The check of this name in the JSON form.
fn check<'a>(document: &'a Value, what: &str) -> &'a Value {
    let checks = document["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["what"] == what);
    found.unwrap_or_else(|| panic!("no check of {what}: {document}"))
}

#[test]
fn a_server_that_works_is_fine() {
    let world = World::new();
    let ended = doctor(&world, &[&world.source(), "--json"]);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    for what in ["ssh -G", "network", "login", "SFTP", "directory", "round trip", "throughput"] {
        assert_eq!(check(&document, what)["verdict"], "fine", "{document}");
    }
    for what in ["more sessions", "clock"] {
        assert_eq!(check(&document, what)["verdict"], "fine", "{document}");
    }
    assert!(check(&document, "network")["found"].as_str().unwrap().contains("SSH-2.0-"));
    assert!(check(&document, "throughput")["found"].as_str().unwrap().contains(" MB/s"));
    let directory = world.served("").canonicalize().unwrap();
    let found = check(&document, "directory")["found"].as_str().unwrap();
    assert_eq!(found.trim_end_matches('/'), directory.to_str().unwrap());
}

#[test]
fn what_does_not_work_is_named_with_its_remedy() {
    let mut world = World::new();
    let missing = world.source_of(&world.served("missing"));
    let ended = doctor(&world, &[&missing, "--json"]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(check(&document, "login")["verdict"], "fine");
    let directory = check(&document, "directory");
    assert_eq!(directory["verdict"], "wrong", "{document}");
    assert!(directory["found"].as_str().unwrap().contains("missing"), "{document}");
    let remedy = directory["remedy"].as_str().unwrap();
    assert!(remedy.ends_with(&format!("{} ls -la", world.sshd().alias())), "{document}");

    fs::write(world.served("file"), "").unwrap();
    let ended = doctor(&world, &[&world.source_of(&world.served("file")), "--json"]);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let directory = check(&document, "directory");
    assert_eq!(directory["verdict"], "wrong", "{document}");
    let found = directory["found"].as_str().unwrap();
    assert!(found.ends_with("/file: not a directory on the server"), "{document}");

    let refused = [&world.source(), "--json", "-o", "PubkeyAuthentication=no"];
    let ended = doctor(&world, &refused);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(check(&document, "network")["verdict"], "fine");
    let login = check(&document, "login");
    assert_eq!(login["verdict"], "wrong");
    assert!(login["found"].as_str().unwrap().contains("Permission denied"), "{document}");
    assert!(login["remedy"].is_string(), "{document}");

    world.sshd_mut().end();
    let ended = doctor(&world, &[&world.source()]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stdout.contains("WRONG    network"), "{ended:?}");
    assert!(!ended.stdout.contains("login"), "{ended:?}");
}

#[test]
fn a_mount_is_checked_by_its_daemon() {
    let world = World::new();
    fs::write(world.served("file"), "text").unwrap();
    let mount = world.mount(&[]);
    let place = mount.place().to_str().unwrap().to_owned();
    // Without `-F`: the mount's own options lead to the server.
    let checked = |words: &[&str]| run(program().arg("doctor").args(words).arg(&place));
    let document: Value = serde_json::from_str(&checked(&["--json"]).stdout).unwrap();
    let host = check(&document, "host")["found"].as_str().unwrap();
    assert_eq!(host, format!("{}: connected, 1 session", world.sshd().alias()));
    for what in ["login", "directory", "round trip", "throughput", "more sessions", "clock"] {
        assert_eq!(check(&document, what)["verdict"], "fine", "{document}");
    }
    let directory = check(&document, "directory")["found"].as_str().unwrap();
    assert_eq!(Path::new(directory), world.served("").canonicalize().unwrap());
    assert_eq!(names(world.served("")), ["file"]);
    let report = world.local("report.json");
    checked(&["--json", "--hide-names", "--bundle", report.to_str().unwrap()]);
    let text = fs::read_to_string(&report).unwrap();
    assert!(text.contains(": connected, 1 session"), "{text}");
    assert!(!text.contains(world.sshd().alias()), "{text}");
    let ended = checked(&["-p", "22"]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("options: only for a source"), "{ended:?}");
    mount.unmount();
    let ended = checked(&[]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stdout.contains("nothing is mounted here"), "{ended:?}");
}

#[test]
fn an_unreachable_host_of_a_mount_is_named_with_the_reason() {
    let mut world = World::new();
    let mount = world.mount(&[]).with_errors();
    world.sshd_mut().end();
    let checked = || -> Value {
        let ended = run(program().args(["doctor", "--json"]).arg(mount.place()));
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let mut document = checked();
    eventually(Duration::from_secs(100), "the daemon notices", || {
        document = checked();
        check(&document, "host")["verdict"] == "wrong"
    });
    let network = check(&document, "network");
    assert_eq!(network["verdict"], "wrong", "{document}");
    assert!(network["found"].as_str().unwrap().contains("Connection refused"), "{document}");
    world.sshd_mut().restart().unwrap();
    mount.unmount();
}

/// It waits for its first use.
#[test]
fn a_mount_that_is_not_connected_stays_so() {
    let world = World::new();
    fs::write(world.served("file"), "text").unwrap();
    let mount = world.mount(&["-o", "delay_connect"]);
    let ended = run(program().args(["doctor", "--json"]).arg(mount.place()));
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let login = check(&document, "login");
    assert_eq!(login["verdict"], "unknown", "{document}");
    assert_eq!(login["found"], "not tried: the mount is not connected to it", "{document}");
    assert!(!world.sshd().log().contains("Accepted"), "{}", world.sshd().log());
    mount.unmount();
}

/// It would be asked for again.
#[test]
fn a_mount_with_a_password_is_not_logged_in_to() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a server with passwords takes root");
        return;
    }
    let world = World::with(Options { takes_password: true, ..Options::default() });
    let place = world.mountpoint();
    let secret = world.local("password");
    fs::write(&secret, format!("{}\n", world.sshd().password())).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" <\"$0\""]).arg(&secret).arg(program_path());
    command.arg("-f").arg("-F").arg(world.sshd().config_path()).arg(world.source()).arg(&place);
    command.args(["-o", "password_stdin"]);
    command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
    let mount = Mount::start(command, place);
    let ended = run(program().args(["doctor", "--json"]).arg(mount.place()));
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(check(&document, "round trip")["verdict"], "fine", "{document}");
    let found = check(&document, "login")["found"].as_str().unwrap();
    assert!(found.contains("logs in with a password"), "{document}");
    assert_eq!(check(&document, "login")["verdict"], "unknown", "{document}");
    mount.unmount();
}

/// The usual case of a mount of fstab, which root has mounted.
#[test]
fn a_mount_of_another_user_is_unknown() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root to be several users");
        return;
    }
    let world = World::new();
    fs::set_permissions(world.local(""), fs::Permissions::from_mode(0o755)).unwrap();
    let mount = world.mount(&[]);
    let place = mount.place().to_str().unwrap();
    let program = world.local("sshoal");
    sandbox::copy_program(program_path().as_ref(), &program).unwrap();
    let as_other = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "5", "--regid", "60", "--clear-groups", "--"]).arg(&program);
        run(command.args(words).env_remove("XDG_RUNTIME_DIR"))
    };
    let ended = as_other(&["umount", place]);
    assert!(ended.stderr.contains("mounted by user 0; only that user and root may unmount it"));
    let ended = as_other(&["doctor", "--json", place]);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let mount_check = check(&document, "mount");
    assert_eq!(mount_check["verdict"], "unknown", "{document}");
    let found = mount_check["found"].as_str().unwrap();
    assert!(found.starts_with(&format!("{place}: mounted by user 0; only that user")), "{found}");
    mount.unmount();
}

/// Whose `ssh_command` root would run.
#[test]
fn root_does_not_log_in_as_a_mount_of_another_user_does() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root to be several users");
        return;
    }
    let world = World::new();
    fs::set_permissions(world.local(""), fs::Permissions::from_mode(0o755)).unwrap();
    let key = copied_key(&world);
    let known = world.local("known_hosts");
    fs::copy(world.sshd().dir().join("known_hosts"), &known).unwrap();
    fs::set_permissions(&known, fs::Permissions::from_mode(0o644)).unwrap();
    let values = [("IdentityFile", &*key), ("UserKnownHostsFile", known.to_str().unwrap())];
    let config = changed_config(&world, &values);
    let program = world.local("sshoal");
    sandbox::copy_program(program_path().as_ref(), &program).unwrap();
    let (starts, ssh, place) = (world.local("starts"), world.local("ssh"), world.mountpoint());
    fs::write(&starts, "").unwrap();
    let script = format!("#!/bin/sh\necho >>'{}'\nexec ssh \"$@\"\n", starts.display());
    sandbox::write_program(&ssh, script).unwrap();
    for own in [key.as_ref(), &*starts, &*place] {
        std::os::unix::fs::chown(own, Some(5), Some(60)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "5", "--regid", "60", "--clear-groups", "--"]).arg(&program);
    command.arg("-f").arg("-F").arg(config).arg(world.source()).arg(&place);
    command.args(["-o", &format!("ssh_command={}", ssh.display())]).current_dir("/");
    command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
    let mount = Mount::start(command, place);
    let started = fs::read(&starts).unwrap();
    assert!(!started.is_empty());
    let document: Value = serde_json::from_str(
        &run(crate::world::program().args(["doctor", "--json"]).arg(mount.place())).stdout,
    )
    .unwrap();
    let login = check(&document, "login");
    assert_eq!(login["verdict"], "unknown", "{document}");
    let found = login["found"].as_str().unwrap();
    assert!(found.starts_with("not tried: mounted by user 5; only that user"), "{document}");
    assert_eq!(fs::read(&starts).unwrap(), started);
    mount.unmount();
}

#[test]
fn the_report_hides_names_and_replaces_no_file() {
    let world = World::new();
    let file = world.local("report.json");
    let shown = file.to_str().unwrap();
    let source = world.source();
    let ended = doctor(&world, &[&source, "--bundle", shown, "--hide-names"]);
    assert!(ended.stdout.contains(&format!("The report is in {shown}.")), "{ended:?}");
    let text = fs::read_to_string(&file).unwrap();
    let (host, directory) = source.split_once(':').unwrap();
    for name in [host, directory, "127.0.0.1"] {
        assert!(!text.contains(name), "{name}: {text}");
    }
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(check(&document, "login")["verdict"], "fine");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = run(program().args(["doctor", "--bundle", shown]));
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(again.stderr.contains("File exists"), "{again:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

/// A server whose `date` is an hour wrong, as one with a wrong clock would print it.
#[test]
fn a_clock_that_differs_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    let date = dir.path().join("date");
    let path = format!("SetEnv PATH={}:/usr/bin:/bin", dir.path().display());
    let world = World::with(Options { settings: vec![path], ..Options::default() });
    for (option, direction) in [("+1 hour", "ahead"), ("-1 hour", "behind")] {
        sandbox::write_program(
            &date,
            format!("#!/bin/sh\nexec /usr/bin/date -d '{option}' \"$@\"\n"),
        )
        .unwrap();
        let ended = doctor(&world, &[&world.source(), "--json"]);
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        let clock = check(&document, "clock");
        assert_eq!(clock["verdict"], "note", "{document}");
        let found = clock["found"].as_str().unwrap();
        let seconds = found.strip_prefix("the server is ").unwrap();
        let seconds = seconds.strip_suffix(&format!(" s {direction}")).expect(found);
        // The answer may have taken some of the ten seconds that it may.
        assert!(seconds.parse::<u32>().unwrap().abs_diff(3600) <= 11, "{found}");
        assert!(clock["remedy"].as_str().unwrap().contains("set-ntp"), "{document}");
    }
}

#[test]
fn a_server_that_limits_logins_at_once_is_noted() {
    // The third of three unauthenticated connections is closed.
    let settings = vec!["MaxStartups 2".to_owned()];
    let world = World::with(Options { settings, ..Options::default() });
    let mut document = Value::Null;
    // On a busy machine one of the logins may be done before another begins.
    eventually(Duration::from_secs(100), "a login is refused", || {
        let ended = doctor(&world, &[&world.source(), "--json"]);
        document = serde_json::from_str(&ended.stdout).unwrap();
        check(&document, "more sessions")["verdict"] == "note"
    });
    let sessions = check(&document, "more sessions");
    assert!(sessions["found"].as_str().unwrap().starts_with("1 login of 3 failed: "), "{document}");
    assert!(sessions["remedy"].as_str().unwrap().contains("MaxStartups"), "{document}");
}

/// A sample of the disk cache is compared with its checksums, and damage stays for `cache verify`.
#[test]
fn damage_of_the_disk_cache_is_found_and_its_repair_named() {
    let world = World::new();
    let home = world.local("home");
    fs::create_dir(&home).unwrap();
    let sampled = || {
        let mut command = program();
        command.args(["doctor", "--json"]).env("XDG_CACHE_HOME", &home);
        let document: Value = serde_json::from_str(&run(&mut command).stdout).unwrap();
        check(&document, "cache sample").clone()
    };
    let served = world.served("file");
    fs::write(&served, vec![b'x'; 300_000]).unwrap();
    // A content that is read soon after its last change is not kept.
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    fs::File::options().write(true).open(&served).unwrap().set_modified(long_ago).unwrap();
    let cache = home.join("sshoal");
    let options = format!("cache=disk,cache_free=0,cache_dir={}", cache.display());
    let mount = world.mount(&["-o", &options]);
    fs::read(mount.place().join("file")).unwrap();
    // The mount's own directory is checked, with commands that name it.
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o755)).unwrap();
    let ended = run(program().arg("doctor").arg(mount.place()));
    assert!(ended.stdout.contains(&format!("{} has mode 0755", cache.display())), "{ended:?}");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o700)).unwrap();
    let ended = run(program().arg("doctor").arg(mount.place()));
    assert_eq!(ended.stdout.matches("cache sample").count(), 1, "{ended:?}");
    mount.unmount();
    let fine = sampled();
    assert_eq!(fine["verdict"], "fine", "{fine}");
    let found = fine["found"].as_str().unwrap();
    // One of the two has the path of the root at the server.
    assert!(found.starts_with("1 content and the names of 2 directories"), "{fine}");

    let objects = cache.join("v1/objects");
    let below = |dir: &std::path::Path| -> Vec<_> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let files = below(&objects).iter().flat_map(|dir| below(dir)).collect::<Vec<_>>();
    let content = files.iter().find(|file| file.extension().is_none()).unwrap();
    let mut bytes = fs::read(content).unwrap();
    bytes[200_000] ^= 1;
    fs::write(content, &bytes).unwrap();
    let wrong = sampled();
    assert_eq!(wrong["verdict"], "wrong", "{wrong}");
    assert!(wrong["remedy"].as_str().unwrap().contains("sshoal cache verify"), "{wrong}");
    assert_eq!(fs::read(content).unwrap(), bytes);
    let mut verify = program();
    verify.args(["cache", "verify"]).env("XDG_CACHE_HOME", &home);
    assert_eq!(run(&mut verify).status.code(), Some(1));
    let repaired = sampled();
    assert_eq!(repaired["verdict"], "fine", "{repaired}");
}

#[test]
fn direct_connections_are_checked_if_the_options_ask_for_them() {
    let verdict = |world: &World, option: &str| {
        let ended = doctor(world, &[&world.source(), "--json", "-o", option]);
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        let check = check(&document, "direct");
        let text = |name: &str| check[name].as_str().unwrap().to_owned();
        (text("verdict"), text("found"))
    };
    let (fine, found) = verdict(&served_by_helper(""), "direct=yes");
    assert!(fine == "fine" && found.contains("TLS 1.3 to 127.0.0.1:"), "{fine}: {found}");
    let without = served_by_helper("--no-direct");
    for (option, expected) in [("direct=yes", "note"), ("direct=require", "wrong")] {
        let (verdict, found) = verdict(&without, option);
        assert_eq!(verdict, expected, "{found}");
        assert!(found.contains("the helper at the server allows none"), "{found}");
    }
}

/// A mount with this option would use that program, or fail.
#[test]
fn the_helper_that_an_option_names_is_checked() {
    let world = World::new();
    let verdict = |path: &str| {
        let option = format!("helper={path}");
        let ended = doctor(&world, &[&world.source(), "--json", "-o", &option]);
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        let check = check(&document, "helper");
        let text = |name: &str| check[name].as_str().unwrap().to_owned();
        let mut status = program();
        status.args(["helper", "status", "-F"]).arg(world.sshd().config_path());
        let status = run(status.args(["-o", &option]).arg(world.source()));
        (text("verdict"), text("found"), status)
    };
    let helper = program_path();
    let (fine, found, status) = verdict(helper.to_str().unwrap());
    assert!(fine == "fine" && found.contains(", version "), "{fine}: {found}");
    assert!(status.stdout.contains("the helper serves"), "{status:?}");
    let (wrong, found, status) = verdict("/bin/cat");
    assert!(wrong == "wrong" && found.contains("/bin/cat does not serve: "), "{wrong}: {found}");
    assert!(status.stdout.contains("the helper does not serve"), "{status:?}");
}

/// A mount would do without the cache, or fail.
#[test]
fn a_place_where_there_can_be_no_disk_cache_is_wrong() {
    let world = World::new();
    let home = world.local("home");
    let found = |home: &std::path::Path| {
        let mut command = program();
        command.args(["doctor", "--json"]).env("XDG_CACHE_HOME", home);
        let document: Value = serde_json::from_str(&run(&mut command).stdout).unwrap();
        check(&document, "disk cache").clone()
    };
    assert_eq!(found(&home)["verdict"], "fine", "not used so far");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("sshoal"), "no directory").unwrap();
    let no_directory = found(&home);
    assert_eq!(no_directory["verdict"], "wrong");
    assert!(no_directory["found"].as_str().unwrap().contains("Not a directory"), "{no_directory}");
    // Nothing can be written there.
    assert_ne!(found(std::path::Path::new("/proc/none"))["verdict"], "fine");
}

/// A copy of the world's configuration of ssh with other values.
fn changed_config(world: &World, values: &[(&str, &str)]) -> PathBuf {
    let mut lines = Vec::new();
    for line in fs::read_to_string(world.sshd().config_path()).unwrap().lines() {
        let keyword = line.split(' ').next().unwrap();
        match values.iter().find(|(changed, _)| *changed == keyword) {
            Some((_, value)) => lines.push(format!("{keyword} {value}\n")),
            None => lines.push(format!("{line}\n")),
        }
    }
    let file = world.local("ssh_config");
    fs::write(&file, lines.concat()).unwrap();
    file
}

/// The JSON form of the checks of the world's server by another configuration of ssh.
fn diagnosis(world: &World, config: &Path) -> Value {
    let mut command = program();
    command.args(["doctor", "--json", "-F"]).arg(config).arg(world.source());
    serde_json::from_str(&run(&mut command).stdout).unwrap()
}

/// Asserts that a check is wrong, with these texts; its remedy.
#[track_caller]
fn wrong(document: &Value, what: &str, texts: &[&str]) -> String {
    let check = check(document, what);
    assert_eq!(check["verdict"], "wrong", "{document}");
    let found = check["found"].as_str().unwrap();
    texts.iter().for_each(|text| assert!(found.contains(text), "{text}: {document}"));
    check["remedy"].as_str().unwrap_or_else(|| panic!("no remedy: {document}")).to_owned()
}

/// The user's key in a file of its own.
fn copied_key(world: &World) -> String {
    let key = world.local("key");
    for suffix in ["", ".pub"] {
        let from = world.sshd().dir().join(format!("{USER_KEY}{suffix}"));
        fs::copy(from, world.local(format!("key{suffix}"))).unwrap();
    }
    key.to_str().unwrap().to_owned()
}

#[test]
fn a_key_that_ssh_cannot_use_is_named_with_the_command_that_fixes_it() {
    let world = World::new();
    let missing = world.local("missing");
    let config = changed_config(&world, &[("IdentityFile", missing.to_str().unwrap())]);
    let document = diagnosis(&world, &config);
    let remedy = wrong(&document, "keys", &["/missing does not exist"]);
    assert!(remedy.contains(&format!("ssh-keygen -t ed25519 -f {}", missing.display())));
    assert_eq!(check(&document, "login")["verdict"], "wrong", "{document}");
    assert!(check(&document, "login")["remedy"].is_null(), "{document}");

    let key = copied_key(&world);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let config = changed_config(&world, &[("IdentityFile", &key)]);
    let document = diagnosis(&world, &config);
    let texts = ["has mode 0644", "UNPROTECTED PRIVATE KEY FILE"];
    let remedy = wrong(&document, "keys", &texts);
    let checks = document["checks"].as_array().unwrap();
    assert!(checks.iter().all(|check| check["what"] != "offered keys"), "{document}");
    // A key that works beside it is enough.
    let ended = doctor(&world, &[&world.source(), "--json", "-o", &format!("IdentityFile={key}")]);
    let beside: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(check(&beside, "keys")["verdict"], "note", "{beside}");
    assert_eq!(check(&beside, "login")["verdict"], "fine", "{beside}");
    succeed(Command::new("sh").args(["-c", &remedy]));
    let document = diagnosis(&world, &config);
    assert_eq!(check(&document, "keys")["verdict"], "fine", "{document}");
    assert_eq!(check(&document, "login")["verdict"], "fine", "{document}");
}

#[test]
fn a_key_of_another_user_is_named() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root to be several users");
        return;
    }
    let world = World::new();
    fs::set_permissions(world.local(""), fs::Permissions::from_mode(0o755)).unwrap();
    let key = copied_key(&world);
    let known = world.local("known_hosts");
    fs::copy(world.sshd().dir().join("known_hosts"), &known).unwrap();
    fs::set_permissions(&known, fs::Permissions::from_mode(0o644)).unwrap();
    let values = [("IdentityFile", &*key), ("UserKnownHostsFile", known.to_str().unwrap())];
    let config = changed_config(&world, &values);
    let program = world.local("sshoal");
    sandbox::copy_program(program_path().as_ref(), &program).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "5", "--regid", "60", "--clear-groups", "--"]).arg(&program);
    command.args(["doctor", "--json", "-F"]).arg(config).arg(world.source());
    command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
    let document: Value = serde_json::from_str(&run(&mut command).stdout).unwrap();
    let remedy = wrong(&document, "keys", &["belongs to user 0; ssh cannot read it"]);
    assert_eq!(remedy, format!("as root: chown 5 {key}"));
}

#[test]
fn keys_that_the_server_refuses_are_named_and_hidden_in_a_report() {
    let world = World::new();
    fs::write(world.sshd().dir().join("authorized_keys"), "").unwrap();
    let report = world.local("report.json");
    let words = ["--json", "--hide-names", "--bundle", report.to_str().unwrap()];
    let ended = doctor(&world, &[&[&*world.source()], &words[..]].concat());
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let key = world.sshd().dir().join(USER_KEY);
    let (key, config) = (key.to_str().unwrap(), world.sshd().config_path());
    let remedy = wrong(&document, "offered keys", &["refused 1 key", key]);
    let alias = world.sshd().alias();
    assert_eq!(remedy, format!("ssh-copy-id -i {key} -F {} {alias}", config.display()));
    let text = fs::read_to_string(&report).unwrap();
    assert!(text.contains("ssh-copy-id -i name-"), "{text}");
    for name in [key, config.to_str().unwrap(), alias] {
        assert!(!text.contains(name), "{name}: {text}");
    }
}

#[test]
fn a_key_whose_passphrase_nobody_types_is_for_the_agent() {
    let world = World::new();
    let key = copied_key(&world);
    let mut command = Command::new("ssh-keygen");
    succeed(command.args(["-q", "-p", "-P", "", "-N", "secret", "-f", &key]));
    let config = changed_config(&world, &[("IdentityFile", &key)]);
    let document = diagnosis(&world, &config);
    let remedy = wrong(&document, "offered keys", &["the server accepts", &key, "passphrase"]);
    assert_eq!(remedy, format!("ssh-add {key}"));
}

#[test]
fn the_agent_is_checked_with_its_keys() {
    let world = World::new();
    let (key, socket) = (copied_key(&world), world.local("agent"));
    let values = [
        ("IdentityFile", "none"),
        ("IdentitiesOnly", "no"),
        ("IdentityAgent", socket.to_str().unwrap()),
    ];
    let config = changed_config(&world, &values);
    let agent = |document: &Value| {
        let check = check(document, "agent");
        let text = |name: &str| check[name].as_str().unwrap_or_default().to_owned();
        (text("verdict"), text("found"), text("remedy"))
    };
    let document = diagnosis(&world, &config);
    let (verdict, found, remedy) = agent(&document);
    assert_eq!((&*verdict, &*remedy), ("note", "eval \"$(ssh-agent -s)\" && ssh-add"));
    assert!(found.starts_with("no agent answers at "), "{document}");
    assert!(wrong(&document, "offered keys", &["ssh has no key"]).contains("ssh-copy-id"));

    let mut command = Command::new("ssh-agent");
    command.args(["-D", "-a"]).arg(&socket).stdout(std::process::Stdio::null());
    let _running = Process::spawn(&mut command);
    eventually(Duration::from_secs(20), "the agent listens", || socket.exists());
    let document = diagnosis(&world, &config);
    let empty = ("note".to_owned(), "it has no keys".to_owned(), "ssh-add".to_owned());
    assert_eq!(agent(&document), empty, "{document}");

    let mut command = Command::new("ssh-add");
    succeed(command.arg("-q").arg(&key).env("SSH_AUTH_SOCK", &socket));
    let document = diagnosis(&world, &config);
    assert_eq!(agent(&document), ("fine".to_owned(), "1 key".to_owned(), String::new()));
    assert_eq!(check(&document, "login")["verdict"], "fine", "{document}");
}

#[test]
fn a_host_key_that_is_unknown_or_has_changed_is_named_with_the_command() {
    let mut world = World::new();
    let config = changed_config(&world, &[("UserKnownHostsFile", "/dev/null")]);
    let remedy =
        wrong(&diagnosis(&world, &config), "host key", &["host key is known for testhost"]);
    let options = "-o BatchMode=no -o StrictHostKeyChecking=ask";
    let line = format!("ssh {options} -F {} {} exit", config.display(), world.sshd().alias());
    assert_eq!(remedy.lines().last(), Some(&*line));

    world.sshd_mut().change_host_key().unwrap();
    let known = world.local("known_hosts");
    fs::copy(world.sshd().dir().join("known_hosts"), &known).unwrap();
    let config = changed_config(&world, &[("UserKnownHostsFile", known.to_str().unwrap())]);
    let remedy = wrong(&diagnosis(&world, &config), "host key", &["has changed"]);
    let line = remedy.lines().last().unwrap();
    let alias = world.sshd().alias();
    assert_eq!(line, format!("ssh-keygen -R {alias} -f {}", known.display()));
    succeed(Command::new("sh").args(["-c", line]));
    let after = diagnosis(&world, &config);
    assert!(wrong(&after, "host key", &[]).contains("asks whether the fingerprint"), "{after}");
}

#[test]
fn a_login_shell_that_prints_is_named_with_the_lines_that_stop_it() {
    let script =
        format!("echo Welcome to this machine\nexec {} helper\n", program_path().display());
    let sftp_server = SftpServer::Command(script);
    let world = World::with(Options { sftp_server, ..Options::default() });
    let ended = doctor(&world, &[&world.source(), "--json"]);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let remedy = wrong(&document, "login", &["Welcome"]);
    let config = world.sshd().config_path();
    let line = format!("ssh -F {} {} true", config.display(), world.sshd().alias());
    assert!(remedy.lines().any(|it| it == line), "{remedy}");
    assert!(remedy.contains("case $- in *i*) ;; *) return;; esac"), "{remedy}");
}

#[test]
fn a_server_without_the_subsystem_is_named_with_what_gives_it() {
    let world = World::with(Options { sftp_server: SftpServer::Disabled, ..Options::default() });
    let ended = doctor(&world, &[&world.source(), "--json"]);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let remedy = wrong(&document, "login", &["subsystem request failed"]);
    assert!(remedy.contains("echo 'Subsystem sftp internal-sftp' >> /etc/ssh/sshd_config"));
    assert!(remedy.contains("-o sftp_server="), "{remedy}");
    let option = format!("sftp_server={} helper", program_path().display());
    let ended = doctor(&world, &[&world.source(), "--json", "-o", &option]);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(check(&document, "login")["verdict"], "fine", "{document}");
}

#[test]
fn a_server_that_announces_no_limits_is_noted() {
    let SftpServer::External(program) = Options::default().sftp_server else {
        eprintln!("skipped: it takes OpenSSH's sftp-server");
        return;
    };
    let sftp_server = SftpServer::Command(format!("exec {} -P limits\n", program.display()));
    let world = World::with(Options { sftp_server, ..Options::default() });
    let ended = doctor(&world, &[&world.source(), "--json"]);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let sftp = check(&document, "SFTP");
    assert_eq!(sftp["verdict"], "note", "{document}");
    assert!(sftp["found"].as_str().unwrap().contains("no limits@openssh.com: "), "{document}");
    // Other tests have mounts, too, also dead ones.
    let checks = document["checks"].as_array().unwrap().iter();
    let wrong: Vec<_> = checks.filter(|it| it["verdict"] == "wrong").collect();
    assert!(wrong.iter().all(|it| it["what"] == "mount"), "{document}");
    assert_eq!(ended.status.code(), Some(i32::from(!wrong.is_empty())), "{document}");
}

#[test]
fn a_mount_whose_process_has_ended_is_named_with_the_command_that_removes_it() {
    let world = World::new();
    let place = world.local("it's\na mount");
    fs::create_dir(&place).unwrap();
    let mut command = world.command();
    command.arg("-f").arg(world.source()).arg(&place);
    let mut mount = Mount::start(command, place.clone());
    let shown = place.to_str().unwrap().replace('\n', "\\n");
    mount.daemon().signal(Signal::KILL);
    assert_eq!(mount.wait_ended(), None);
    let remedies = || {
        let mut command = program();
        let document: Value =
            serde_json::from_str(&run(command.args(["doctor", "--json"])).stdout).unwrap();
        // Other tests have mounts, too.
        let checks = document["checks"].as_array().unwrap().iter();
        let dead = checks.filter(|it| it["found"] == format!("{shown}: its process has ended"));
        let dead: Vec<_> = dead.map(|it| (it["verdict"].clone(), it["remedy"].clone())).collect();
        dead
    };
    let [(verdict, remedy)] = &remedies()[..] else { panic!("one dead mount") };
    assert_eq!(verdict, "wrong");
    let remedy = remedy.as_str().unwrap().strip_prefix("sshoal ").unwrap();
    let line = format!("exec {} {remedy}", program_path().display());
    succeed(Command::new("bash").args(["-c", &line]).env_remove("XDG_RUNTIME_DIR"));
    assert!(!mount.is_mounted());
    assert_eq!(remedies(), []);
}
