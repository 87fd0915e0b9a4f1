//! `sshoal doctor`: what it finds of a server, of its absence, and of a mount.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::helper::served_by_helper;
use crate::process::{Ended, run};
use crate::world::{World, program, program_path};

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
    let mount = world.mount(&[]);
    let place = mount.place().to_str().unwrap().to_owned();
    let ended = doctor(&world, &[&place]);
    assert!(ended.stdout.contains(": connected, 1 session"), "{ended:?}");
    mount.unmount();
    let ended = doctor(&world, &[&place]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stdout.contains("nothing is mounted here"), "{ended:?}");
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
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", "5", "--regid", "60", "--clear-groups", "--"]).arg(&program);
    let ended = run(command.args(["doctor", "--json", place]).env_remove("XDG_RUNTIME_DIR"));
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let mount_check = check(&document, "mount");
    assert_eq!(mount_check["verdict"], "unknown", "{document}");
    let found = mount_check["found"].as_str().unwrap();
    assert!(found.starts_with(&format!("{place}: mounted by user 0; only that user")), "{found}");
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
    let again = doctor(&world, &["--bundle", shown]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(again.stderr.contains("File exists"), "{again:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
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
    mount.unmount();
    let fine = sampled();
    assert_eq!(fine["verdict"], "fine", "{fine}");
    let found = fine["found"].as_str().unwrap();
    assert!(found.starts_with("1 content and the names of 1 directory"), "{fine}");

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
