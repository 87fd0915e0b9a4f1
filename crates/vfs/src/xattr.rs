//! Extended attributes of the server, by the path of the file.
//!
//! Access lists contain the ids of users and groups, which are translated as owners are.

use std::sync::Arc;

use base::{Errno, RemotePath, Result, SetXattr};
use bytes::Bytes;

use crate::config::IdMap;
use crate::inode::Inode;
use crate::lookup::MAX_ATTEMPTS;
use crate::{Change, Ino, Vfs};

/// The access list of a file. It contains the permission bits.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The access list that new entries of a directory get.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Bytes before the entries of an access list: the version.
const ACL_HEAD_BYTES: usize = 4;

/// Bytes of an entry: tag and permissions (16 bits each), and id (32 bits), least byte first.
const ACL_ENTRY_BYTES: usize = 8;

/// The tag of an entry for a user.
const ACL_USER: u16 = 0x02;

/// The tag of an entry for a group.
const ACL_GROUP: u16 = 0x08;

impl Vfs {
    /// Whether the server may have extended attributes, and other operations that SFTP has no
    /// requests for.
    pub fn may_exceed_sftp(&self) -> bool {
        self.remote.may_exceed_sftp()
    }

    /// Whether `ino` is open for writing through this mount.
    pub fn is_open_for_writing(&self, ino: Ino) -> bool {
        let Ok(inode) = self.inode(ino) else { return false };
        inode.state().open.iter().any(|open| open.access.writes())
    }

    /// The value of an extended attribute.
    pub async fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes> {
        let get = |path| async move { self.remote.getxattr(&path, name).await };
        let value = self.by_any_path(&self.inode(ino)?, get).await?;
        match is_acl(name) {
            true => self.config.idmap.acl_to_local(&value),
            false => Ok(value),
        }
    }

    /// The names of the extended attributes.
    pub async fn listxattr(&self, ino: Ino) -> Result<Vec<Bytes>> {
        let list = |path| async move { self.remote.listxattr(&path).await };
        self.by_any_path(&self.inode(ino)?, list).await
    }

    /// Sets an extended attribute.
    pub async fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        let value = match is_acl(name) {
            true => self.config.idmap.acl_to_remote(&value)?,
            false => value,
        };
        let set = |path| {
            let value = value.clone();
            async move { self.remote.setxattr(&path, name, value, mode).await }
        };
        self.change_xattr(ino, name, set).await
    }

    /// Removes an extended attribute.
    pub async fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let remove = |path| async move { self.remote.removexattr(&path, name).await };
        self.change_xattr(ino, name, remove).await
    }

    async fn change_xattr<F: Future<Output = Result<()>>>(
        &self,
        ino: Ino,
        name: &[u8],
        request: impl Fn(RemotePath) -> F,
    ) -> Result<()> {
        let inode = self.inode(ino)?;
        let sets_mode = name == ACCESS_ACL;
        if sets_mode {
            // The change may remove the right to open the file.
            self.force_deferred_opens([&inode]).await;
        }
        // A write that arrives later would remove a capability.
        inode.writes.drained().await;
        let _change = sets_mode.then(|| {
            let change = Change::begin(&inode, &self.change_counter);
            inode.state().forget_created_here();
            change
        });
        self.by_any_path(&inode, request).await?;
        inode.state().touch_ctime();
        Ok(())
    }

    /// The result of a `request` for a path of the file, repeated for another of its names if the
    /// first one is gone.
    async fn by_any_path<T, F: Future<Output = Result<T>>>(
        &self,
        inode: &Arc<Inode>,
        request: impl Fn(RemotePath) -> F,
    ) -> Result<T> {
        for attempt in 1.. {
            self.await_moves(inode.ino).await;
            let (path, stamp) = (self.path(inode.ino)?, self.stamp_request());
            match request(path.clone()).await {
                Err(Errno::ENOENT) if attempt < MAX_ATTEMPTS => {
                    if !self.has_other_path(inode, &path, stamp) {
                        self.invalidate_inode(inode);
                        return Err(Errno::ENOENT);
                    }
                }
                done => return done,
            }
        }
        unreachable!("the last attempt returns")
    }
}

/// Whether the value of this extended attribute is an access list.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

impl IdMap {
    /// An access list with the ids of this machine.
    pub fn acl_to_local(&self, value: &[u8]) -> Result<Bytes> {
        with_ids(value, |uid| self.uid_to_local(uid), |gid| self.gid_to_local(gid))
    }

    /// An access list with the ids of the remote.
    pub fn acl_to_remote(&self, value: &[u8]) -> Result<Bytes> {
        with_ids(value, |uid| self.uid_to_remote(uid), |gid| self.gid_to_remote(gid))
    }
}

/// An access list with other ids. What is no access list is not changed: the kernel rejects it.
fn with_ids(
    value: &[u8],
    user: impl Fn(u32) -> Result<u32>,
    group: impl Fn(u32) -> Result<u32>,
) -> Result<Bytes> {
    let mut value = value.to_vec();
    for entry in
        value.get_mut(ACL_HEAD_BYTES..).unwrap_or_default().chunks_exact_mut(ACL_ENTRY_BYTES)
    {
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let id = match u16::from_le_bytes([entry[0], entry[1]]) {
            ACL_USER => user(id)?,
            ACL_GROUP => group(id)?,
            _ => continue,
        };
        entry[4..].copy_from_slice(&id.to_le_bytes());
    }
    Ok(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_named_users_and_groups_are_translated() {
        let list = |user: u32, group: u32| {
            let entry = |tag: u16, id: u32| {
                [&tag.to_le_bytes()[..], &6_u16.to_le_bytes(), &id.to_le_bytes()].concat()
            };
            let none = u32::MAX;
            let entries =
                [(0x01, none), (0x02, user), (0x04, none), (0x08, group), (0x10, none), (0x20, 7)];
            let entries = entries.map(|(tag, id)| entry(tag, id)).concat();
            [&2_u32.to_le_bytes()[..], &entries].concat()
        };
        let map = IdMap::User { uid: (7, 1000), gid: (8, 1001) };
        assert_eq!(map.acl_to_local(&list(7, 8)).unwrap(), list(1000, 1001));
        assert_eq!(map.acl_to_remote(&list(1000, 1001)).unwrap(), list(7, 8));
        assert_eq!(map.acl_to_local(&list(9, 9)).unwrap(), list(9, 9));
        for invalid in [&b""[..], b"abc", b"\x02\0\0\0\x02\0\x06\0"] {
            assert_eq!(map.acl_to_local(invalid).unwrap(), invalid);
        }
    }
}
