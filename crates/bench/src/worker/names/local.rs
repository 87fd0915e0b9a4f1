//! Names in a directory of a mounted or local file system.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::{Directory, Found};

/// A directory by its path.
#[derive(Debug)]
pub(super) struct Local<'a> {
    path: &'a Path,
}

impl Local<'_> {
    pub(super) fn new(path: &Path) -> Local<'_> {
        Local { path }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Directory for Local<'_> {
    fn make(&mut self) -> io::Result<()> {
        fs::create_dir(self.path)
    }

    fn stat(&mut self, name: &str) -> io::Result<Found> {
        let found = fs::symlink_metadata(self.at(name))?;
        Ok(match found.file_type() {
            kind if kind.is_file() => Found::File(found.len()),
            kind if kind.is_dir() => Found::Directory,
            _ => Found::Other,
        })
    }

    fn open_close(&mut self, name: &str) -> io::Result<()> {
        File::open(self.at(name)).map(drop)
    }

    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut file = File::create_new(self.at(name))?;
        // An empty one needs no call.
        if content.is_empty() { Ok(()) } else { file.write_all(content) }
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        fs::remove_file(self.at(name))
    }

    fn mkdir(&mut self, name: &str) -> io::Result<()> {
        fs::create_dir(self.at(name))
    }

    fn rmdir(&mut self, name: &str) -> io::Result<()> {
        fs::remove_dir(self.at(name))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn list(&mut self, name: &str) -> io::Result<Vec<Vec<u8>>> {
        fs::read_dir(self.at(name))?.map(|entry| Ok(entry?.file_name().into_vec())).collect()
    }
}
