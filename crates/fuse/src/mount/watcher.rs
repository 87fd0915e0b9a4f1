//! `auto_unmount`: a small process that outlives this one and unmounts.
//!
//! It waits for the end of a pipe whose other end this process holds. `fusermount3` has such a mode
//! itself, but that of libfuse 3.14 accesses the mount as root before it unmounts, which a mount
//! without `allow_other` denies; so it never unmounts those.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::point::Number;

/// Waits for the end of its input and unmounts, unless it was dismissed, or another file system is
/// mounted at the path by then. The trapped signals are those that whole process groups get.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
while read -r word; do
    test "$word" = done && exit 0
done
while read -r line; do
    case $line in *"$3"*) exec $2 -- "$1" ;; esac
done < /proc/self/mountinfo
"#;

/// Input that makes the watcher end without unmounting.
const DONE: &[u8] = b"done\n";

/// The running watcher of one mount. If it is dropped without [`Watcher::dismiss`], or this process
/// ends, the watcher unmounts.
#[derive(Debug)]
pub(super) struct Watcher(Child);

impl Watcher {
    /// Starts a watcher that will unmount the file system `number` from the absolute path `path`.
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
            // Blocks no other unmount, and gets no signals of the terminal.
            .current_dir("/")
            .process_group(0)
            .spawn()
            .map(Watcher)
    }

    /// Ends the watcher without unmounting, and waits for its end.
    pub(super) fn dismiss(mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            // An error means that it has already ended.
            let _ = stdin.write_all(DONE);
        }
        // If this process has forked since, the watcher is not its child any more, and init reaps
        // it.
        let _ = self.0.wait();
    }
}

/// Part of the mount's line in the mount table: its number if known, the mounted directory, and the
/// mount point.
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
    fn a_mount_is_found_in_the_mount_table() {
        assert_eq!(entry(Path::new("/a b\\"), None), " / /a\\040b\\134 ");
    }
}
