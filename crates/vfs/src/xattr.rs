//! Extended attributes of the server, by the path of the file.
//!
//! Values are not cached. The attributes of a file say whether it has any
//! ([`base::InodeAttr::xattrs`]). Without that, what is remembered for a short time is which
//! entries of a directory have none, for programs that query one file after the other.
//!
//! That a directory has no default access list is remembered as long as attributes of directories
//! are, since each new entry needs it.
//!
//! Access lists contain the ids of users and groups, which are translated as owners are.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::{Errno, Name, RemotePath, Result, SetXattr};
use bytes::Bytes;
use tokio::time::Instant;

use crate::config::{IdMap, Ids};
use crate::inode::Inode;
use crate::tree::RequestStamp;
use crate::{Change, Ino, Vfs};

/// The access list of a file. It contains the permission bits.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The access list that new entries of a directory get.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The label of SELinux. A kernel that uses SELinux has labels of its own for the files of a FUSE
/// file system and does not ask for it.
const SELINUX: &[u8] = b"security.selinux";

/// Bytes before the entries of an access list: the version.
const ACL_HEAD_BYTES: usize = 4;

/// Bytes of an entry: tag and permissions (16 bits each), and id (32 bits), least byte first.
const ACL_ENTRY_BYTES: usize = 8;

/// The tag of an entry for a user.
const ACL_USER: u16 = 0x02;

/// The tag of an entry for a group.
const ACL_GROUP: u16 = 0x08;

/// Directories of which the entries with attributes are known; more than a program visits within
/// the time for which that is valid.
const MAX_DIRECTORIES: usize = 256;

/// Directories of which it is known that they have no default access list.
const MAX_DEFAULT_ACLS: usize = 4096;

/// Time between the queries of two files of a directory within which the directory is queried
/// instead: `ls -l` queries one file after the other.
const SEQUENCE: Duration = Duration::from_secs(1);

/// The entries with extended attributes, by directory.
#[derive(Default)]
pub(crate) struct KnownXattrs {
    directories: HashMap<Ino, Directory>,
    /// Directories without a default access list, and until when that is valid.
    no_default_acl: HashMap<Ino, Instant>,
    /// The directory and the file of the last request, and its time.
    last: Option<(Ino, Ino, Instant)>,
    /// Number of changes of attributes that this mount has begun or ended.
    changes: u64,
}

struct Directory {
    /// `None` if the server does not report it.
    entries: Option<HashSet<Name>>,
    stamp: RequestStamp,
}

impl KnownXattrs {
    /// An attribute is being changed, or was.
    pub(crate) fn note_change(&mut self) {
        self.changes += 1;
        self.directories.clear();
        self.no_default_acl.clear();
    }

    fn insert(&mut self, dir: Ino, known: Directory, changes: u64) {
        if self.changes == changes {
            insert_bounded(&mut self.directories, MAX_DIRECTORIES, dir, known);
        }
    }

    fn insert_no_default_acl(&mut self, dir: Ino, valid_until: Instant, changes: u64) {
        if self.changes == changes {
            insert_bounded(&mut self.no_default_acl, MAX_DEFAULT_ACLS, dir, valid_until);
        }
    }

    /// Notes a request for a file. Returns whether another one of its directory was requested just
    /// before.
    fn is_in_sequence(&mut self, dir: Ino, ino: Ino, now: Instant) -> bool {
        let last = self.last.replace((dir, ino, now));
        last.is_some_and(|(last_dir, last_ino, at)| {
            last_dir == dir && last_ino != ino && now < at + SEQUENCE
        })
    }
}

impl Vfs {
    /// Whether `inode` is known to have no extended attributes. When the files of a directory are
    /// queried one after the other, the directory is, so that most of them cost no request.
    async fn has_no_xattrs(&self, inode: &Arc<Inode>) -> bool {
        let attr = inode.state().fresh_attr(Instant::now());
        if let Some(may_have) = attr.and_then(|attr| attr.inode?.xattrs) {
            return !may_have;
        }
        // As long as attributes are valid at least.
        let valid = self.timeout(inode.kind).min;
        let Some((dir, name)) = self.tree().used_name(inode.ino) else { return false };
        let now = Instant::now();
        let changes = {
            let mut known = self.known_xattrs.lock();
            let is_recent = |known: &&Directory| now < known.stamp.at + valid;
            if let Some(directory) = known.directories.get(&dir).filter(is_recent) {
                let Some(entries) = &directory.entries else { return false };
                let stamp = directory.stamp;
                let is_listed = entries.contains(&name);
                drop(known);
                return !is_listed && self.tree().path_unchanged_since(inode.ino, stamp.seq);
            }
            if valid.is_zero() || !known.is_in_sequence(dir, inode.ino, now) {
                return false;
            }
            known.changes
        };
        let Ok(path) = self.path(dir) else { return false };
        let stamp = self.stamp_request();
        let entries = self.remote.entries_with_xattrs(&path).await;
        let entries = entries.ok().map(HashSet::from_iter);
        let has_none = entries.as_ref().is_some_and(|entries| !entries.contains(&name));
        let is_current = self.tree().path_unchanged_since(inode.ino, stamp.seq);
        let mut known = self.known_xattrs.lock();
        let is_current = is_current && known.changes == changes;
        known.insert(dir, Directory { entries, stamp }, changes);
        has_none && is_current
    }

    /// The permission bits of a new entry of `parent`, created by a program with this umask. A
    /// default access list of the directory replaces the umask; not in a union, where the entry may
    /// be created on another server than that of the list.
    pub async fn perm_of_new(&self, parent: Ino, perm: u32, umask: u32) -> u32 {
        let may_have_list = self.may_exceed_sftp() && !self.config.is_union;
        match perm & umask != 0 && may_have_list && self.has_default_acl(parent).await {
            true => perm,
            false => perm & !umask,
        }
    }

    /// Whether the directory `dir` has a default access list, as far as that can be found out. A
    /// list is never remembered: another machine may have removed it, and then the umask is all that
    /// protects a new file.
    async fn has_default_acl(&self, dir: Ino) -> bool {
        let now = Instant::now();
        let changes = {
            let known = self.known_xattrs.lock();
            if known.no_default_acl.get(&dir).is_some_and(|valid_until| now < *valid_until) {
                return false;
            }
            known.changes
        };
        let Ok(inode) = self.inode(dir) else { return false };
        let attr = inode.state().fresh_attr(now);
        if attr.and_then(|attr| attr.inode?.xattrs) != Some(false) {
            let get = |path| async move { self.remote.getxattr(&path, DEFAULT_ACL).await };
            match self.by_any_path(&inode, get).await {
                Ok(_) => return true,
                Err(Errno::ENODATA | Errno::EOPNOTSUPP) => {}
                Err(_) => return false,
            }
        }
        let valid_until = now + self.timeout(inode.kind).max;
        self.known_xattrs.lock().insert_no_default_acl(dir, valid_until, changes);
        false
    }

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
    ///
    /// A file without attributes has no label of SELinux because its server has none:
    /// `EOPNOTSUPP`, so that `ls -l` does not ask for the label of each file.
    pub async fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes> {
        let inode = self.inode(ino)?;
        if may_be_listed(name) && self.has_no_xattrs(&inode).await {
            return Err(if name == SELINUX { Errno::EOPNOTSUPP } else { Errno::ENODATA });
        }
        let get = |path| async move { self.remote.getxattr(&path, name).await };
        let value = self.by_any_path(&inode, get).await?;
        match is_acl(name) {
            true => self.config.idmap.acl_to_local(&value),
            false => Ok(value),
        }
    }

    /// The names of the extended attributes.
    pub async fn listxattr(&self, ino: Ino) -> Result<Vec<Bytes>> {
        let inode = self.inode(ino)?;
        if self.has_no_xattrs(&inode).await {
            return Ok(Vec::new());
        }
        let list = |path| async move { self.remote.listxattr(&path).await };
        self.by_any_path(&inode, list).await
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
        self.known_xattrs.lock().note_change();
        let changed = self.by_any_path(&inode, request).await;
        self.known_xattrs.lock().note_change();
        changed?;
        inode.state().touch_ctime(&self.change_counter);
        Ok(())
    }
}

/// Inserts `value`; a map that is full is emptied first.
fn insert_bounded<V>(map: &mut HashMap<Ino, V>, max: usize, ino: Ino, value: V) {
    if map.len() >= max {
        map.clear();
    }
    map.insert(ino, value);
}

/// Whether a list of attributes contains this one if it exists. File systems have others below
/// `system.` that are not listed.
fn may_be_listed(name: &[u8]) -> bool {
    !name.starts_with(b"system.") || is_acl(name)
}

/// Whether the value of this extended attribute is an access list.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

impl IdMap {
    /// An access list with the ids of this machine.
    pub fn acl_to_local(&self, value: &[u8]) -> Result<Bytes> {
        self.acl(value, Ids::to_local)
    }

    /// An access list with the ids of the remote.
    pub fn acl_to_remote(&self, value: &[u8]) -> Result<Bytes> {
        self.acl(value, Ids::to_remote)
    }

    /// An access list with other ids. What is no access list is not changed: the kernel rejects it.
    fn acl(&self, value: &[u8], translate: fn(&Ids, u32) -> Result<u32>) -> Result<Bytes> {
        let mut value = value.to_vec();
        for entry in
            value.get_mut(ACL_HEAD_BYTES..).unwrap_or_default().chunks_exact_mut(ACL_ENTRY_BYTES)
        {
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            let ids = match u16::from_le_bytes([entry[0], entry[1]]) {
                ACL_USER => &self.uids,
                ACL_GROUP => &self.gids,
                _ => continue,
            };
            entry[4..].copy_from_slice(&translate(ids, id)?.to_le_bytes());
        }
        Ok(value.into())
    }
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
        let map = IdMap { uids: Ids::Swap(7, 1000), gids: Ids::Swap(8, 1001) };
        assert_eq!(map.acl_to_local(&list(7, 8)).unwrap(), list(1000, 1001));
        assert_eq!(map.acl_to_remote(&list(1000, 1001)).unwrap(), list(7, 8));
        assert_eq!(map.acl_to_local(&list(9, 9)).unwrap(), list(9, 9));
        for invalid in [&b""[..], b"abc", b"\x02\0\0\0\x02\0\x06\0"] {
            assert_eq!(map.acl_to_local(invalid).unwrap(), invalid);
        }
    }
}
