//! What a copy is, and what the next one does.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
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
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        // The summary.
        lines.pop();
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
fn an_excluded_source_is_not_copied_and_a_new_target_has_the_servers_permissions() {
    let world = World::new();
    let (excluded, one) = (world.local("excluded"), world.local("one"));
    fs::create_dir(&excluded).unwrap();
    fs::write(excluded.join("file"), "content").unwrap();
    fs::write(&one, "content").unwrap();
    for engine in ["auto", "sftp"] {
        let target = world.served(engine);
        let sources = [excluded.to_str().unwrap(), one.to_str().unwrap(), &far(&world, &target)];
        let words = ["--engine", engine, "--exclude", "excluded"];
        ends(&world, "push", &[&words[..], &sources[..]].concat(), 0);
        let names = fs::read_dir(&target).unwrap().map(|it| it.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["one"], "{engine}");
        let perm = fs::metadata(&target).unwrap().mode() & 0o7777;
        assert_eq!(perm, 0o755, "{engine}");
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

/// As in `cp` and rsync, what the user names is followed.
#[test]
fn links_that_are_named_are_followed() {
    for engine in ENGINES {
        let world = World::new();
        let at = |path: &str| world.served(path);
        fs::create_dir_all(at("real/sub")).unwrap();
        fs::write(at("real/sub/f"), "content").unwrap();
        symlink("real", at("link")).unwrap();
        // The contents of what a source leads to.
        for (from, to) in [("link/", "new"), ("link/.", "newer")] {
            let from = format!("{}/{from}", at("").display());
            ends(&world, "push", &[&from, &far(&world, &at(to)), "--engine", engine], 0);
            assert_eq!(fs::read(at(to).join("sub/f")).unwrap(), b"content", "{engine} {from}");
        }
        // What a target leads to, also again, and by an absolute link.
        fs::create_dir(at("place")).unwrap();
        for (number, to) in [Path::new("place"), &at("place")].into_iter().enumerate() {
            let name = format!("www{number}");
            symlink(to, at(&name)).unwrap();
            for _ in 0..2 {
                for source in ["real", "real/sub/f"] {
                    let from = at(source).display().to_string();
                    let to = far(&world, &at(&name));
                    // A stream makes names only that are not there.
                    let engine = if engine == "sftp" { "sftp" } else { "auto" };
                    ends(&world, "push", &[&from, &to, "--engine", engine], 0);
                }
                assert_eq!(fs::read_link(at(&name)).unwrap(), to);
                assert_eq!(fs::read(at("place/real/sub/f")).unwrap(), b"content");
                assert_eq!(fs::read(at("place/f")).unwrap(), b"content");
            }
            fs::remove_dir_all(at("place/real")).unwrap();
            fs::remove_file(at("place/f")).unwrap();
        }
        // Also out of the directory that the target is in; the second run compares.
        let gone = tempfile::tempdir().unwrap();
        symlink(gone.path(), at("out")).unwrap();
        let from = at("real/sub/f").display().to_string();
        let tree = at("real").display().to_string();
        for copied in [2, 0] {
            let engine = if engine == "sftp" { "sftp" } else { "auto" };
            let words = [&from, &tree, &far(&world, &at("out")), "--engine", engine, "--json"];
            let told = summary(&ends(&world, "push", &words, 0));
            assert_eq!((&told["files_copied"], &told["entries"]), (&copied.into(), &4.into()));
            assert_eq!(fs::read_link(at("out")).unwrap(), gone.path());
            assert_eq!(fs::read(gone.path().join("f")).unwrap(), b"content");
            assert_eq!(fs::read(gone.path().join("real/sub/f")).unwrap(), b"content");
        }
        // A file takes the place of a link to a file, or to nothing.
        fs::write(gone.path().join("other"), "other").unwrap();
        for name in ["other", "none"] {
            symlink(gone.path().join(name), at(name)).unwrap();
            ends(&world, "push", &[&from, &far(&world, &at(name)), "--engine", engine], 0);
            assert!(fs::symlink_metadata(at(name)).unwrap().is_file(), "{engine} {name}");
        }
        assert_eq!(fs::read(gone.path().join("other")).unwrap(), b"other");
    }
}

/// The patterns match the names of the sources, not those that the copies get.
#[test]
fn a_pattern_that_matches_a_new_name_leaves_nothing_out() {
    let world = World::new();
    fs::write(world.served("notes.txt"), "content").unwrap();
    let from = world.served("notes.txt").display().to_string();
    for engine in ENGINES {
        let to = world.served(format!("{engine}.bak"));
        let words = ["--exclude", "*.bak", "--engine", engine];
        ends(&world, "push", &[&[&*from, &far(&world, &to)], &words[..]].concat(), 0);
        assert_eq!(fs::read(&to).unwrap(), b"content", "push {engine}");
        fs::remove_file(&to).unwrap();
        let (from, here) = (far(&world, Path::new(&from)), to.display().to_string());
        let words = ["--exclude", "*.bak"];
        ends(&world, "pull", &[&[&*from, &here], &words[..]].concat(), 0);
        assert_eq!(fs::read(&to).unwrap(), b"content", "pull {engine}");
    }
}

#[test]
fn an_excluded_directory_stays_where_the_source_has_a_file() {
    let world = World::new();
    for dir in ["from", "to/build"] {
        fs::create_dir_all(world.served(dir)).unwrap();
    }
    fs::write(world.served("from/build"), "a file").unwrap();
    fs::write(world.served("to/build/precious"), "kept").unwrap();
    let from = format!("{}/", world.served("from").display());
    let to = format!("{}/", far(&world, &world.served("to")));
    let ended = ends(&world, "push", &[&from, &to, "--delete", "--exclude", "build/"], 1);
    assert!(ended.stderr.contains("--delete removes it"), "{}", ended.stderr);
    assert_eq!(fs::read(world.served("to/build/precious")).unwrap(), b"kept");
}

/// As rsync: whether or not the source has them.
#[test]
fn excluded_files_are_deleted_at_the_target_if_the_user_asks_for_it() {
    let world = World::new();
    for file in ["from/f", "from/a.o", "to/a.o", "to/dir/b.o", "to/f"] {
        fs::create_dir_all(world.served(file).parent().unwrap()).unwrap();
        fs::write(world.served(file), file).unwrap();
    }
    let from = format!("{}/", world.served("from").display());
    let to = format!("{}/", far(&world, &world.served("to")));
    let words = [&*from, &to, "--exclude", "*.o", "--delete"];
    ends(&world, "push", &words, 0);
    assert!(world.served("to/a.o").exists() && world.served("to/dir/b.o").exists());
    ends(&world, "push", &[&words[..], &["--delete-excluded"]].concat(), 0);
    let names: Vec<_> = kept(&world.served("to")).into_keys().collect();
    assert_eq!(names, [&b""[..], b"f"]);
    ends(&world, "push", &[&from, &to, "--delete-excluded"], 2);
}

/// As rsync: nothing new is made, and what the source does not have goes.
#[test]
fn existing_and_delete_go_together() {
    let world = World::new();
    for file in ["from/both", "from/new/f", "to/both", "to/old/f"] {
        fs::create_dir_all(world.served(file).parent().unwrap()).unwrap();
        fs::write(world.served(file), file).unwrap();
    }
    let from = format!("{}/", world.served("from").display());
    let to = format!("{}/", far(&world, &world.served("to")));
    ends(&world, "push", &[&from, &to, "--delete", "--existing"], 0);
    let names: Vec<_> = kept(&world.served("to")).into_keys().collect();
    assert_eq!(names, [&b""[..], b"both"]);
    assert_eq!(fs::read(world.served("to/both")).unwrap(), b"from/both");
}

/// No server has to report them.
#[test]
fn links_and_devices_of_a_local_source_are_copied() {
    let world = World::new();
    let (source, target) = (world.served("source"), world.local("target"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("one"), "content").unwrap();
    fs::hard_link(source.join("one"), source.join("two")).unwrap();
    succeed(Command::new("mkfifo").arg(source.join("pipe")));
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        succeed(Command::new("mknod").arg(source.join("null")).args(["c", "1", "3"]));
    }
    let near = format!("local:{}/", source.display());
    ends(&world, "pull", &["-H", "--devices", &near, target.to_str().unwrap()], 0);
    let seen = |name| fs::symlink_metadata(target.join(name)).unwrap();
    assert_eq!(seen("one").ino(), seen("two").ino());
    assert_eq!(seen("pipe").mode() & 0o170_000, 0o010_000);
    if is_root {
        assert_eq!((seen("null").mode() & 0o170_000, seen("null").rdev()), (0o020_000, 0x103));
    }
    // And the other way.
    let back = world.local("back");
    let near = format!("local:{}", back.display());
    ends(&world, "push", &["-H", "--devices", target.to_str().unwrap(), &near], 0);
    let ino = |name| fs::symlink_metadata(back.join("target").join(name)).unwrap().ino();
    assert_eq!(ino("one"), ino("two"));
}
