//! Listing directories, those of several branches merged into one.
//!
//! All branches are read at the same time, and returned in the order of search: a name of an
//! earlier branch hides the name on later ones. Directories are returned at the end, when it is
//! known which branches have them, since a merged directory shows the latest mtime of all.
//! Read-ahead is bounded. The names returned are remembered until the end, and their number is
//! bounded.
//!
//! Dropping a call loses nothing: its requests continue with the next call on the same handle.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::{Attr, DirEntry, Errno, Name, RemotePath, Result};
use tokio::sync::Mutex;

use crate::branch::{CallResult, TreeBranch};
use crate::dir_cache::SlotSet;
use crate::fan_out::Call;
use crate::handles::BranchDir;
use crate::query::{Outcome, Query, Trust};
use crate::tree::Tree;

/// Batches of a branch that wait to be returned: at OpenSSH's 100 names a batch, about as many as
/// arrive in one round trip of some milliseconds.
const READ_AHEAD_BATCHES: usize = 16;

/// Bound on the names of a merged directory: some 400 MB, the cost of a server that never ends its
/// listing. Beyond it `ENOMEM`.
const MAX_NAMES: usize = 4_000_000;

/// Directories in one batch.
const BATCH: usize = 1_000;

/// Directories of one listing that are recorded in [`crate::dir_cache`], so that one huge directory
/// does not evict the whole table.
const MAX_RECORDED: usize = 4_096;

/// An open directory of the tree.
pub(crate) enum Listing {
    /// No other branch can have it: the listing is passed through.
    Unmerged(BranchDir),
    /// One branch has it, and no place is below it.
    Single(Single),
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
        return Ok(Listing::Unmerged(branch.call(BranchDir::open(branch, &at)).await?));
    }
    let query = Query::new(tree, path, Trust::Cached);
    let mut calls = query.send(&opendir_leaf);
    let mut resolver = query.resolver();
    let (mut sources, mut answers, mut left_out) = (Vec::new(), Vec::new(), 0);
    for index in 0..calls.len() {
        let mut answer = calls.take(index).await;
        if query.fixed {
            answer = answer.hide_unless(Option::is_some);
        }
        left_out += usize::from(matches!(answer.outcome, Outcome::LeftOut));
        answers.push(answer.map(Option::is_some));
        match resolver.add(answer) {
            None => {}
            Some(Ok(Some(dir))) => sources.push(BranchListing::new(query.branch(index).0, dir)),
            // Hidden by a directory.
            Some(Ok(None)) if !sources.is_empty() => {}
            Some(Ok(None)) => return Err(Errno::ENOTDIR),
            Some(Err(errno)) => return Err(errno),
        }
    }
    query.record(&answers, |is_directory| Some(*is_directory));
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
        return Ok(Listing::Single(Single { slot, dir, cache_update }));
    }
    let merged = Merged::new(cache_update, sources, fixed_names);
    Ok(Listing::Merged(Box::new(Mutex::new(merged))))
}

impl Listing {
    /// The next entries; `None` at the end.
    pub(crate) async fn next(&self) -> Result<Option<Vec<DirEntry>>> {
        match self {
            Listing::Unmerged(dir) => dir.branch.call(dir.branch.remote.readdir(dir.dh)).await,
            Listing::Single(one) => one.next().await,
            Listing::Merged(merged) => merged.lock().await.next().await,
        }
    }
}

type Batch = Vec<DirEntry>;

/// The generation and the path under which a listing is recorded in [`crate::dir_cache`].
struct CacheUpdate {
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

/// A directory that one branch has, of several that were queried.
pub(crate) struct Single {
    slot: usize,
    dir: Arc<BranchDir>,
    cache_update: CacheUpdate,
}

impl Single {
    async fn next(&self) -> Result<Option<Batch>> {
        let branch = &self.dir.branch;
        let batch = branch.call(branch.remote.readdir(self.dir.dh)).await?;
        let is_dir = |entry: &&DirEntry| entry.attr.is_some_and(|attr| attr.is_dir());
        let directories = batch.iter().flatten().filter(is_dir);
        let bit = 1 << self.slot;
        self.cache_update.record(bit, directories.map(|entry| (&entry.name, bit)));
        Ok(batch)
    }
}

/// The listing of one branch.
struct BranchListing {
    slot: usize,
    dir: Arc<BranchDir>,
    read_ahead: VecDeque<Batch>,
    in_flight: Option<Call<'static, CallResult<Option<Batch>>>>,
    ended: bool,
}

impl BranchListing {
    fn new(slot: usize, dir: BranchDir) -> BranchListing {
        BranchListing {
            slot,
            dir: Arc::new(dir),
            read_ahead: VecDeque::new(),
            in_flight: None,
            ended: false,
        }
    }

    /// Reads ahead up to the bound.
    fn poll(&mut self, context: &mut Context<'_>) -> Result<()> {
        while !self.ended && self.read_ahead.len() < READ_AHEAD_BATCHES {
            let next = self.in_flight.get_or_insert_with(|| {
                let dir = self.dir.clone();
                Box::pin(async move { dir.branch.attempt(dir.branch.remote.readdir(dir.dh)).await })
            });
            let Poll::Ready(batch) = next.as_mut().poll(context) else { return Ok(()) };
            self.in_flight = None;
            match batch {
                CallResult::Answered(Ok(Some(batch))) => self.read_ahead.push_back(batch),
                CallResult::Answered(Ok(None)) | CallResult::LeftOut => self.ended = true,
                CallResult::Answered(Err(errno)) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// A directory that is returned after the listings of all branches have ended.
struct PendingDir {
    name: Name,
    /// `None` when a branch did not report the attributes.
    attr: Option<Attr>,
    branches: SlotSet,
}

/// A merged listing in progress.
pub(crate) struct Merged {
    cache_update: CacheUpdate,
    /// In the order of search.
    sources: Vec<BranchListing>,
    /// The index of the branch that is returned at present.
    current: usize,
    /// All names that were returned or are pending.
    names: HashSet<Name>,
    directories: Vec<PendingDir>,
    /// The index of a name in `directories`.
    dir_index: HashMap<Name, usize>,
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
        Merged {
            cache_update,
            sources,
            current: 0,
            ready: fixed.collect(),
            names: fixed_names.into_iter().collect(),
            directories: Vec::new(),
            dir_index: HashMap::new(),
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
        self.complete = true;
        self.record();
        Poll::Ready(())
    }

    /// Adds the entries of a batch that are not hidden.
    fn add_batch(&mut self, slot: usize, batch: Batch) -> Result<()> {
        let is_last = self.current + 1 == self.sources.len();
        for entry in batch {
            let is_directory = entry.attr.is_some_and(|attr| attr.is_dir());
            if self.names.contains(&entry.name) {
                self.merge(slot, &entry);
                continue;
            }
            if is_directory {
                self.dir_index.insert(entry.name.clone(), self.directories.len());
                let (name, attr) = (entry.name.clone(), entry.attr);
                self.directories.push(PendingDir { name, attr, branches: 1 << slot });
            }
            // After the last branch no other one can have the name.
            if !is_last || is_directory {
                if self.names.len() >= MAX_NAMES {
                    tracing::warn!(
                        "{}: more than {MAX_NAMES} names cannot be merged",
                        self.cache_update.path
                    );
                    return Err(Errno::ENOMEM);
                }
                self.names.insert(entry.name.clone());
            }
            if !is_directory {
                self.ready.push_back(entry);
            }
        }
        Ok(())
    }

    /// Merges an entry whose name an earlier branch has.
    fn merge(&mut self, slot: usize, entry: &DirEntry) {
        let Some(index) = self.dir_index.get(&entry.name) else { return };
        let pending = &mut self.directories[*index];
        match entry.attr {
            Some(other) if other.is_dir() => {
                pending.branches |= 1 << slot;
                if let Some(attr) = &mut pending.attr {
                    attr.mtime = attr.mtime.max(other.mtime);
                }
            }
            // Hidden.
            Some(_) => {}
            None => pending.attr = None,
        }
    }

    fn record(&mut self) {
        let queried = self.sources.iter().fold(0, |queried, source| queried | 1 << source.slot);
        // An entry without attributes may be a directory.
        let certain = self.directories.iter().filter(|pending| pending.attr.is_some());
        self.cache_update.record(queried, certain.map(|pending| (&pending.name, pending.branches)));
        (self.names, self.dir_index) = (HashSet::new(), HashMap::new());
        // Returned from the end on.
        self.directories.reverse();
    }

    fn next_directories(&mut self) -> Option<Batch> {
        let left = self.directories.len().saturating_sub(BATCH);
        let batch: Batch = self.directories.drain(left..).rev().map(PendingDir::entry).collect();
        (!batch.is_empty()).then_some(batch)
    }
}

impl PendingDir {
    fn entry(self) -> DirEntry {
        DirEntry { name: self.name, attr: self.attr }
    }
}
