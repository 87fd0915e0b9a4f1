//! Listing directories, those of several branches merged into one.
//!
//! All branches are read at the same time, and returned in the order of search: a name of an
//! earlier branch hides the name on later ones. Directories are returned at the end, when it is
//! known which branches have them, since a merged directory shows the latest mtime of all.
//! Read-ahead is bounded. The names returned are remembered until the end, and their memory is
//! bounded.
//!
//! Dropping a call loses nothing: its requests continue with the next call on the same handle.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::{Attr, DirEntry, Errno, Name, RemotePath, Result};
use tokio::sync::Mutex;

use crate::branch::TreeBranch;
use crate::dir_cache::SlotSet;
use crate::fan_out::Call;
use crate::handles::BranchDir;
use crate::query::{Outcome, Query, Trust};
use crate::tree::Tree;

/// Batches of a branch that wait to be returned: at OpenSSH's 100 names a batch, about as many as
/// arrive in one round trip of some milliseconds.
const READ_AHEAD_BATCHES: usize = 16;

/// Bound on the memory for the names of a merged directory, the cost of a server that never ends
/// its listing: some 3.5 million short names, or 350,000 of the longest. Beyond it `ENOMEM`.
const MAX_NAMES_BYTES: usize = 400_000_000;

/// Approximate memory for a name besides its bytes, and for a directory besides its name.
const ENTRY_BYTES: usize = 100;

/// Directories in one batch.
const BATCH: usize = 1_000;

/// Directories of one listing that are recorded in [`crate::dir_cache`], so that one huge directory
/// does not evict the whole table.
const MAX_RECORDED: usize = 4_096;

/// An open directory of the tree.
pub(crate) enum Listing {
    /// One branch has it, and no place is below it. Without a cache update, no other branch can
    /// have it.
    Single(Arc<BranchDir>, Option<(usize, CacheUpdate)>),
    /// Several branches have it, or it contains places.
    Merged(Box<Mutex<Merged>>),
}

/// The result of opening a directory of a branch; `None` if the entry is not a directory.
type Found = Option<BranchDir>;

/// Opens the directory on a branch. A server follows a link there, so the type is queried too,
/// unless the path is known to be a directory.
fn opendir_leaf(
    branch: &Arc<TreeBranch>,
    at: RemotePath,
    directory: bool,
) -> Call<'static, Result<Found>> {
    let branch = branch.clone();
    Box::pin(async move {
        if directory {
            return BranchDir::open(&branch, &at).await.map(Some);
        }
        let (attr, dir) = tokio::join!(branch.remote.lstat(&at), BranchDir::open(&branch, &at));
        if attr?.is_dir() { dir.map(Some) } else { Ok(None) }
    })
}

/// Opens the directory shown at `path`.
pub(crate) async fn opendir(tree: &Arc<Tree>, path: &RemotePath) -> Result<Listing> {
    if let Some((branch, at)) = tree.sole_branch(path) {
        let dir = branch.call(BranchDir::open(branch, &at)).await?;
        return Ok(Listing::Single(Arc::new(dir), None));
    }
    let query = Query::new(tree, path, Trust::Cached);
    let mut calls = query.send(&opendir_leaf);
    let mut resolver = query.resolver();
    let (mut sources, mut reports, mut left_out) = (Vec::new(), Vec::new(), 0);
    for index in 0..calls.len() {
        let mut answer = calls.take(index).await;
        if query.fixed {
            answer = answer.hide_unless(Option::is_some);
        }
        left_out += usize::from(matches!(answer.outcome, Outcome::LeftOut));
        reports.extend(query.report(index, &answer, Option::is_some));
        match resolver.add(answer) {
            None => {}
            Some(Ok(Some(mut dir))) => {
                dir.merges = tree.merges_in(path);
                sources.push(BranchListing::new(query.branch(index).0, dir));
            }
            // Hidden by a directory.
            Some(Ok(None)) if !sources.is_empty() => {}
            Some(Ok(None)) => return Err(Errno::ENOTDIR),
            Some(Err(errno)) => return Err(errno),
        }
    }
    query.record(&reports);
    let fixed_names = tree.fixed_names(path);
    if sources.is_empty() && fixed_names.is_empty() {
        // A place whose branches are all unreachable is not empty.
        return Err(if query.fixed && left_out > 0 {
            Errno::EHOSTDOWN
        } else {
            resolver.not_found()
        });
    }
    let cache_update =
        CacheUpdate { tree: tree.clone(), path: path.clone(), generation: query.generation() };
    if fixed_names.is_empty() && sources.len() == 1 {
        let BranchListing { slot, dir, .. } = sources.remove(0);
        return Ok(Listing::Single(dir, Some((slot, cache_update))));
    }
    let merged = Merged::new(cache_update, sources, fixed_names);
    Ok(Listing::Merged(Box::new(Mutex::new(merged))))
}

impl Listing {
    /// The next entries; `None` at the end.
    pub(crate) async fn next(&self) -> Result<Option<Vec<DirEntry>>> {
        match self {
            Listing::Single(dir, cache_update) => {
                let batch = dir.branch.call(dir.next()).await?;
                if let Some((slot, cache_update)) = cache_update {
                    let is_dir = |entry: &&DirEntry| entry.attr.is_some_and(|attr| attr.is_dir());
                    let directories = batch.iter().flatten().filter(is_dir);
                    let this = SlotSet::of(*slot);
                    cache_update.record(this, directories.map(|entry| (&entry.name, this)));
                }
                Ok(batch)
            }
            Listing::Merged(merged) => merged.lock().await.next().await,
        }
    }
}

type Batch = Vec<DirEntry>;

/// The generation and the path under which a listing is recorded in [`crate::dir_cache`].
pub(crate) struct CacheUpdate {
    tree: Arc<Tree>,
    path: RemotePath,
    generation: u64,
}

impl CacheUpdate {
    /// Records which of the `queried` branches have a directory of each name.
    fn record<'n>(&self, queried: SlotSet, names: impl Iterator<Item = (&'n Name, SlotSet)>) {
        let names = names.take(MAX_RECORDED);
        self.tree.dir_cache.record_listing(self.generation, &self.path, queried, names);
    }
}

/// The listing of one branch.
struct BranchListing {
    slot: usize,
    dir: Arc<BranchDir>,
    read_ahead: VecDeque<Batch>,
    in_flight: Option<Call<'static, Option<Result<Option<Batch>>>>>,
    ended: bool,
    /// The branch has become unreachable before the end.
    left_out: bool,
}

impl BranchListing {
    fn new(slot: usize, dir: BranchDir) -> BranchListing {
        BranchListing {
            slot,
            dir: Arc::new(dir),
            read_ahead: VecDeque::new(),
            in_flight: None,
            ended: false,
            left_out: false,
        }
    }

    /// Reads ahead up to the bound.
    fn poll(&mut self, context: &mut Context<'_>) -> Result<()> {
        while !self.ended && self.read_ahead.len() < READ_AHEAD_BATCHES {
            let next = self.in_flight.get_or_insert_with(|| {
                let dir = self.dir.clone();
                Box::pin(async move { dir.branch.attempt(dir.next()).await })
            });
            let Poll::Ready(batch) = next.as_mut().poll(context) else { return Ok(()) };
            self.in_flight = None;
            match batch {
                Some(Ok(Some(batch))) => self.read_ahead.push_back(batch),
                Some(Ok(None)) => self.ended = true,
                None => (self.ended, self.left_out) = (true, true),
                Some(Err(errno)) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// The names of a merged directory that were returned or are pending, those of directories with
/// their index in [`Merged::directories`].
struct SeenNames {
    names: HashMap<Name, Option<usize>>,
    /// Memory that more names may take.
    free_bytes: usize,
}

impl SeenNames {
    fn new(max_bytes: usize) -> SeenNames {
        SeenNames { names: HashMap::new(), free_bytes: max_bytes }
    }

    fn get(&self, name: &Name) -> Option<Option<usize>> {
        self.names.get(name).copied()
    }

    /// Adds a name; `ENOMEM` beyond the bound.
    fn insert(&mut self, name: Name, directory: Option<usize>) -> Result<()> {
        let entries = if directory.is_some() { 2 } else { 1 };
        let bytes = entries * ENTRY_BYTES + name.as_bytes().len();
        self.free_bytes = self.free_bytes.checked_sub(bytes).ok_or(Errno::ENOMEM)?;
        self.names.insert(name, directory);
        Ok(())
    }
}

/// A merged listing in progress.
pub(crate) struct Merged {
    cache_update: CacheUpdate,
    /// In the order of search.
    sources: Vec<BranchListing>,
    /// The index of the branch that is returned at present.
    current: usize,
    names: SeenNames,
    /// Directories, with the branches that have them. They are returned after the listings of all
    /// branches have ended. One has no attributes when a branch did not report them.
    directories: Vec<(DirEntry, SlotSet)>,
    /// The entries to return next.
    ready: VecDeque<DirEntry>,
    failed: Option<Errno>,
    complete: bool,
}

impl Merged {
    fn new(
        cache_update: CacheUpdate,
        sources: Vec<BranchListing>,
        fixed_names: Vec<Name>,
    ) -> Merged {
        let fixed = fixed_names.iter().cloned().map(|name| DirEntry { name, attr: None });
        let ready = fixed.collect();
        let mut names = SeenNames::new(MAX_NAMES_BYTES);
        names.names.extend(fixed_names.into_iter().map(|name| (name, None)));
        Merged {
            cache_update,
            sources,
            current: 0,
            ready,
            names,
            directories: Vec::new(),
            failed: None,
            complete: false,
        }
    }

    async fn next(&mut self) -> Result<Option<Batch>> {
        loop {
            if let Some(errno) = self.failed {
                return Err(errno);
            }
            if !self.ready.is_empty() {
                return Ok(Some(std::mem::take(&mut self.ready).into()));
            }
            if self.complete {
                return Ok(self.next_directories());
            }
            poll_fn(|context| self.poll(context)).await;
        }
    }

    /// Reads from all branches, and adds the batches that can be returned.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for source in &mut self.sources[self.current..] {
            if let Err(errno) = source.poll(context) {
                self.failed = Some(errno);
                return Poll::Ready(());
            }
        }
        while let Some(source) = self.sources.get_mut(self.current) {
            if let Some(batch) = source.read_ahead.pop_front() {
                let slot = source.slot;
                if let Err(errno) = self.add_batch(slot, batch) {
                    self.failed = Some(errno);
                }
                // Wakes the task at once: the freed space may allow more read-ahead, of which no
                // other waker knows.
                context.waker().wake_by_ref();
                return if self.ready.is_empty() { Poll::Pending } else { Poll::Ready(()) };
            }
            if !source.ended {
                return Poll::Pending;
            }
            self.current += 1;
        }
        // What is unreachable is not empty.
        if self.cache_update.tree.fixed_names(&self.cache_update.path).is_empty()
            && self.sources.iter().all(|source| source.left_out)
        {
            self.failed = Some(Errno::EHOSTDOWN);
            return Poll::Ready(());
        }
        self.complete = true;
        self.record();
        Poll::Ready(())
    }

    /// Adds the entries of a batch that are not hidden.
    fn add_batch(&mut self, slot: usize, batch: Batch) -> Result<()> {
        let is_last = self.current + 1 == self.sources.len();
        for entry in batch {
            let is_directory = entry.attr.is_some_and(|attr| attr.is_dir());
            if let Some(known) = self.names.get(&entry.name) {
                if let Some(index) = known {
                    self.merge(index, slot, entry.attr);
                }
                continue;
            }
            let index = is_directory.then_some(self.directories.len());
            // After the last branch no other one can have the name.
            if !is_last || is_directory {
                self.names.insert(entry.name.clone(), index).inspect_err(|_| {
                    tracing::warn!("{}: too many names to be merged", self.cache_update.path);
                })?;
            }
            match is_directory {
                true => self.directories.push((entry, SlotSet::of(slot))),
                false => self.ready.push_back(entry),
            }
        }
        Ok(())
    }

    /// Merges an entry into the directory of the same name of an earlier branch.
    fn merge(&mut self, index: usize, slot: usize, other: Option<Attr>) {
        let (entry, branches) = &mut self.directories[index];
        match other {
            Some(other) if other.is_dir() => {
                *branches = branches.with(slot);
                if let Some(attr) = &mut entry.attr {
                    attr.mtime = attr.mtime.max(other.mtime);
                }
            }
            // Hidden.
            Some(_) => {}
            None => entry.attr = None,
        }
    }

    fn record(&mut self) {
        let queried = self.sources.iter().filter(|source| !source.left_out);
        let queried = queried.map(|source| source.slot).collect();
        // An entry without attributes may be a directory.
        let certain = self.directories.iter().filter(|(entry, _)| entry.attr.is_some());
        self.cache_update
            .record(queried, certain.map(|(entry, branches)| (&entry.name, *branches)));
        self.names = SeenNames::new(0);
        // Returned from the end on.
        self.directories.reverse();
    }

    fn next_directories(&mut self) -> Option<Batch> {
        let left = self.directories.len().saturating_sub(BATCH);
        let batch: Batch = self.directories.drain(left..).rev().map(|(entry, _)| entry).collect();
        (!batch.is_empty()).then_some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_on_names_includes_their_bytes() {
        let name = |number: usize, len| Name::new(format!("{number:0len$}").as_bytes()).unwrap();
        let accepted = |len| {
            let mut names = SeenNames::new(100_000);
            (0..).take_while(|number| names.insert(name(*number, len), None).is_ok()).count()
        };
        assert_eq!((accepted(25), accepted(Name::MAX_BYTES)), (800, 88));
    }
}
