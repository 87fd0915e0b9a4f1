//! The directories of a store: created, checked, and opened again after a removal.
//!
//! The layout is described in `docs/cache-format.md`. All files of the store are below a directory
//! named after the format's version, so that versions of the program with different formats do not
//! conflict.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, StatVfs};

use super::StoreError;
use crate::dir_fd::DirFd;

/// The directory of this version's files.
pub(super) const VERSION: &[u8] = b"v1";

/// Makes backup programs skip the directory (bford.info/cachedir).
const TAG_NAME: &[u8] = b"CACHEDIR.TAG";
const TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55\n\
    # The cache of sshoal. It may be removed at any time.\n";

/// The open directories of a store.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) root: DirFd,
    /// Whole contents.
    pub(crate) objects: DirFd,
    /// Partial contents.
    pub(crate) partial: DirFd,
    /// Records of names.
    pub(crate) index: DirFd,
    pub(crate) pins: DirFd,
    /// Files that are being written, before they get their name.
    pub(crate) tmp: DirFd,
    /// The index was missing, though contents exist.
    pub(crate) index_is_new: bool,
}

impl Layout {
    pub(crate) fn open(dir: &Path) -> Result<Layout, StoreError> {
        let top = open_top(dir)?;
        let made = || -> io::Result<Layout> {
            let root = open_private(&top)?;
            write_tag(&root)?;
            let index_is_new = root.stat(b"index").is_err() && root.stat(b"objects").is_ok();
            Ok(Layout {
                objects: root.make_sub(b"objects")?,
                partial: root.make_sub(b"partial")?,
                index: root.make_sub(b"index")?,
                pins: root.make_sub(b"pins")?,
                tmp: root.make_sub(b"tmp")?,
                index_is_new,
                root,
            })
        };
        made().map_err(|error| StoreError::io(dir, "creating its directories", error))
    }

    /// Whether the directory was removed.
    pub(crate) fn is_gone(&self) -> bool {
        [&self.root, &self.objects, &self.index, &self.tmp, &self.partial]
            .iter()
            .any(|dir_fd| dir_fd.own_stat().map_or(true, |stat| stat.st_nlink == 0))
    }

    /// Writes a file, replacing one of that name atomically.
    pub(crate) fn put(&self, dir_fd: &DirFd, name: &[u8], bytes: &[u8]) -> io::Result<()> {
        let (tmp, mut file) = self.tmp_file()?;
        let written = file.write_all(bytes).and_then(|()| self.tmp.rename(&tmp, dir_fd, name));
        if written.is_err() {
            let _ = self.tmp.unlink(&tmp);
        }
        written
    }

    /// A new file that has no name of its own yet.
    pub(crate) fn tmp_file(&self) -> io::Result<(Vec<u8>, File)> {
        let name = unique_name();
        let file = self.tmp.create(&name)?;
        Ok((name, file))
    }

    /// Removes `name` from `dir_fd` atomically, with all below it. The housekeeping deletes it.
    pub(crate) fn move_to_trash(&self, dir_fd: &DirFd, name: &[u8]) -> io::Result<()> {
        match dir_fd.rename(name, &self.trash()?, &unique_name()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed,
        }
    }

    /// The directory of entries to be removed. It is opened for each use: if it had been removed,
    /// nothing could be moved into it, which looks as if there was nothing to move.
    pub(super) fn trash(&self) -> io::Result<DirFd> {
        self.root.make_sub(b"trash")
    }

    pub(crate) fn disk(&self) -> io::Result<StatVfs> {
        Ok(rustix::fs::fstatvfs(self.root.fd())?)
    }
}

/// A name that no other process uses, also one with the same process id.
pub(crate) fn unique_name() -> Vec<u8> {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let process = PROCESS.get_or_init(|| {
        RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()))
    });
    format!("{process:016x}-{}", COUNT.fetch_add(1, Ordering::Relaxed)).into_bytes()
}

/// Creates and checks the directory that the user named.
fn open_top(dir: &Path) -> Result<DirFd, StoreError> {
    let io = |doing| move |error| StoreError::io(dir, doing, error);
    if let Some(parent) = dir.parent() {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(parent).map_err(io("creating it"))?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io("creating it")(error));
        }
        _ => {}
    }
    let ours = rustix::process::geteuid().as_raw();
    let link = std::fs::symlink_metadata(dir).map_err(io("checking it"))?;
    if link.is_symlink() && ![0, ours].contains(&link.uid()) {
        return Err(StoreError::ForeignOwner { dir: escaped(dir), owner: link.uid() });
    }
    let top = DirFd::at(dir).map_err(io("opening it"))?;
    let stat = top.own_stat().map_err(io("checking it"))?;
    if stat.st_uid != ours {
        return Err(StoreError::ForeignOwner { dir: escaped(dir), owner: stat.st_uid });
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(StoreError::OthersMayWrite { dir: escaped(dir) });
    }
    // Its mode is not changed: it may contain other files than the cache. The store's files are in
    // a private directory below.
    Ok(top)
}

/// Whether `dir` has this version's directory, made by [`Layout::open`] and not by another program.
pub(super) fn is_store(dir: &Path) -> io::Result<bool> {
    let read = || {
        let root = DirFd::at(dir)?.sub(VERSION)?;
        root.read_whole(TAG_NAME, TAG.len() as u64)
    };
    match read() {
        Ok(tag) if tag.as_deref() == Some(TAG) => Ok(true),
        Err(error) if !is_missing(&error) => Err(error),
        // The tag may have been replaced by the user's own.
        _ => Ok(super::bounds_in(dir).is_some()),
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The directory of this version's files, private to the user.
fn open_private(top: &DirFd) -> io::Result<DirFd> {
    let root = top.make_sub(VERSION)?;
    let stat = root.own_stat()?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    if stat.st_mode & 0o777 != 0o700 {
        rustix::fs::fchmod(root.fd(), Mode::RWXU)?;
    }
    Ok(root)
}

/// An existing tag is kept: it may be the user's own.
fn write_tag(root: &DirFd) -> io::Result<()> {
    match root.create(TAG_NAME) {
        Ok(file) => file.write_all_at(TAG, 0),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// A path, escaped for a message.
pub(crate) fn escaped(path: &Path) -> String {
    path.as_os_str().as_encoded_bytes().escape_ascii().to_string()
}

/// The default directory for a cache: below `$XDG_CACHE_HOME`, else `~/.cache`. `None` without
/// either.
pub fn default_dir() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")))?;
    Some(caches.join("sshoal"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Store, StoreConfig};

    #[test]
    fn only_what_a_store_has_made_is_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(!is_store(&at("missing")).unwrap());
        std::fs::write(at("file"), "").unwrap();
        assert!(!is_store(&at("file")).unwrap());
        std::fs::create_dir_all(at("project/v1/objects")).unwrap();
        assert!(!is_store(&at("project")).unwrap());
        // Any program may write a tag.
        std::fs::write(at("project/v1/CACHEDIR.TAG"), &TAG[..43]).unwrap();
        assert!(!is_store(&at("project")).unwrap());
        std::fs::write(at("project/v1/bounds"), "up to 5").unwrap();
        assert!(!is_store(&at("project")).unwrap());

        let store = Store::open(StoreConfig::new(at("store"))).unwrap();
        assert!(is_store(&at("store")).unwrap());
        store.remember_bounds();
        for own in ["the user's own", &"longer".repeat(100)] {
            std::fs::write(at("store/v1/CACHEDIR.TAG"), own).unwrap();
            assert!(is_store(&at("store")).unwrap());
        }
        std::fs::remove_file(at("store/v1/CACHEDIR.TAG")).unwrap();
        assert!(is_store(&at("store")).unwrap());
    }
}
