//! `sshoal run`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use sandbox::sshd::{Options, SftpServer};

use super::{command_in, ready, run_in};
use crate::process::{Process, eventually, run};
use crate::world::{World, program, program_path};

#[test]
fn a_command_runs_where_the_directory_is() {
    let world = World::new();
    let name = "a 'b\nc";
    fs::create_dir(world.served(name)).unwrap();
    let mount = ready(world.mount(&[]));
    let dir = mount.at(name);
    let ended = run_in(&dir, &["pwd"]);
    let served = world.served(name).canonicalize().unwrap();
    assert_eq!(ended.stdout, format!("{}\n", served.display()), "{ended:?}");
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");

    // Words arrive as they are, streams are separate, and the status is the command's.
    let script = "cat; printf '<%s>' \"$@\"; echo error >&2; exit 7";
    let words =
        ["sh", "-c", script, "sh", "", "a b", "$HOME", "it's", "two\nlines", "*", "--", "-t"];
    let input = world.local("input");
    fs::write(&input, "standard input\n").unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "exec <\"$1\"; shift; exec \"$@\"", "sh"]).arg(&input);
    command.arg(program_path()).arg("run").args(words).current_dir(&dir);
    let ended = run(command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR"));
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    assert_eq!(ended.stdout, "standard input\n<><a b><$HOME><it's><two\nlines><*><--><-t>");
    assert_eq!(ended.stderr, "error\n");

    // Another directory, and a word that looks like an option.
    let ended = run_in(&world.local(""), &["-C", dir.to_str().unwrap(), "--", "pwd"]);
    assert_eq!(ended.stdout, format!("{}\n", served.display()), "{ended:?}");
    let ended = run_in(&dir, &["no-such-command"]);
    assert_eq!(ended.status.code(), Some(127), "{ended:?}");
    mount.unmount();
}

#[test]
fn both_sides_see_what_the_other_has_written() {
    let world = World::new();
    let mount =
        ready(world.mount(&["-o", "dcache_timeout=1000,acnegative=1000,open_revalidate=1000"]));
    fs::create_dir(mount.at("dir")).unwrap();
    let dir = mount.at("dir");
    // Not closed, and absent names that are cached.
    let mut source = File::create(dir.join("source")).unwrap();
    source.write_all(b"#!/bin/sh\necho made\n").unwrap();
    assert!(!dir.join("result").exists() && !mount.at("other").exists());
    let script = "cp source result && chmod 755 result && echo x >> ../other";
    let ended = run_in(&dir, &["sh", "-c", script]);
    assert!(ended.status.success(), "{ended:?}");
    let made = run(&mut std::process::Command::new(dir.join("result")));
    assert_eq!(made.stdout, "made\n", "{made:?}");
    assert_eq!(fs::read(mount.at("other")).unwrap(), b"x\n");
    // Attributes and content that are cached.
    let size = || fs::metadata(dir.join("result")).unwrap().len();
    let before = size();
    let ended = run_in(&dir, &["sh", "-c", "echo echo again >> result"]);
    assert!(ended.status.success(), "{ended:?}");
    assert!(size() > before);
    let made = run(&mut std::process::Command::new(dir.join("result")));
    assert_eq!(made.stdout, "made\nagain\n", "{made:?}");
    drop(source);
    mount.unmount();
}

#[test]
fn what_is_not_run_says_why() {
    let world = World::new();
    fs::create_dir(world.served("dir")).unwrap();
    fs::write(world.served("file"), "").unwrap();
    let mount = ready(world.mount(&["-o", "dcache_timeout=1000"]));
    let outside = run_in(&world.local(""), &["touch", "x"]);
    assert_eq!(outside.status.code(), Some(125), "{outside:?}");
    assert!(outside.stderr.contains("not in a mount of sshoal"), "{outside:?}");
    assert!(!world.local("x").exists());
    let file = mount.at("file");
    let on_file = run_in(&world.local(""), &["-C", file.to_str().unwrap(), "true"]);
    assert!(on_file.stderr.contains("not a directory"), "{on_file:?}");

    // Removed at the server, which the mount does not know.
    assert!(mount.at("dir").is_dir());
    let gone = mount.at("dir");
    let mut command = command_in(&gone, &["touch", "../y"]);
    fs::remove_dir(world.served("dir")).unwrap();
    let ended = run(command.stdin(Stdio::null()));
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    assert!(ended.stderr.contains("cannot enter the directory"), "{ended:?}");
    assert!(!world.served("y").exists());

    // The mount is still connected, but a new login is not possible.
    let config = world.sshd().config_path();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("Port 1\n{text}")).unwrap();
    let ended = run_in(mount.place(), &["true"]);
    fs::write(&config, text).unwrap();
    assert_eq!(ended.status.code(), Some(255), "{ended:?}");
    let has_reason = ended.stderr.contains("Connection refused");
    assert!(
        has_reason && ended.stderr.contains("ssh failed; the command was not run"),
        "{ended:?}"
    );
    mount.unmount();
}

#[test]
fn a_server_for_files_only_refuses() {
    let settings = vec!["ForceCommand internal-sftp".to_owned()];
    let options = Options { sftp_server: SftpServer::Internal, settings, ..Options::default() };
    let world = World::with(options);
    let mount = ready(world.mount(&[]));
    let ended = run_in(mount.place(), &["touch", "x"]);
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    assert!(ended.stderr.contains("the server did not run the command"), "{ended:?}");
    assert!(ended.stdout.contains("sftp connections only"), "{ended:?}");
    assert!(!world.served("x").exists());
    mount.unmount();
}

/// As a server does that has subsystems only: ssh then exits with the status of its own failures.
#[test]
fn a_server_without_commands_refuses() {
    let world = World::new();
    let wrapper = world.local("ssh-without-commands");
    let refusal = "echo 'exec request failed on channel 0' >&2; exit 255";
    let script = format!("#!/bin/sh\ncase \"$*\" in *' sftp') exec ssh \"$@\";; esac\n{refusal}\n");
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let mount = ready(world.mount(&["-o", &format!("ssh_command={}", wrapper.display())]));
    let ended = run_in(mount.place(), &["touch", "x"]);
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    assert!(ended.stderr.contains("the server did not run the command"), "{ended:?}");
    mount.unmount();
}

#[test]
fn the_mounts_own_options_connect() {
    let world = World::new();
    // The configuration is only in the command of this mount.
    let place = world.mountpoint();
    let option = format!("ssh_command=ssh -F {}", world.sshd().config_path().display());
    let mut command = program();
    command.args(["-f", &world.source()]).arg(&place).args(["-o", &option]);
    let mount = ready(crate::mount::Mount::start(command, place));
    let ended = run_in(mount.place(), &["echo", "here"]);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("here\n", ""), "{ended:?}");
    mount.unmount();
}

#[test]
fn a_terminal_is_there_on_request() {
    let world = World::new();
    let mount = ready(world.mount(&[]));
    let ended = run_in(mount.place(), &["test", "-t", "1"]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let ended = run_in(mount.place(), &["-tt", "test", "-t", "1"]);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    mount.unmount();
}

/// A signal ends ssh; the mount is asked again nevertheless, and nothing is left.
#[test]
fn a_signal_ends_the_command() {
    let world = World::new();
    let mount = ready(world.mount(&["-o", "acnegative=1000"]));
    assert!(!mount.at("begun").exists());
    let script = "echo begun > begun; echo begun; exec cat";
    let mut command = command_in(mount.place(), &["sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command);
    let mut line = [0; 6];
    process.child().stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    process.signal(Signal::TERM);
    let limit = Duration::from_secs(60);
    let status = process.try_wait(limit).expect("it ends");
    assert!(!status.success(), "{status}");
    assert_eq!(fs::read(mount.at("begun")).unwrap(), b"begun\n");
    mount.unmount();
}

/// As under nohup(1): ssh and the command at the server go on.
#[test]
fn an_ignored_signal_does_not_end_the_command() {
    let world = World::new();
    let mount = ready(world.mount(&[]));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(program_path());
    command.args(["run", "cat"]).current_dir(mount.place());
    command.env_remove("SSH_AUTH_SOCK").env_remove("XDG_RUNTIME_DIR");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::spawn(&mut command);
    let echo = |process: &mut Process, word: &[u8; 6]| {
        process.child().stdin.as_mut().unwrap().write_all(word).unwrap();
        let mut echoed = [0; 6];
        process.child().stdout.as_mut().unwrap().read_exact(&mut echoed).unwrap();
        assert_eq!(echoed, *word);
    };
    echo(&mut process, b"before");
    process.signal(Signal::HUP);
    echo(&mut process, b"after.");
    drop(process.child().stdin.take());
    assert!(process.wait(Duration::from_secs(60)).success());
    mount.unmount();
}

#[test]
fn only_the_owner_of_a_mount_runs_commands_through_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root to be several users");
        return;
    }
    let world = World::new();
    fs::set_permissions(world.local(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(world.served(""), fs::Permissions::from_mode(0o755)).unwrap();
    let mount = ready(world.mount(&["-o", "allow_other"]));
    let program = world.local("sshoal");
    sandbox::copy_program(program_path().as_ref(), &program).unwrap();
    let by_other = |dir: &Path, words: &[&OsStr]| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", "5", "--regid", "60", "--clear-groups", "--"]).arg(&program);
        command.args(words).env_remove("XDG_RUNTIME_DIR").current_dir(dir);
        run(&mut command)
    };
    let words = ["run", "true"].map(OsStr::new);
    let ended = by_other(mount.place(), &words);
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    assert!(ended.stderr.contains("only that user may run commands through it"), "{ended:?}");
    let ended = by_other(Path::new("/"), &["login".as_ref(), mount.place().as_ref()]);
    assert!(ended.stderr.contains("only that user may log in for it"), "{ended:?}");
    mount.unmount();

    // Without allow_other, the kernel lets nobody else in.
    fs::create_dir(world.served("dir")).unwrap();
    let mount = ready(world.mount(&[]));
    let dir = mount.at("dir");
    let words = [OsStr::new("run"), "-C".as_ref(), dir.as_ref(), "true".as_ref()];
    for words in [&words[..], &["where".as_ref(), dir.join("x").as_ref()]] {
        let ended = by_other(Path::new("/"), words);
        let said = format!("'{}': mounted by user 0; only that user", mount.place().display());
        assert!(ended.stderr.contains(&said), "{ended:?}");
    }
    mount.unmount();
}

#[test]
fn a_dead_mount_is_named_with_what_removes_it() {
    let world = World::new();
    fs::create_dir_all(world.served("dir/sub")).unwrap();
    let mut mount = ready(world.mount(&[]).with_errors());
    let dir = mount.at("dir/sub");
    // A shell whose current directory is there.
    let script =
        "kill -KILL \"$1\"; while kill -0 \"$1\"; do sleep 0.1; done; exec \"$0\" run true";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).arg(program_path()).arg(mount.daemon().pid().to_string());
    shell.current_dir(&dir).env_remove("XDG_RUNTIME_DIR").stderr(Stdio::piped());
    let shell = shell.spawn().unwrap();
    assert_eq!(mount.wait_ended(), None);
    let inside = shell.wait_with_output().unwrap();
    let said = format!(
        "'{}': no daemon serves this mount; `sshoal umount` removes it\n",
        mount.place().display()
    );
    let dir = dir.to_str().unwrap();
    let place = mount.place().to_str().unwrap();
    assert_eq!(inside.status.code(), Some(125), "{inside:?}");
    assert!(String::from_utf8_lossy(&inside.stderr).ends_with(&said), "{inside:?}");
    for (words, code) in [
        (&["run", "-C", dir, "true"][..], 125),
        (&["run", "-C", place, "true"], 125),
        (&["where", dir], 1),
        (&["warm", dir], 1),
        (&["status", dir], 1),
        (&["set", dir, "soft=1"], 1),
        (&["umount", dir], 1),
    ] {
        let ended = run(program().args(words));
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        assert!(ended.stderr.ends_with(&said), "{words:?}: {ended:?}");
    }
    assert!(crate::mount::umount(&[], mount.place()).status.success());
}

/// Through links to links, as when it was mounted; and what makes it busy is named.
#[test]
fn a_mount_is_found_by_a_chain_of_links_and_a_mount_inside_by_its_name() {
    let world = World::new();
    fs::create_dir(world.served("dir")).unwrap();
    let mount = ready(world.mount(&[]));
    let (link, second) = (world.local("link"), world.local("second"));
    std::os::unix::fs::symlink(mount.place(), &link).unwrap();
    std::os::unix::fs::symlink("link", &second).unwrap();
    let place = mount.at("dir");
    let mut command = world.command();
    command.arg("-f").arg(world.source()).arg(&place);
    let inner = ready(crate::mount::Mount::start(command, place));
    let ended = run(program().arg("umount").arg(&second));
    let said = format!("'{}' is mounted inside it; -z detaches both\n", inner.place().display());
    assert!(ended.stderr.ends_with(&said), "{ended:?}");
    inner.unmount();
    let ended = run(program().arg("where").arg(second.join("dir")));
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(crate::status::status(&second)["daemon"], "answers");
    mount.unmount();
}

/// A path in the mount is no mount point, and the message names that one.
#[test]
fn a_path_inside_a_mount_is_told_with_its_mount_point() {
    let world = World::new();
    fs::create_dir(world.served("dir")).unwrap();
    let mount = ready(world.mount(&[]));
    let dir = mount.at("dir");
    for command in ["umount", "status", "set"] {
        let ended = run(program().arg(command).arg(&dir));
        let said = format!(
            "'{}': nothing is mounted here\n  it is inside the mount '{}'\n",
            dir.display(),
            mount.place().display()
        );
        assert!(ended.stderr.ends_with(&said), "{ended:?}");
    }
    mount.unmount();
}

#[test]
fn a_hanging_server_is_left_by_a_signal() {
    let world = World::new();
    let mount = ready(world.mount(&[]));
    let mut file = File::create(mount.at("file")).unwrap();
    world.sshd().stop();
    file.write_all(b"not sent").unwrap();
    let mut command = program();
    // Not in the mount, whose directory could not be accessed.
    command.args(["run", "-C"]).arg(mount.place()).arg("true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Process::spawn(&mut command);
    assert_eq!(process.try_wait(Duration::from_secs(2)), None);
    process.signal(Signal::INT);
    assert!(process.try_wait(Duration::from_secs(60)).is_some());
    world.sshd().cont();
    file.sync_all().unwrap();
    drop(file);
    eventually(Duration::from_secs(60), "the data", || {
        fs::read(world.served("file")).unwrap() == b"not sent"
    });
    mount.unmount();
}
