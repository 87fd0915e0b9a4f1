//! Creating and removing names.

use std::collections::BTreeMap;

use base::{Access, Create, Errno, FileKind, Name, OpenFlags, RemotePath, Result};

use super::resolve::{PATH_MAX, Place};
use super::{Body, Content, Directory, Follow, Ino, Tree};

/// A file opened by [`Tree::open`], which holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile {
    pub(crate) ino: Ino,
    pub(crate) access: Access,
    append: bool,
}

impl OpenFile {
    /// The file; `EBADF` unless it was opened for reading.
    pub(crate) fn to_read(self) -> Result<OpenFile> {
        if self.access.reads() { Ok(self) } else { Err(Errno::EBADF) }
    }

    /// The file; `EBADF` unless it was opened for writing.
    pub(crate) fn to_write(self) -> Result<OpenFile> {
        if self.access.writes() { Ok(self) } else { Err(Errno::EBADF) }
    }

    /// The file; `EBADF` unless it was opened for writing at any offset.
    pub(crate) fn to_copy_to(self) -> Result<OpenFile> {
        if self.append { Err(Errno::EBADF) } else { self.to_write() }
    }
}

impl Tree {
    /// Adds a new node at `place`, whose name must not exist.
    fn insert_new(&mut self, place: &Place, perm: u32, body: Body) -> Result<Ino> {
        let (Some(name), None) = (&place.name, place.node) else {
            return Err(Errno::EEXIST);
        };
        if self.nodes.len() as u64 >= self.limits.inodes {
            return Err(Errno::ENOSPC);
        }
        let ino = Ino(self.next);
        self.next += 1;
        let node = self.fresh(body, perm);
        self.nodes.insert(ino, node);
        self.add_name(place.parent, name, ino);
        Ok(ino)
    }

    /// Adds the unused name `name` in the directory `parent` to `ino`.
    pub(super) fn add_name(&mut self, parent: Ino, name: &Name, ino: Ino) {
        self.entries_mut(parent).insert(name.clone(), ino);
        self.touch(parent);
        let node = self.node_mut(ino);
        node.links += 1;
        if let Body::Directory(directory) = &mut node.body {
            directory.parent = parent;
        }
    }

    /// Removes the name `name` in the directory `parent` from its inode.
    pub(super) fn remove_name(&mut self, parent: Ino, name: &Name) {
        if let Some(ino) = self.entries_mut(parent).remove(name) {
            self.touch(parent);
            self.node_mut(ino).links -= 1;
            self.note_change(ino);
            self.forget_if_unused(ino);
        }
    }

    fn entries_mut(&mut self, ino: Ino) -> &mut BTreeMap<Name, Ino> {
        match &mut self.node_mut(ino).body {
            Body::Directory(directory) => &mut directory.entries,
            _ => unreachable!("names are only resolved in directories"),
        }
    }

    pub(super) fn is_dir(&self, ino: Ino) -> bool {
        self.entries(ino).is_some()
    }

    /// The regular file at `path`, and whether it was created.
    ///
    /// `EISDIR` for a directory, and `ELOOP` for a link that `follow` does not follow, unless the
    /// file has to be new.
    pub fn open_or_create(
        &mut self,
        path: &RemotePath,
        follow: Follow,
        create: Create,
    ) -> Result<(Ino, bool)> {
        let is_new = matches!(create, Create::Exclusive(_));
        let place = self.resolve(path, if is_new { Follow::No } else { follow })?;
        match (place.node, create) {
            (Some(_), Create::Exclusive(_)) => Err(Errno::EEXIST),
            (Some(ino), _) => match self.node(ino).body {
                Body::File(_) => Ok((ino, false)),
                Body::Directory(_) => Err(Errno::EISDIR),
                Body::Link(_) => Err(Errno::ELOOP),
                Body::Special(_) => Err(Errno::ENXIO),
            },
            (None, Create::Never) => Err(Errno::ENOENT),
            (None, Create::IfAbsent(perm) | Create::Exclusive(perm)) => {
                Ok((self.insert_new(&place, perm, Body::File(Content::default()))?, true))
            }
        }
    }

    /// Opens a regular file; a new one does not get the permission bits of `umask`.
    pub(crate) fn open(
        &mut self,
        path: &RemotePath,
        follow: Follow,
        flags: OpenFlags,
        umask: u32,
    ) -> Result<OpenFile> {
        let create = match flags.create {
            Create::Never => Create::Never,
            Create::IfAbsent(perm) => Create::IfAbsent(perm & !umask),
            Create::Exclusive(perm) => Create::Exclusive(perm & !umask),
        };
        let (ino, created) = self.open_or_create(path, follow, create)?;
        if flags.truncate && !created {
            self.set_size(ino, 0)?;
        }
        self.hold(ino);
        Ok(OpenFile { ino, access: flags.access, append: flags.append })
    }

    /// The offset at which a write takes effect.
    pub(crate) fn offset_of_write(&self, file: OpenFile, offset: u64) -> u64 {
        let appends = file.append && !self.limits.ignores_append;
        if appends { self.attr(file.ino).size } else { offset }
    }

    /// Creates a directory.
    pub fn mkdir(&mut self, path: &RemotePath, perm: u32) -> Result<Ino> {
        let place = self.resolve(path, Follow::No)?;
        let directory = Directory { entries: BTreeMap::new(), parent: place.parent };
        self.insert_new(&place, perm, Body::Directory(directory))
    }

    /// Creates a symbolic link.
    pub fn symlink(&mut self, target: &[u8], path: &RemotePath) -> Result<Ino> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() > PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if target.contains(&0) {
            return Err(Errno::EINVAL);
        }
        let place = self.resolve(path, Follow::No)?;
        self.insert_new(&place, 0o777, Body::Link(target.to_vec()))
    }

    /// Creates a FIFO, a socket or a device.
    pub fn mknod(&mut self, path: &RemotePath, kind: FileKind, perm: u32) -> Result<Ino> {
        if matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
            return Err(Errno::EINVAL);
        }
        let place = self.resolve(path, Follow::No)?;
        self.insert_new(&place, perm, Body::Special(kind))
    }

    /// Creates the hard link `new` to `existing`; to a link itself if `existing` is one.
    pub fn link(&mut self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        let ino = self.lookup(existing, Follow::No)?;
        let place = self.resolve(new, Follow::No)?;
        let (Some(name), None) = (&place.name, place.node) else {
            return Err(Errno::EEXIST);
        };
        if self.is_dir(ino) {
            return Err(Errno::EPERM);
        }
        self.add_name(place.parent, name, ino);
        Ok(())
    }

    /// Removes a name, except that of a directory.
    pub fn unlink(&mut self, path: &RemotePath) -> Result<()> {
        let place = self.resolve(path, Follow::No)?;
        let ino = place.node.ok_or(Errno::ENOENT)?;
        match &place.name {
            Some(name) if !self.is_dir(ino) => {
                self.remove_name(place.parent, name);
                Ok(())
            }
            _ => Err(Errno::EISDIR),
        }
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, path: &RemotePath) -> Result<()> {
        let place = self.resolve(path, Follow::No)?;
        let ino = place.node.ok_or(Errno::ENOENT)?;
        let name = place.name.as_ref().ok_or(Errno::EBUSY)?;
        let entries = self.entries(ino).ok_or(Errno::ENOTDIR)?;
        if !entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.remove_name(place.parent, name);
        Ok(())
    }

    /// Removes `path` and everything below it.
    pub fn remove_all(&mut self, path: &RemotePath) -> Result<()> {
        let ino = self.lookup(path, Follow::No)?;
        for (name, _) in self.list(ino).unwrap_or_default() {
            self.remove_all(&path.join(&name))?;
        }
        if path.is_root() {
            Ok(())
        } else if self.is_dir(ino) {
            self.rmdir(path)
        } else {
            self.unlink(path)
        }
    }
}
