//! The search for a file that another client has renamed while it was lost, or of which it has
//! removed one of several names.
//!
//! Only within the directory of its name: a server needs a privilege to open a file by its identity
//! alone. Logs that are rotated and backups that editors make stay in their directory.

use base::{DirGuard, FileKind, RemotePath, Result};

use crate::Core;
use crate::connection::is_loss;
use crate::file::OpenFile;

/// Entries of a directory among which a file is searched.
const MAX_ENTRIES: usize = 10_000;

/// Another path of the file in the directory of `path`. `None` without an identity that no later
/// file can have: without its time of creation, an inode number may be that of a new file.
///
/// # Errors
/// When the connection was lost.
pub(super) async fn search(
    core: &Core,
    file: &OpenFile,
    path: &RemotePath,
) -> Result<Option<RemotePath>> {
    let id = file.expected().regular_id().filter(|id| id.btime.is_some());
    let (Some(id), Some(dir)) = (id, path.parent()) else { return Ok(None) };
    let inner = &*core.inner;
    let search = async {
        let guard = DirGuard::new(inner, inner.opendir(&dir).await?);
        let mut searched = 0;
        while let Some(entries) = inner.readdir(guard.dh()).await? {
            searched += entries.len();
            let mut entries = entries.into_iter();
            let is_it = |attr: base::Attr| attr.kind == FileKind::Regular && attr.id() == Some(id);
            if let Some(entry) = entries.find(|entry| entry.attr.is_some_and(is_it)) {
                return Ok(Some(dir.join(&entry.name)));
            }
            if searched >= MAX_ENTRIES {
                break;
            }
        }
        Ok(None)
    };
    match search.await {
        Err(errno) if !is_loss(errno) && errno != base::Errno::ESTALE => Ok(None),
        found => found,
    }
}
