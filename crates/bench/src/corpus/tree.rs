//! A tree of files like the sources of a program, and what a tree is, in one number.
//!
//! The made tree: directories up to seven deep, files whose sizes have a median of 4 KiB, a mean
//! of about 12 KiB and a tail to 300 KiB, text that `gzip` makes four times smaller, scripts that
//! may be executed. The same count and seed give the same tree on every machine. There are no
//! links in it: what is measured is speed, and some subjects cannot do with links what the works
//! ask of a tree (Debian's sshfs refuses to read one with `..` and cannot set its times, `rclone
//! mount` has none, `sftp -r` leaves them out).
//!
//! The digest of a tree is the SHA-256 of its listing: a line for each file, link and directory
//! below it, sorted bytewise by path. Permissions, owners and times are not part of it: not every
//! program that copies keeps them.

mod contents;
mod listing;
mod plan;
mod random;

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

pub use contents::RARE_WORD;
pub use listing::{Kind, Links, Listing, Tally, bytes_below, digest, files, line, survey};

use super::last_changed;
use contents::Prose;
use random::Random;

/// Makes a tree of so many files in `dir`, which is made too.
///
/// # Errors
/// As the file system says; what is there already under a name of the tree is an error.
pub fn make(dir: &Path, files: u32, seed: u64) -> io::Result<()> {
    let plan = plan::plan(files, &mut Random::new(seed));
    fs::create_dir_all(dir)?;
    for directory in &plan.directories {
        fs::create_dir(dir.join(directory))?;
    }
    let mut prose = Prose::new(Random::new(seed ^ 0x7465_7874));
    for (index, file) in plan.files.iter().enumerate() {
        let contents = prose.text(file.bytes, index % RARE_EVERY == 0);
        write_new(&dir.join(&file.path), file.executable, contents.as_bytes())?;
    }
    Ok(())
}

/// One file in so many has [`RARE_WORD`], once.
const RARE_EVERY: usize = 50;

/// The mode is set apart, so that the caller's umask does not matter.
fn write_new(path: &Path, executable: bool, contents: &[u8]) -> io::Result<()> {
    let mode = if executable { 0o755 } else { 0o644 };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(contents)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.set_modified(last_changed())
}

#[cfg(test)]
mod tests;
