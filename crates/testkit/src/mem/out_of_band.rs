//! Out-of-band changes: those of another client of the server, of which the layers above get no
//! notice.
//!
//! They are not counted as calls, do not wait, and fail only by a mistake of the test, so they
//! panic instead of returning an errno. [`MemRemote::edit`] allows any other change.

use base::{Attr, AttrChange, Create, Errno, RenameMode, Result, Timestamp};

use super::MemRemote;
use crate::path;
use crate::tree::{Follow, Tree};

impl MemRemote {
    /// Runs `change` on the tree, atomically.
    pub fn edit<T>(&self, change: impl FnOnce(&mut Tree) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state.tree);
        self.report_changes(&mut state);
        result
    }

    /// Runs `change`, which the test expects to succeed, for the operation `what` on `at`.
    #[track_caller]
    fn done<T>(&self, what: &str, at: &str, change: impl FnOnce(&mut Tree) -> Result<T>) -> T {
        match self.edit(change) {
            Ok(value) => value,
            Err(errno) => panic!("out of band: {what} {at:?}: {errno:?}"),
        }
    }

    /// Creates or replaces the file `at` with this content; creates missing parent directories.
    #[track_caller]
    pub fn put_file(&self, at: &str, content: impl AsRef<[u8]>) {
        self.put_parents(at);
        self.done("put_file", at, |tree| {
            let (ino, _) = tree.open_or_create(&path(at), Follow::Yes, Create::IfAbsent(0o644))?;
            tree.set_size(ino, 0)?;
            tree.write(ino, 0, content.as_ref())
        });
    }

    /// Creates the directory `at` if it is absent, and missing parents.
    #[track_caller]
    pub fn put_dir(&self, at: &str) {
        self.put_parents(at);
        if !self.exists(at) {
            self.done("put_dir", at, |tree| tree.mkdir(&path(at), 0o755));
        }
    }

    /// Creates the symbolic link `at`, and missing parent directories.
    #[track_caller]
    pub fn put_symlink(&self, at: &str, target: impl AsRef<[u8]>) {
        self.put_parents(at);
        self.done("put_symlink", at, |tree| tree.symlink(target.as_ref(), &path(at)));
    }

    #[track_caller]
    fn put_parents(&self, at: &str) {
        if let Some((parent, _)) = at.rsplit_once('/') {
            self.put_dir(parent);
        }
    }

    /// Removes `at` with everything below it.
    #[track_caller]
    pub fn remove(&self, at: &str) {
        self.done("remove", at, |tree| tree.remove_all(&path(at)));
    }

    /// Renames, replacing the target.
    #[track_caller]
    pub fn move_to(&self, from: &str, to: &str) {
        self.done("move_to", from, |tree| tree.rename(&path(from), &path(to), RenameMode::Replace));
    }

    /// Sets the permission bits of `at`.
    #[track_caller]
    pub fn set_perm(&self, at: &str, perm: u32) {
        self.change(at, AttrChange { perm: Some(perm), ..AttrChange::default() });
    }

    /// Sets the mtime of `at`, in seconds since 1970.
    #[track_caller]
    pub fn set_mtime(&self, at: &str, secs: i64) {
        let mtime = Some(Timestamp::from_secs(secs));
        self.change(at, AttrChange { mtime, ..AttrChange::default() });
    }

    /// Sets the ctime of `at`, in seconds since 1970.
    #[track_caller]
    pub fn set_ctime(&self, at: &str, secs: i64) {
        self.done("set_ctime", at, |tree| {
            let ino = tree.lookup(&path(at), Follow::No)?;
            tree.set_ctime(ino, Timestamp::from_secs(secs));
            Ok(())
        });
    }

    /// Makes `at` inaccessible, like a mount point of a dead file system: `lstat` fails with
    /// `errno`. Listings with attributes omit it, as OpenSSH's server does.
    #[track_caller]
    pub fn set_unseen(&self, at: &str, errno: Errno) {
        let ino = self.done("set_unseen", at, |tree| tree.lookup(&path(at), Follow::No));
        self.state.lock().unseen.insert(ino, errno);
    }

    /// Makes the directory `at` one where another file system begins, with this id.
    #[track_caller]
    pub fn set_mount(&self, at: &str, fsid: u64) {
        let ino = self.done("set_mount", at, |tree| tree.lookup(&path(at), Follow::No));
        self.state.lock().mounts.insert(ino, fsid);
    }

    #[track_caller]
    fn change(&self, at: &str, change: AttrChange) {
        self.done("change", at, |tree| {
            let ino = tree.lookup(&path(at), Follow::No)?;
            tree.set_attr(ino, &change)
        });
    }

    /// Whether `at` exists, possibly as a dangling link.
    pub fn exists(&self, at: &str) -> bool {
        self.edit(|tree| tree.lookup(&path(at), Follow::No)).is_ok()
    }

    /// The attributes of `at`; of the link itself if it is one.
    #[track_caller]
    pub fn attr(&self, at: &str) -> Attr {
        self.done("attr", at, |tree| Ok(tree.attr(tree.lookup(&path(at), Follow::No)?)))
    }

    /// All bytes of the file `at`.
    #[track_caller]
    pub fn content(&self, at: &str) -> Vec<u8> {
        self.done("content", at, |tree| {
            let ino = tree.lookup(&path(at), Follow::Yes)?;
            tree.read(ino, 0, u64::MAX)
        })
    }

    /// The names in the directory `at`, sorted.
    #[track_caller]
    pub fn names(&self, at: &str) -> Vec<String> {
        let entries =
            self.done("names", at, |tree| tree.list(tree.lookup(&path(at), Follow::Yes)?));
        entries.iter().map(|(name, _)| name.to_string()).collect()
    }
}
