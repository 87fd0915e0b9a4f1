//! Logins that fail: how often they are tried, and what is told.

use std::fs;

use super::{command, far, make_tree};
use crate::process::run;
use crate::world::World;

/// What an ssh says that lets nobody in, and what is told then.
const REFUSALS: [(&str, &str); 3] = [
    ("user@host: Permission denied (publickey,password).", "check that plain ssh can log in"),
    ("ssh: connect to host host port 22: Connection timed out", "check that the host is up"),
    ("Host key verification failed.", "accept the server's key"),
];

#[test]
fn a_failing_login_is_tried_once_and_reported_once() {
    let world = World::new();
    make_tree(&world.served("source"));
    fs::create_dir(world.local("here")).unwrap();
    fs::write(world.local("here/file"), "content").unwrap();
    let (ssh, log) = (world.local("ssh"), world.local("log"));
    let option = format!("ssh_command={}", ssh.display());
    let (tree, file) = (far(&world, &world.served("source")), world.local("file"));
    let [new, here] = ["new", "here"].map(|name| world.local(name).display().to_string());
    for (words, hint) in REFUSALS {
        // Asked for its configuration, it is the real one.
        let script = format!(
            "#!/bin/sh\nfor word; do [ \"$word\" != -G ] || exec ssh \"$@\"; done\n\
             echo >>'{}'\necho \"{words}\" >&2\nexit 255\n",
            log.display()
        );
        sandbox::write_program(&ssh, script).unwrap();
        for (way, operands) in [
            ("pull", [&tree[..], &new]),
            ("pull", [&format!("{tree}/"), &here]),
            ("pull", [&format!("{tree}/large"), file.to_str().unwrap()]),
            ("push", [&here, &tree]),
            ("push", [&format!("{here}/"), &format!("{tree}/new")]),
            ("push", [&format!("{here}/file"), &format!("{tree}/new")]),
        ] {
            let _ = fs::remove_file(&log);
            let ended = run(command(&world, way, &operands).args(["-o", &option]));
            assert_eq!(ended.status.code(), Some(3), "{way} {operands:?}: {ended:?}");
            let logins = fs::read_to_string(&log).unwrap().lines().count();
            assert_eq!(logins, 1, "{way} {operands:?}: {ended:?}");
            let told = ended.stderr.lines().filter(|line| line.starts_with("sshoal: "));
            let told: Vec<&str> = told.collect();
            assert!(matches!(told[..], [one] if one.contains(words)), "{ended:?}");
            assert!(ended.stderr.contains(hint), "{ended:?}");
        }
    }
}
