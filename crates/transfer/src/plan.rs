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
mod folding;
mod top;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Attr, DirGuard, Errno, Name, Remote, RemotePath, Result};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::dir::Dir;
use crate::run::{Core, Group};
use crate::step::Step;
use crate::task::returned;
pub use ahead::Ahead;
pub(crate) use compare::same_content;
pub(crate) use decide::{is_same_second, unconfirmed_mtime};
pub(crate) use folding::may_collide;
pub(crate) use top::look;

/// Pairs of directories that are compared at once. A pair takes two to three round trips, so over
/// 100 ms these are 200 to 300 directories a second.
const PAIRS: usize = 64;

/// As [`PAIRS`], if digests are compared: one command makes those of many directories.
const PAIRS_BY_DIGEST: usize = 512;

/// Steps that are sent together: waking the receiver costs as much as comparing a few.
const TOGETHER: usize = 64;

/// Entries of one directory, at most, since a listing is held whole: half a gigabyte.
const ENTRIES_MAX: usize = 1 << 22;

/// A directory of a source and the one of the target that it becomes.
pub(crate) struct Pair {
    pub(crate) source: usize,
    pub(crate) from: RemotePath,
    /// At the target.
    pub(crate) own: Arc<Dir>,
    /// It is a directory at the target already.
    pub(crate) there: bool,
    /// The source's file system, if others are not entered.
    pub(crate) file_system: Option<u64>,
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

/// Lists a whole directory in the order of names. Entries without attributes are queried; those
/// removed meanwhile are omitted.
pub(crate) async fn list(remote: &Arc<dyn Remote>, path: &RemotePath) -> Result<Vec<(Name, Attr)>> {
    let dir = DirGuard::new(&**remote, remote.opendir(path).await?);
    let mut entries = Vec::new();
    while let Some(batch) = remote.readdir(dir.dh()).await? {
        for entry in batch {
            let attr = match entry.attr {
                Some(attr) => attr,
                None => match remote.lstat(&path.join(&entry.name)).await {
                    Ok(attr) => attr,
                    Err(Errno::ENOENT) => continue,
                    Err(errno) => return Err(errno),
                },
            };
            entries.push((entry.name, attr));
        }
        if entries.len() > ENTRIES_MAX {
            return Err(Errno::EOVERFLOW);
        }
    }
    put_in_order(&mut entries);
    Ok(entries)
}

/// Puts what a server has listed into the order of names.
pub(crate) fn put_in_order(entries: &mut Vec<(Name, Attr)>) {
    entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    // A name that a server lists twice is one.
    entries.dedup_by(|(a, _), (b, _)| a == b);
}
