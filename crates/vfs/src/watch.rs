//! `consistency=watch`: has the server watch the directories that are in use, and applies its
//! reports.
//!
//! A directory is watched when a request for it or for a name in it is sent. When its listing from
//! before the watch is used again, it is listed in the background, so that the next answers are
//! [covered](crate::cover): a walk that reads a tree once lists it once. A directory that cannot be
//! watched has the time-outs of close-to-open.
//!
//! The watch of a directory ends when the kernel forgets the directory, and after many reports in
//! which nothing has used it.
//!
//! When reports are lost, with the connection or because the server's queue was full, all watches
//! of the connection are forgotten here, and begin anew when their directories are used.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Changes, Errno, Mutex, OnDrop, RemotePath, WatchId, WatchedChange, Watches};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::Consistency;
use crate::cover::QUIET;
use crate::inode::Inode;
use crate::prefetch::start;
use crate::shared::Shared;
use crate::tree::{Outdated, Tree};
use crate::{Ino, Vfs};

/// Directories whose watches are being started at the same time. Further ones have to wait until
/// they are used again, or for their [turn](MAX_WAITING).
const MAX_STARTING: usize = 64;

/// Directories that wait for their turn: as many as the helper watches for a connection.
const MAX_WAITING: usize = 16 << 10;

/// Requests to end watches that are in flight at the same time.
const MAX_ENDING: usize = 16;

/// How long a directory that could not be watched, or whose watch has not paid off, is not tried
/// again.
const RETRY: Duration = Duration::from_secs(60);

/// The same, for a directory that may soon be watchable.
const PAUSE: Duration = Duration::from_secs(1);

/// Directories that are remembered as not to be tried.
const MAX_REFUSED: usize = 4096;

/// Reports that wait for the end of a local change, at most.
const MAX_DEFERRED: usize = 4096;

/// How long reports about the content of an open file are gathered.
const GATHER: Duration = Duration::from_millis(10);

/// The same after its pages were dropped: the kernel also drops the attributes that are on their way
/// to it, and if that happened all the time, readers of a file that grows would not see its end.
const GATHER_AFTER_DROP: Duration = Duration::from_millis(250);

/// How long the report of a name waits after a change of it through this mount has ended. Less than
/// [`QUIET`](crate::cover::QUIET), in which it is known as a local one.
const DEFER: Duration = Duration::from_millis(50);

/// The state of all watches, for `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchStatus {
    /// Watched directories.
    pub directories: usize,
    /// Why the last directory that exists could not be watched.
    pub refused: Option<Errno>,
    /// The server can watch at all. Known after the first use of the mount.
    pub is_offered: bool,
    /// How often reports were lost, with a connection or because there were too many.
    pub losses: u64,
}

#[derive(Default)]
struct State {
    starting: HashSet<Ino>,
    /// Directories that are watched when others have been started.
    waiting: BTreeSet<Ino>,
    /// Requests for a watch in flight.
    requested: usize,
    /// Until when each is not tried again.
    refused: HashMap<Ino, Instant>,
    /// Until when none is tried, since there are too many.
    full_until: Option<Instant>,
    last_refusal: Option<Errno>,
    /// Connections whose reports are awaited.
    connections: HashSet<u64>,
    /// Open files whose content is going to be validated.
    validating: HashSet<Ino>,
    /// Open files whose content is going to be validated when no report is about a local change.
    validating_later: HashSet<Ino>,
    /// Unused watches are being ended.
    is_ending: bool,
    /// What local processes watch is being watched again.
    is_watching_again: bool,
    /// How often that was requested.
    watching_again_requests: u64,
    /// Reports that wait for the end of a local change.
    deferred: usize,
    losses: u64,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Watching {
    watches: OnceLock<Arc<dyn Watches>>,
    /// The server has answered a request since the mount began.
    has_answered: OnceCell<()>,
    state: Mutex<State>,
}

/// A request for a watch, and the use of its answer.
struct Request<'a>(&'a Watching);

impl<'a> Request<'a> {
    fn new(watching: &'a Watching) -> Request<'a> {
        watching.state.lock().requested += 1;
        Request(watching)
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.state.lock().requested -= 1;
    }
}

impl State {
    /// The directory is not watched for this time.
    fn refuse(&mut self, dir: Ino, time: Duration) {
        if self.refused.len() >= MAX_REFUSED {
            self.refused.clear();
        }
        let until = Instant::now() + time;
        let known = self.refused.entry(dir).or_insert(until);
        *known = until.max(*known);
    }

    fn is_refused(&self, dir: Ino) -> bool {
        self.refused.get(&dir).is_some_and(|until| Instant::now() < *until)
    }
}

impl Watching {
    fn is_refused(&self, dir: Ino) -> bool {
        self.state.lock().is_refused(dir)
    }

    /// Whether a watch of `dir` may be started now. Notes that it is; or that it waits for its turn,
    /// if it `may_wait`.
    fn may_start(&self, dir: Ino, may_wait: bool) -> bool {
        let mut state = self.state.lock();
        let is_full = state.full_until.is_some_and(|until| Instant::now() < until);
        if state.is_refused(dir) || is_full || state.starting.contains(&dir) {
            return false;
        }
        if state.starting.len() < MAX_STARTING {
            return state.starting.insert(dir);
        }
        if may_wait && state.waiting.len() < MAX_WAITING {
            state.waiting.insert(dir);
        }
        false
    }

    /// A directory whose turn it is.
    fn take_waiting(&self) -> Option<Ino> {
        let mut state = self.state.lock();
        if state.starting.len() < MAX_STARTING { state.waiting.pop_first() } else { None }
    }

    /// The directory cannot be watched, without a reason if one above it cannot.
    fn note_refused(&self, dir: Ino, why: Option<Errno>) {
        let mut state = self.state.lock();
        if why == Some(Errno::ENOSPC) {
            if state.last_refusal != why {
                tracing::warn!("the server cannot watch more directories");
            }
            state.full_until = Some(Instant::now() + RETRY);
        }
        // It is tried again when the server is reachable, or when its path is at rest.
        let is_short = why.is_none_or(Errno::is_loss);
        state.refuse(dir, if is_short { PAUSE } else { RETRY });
        let is_gone = matches!(why, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE));
        if !is_short && !is_gone {
            state.last_refusal = why;
        }
    }

    /// A directory is watched: the server has room for watches.
    fn note_watched(&self) {
        self.state.lock().last_refusal.take_if(|why| *why == Errno::ENOSPC);
    }

    /// Returns false if that is in progress.
    pub(crate) fn begin_watching_again(&self) -> bool {
        let mut state = self.state.lock();
        state.watching_again_requests += 1;
        !std::mem::replace(&mut state.is_watching_again, true)
    }

    /// Returns false if that was requested again since [`Watching::watching_again_requests`]
    /// returned `requests`.
    pub(crate) fn end_watching_again(&self, requests: u64) -> bool {
        let mut state = self.state.lock();
        state.is_watching_again = state.watching_again_requests != requests;
        !state.is_watching_again
    }

    /// How often watching again was requested.
    pub(crate) fn watching_again_requests(&self) -> u64 {
        self.state.lock().watching_again_requests
    }

    /// Whether this many further reports may wait; they are counted if so.
    fn may_defer(&self, reports: usize) -> bool {
        let mut state = self.state.lock();
        let may = state.deferred + reports <= MAX_DEFERRED;
        state.deferred += if may { reports } else { 0 };
        may
    }

    /// The server reports nothing although the connection is alive.
    fn note_silent(&self) {
        self.state.lock().full_until = Some(Instant::now() + RETRY);
    }
}

impl Shared {
    /// A request for the directory `dir`, or for a name in it, is being sent: has the server watch
    /// it. Does not wait.
    pub(crate) fn note_directory_use(self: &Arc<Shared>, dir: Ino) {
        self.begin_to_watch(dir, false);
    }

    /// Has the server watch `dir`. If too many watches are being started, it waits for its turn, if
    /// it `may_wait`, or is not watched. Does not wait.
    pub(crate) fn begin_to_watch(self: &Arc<Shared>, dir: Ino, may_wait: bool) {
        if self.config.consistency != Consistency::Watch || !self.may_begin(dir, may_wait) {
            return;
        }
        start(self, move |shared| async move {
            let mut next = Some(dir);
            while let Some(dir) = next {
                let starting = OnDrop(|| {
                    shared.watching.state.lock().starting.remove(&dir);
                });
                if let Some(watches) = shared.connected_watches().await
                    && !shared.watch_way_to(&watches, dir).await
                {
                    shared.watch_again();
                }
                drop(starting);
                let mut waiting = std::iter::from_fn(|| shared.watching.take_waiting());
                next = waiting.find(|dir| shared.may_begin(*dir, true));
            }
        });
    }

    fn may_begin(&self, dir: Ino, may_wait: bool) -> bool {
        let needs_watch = self.tree().needs_watch(dir);
        needs_watch && self.watching.may_start(dir, may_wait)
    }

    /// A file is being opened at the server.
    pub(crate) fn note_file_use(self: &Arc<Shared>, ino: Ino) {
        if self.config.consistency != Consistency::Watch {
            return;
        }
        let name = self.tree().used_name(ino);
        if let Some((dir, _)) = name {
            self.note_directory_use(dir);
        }
    }

    pub(crate) fn watches(&self) -> Option<Arc<dyn Watches>> {
        if let Some(watches) = self.watching.watches.get() {
            return Some(watches.clone());
        }
        let watches = self.remote.watches()?;
        Some(self.watching.watches.get_or_init(|| watches).clone())
    }

    /// The watches; waits for the first connection, before which it is not known whether there are
    /// any.
    pub(crate) async fn connected_watches(&self) -> Option<Arc<dyn Watches>> {
        if let Some(watches) = self.watches() {
            return Some(watches);
        }
        let root = RemotePath::root();
        let answered = self.watching.has_answered.get_or_try_init(async || {
            match self.remote.lstat(&root).await {
                Err(why) if why.is_loss() => Err(why),
                _ => Ok(()),
            }
        });
        answered.await.ok()?;
        self.watches()
    }

    /// Watches the directory `to`, and first those above it. Returns false if that has failed only
    /// because the path of one has changed meanwhile.
    pub(crate) async fn watch_way_to(
        self: &Arc<Shared>,
        watches: &Arc<dyn Watches>,
        to: Ino,
    ) -> bool {
        let way = self.tree().way_to(to);
        for dir in way {
            let seq = self.change_counter.now();
            let needs_watch = self.tree().needs_watch(dir);
            let is_watched =
                !needs_watch || !self.watching.is_refused(dir) && self.watch(watches, dir).await;
            if !is_watched {
                // If not, the server may have one directory under two paths.
                let has_moved = !self.tree().path_unchanged_since(dir, seq);
                // Nothing below it can be watched.
                self.watching.note_refused(to, None);
                return !has_moved;
            }
        }
        true
    }

    /// Watches one directory. Returns whether it is watched.
    async fn watch(self: &Arc<Shared>, watches: &Arc<dyn Watches>, dir: Ino) -> bool {
        let stamp = self.stamp_request();
        let Ok(path) = self.path(dir) else { return false };
        // Its answer may name a watch that is being ended.
        let request = Request::new(&self.watching);
        let watch = match watches.watch(&path).await {
            Ok(watch) => watch,
            Err(why) => {
                self.watching.note_refused(dir, Some(why));
                return false;
            }
        };
        self.watching.note_watched();
        // Before it covers anything.
        self.await_reports(watches, watch.connection);
        let began = {
            let mut tree = self.tree();
            let began = tree.begin_watch(dir, &path, stamp.seq, watch);
            // The connection may have been lost meanwhile.
            let is_alive = self.watching.state.lock().connections.contains(&watch.connection);
            if began && !is_alive {
                tree.end_watch_of(dir);
            }
            began && is_alive
        };
        drop(request);
        self.end_unused_watches(watches);
        began
    }

    /// The listing of `dir` has answered a call.
    pub(crate) fn note_listing_use(self: &Arc<Shared>, dir: Ino) {
        // It may have been listed ahead, when nothing needed a watch.
        self.note_directory_use(dir);
        if self.config.consistency == Consistency::Watch && self.tree().wants_covered_listing(dir) {
            self.prefetch.refresh_listing(self, dir);
        }
    }

    /// Ends the watches at the server that are not used any more. Does not wait: there may be many,
    /// and reports must not wait for them.
    fn end_unused_watches(self: &Arc<Shared>, watches: &Arc<dyn Watches>) {
        let has_unused = self.tree().has_unused_watches();
        if !has_unused || std::mem::replace(&mut self.watching.state.lock().is_ending, true) {
            return;
        }
        let watches = watches.clone();
        start(self, move |shared| async move {
            loop {
                let unused = shared.tree().take_unused_watches();
                for some in unused.chunks(MAX_ENDING) {
                    let end = |watch: &WatchId| {
                        let (watches, watch) = (watches.clone(), *watch);
                        async move { watches.end(watch).await }
                    };
                    some.iter().map(end).collect::<JoinSet<()>>().join_all().await;
                }
                let (mut tree, mut state) = (shared.tree(), shared.watching.state.lock());
                if !tree.has_unused_watches() {
                    state.is_ending = false;
                    if state.requested == 0 {
                        tree.forget_ended_watches();
                    }
                    return;
                }
            }
        });
    }

    /// Applies the reports of a connection until it is lost.
    fn await_reports(self: &Arc<Shared>, watches: &Arc<dyn Watches>, connection: u64) {
        if !self.watching.state.lock().connections.insert(connection) {
            return;
        }
        let watches = watches.clone();
        start(self, move |shared| async move {
            loop {
                match watches.next(connection).await {
                    Ok(Changes::Events(changes)) => {
                        shared.apply_and_repeat(&changes);
                        shared.end_unused_watches(&watches);
                    }
                    Ok(Changes::Overflow) => {
                        tracing::info!("the server has reported too many changes: caches expire");
                        shared.lose_watches(connection, true);
                        shared.end_unused_watches(&watches);
                    }
                    Err(why) => {
                        tracing::debug!("reports of changes ended: {why}");
                        // First: a watch that begins now is not used.
                        shared.watching.state.lock().connections.remove(&connection);
                        let is_alive = !why.is_loss();
                        if is_alive {
                            shared.watching.note_silent();
                        }
                        shared.lose_watches(connection, is_alive);
                        shared.end_unused_watches(&watches);
                        return;
                    }
                }
            }
        });
    }

    pub(crate) fn apply_reports(self: &Arc<Shared>, changes: &[WatchedChange]) {
        let mut outdated = Outdated::default();
        {
            let mut tree = self.tree();
            changes.iter().for_each(|change| tree.note_reported_change(change, &mut outdated));
        }
        let Outdated { mut names, mut attributes, deferred, .. } = outdated;
        for dir in outdated.unused {
            self.watching.state.lock().refuse(dir, RETRY);
        }
        names.sort_by(|one, other| (one.0, one.1.as_bytes()).cmp(&(other.0, other.1.as_bytes())));
        names.dedup();
        attributes.sort_unstable();
        attributes.dedup();
        if let Some(kernel) = self.invalidate.get() {
            let named = names.iter().all(|(dir, name)| kernel.name(*dir, name));
            if !named || !attributes.iter().all(|ino| kernel.attributes(*ino)) {
                tracing::debug!("too many reports at once for the kernel, whose time-out is short");
            }
        }
        outdated.contents.into_iter().for_each(|inode| self.validate_soon(inode, true));
        outdated.doubtful_contents.into_iter().for_each(|inode| self.validate_later(inode));
        if !outdated.ended.is_empty() {
            let ended: HashSet<Ino> = outdated.ended.into_iter().collect();
            self.validate_open_files(Some(&ended));
        }
        if deferred.is_empty() {
            return;
        }
        if self.watching.may_defer(deferred.len()) {
            start(self, move |shared| async move {
                for change in &deferred {
                    let at_rest = |tree: &mut Tree| (!tree.is_being_bound(change)).then_some(());
                    shared.once_names_allow(at_rest).await;
                }
                // The last reply is being used.
                tokio::time::sleep(DEFER).await;
                shared.watching.state.lock().deferred -= deferred.len();
                shared.apply_reports(&deferred);
                if let Some(watches) = shared.watches() {
                    shared.end_unused_watches(&watches);
                }
            });
        } else {
            let connections: HashSet<u64> = deferred.iter().map(|it| it.watch.connection).collect();
            connections.into_iter().for_each(|connection| self.lose_watches(connection, true));
        }
    }

    /// Reports were lost: nothing that depends on them is valid.
    fn lose_watches(self: &Arc<Shared>, connection: u64, is_alive: bool) {
        self.watching.state.lock().losses += 1;
        let in_root = self.tree().lose_watches(connection, is_alive);
        if let Some(kernel) = self.invalidate.get() {
            kernel.names(&in_root);
        }
        self.validate_open_files(None);
        self.watch_again();
    }

    /// Validates the open files, or those in the directories `dirs`. The kernel may use their
    /// attributes without a look-up of the name, and a change of the content may not have been
    /// reported.
    fn validate_open_files(self: &Arc<Shared>, dirs: Option<&HashSet<Ino>>) {
        let Some(kernel) = self.invalidate.get() else { return };
        let mut open = HashMap::new();
        self.files.each(|file| {
            open.insert(file.inode.ino, file.inode.clone());
        });
        if let Some(dirs) = dirs {
            let tree = self.tree();
            let dir = |ino: &Ino| tree.first_name(*ino).map(|(dir, _)| dir);
            open.retain(|ino, _| dir(ino).is_some_and(|dir| dirs.contains(&dir)));
        }
        for (ino, inode) in open {
            let (is_quiet, drops_attr) = {
                let mut state = inode.state();
                (state.is_quiet_time(Instant::now()), state.drop_kernel_attr())
            };
            // If it is refused, the kernel has so much to do that the time-out is soon over.
            let _ = drops_attr && kernel.attributes(ino);
            match is_quiet {
                true => self.validate_later(inode),
                false => self.validate_soon(inode, false),
            }
        }
    }

    /// Drops the pages of an open file if its content is another one; if that is not known, as
    /// `drops_unknown` says.
    fn validate_soon(self: &Arc<Shared>, inode: Arc<Inode>, drops_unknown: bool) {
        if !self.watching.state.lock().validating.insert(inode.ino) {
            return;
        }
        let until = {
            let until = Instant::now() + GATHER;
            let dropped_at = inode.state().pages_dropped_at();
            dropped_at.map_or(until, |at| until.max(at + GATHER_AFTER_DROP))
        };
        start(self, move |shared| async move {
            tokio::time::sleep_until(until).await;
            // A report from now on is of a change after this request.
            shared.watching.state.lock().validating.remove(&inode.ino);
            let trusts_racy = shared.trusts_racy(shared.serves_stale(inode.ino));
            shared.validate_content(&inode, drops_unknown, trusts_racy).await;
        });
    }

    /// Like [`Shared::validate_soon`], if reports may be about a local change: when they are not any
    /// more. Content that is still written locally then is validated by the close.
    fn validate_later(self: &Arc<Shared>, inode: Arc<Inode>) {
        if !self.watching.state.lock().validating_later.insert(inode.ino) {
            return;
        }
        start(self, move |shared| async move {
            tokio::time::sleep(QUIET).await;
            shared.watching.state.lock().validating_later.remove(&inode.ino);
            let (may_be_outdated, has_handle) = {
                let state = inode.state();
                let has_handle = state.open.iter().any(|open| open.remote.opened().is_some());
                (!state.open.is_empty() && !state.has_written_pages(), has_handle)
            };
            if may_be_outdated {
                // Mostly, nothing but this mount has changed the file: pages in use are not dropped
                // only because its mtime is recent, or because the server does not answer.
                shared.validate_content(&inode, !has_handle, true).await;
            }
        });
    }

    /// Drops the pages of an open file if its content is another one. `drops_unknown`: also if that
    /// is not known. `trusts_racy`: an equal validator is enough.
    async fn validate_content(&self, inode: &Inode, drops_unknown: bool, trusts_racy: bool) {
        let stamp = self.stamp_request();
        let mut attr = self.attr_by_handle(inode).await;
        if let Some(attr) = &attr {
            self.record_attr_by_handle(inode, attr, stamp, Instant::now());
        } else if !drops_unknown {
            // The open was deferred, and reads of pages that the kernel has do not get here.
            attr = self.attr_by_name(inode).await;
        }
        let keeps_pages = {
            let mut state = inode.state();
            // What is written locally is validated by the close.
            state.changed_since(stamp.seq)
                || attr.map_or(!drops_unknown, |attr| {
                    state.validate_pages(&attr, trusts_racy, Instant::now())
                })
        };
        if !keeps_pages {
            self.drop_pages(inode);
        }
    }
}

impl Vfs {
    /// The state of all watches.
    pub fn watch_status(&self) -> WatchStatus {
        let directories = self.tree().watched_dirs();
        let state = self.watching.state.lock();
        WatchStatus {
            directories,
            refused: state.last_refusal,
            is_offered: self.watching.watches.get().is_some(),
            losses: state.losses,
        }
    }
}
