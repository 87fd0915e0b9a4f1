//! Many programs at once, and programs that work in ways of their own: editors, scripts, a database
//! whose processes share memory through the mount.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::behaviours::pattern;
use crate::mount::Mount;
use crate::process::{run, run_within, shell, succeed};
use crate::world::World;

/// A tree of files of many sizes, with links, modes and times of its own.
fn make_tree(root: &Path, dirs: usize, files: usize) {
    for dir in 0..dirs {
        let place = root.join(format!("dir{}/sub {dir}", dir % 7));
        fs::create_dir_all(&place).unwrap();
        for file in 0..files {
            let len = [0, 1, 77, 4_096, 10_000, 131_073][(dir + file) % 6] + file;
            let path = place.join(format!("file {file}.txt"));
            fs::write(&path, pattern(len)).unwrap();
            let mode = [0o644, 0o600, 0o755, 0o444][file % 4];
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let time = Duration::from_secs(1_000_000_000 + (dir * 1_000 + file) as u64);
            let file = fs::File::open(&path).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + time).unwrap();
        }
        symlink("file 0.txt", place.join("link")).unwrap();
        symlink("../nowhere", place.join("broken")).unwrap();
    }
}

fn sqlite(database: &Path, script: &str) -> String {
    succeed(Command::new("sqlite3").arg("-batch").arg(database).arg(script))
}

/// The kernel never needs the memory here, so it forgets only what it is asked to.
#[test]
fn a_walk_over_a_large_tree_takes_no_more_memory_than_is_allowed() {
    const FILES: usize = 40_000;
    let world = World::new();
    for dir in 0..FILES / 200 {
        let place = world.served(format!("dir{dir}"));
        fs::create_dir(&place).unwrap();
        for file in 0..200 {
            fs::write(place.join(format!("file{file}")), "").unwrap();
        }
    }
    let walk = |options: &[&str]| {
        let mount = world.mount(options);
        let before = mount.peak_memory_kib();
        // What is open stays.
        let open = fs::File::open(mount.at("dir7/file7")).unwrap();
        let listed = succeed(Command::new("ls").arg("-lR").arg(mount.place()));
        assert_eq!(listed.lines().filter(|line| line.contains(" file")).count(), FILES);
        let number = fs::metadata(mount.at("dir9/file9")).unwrap().ino();
        assert_eq!(open.metadata().unwrap().len(), 0);
        drop(open);
        let after = mount.peak_memory_kib();
        mount.unmount();
        (after - before, number)
    };
    let (all_kib, number) = walk(&[]);
    let (few_kib, same) = walk(&["-o", "metadata_bytes=4194304"]);
    assert_eq!(number, same, "what was forgotten is found again as what it was");
    // All of them take some 10 MiB.
    assert!(few_kib + 6_144 < all_kib, "{few_kib} KiB with 4 MiB, {all_kib} KiB with 44");
}

/// With a write-ahead log the processes share an index of it through a mapping.
#[test]
fn a_database_with_a_write_ahead_log() {
    let world = World::new();
    let mount = world.mount(&[]);
    let database = mount.at("wal.db");
    assert_eq!(sqlite(&database, "PRAGMA journal_mode=WAL; CREATE TABLE t(w, n);"), "wal\n");
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let insert = |n| format!("INSERT INTO t VALUES({writer}, {n});\n");
            let inserts: String = (0..100).map(insert).collect();
            let script = world.local(format!("script{writer}"));
            fs::write(&script, format!(".timeout 60000\n{inserts}")).unwrap();
            let database = &database;
            scope.spawn(move || shell("sqlite3 -batch \"$1\" < \"$2\"", &[database, &script]));
        }
    });
    let checks = "PRAGMA integrity_check; SELECT w, count(*) FROM t GROUP BY w;";
    assert_eq!(sqlite(&database, checks), "ok\n0|100\n1|100\n2|100\n");
    mount.unmount();
    assert_eq!(sqlite(&world.served("wal.db"), checks), "ok\n0|100\n1|100\n2|100\n");
}

/// Many programs at once, in one tree, over several connections.
#[test]
fn programs_do_not_disturb_each_other() {
    let world = World::new();
    let source = world.local("source");
    make_tree(&source, 10, 8);
    let mount = world.mount(&["-o", "max_conns=4"]);
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let (source, mount) = (&source, &mount);
            scope.spawn(move || {
                for round in 0..3 {
                    let place = mount.at(format!("worker{worker}-{round}"));
                    shell("cp -r \"$1\" \"$2\"", &[source, &place]);
                    shell("diff -r --no-dereference \"$1\" \"$2\"", &[source, &place]);
                    let renamed = mount.at(format!("renamed{worker}-{round}"));
                    fs::rename(&place, &renamed).unwrap();
                    shell("find \"$1\" -type f -exec cat {} + > /dev/null", &[&renamed]);
                    shell("rm -r \"$1\"", &[&renamed]);
                }
            });
        }
    });
    assert_eq!(fs::read_dir(mount.place()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(world.served("")).unwrap().count(), 0);
}

/// An editor's way to save, and what is executed from the mount.
#[test]
fn scripts_and_editors_find_what_they_expect() {
    let world = World::new();
    let mount = world.mount(&[]);
    fs::write(mount.at("script"), "#!/bin/sh\necho \"$0 says $*\"\n").unwrap();
    let refused = run_within(
        Duration::from_secs(10),
        Command::new("sh").args(["-c", "exec \"$0\""]).arg(mount.at("script")),
    );
    assert_eq!(refused.status.code(), Some(126), "{refused:?}");
    fs::set_permissions(mount.at("script"), fs::Permissions::from_mode(0o755)).unwrap();
    let said = succeed(Command::new(mount.at("script")).arg("hello"));
    assert_eq!(said, format!("{} says hello\n", mount.at("script").display()));
    // In place, with a backup, as sed and perl do.
    let before = fs::metadata(mount.at("script")).unwrap();
    shell("sed -i.bak s/says/said/ \"$1\"", &[&mount.at("script")]);
    shell("perl -pi -e 's/said/told/' \"$1\"", &[&mount.at("script")]);
    let after = fs::metadata(mount.at("script")).unwrap();
    assert_eq!((before.mode(), before.uid()), (after.mode(), after.uid()));
    assert_ne!(before.ino(), after.ino(), "another file has the name");
    assert!(fs::read_to_string(world.served("script")).unwrap().contains("told"));
    assert!(fs::read_to_string(mount.at("script.bak")).unwrap().contains("says"));
    let ended = run(Command::new("mktemp").arg(mount.at("XXXXXX")));
    assert!(ended.status.success(), "{ended:?}");
}

/// As `ln -s "$PWD/file"` makes them, also where the home directory is behind a link.
#[test]
fn absolute_links_that_were_made_in_the_mount_lead_back_to_it() {
    let world = World::new();
    let place = world.mountpoint();
    let home = world.local("home");
    symlink(place.parent().unwrap(), &home).unwrap();
    let typed = home.join(place.file_name().unwrap());
    let mut command = world.command();
    command.arg("-f").arg(world.source()).arg(place.file_name().unwrap());
    command.current_dir(&home).env("PWD", &home);
    let mount = Mount::start(command, place);
    fs::create_dir_all(mount.at("dir/below")).unwrap();
    fs::write(mount.at("dir/file"), "content").unwrap();
    symlink(mount.at("dir/file"), mount.at("dir/below/link")).unwrap();
    assert_eq!(fs::read(mount.at("dir/below/link")).unwrap(), b"content");
    let stored = fs::read_link(world.served("dir/below/link")).unwrap();
    assert_eq!(stored, mount.at("dir/file"), "the server gets the target as it was given");
    symlink(typed.join("dir/file"), mount.at("dir/typed")).unwrap();
    assert_eq!(fs::read(mount.at("dir/typed")).unwrap(), b"content");
    mount.unmount();
}

/// As a shell in a directory that was removed.
#[test]
fn a_directory_that_was_removed_is_empty_for_a_process_that_has_it_open() {
    let world = World::new();
    let mount = world.mount(&[]);
    for replaced in [false, true] {
        fs::create_dir(mount.at("dir")).unwrap();
        let open = fs::File::open(mount.at("dir")).unwrap();
        if replaced {
            fs::create_dir(mount.at("other")).unwrap();
            fs::rename(mount.at("other"), mount.at("dir")).unwrap();
        } else {
            fs::remove_dir(mount.at("dir")).unwrap();
        }
        // Longer than the kernel and the mount may cache attributes.
        std::thread::sleep(Duration::from_millis(1_500));
        assert_eq!(open.metadata().unwrap().nlink(), 0);
        let again = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        assert_eq!(fs::read_dir(again).unwrap().flatten().count(), 0);
    }
    mount.unmount();
}

/// A server clears these bits itself, unless the login is root.
#[test]
fn a_write_of_another_user_clears_set_id_bits() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let world = World::new();
    let mount = world.mount(&["-o", "allow_other"]);
    for flags in ["", "oflag=direct"] {
        fs::write(mount.at("program"), pattern(8_192)).unwrap();
        let mode = fs::Permissions::from_mode(0o6777);
        fs::set_permissions(mount.at("program"), mode).unwrap();
        let mut write = Command::new("setpriv");
        write.args(["--reuid=65534", "--regid=65534", "--clear-groups", "dd", "if=/dev/zero"]);
        write.args(["bs=4096", "count=1", "conv=notrunc"]).args(flags.split_whitespace());
        succeed(write.arg(format!("of={}", mount.at("program").display())));
        for path in [mount.at("program"), world.served("program")] {
            // The mode alone: the kernel may have it.
            let mode = succeed(Command::new("stat").args(["-c", "%a"]).arg(&path));
            assert_eq!(mode.trim(), "777", "{flags} {path:?}");
        }
    }
    mount.unmount();
}
