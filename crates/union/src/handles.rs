//! Open files and directories of the tree, by numbers of its own.
//!
//! A handle keeps its branch, also when that is taken out of the tree: what is open goes on until
//! it is closed. The tables are as large as the branches allow, which bound their handles.

use std::sync::Arc;

use base::{Attr, Dh, Fh, OpenFlags, Opened, OwnedFh, RemotePath, Result};

use crate::branch::Live;

/// An open file of a branch; closed there when this is dropped.
pub(crate) struct InnerFile {
    pub(crate) live: Arc<Live>,
    pub(crate) lent: OwnedFh,
    /// It was opened for writing, and may be changed whatever its branch is by now.
    writes: bool,
}

impl InnerFile {
    pub(crate) async fn open(
        live: &Arc<Live>,
        at: &RemotePath,
        flags: OpenFlags,
    ) -> Result<(InnerFile, Attr)> {
        let Opened { fh, attr } = live.remote.open(at, flags).await?;
        let lent = OwnedFh::new(live.remote.clone(), fh);
        Ok((InnerFile { live: live.clone(), lent, writes: flags.access.writes() }, attr))
    }

    pub(crate) fn fh(&self) -> Fh {
        self.lent.fh()
    }

    /// `EROFS` unless it may be changed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.writes { Ok(()) } else { self.live.check_writable() }
    }
}

/// An open directory of a branch; closed there when this is dropped.
pub(crate) struct InnerDir {
    pub(crate) live: Arc<Live>,
    pub(crate) dh: Dh,
}

impl InnerDir {
    pub(crate) async fn open(live: &Arc<Live>, at: &RemotePath) -> Result<InnerDir> {
        let dh = live.remote.opendir(at).await?;
        Ok(InnerDir { live: live.clone(), dh })
    }
}

impl Drop for InnerDir {
    fn drop(&mut self) {
        self.live.remote.closedir(self.dh);
    }
}
