//! Programs in a mount namespace of their own.

use std::process::Command;

use rustix::process::geteuid;

/// A new namespace begins with a copy of all mounts. Those of FUSE have to go: with the copy the
/// file system of another test would live on after that test has unmounted it, and its daemon
/// would wait for its end. Nothing here looks into them, since they may hang.
const DROP_FUSE_MOUNTS: &str = r#"
while read -r _ place kind _; do
    case $kind in fuse | fuse.*) umount -i -c -l "$place" ;; esac
done </proc/self/mounts 2>/dev/null
exec "$@"
"#;

/// The words before a command with which it gets a mount namespace of its own, without the FUSE
/// mounts of others. An ordinary user gets a user namespace, too, in which it is root; mounts
/// cannot be taken away there.
pub fn of_its_own() -> Vec<&'static str> {
    let user: &[&str] = if geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    let mounts = ["--mount", "--propagation", "private", "--", "sh", "-c", DROP_FUSE_MOUNTS, "sh"];
    [&["unshare"], user, &mounts].concat()
}

/// A command that runs what its arguments say so.
pub fn command() -> Command {
    let words = of_its_own();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}
