//! Hosts that cannot be reached, when mounting and later.

use std::fs;
use std::time::Duration;

use super::{Hosts, content, names};
use crate::process::eventually;

/// Within this time a host that is back has to be used.
const BACK: Duration = Duration::from_secs(30);

#[test]
fn a_required_host_that_is_down_is_named_with_all_others() {
    let mut hosts = Hosts::new(&["alpha", "beta", "gamma"]);
    let sources = ["alpha", "beta", "gamma"].map(|name| hosts.source(name));
    hosts.fleet.kill("beta");
    let said = hosts.refusal(&sources, &[]);
    assert!(said.contains("sshoal: beta: ") && !said.contains("gamma: "), "{said}");
    assert_eq!(
        said.matches("beta: the connection was closed before the login").count(),
        1,
        "{said}"
    );
    assert!(said.contains("ssh: kex_exchange_identification: "), "ssh's own words: {said}");
    hosts.fleet.kill("gamma");
    let said = hosts.refusal(&sources, &[]);
    assert!(said.contains("sshoal: beta: ") && said.contains("\n  gamma: "), "{said}");
}

#[test]
fn a_missing_directory_fails_the_mount_even_if_optional() {
    let hosts = Hosts::new(&["alpha", "beta"]);
    let missing = hosts.source("beta") + "/missing=optional";
    let said = hosts.refusal(&[hosts.source("alpha"), missing], &[]);
    assert!(said.contains("sshoal: beta: ") && said.contains("no such directory"), "{said}");
}

#[test]
fn an_optional_host_that_is_down_comes_later() {
    let mut hosts = Hosts::new(&["alpha", "beta"]);
    hosts.put("alpha", "a", "a");
    hosts.put("beta", "b", "b");
    let sources = [hosts.source("alpha"), hosts.source("beta") + "=optional"];
    hosts.fleet.kill("beta");
    let mount = hosts.mount(&sources, &["-o", "dir_cache=no"]).with_errors();
    assert!(mount.words().contains("mounted without beta: "), "{}", mount.words());
    // Before the first call, which must not find it out by waiting.
    let state = || crate::status::status(mount.place())["status"]["sources"][1]["state"].clone();
    eventually(BACK, "beta is left out", || state() == "left-out");
    assert_eq!(names(mount.place()), ["a"]);
    hosts.fleet.restart("beta").unwrap();
    eventually(BACK, "beta is part of the tree", || mount.at("b").exists());
    assert_eq!(names(mount.place()), ["a", "b"]);
    // It goes again, and nobody waits for it.
    hosts.fleet.kill("beta");
    eventually(BACK, "beta is left out", || names(mount.place()) == ["a"]);
    assert_eq!(content(mount.at("a")), "a");
}

/// Nothing that is cached expires there.
#[test]
fn an_immutable_tree_shows_an_optional_host_that_comes_later() {
    let mut hosts = Hosts::new(&["alpha", "beta"]);
    hosts.put("alpha", "d/a", "a");
    hosts.put("beta", "d/b", "b");
    let sources = [hosts.source("alpha"), hosts.source("beta") + "=optional"];
    hosts.fleet.kill("beta");
    let mount = hosts.mount(&sources, &["-o", "consistency=immutable"]).with_errors();
    hosts.put("beta", "root-b", "b");
    assert_eq!((names(mount.at("")), names(mount.at("d"))), (vec!["d".into()], vec!["a".into()]));
    assert!(!mount.at("d/b").exists());
    hosts.fleet.restart("beta").unwrap();
    eventually(BACK, "beta is part of the tree", || mount.at("d/b").exists());
    assert_eq!(names(mount.at("d")), ["a", "b"]);
    assert_eq!(names(mount.at("")), ["d", "root-b"]);
}

/// The path of the remote directory is known only when the host is connected.
#[test]
fn absolute_links_work_when_the_host_is_connected_later() {
    let mut hosts = Hosts::new(&["alpha", "beta"]);
    for name in ["alpha", "beta"] {
        hosts.put(name, name, name);
        let dir = hosts.fleet.directory(name);
        std::os::unix::fs::symlink(dir.join(name), dir.join(format!("to-{name}"))).unwrap();
    }
    let mount = hosts.mount(&[hosts.source("alpha")], &["-o", "delay_connect"]).with_errors();
    assert_eq!(content(mount.at("to-alpha")), "alpha");
    hosts.fleet.kill("beta");
    let sources = [hosts.source("alpha"), hosts.source("beta") + "=optional"];
    let mount = hosts.mount(&sources, &["-o", "dir_cache=no"]).with_errors();
    assert!(!mount.at("to-beta").exists());
    hosts.fleet.restart("beta").unwrap();
    eventually(BACK, "beta is part of the tree", || mount.at("beta").exists());
    assert_eq!(content(mount.at("to-beta")), "beta");
}

#[test]
fn when_all_are_optional_one_has_to_be_there() {
    let mut hosts = Hosts::new(&["alpha", "beta"]);
    let sources = ["alpha", "beta"].map(|name| hosts.source(name) + "=optional");
    for name in ["alpha", "beta"] {
        hosts.fleet.kill(name);
    }
    let said = hosts.refusal(&sources, &[]);
    assert!(said.contains("no source is reachable"), "{said}");
    hosts.fleet.restart("beta").unwrap();
    hosts.put("beta", "b", "b");
    let mount = hosts.mount(&sources, &[]).with_errors();
    assert_eq!(content(mount.at("b")), "b");
}

#[test]
fn with_a_delayed_connect_no_host_has_to_be_there() {
    let mut hosts = Hosts::new(&["alpha", "beta"]);
    hosts.put("alpha", "a", "a");
    let sources = ["alpha", "beta"].map(|name| hosts.source(name));
    for name in ["alpha", "beta"] {
        hosts.fleet.kill(name);
    }
    let mount = hosts.mount(&sources, &["-o", "delay_connect,soft=1"]).with_errors();
    let error = fs::metadata(mount.at("a")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
    for name in ["alpha", "beta"] {
        hosts.fleet.restart(name).unwrap();
    }
    eventually(BACK, "both are there", || {
        fs::read_dir(mount.place()).is_ok_and(|it| it.count() == 1)
    });
    assert_eq!(names(mount.place()), ["a"]);
}

/// `hard` waits through an outage, `soft` does not, and `stale=ok` shows what is known.
#[test]
fn calls_wait_as_long_as_hard_soft_and_stale_say() {
    let mut hosts = Hosts::new(&["alpha"]);
    hosts.put("alpha", "file", "content");
    let source = [hosts.source("alpha")];
    let hard = hosts.mount(&source, &["-o", "dir_cache=no"]).with_errors();
    let soft = hosts.mount(&source, &["-o", "dir_cache=no,soft=1"]).with_errors();
    let stale = hosts.mount(&source, &["-o", "stale=ok,dcache_timeout=0.1"]).with_errors();
    for mount in [&hard, &soft, &stale] {
        assert_eq!(content(mount.at("file")), "content");
        assert_eq!(names(mount.place()), ["file"]);
    }
    // The kernel does not forget what is open, though other tests drop its caches.
    let held = fs::File::open(stale.at("file")).unwrap();
    hosts.fleet.kill("alpha");
    eventually(BACK, "soft gives up", || {
        let error = fs::metadata(soft.at("file")).err().and_then(|error| error.raw_os_error());
        error == Some(libc::ETIMEDOUT)
    });
    // That took longer than anything counts.
    for _ in 0..2 {
        assert_eq!(fs::metadata(stale.at("file")).unwrap().len(), 7);
        assert_eq!(names(stale.place()), ["file"]);
    }
    let waiting = std::thread::spawn({
        let file = hard.at("file");
        move || fs::metadata(file).map(|metadata| metadata.len())
    });
    assert!(!waiting.is_finished());
    hosts.fleet.restart("alpha").unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), 7);
    drop(held);
    eventually(BACK, "soft is back", || fs::metadata(soft.at("file")).is_ok());
    hosts.put("alpha", "file", "longer content");
    eventually(BACK, "what has changed is seen", || {
        fs::metadata(stale.at("file")).is_ok_and(|metadata| metadata.len() == 14)
    });
}

/// What stands for ssh: a host that wants a password. It tells when two ask at the same time.
const WANTS_PASSWORD: &str = r#"
case " $* " in
*" -G "*) exit 1 ;;
*BatchMode=yes*) echo "ann@host: Permission denied (publickey,password)." >&2; exit 255 ;;
esac
mkdir "$0.asking" || touch "$0.together"
echo "password, please" >&2
# Long enough for another one to come.
sleep 0.5
rmdir "$0.asking"
exec /usr/lib/openssh/sftp-server
"#;

#[test]
fn password_prompts_appear_one_at_a_time() {
    let hosts = Hosts::new(&[]);
    let script = hosts.local("ssh_command");
    sandbox::write_program(&script, format!("#!/bin/sh\n{WANTS_PASSWORD}")).unwrap();
    let sources: Vec<String> = ["a", "b", "c"]
        .iter()
        .map(|name| {
            super::put(&hosts.local(name).join(name), name);
            format!("{name}:{}", hosts.local(name).display())
        })
        .collect();
    let option = format!("ssh_command={}", script.display());
    let mount = hosts.mount(&sources, &["-o", &option]);
    assert_eq!(names(mount.place()), ["a", "b", "c"]);
    assert_eq!(mount.words().matches("password, please").count(), 3, "{}", mount.words());
    assert!(!mount.words().contains("Permission denied"), "{}", mount.words());
    assert!(!hosts.local("ssh_command.together").exists());
}

/// Who unmounts while a host is away is not kept waiting for it for ever.
#[test]
fn a_mount_whose_host_is_away_can_be_unmounted() {
    let mut hosts = Hosts::new(&["alpha"]);
    hosts.put("alpha", "file", "content");
    let mount = hosts.mount(&[hosts.source("alpha")], &["-o", "dir_cache=no"]).with_errors();
    assert_eq!(content(mount.at("file")), "content");
    hosts.fleet.kill("alpha");
    let mut waiting = crate::process::Process::spawn(
        std::process::Command::new("stat")
            .arg(mount.at("file"))
            .stderr(std::process::Stdio::null()),
    );
    assert_eq!(waiting.try_wait(Duration::from_secs(2)), None, "it waits for the host");
    waiting.signal(rustix::process::Signal::INT);
    waiting.wait(Duration::from_secs(1));
    mount.unmount();
}
