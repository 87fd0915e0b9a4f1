//! Prefetching of small files.
//!
//! `tar`, `grep -r`, `rsync` and `cp -r` open the files of a tree one after the other. With a round
//! trip for each open and another for its read, such a program waits nearly all the time. So when
//! files are being opened in the [order](Order) of their directory's listing, of their names or of
//! their inode numbers, the next files of the [traversal](Traversal) are opened, read and closed
//! ahead, all at the same time.
//!
//! A prefetched content belongs to its attributes, which were requested before it. It validates an
//! open as any other answer of the server does, for as long (`open_revalidate`), and is dropped
//! after that. It is not used if the file was changed locally after the request.
//!
//! A file whose pages the kernel has is not fetched but
//! [revalidated](crate::prefetch::revalidation), unless pages turn out to be
//! [missing](FilePrefetch::note_missing_pages): the kernel drops pages without a notification.
//!
//! Bounds: [`MAX_FILE_BYTES`] a file, [`MAX_KEPT_BYTES`] in all, and in flight as much as is
//! answered without delay ([`Throttle`]). When prefetched files go unused, fewer are fetched.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Access, Attr, Data, FileKind, Mutex, OpenFlags, RemotePath, Result, Timestamp};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::throttle::Throttle;
use super::traversal::{Depth, Target, Traversal};
use super::{MAX_WAIT, Prefetcher, start};
use crate::config::{Config, Consistency, Prefetch};
use crate::deferred_open::may_read;
use crate::dir_cache::Order;
use crate::inode::{Inode, may_be_same_content};
use crate::remote_file::RemoteFile;
use crate::shared::Shared;
use crate::tree::{RequestStamp, Tree};

/// The largest file that is prefetched; larger ones have readahead. One request of the kernel's
/// usual readahead, and one packet of OpenSSH's server.
const MAX_FILE_BYTES: u64 = 128 << 10;

/// Bytes of files that were not read yet: four times the bytes that may be in flight.
const MAX_KEPT_BYTES: u64 = 16 << 20;

/// Smaller data, and data in several pieces, is copied into its own buffer: a slice of a received
/// chunk keeps the whole chunk, 64 KiB or the longest packet, in memory. So kept data takes at most
/// twice its size. A copy costs some 2 us for 16 KiB, a hundredth of a request.
const OWN_PIECE_BYTES: usize = 64 << 10;

/// Files that are kept, including those that were read already.
const MAX_FILES: usize = 8192;

/// Opens in a row in one order before the next files are fetched. Two happen by chance.
const MIN_RUN: u32 = 2;

/// Opens in a row in one order after which the order by inode number is not checked any more: in a
/// small directory several orders may agree by chance.
const SURE_RUN: u32 = 8;

/// Files that a program may skip between two that it opens in order.
const MAX_SKIP: usize = 8;

/// Directories that are entered in search of the next files, at most.
const MAX_DIRECTORIES: usize = 32;

/// A file that was changed at most this many seconds ago may change while it is fetched, so its
/// attributes are requested again after the read. For all files that would cost `tar` a third more
/// time over loopback.
const RECENT_SECS: i64 = 300;

/// How long an open predicts the next one.
const MAX_OPEN_GAP: Duration = Duration::from_secs(2);

/// See the [module](self).
#[derive(Default)]
pub(crate) struct FilePrefetch {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: HashMap<RemotePath, Slot>,
    /// The paths in `files`, in the order of their requests.
    order: BTreeMap<u64, RemotePath>,
    next: u64,
    bytes: u64,
    throttle: Throttle,
    last: Option<LastOpen>,
    /// Opens in a row that followed each [order](Order::ALL).
    scores: [u32; 3],
    /// When the program visits subdirectories.
    depth: Depth,
    /// Number of opens so far.
    opens: u64,
    last_refill: LastRefill,
    /// When the kernel last read pages that it was assumed to have.
    missing_at: Option<Instant>,
}

/// The last search for files to fetch. To search at each open and after each fetch would cost more
/// than both.
#[derive(Clone, Copy, Default)]
struct LastRefill {
    order: Order,
    /// How many files ahead of the reader were requested.
    files: usize,
    /// No more files were known, or there was no room for more.
    incomplete: bool,
    /// There was no room for more.
    out_of_room: bool,
    /// Opens since.
    opens: usize,
}

impl LastRefill {
    /// Whether to search again: when an eighth of the files may have been opened.
    fn is_due(self, order: Order) -> bool {
        self.incomplete || self.order != order || self.opens * 8 >= self.files
    }
}

/// The position of a name in each [order](Order::ALL), if known.
type Positions = [Option<usize>; 3];

/// The last open.
#[derive(Clone)]
struct LastOpen {
    dir: RemotePath,
    positions: Positions,
    at: Instant,
}

struct Slot {
    fetched: Arc<PrefetchedFile>,
    number: u64,
    /// The number of opens at which this file is expected to be opened.
    due: u64,
    used: bool,
}

/// A file that is in flight or was fetched.
pub(crate) struct PrefetchedFile {
    stamp: RequestStamp,
    /// The size in the listing, until the answer arrives.
    bytes: u64,
    /// `Some(None)`: the fetch failed.
    outcome: watch::Receiver<Option<Option<Arc<Content>>>>,
}

/// The content of a whole file.
struct Content {
    attr: Attr,
    data: Data,
}

/// An open file's reference to its content, which may be evicted at any time.
pub(crate) type AttachedFile = Weak<PrefetchedFile>;

impl PrefetchedFile {
    /// The content was requested then, and existed then or later.
    pub(crate) fn requested_at(&self) -> Instant {
        self.stamp.at
    }

    /// The result, if it has arrived.
    fn outcome(&self) -> Option<Option<Arc<Content>>> {
        self.outcome.borrow().clone()
    }

    /// Waits for the result, for at most [`MAX_WAIT`].
    async fn wait(&self) -> Option<Arc<Content>> {
        let mut outcome = self.outcome.clone();
        let ended = tokio::time::timeout(MAX_WAIT, outcome.wait_for(Option::is_some)).await;
        ended.ok()?.ok()?.clone().flatten()
    }
}

impl FilePrefetch {
    /// Bytes of files that are kept or in flight.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// The kernel has read the beginning of a file whose pages it was assumed to have.
    pub(crate) fn note_missing_pages(&self) {
        self.state.lock().missing_at = Some(Instant::now());
    }

    /// Whether files are being opened in an order.
    pub(crate) fn has_order(&self) -> bool {
        let state = self.state.lock();
        state.current_order().is_some()
            && state.last.as_ref().is_some_and(|it| it.at.elapsed() < MAX_OPEN_GAP)
    }

    /// Whether pages were missing recently, so that other pages may be missing too.
    pub(crate) fn may_miss_pages(&self) -> bool {
        self.state.lock().missing_at.is_some_and(|at| at.elapsed() < MAX_OPEN_GAP)
    }

    /// The file at `path` was read to its end, or is no longer wanted. It is not fetched again
    /// while it would have been valid.
    pub(crate) fn discard(&self, path: &RemotePath) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(slot) = state.files.get_mut(path) {
            state.bytes -= slot.fetched.bytes;
            let (_, outcome) = watch::channel(Some(None));
            slot.fetched =
                Arc::new(PrefetchedFile { stamp: slot.fetched.stamp, bytes: 0, outcome });
            slot.used = true;
        }
    }
}

impl State {
    fn remove(&mut self, path: &RemotePath) -> Option<Slot> {
        let slot = self.files.remove(path)?;
        self.order.remove(&slot.number);
        self.bytes -= slot.fetched.bytes;
        Some(slot)
    }

    /// Evicts expired files, and the oldest ones above the bounds.
    fn evict_expired(&mut self, now: Instant, lifetime: Duration) {
        let mut note_expired = false;
        while let Some((_, path)) = self.order.first_key_value() {
            let path = path.clone();
            let old = self.files.get(&path).is_none_or(|slot| {
                now.saturating_duration_since(slot.fetched.stamp.at) >= lifetime
            });
            let within = self.bytes <= MAX_KEPT_BYTES && self.files.len() <= MAX_FILES;
            if !old && within {
                return;
            }
            let Some(slot) = self.remove(&path) else { return };
            if slot.used {
                continue;
            }
            if self.opens > slot.due + MAX_SKIP as u64 {
                self.throttle.note_unused(now);
            } else if !std::mem::replace(&mut note_expired, true) {
                // Its reader has not come so far, and will need it then.
                self.throttle.note_expired();
                self.last_refill.incomplete = true;
            }
        }
    }

    /// Whether to compute positions in the order of inode numbers.
    fn wants_number_order(&self) -> bool {
        let [by_listing, by_name, by_number] = self.scores;
        by_number > 0 || by_listing.max(by_name) < SURE_RUN
    }

    /// Records an open of a file with these `positions` in `dir`. Returns the order of the next
    /// opens, if there is one.
    fn record_open(
        &mut self,
        dir: &RemotePath,
        positions: Positions,
        now: Instant,
    ) -> Option<Order> {
        self.last_refill.opens += 1;
        self.opens += 1;
        let last = self.last.replace(LastOpen { dir: dir.clone(), positions, at: now });
        let Some(last) = last.filter(|last| now < last.at + MAX_OPEN_GAP) else {
            self.scores = [0; 3];
            return None;
        };
        if last.dir == *dir {
            if last.positions[0] == positions[0] {
                return None;
            }
            for (score, (from, to)) in
                self.scores.iter_mut().zip(last.positions.iter().zip(positions))
            {
                let follows = |(from, to): (usize, usize)| from < to && to - from <= MAX_SKIP;
                *score = if from.zip(to).is_some_and(follows) { *score + 1 } else { 0 };
            }
        } else {
            // Perhaps another directory than the expected one.
            self.last_refill.incomplete = true;
        }
        // A program continues in the same order in the next directory.
        self.current_order()
    }

    /// The order with the longest run, if that is long enough.
    fn current_order(&self) -> Option<Order> {
        let best = *self.scores.iter().max()?;
        let at = self.scores.iter().position(|score| *score == best)?;
        (best >= MIN_RUN).then_some(Order::ALL[at])
    }
}

/// How long a prefetched content is valid.
fn content_lifetime(shared: &Shared) -> Duration {
    match shared.config.consistency {
        Consistency::Strict => Duration::ZERO,
        Consistency::CloseToOpen | Consistency::Watch => shared.live(|it| it.open_revalidate),
        Consistency::Timeout | Consistency::Immutable => {
            shared.live(|it| it.open_revalidate.max(it.files.min))
        }
    }
}

/// Whether a file with these attributes is prefetched.
fn is_wanted(config: &Config, attr: &Attr) -> bool {
    attr.kind == FileKind::Regular
        && (1..=MAX_FILE_BYTES).contains(&attr.size)
        && may_read(config, attr)
}

impl Prefetcher {
    /// The file at `path` is being opened for reading. Prefetches the files that are likely to
    /// follow.
    pub(crate) fn prefetch_after_open(&self, shared: &Arc<Shared>, path: &RemotePath) {
        let lifetime = content_lifetime(shared);
        if !shared.prefetches(Prefetch::All) || lifetime.is_zero() {
            return;
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return };
        let now = Instant::now();
        let wants_number_order = self.files.state.lock().wants_number_order();
        let (positions, depth) = {
            let mut tree = shared.tree();
            if wants_number_order {
                tree.ensure_number_order(&dir);
            }
            let positions =
                tree.listing_at(&dir).map(|it| Order::ALL.map(|order| it.position(&name, order)));
            let depth = positions
                .and_then(|positions| self.infer_depth(&shared.config, &mut tree, &dir, positions));
            (positions, depth)
        };
        let order = {
            let mut state = self.files.state.lock();
            state.evict_expired(now, lifetime);
            state.depth = depth.unwrap_or(state.depth);
            let Some(positions) = positions.filter(|positions| positions[0].is_some()) else {
                return;
            };
            state.record_open(&dir, positions, now).filter(|order| state.last_refill.is_due(*order))
        };
        if order.is_some() {
            self.prefetch_more(shared);
        }
    }

    /// When the program visits subdirectories, if an open in `dir` after the last one shows that.
    fn infer_depth(
        &self,
        config: &Config,
        tree: &mut Tree,
        dir: &RemotePath,
        positions: Positions,
    ) -> Option<Depth> {
        let (last, order) = {
            let state = self.files.state.lock();
            let last = state.last.as_ref()?;
            let order = state.current_order()?;
            // Nearly always it is the next file.
            let is_next = last.dir == *dir
                && last.positions[order as usize]
                    .zip(positions[order as usize])
                    .is_some_and(|(from, to)| from < to && to - from == 1);
            if is_next {
                return None;
            }
            (last.clone(), order)
        };
        let (from, to) = (last.positions[order as usize]?, positions[order as usize]?);
        let is_wanted = |attr: &Attr| is_wanted(config, attr);
        let target = Target::Files(&is_wanted);
        let mut traversal = Traversal::new(tree, order, Depth::default(), target, MAX_DIRECTORIES);
        if last.dir == *dir {
            traversal.skips_subtree_files(dir, from + 1..to).then_some(Depth::FilesFirst)
        } else {
            traversal.skips_following_files(&last.dir, from + 1, dir).then_some(Depth::InPlace)
        }
    }

    /// Prefetches the files behind the last open, if there is room.
    fn prefetch_more(&self, shared: &Arc<Shared>) {
        let now = Instant::now();
        let (dir, from, order, depth, window) = {
            let state = self.files.state.lock();
            let last = state.last.as_ref().filter(|last| last.at.elapsed() < MAX_OPEN_GAP);
            let (Some(last), Some(order)) = (last, state.current_order()) else { return };
            let Some(position) = last.positions[order as usize] else { return };
            (last.dir.clone(), position + 1, order, state.depth, state.throttle.window(now))
        };
        if window == 0 {
            return;
        }
        let wanted = {
            let mut tree = shared.tree();
            let is_wanted = |attr: &Attr| is_wanted(&shared.config, attr);
            let target = Target::Files(&is_wanted);
            Traversal::new(&mut tree, order, depth, target, MAX_DIRECTORIES)
                .find(&dir, from, window)
        };
        let files = wanted.len();
        let mut wanted = self.without_cached_pages(shared, wanted).into_iter();
        let mut position = 0;
        let mut start_fetch = |(path, size)| {
            position += 1;
            self.start_fetch(shared, path, size, position)
        };
        let out_of_room = !wanted.all(&mut start_fetch);
        let incomplete = out_of_room || files < window;
        self.files.state.lock().last_refill =
            LastRefill { order, files, incomplete, out_of_room, opens: 0 };
    }

    /// Begins to fetch `path`, which is `positions` files ahead of the reader, unless it is kept
    /// already. `false` if there is no room for more.
    fn start_fetch(
        &self,
        shared: &Arc<Shared>,
        path: RemotePath,
        bytes: u64,
        positions: u64,
    ) -> bool {
        let stamp = shared.stamp_request();
        let done = {
            let mut state = self.files.state.lock();
            if state.files.contains_key(&path) {
                return true;
            }
            if state.bytes + bytes > MAX_KEPT_BYTES || !state.throttle.begin(bytes) {
                return false;
            }
            let (done, outcome) = watch::channel(None);
            let fetched = Arc::new(PrefetchedFile { stamp, bytes, outcome });
            state.next += 1;
            let number = state.next;
            state.order.insert(number, path.clone());
            state.bytes += bytes;
            let due = state.opens + positions;
            state.files.insert(path.clone(), Slot { fetched, number, due, used: false });
            done
        };
        start(shared, |shared| async move {
            let prefetch = &shared.prefetch;
            let in_flight = InFlight { files: &prefetch.files, bytes, done };
            let fetched = fetch_whole(&shared, &path, bytes, stamp).await;
            let latency = stamp.at.elapsed();
            let content = fetched.ok().flatten().map(Arc::new);
            if content.is_none()
                && let Some(slot) = prefetch.files.state.lock().files.get_mut(&path)
            {
                // The entry stays, so that the fetch is not repeated at once, and does not count as
                // unused.
                slot.used = true;
            }
            in_flight.done.send_replace(Some(content));
            drop(in_flight);
            let out_of_room = {
                let mut state = prefetch.files.state.lock();
                state.throttle.note_latency(latency);
                state.last_refill.out_of_room
            };
            if out_of_room {
                prefetch.prefetch_more(&shared);
            }
        });
        true
    }

    /// Records the attributes of a content that was fetched before `inode` existed. Returns whether
    /// there was one.
    pub(crate) fn record_prefetched(&self, shared: &Shared, inode: &Inode) -> bool {
        {
            let state = inode.state();
            if state.is_invalidated() && state.last_attr().is_some() {
                // A later answer contradicts it.
                return false;
            }
        }
        let Some(fetched) = self.prefetched(shared, inode) else { return false };
        let Some(Some(content)) = fetched.outcome() else { return false };
        shared.record_attr_in_background(inode, &content.attr, fetched.stamp);
        true
    }

    /// The prefetched content of `inode`, in flight or kept, unless there was a local change since
    /// its request.
    pub(crate) fn prefetched(&self, shared: &Shared, inode: &Inode) -> Option<Arc<PrefetchedFile>> {
        let (path, is_current) = {
            let tree = shared.tree();
            let (dir, name) = tree.used_name(inode.ino)?;
            let path = tree.path(inode.ino)?;
            let state = self.files.state.lock();
            let fetched = state.files.get(&path)?.fetched.clone();
            let is_current = tree.is_current(dir, &name, fetched.stamp)
                && inode.state().unchanged_since(fetched.stamp.seq)
                && fetched.stamp.at.elapsed() < content_lifetime(shared);
            drop(state);
            (path, is_current.then_some(fetched))
        };
        if is_current.is_none() {
            self.files.discard(&path);
        }
        is_current
    }

    /// Waits for a fetch of `inode` in flight, for at most [`MAX_WAIT`]. Returns whether a content
    /// arrived.
    pub(crate) async fn await_fetch(&self, shared: &Shared, inode: &Inode) -> bool {
        match self.prefetched(shared, inode) {
            Some(fetched) => fetched.wait().await.is_some(),
            None => false,
        }
    }

    /// The content that an open validated for `attr` can read from memory.
    pub(crate) fn attach(
        &self,
        shared: &Shared,
        inode: &Inode,
        attr: &Attr,
    ) -> Option<AttachedFile> {
        let fetched = self.prefetched(shared, inode)?;
        let fits = match fetched.outcome() {
            Some(content) => {
                content.is_some_and(|content| may_be_same_content(&content.attr, attr))
            }
            None => true,
        };
        if !fits {
            return None;
        }
        let path = shared.tree().path(inode.ino)?;
        let mut state = self.files.state.lock();
        let slot = state.files.get_mut(&path)?;
        if !std::mem::replace(&mut slot.used, true) {
            state.throttle.note_used();
        }
        Some(Arc::downgrade(&fetched))
    }
}

/// Up to `len` bytes of `attached`, an open file of `inode`, from `offset` on; `None` if the server
/// must be requested. Also returns whether that is the end of the file.
pub(crate) async fn read_attached(
    attached: &AttachedFile,
    inode: &Inode,
    offset: u64,
    len: u32,
) -> Option<(Data, bool)> {
    let fetched = attached.upgrade()?;
    let content = match fetched.outcome() {
        Some(content) => content?,
        None => fetched.wait().await?,
    };
    let state = inode.state();
    // The cached attributes must name this content, as those of the kernel's pages must.
    let known = state.last_attr().is_some_and(|attr| may_be_same_content(&attr, &content.attr));
    if !known || !state.unchanged_since(fetched.stamp.seq) {
        return None;
    }
    drop(state);
    let data = slice(&content.data, offset, u64::from(len));
    let all = offset + data.len() as u64 >= content.attr.size;
    Some((data, all))
}

/// Fetches the whole file at `path`; `None` if it is no longer small, or not all of it arrived.
async fn fetch_whole(
    shared: &Shared,
    path: &RemotePath,
    bytes: u64,
    stamp: RequestStamp,
) -> Result<Option<Content>> {
    let max_bytes = MAX_FILE_BYTES.min(bytes * 2) as u32;
    let fetched = match shared.remote.reads_files() {
        true => shared.remote.read_file(path, max_bytes).await?,
        false => open_and_read(shared, path, max_bytes).await?,
    };
    // An open that was deferred meanwhile would read another file if a directory was moved.
    if !shared.tree().paths_unchanged_since(stamp.seq) {
        return Ok(None);
    }
    let Some((attr, data)) = fetched.filter(|(attr, _)| attr.kind == FileKind::Regular) else {
        return Ok(None);
    };
    record_name(shared, path, &attr, stamp);
    Ok(Some(Content { attr, data: in_own_memory(data) }))
}

/// As [`base::Remote::read_file`], for remotes that have no such request.
async fn open_and_read(
    shared: &Shared,
    path: &RemotePath,
    max_bytes: u32,
) -> Result<Option<(Attr, Data)>> {
    let opened = shared.remote.open(path, OpenFlags::existing(Access::Read)).await?;
    // Closed at the end of this function.
    let file = RemoteFile::open(shared.remote.clone(), opened.fh);
    let attr = opened.attr;
    if attr.size > max_bytes.into() {
        return Ok(None);
    }
    let read = shared.remote.read(opened.fh, 0, attr.size as u32);
    // In flight together with the read, and executed after it.
    let stat_again = async {
        match attr.mtime.secs > Timestamp::now().secs - RECENT_SECS {
            true => shared.remote.fstat(opened.fh).await,
            false => Ok(attr),
        }
    };
    let (data, after) = tokio::join!(read, stat_again);
    drop(file);
    let (data, after) = (data?, after?);
    // If another machine was writing to the file, the bytes may be of several states.
    let is_whole = data.len() as u64 == attr.size && may_be_same_content(&attr, &after);
    Ok(is_whole.then_some((attr, data)))
}

/// Records the attributes of a prefetched file.
fn record_name(shared: &Shared, path: &RemotePath, attr: &Attr, stamp: RequestStamp) {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return };
    let inode = {
        let mut tree = shared.tree();
        let Some(dir) = tree.find(&dir) else { return };
        if !tree.is_current(dir, &name, stamp) {
            return;
        }
        tree.record_present(dir, &name, attr, stamp);
        tree.child(dir, &name)
    };
    if let Some(inode) = inode {
        shared.record_attr_in_background(&inode, attr, stamp);
    }
}

/// A fetch in flight. Gives its share of the bounds back when dropped, whether it succeeded or not.
struct InFlight<'a> {
    files: &'a FilePrefetch,
    bytes: u64,
    done: watch::Sender<Option<Option<Arc<Content>>>>,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.files.state.lock().throttle.end(self.bytes);
    }
}

/// Up to `len` bytes of `data` from `offset` on.
fn slice(data: &Data, offset: u64, len: u64) -> Data {
    let (mut at, end) = (0, offset.saturating_add(len));
    let mut out = Data::new();
    for piece in data.pieces() {
        let size = piece.len() as u64;
        let (from, to) = (offset.clamp(at, at + size), end.clamp(at, at + size));
        out.push(piece.slice((from - at) as usize..(to - at) as usize));
        at += size;
    }
    out
}

/// `data` without the rest of the chunks that it was received in.
fn in_own_memory(data: Data) -> Data {
    match data.pieces() {
        [] => data,
        [piece] if piece.len() >= OWN_PIECE_BYTES => data,
        _ => Data::from(Bytes::from(data.to_vec())),
    }
}

#[cfg(test)]
mod tests;
