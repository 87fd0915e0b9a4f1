//! Listing directories: those of several branches as one.
//!
//! All branches are read at the same time, and told in the order of search: a name that a branch
//! told is not told again when a later one has it too. Directories are told at the end, when it is
//! known which branches have them, since the time of last change that a merged directory shows is
//! the latest of all. What is read ahead of its turn is bounded; the names that were told are not
//! forgotten before the end, and their number is bounded.
//!
//! A call that is dropped loses nothing: the requests go on with the next call of the same handle.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::{Attr, DirEntry, Errno, Name, RemotePath, Result};
use tokio::sync::Mutex;

use crate::branch::{Live, Reached};
use crate::fan::Call;
use crate::handles::InnerDir;
use crate::known::Slots;
use crate::query::{End, Query, Trust};
use crate::tree::Tree;

/// Batches of a branch that wait for their turn: with OpenSSH's 100 names a batch as many as one
/// round trip of some milliseconds brings.
const MAX_AHEAD: usize = 16;

/// Names of a merged directory, at most: some 400 MB, which a server that never ends its listing
/// may cost us. Beyond them `ENOMEM`.
const MAX_NAMES: usize = 4_000_000;

/// Directories in one batch.
const BATCH: usize = 1_000;

/// Directories of which a listing tells [`crate::known`] at once: the table should not be swept by
/// one huge directory.
const MAX_LEARNT: usize = 4_096;

/// An open directory of the tree.
pub(crate) enum Listing {
    /// No other branch can have it.
    Alone(InnerDir),
    /// One branch has it, and no place is in it.
    One(One),
    /// Several have it, or the tree itself has names in it.
    Merged(Box<Mutex<Merged>>),
}

/// What opening a directory of a branch found; `None` for something that is no directory.
type Found = Option<InnerDir>;

/// Asks a branch for the directory. A server follows a link there, so what was not seen to be a
/// directory is looked at as well.
fn opendir_leaf(live: &Arc<Live>, at: RemotePath, directory: bool) -> Call<'static, Result<Found>> {
    let live = live.clone();
    Box::pin(async move {
        if directory {
            return InnerDir::open(&live, &at).await.map(Some);
        }
        let (attr, dir) = tokio::join!(live.remote.lstat(&at), InnerDir::open(&live, &at));
        if attr?.is_dir() { dir.map(Some) } else { Ok(None) }
    })
}

/// Opens the directory that the tree shows at `path`.
pub(crate) async fn opendir(tree: &Arc<Tree>, path: &RemotePath) -> Result<Listing> {
    if let Some((live, at)) = tree.only(path) {
        return Ok(Listing::Alone(live.act(InnerDir::open(live, &at)).await?));
    }
    let query = Query::new(tree, path, Trust::Known);
    let mut fan = query.ask(&opendir_leaf);
    let mut verdict = query.verdict();
    let (mut sources, mut told, mut left_out) = (Vec::new(), Vec::new(), 0);
    for index in 0..fan.len() {
        let mut answer = fan.take(index).await;
        if query.fixed {
            answer = answer.hide_unless(Option::is_some);
        }
        left_out += usize::from(matches!(answer.end, End::LeftOut));
        told.push(answer.outline(Option::is_some));
        match verdict.weigh(answer) {
            None => {}
            Some(Ok(Some(dir))) => sources.push(Source::new(query.branch(index).0, dir)),
            // Hidden by a directory.
            Some(Ok(None)) if !sources.is_empty() => {}
            Some(Ok(None)) => return Err(Errno::ENOTDIR),
            Some(Err(errno)) => return Err(errno),
        }
    }
    query.learn(&told, |is_directory| Some(*is_directory));
    let fixed_names = tree.fixed_names(path);
    if sources.is_empty() && fixed_names.is_empty() {
        // A place that nobody is there to fill is not empty.
        return Err(if query.fixed && left_out > 0 { Errno::EHOSTDOWN } else { verdict.nobody() });
    }
    let teach = Teach { tree: tree.clone(), path: path.clone(), changes: query.changes() };
    if fixed_names.is_empty() && sources.len() == 1 {
        let Source { slot, dir, .. } = sources.remove(0);
        return Ok(Listing::One(One { slot, dir, teach }));
    }
    let merged = Merged::new(teach, sources, fixed_names);
    Ok(Listing::Merged(Box::new(Mutex::new(merged))))
}

impl Listing {
    /// The next entries; `None` at the end.
    pub(crate) async fn next(&self) -> Result<Option<Vec<DirEntry>>> {
        match self {
            Listing::Alone(dir) => dir.live.act(dir.live.remote.readdir(dir.dh)).await,
            Listing::One(one) => one.next().await,
            Listing::Merged(merged) => merged.lock().await.next().await,
        }
    }
}

type Batch = Vec<DirEntry>;

/// What a listing tells [`crate::known`] of.
struct Teach {
    tree: Arc<Tree>,
    path: RemotePath,
    changes: u64,
}

impl Teach {
    /// Which of the branches that were `asked` have a directory of each name.
    fn directories<'n>(&self, asked: Slots, names: impl Iterator<Item = (&'n Name, Slots)>) {
        let names = names.take(MAX_LEARNT);
        self.tree.known.learn_listed(self.changes, &self.path, asked, names);
    }
}

/// The directory of one branch among several.
pub(crate) struct One {
    slot: usize,
    dir: Arc<InnerDir>,
    teach: Teach,
}

impl One {
    async fn next(&self) -> Result<Option<Batch>> {
        let live = &self.dir.live;
        let batch = live.act(live.remote.readdir(self.dir.dh)).await?;
        let is_dir = |entry: &&DirEntry| entry.attr.is_some_and(|attr| attr.is_dir());
        let directories = batch.iter().flatten().filter(is_dir);
        let here = 1 << self.slot;
        self.teach.directories(here, directories.map(|entry| (&entry.name, here)));
        Ok(batch)
    }
}

/// The directory of one branch.
struct Source {
    slot: usize,
    dir: Arc<InnerDir>,
    ahead: VecDeque<Batch>,
    next: Option<Call<'static, Reached<Option<Batch>>>>,
    ended: bool,
}

impl Source {
    fn new(slot: usize, dir: InnerDir) -> Source {
        Source { slot, dir: Arc::new(dir), ahead: VecDeque::new(), next: None, ended: false }
    }

    /// Reads ahead as far as it may.
    fn poll(&mut self, context: &mut Context<'_>) -> Result<()> {
        while !self.ended && self.ahead.len() < MAX_AHEAD {
            let next = self.next.get_or_insert_with(|| {
                let dir = self.dir.clone();
                Box::pin(async move { dir.live.reach(dir.live.remote.readdir(dir.dh)).await })
            });
            let Poll::Ready(batch) = next.as_mut().poll(context) else { return Ok(()) };
            self.next = None;
            match batch {
                Reached::Answered(Ok(Some(batch))) => self.ahead.push_back(batch),
                Reached::Answered(Ok(None)) | Reached::LeftOut => self.ended = true,
                Reached::Answered(Err(errno)) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// A directory that waits to be told until all branches were heard.
struct Waiting {
    name: Name,
    /// `None` when a branch did not tell.
    attr: Option<Attr>,
    branches: Slots,
}

/// The directories of several branches on their way to be one.
pub(crate) struct Merged {
    teach: Teach,
    /// In the order of search.
    sources: Vec<Source>,
    /// The one that is told now.
    current: usize,
    /// All names that were told, or wait.
    told: HashSet<Name>,
    directories: Vec<Waiting>,
    /// Where a name is in `directories`.
    places: HashMap<Name, usize>,
    /// What is to be told next.
    ready: VecDeque<DirEntry>,
    failed: Option<Errno>,
    over: bool,
}

impl Merged {
    fn new(teach: Teach, sources: Vec<Source>, fixed_names: Vec<Name>) -> Merged {
        let fixed = fixed_names.iter().cloned().map(|name| DirEntry { name, attr: None });
        Merged {
            teach,
            sources,
            current: 0,
            ready: fixed.collect(),
            told: fixed_names.into_iter().collect(),
            directories: Vec::new(),
            places: HashMap::new(),
            failed: None,
            over: false,
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
            if self.over {
                return Ok(self.next_directories());
            }
            poll_fn(|context| self.poll(context)).await;
        }
    }

    /// Reads from all, and tells what can be told of them.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for source in &mut self.sources[self.current..] {
            if let Err(errno) = source.poll(context) {
                self.failed = Some(errno);
                return Poll::Ready(());
            }
        }
        while let Some(source) = self.sources.get_mut(self.current) {
            if let Some(batch) = source.ahead.pop_front() {
                let slot = source.slot;
                if let Err(errno) = self.tell(slot, batch) {
                    self.failed = Some(errno);
                }
                // At once: there may be room to read ahead now, for which nobody would wake us.
                context.waker().wake_by_ref();
                return if self.ready.is_empty() { Poll::Pending } else { Poll::Ready(()) };
            }
            if !source.ended {
                return Poll::Pending;
            }
            self.current += 1;
        }
        self.over = true;
        self.learn();
        Poll::Ready(())
    }

    /// Puts what is new of a batch where it belongs.
    fn tell(&mut self, slot: usize, batch: Batch) -> Result<()> {
        let is_last = self.current + 1 == self.sources.len();
        for entry in batch {
            let is_directory = entry.attr.is_some_and(|attr| attr.is_dir());
            if self.told.contains(&entry.name) {
                self.merge(slot, &entry);
                continue;
            }
            if is_directory {
                self.places.insert(entry.name.clone(), self.directories.len());
                let (name, attr) = (entry.name.clone(), entry.attr);
                self.directories.push(Waiting { name, attr, branches: 1 << slot });
            }
            // Nobody comes after the last one who could have the name too.
            if !is_last || is_directory {
                if self.told.len() >= MAX_NAMES {
                    tracing::warn!(
                        "{}: more than {MAX_NAMES} names cannot be merged",
                        self.teach.path
                    );
                    return Err(Errno::ENOMEM);
                }
                self.told.insert(entry.name.clone());
            }
            if !is_directory {
                self.ready.push_back(entry);
            }
        }
        Ok(())
    }

    /// Another branch has a name as well.
    fn merge(&mut self, slot: usize, entry: &DirEntry) {
        let Some(place) = self.places.get(&entry.name) else { return };
        let waiting = &mut self.directories[*place];
        match entry.attr {
            Some(other) if other.is_dir() => {
                waiting.branches |= 1 << slot;
                if let Some(attr) = &mut waiting.attr {
                    attr.mtime = attr.mtime.max(other.mtime);
                }
            }
            // Hidden.
            Some(_) => {}
            None => waiting.attr = None,
        }
    }

    fn learn(&mut self) {
        let asked = self.sources.iter().fold(0, |asked, source| asked | 1 << source.slot);
        // What a branch has not told the kind of may be a directory.
        let sure = self.directories.iter().filter(|waiting| waiting.attr.is_some());
        self.teach.directories(asked, sure.map(|waiting| (&waiting.name, waiting.branches)));
        (self.told, self.places) = (HashSet::new(), HashMap::new());
        // Told from the end on.
        self.directories.reverse();
    }

    fn next_directories(&mut self) -> Option<Batch> {
        let left = self.directories.len().saturating_sub(BATCH);
        let batch: Batch = self.directories.drain(left..).rev().map(Waiting::entry).collect();
        (!batch.is_empty()).then_some(batch)
    }
}

impl Waiting {
    fn entry(self) -> DirEntry {
        DirEntry { name: self.name, attr: self.attr }
    }
}
