//! A user who is not root: the server, the mount by fusermount3, and how it is cleared up.
//!
//! Run by root, each test starts itself once more as another user; run by an ordinary user it just
//! goes on. Who is chosen needs an account, by which sshd lets him in, and must not be `nobody`,
//! whom systemd tells to be locked.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Signal, geteuid};
use sandbox::sshd::{Options, SftpServer};

use crate::behaviours::pattern;
use crate::helper::sftp;
use crate::mount::{is_mounted, umount};
use crate::process::{eventually, run, run_within, succeed};
use crate::status::status;
use crate::world::{PROGRAM, World, program};

/// `games`, whom every Debian has, with the number and the group that Debian gives him.
const USER: &str = "5";
const GROUP: &str = "60";

/// What the name of a test here begins with.
const MODULE: &str = "unprivileged::";

/// How long one test may take as another user.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs `body` as an ordinary user; `test` is the name of the test that this is.
#[track_caller]
fn as_ordinary_user(test: &str, body: impl FnOnce()) {
    if !geteuid().is_root() {
        return body();
    }
    // Where this was built he may not be allowed to go.
    let dir = tempfile::Builder::new().prefix("user-").tempdir().unwrap();
    let (tests, program) = (dir.path().join("e2e"), dir.path().join("sshoal"));
    sandbox::copy_program(&std::env::current_exe().unwrap(), &tests).unwrap();
    sandbox::copy_program(env!("CARGO_BIN_EXE_sshoal").as_ref(), &program).unwrap();
    let open = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    open(dir.path(), 0o755);
    open(&work, 0o1777);
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", GROUP, "--clear-groups", "--"]).arg(&tests);
    command.args(["--exact", "--nocapture", &format!("{MODULE}{test}")]).current_dir(&work);
    command.env("TMPDIR", &work).env("HOME", &work).env(PROGRAM, &program);
    command.env_remove("XDG_RUNTIME_DIR");
    let ended = run_within(LIMIT, &mut command);
    let one_passed = ended.stdout.contains("test result: ok. 1 passed");
    assert!(ended.status.success() && one_passed, "{}\n{}", ended.stdout, ended.stderr);
}

/// A server for the user himself. His shell may be one that runs nothing, so that it is sshd that
/// has to serve SFTP.
fn world() -> World {
    World::with(Options { sftp_server: SftpServer::Internal, ..Options::default() })
}

#[test]
fn a_mount_works_and_is_unmounted() {
    as_ordinary_user("a_mount_works_and_is_unmounted", || {
        let world = world();
        let mount = world.mount(&[]);
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|line| line.contains(mount.place().to_str().unwrap()));
        let line = line.unwrap();
        assert!(line.contains(" - fuse.sshoal ") && line.contains("nosuid,nodev"), "{line}");
        assert!(line.contains(&format!("user_id={}", geteuid().as_raw())), "{line}");

        let content = pattern(3 << 20);
        fs::create_dir(mount.at("dir")).unwrap();
        fs::write(mount.at("dir/file"), &content).unwrap();
        fs::set_permissions(mount.at("dir/file"), Permissions::from_mode(0o640)).unwrap();
        fs::rename(mount.at("dir/file"), mount.at("moved")).unwrap();
        std::os::unix::fs::symlink("moved", mount.at("link")).unwrap();
        fs::hard_link(mount.at("moved"), mount.at("other")).unwrap();
        assert!(fs::read(mount.at("link")).unwrap() == content);
        assert!(fs::read(world.served("other")).unwrap() == content);
        let stat = fs::metadata(mount.at("moved")).unwrap();
        assert_eq!((stat.uid(), stat.mode() & 0o777), (geteuid().as_raw(), 0o640));
        fs::remove_dir(mount.at("dir")).unwrap();
        // Not his to change: the server refuses, and the reason arrives.
        let refused = rustix::fs::chown(mount.at("moved"), Some(rustix::fs::Uid::ROOT), None);
        assert_eq!(refused, Err(rustix::io::Errno::PERM));
        let mut locked = File::create(world.served("locked")).unwrap();
        locked.write_all(b"secret").unwrap();
        locked.set_permissions(Permissions::from_mode(0o000)).unwrap();
        let refused = fs::read(mount.at("locked")).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        // `sshoal umount`, and all that has to be true after it.
        mount.unmount();
    });
}

/// From a login that has another runtime directory, and so does not find the record.
#[test]
fn a_mount_whose_daemon_is_not_known_is_not_called_dead() {
    as_ordinary_user("a_mount_whose_daemon_is_not_known_is_not_called_dead", || {
        let world = world();
        let runtime = world.local("runtime");
        fs::create_dir(&runtime).unwrap();
        fs::set_permissions(&runtime, Permissions::from_mode(0o700)).unwrap();
        let place = world.mountpoint();
        let mut command = world.command();
        command.arg(world.source()).arg(&place).env("XDG_RUNTIME_DIR", &runtime);
        assert!(run(&mut command).status.success());
        let told = run(program().arg("status").arg(&place));
        assert_eq!(told.status.code(), Some(1), "{told:?}");
        assert!(told.stdout.contains("cannot be queried: its daemon is not known"), "{told:?}");
        let told = run(program().arg("doctor"));
        let about = |line: &&str| line.contains(place.to_str().unwrap());
        let line = told.stdout.lines().find(about).unwrap();
        assert!(line.starts_with("unknown  mount"), "{told:?}");
        let mut known = program();
        known.arg("umount").arg(&place).env("XDG_RUNTIME_DIR", &runtime);
        assert!(run(&mut known).status.success());
    });
}

/// fusermount3 may not enter a mount of the user.
#[test]
fn a_mount_over_or_inside_a_mount_is_refused_with_a_reason() {
    as_ordinary_user("a_mount_over_or_inside_a_mount_is_refused_with_a_reason", || {
        let world = world();
        let mount = world.mount(&[]);
        fs::create_dir(mount.at("dir")).unwrap();
        let source = world.source();
        let place = mount.place().to_str().unwrap();
        let said = world.refusal(&[&source, place]);
        assert!(said.contains("`sshoal umount ") && !said.contains("nonempty"), "{said}");
        let inside = format!("{place}/dir");
        for words in [&[&*source, &inside][..], &[&source, place, "-o", "nonempty"]] {
            let said = world.refusal(words);
            assert!(said.contains("fusermount3 runs as root"), "{said}");
        }
    });
}

#[test]
fn in_the_background() {
    as_ordinary_user("in_the_background", || {
        let world = world();
        let place = world.mountpoint();
        let ended = run(world.command().arg(world.source()).arg(&place));
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
        assert!(is_mounted(&place));
        fs::write(place.join("file"), "content").unwrap();
        let ended = umount(&[], &place);
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
        assert!(!is_mounted(&place));
        assert_eq!(fs::read(world.served("file")).unwrap(), b"content");
    });
}

/// fusermount3 stays and watches, since there is nobody else to unmount after a crash.
#[test]
fn auto_unmount_clears_up_after_a_crash() {
    as_ordinary_user("auto_unmount_clears_up_after_a_crash", || {
        let world = world();
        let mut mount = world.mount(&["-o", "auto_unmount"]);
        fs::write(mount.at("file"), "content").unwrap();
        mount.daemon().signal(Signal::KILL);
        eventually(Duration::from_secs(10), "the mount is gone", || !mount.is_mounted());
        assert_eq!(mount.wait_ended(), None);
        // And after an orderly end.
        let mount = world.mount(&["-o", "auto_unmount"]);
        assert_eq!(fs::read(mount.at("file")).unwrap(), b"content");
        mount.unmount();
    });
}

#[test]
fn a_mount_whose_daemon_died_is_cleared() {
    as_ordinary_user("a_mount_whose_daemon_died_is_cleared", || {
        let world = world();
        let mut mount = world.mount(&[]);
        fs::write(mount.at("file"), "content").unwrap();
        mount.daemon().signal(Signal::KILL);
        assert_eq!(mount.wait_ended(), None);
        let error = fs::read(mount.at("file")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));

        // It cannot say that all is well: nobody knows what the daemon had still to write.
        let ended = umount(&[], mount.place());
        assert!(ended.status.success(), "{ended:?}");
        assert!(ended.stderr.contains("note: the daemon of this mount had died"), "{ended:?}");
        assert!(!mount.is_mounted());

        // A new mount clears it, too.
        let mut mount = world.mount(&[]);
        mount.daemon().signal(Signal::KILL);
        assert_eq!(mount.wait_ended(), None);
        let place = mount.place();
        let ended = run(world.command().arg(world.source()).arg(place));
        assert!(ended.status.success(), "{ended:?}");
        assert!(
            ended.stderr.contains("note: ") && ended.stderr.contains("removed a dead mount of")
        );
        assert_eq!(fs::read(place.join("file")).unwrap(), b"content");
        assert!(umount(&[], place).status.success());
        assert!(!mount.is_mounted(), "nothing lies below it");
    });
}

#[test]
fn allow_other_needs_the_administrator() {
    as_ordinary_user("allow_other_needs_the_administrator", || {
        let world = world();
        let allowed = fs::read_to_string("/etc/fuse.conf")
            .is_ok_and(|conf| conf.lines().any(|line| line.trim() == "user_allow_other"));
        if allowed {
            world.mount(&["-o", "allow_other"]).unmount();
            eprintln!("skipped: /etc/fuse.conf of this machine has user_allow_other");
            return;
        }
        for option in ["allow_other", "allow_root"] {
            let place = world.mountpoint();
            let place = place.to_str().unwrap();
            let said = world.refusal(&[&world.source(), place, "-o", option]);
            assert!(said.contains("user_allow_other") && said.contains("/etc/fuse.conf"), "{said}");
            assert!(!is_mounted(Path::new(place)));
        }
    });
}

#[test]
fn a_mount_point_of_another_user_is_refused() {
    as_ordinary_user("a_mount_point_of_another_user_is_refused", || {
        let world = world();
        let said = world.refusal(&[&world.source(), "/usr"]);
        assert!(said.contains("/usr"), "{said}");
        assert!(
            said.to_lowercase().contains("permission") || said.contains("write access"),
            "{said}"
        );
        assert!(!is_mounted(Path::new("/usr")));
        // Nor is somebody else's mount his to unmount.
        let ended = umount(&[], Path::new("/proc"));
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    });
}

/// The user's login shell may be one that runs nothing: then the refusal is reported.
#[test]
fn everyday_commands_work() {
    as_ordinary_user("everyday_commands_work", || {
        let world = world();
        let mount = world.mount(&[]);
        let is_ready = || status(mount.place())["daemon"] == "answers";
        eventually(Duration::from_secs(60), "an answer", is_ready);
        fs::create_dir(mount.at("dir")).unwrap();
        let dir = world.served("dir").canonicalize().unwrap();
        let ended = run(program().arg("where").arg(mount.at("dir")));
        assert_eq!(ended.stdout, format!("testhost:{}\n", dir.display()), "{ended:?}");
        let ended = run(program().arg("set").arg(mount.place()).arg("acregmax=7"));
        assert!(ended.status.success(), "{ended:?}");
        let ended = run(program().args(["run", "pwd"]).current_dir(mount.at("dir")));
        let passwd = fs::read_to_string("/etc/passwd").unwrap();
        let id = format!(":x:{}:", geteuid().as_raw());
        let line = passwd.lines().find(|line| line.contains(&id)).unwrap();
        if line.ends_with("nologin") || line.ends_with("false") {
            assert_eq!(ended.status.code(), Some(125), "{ended:?}");
            assert!(ended.stderr.contains("the server did not run the command"), "{ended:?}");
        } else {
            assert_eq!(ended.stdout, format!("{}\n", dir.display()), "{ended:?}");
        }
        mount.unmount();
    });
}

/// Class of attack: a client with files only executes code by `/proc/self/mem`.
#[test]
fn the_helper_keeps_its_memory_from_its_client() {
    as_ordinary_user("the_helper_keeps_its_memory_from_its_client", || {
        let world = world();
        fs::write(world.local("file"), "content").unwrap();
        // What the helper reaches through its own descriptors still works.
        let ended = sftp(&world, "", "pwd\nput file copy\nchmod 600 copy\nget copy back\n");
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        assert_eq!(fs::read(world.local("back")).unwrap(), b"content");
        for own in ["self", "thread-self"] {
            let ended = sftp(&world, "", &format!("put file /proc/{own}/mem\n"));
            assert_eq!(ended.status.code(), Some(1), "{ended:?}");
            let refused = format!("open \"/proc/{own}/mem\": Permission denied");
            assert!(ended.stderr.contains(&refused), "{ended:?}");
        }
    });
}

/// By default nobody else gets in, not even root.
#[test]
fn others_are_kept_out() {
    if !geteuid().is_root() {
        eprintln!("skipped: it takes root to be several users");
        return;
    }
    let world = World::new();
    fs::set_permissions(world.local(""), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(world.served(""), Permissions::from_mode(0o755)).unwrap();
    fs::write(world.served("file"), "content").unwrap();
    fs::set_permissions(world.served("file"), Permissions::from_mode(0o600)).unwrap();
    let as_user = |script: &str, place: &Path| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            USER,
            "--regid",
            GROUP,
            "--clear-groups",
            "sh",
            "-c",
            script,
            "sh",
        ]);
        command.arg(place);
        run(&mut command)
    };
    let mount = world.mount(&[]);
    let ended = as_user("ls \"$1\"", mount.place());
    assert!(!ended.status.success() && ended.stderr.contains("Permission denied"), "{ended:?}");
    // Nor can they mount over it, and are told why.
    let program = world.local("sshoal");
    // Where they may run it: the build may be in a directory of root's own.
    sandbox::copy_program(crate::world::program_path().as_ref(), &program).unwrap();
    let over = format!("'{}' host: \"$1\"", program.display());
    let ended = as_user(&over, mount.place());
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("(fuse.sshoal) is mounted here by user 0"), "{ended:?}");
    mount.unmount();
    // With allow_other the permission bits count; without them everybody would be the login.
    let mount = world.mount(&["-o", "allow_other"]);
    let ended = as_user("ls \"$1\" && ! cat \"$1/file\" && ! touch \"$1/new\"", mount.place());
    assert!(ended.status.success() && ended.stdout == "file\n", "{ended:?}");
    mount.unmount();
    // With allow_root nobody else gets in, also where the kernel would open files by itself.
    for options in ["allow_root", "allow_root,ro,consistency=immutable"] {
        let mount = world.mount(&["-o", options]);
        assert_eq!(fs::read_dir(mount.place()).unwrap().count(), 1);
        assert_eq!(fs::read(mount.at("file")).unwrap(), b"content");
        for script in ["ls \"$1\"", "cat \"$1/file\"", "exec 3<\"$1/file\""] {
            let ended = as_user(script, mount.place());
            let is_refused = ended.stderr.contains("Permission denied");
            assert!(!ended.status.success() && is_refused, "{options}: {script}: {ended:?}");
            assert_eq!(ended.stdout, "", "{options}: {script}");
        }
        mount.unmount();
    }
    let mount = world.mount(&["-o", "allow_other,no_default_permissions"]);
    let ended = as_user("cat \"$1/file\"", mount.place());
    assert!(ended.status.success() && ended.stdout == "content", "{ended:?}");
    mount.unmount();
    succeed(Command::new("test").arg("-e").arg(world.served("file")));
}

/// The cache on disk without any privilege: kept over mounts, read by us and not by the kernel.
#[test]
fn a_cache_on_disk_is_the_users_own() {
    as_ordinary_user("a_cache_on_disk_is_the_users_own", || {
        let world = world();
        let content = pattern(3 << 20);
        fs::write(world.served("file"), &content).unwrap();
        let old = std::time::SystemTime::now() - Duration::from_secs(7200);
        let file = File::options().write(true).open(world.served("file")).unwrap();
        file.set_modified(old).unwrap();
        let cache = world.local("cache");
        let cache = format!("-ocache=disk,cache_free=0,cache_dir={}", cache.display());
        for options in ["", ",ro,passthrough=yes", ",ro,consistency=immutable"] {
            let mount = world.mount(&[&format!("{cache}{options}")]);
            assert!(fs::read(mount.at("file")).unwrap() == content, "{options}");
            mount.unmount();
        }
        let mode = fs::metadata(world.local("cache")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        let offline = world.mount(&[&format!("{cache},offline")]);
        assert!(fs::read(offline.at("file")).unwrap() == content);
        offline.unmount();
    });
}

/// As rsync: the modes of these directories of the target keep even their owner out.
#[test]
fn a_pull_updates_directories_that_keep_their_owner_out() {
    as_ordinary_user("a_pull_updates_directories_that_keep_their_owner_out", || {
        let world = world();
        let set = |path: &Path, perm| {
            fs::set_permissions(path, Permissions::from_mode(perm)).unwrap();
        };
        let (source, target) = (world.served("source"), world.local("target"));
        for perm in [0o333, 0, 0o600] {
            for place in [&source, &target] {
                fs::create_dir_all(place.join(format!("{perm:o}"))).unwrap();
                fs::write(place.join(format!("{perm:o}/same")), "same").unwrap();
            }
            fs::write(source.join(format!("{perm:o}/new")), "new").unwrap();
            fs::write(target.join(format!("{perm:o}/old")), "old").unwrap();
            set(&target.join(format!("{perm:o}")), perm);
        }
        let mut pull = program();
        pull.args(["pull", "--engine", "sftp", "--delete", "-F"]).arg(world.sshd().config_path());
        pull.arg(format!("{}:{}/", world.sshd().alias(), source.display())).arg(&target);
        succeed(&mut pull);
        for perm in ["333", "0", "600"] {
            let names = fs::read_dir(target.join(perm)).unwrap();
            let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(names, ["new", "same"], "{perm}");
            let mode = |place: &Path| fs::metadata(place.join(perm)).unwrap().permissions();
            assert_eq!(mode(&target), mode(&source), "{perm}");
        }
    });
}
