//! The daemon's side: checks which files of a mount are cached, and fetches the others.
//!
//! Walks trees by the same layers as the mount, with a bounded number of requests in flight and a
//! bounded queue of entries. Ends when its future is dropped; contents fetched by then stay cached.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use base::{Attr, DirGuard, Errno, FileKind, Remote, RemotePath, Result};
use cache::{Presence, SourceId, Store, Warmed};
use cli::{OrProblem, Problem};
use control::job::{CacheJob, Path, Tally};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::quantity;
use crate::stack::disk::Kept;
use crate::stack::{Source, Stack};

/// Interval of the progress reports of a job.
const TOLD_EVERY: Duration = Duration::from_millis(100);

/// Maximum number of files fetched in parallel: each may have some dozen requests in flight.
const MAX_AT_ONCE: u32 = 256;

/// Number of files checked in parallel.
const CHECKED_AT_ONCE: u32 = 32;

/// Number of queued files at which no further directory is listed. Their paths take some ten
/// megabytes.
const MAX_WAITING: usize = 100_000;

/// Maximum bytes of all entries of a walk, queued or being listed: some million. A server may list
/// a directory without an end.
const MAX_LISTED_BYTES: usize = 256 << 20;

/// Runs `job`, and sends the progress to `told`.
pub async fn run(
    stack: &Arc<Stack>,
    job: CacheJob,
    told: &watch::Sender<Tally>,
) -> std::result::Result<Tally, Problem> {
    let store = store(stack)?;
    match job {
        CacheJob::Pin { paths } => {
            pin(stack, store, &paths, true).await?;
            let mut tally = Walk::new(stack, None).over(paths, told).await;
            let bound = store.status().limit_bytes;
            // Earlier pins take space, too, as far as their contents are cached by now.
            let store = store.clone();
            let cached = tokio::task::spawn_blocking(move || store.pinned_bytes()).await;
            let pinned = cached.unwrap_or(0) + tally.bytes.saturating_sub(tally.present_bytes);
            if pinned > bound {
                let (pinned, bound) = (quantity::bytes(pinned), quantity::bytes(bound));
                tally.tell(format!(
                    "the pinned files take {pinned}, but the limit of the cache is {bound}: \
                     some of them will not be cached (raise cache_size)"
                ));
            }
            Ok(tally)
        }
        CacheJob::Unpin { paths } => {
            pin(stack, store, &paths, false).await.map(|()| Tally::default())
        }
        CacheJob::Check { paths } => Ok(Walk::new(stack, None).over(paths, told).await),
        CacheJob::Warm { paths, at_once } => {
            let walk = Walk::new(stack, Some(at_once.clamp(1, MAX_AT_ONCE)));
            let mut tally = walk.over(paths, told).await;
            if let Some(why) = store.status().off.filter(|_| tally.not_kept_files > 0) {
                tally.tell(format!("the cache cannot be written to: {why}"));
            }
            Ok(tally)
        }
    }
}

fn store(stack: &Stack) -> std::result::Result<&Store, Problem> {
    let about = |why: String| Problem::new("cache", why);
    let disk = stack.disk().ok_or_else(|| {
        about("this mount has no disk cache".to_owned()).hint("mount with -o cache=disk")
    })?;
    disk.store.as_ref().map_err(|why| about(why.clone()))
}

/// The sources that contain `path`, with its paths in them; the visible one first.
async fn places(stack: &Stack, path: &RemotePath) -> Result<Vec<(Arc<Source>, RemotePath)>> {
    let sources = stack.sources();
    let Some(union) = &stack.union else {
        return Ok(sources.into_iter().map(|source| (source, path.clone())).collect());
    };
    let located = union.locate(path).await?;
    let mut found = Vec::new();
    for location in located {
        let source = sources.iter().find(|source| source.spec.shown() == location.source);
        if let Some(source) = source {
            found.push((source.clone(), source.below_place(path)));
        }
    }
    Ok(found)
}

/// The sources that contained `path` if it existed, with its paths in them.
fn possible_places(stack: &Stack, path: &RemotePath) -> Vec<(Arc<Source>, RemotePath)> {
    let contains = |source: &Arc<Source>| {
        let mut names = path.names();
        source.spec.place.iter().all(|name| names.next() == Some(name.as_bytes()))
    };
    let sources = stack.sources().into_iter().filter(contains);
    let below = |source: Arc<Source>| {
        let at = source.below_place(path);
        (source, at)
    };
    sources.map(below).collect()
}

async fn pin(
    stack: &Stack,
    store: &Store,
    paths: &[Path],
    pins: bool,
) -> std::result::Result<(), Problem> {
    for Path(path) in paths {
        let about = || format!("'{}'", shown(path));
        let places = match pins {
            true => places(stack, path).await.or_problem(about())?,
            false => possible_places(stack, path),
        };
        let kept: Vec<(SourceId, RemotePath)> = places
            .into_iter()
            .filter_map(|(source, at)| Some((source.cached.as_ref()?.id, at)))
            .flat_map(|(id, at)| [(id, at.clone()), (cache::Cached::pinned_source(&id), at)])
            .collect();
        if kept.is_empty() {
            return Err(Problem::new(about(), "a local directory is not cached"));
        }
        let store = store.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut any = pins;
            for (source, at) in &kept {
                if pins {
                    store.pin(source, at)?;
                } else {
                    any |= store.unpin(source, at)?;
                }
            }
            Ok::<bool, cache::StoreError>(any)
        });
        if !done.await.or_problem(about())?.or_problem(about())? {
            return Err(Problem::new(about(), "not pinned")
                .hint("unpin it by the path by which it was pinned"));
        }
    }
    Ok(())
}

/// A path for messages.
fn shown(path: &RemotePath) -> String {
    match path.is_root() {
        true => ".".to_owned(),
        false => base::printable(path.as_bytes()),
    }
}

/// A queued entry.
enum Work {
    /// An entry whose type is not known yet.
    Unknown(RemotePath),
    Directory(RemotePath),
    Link(RemotePath),
    File(RemotePath, u64),
}

impl Work {
    /// The memory that it takes.
    fn bytes(&self) -> usize {
        let (Work::Unknown(path) | Work::Directory(path) | Work::Link(path) | Work::File(path, _)) =
            self;
        size_of::<Work>() + path.as_bytes().len()
    }
}

/// The bytes of the entries of a walk.
struct Room {
    taken: AtomicUsize,
    limit: usize,
}

impl Room {
    fn new(limit: usize) -> Arc<Room> {
        Arc::new(Room { taken: AtomicUsize::new(0), limit })
    }

    /// Whether the limit is kept.
    fn take(&self, bytes: usize) -> bool {
        self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.limit
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A walk through trees.
struct Walk {
    stack: Arc<Stack>,
    room: Arc<Room>,
    /// Number of files to fetch in parallel; `None` to check only.
    fetches: Option<u32>,
    /// Directories, links, and entries of unknown type.
    places: Vec<Work>,
    files: Vec<Work>,
    tally: Tally,
    /// Bytes fetched of files in progress.
    moved: Arc<AtomicU64>,
}

impl Walk {
    fn new(stack: &Arc<Stack>, fetches: Option<u32>) -> Walk {
        Walk {
            stack: stack.clone(),
            room: Room::new(MAX_LISTED_BYTES),
            fetches,
            places: Vec::new(),
            files: Vec::new(),
            tally: Tally::default(),
            moved: Arc::default(),
        }
    }

    async fn over(mut self, paths: Vec<Path>, told: &watch::Sender<Tally>) -> Tally {
        let paths = paths.into_iter().rev().map(|Path(path)| Work::Unknown(path)).collect();
        self.take((paths, Tally::default()));
        let at_once = self.fetches.unwrap_or(CHECKED_AT_ONCE) as usize;
        // Dropping this cancels all tasks in it.
        let mut running = JoinSet::new();
        let mut tick = tokio::time::interval(TOLD_EVERY);
        loop {
            while running.len() < at_once
                && let Some(work) = self.next()
            {
                running.spawn(self.start(work));
            }
            tokio::select! {
                done = running.join_next() => match done {
                    Some(Ok(done)) => self.take(done),
                    // The task has panicked, which was logged.
                    Some(Err(error)) => self.tally.add(&failed(error.to_string())),
                    None => break,
                },
                _ = tick.tick() => drop(told.send_replace(self.told())),
            }
        }
        if self.fetches.is_some() {
            // Includes listings. Does not wait for other readers, which may read all the time.
            self.stack.settled().await;
        }
        self.told()
    }

    /// The next entry: directories first, so that the total is known early, unless too many files
    /// are queued.
    fn next(&mut self) -> Option<Work> {
        let place = match self.files.len() < MAX_WAITING {
            true => self.places.pop(),
            false => None,
        };
        let next = place.or_else(|| self.files.pop());
        next.inspect(|work| self.room.give_back(work.bytes()))
    }

    /// Processes an entry. Returns the entries found, and what to add to the tally.
    fn start(&self, work: Work) -> impl Future<Output = (Vec<Work>, Tally)> + use<> {
        let (stack, moved, fetches) = (self.stack.clone(), self.moved.clone(), self.fetches);
        let room = self.room.clone();
        async move {
            let (path, done) = match work {
                Work::Unknown(path) => {
                    let told = stack.remote.lstat(&path).await;
                    let found = told.map(|attr| work_of(path.clone(), Some(attr)));
                    (path, found.map(|found| (Vec::from_iter(found), Tally::default())))
                }
                Work::Directory(path) => {
                    let listed = list(&stack.remote, &path, &room).await;
                    (path, listed.map(|found| (found, Tally::default())))
                }
                Work::Link(path) => {
                    // The cache records the target.
                    let read = match fetches.is_some() {
                        true => stack.remote.readlink(&path).await.map(drop),
                        false => Ok(()),
                    };
                    (path, read.map(|()| (Vec::new(), Tally::default())))
                }
                Work::File(path, size) => {
                    let done = file(&stack, &path, size, fetches.is_some(), &moved).await;
                    (path, done.map(|tally| (Vec::new(), tally)))
                }
            };
            done.unwrap_or_else(|error| (Vec::new(), failed(format!("{}: {error}", shown(&path)))))
        }
    }

    fn take(&mut self, (found, tally): (Vec<Work>, Tally)) {
        self.tally.add(&tally);
        for work in found {
            self.room.take(work.bytes());
            if let Work::File(_, size) = work {
                self.tally.files += 1;
                self.tally.bytes += size;
                self.files.push(work);
            } else {
                self.places.push(work);
            }
        }
    }

    fn told(&self) -> Tally {
        Tally { fetched_bytes: self.moved.load(Ordering::Relaxed), ..self.tally.clone() }
    }
}

/// The entry to queue for a path with these attributes; none for special files.
fn work_of(path: RemotePath, attr: Option<Attr>) -> Option<Work> {
    match attr {
        None => Some(Work::Unknown(path)),
        Some(attr) => match attr.kind {
            FileKind::Directory => Some(Work::Directory(path)),
            FileKind::Regular => Some(Work::File(path, attr.size)),
            FileKind::Symlink => Some(Work::Link(path)),
            _ => None,
        },
    }
}

async fn list(remote: &Arc<dyn Remote>, path: &RemotePath, room: &Room) -> Result<Vec<Work>> {
    let mut found = Vec::new();
    let mut bytes = 0;
    let listing = async {
        let dir = DirGuard::new(remote.as_ref(), remote.opendir(path).await?);
        while let Some(batch) = remote.readdir(dir.dh()).await? {
            let work = batch.into_iter().filter_map(|it| work_of(path.join(&it.name), it.attr));
            let before = found.len();
            found.extend(work);
            let more = found[before..].iter().map(Work::bytes).sum();
            bytes += more;
            if !room.take(more) {
                return Err(Errno::EOVERFLOW);
            }
        }
        Ok(())
    };
    let listed = listing.await;
    room.give_back(bytes);
    listed.map(|()| found)
}

/// One failure.
fn failed(problem: String) -> Tally {
    Tally { failed: 1, problems: vec![problem], ..Tally::default() }
}

/// Checks or fetches a file. Returns what to add to the tally, except the bytes fetched.
async fn file(
    stack: &Stack,
    path: &RemotePath,
    size: u64,
    fetches: bool,
    moved: &Arc<AtomicU64>,
) -> Result<Tally> {
    let places = places(stack, path).await?;
    let (source, at) = places.into_iter().next().ok_or(Errno::ENOENT)?;
    let done = Tally { done_files: 1, ..Tally::default() };
    let whole = Tally { whole_files: 1, present_bytes: size, ..done.clone() };
    let Some(Kept { layer, .. }) = &source.cached else {
        // A local directory.
        return Ok(whole);
    };
    if !fetches {
        let Presence { whole, present, .. } = layer.presence(&at).await?;
        return Ok(Tally { whole_files: u64::from(whole), present_bytes: present, ..done });
    }
    let moved = moved.clone();
    let fetched = move |bytes: u64| {
        moved.fetch_add(bytes, Ordering::Relaxed);
    };
    Ok(match layer.warm(&at, &fetched).await? {
        Warmed::Already => whole,
        Warmed::Fetched(_) => Tally { fetched_files: 1, ..whole },
        Warmed::NotKept => Tally { not_kept_files: 1, ..done },
        Warmed::TooLarge => {
            let why = "larger than half of the cache, so it is not cached (raise cache_size)";
            let problems = vec![format!("{}: {why}", shown(path))];
            Tally { not_kept_files: 1, problems, ..done }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{MemRemote, path};

    /// Class of attack: limits.
    #[tokio::test]
    async fn a_listing_takes_no_more_than_its_room() {
        let remote = Arc::new(MemRemote::new());
        for number in 0..300 {
            remote.mkdir(&path(&format!("d{number:03}")), 0o755).await.unwrap();
        }
        let remote: Arc<dyn Remote> = remote;
        let each = size_of::<Work>() + 4;
        for (limit, wanted) in [(300 * each, Ok(300)), (299 * each, Err(Errno::EOVERFLOW))] {
            let room = Room::new(limit);
            let listed = list(&remote, &RemotePath::root(), &room).await;
            assert_eq!(listed.map(|found| found.len()), wanted);
            assert_eq!(room.taken.load(Ordering::Relaxed), 0);
        }
    }
}
