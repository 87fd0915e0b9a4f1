//! Where a subject's files really are: workloads lay out their data there, and verify writes.
//!
//! All paths are relative to the storage's own directory, made for the run and removed with it.
//! Nothing here goes through a subject, but for a target, of which nothing but its mounted
//! directory is known.

pub(crate) mod script;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::corpus;
use crate::executor::{Executor, Program, Ran, last_words};
use crate::failure::{Failure, Result};
use crate::quoting::shown;

/// Longest time for one errand, a big file through a slow link.
pub const SCRIPT_LIMIT: Duration = Duration::from_secs(1800);

/// Longest time to remove what a run has written.
const REMOVAL_LIMIT: Duration = Duration::from_secs(120);

/// A directory in which a run may write.
pub trait Storage: Send + Sync {
    /// Unique in the run: workloads prepare each storage once.
    fn name(&self) -> &str;

    /// The directory as the machine that has it names it.
    fn root(&self) -> &Path;

    /// The same directory where this machine can reach it without a subject.
    fn local(&self) -> Option<PathBuf>;

    /// Puts a local file or tree there under a new name, parents made.
    fn put(&self, from: &Path, to: &Path) -> Result<()>;

    /// Makes a directory and its parents; it may be there.
    fn make_dir(&self, path: &Path) -> Result<()>;

    /// Removes a file or tree; it may be gone.
    fn remove(&self, path: &Path) -> Result<()>;

    /// SHA-256 in hexadecimal of a file, or of the listing of a tree (see
    /// [`crate::corpus::tree::survey`]).
    fn digest(&self, path: &Path) -> Result<String>;

    /// Reads all of it into the page cache of the machine that has it.
    fn warm(&self, path: &Path) -> Result<()>;

    /// Bytes that may still be written.
    fn free_bytes(&self) -> Result<u64>;
}

/// Writes what is not yet on the disk of the local file system of `path`.
pub(crate) fn sync(path: &Path, executor: &Executor) -> Result<()> {
    let mut sync = Command::new("sync");
    sync.arg("-f").arg(path);
    executor.succeed(sync, SCRIPT_LIMIT).map(drop)
}

/// A directory here, on a mount, or on another machine.
///
/// Every errand is a child process with the deadline [`SCRIPT_LIMIT`]: a line of shell, the same
/// wherever it runs. Only digests are made in this process, where the directory is a local one.
#[derive(Clone, Debug)]
pub struct Directory {
    name: String,
    root: PathBuf,
    reach: Reach,
    executor: Executor,
}

/// How a directory is reached.
#[derive(Clone, Debug)]
enum Reach {
    /// By its path.
    Here,
    /// By its path, which may hang.
    Mounted,
    /// By these words: `ssh`, its options, the host.
    Ssh(Vec<OsString>),
}

impl Directory {
    /// The local directory `root`, which exists.
    pub fn new(name: impl Into<String>, root: impl Into<PathBuf>) -> Directory {
        let (name, root) = (name.into(), root.into());
        Directory { name, root, reach: Reach::Here, executor: Executor::new() }
    }

    /// A new directory below `parent` on the machine that `ssh`, its options and the host lead to.
    pub(crate) fn make_remote(
        name: &str,
        ssh: Vec<OsString>,
        parent: &str,
        executor: &Executor,
    ) -> Result<Directory> {
        let command = script::command(Some(&ssh), script::MAKE_ROOT, &[OsStr::new(parent)]);
        let said = executor.succeed(command, SCRIPT_LIMIT)?.output.stdout;
        // What a login prints comes before it.
        let line = said.trim_ascii_end().rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
        let root = PathBuf::from(OsString::from_vec(line.to_vec()));
        if root.is_absolute() && root.file_name().is_some() {
            let directory = Directory { reach: Reach::Ssh(ssh), ..Directory::new(name, root) };
            return Ok(directory.with_executor(executor));
        }
        let words = last_words(&said);
        Err(Failure::failed(format!(
            "no directory of its own below {parent}; the server said: {words}"
        )))
    }

    /// The same, with errands that end when this executor is interrupted. Without it, nothing
    /// interrupts them.
    pub fn with_executor(self, executor: &Executor) -> Directory {
        Directory { executor: executor.clone(), ..self }
    }

    /// The same, which is a mount that may hang: this process never touches it, and
    /// [`Storage::local`] is `None`.
    pub fn mounted(self) -> Directory {
        Directory { reach: Reach::Mounted, ..self }
    }

    /// Removes the directory itself, also after an interrupt. A failure cannot be reported where
    /// that is done; the directory's name says what made it.
    pub(crate) fn remove_root(&self) {
        let command = script::command(self.ssh(), script::REMOVE, &[self.root.as_os_str()]);
        let _ = self.executor.for_cleanup().run(command, REMOVAL_LIMIT);
    }

    /// Runs a script where the directory is; it gets `path` as `$1`.
    fn run_script(&self, script: &str, path: &Path) -> Result<Ran> {
        let command = script::command(self.ssh(), script, &[path.as_os_str()]);
        self.executor.succeed(command, SCRIPT_LIMIT)
    }

    fn ssh(&self) -> Option<&[OsString]> {
        match &self.reach {
            Reach::Here | Reach::Mounted => None,
            Reach::Ssh(words) => Some(words),
        }
    }

    /// A path below the root; nothing else is touched.
    fn at(&self, path: &Path) -> Result<PathBuf> {
        let below = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if !path.components().all(below) {
            let why = format!("{} is not a path below {}", shown(path), self.name);
            return Err(Failure::failed(why));
        }
        Ok(self.root.join(path))
    }

    /// Unpacks a local tree into `to`. `tar` on both ends keeps modes, times and links, and no
    /// owners, which not every mount can keep.
    fn put_tree(&self, from: &Path, to: &Path) -> Result<()> {
        let (reader, writer) = std::io::pipe()?;
        let mut pack = Command::new("tar");
        pack.arg("-C").arg(from).args(["-cf", "-", "."]);
        let pack = Program::from(pack).stdout(writer);
        let unpack = script::command(self.ssh(), script::UNPACK, &[to.as_os_str()]);
        let unpack = Program::from(unpack).stdin(reader);
        std::thread::scope(|scope| {
            let packing = scope.spawn(|| self.executor.succeed(pack, SCRIPT_LIMIT));
            let unpacked = self.executor.succeed(unpack, SCRIPT_LIMIT);
            let packed = packing.join().unwrap_or_else(|_| Err(Failure::failed("tar is lost")));
            // When the other end fails, this one only reports a broken pipe.
            unpacked.and(packed).map(drop)
        })
    }
}

impl Storage for Directory {
    fn name(&self) -> &str {
        &self.name
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn local(&self) -> Option<PathBuf> {
        matches!(self.reach, Reach::Here).then(|| self.root.clone())
    }

    fn put(&self, from: &Path, to: &Path) -> Result<()> {
        let to = self.at(to)?;
        if fs::metadata(from).map_err(|error| cannot_read(from, &error))?.is_dir() {
            return self.put_tree(from, &to);
        }
        let file = File::open(from).map_err(|error| cannot_read(from, &error))?;
        let changed = file.metadata().and_then(|metadata| metadata.modified());
        let changed = changed.map_err(|error| cannot_read(from, &error))?;
        let changed = jiff::Timestamp::try_from(changed).map_err(|error| {
            Failure::failed(format!("{} is of no time: {error}", from.display()))
        })?;
        let changed = OsString::from(changed.strftime("%Y%m%d%H%M.%S").to_string());
        let parent = to.parent().unwrap_or(&self.root).as_os_str();
        let words = [to.as_os_str(), parent, &changed];
        let command = script::command(self.ssh(), script::RECEIVE, &words);
        self.executor.succeed(Program::from(command).stdin(file), SCRIPT_LIMIT).map(drop)
    }

    fn make_dir(&self, path: &Path) -> Result<()> {
        self.run_script(script::MAKE_DIR, &self.at(path)?).map(drop)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let path = self.at(path)?;
        if path.components().eq(self.root.components()) {
            return Err(Failure::failed(format!("{} itself is not to be removed", self.name)));
        }
        self.run_script(script::REMOVE, &path).map(drop)
    }

    fn digest(&self, path: &Path) -> Result<String> {
        let path = self.at(path)?;
        if matches!(self.reach, Reach::Here) {
            return Ok(corpus::digest(&path)?);
        }
        script::digest(&self.run_script(script::DIGEST, &path)?.output.stdout)
    }

    fn warm(&self, path: &Path) -> Result<()> {
        self.run_script(script::WARM, &self.at(path)?).map(drop)
    }

    fn free_bytes(&self) -> Result<u64> {
        let ran = self.run_script(script::FREE, &self.root)?;
        let text = String::from_utf8_lossy(&ran.output.stdout);
        script::free_bytes(&text).ok_or_else(|| {
            let words = text.escape_debug();
            Failure::failed(format!("df says nothing of {} that is understood: {words}", self.name))
        })
    }
}

fn cannot_read(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot read {}: {error}", shown(path)))
}

#[cfg(test)]
mod tests;
