//! What is copied, and how.

use std::collections::HashMap;

use base::RemotePath;

use crate::filter::Filter;

/// Owners of the files at the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Owners {
    /// The user who creates them.
    #[default]
    Leave,
    /// The numeric ids of the source. An owner with a group that the target refuses is left for all
    /// entries that are to have them.
    Numbers,
    /// As [`Owners::Numbers`], with these numbers changed.
    Mapped {
        /// Owner at the source, owner at the target.
        uids: HashMap<u32, u32>,
        /// Group at the source, group at the target.
        gids: HashMap<u32, u32>,
    },
}

impl Owners {
    /// Owner and group at the target for these at the source; `None` if they are not set.
    pub fn of(&self, uid: u32, gid: u32) -> Option<(u32, u32)> {
        match self {
            Owners::Leave => None,
            Owners::Numbers => Some((uid, gid)),
            Owners::Mapped { uids, gids } => {
                let uid = uids.get(&uid).copied().unwrap_or(uid);
                let gid = gids.get(&gid).copied().unwrap_or(gid);
                Some((uid, gid))
            }
        }
    }
}

/// Which extended attributes are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Xattrs {
    /// None.
    #[default]
    None,
    /// Those of the namespace `user`.
    Users,
    /// Those of all namespaces. Some of them grant rights: `security.capability` to a program,
    /// access control lists to users.
    All,
}

impl Xattrs {
    /// Whether any are copied.
    pub fn any(self) -> bool {
        self != Xattrs::None
    }

    /// Whether the attribute of that name is copied.
    pub fn takes(self, name: &[u8]) -> bool {
        match self {
            Xattrs::None => false,
            Xattrs::Users => name.starts_with(b"user."),
            Xattrs::All => true,
        }
    }

    /// As [`Xattrs::takes`], of an attribute at a source. The kernel generates some by itself:
    /// those of `system`, except access lists.
    pub fn sends(self, name: &[u8]) -> bool {
        let is_generated = name.starts_with(b"system.") && !name.starts_with(b"system.posix_acl_");
        self.takes(name) && !is_generated
    }
}

/// What is copied, and how. [`Options::default`] copies directories, files and symbolic
/// links with modes and times, skips what has the same size and time, and deletes nothing.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Owners and groups.
    pub owners: Owners,
    /// Hard links are preserved (`-H`). Only where the source is a local directory, or something
    /// reports them: the helper, a command at the server, a stream. SFTP does not.
    pub hard_links: bool,
    /// Set-user-ID and set-group-ID bits are preserved for files that have at the target the owner
    /// and group of the source, or the ids that these are mapped to. Without it no file gets them.
    pub set_ids: bool,
    /// Extended attributes (`-X`). Only by a stream, or between remotes that have requests for
    /// them; plain SFTP does not.
    pub xattrs: Xattrs,
    /// Each file is written to the target's disk before it gets its name, and the name before the
    /// run ends.
    pub fsync: bool,
    /// Blocks of zeros become holes (`-S`).
    pub sparse: bool,
    /// Devices and pipes are copied. Only by a stream, or to a remote that has a request for them.
    pub specials: bool,
    /// Files of equal size are compared by digest instead of time.
    pub checksum: bool,
    /// Entries that the sources do not have are deleted at the target, after everything was copied.
    pub delete: bool,
    /// With [`Options::delete`]: entries that the filter excludes are deleted at the target, too.
    /// For a target that contains only copies.
    pub delete_excluded: bool,
    /// If more than this many entries would be deleted, none is.
    pub max_delete: Option<u64>,
    /// Nothing is deleted, since something that was copied before has failed.
    pub withhold_deletions: bool,
    /// Which entries are excluded, from the copy and from deletion.
    pub filter: Filter,
    /// Directories on other file systems than the source's own are not entered, and nothing is
    /// deleted on other file systems than that of what the source becomes.
    pub one_file_system: bool,
    /// The target is a directory that no user has yet, so nothing is mounted in it.
    pub is_stage: bool,
    /// Files that are newer at the target are skipped.
    pub update: bool,
    /// Only files that exist at the target are updated.
    pub existing: bool,
    /// Everything is compared and reported, nothing is changed.
    pub dry_run: bool,
    /// Files that are not whole are removed. Otherwise they are kept, and the next run continues
    /// them.
    pub no_partial: bool,
    /// Each file is read back at the target and compared by digest.
    pub verify: bool,
}

impl Options {
    /// Whether an entry of this path, relative to the target, is never deleted.
    pub fn keeps(&self, name: &RemotePath, is_dir: bool) -> bool {
        !self.delete_excluded && self.filter.excludes(name, is_dir)
    }

    /// Owner and group that a file must have at the target to keep set-ID bits; `None` where it
    /// keeps none.
    pub fn set_ids_of(&self, uid: u32, gid: u32) -> Option<(u32, u32)> {
        self.set_ids.then(|| self.owners.of(uid, gid).unwrap_or((uid, gid)))
    }
}
