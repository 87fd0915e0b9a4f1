//! The program as it is installed: its names, mount(8) and fstab, and the background.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid};
use sandbox::leftover;

use crate::mount::{detach, is_mounted, umount};
use crate::process::{Ended, Process, eventually, run, shell};
use crate::world::{World, program_path};

/// The program under another name.
fn under_name(world: &World, name: &str) -> Command {
    let path = world.local(name);
    symlink(program_path(), &path).unwrap();
    let mut command = Command::new(path);
    command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
    command
}

/// `ssh_command=` for a command line without `-F`.
fn ssh_command(world: &World) -> String {
    format!("ssh_command=ssh -F {}", world.sshd().config_path().display())
}

/// Type and source in the table of mounts.
fn type_and_source(place: &Path) -> (String, String) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == place.to_str());
    let (_, rest) = line.expect("it is mounted").split_once(" - ").unwrap();
    let mut words = rest.split(' ').map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

#[track_caller]
pub fn assert_quiet_success(ended: &Ended) {
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stdout.is_empty() && ended.stderr.is_empty(), "{ended:?}");
}

#[track_caller]
fn assert_serves_until_unmounted(world: &World, place: &Path) {
    fs::write(place.join("file"), place.to_str().unwrap()).unwrap();
    assert_quiet_success(&umount(&[], place));
    assert!(!is_mounted(place));
    assert_eq!(fs::read_to_string(world.served("file")).unwrap(), place.to_str().unwrap());
}

/// The process that serves the mount: of those with its mount point among the arguments, the one
/// whose parent is not another one.
pub fn daemon_of(place: &Path) -> u32 {
    let is_daemon = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        words.any(|word| Some(word) == place.to_str().map(str::as_bytes))
    };
    let processes = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let found: Vec<u32> = processes.filter(is_daemon).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

#[test]
fn a_background_mount_returns_when_it_serves() {
    let world = World::new();
    let place = world.mountpoint();
    let log = world.local("log");
    let option = format!("log={}", log.display());
    let ended = run(world.command().arg(world.source()).arg(&place).args(["-o", &option]));
    // `run` has read to the end of both pipes: the daemon does not hold them.
    assert_quiet_success(&ended);
    assert_eq!(type_and_source(&place), ("fuse.sshoal".into(), world.source()));
    let pid = daemon_of(&place);
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).unwrap();
    assert_eq!(link("cwd"), Path::new("/"));
    assert_eq!((link("fd/0"), link("fd/1")), ("/dev/null".into(), "/dev/null".into()));
    assert_eq!(link("fd/2"), log);
    let session = rustix::process::getsid(Pid::from_raw(pid.cast_signed())).unwrap();
    assert_eq!(session.as_raw_nonzero().get().cast_unsigned(), pid);
    assert_serves_until_unmounted(&world, &place);
    // `umount` has waited for it, but for its last instruction.
    eventually(Duration::from_secs(5), "it ends", || !Path::new(&format!("/proc/{pid}")).exists());
    let lines = fs::read_to_string(log).unwrap();
    let place = place.to_str().unwrap();
    let expected =
        [format!(" INFO {place}: mounted {}", world.source()), format!(" INFO {place}: unmounted")];
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.lines().zip(&expected).all(|(line, end)| line.ends_with(end)), "{lines}");
}

#[test]
fn a_failing_background_mount_reports_why_and_leaves_nothing_behind() {
    let world = World::new();
    let place = world.mountpoint();
    let refused = [
        (world.source_of(&world.served("missing")), "/missing: no such directory on the server"),
        (world.source_of(Path::new("/etc/passwd")), "/etc/passwd: not a directory"),
        ("nosuchhost.invalid:".to_owned(), "Could not resolve hostname"),
    ];
    for (source, why) in refused {
        let said = world.refusal(&[&source, place.to_str().unwrap()]);
        assert!(said.contains(why), "{source}: {said}");
        assert!(said.lines().any(|line| line.starts_with("sshoal: ")), "{source}: {said}");
        assert!(!is_mounted(&place));
    }
}

/// Whoever waits for a mount and has had enough of it takes the mount back with Ctrl-C.
#[test]
fn a_mount_that_is_given_up_while_it_connects_leaves_nothing() {
    let world = World::new();
    let place = world.mountpoint();
    // A server that never says anything. Its name is among the arguments of what waits for it.
    let (silence, slow) = (world.local("silence"), world.local("slow"));
    fs::write(&silence, "").unwrap();
    sandbox::write_program(&slow, format!("#!/bin/sh\nexec tail -f {}\n", silence.display()))
        .unwrap();
    let mut command = world.command();
    command.args(["-o", &format!("ssh_command={}", slow.display())]);
    command.arg(world.source()).arg(&place).process_group(0);
    let mut process = Process::spawn(&mut command);
    let is_waiting = || {
        let left = leftover::find(&world.local("")).unwrap();
        left.iter().any(|left| format!("{left:?}").contains(silence.to_str().unwrap()))
    };
    eventually(Duration::from_secs(10), "ssh is started", is_waiting);
    // What Ctrl-C does: a signal to all of the terminal's foreground.
    let group = Pid::from_raw(process.pid().cast_signed()).unwrap();
    rustix::process::kill_process_group(group, Signal::INT).unwrap();
    assert!(!process.wait(Duration::from_secs(10)).success());
    assert!(!is_mounted(&place));
    // That nothing runs any more, the world checks.
}

#[test]
fn under_the_name_sshfs_the_command_line_is_that_of_sshfs() {
    let world = World::new();
    let mut command = under_name(&world, "sshfs");
    let version = run(command.arg("-V"));
    assert!(
        version.status.success() && version.stdout.starts_with("SSHFS version "),
        "{version:?}"
    );
    let help = run(Command::new(world.local("sshfs")).arg("--help"));
    assert!(help.stdout.to_lowercase().contains("usage: sshfs"), "{help:?}");

    let place = world.mountpoint();
    let mut command = Command::new(world.local("sshfs"));
    command.arg("-F").arg(world.sshd().config_path());
    // As it stands in many scripts.
    command.args(["-o", "reconnect,ServerAliveInterval=15,ServerAliveCountMax=3,cache=yes"]);
    command.args(["-o", "kernel_cache,large_read,compression=no", "-o", "idmap=user"]);
    assert_quiet_success(&run(command.arg(world.source()).arg(&place)));
    assert_eq!(type_and_source(&place), ("fuse.sshfs".into(), world.source()));
    assert_serves_until_unmounted(&world, &place);

    // What fails is told under that name, and `umount` is no command of sshfs.
    let refused = run(Command::new(world.local("sshfs")).arg("umount").arg(&place));
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.starts_with("sshfs: "), "{refused:?}");
}

/// mount(8) runs `HELPER SOURCE DIR [-sfnv] [-o OPTIONS] [-t TYPE]`.
#[test]
fn under_the_names_of_helpers_it_takes_mount_s_arguments() {
    let world = World::new();
    let names = [
        ("mount.sshoal", "fuse.sshoal"),
        ("mount.fuse.sshoal", "fuse.sshoal"),
        ("mount.sshfs", "fuse.sshfs"),
        ("mount.fuse.sshfs", "fuse.sshfs"),
    ];
    for (name, kind) in names {
        let place = world.mountpoint();
        let options = format!("rw,nosuid,_netdev,x-systemd.automount,{}", ssh_command(&world));
        // `-f` is "fake": everything but the mount.
        let mut command = under_name(&world, name);
        command.arg(world.source()).arg(&place).args(["-o", &options]);
        assert_quiet_success(&run(command.arg("-f")));
        assert!(!is_mounted(&place));

        let mut command = Command::new(world.local(name));
        command.arg(format!("sshfs#{}", world.source())).arg(&place).args(["-v", "-n", "-s"]);
        command.args(["-o", &format!("{options},nonsense"), "-t", kind]);
        assert_quiet_success(&run(&mut command));
        assert_eq!(type_and_source(&place), (kind.into(), world.source()));
        assert_serves_until_unmounted(&world, &place);
    }
}

/// A file in place of the one that `make build` makes with cargo.
fn licenses(world: &World) -> PathBuf {
    let licenses = world.local("licenses");
    fs::write(&licenses, "The licences of the crates.\n".repeat(5)).unwrap();
    licenses
}

/// Removes variables of the make that may run the tests.
fn without_make(command: &mut Command) {
    for variable in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PREFIX", "SBINDIR"] {
        command.env_remove(variable);
    }
}

/// Where `make install` puts things, below a directory.
pub fn install(world: &World) -> PathBuf {
    let root = world.local("root");
    let mut make = Command::new("make");
    make.arg("-C").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).arg("install");
    make.arg(format!("DESTDIR={}", root.display()));
    make.arg(format!("PROGRAMS={}", program_path().parent().unwrap().display()));
    make.arg(format!("LICENSES={}", licenses(world).display()));
    without_make(&mut make);
    let ended = run(&mut make);
    assert!(ended.status.success(), "{ended:?}");
    root
}

/// `scripts/test-package.sh` without `--here` does the same in a fresh Debian.
#[test]
fn the_package_is_installed_used_and_removed() {
    if !geteuid().is_root() {
        eprintln!("skipped: dpkg needs root");
        return;
    }
    if shell("command -v dpkg-deb || echo none", &[]) == "none\n" {
        eprintln!("skipped: there is no dpkg here");
        return;
    }
    let world = World::new();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let mut package = Command::new(scripts.join("package-deb.sh"));
    package.arg(program_path().parent().unwrap()).arg(world.local("package"));
    package.env("LICENSES", licenses(&world));
    // xz takes most of a minute for programs that are not optimized.
    package.env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    without_make(&mut package);
    let made = run(&mut package);
    assert!(made.status.success(), "{made:?}");

    let mut test = Command::new(scripts.join("test-package.sh"));
    let ended = run(test.arg("--here").arg(made.stdout.trim_end()));
    if ended.status.code() == Some(77) {
        eprintln!("skipped: {}", ended.stderr.trim_end());
        return;
    }
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stdout.ends_with("test-package: passed\n"), "{ended:?}");
}

#[test]
fn make_install_installs_and_uninstall_takes_away() {
    let world = World::new();
    let root = install(&world);
    let version = run(Command::new(root.join("usr/local/bin/sshoal")).arg("-V"));
    assert!(version.stdout.starts_with("sshoal "), "{version:?}");
    let help = run(Command::new(root.join("usr/local/bin/sshoal")).args(["help", "bench"]));
    assert!(help.stdout.contains("Usage: sshoal bench"), "{help:?}");
    for file in [
        "man/man1/sshoal.1",
        "man/man1/sshoal-mount.1",
        "man/man1/sshoal-cache.1",
        "man/man1/sshoal-bench.1",
        "man/man8/mount.sshoal.8",
        "bash-completion/completions/sshoal",
        "zsh/site-functions/_sshoal",
        "fish/vendor_completions.d/sshoal.fish",
        "doc/sshoal/licenses.txt",
        "doc/sshoal/ARCHITECTURE.md",
        "doc/sshoal/docs/options.md",
        "doc/sshoal/docs/results/README.md",
        "doc/sshoal/examples/sshoal@.service",
        "doc/sshoal/examples/auto.sshoal",
    ] {
        let size = fs::metadata(root.join("usr/local/share").join(file)).map(|it| it.len());
        assert!(size.as_ref().is_ok_and(|size| *size > 100), "{file}: {size:?}");
    }
    for helper in ["mount.sshoal", "mount.fuse.sshoal"] {
        let target = fs::read_link(root.join("sbin").join(helper)).unwrap();
        assert_eq!(target, Path::new("/usr/local/bin/sshoal"));
    }
    let pages = root.join("usr/local/share/man/man1");
    assert_eq!(shell("mandoc -Tlint \"$1\"/*", &[&pages]), "");
    // A file of another package with a similar name.
    let other = root.join("usr/local/share/man/man1/sshoal-other.1");
    fs::write(&other, "").unwrap();
    let script = "make -C \"$1\" uninstall DESTDIR=\"$2\" PREFIX=/usr/local SBINDIR=/sbin";
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    shell(script, &[&checkout, &root]);
    fs::remove_file(&other).unwrap();
    assert_eq!(shell("cd \"$1\" && find . ! -type d", &[&root]), "");
}

/// Each build of cargo puts its own file back, with the time at which it was linked.
#[test]
fn debug_information_is_split_after_each_build() {
    let dir = tempfile::tempdir().unwrap();
    let split = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/split-debug.sh");
    let script = r#"
        cd "$1"
        echo 'int main(void) { return 0; }' >main.c
        cc -g -o linked main.c
        for build in 1 2; do
            ln -f linked program
            "$2" program
            "$2" program
            readelf -SW program | grep -o -e gnu_debuglink -e debug_line
        done"#;
    assert_eq!(shell(script, &[dir.path(), &split]), "gnu_debuglink\n".repeat(2));
}

/// In a mount namespace whose /sbin and /usr/local/bin are those of `make install`.
const IN_FSTAB: &str = r#"
root=$1 place=$2 fstab=$3 source=$4
mount --bind "$root/usr/local/bin" /usr/local/bin
mount --bind "$root/sbin" /sbin
mount --bind "$fstab" /etc/fstab
flags() { findmnt -no OPTIONS "$place" | tr , '\n' | grep -x -e ro -e rw -e nosuid -e nodev | xargs; }

mount "$place"
findmnt -no FSTYPE,SOURCE "$place"
flags
mount -o remount,acregmax=9 "$place"
/usr/local/bin/sshoal set "$place" | grep -x acregmax=9
mount -o remount,ro "$place"
flags
touch "$place/file" 2>/dev/null || echo read-only
mount -o remount,rw "$place"
flags
echo through fstab >"$place/file"
/usr/local/bin/sshoal umount "$place"

mount -t fuse.sshoal "$source" "$place" -o "ro,$5"
cat "$place/file"
touch "$place/file" 2>/dev/null && echo "written through a read-only mount"
umount "$place"

mount -t sshoal "$source" "$place" -o "$5"
findmnt -no FSTYPE "$place"
echo again >>"$place/file"
/usr/local/bin/sshoal umount "$place"
findmnt "$place" || echo unmounted

# mount(8) makes a path of the name of a file in the current directory.
mkdir "$root/work" && cd "$root"
mount -t fuse.sshoal sshoal#work "$place"
findmnt -no SOURCE "$place"
/usr/local/bin/sshoal umount "$place"
mount -t fuse.sshoal work "$place" 2>&1

mount -t fuse.sshoal "${source}missing" "$place" -o "$5" 2>&1 && echo "mounted what is not there"
exit 0
"#;

#[test]
fn mount_8_finds_the_helper_by_its_type() {
    if !geteuid().is_root() {
        eprintln!("skipped: mount(8) and a namespace with a /sbin of its own take root");
        return;
    }
    let world = World::new();
    let root = install(&world);
    let place = world.mountpoint();
    let fstab = world.local("fstab");
    let ssh = ssh_command(&world);
    let key = world.sshd().dir().join("user_key");
    let line = format!(
        "{} {} fuse.sshoal noauto,x-systemd.automount,_netdev,nofail,IdentityFile={},allow_other,{} 0 0\n",
        world.source(),
        place.display(),
        key.display(),
        ssh.replace(' ', "\\040"),
    );
    fs::write(&fstab, line).unwrap();
    let config = format!(
        "[mount.work]\nsources = {:?}\noptions = ['ssh_config={}']\n",
        world.source(),
        world.sshd().config_path().display()
    );
    fs::create_dir_all(world.local("config/sshoal")).unwrap();
    fs::write(world.local("config/sshoal/config.toml"), config).unwrap();
    let mut command = sandbox::namespace::command();
    command.args(["sh", "-uc", IN_FSTAB, "sh"]);
    command.args([&root, &place, &fstab]).arg(world.source()).arg(&ssh);
    command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
    command.env("XDG_CONFIG_HOME", world.local("config"));
    let ended = run(&mut command);
    let Ended { stdout, stderr, .. } = &ended;
    let lines: Vec<&str> = stdout.lines().collect();
    let kind_and_source = format!("fuse.sshoal {}", world.source());
    let expected = [
        &kind_and_source,
        "rw nosuid nodev",
        "acregmax=9",
        "ro nosuid nodev",
        "read-only",
        "rw nosuid nodev",
        "through fstab",
        "fuse.sshoal",
        "unmounted",
        "sshoal#work",
    ];
    assert!(ended.status.success() && lines.len() > expected.len(), "{ended:?}");
    assert_eq!(lines[..expected.len()], expected, "{stderr}");
    let failure = lines[expected.len()..].join("\n");
    assert!(failure.contains("the mount of the configuration file is sshoal#work"), "{failure}");
    assert!(failure.contains("/missing: no such directory on the server"), "{failure}");
    assert!(!failure.contains("mounted what is not there"), "{failure}");
    assert_eq!(fs::read(world.served("file")).unwrap(), b"through fstab\nagain\n");
    detach(&place);
}
