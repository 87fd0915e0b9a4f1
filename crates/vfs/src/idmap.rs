//! Owners and permissions between the remote and this machine.

use base::{Attr, Errno, Result};

use crate::config::{IdMap, Ids, Shown};

impl Ids {
    /// Remote id to local id. `EPERM` if there is no local one and the table says so.
    pub(crate) fn to_local(&self, id: u32) -> Result<u32> {
        match self {
            Ids::Same => Ok(id),
            Ids::Swap(remote, local) => Ok(if id == *remote { *local } else { id }),
            Ids::Table { local_ids, others_same } => known(local_ids.get(&id), id, *others_same),
        }
    }

    /// Local id to remote id. `EPERM` if there is no remote one and the table says so.
    pub fn to_remote(&self, id: u32) -> Result<u32> {
        match self {
            Ids::Same => Ok(id),
            Ids::Swap(remote, local) => Ok(if id == *local { *remote } else { id }),
            Ids::Table { local_ids, others_same } => {
                // The smallest remote id, so that the result is always the same.
                let remote = local_ids.iter().filter(|(_, local)| **local == id);
                known(remote.map(|(remote, _)| remote).min(), id, *others_same)
            }
        }
    }
}

impl IdMap {
    /// Attributes as this machine sees them. `EPERM` if an owner has no local id and the table says
    /// so.
    pub fn attr_to_local(&self, shown: &Shown, attr: Attr) -> Result<Attr> {
        let umask = if attr.is_dir() { shown.dir_umask } else { shown.file_umask };
        Ok(Attr {
            uid: shown.uid.map_or_else(|| self.uids.to_local(attr.uid), Ok)?,
            gid: shown.gid.map_or_else(|| self.gids.to_local(attr.gid), Ok)?,
            perm: umask.map_or(attr.perm, |umask| 0o777 & !umask),
            ..attr
        })
    }
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
        let map = IdMap { uids: Ids::Swap(1000, 500), gids: Ids::Swap(100, 50) };
        let here = map
            .attr_to_local(&Shown::default(), attr(FileKind::Regular, 0o644, 1000, 100))
            .unwrap();
        assert_eq!((here.uid, here.gid), (500, 50));
        assert_eq!((map.uids.to_remote(500), map.gids.to_remote(50)), (Ok(1000), Ok(100)));
        assert_eq!((map.uids.to_local(7), map.uids.to_remote(7)), (Ok(7), Ok(7)));
    }

    #[test]
    fn a_table_maps_its_ids_and_refuses_or_passes_the_others() {
        let table = |others_same| IdMap {
            uids: Ids::Table { local_ids: [(1, 11), (2, 12)].into(), others_same },
            gids: Ids::Table { local_ids: [(3, 13)].into(), others_same },
        };
        assert_eq!(table(false).uids.to_local(1), Ok(11));
        assert_eq!(table(false).uids.to_remote(12), Ok(2));
        assert_eq!(table(false).gids.to_remote(13), Ok(3));
        assert_eq!(table(false).uids.to_local(9), Err(Errno::EPERM));
        assert_eq!(table(false).uids.to_remote(1), Err(Errno::EPERM));
        assert_eq!(table(true).uids.to_local(9), Ok(9));
        assert_eq!((Ids::Same.to_local(5), Ids::Same.to_remote(5)), (Ok(5), Ok(5)));
    }

    #[test]
    fn shown_attributes_replace_those_of_all_files() {
        let shown =
            Shown { uid: Some(5), gid: Some(6), file_umask: Some(0o177), dir_umask: Some(0o022) };
        let file = attr(FileKind::Regular, 0o6755, 1, 1);
        let file = IdMap::default().attr_to_local(&shown, file).unwrap();
        assert_eq!((file.uid, file.gid, file.perm), (5, 6, 0o600));
        let dir = attr(FileKind::Directory, 0, 1, 1);
        assert_eq!(IdMap::default().attr_to_local(&shown, dir).unwrap().perm, 0o755);
    }
}
