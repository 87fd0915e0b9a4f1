//! Open files and directories of the tree, under handles of its own.
//!
//! A handle holds its branch, also when the branch is taken out of the tree: an open file works
//! until it is closed. The tables are bounded by the branches, which bound their handles.

use std::sync::Arc;

use base::{Attr, DirEntry, Fh, OpenFlags, Opened, OwnedDh, OwnedFh, RemotePath, Result};

use crate::branch::TreeBranch;

/// An open file of a branch; closed there when this is dropped.
pub(crate) struct BranchFile {
    pub(crate) branch: Arc<TreeBranch>,
    pub(crate) lent: OwnedFh,
    /// Opened for writing: it may be changed, also if its branch is read-only by now.
    writes: bool,
}

impl BranchFile {
    pub(crate) async fn open(
        branch: &Arc<TreeBranch>,
        at: &RemotePath,
        flags: OpenFlags,
    ) -> Result<(BranchFile, Attr)> {
        let opened = branch.remote.open(at, flags).await?;
        Ok(BranchFile::new(branch, opened, flags.access.writes()))
    }

    /// What a branch has opened, with the attributes as those of the tree.
    pub(crate) fn new(
        branch: &Arc<TreeBranch>,
        Opened { fh, attr }: Opened,
        writes: bool,
    ) -> (BranchFile, Attr) {
        let lent = OwnedFh::new(branch.remote.clone(), fh);
        (BranchFile { branch: branch.clone(), lent, writes }, branch.translated(attr))
    }

    pub(crate) async fn attr(&self) -> Result<Attr> {
        Ok(self.branch.translated(self.branch.remote.fstat(self.fh()).await?))
    }

    pub(crate) fn fh(&self) -> Fh {
        self.lent.fh()
    }

    /// `EROFS` unless it may be changed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.writes { Ok(()) } else { self.branch.check_writable() }
    }
}

/// An open directory of a branch; closed there when this is dropped.
pub(crate) struct BranchDir {
    pub(crate) branch: Arc<TreeBranch>,
    pub(crate) lent: OwnedDh,
    /// Directories in it may be merged with those of other branches.
    pub(crate) merges: bool,
}

impl BranchDir {
    pub(crate) async fn open(branch: &Arc<TreeBranch>, at: &RemotePath) -> Result<BranchDir> {
        let lent = OwnedDh::new(branch.remote.clone(), branch.remote.opendir(at).await?);
        Ok(BranchDir { branch: branch.clone(), lent, merges: false })
    }

    /// The next entries, with attributes as those of the tree.
    pub(crate) async fn next(&self) -> Result<Option<Vec<DirEntry>>> {
        let mut batch = self.branch.remote.readdir(self.lent.dh()).await?;
        for attr in batch.iter_mut().flatten().filter_map(|entry| entry.attr.as_mut()) {
            *attr = self.branch.translated(*attr);
            if self.merges && attr.is_dir() {
                attr.inode = None;
            }
        }
        Ok(batch)
    }
}
