//! The directory on a local disk in which everything of a run is.
//!
//! Subjects are mounted below it. So it is never removed by walking through it: first whatever is
//! still mounted there is detached, and what removes it is a child that stays on its file system.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::executor::Executor;
use crate::failure::Failure;

/// For detaching one mount.
const DETACH_LIMIT: Duration = Duration::from_secs(10);

/// For removing all files.
const REMOVE_LIMIT: Duration = Duration::from_secs(300);

/// A directory, removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new one below `parent`.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn new(parent: &Path) -> io::Result<Scratch> {
        let parent = parent.canonicalize()?;
        let dir = sandbox::private_dir_in("sshoal-bench-", &parent)?;
        Ok(Scratch { path: dir.keep() })
    }

    /// Where it is: absolute, without links, and there.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new directory in it.
    pub(super) fn subdirectory(&self, prefix: &str) -> io::Result<PathBuf> {
        Ok(tempfile::Builder::new().prefix(prefix).tempdir_in(&self.path)?.keep())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If it fails nobody can be told any more; what is left is in a directory for such.
        let _ = remove(&self.path);
    }
}

/// Removes a directory of the run with all in it, mounts detached.
///
/// # Errors
/// When something stays mounted, or files cannot be removed.
pub(super) fn remove(dir: &Path) -> Result<(), Failure> {
    // The run may have been interrupted, and this still has to be done.
    let executor = Executor::new();
    for place in mounts_below(dir)? {
        detach(&place, &executor);
    }
    if let Some(place) = mounts_below(dir)?.first() {
        return Err(Failure::failed(format!("{place:?} is still mounted")));
    }
    let mut command = Command::new("rm");
    command.args(["-rf", "--one-file-system", "--"]).arg(dir);
    executor.succeed(command, REMOVE_LIMIT)?;
    Ok(())
}

/// Root has `umount`, users have `fusermount3`; that the first fails is then no news.
fn detach(place: &Path, executor: &Executor) {
    for words in [&["umount", "-l", "-i"][..], &["fusermount3", "-u", "-z"]] {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(place).stderr(Stdio::null());
        if executor.succeed(command, DETACH_LIMIT).is_ok() {
            return;
        }
    }
}

/// Mount points at or below a directory, the innermost first. Asks no file system anything.
fn mounts_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let mut places: Vec<PathBuf> = table
        .split(|&byte| byte == b'\n')
        .filter_map(|line| line.split(|&byte| byte == b' ').nth(4))
        .map(|place| PathBuf::from(unescape(place)))
        .filter(|place| place.starts_with(dir))
        .collect();
    places.reverse();
    Ok(places)
}

/// The kernel writes blanks and the like as `\040`.
fn unescape(word: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| byte == b'\\');
        let code = octal
            .and_then(|digits| u8::from_str_radix(OsStr::from_bytes(digits).to_str()?, 8).ok());
        match code {
            Some(code) => {
                out.push(code);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_removed_with_all_in_it() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(parent.path()).unwrap();
        let inner = scratch.subdirectory("a b").unwrap();
        std::fs::write(inner.join("file"), b"x").unwrap();
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn names_in_the_mount_table() {
        for (word, expected) in [
            (&b"/mnt/a"[..], "/mnt/a"),
            (b"/mnt/a\\040b\\134", "/mnt/a b\\"),
            (b"/x\\04", "/x\\04"),
            (b"\\777", "\\777"),
        ] {
            assert_eq!(unescape(word), OsString::from(expected));
        }
        assert_eq!(mounts_below(Path::new("/proc")).unwrap().last(), Some(&PathBuf::from("/proc")));
    }
}
