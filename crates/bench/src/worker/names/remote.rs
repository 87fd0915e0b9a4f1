//! Names in a directory over SFTP: the fewest messages for each operation, one after the other.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sftp::codec::{FileAttrs, OpenFlags, RemoteHandle, Request};

use super::{Directory, Found};
use crate::failure::Failure;
use crate::worker::job::Invocation;
use crate::worker::sftp::Sftp;

const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

/// A directory by the server's name of it.
#[derive(Debug)]
pub(super) struct Remote {
    sftp: Sftp,
    path: Vec<u8>,
}

impl Remote {
    pub(super) fn connect(ssh: &Invocation, path: &Path) -> Result<Remote, Failure> {
        Ok(Remote { sftp: Sftp::connect(ssh)?, path: path.as_os_str().as_bytes().to_vec() })
    }

    fn at(&self, name: &str) -> Vec<u8> {
        [&self.path[..], b"/", name.as_bytes()].concat()
    }

    fn all_names(&mut self, handle: &RemoteHandle) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        while let Some(some) = self.sftp.names(handle)? {
            let some = some.into_iter().map(|entry| entry.name.to_vec());
            names.extend(some.filter(|name| name != b"." && name != b".."));
        }
        Ok(names)
    }
}

impl Directory for Remote {
    fn make(&mut self) -> io::Result<()> {
        let attrs = FileAttrs::with_permissions(0o755);
        self.sftp.status(&Request::Mkdir { path: &self.path, attrs })
    }

    fn stat(&mut self, name: &str) -> io::Result<Found> {
        let attrs = self.sftp.attrs(&Request::Lstat { path: &self.at(name) })?;
        Ok(match attrs.permissions.map(|mode| mode & KIND) {
            Some(REGULAR) => Found::File(attrs.size.unwrap_or(0)),
            Some(DIRECTORY) => Found::Directory,
            _ => Found::Other,
        })
    }

    fn open_close(&mut self, name: &str) -> io::Result<()> {
        let handle = self.sftp.open(&self.at(name), OpenFlags::READ)?;
        self.sftp.close(&handle)
    }

    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
        let handle = self.sftp.open(&self.at(name), flags)?;
        if !content.is_empty() {
            let write = Request::Write { handle: handle.as_bytes(), offset: 0, data: content };
            self.sftp.status(&write)?;
        }
        self.sftp.close(&handle)
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.sftp.status(&Request::Remove { path: &self.at(name) })
    }

    fn mkdir(&mut self, name: &str) -> io::Result<()> {
        let attrs = FileAttrs::with_permissions(0o755);
        self.sftp.status(&Request::Mkdir { path: &self.at(name), attrs })
    }

    fn rmdir(&mut self, name: &str) -> io::Result<()> {
        self.sftp.status(&Request::Rmdir { path: &self.at(name) })
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.sftp.status(&Request::PosixRename { from: &self.at(from), to: &self.at(to) })
    }

    fn list(&mut self, name: &str) -> io::Result<Vec<Vec<u8>>> {
        let handle = self.sftp.handle(&Request::Opendir { path: &self.at(name) })?;
        let names = self.all_names(&handle)?;
        self.sftp.close(&handle)?;
        Ok(names)
    }
}
