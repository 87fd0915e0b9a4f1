//! Open files and directories of the tree, under handles of its own.
//!
//! A handle holds its branch, also when the branch is taken out of the tree: an open file works
//! until it is closed. The tables are bounded by the branches, which bound their handles.

use std::sync::Arc;

use base::{Attr, Dh, Fh, OpenFlags, Opened, OwnedFh, RemotePath, Result};

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
        let Opened { fh, attr } = branch.remote.open(at, flags).await?;
        let lent = OwnedFh::new(branch.remote.clone(), fh);
        Ok((BranchFile { branch: branch.clone(), lent, writes: flags.access.writes() }, attr))
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
    pub(crate) dh: Dh,
}

impl BranchDir {
    pub(crate) async fn open(branch: &Arc<TreeBranch>, at: &RemotePath) -> Result<BranchDir> {
        let dh = branch.remote.opendir(at).await?;
        Ok(BranchDir { branch: branch.clone(), dh })
    }
}

impl Drop for BranchDir {
    fn drop(&mut self) {
        self.branch.remote.closedir(self.dh);
    }
}
