//! The search for a file that another client has renamed while it was lost, or of which it has
//! removed one of several names.
//!
//! Only within the directory of its name: a server needs a privilege to open a file by its identity
//! alone. Logs that are rotated and backups that editors make stay in their directory.
//!
//! The last listing of a directory is kept, so that many files of it do not list it once each. That
//! it lacks a file proves nothing unless it began after the search. A name in it is only a hint:
//! the caller compares the file.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{DirGuard, FileId, FileKind, Mutex, Name, RemotePath, Result};

use crate::Core;
use crate::file::OpenFile;

/// Entries of a directory among which a file is searched.
const MAX_ENTRIES: usize = 10_000;

/// Directories in which no search is in progress, and whose last listing is kept.
const MAX_KEPT: usize = 16;

/// The listings for all searches.
#[derive(Default)]
pub(crate) struct Listings(Mutex<HashMap<RemotePath, Arc<Directory>>>);

#[derive(Default)]
struct Directory {
    /// The number of the last listing that has begun.
    begun: AtomicU64,
    /// Locked while the directory is listed: further searches in it wait for that listing.
    last: tokio::sync::Mutex<Listing>,
}

/// The regular files of a directory.
#[derive(Default)]
struct Listing {
    number: u64,
    names: HashMap<FileId, Name>,
}

impl Listings {
    fn of(&self, dir: &RemotePath) -> Arc<Directory> {
        let mut all = self.0.lock();
        if all.len() >= MAX_KEPT && !all.contains_key(dir) {
            all.retain(|_, directory| Arc::strong_count(directory) > 1);
        }
        all.entry(dir.clone()).or_default().clone()
    }
}

/// Another path of the file in the directory of `path`, which may lead to another file by now; if
/// the listing `may_be_old`, also since before this search. `None` without an identity that no
/// later file can have: without its time of creation, an inode number may be that of a new file.
///
/// # Errors
/// When the connection was lost, or the server cannot list the directory at the moment.
pub(super) async fn search(
    core: &Core,
    file: &OpenFile,
    path: &RemotePath,
    may_be_old: bool,
) -> Result<Option<RemotePath>> {
    let id = file.expected().regular_id().filter(|id| id.btime.is_some());
    let (Some(id), Some(dir)) = (id, path.parent()) else { return Ok(None) };
    let directory = core.listings.of(&dir);
    let before = directory.begun.load(Ordering::Relaxed);
    let mut last = directory.last.lock().await;
    let is_current = last.number > before;
    let is_hint = may_be_old && last.names.contains_key(&id);
    if !is_current && !is_hint {
        let number = directory.begun.fetch_add(1, Ordering::Relaxed) + 1;
        match names(core, &dir).await {
            Ok(names) => *last = Listing { number, names },
            Err(errno) if !super::may_pass(errno) => return Ok(None),
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
