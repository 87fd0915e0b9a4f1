//! Extended attributes. As on Linux, only files and directories have those of users.

use std::collections::btree_map::Entry;

use base::{Errno, Result, SetXattr};
use bytes::Bytes;

use super::{Body, Ino, Tree};

impl Tree {
    fn may_have(&self, ino: Ino, name: &[u8]) -> bool {
        let is_of_user = name.starts_with(b"user.");
        !is_of_user || matches!(self.node(ino).body, Body::File(_) | Body::Directory(_))
    }

    /// The value of an attribute.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes> {
        self.node(ino).xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    /// The names of all attributes.
    pub fn xattrs(&self, ino: Ino) -> Vec<Bytes> {
        self.node(ino).xattrs.keys().map(|name| Bytes::copy_from_slice(name)).collect()
    }

    /// Sets an attribute.
    pub fn set_xattr(&mut self, ino: Ino, name: &[u8], value: Bytes, mode: SetXattr) -> Result<()> {
        if !self.may_have(ino, name) {
            return Err(Errno::EPERM);
        }
        match (self.node_mut(ino).xattrs.entry(name.to_vec()), mode) {
            (Entry::Occupied(_), SetXattr::Create) => return Err(Errno::EEXIST),
            (Entry::Vacant(_), SetXattr::Replace) => return Err(Errno::ENODATA),
            (Entry::Occupied(mut entry), _) => drop(entry.insert(value)),
            (Entry::Vacant(entry), _) => drop(entry.insert(value)),
        }
        self.note_change(ino);
        Ok(())
    }

    /// Removes an attribute.
    pub fn remove_xattr(&mut self, ino: Ino, name: &[u8]) -> Result<()> {
        if !self.may_have(ino, name) {
            return Err(Errno::EPERM);
        }
        self.node_mut(ino).xattrs.remove(name).ok_or(Errno::ENODATA)?;
        self.note_change(ino);
        Ok(())
    }
}
