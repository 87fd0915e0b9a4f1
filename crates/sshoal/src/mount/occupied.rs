//! Checks what is already mounted on a mount point.
//!
//! A second mount over a mount of sshoal would hide the first one, which no command could find any
//! more, so it is refused without `nonempty`. A dead mount, whose daemon has ended, is removed.

use std::path::Path;

use cli::{Problem, printable, word};
use control::probe::{Answer, answer};
use control::record;
use mountinfo::Mount;
use rustix::process::geteuid;

/// Checks that a file system can be mounted on `place`, over a mount of sshoal only if `may_cover`,
/// and removes dead mounts. `what` names the place in messages; `note` is called for each removed
/// mount.
pub fn clear(
    place: &Path,
    may_cover: bool,
    what: &str,
    note: impl Fn(&str),
) -> Result<(), Problem> {
    // Several mounts may be stacked; each iteration removes one.
    while let Some(mount) = mountinfo::find(place).ok().flatten() {
        if !mountinfo::is_fuse(&mount.kind) {
            break;
        }
        let named = format!("{} ({})", printable(&mount.source), printable(&mount.kind));
        let at = word(&mount.mountpoint);
        let answer = answer(&mount.mountpoint)
            .map_err(|error| Problem::new(what, format!("cannot be probed: {error}")))?;
        match answer {
            Answer::Good if record::is_ours(&mount) && !may_cover => {
                let why = format!("{named} is already mounted here");
                let unmount = format!("`sshoal umount {at}` unmounts it");
                // fusermount3 runs as root, which may not enter a user's mount.
                return Err(Problem::new(what, why).hint(match geteuid().is_root() {
                    true => format!("{unmount}; -o nonempty mounts over it"),
                    false => unmount,
                }));
            }
            Answer::Good => break,
            // Without a daemon it has no record: only the type shows that it is ours.
            Answer::Dead
                if mount.kind == "fuse.sshoal"
                    && fuse::unmount(&mount.mountpoint, true).is_ok() =>
            {
                note(&format!("{what}: removed a dead mount of {named}"));
            }
            Answer::Dead => {
                let why = format!("{named} is mounted here, but its daemon has ended");
                return Err(Problem::new(what, why)
                    .hint(format!("`{} {at}` removes it", unmount_command(&mount, false))));
            }
            Answer::Refused => {
                let by = mount.owner.map_or_else(String::new, |uid| format!(" by user {uid}"));
                return Err(Problem::new(what, format!("{named} is mounted here{by}"))
                    .hint("only its owner may access it; choose another directory"));
            }
            Answer::Silence => {
                let why = format!("{named} is mounted here and does not respond");
                return Err(Problem::new(what, why)
                    .hint(format!("`{} {at}` detaches it", unmount_command(&mount, true))));
            }
        }
    }
    Ok(())
}

/// The command that unmounts a mount.
pub fn unmount_command(mount: &Mount, lazy: bool) -> &'static str {
    match (record::is_ours(mount), lazy) {
        (true, false) => "sshoal umount",
        (true, true) => "sshoal umount -z",
        (false, false) => "fusermount3 -u",
        (false, true) => "fusermount3 -u -z",
    }
}
