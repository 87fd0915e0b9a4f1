//! What another client of the same server does: changes that no layer above is told of.
//!
//! None of these counts as a call, waits, or can fail on anything but a mistake in the test, so
//! they panic instead of answering with an errno. What they do not offer is one
//! [`MemRemote::edit`] away.

use base::{Attr, AttrChange, Errno, RenameMode, Timestamp};

use super::MemRemote;
use crate::path;
use crate::tree::{Follow, Tree};

/// Unwraps what a test meant to be possible.
#[track_caller]
fn done<T>(what: &str, at: &str, result: base::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(errno) => panic!("behind the mount: {what} {at:?}: {errno:?}"),
    }
}

impl MemRemote {
    /// Runs `change` on the tree, atomically for everybody else.
    pub fn edit<T>(&self, change: impl FnOnce(&mut Tree) -> T) -> T {
        change(&mut self.state().tree)
    }

    /// Makes the file `at` with this content, or gives it this content if it is there; makes
    /// directories above it as needed.
    #[track_caller]
    pub fn put_file(&self, at: &str, content: impl AsRef<[u8]>) {
        self.put_parents(at);
        done(
            "put_file",
            at,
            self.edit(|tree| {
                let found = tree.open_or_create(&path(at), Follow::Yes, Some(0o644), false)?;
                tree.set_size(found.ino, 0)?;
                tree.write(found.ino, 0, content.as_ref())
            }),
        );
    }

    /// Makes the directory `at` if it is absent, and those above it.
    #[track_caller]
    pub fn put_dir(&self, at: &str) {
        self.put_parents(at);
        if !self.exists(at) {
            done("put_dir", at, self.edit(|tree| tree.mkdir(&path(at), 0o755)));
        }
    }

    /// Makes the symbolic link `at`, and directories above it as needed.
    #[track_caller]
    pub fn put_symlink(&self, at: &str, target: impl AsRef<[u8]>) {
        self.put_parents(at);
        done("put_symlink", at, self.edit(|tree| tree.symlink(target.as_ref(), &path(at))));
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
        done("remove", at, self.edit(|tree| tree.remove_all(&path(at))));
    }

    /// Renames, replacing what is there.
    #[track_caller]
    pub fn move_to(&self, from: &str, to: &str) {
        let renamed = self.edit(|tree| tree.rename(&path(from), &path(to), RenameMode::Replace));
        done("move_to", from, renamed);
    }

    /// Sets the permission bits of `at`.
    #[track_caller]
    pub fn set_perm(&self, at: &str, perm: u32) {
        self.change(at, AttrChange { perm: Some(perm), ..AttrChange::default() });
    }

    /// Sets the time of last change of `at`, in seconds since 1970.
    #[track_caller]
    pub fn set_mtime(&self, at: &str, secs: i64) {
        let mtime = Some(Timestamp::from_secs(secs));
        self.change(at, AttrChange { mtime, ..AttrChange::default() });
    }

    /// Makes `at` something that cannot be looked at, such as a mount point of a file system that
    /// has died: `lstat` fails with `errno`, and listings leave it out, as OpenSSH's server does.
    #[track_caller]
    pub fn set_unseen(&self, at: &str, errno: Errno) {
        let ino = done("set_unseen", at, self.edit(|tree| tree.lookup(&path(at), Follow::No)));
        self.state().unseen.insert(ino, errno);
    }

    #[track_caller]
    fn change(&self, at: &str, change: AttrChange) {
        done(
            "change",
            at,
            self.edit(|tree| {
                let ino = tree.lookup(&path(at), Follow::No)?;
                tree.set_attr(ino, &change)
            }),
        );
    }

    /// Whether `at` is there, be it as a link that leads nowhere.
    #[must_use]
    pub fn exists(&self, at: &str) -> bool {
        self.edit(|tree| tree.lookup(&path(at), Follow::No)).is_ok()
    }

    /// The attributes of `at`, of a link itself.
    #[must_use]
    #[track_caller]
    pub fn attr(&self, at: &str) -> Attr {
        done(
            "attr",
            at,
            self.edit(|tree| {
                let ino = tree.lookup(&path(at), Follow::No)?;
                Ok(tree.attr(ino))
            }),
        )
    }

    /// All bytes of the file `at`.
    #[must_use]
    #[track_caller]
    pub fn content(&self, at: &str) -> Vec<u8> {
        done(
            "content",
            at,
            self.edit(|tree| {
                let ino = tree.lookup(&path(at), Follow::Yes)?;
                tree.read(ino, 0, u64::MAX)
            }),
        )
    }

    /// The names in the directory `at`, sorted.
    #[must_use]
    #[track_caller]
    pub fn names(&self, at: &str) -> Vec<String> {
        let entries = done(
            "names",
            at,
            self.edit(|tree| {
                let ino = tree.lookup(&path(at), Follow::Yes)?;
                tree.list(ino)
            }),
        );
        entries.iter().map(|(name, _)| name.to_string()).collect()
    }
}
