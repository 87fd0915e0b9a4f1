//! What the server cannot look at: the mount point of a file system that has died, in the source.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{ENGINES, ends, far};
use crate::process::run;
use crate::world::World;

/// Mounts `$2` at `$3` by an sshfs whose ssh is `$1`, and kills that.
const DIE: &str = r#"
    sshfs -f -o ssh_command="$1" "here:$2" "$3" >/dev/null 2>&1 </dev/null & server=$!
    until grep -q " $3 fuse.sshfs " /proc/mounts; do kill -0 $server || exit 1; done
    kill -9 $server; wait $server
    while stat "$3" >/dev/null 2>&1; do :; done
    true"#;

/// Makes `at` the mount point of a file system that has died. It is one in the server's own mount
/// namespace, and ends with that.
fn mount_dead(world: &World, at: &Path) {
    fs::create_dir_all(at).unwrap();
    let (served, ssh) = (world.served("dies"), world.served("no-ssh"));
    fs::create_dir(&served).unwrap();
    sandbox::write_program(&ssh, "#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n").unwrap();
    let script = served.with_file_name("die.sh");
    fs::write(&script, DIE).unwrap();
    let words = [&script, &ssh, &served, at].map(|path| path.display().to_string());
    let mut command = Command::new("ssh");
    command.arg("-F").arg(world.sshd().config_path()).arg(world.sshd().alias());
    let ended = run(command.arg(format!("sh {}", words.join(" "))));
    assert!(ended.status.success(), "{ended:?}");
}

#[test]
fn a_dead_mount_in_the_source_is_reported_and_nothing_is_deleted() {
    let world = World::new();
    let source = world.served("source");
    fs::create_dir_all(source.join("d")).unwrap();
    fs::write(source.join("f"), "content").unwrap();
    fs::write(source.join("d/g"), "content").unwrap();
    mount_dead(&world, &source.join("d/mnt"));
    let words = format!("{}/", far(&world, &source));
    for engine in ENGINES {
        // A new place, one that is there, and one with more in it.
        for (name, options) in [("new", &[][..]), ("new", &[]), ("mirror", &["--delete"])] {
            let target = world.local(format!("{name}-{engine}"));
            if name == "mirror" {
                fs::create_dir_all(target.join("d/mnt")).unwrap();
                fs::write(target.join("d/mnt/precious"), "precious").unwrap();
                fs::write(target.join("old"), "old").unwrap();
            }
            let to = target.display().to_string();
            let all = [&[&words[..], &to, "--engine", engine], options].concat();
            // Over SFTP alone nothing tells of it.
            let is_told = engine != "sftp" || name == "mirror";
            let ended = ends(&world, "pull", &all, i32::from(is_told));
            assert_eq!(ended.stderr.contains("d/mnt: "), is_told, "{all:?}: {ended:?}");
            assert_eq!(fs::read(target.join("d/g")).unwrap(), b"content");
            if name == "mirror" {
                assert_eq!(fs::read(target.join("d/mnt/precious")).unwrap(), b"precious");
                assert!(target.join("old").exists());
            }
        }
    }
    // Excluded, it is nobody's business.
    let target = world.local("without").display().to_string();
    ends(&world, "pull", &[&words, &target, "--exclude", "/d/mnt"], 0);
}
