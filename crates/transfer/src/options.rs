//! What is to be copied, and how.

use std::collections::HashMap;

use base::RemotePath;

use crate::filter::Filter;

/// Whose the files at the target are to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Owners {
    /// Whoever makes them.
    #[default]
    Leave,
    /// The numbers that they have at the source. Where that is not allowed, once tried, as
    /// [`Owners::Leave`].
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
    /// Owner and group at the target, of what has these at the source; `None` where they are left.
    #[must_use]
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
    /// Those of users, `user.*`.
    Users,
    /// Those of all namespaces. Some of them give rights: `security.capability` to a program, access
    /// lists to users.
    All,
}

impl Xattrs {
    /// Whether any is.
    #[must_use]
    pub fn any(self) -> bool {
        self != Xattrs::None
    }

    /// Whether one of that name is.
    #[must_use]
    pub fn takes(self, name: &[u8]) -> bool {
        match self {
            Xattrs::None => false,
            Xattrs::Users => name.starts_with(b"user."),
            Xattrs::All => true,
        }
    }
}

/// What is to be copied, and how. [`Options::default`] copies directories, files and symbolic
/// links with modes and times, skips what has the same size and time, and deletes nothing.
#[derive(Clone, Debug)]
pub struct Options {
    /// Owners and groups.
    pub owners: Owners,
    /// Several names of one file at the source are to be several names of one at the target (`-H`).
    /// Only where the source is a directory of this machine, or an engine sees them by itself: SFTP
    /// does not tell.
    pub hard_links: bool,
    /// Set-user-ID and set-group-ID bits of files whose owner and group at the target are those of
    /// the source, or what these are mapped to. Without it no file has them.
    pub set_ids: bool,
    /// Extended attributes (`-X`). Only by an engine that carries them; SFTP does not.
    pub xattrs: Xattrs,
    /// Each file is on the target's disk before it gets its name, and the name before the run ends.
    pub fsync: bool,
    /// Blocks of zeros become holes (`-S`).
    pub sparse: bool,
    /// Devices, sockets and pipes. Only by an engine that carries them.
    pub specials: bool,
    /// Files of equal size are compared by digest, and not by time.
    pub checksum: bool,
    /// What the sources do not have is deleted at the target, after everything was copied.
    pub delete: bool,
    /// With [`Options::delete`]: what the filter leaves out is deleted at the target, too. For a target
    /// that only copies are in.
    pub delete_excluded: bool,
    /// If more entries than this were to be deleted, none is.
    pub max_delete: Option<u64>,
    /// What is left out, at the source and from deletion.
    pub filter: Filter,
    /// Directories on other file systems than the source's own are not entered.
    pub one_file_system: bool,
    /// What is newer at the target is left as it is.
    pub update: bool,
    /// Only what is at the target already is brought up to date.
    pub existing: bool,
    /// Everything is looked at and told, nothing is changed.
    pub dry_run: bool,
    /// What is not whole is kept, for the next run to continue.
    pub partial: bool,
    /// Each file is read back at the target and compared by digest.
    pub verify: bool,
}

impl Options {
    /// Whether an entry of this path, relative to the target, is never deleted.
    #[must_use]
    pub fn keeps(&self, name: &RemotePath, is_dir: bool) -> bool {
        !self.delete_excluded && self.filter.excludes(name, is_dir)
    }

    /// Owner and group that a file must have at the target to keep set-ID bits; `None` where it keeps
    /// none.
    #[must_use]
    pub fn set_ids_of(&self, uid: u32, gid: u32) -> Option<(u32, u32)> {
        self.set_ids.then(|| self.owners.of(uid, gid).unwrap_or((uid, gid)))
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            owners: Owners::default(),
            hard_links: false,
            set_ids: false,
            xattrs: Xattrs::None,
            fsync: false,
            sparse: false,
            specials: false,
            checksum: false,
            delete: false,
            delete_excluded: false,
            max_delete: None,
            filter: Filter::default(),
            one_file_system: false,
            update: false,
            existing: false,
            dry_run: false,
            partial: true,
            verify: false,
        }
    }
}
