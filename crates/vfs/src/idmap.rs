//! Owners and permissions between the remote and this machine.

use std::collections::HashMap;

use base::{Attr, Errno, Result};

use crate::config::{IdMap, Shown};

impl IdMap {
    /// Remote user id to local user id. `EPERM` if there is no local one and the table says so.
    pub(crate) fn uid_to_local(&self, uid: u32) -> Result<u32> {
        match self {
            IdMap::Same => Ok(uid),
            IdMap::User { uid: (remote, local), .. } => Ok(swap(uid, *remote, *local)),
            IdMap::Table { uids, others_same, .. } => here(uids.as_ref(), uid, *others_same),
        }
    }

    pub(crate) fn gid_to_local(&self, gid: u32) -> Result<u32> {
        match self {
            IdMap::Same => Ok(gid),
            IdMap::User { gid: (remote, local), .. } => Ok(swap(gid, *remote, *local)),
            IdMap::Table { gids, others_same, .. } => here(gids.as_ref(), gid, *others_same),
        }
    }

    /// Local user id to remote user id. `EPERM` if there is no remote one and the table says so.
    pub fn uid_to_remote(&self, uid: u32) -> Result<u32> {
        match self {
            IdMap::Same => Ok(uid),
            IdMap::User { uid: (remote, local), .. } => Ok(swap(uid, *local, *remote)),
            IdMap::Table { uids, others_same, .. } => there(uids.as_ref(), uid, *others_same),
        }
    }

    /// Local group id to remote group id. `EPERM` if there is no remote one and the table says so.
    pub fn gid_to_remote(&self, gid: u32) -> Result<u32> {
        match self {
            IdMap::Same => Ok(gid),
            IdMap::User { gid: (remote, local), .. } => Ok(swap(gid, *local, *remote)),
            IdMap::Table { gids, others_same, .. } => there(gids.as_ref(), gid, *others_same),
        }
    }

    /// Attributes as this machine sees them. `EPERM` if an owner has no local id and the table says
    /// so.
    pub fn attr_to_local(&self, shown: &Shown, attr: Attr) -> Result<Attr> {
        let umask = if attr.is_dir() { shown.dir_umask } else { shown.file_umask };
        Ok(Attr {
            uid: shown.uid.map_or_else(|| self.uid_to_local(attr.uid), Ok)?,
            gid: shown.gid.map_or_else(|| self.gid_to_local(attr.gid), Ok)?,
            perm: umask.map_or(attr.perm, |umask| 0o777 & !umask),
            ..attr
        })
    }
}

fn swap(id: u32, from: u32, to: u32) -> u32 {
    if id == from { to } else { id }
}

fn here(table: Option<&HashMap<u32, u32>>, id: u32, others_same: bool) -> Result<u32> {
    let Some(table) = table else { return Ok(id) };
    known(table.get(&id), id, others_same)
}

fn there(table: Option<&HashMap<u32, u32>>, id: u32, others_same: bool) -> Result<u32> {
    let Some(table) = table else { return Ok(id) };
    // The smallest remote id, so that the result is always the same.
    let remote = table.iter().filter(|(_, local)| **local == id).map(|(remote, _)| remote).min();
    known(remote, id, others_same)
}

fn known(found: Option<&u32>, id: u32, others_same: bool) -> Result<u32> {
    match found {
        Some(found) => Ok(*found),
        None if others_same => Ok(id),
        None => Err(Errno::EPERM),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{FileKind, Timestamp};

    fn attr(kind: FileKind, perm: u32, uid: u32, gid: u32) -> Attr {
        let time = Timestamp::default();
        Attr { kind, perm, size: 0, uid, gid, atime: time, mtime: time, inode: None }
    }

    #[test]
    fn the_login_is_the_local_user_in_both_directions() {
        let map = IdMap::User { uid: (1000, 500), gid: (100, 50) };
        let here = map
            .attr_to_local(&Shown::default(), attr(FileKind::Regular, 0o644, 1000, 100))
            .unwrap();
        assert_eq!((here.uid, here.gid), (500, 50));
        assert_eq!((map.uid_to_remote(500), map.gid_to_remote(50)), (Ok(1000), Ok(100)));
        assert_eq!((map.uid_to_local(7), map.uid_to_remote(7)), (Ok(7), Ok(7)));
    }

    #[test]
    fn a_table_maps_its_ids_and_refuses_or_passes_the_others() {
        let table = |others_same| IdMap::Table {
            uids: Some([(1, 11), (2, 12)].into()),
            gids: Some([(3, 13)].into()),
            others_same,
        };
        assert_eq!(table(false).uid_to_local(1), Ok(11));
        assert_eq!(table(false).uid_to_remote(12), Ok(2));
        assert_eq!(table(false).gid_to_remote(13), Ok(3));
        assert_eq!(table(false).uid_to_local(9), Err(Errno::EPERM));
        assert_eq!(table(false).uid_to_remote(1), Err(Errno::EPERM));
        assert_eq!(table(true).uid_to_local(9), Ok(9));
        let users = IdMap::Table { uids: Some([(1, 11)].into()), gids: None, others_same: false };
        assert_eq!((users.gid_to_local(5), users.gid_to_remote(5)), (Ok(5), Ok(5)));
    }

    #[test]
    fn shown_attributes_replace_those_of_all_files() {
        let shown =
            Shown { uid: Some(5), gid: Some(6), file_umask: Some(0o177), dir_umask: Some(0o022) };
        let file = attr(FileKind::Regular, 0o6755, 1, 1);
        let file = IdMap::Same.attr_to_local(&shown, file).unwrap();
        assert_eq!((file.uid, file.gid, file.perm), (5, 6, 0o600));
        let dir = attr(FileKind::Directory, 0, 1, 1);
        assert_eq!(IdMap::Same.attr_to_local(&shown, dir).unwrap().perm, 0o755);
    }
}
