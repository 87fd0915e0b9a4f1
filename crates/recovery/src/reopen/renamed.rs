//! The search for a file that another client has renamed while it was lost, or of which it has
//! removed one of several names.
//!
//! Only within the directory of its name: a server needs a privilege to open a file by its identity
//! alone. Logs that are rotated and backups that editors make stay in their directory.
//!
//! The last listing is kept, so that many files of one directory do not list it once each. That it
//! lacks a file proves nothing unless it began after the search. A name in it is only a hint: the
//! caller compares the file.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{DirGuard, FileId, FileKind, Name, RemotePath, Result};

use crate::Core;
use crate::connection::is_loss;
use crate::file::OpenFile;

/// Entries of a directory among which a file is searched.
const MAX_ENTRIES: usize = 10_000;

/// The listings for all searches.
#[derive(Default)]
pub(crate) struct Listings {
    /// The number of the last one that has begun.
    begun: AtomicU64,
    /// Locked while a directory is listed: further searches in it wait for that listing.
    last: tokio::sync::Mutex<Listing>,
}

/// The regular files of a directory.
#[derive(Default)]
struct Listing {
    number: u64,
    dir: Option<RemotePath>,
    names: HashMap<FileId, Name>,
}

/// Another path of the file in the directory of `path`, which may lead to another file by now; if
/// the listing `may_be_old`, also since before this search. `None` without an identity that no
/// later file can have: without its time of creation, an inode number may be that of a new file.
///
/// # Errors
/// When the connection was lost.
pub(super) async fn search(
    core: &Core,
    file: &OpenFile,
    path: &RemotePath,
    may_be_old: bool,
) -> Result<Option<RemotePath>> {
    let id = file.expected().regular_id().filter(|id| id.btime.is_some());
    let (Some(id), Some(dir)) = (id, path.parent()) else { return Ok(None) };
    let before = core.listings.begun.load(Ordering::Relaxed);
    let mut last = core.listings.last.lock().await;
    let is_of_dir = last.dir.as_ref() == Some(&dir);
    let is_current = is_of_dir && last.number > before;
    let is_hint = is_of_dir && may_be_old && last.names.contains_key(&id);
    if !is_current && !is_hint {
        let number = core.listings.begun.fetch_add(1, Ordering::Relaxed) + 1;
        match names(core, &dir).await {
            Ok(names) => *last = Listing { number, dir: Some(dir.clone()), names },
            Err(errno) if !is_loss(errno) && errno != base::Errno::ESTALE => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
    Ok(last.names.get(&id).map(|name| dir.join(name)))
}

async fn names(core: &Core, dir: &RemotePath) -> Result<HashMap<FileId, Name>> {
    let inner = &*core.inner;
    let guard = DirGuard::new(inner, inner.opendir(dir).await?);
    let (mut names, mut searched) = (HashMap::new(), 0);
    while searched < MAX_ENTRIES
        && let Some(entries) = inner.readdir(guard.dh()).await?
    {
        searched += entries.len();
        names.extend(entries.into_iter().filter_map(|entry| {
            let attr = entry.attr.filter(|attr| attr.kind == FileKind::Regular)?;
            Some((attr.id()?, entry.name))
        }));
    }
    Ok(names)
}
