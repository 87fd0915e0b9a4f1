//! Which entries the sources have, which the target has, and what to do about each.
//!
//! Pairs of directories are compared, many at a time: both are listed, with attributes, and their
//! entries matched by name. The results are [`Step`]s, in a channel with room for a few thousand.
//! So memory is bounded by the listings of the pairs compared at once, whatever the size of the
//! trees.
//!
//! A step for a directory precedes those for its contents. Otherwise there is no order.

mod ahead;
mod compare;
mod decide;
mod file_systems;
mod folding;
mod top;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Attr, DirGuard, Errno, Name, Remote, RemotePath, Result};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::dir::Dir;
use crate::run::{Core, Group, is_lost};
use crate::step::Step;
use crate::task::returned;
pub use ahead::Ahead;
pub(crate) use compare::same_content;
pub(crate) use decide::{is_same_second, unconfirmed_mtime};
use file_systems::FileSystems;
pub(crate) use file_systems::is_foreign;
pub(crate) use folding::may_collide;
pub(crate) use top::look;

/// Pairs of directories that are compared at once. A pair takes two to three round trips, so over
/// 100 ms these are 200 to 300 directories a second.
const PAIRS: usize = 64;

/// As [`PAIRS`], if digests are compared: one command makes those of many directories.
const PAIRS_BY_DIGEST: usize = 512;

/// Steps that are sent together: waking the receiver costs as much as comparing a few.
const TOGETHER: usize = 64;

/// Bound on the bytes of the entries of one directory, since a listing is held whole. Enough for
/// some 2.8 million names of common length.
const LISTING_BYTES_MAX: usize = 512 << 20;

/// A directory of a source and the one of the target that it becomes.
pub(crate) struct Pair {
    pub(crate) source: usize,
    pub(crate) from: RemotePath,
    /// At the target.
    pub(crate) own: Arc<Dir>,
    /// It is a directory at the target already.
    pub(crate) there: bool,
    /// What the source does not have is deleted in it.
    pub(crate) deletes: bool,
    pub(crate) file_systems: FileSystems,
}

/// What comparing has found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) steps: Vec<Step>,
    pub(crate) pairs: Vec<Pair>,
}

/// Compares all of the sources with the target.
pub(crate) async fn walk(core: Arc<Core>, top: Found, steps: mpsc::Sender<Vec<Step>>) {
    let mut group = Group::default();
    let Some(mut stack) = send(&core, &steps, &mut group, top).await else {
        return;
    };
    let width = if core.job.options.checksum { PAIRS_BY_DIGEST } else { PAIRS };
    let mut comparing = JoinSet::new();
    loop {
        while comparing.len() < width
            && let Some(pair) = stack.pop()
        {
            comparing.spawn(compare::pair(core.clone(), pair));
        }
        let found = match comparing.join_next().await {
            None => break,
            Some(end) => match returned(end) {
                Some(found) => found,
                None => return,
            },
        };
        // The deepest first, so that few directories wait.
        match send(&core, &steps, &mut group, found).await {
            Some(pairs) => stack.extend(pairs),
            None => return,
        }
    }
    core.progress.planned.store(true, Ordering::Relaxed);
}

/// Sends the steps; `None` if the receiver was dropped.
async fn send(
    core: &Core,
    steps: &mpsc::Sender<Vec<Step>>,
    group: &mut Group,
    found: Found,
) -> Option<Vec<Pair>> {
    let mut left = found.steps.into_iter();
    loop {
        let mut together: Vec<Step> = left.by_ref().take(TOGETHER).collect();
        if together.is_empty() {
            return Some(found.pairs);
        }
        for step in &mut together {
            // Here, where steps have an order, so that the first name is given out first.
            group.enter(step);
            core.planned(step);
        }
        steps.send(together).await.ok()?;
    }
}

/// The entries of a directory in the order of names, and their attributes.
pub(crate) type Entries = Vec<(Name, Attr)>;

/// A directory that was listed whole.
#[derive(Default)]
pub(crate) struct Listed {
    pub(crate) entries: Entries,
    /// The entries whose attributes cannot be queried, such as dead mounts, with the errors.
    pub(crate) failed: Vec<(Name, Errno)>,
}

/// Lists a whole directory.
///
/// # Errors
/// `EOVERFLOW` for more than [`LISTING_BYTES_MAX`]. Also the first error of an entry.
pub(crate) async fn list(remote: &Arc<dyn Remote>, path: &RemotePath) -> Result<Entries> {
    let Listed { entries, failed } = list_readable(remote, path).await?;
    match failed.first() {
        Some((_, errno)) => Err(*errno),
        None => Ok(entries),
    }
}

/// Lists a whole directory. Entries without attributes are queried; those removed meanwhile are
/// omitted.
///
/// # Errors
/// `EOVERFLOW` for more than [`LISTING_BYTES_MAX`]; `EACCES` if that is the error of all entries.
pub(crate) async fn list_readable(remote: &Arc<dyn Remote>, path: &RemotePath) -> Result<Listed> {
    list_within(remote, path, LISTING_BYTES_MAX).await
}

async fn list_within(
    remote: &Arc<dyn Remote>,
    path: &RemotePath,
    max_bytes: usize,
) -> Result<Listed> {
    let dir = DirGuard::new(&**remote, remote.opendir(path).await?);
    let (mut listed, mut bytes) = (Listed::default(), 0);
    while let Some(batch) = remote.readdir(dir.dh()).await? {
        for entry in batch {
            bytes += size_of::<(Name, Attr)>() + entry.name.as_bytes().len();
            let attr = match entry.attr {
                Some(attr) => Ok(attr),
                None => remote.lstat(&path.join(&entry.name)).await,
            };
            match attr {
                Ok(attr) => listed.entries.push((entry.name, attr)),
                Err(Errno::ENOENT) => {}
                Err(errno) if is_lost(&**remote, errno) => return Err(errno),
                Err(errno) => listed.failed.push((entry.name, errno)),
            }
        }
        if bytes > max_bytes {
            return Err(Errno::EOVERFLOW);
        }
    }
    let Listed { entries, failed } = &listed;
    let is_refused = |(_, errno): &(Name, Errno)| *errno == Errno::EACCES;
    if entries.is_empty() && !failed.is_empty() && failed.iter().all(is_refused) {
        // The directory may be read and not be searched.
        return Err(Errno::EACCES);
    }
    put_in_order(&mut listed.entries);
    Ok(listed)
}

/// Puts what a server has listed into the order of names.
pub(crate) fn put_in_order(entries: &mut Entries) {
    entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    // A name that a server lists twice is one.
    entries.dedup_by(|(a, _), (b, _)| a == b);
}

#[cfg(test)]
mod tests {
    use testkit::{MemRemote, path};

    use super::*;

    #[tokio::test]
    async fn a_listing_is_bounded_by_its_bytes() {
        let remote = MemRemote::new();
        for number in 0..10 {
            remote.put_file(&format!("short/{number}"), "");
            remote.put_file(&format!("long/{number}{}", "x".repeat(200)), "");
        }
        let remote: Arc<dyn Remote> = Arc::new(remote);
        let max_bytes = 10 * (size_of::<(Name, Attr)>() + 100);
        let listed = list_within(&remote, &path("short"), max_bytes).await.unwrap();
        assert_eq!((listed.entries.len(), listed.failed.len()), (10, 0));
        let long = list_within(&remote, &path("long"), max_bytes).await;
        assert_eq!(long.err(), Some(Errno::EOVERFLOW));
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_searched_is_one_error() {
        let options = testkit::mem::Options { listing_attrs: false, ..Default::default() };
        let remote = MemRemote::with(options);
        for name in ["all/a", "all/b", "some/a", "some/b"] {
            remote.put_file(name, "");
        }
        for name in ["all/a", "all/b", "some/a"] {
            remote.set_unseen(name, Errno::EACCES);
        }
        let remote: Arc<dyn Remote> = Arc::new(remote);
        let all = list_readable(&remote, &path("all")).await;
        assert_eq!(all.err(), Some(Errno::EACCES));
        let some = list_readable(&remote, &path("some")).await.unwrap();
        assert_eq!((some.entries.len(), some.failed.len()), (1, 1));
    }
}
