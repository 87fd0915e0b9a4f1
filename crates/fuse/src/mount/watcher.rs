//! `auto_unmount`: a small process that outlives this one, however this one ends, and unmounts.
//!
//! It waits for the end of a pipe of which this process holds the other end. `fusermount3` has
//! such a mode itself, but that of libfuse 3.14 looks at the mount before it unmounts, as root,
//! whom a mount without `allow_other` does not let in; so it never unmounts those.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::point::Number;

/// Waits for the end of its input, and unmounts, unless told that there is nothing to do, or
/// another file system has the place by then. The signals are those that whole process groups get.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
while read -r word; do
    test "$word" = done && exit 0
done
while read -r line; do
    case $line in *"$3"*) exec $2 -- "$1" ;; esac
done < /proc/self/mountinfo
"#;

/// The word that lets it end without unmounting.
const DONE: &[u8] = b"done\n";

/// A running watcher of one mount. Dropped without [`Watcher::dismiss`], or gone with its process,
/// it lets the watcher unmount.
#[derive(Debug)]
pub(super) struct Watcher(Child);

impl Watcher {
    /// Starts one that will unmount the file system `number` from `path`, which is absolute.
    pub(super) fn start(path: &Path, number: Option<Number>) -> io::Result<Watcher> {
        let unmount =
            if rustix::process::geteuid().is_root() { "umount -l" } else { "fusermount3 -u -q -z" };
        Command::new("/bin/sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(path)
            .arg(unmount)
            .arg(entry(path, number))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Neither in the way of another unmount, nor of the terminal's signals.
            .current_dir("/")
            .process_group(0)
            .spawn()
            .map(Watcher)
    }

    /// Lets it end without unmounting, and waits for that.
    pub(super) fn dismiss(mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            // An error says that it has ended already.
            let _ = stdin.write_all(DONE);
        }
        // Not this process's child any more, if that has forked since. Then init waits for it.
        let _ = self.0.wait();
    }
}

/// What the table of mounts has of a mount, in part: its number if it is known, the directory of it
/// that is mounted, and the place.
fn entry(path: &Path, number: Option<Number>) -> OsString {
    let number = number.map_or_else(String::new, |number| number.to_string());
    let mut entry = format!("{number} / ").into_bytes();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => entry.extend(format!("\\{byte:03o}").into_bytes()),
            _ => entry.push(byte),
        }
    }
    entry.push(b' ');
    OsString::from_vec(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_as_the_table_has_it() {
        assert_eq!(entry(Path::new("/a b\\"), None), " / /a\\040b\\134 ");
    }
}
