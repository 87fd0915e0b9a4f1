//! What a copy is, and what the next one does.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use sandbox::sshd::{Options, SftpServer};

use super::{ENGINES, assert_same, ends, far, kept, make_tree, summary, temporaries};
use crate::process::succeed;
use crate::world::World;

fn rsync(from: &Path, to: &Path) {
    let slash = |path: &Path| format!("{}/", path.display());
    succeed(Command::new("rsync").arg("-a").arg(slash(from)).arg(slash(to)));
}

/// The programs that are ssh to that server.
fn sshs(world: &World) -> Vec<String> {
    let config = world.sshd().config_path().display().to_string();
    let of = |process: fs::DirEntry| {
        let words = fs::read(process.path().join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        (words.starts_with("ssh ") && words.contains(&config)).then_some(words)
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect()
}

#[test]
fn a_copy_matches_rsync_and_a_second_copy_transfers_nothing() {
    let world = World::new();
    let (source, reference) = (world.served("source"), world.local("reference"));
    make_tree(&source);
    rsync(&source, &reference);
    for engine in ENGINES {
        let target = world.local(engine);
        let words =
            [&format!("{}/", far(&world, &source)), target.to_str().unwrap(), "--json", "--engine"];
        let words = [words[0], words[1], words[2], words[3], engine];
        let first = summary(&ends(&world, "pull", &words, 0));
        assert_same(&target, &reference);
        let expected = if engine == "sftp" { "sftp" } else { "tar" };
        assert_eq!(first["engines"][0], expected);
        assert_eq!(first["entries"], kept(&source).len());
        assert_eq!(first["files_copied"], 303);
        assert_eq!(sshs(&world), [""; 0]);

        let pushed = world.served(format!("pushed-{engine}"));
        let to = far(&world, &pushed);
        let from = format!("{}/", source.display());
        let words = [from.as_str(), &to, "--json", "--engine", engine];
        let first = summary(&ends(&world, "push", &words, 0));
        assert_same(&pushed, &reference);
        assert_eq!(sshs(&world), [""; 0], "{engine}: it would use time for which nobody waits");
        assert_eq!(first["engines"][0], expected);
        assert_eq!(first["entries"], kept(&source).len());

        // There is something to compare with now, which is nothing for a stream alone.
        let words = [from.as_str(), &to, "--json"];
        let again = summary(&ends(&world, "push", &words, 0));
        assert_eq!((&again["files_copied"], &again["bytes_copied"]), (&0.into(), &0.into()));
        let from = format!("{}/", far(&world, &source));
        let words = [from.as_str(), target.to_str().unwrap(), "--json"];
        let again = summary(&ends(&world, "pull", &words, 0));
        assert_eq!((&again["files_copied"], &again["unchanged"]), (&0.into(), &again["entries"]));
    }
    assert_eq!(temporaries(&world.served("")), [""; 0]);
}

#[test]
fn a_stream_keeps_times_to_the_nanosecond() {
    let world = World::new();
    make_tree(&world.served("source"));
    let target = world.local("target");
    fs::create_dir(&target).unwrap();
    let from = far(&world, &world.served("source"));
    ends(&world, "pull", &[&from, target.to_str().unwrap(), "--engine", "tar"], 0);
    let nanos = |path: &Path| fs::metadata(path).unwrap().mtime_nsec();
    assert_eq!(nanos(&target.join("source/large")), 250_000_000);
    assert_eq!(nanos(&target.join("source/dir3")), 250_000_000);
}

#[test]
fn changed_files_are_copied_and_removed_ones_deleted_with_delete() {
    let world = World::new();
    let (source, target) = (world.served("source"), world.local("target"));
    make_tree(&source);
    let from = format!("{}/", far(&world, &source));
    let to = target.to_str().unwrap();
    ends(&world, "pull", &[&from, to], 0);
    fs::write(source.join("dir3/sub/file3"), "changed").unwrap();
    fs::write(source.join("new"), "new").unwrap();
    fs::remove_file(source.join("dir5/sub/file5")).unwrap();

    // What is told is what is done.
    let told = ends(&world, "pull", &[&from, to, "--delete", "-n"], 0).stdout;
    assert_eq!(fs::read(target.join("dir3/sub/file3")).unwrap(), vec![b'd'; 3 * 3 * 37]);
    assert!(!target.join("new").exists() && target.join("dir5/sub/file5").exists());
    let done = ends(&world, "pull", &[&from, to, "--delete", "-v"], 0).stdout;
    let lines = |text: &str| {
        let mut lines: Vec<String> =
            text.lines().filter(|line| !line.contains(" by sftp")).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&told), lines(&done));
    for line in ["new    new", "update dir3/sub/file3 (size)", "delete dir5/sub/file5"] {
        assert!(done.contains(line), "{line}: {done}");
    }
    assert_same(&target, &source);
}

#[test]
fn excluded_files_are_not_copied() {
    let world = World::new();
    let source = world.local("source");
    make_tree(&source);
    for engine in ["auto", "sftp"] {
        let pushed = world.served(engine);
        let words = ["--exclude", "/source/dir1", "--include", "file7", "--exclude", "file*"];
        let all = [&words[..], &["--engine", engine, source.to_str().unwrap()]].concat();
        fs::create_dir(&pushed).unwrap();
        ends(&world, "push", &[&all[..], &[&far(&world, &pushed)]].concat(), 0);
        let copy = kept(&pushed.join("source"));
        assert!(!copy.keys().any(|name| name.starts_with(b"dir1/")), "{engine}");
        assert!(copy.contains_key(&b"dir2/sub/file7"[..]) && copy.contains_key(&b"large"[..]));
        assert!(!copy.contains_key(&b"dir2/sub/file8"[..]), "{engine}");
    }
}

#[test]
fn several_sources_and_one_file_go_where_rsync_puts_them() {
    let world = World::new();
    fs::create_dir_all(world.served("a/in")).unwrap();
    fs::write(world.served("a/in/x"), "x").unwrap();
    fs::write(world.served("b"), "b").unwrap();
    let (a, b) = (far(&world, &world.served("a")), far(&world, &world.served("b")));
    let target = world.local("target");
    let to = target.to_str().unwrap();
    ends(&world, "pull", &[&a, &b, to], 0);
    assert_eq!(fs::read(target.join("a/in/x")).unwrap(), b"x");
    assert_eq!(fs::read(target.join("b")).unwrap(), b"b");
    ends(&world, "pull", &[&b, world.local("renamed").to_str().unwrap()], 0);
    assert_eq!(fs::read(world.local("renamed")).unwrap(), b"b");
    ends(&world, "push", &[world.local("renamed").to_str().unwrap(), &format!("{b}2")], 0);
    assert_eq!(fs::read(world.served("b2")).unwrap(), b"b");
    ends(
        &world,
        "push",
        &[&format!("{to}/a"), &format!("{to}/b"), &far(&world, &world.served("n"))],
        0,
    );
    assert_eq!(fs::read(world.served("n/a/in/x")).unwrap(), b"x");
    assert_eq!(fs::read(world.served("n/b")).unwrap(), b"b");
}

#[test]
fn a_server_without_commands_is_served_by_sftp() {
    let settings = vec!["ForceCommand internal-sftp".to_owned()];
    let sftp_server = SftpServer::Internal;
    let world = World::with(Options { settings, sftp_server, ..Options::default() });
    make_tree(&world.served("source"));
    let from = format!("{}/", far(&world, &world.served("source")));
    let target = world.local("target");
    let to = target.to_str().unwrap();
    let ended = ends(&world, "pull", &[&from, to, "--stats"], 0);
    assert!(ended.stdout.contains(" by sftp"), "{ended:?}");
    assert!(ended.stdout.contains("the server runs no commands"), "{ended:?}");
    assert_same(&target, &world.served("source"));
    let ended = ends(&world, "pull", &[&from, to, "--engine", "tar"], 3);
    assert!(ended.stderr.contains("--engine tar"), "{ended:?}");
}

/// As with `sudo`: tar would have the rights of the login.
#[test]
fn a_server_program_that_the_user_names_makes_the_whole_copy() {
    let world = World::new();
    let source = world.local("source");
    make_tree(&source);
    let to = world.served("new");
    let option = "sftp_server=setpriv --clear-groups /usr/lib/openssh/sftp-server";
    let (from, to_far) = (format!("{}/", source.display()), far(&world, &to));
    let words = [from.as_str(), &to_far, "-o", option, "--json"];
    let told = summary(&ends(&world, "push", &words, 0));
    assert_eq!(told["engines"], serde_json::json!(["sftp"]));
    assert_same(&to, &source);
    let (from, near) = (format!("{}/", far(&world, &to)), world.local("near"));
    let words = [from.as_str(), near.to_str().unwrap(), "-o", option, "--json"];
    let told = summary(&ends(&world, "pull", &words, 0));
    assert_eq!(told["engines"], serde_json::json!(["sftp"]));
}
