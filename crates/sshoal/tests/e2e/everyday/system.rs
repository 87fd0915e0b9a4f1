//! `sshoal unit` and `sshoal autofs`, with the programs that read what they print.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;

use crate::mount::detach;
use crate::process::{Ended, run};
use crate::world::{World, program};

fn unit(words: &[&str]) -> Ended {
    run(program().arg("unit").args(words))
}

fn has(program: &str) -> bool {
    let found = ["/usr/bin", "/usr/sbin"].iter().any(|dir| Path::new(dir).join(program).exists());
    if !found {
        eprintln!("skipped: no {program}");
    }
    found
}

#[test]
fn units_are_written_once_and_systemd_accepts_them() {
    let world = World::new();
    let place = "/mnt/my dir/ü%-x";
    let dir = world.local("units");
    fs::create_dir(&dir).unwrap();
    let dir_text = dir.to_str().unwrap();
    let words = ["me@host:my files", place, "-o", "ro,acregmax=5", "--write", dir_text];
    let ended = unit(&words);
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    let files: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(files.len(), 2, "{ended:?}");
    assert_eq!(unit(&words).stdout, ended.stdout, "the same files are left as they are");
    let other = unit(&["me@host:my files", place, "--write", dir_text]);
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    assert!(other.stderr.contains("exists and is different"), "{other:?}");

    let service = unit(&["host:", place, "--user", "-o", "ro", "--write", dir_text]);
    assert!(service.status.success(), "{service:?}");
    if has("systemd-escape") {
        let name = run(Command::new("systemd-escape").args(["--path", "--suffix=mount", place]));
        assert_eq!(dir.join(name.stdout.trim_end()), Path::new(files[0]));
    }
    if has("systemd-analyze") {
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]).args(&files);
        let ended = run(verify.env("SYSTEMD_LOG_LEVEL", "warning"));
        assert!(ended.status.success(), "{ended:?}");
        assert!(!ended.stderr.contains(dir_text), "{ended:?}");
        let mut verify = Command::new("systemd-analyze");
        verify.args(["--user", "verify", "--man=no", service.stdout.trim_end()]);
        let runtime = world.local("runtime");
        fs::create_dir(&runtime).unwrap();
        let ended = run(verify.env("XDG_RUNTIME_DIR", &runtime));
        assert!(!ended.stderr.contains(dir_text), "{ended:?}");
    }
}

/// What a service of a user starts: the words of its `ExecStart`, and the notification.
#[test]
fn the_service_of_a_user_mounts() {
    for is_named in [false, true] {
        let world = World::new();
        let place = world.mountpoint();
        let (config_home, ssh_config) = (world.local("config"), world.sshd().config_path());
        let text = format!("[mount.work]\nmountpoint = {place:?}\nsources = {:?}", world.source());
        fs::create_dir_all(config_home.join("sshoal")).unwrap();
        fs::write(config_home.join("sshoal/config.toml"), text).unwrap();
        let source = world.source();
        let operands = match is_named {
            true => vec!["work"],
            false => vec![&*source, place.to_str().unwrap()],
        };
        let mut print = program();
        print.arg("unit").args(operands).arg("--user").env("XDG_CONFIG_HOME", &config_home);
        print.arg("-o").arg(format!("ssh_config={}", ssh_config.display()));
        let printed = run(&mut print).stdout;
        let line = printed.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        // No word here has a character that the shell reads in another way.
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("exec {line}")).env("XDG_CONFIG_HOME", &config_home);
        command.env_remove("XDG_RUNTIME_DIR").env_remove("SSH_AUTH_SOCK");
        let socket = world.local("notify");
        let listener = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
        command.env("NOTIFY_SOCKET", &socket);
        let mount = crate::mount::Mount::start(command, place);
        let mut message = [0; 64];
        let count = listener.recv(&mut message).unwrap();
        assert!(message[..count].starts_with(b"READY=1\nMAINPID="));
        mount.unmount();
    }
}

/// In a mount namespace whose /sbin, /usr/local/bin and /run are this test's own.
const WITH_AUTOMOUNT: &str = r#"
root=$1 at=$2 master=$3
cp /usr/sbin/automount "$root/automount"
cp /usr/sbin/runuser "$root/sbin/runuser"
mount --bind "$root/usr/local/bin" /usr/local/bin
mount --bind "$root/sbin" /sbin
mount -t tmpfs tmpfs /run
"$root/automount" -p "$root/automount.pid" -C "$master"
n=0
until grep -q " $at autofs " /proc/self/mounts || [ $n = 300 ]; do n=$((n + 1)); sleep 0.1; done
cat "$at/testhost$4"
echo written >"$at/testhost$5"
findmnt -no FSTYPE,SOURCE "$at/testhost"
ls -d "$at/-oProxyCommand=touch" "$at/test host" "$at/me@testhost" 2>&1 | grep -c 'No such file'
/usr/local/bin/sshoal umount "$at/testhost"
kill "$(cat "$root/automount.pid")"
while kill -0 "$(cat "$root/automount.pid" 2>/dev/null)" 2>/dev/null; do sleep 0.1; done
umount -l "$at" 2>/dev/null
exit 0
"#;

#[test]
fn automount_mounts_a_host_by_its_name() {
    let has_kernel = Path::new("/dev/autofs").exists();
    if !geteuid().is_root() || !has("automount") || !has_kernel {
        eprintln!("skipped: automount takes root and a kernel with autofs");
        return;
    }
    for user in [None, Some("root")] {
        let world = World::new();
        fs::write(world.served("file"), "through automount\n").unwrap();
        let root = crate::installed::install(&world);
        let at = world.local("ssh");
        fs::create_dir(&at).unwrap();
        let (map, master) = (world.local("auto.ssh"), world.local("auto.master"));
        let config = format!("ssh_config={}", world.sshd().config_path().display());
        let autofs = |more: &[&str]| {
            let mut command = program();
            command.arg("autofs").arg("--at").arg(&at).arg("--map").arg(&map);
            command.args(["-o", &config]).args(more);
            if let Some(user) = user {
                command.args(["--user", user]);
            }
            let ended = run(&mut command);
            assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
            ended.stdout
        };
        fs::write(&map, autofs(&[])).unwrap();
        fs::write(&master, autofs(&["--master"])).unwrap();
        std::process::Command::new("chmod").arg("755").arg(&map).status().unwrap();
        let served = world.served("").canonicalize().unwrap();
        let mut command = sandbox::namespace::command();
        command.args(["sh", "-uc", WITH_AUTOMOUNT, "sh"]).args([&root, &at, &master]);
        command.arg(served.join("file")).arg(served.join("new"));
        command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
        let ended = run(&mut command);
        let expected = "through automount\nfuse.sshoal testhost:/\n3\n";
        assert_eq!(ended.stdout, expected, "{user:?}: {}", ended.stderr);
        assert_eq!(fs::read(world.served("new")).unwrap(), b"written\n");
        detach(&at);
    }
}
