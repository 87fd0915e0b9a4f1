//! The directory on a local disk in which everything of a run is.
//!
//! Subjects are mounted below it. So it is never removed by walking through it: mounts in it are
//! detached first, and it is removed by a child that stays on its file system.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::mount_table;

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
        // A failure cannot be reported here.
        let _ = remove(&self.path);
    }
}

/// Removes a directory of the run with all in it, mounts detached.
///
/// # Errors
/// When something stays mounted, or files cannot be removed.
pub(super) fn remove(dir: &Path) -> Result<()> {
    // The run may have been interrupted, and this still has to be done.
    let executor = Executor::new();
    for point in mount_table::below(dir)? {
        detach(&point, &executor);
    }
    if let Some(point) = mount_table::below(dir)?.first() {
        return Err(Failure::failed(format!("{point:?} is still mounted")));
    }
    let mut command = Command::new("rm");
    command.args(["-rf", "--one-file-system", "--"]).arg(dir);
    executor.succeed(command, REMOVE_LIMIT)?;
    Ok(())
}

/// Root has `umount`, users have `fusermount3`; that the first fails is then no news.
fn detach(point: &Path, executor: &Executor) {
    for words in [&["umount", "-l", "-i"][..], &["fusermount3", "-u", "-z"]] {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(point);
        if executor.succeed(command, DETACH_LIMIT).is_ok() {
            return;
        }
    }
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
}
