//! Resolves a path to an inode, as in `path_resolution(7)`.

use std::collections::VecDeque;

use base::{Errno, Name, RemotePath, Result};

use super::{Body, Ino, Tree};

/// Longest name of an entry in bytes, as in Linux's file systems.
pub(crate) const NAME_MAX: usize = 255;

/// Longest path and longest link target in bytes (`PATH_MAX` without its NUL).
pub(crate) const PATH_MAX: usize = 4095;

/// Maximum number of links followed in one path before `ELOOP`; Linux's limit.
const MAX_LINKS: usize = 40;

/// Whether a link in the last component is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The path names the target of the link.
    Yes,
    /// The path names the link itself.
    No,
}

/// The end of a path.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The directory that has or would have the entry.
    pub(super) parent: Ino,
    /// The entry's name in it; `None` when the path ends at the root or in `.` or `..`.
    pub(super) name: Option<Name>,
    /// The existing inode.
    pub(super) node: Option<Ino>,
}

impl Tree {
    /// Finds where `path` leads. The last component may be absent.
    pub(super) fn resolve(&self, path: &RemotePath, follow: Follow) -> Result<Place> {
        if path.as_bytes().len() > PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut todo: VecDeque<Vec<u8>> = path.names().map(<[u8]>::to_vec).collect();
        let mut current = Ino::ROOT;
        let mut links = 0;
        while let Some(component) = todo.pop_front() {
            let entries = self.entries(current).ok_or(Errno::ENOTDIR)?;
            match component.as_slice() {
                b"." => continue,
                b".." => {
                    current = self.parent(current);
                    continue;
                }
                name if name.len() > NAME_MAX => return Err(Errno::ENAMETOOLONG),
                _ => {}
            }
            let last = todo.is_empty();
            // A component comes from a path or a target split at `/`, so only NUL can be invalid.
            let name = Name::new(&component).map_err(|_| Errno::EINVAL)?;
            let folded = || {
                let key = self.limits.folds?;
                let folded = key(&component);
                entries.iter().find(|(other, _)| key(other.as_bytes()) == folded)
            };
            let there = entries.get_key_value(&name).or_else(folded);
            let Some((name, found)) = there.map(|(name, ino)| (name.clone(), *ino)) else {
                let absent = Place { parent: current, name: Some(name), node: None };
                return if last { Ok(absent) } else { Err(Errno::ENOENT) };
            };
            match &self.node(found).body {
                Body::Link(target) if !last || follow == Follow::Yes => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::ELOOP);
                    }
                    if target.starts_with(b"/") {
                        current = Ino::ROOT;
                    }
                    // A target `a/` means the directory `a`, as `a/.` does.
                    let directory = target.ends_with(b"/").then(|| b".".to_vec());
                    let parts = target.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
                    for part in directory.into_iter().chain(parts.rev().map(<[u8]>::to_vec)) {
                        todo.push_front(part);
                    }
                }
                _ if last => {
                    return Ok(Place { parent: current, name: Some(name), node: Some(found) });
                }
                Body::Directory(_) => current = found,
                _ => return Err(Errno::ENOTDIR),
            }
        }
        Ok(Place { parent: self.parent(current), name: None, node: Some(current) })
    }

    /// The inode that `path` names.
    pub fn lookup(&self, path: &RemotePath, follow: Follow) -> Result<Ino> {
        self.resolve(path, follow)?.node.ok_or(Errno::ENOENT)
    }
}
