//! Revalidation of files before they are opened again.
//!
//! A compiler opens the same headers for every unit; `tar` and `rsync` visit a tree in the same
//! order as the last time. Under close-to-open each of these opens can be deferred if the server
//! has confirmed, within `open_revalidate`, that the file is unchanged; one by one, that is a round
//! trip for each. So the order of [visits](super::history) is recorded, and when a file is opened,
//! the files that followed it the last time are revalidated too, all at the same time. So are small
//! files that come next in the order of a directory (see [`files`](super::files)).
//!
//! Invariants:
//! 1. A validation counts from when its request was sent, as any other answer does
//!    (`open_revalidate`). Nothing is opened here: the open that comes checks the state of the
//!    inode.
//! 2. Only an open of the same file waits for a revalidation in flight, and not for long. The
//!    request of an open is sent before the revalidations that follow it.
//! 3. A file is revalidated at most [`MAX_REQUESTS`] times before it is opened again. So even if
//!    all predictions are wrong, the number of requests per visit is bounded.
//! 4. No more revalidations are in flight than the window of [`History`] allows.
//!
//! A file that is visited seldom may be followed by many files that are visited often. So a file is
//! not revalidated while its validation is valid. After the first time, it is revalidated only
//! together with an open that needs a request itself: that file was not opened for a while either,
//! so it predicts better.
//!
//! Only files whose validation is useful are revalidated: the kernel has their pages, the login may
//! read them, and they have one name.

use std::sync::Arc;
use std::time::Duration;

use base::{Attr, FileKind, Mutex, RemotePath};
use tokio::sync::watch;
use tokio::time::Instant;

use super::history::{History, Visit};
use super::{MAX_WAIT, Prefetcher, start};
use crate::Ino;
use crate::config::{Consistency, PageCache, Prefetch};
use crate::deferred_open::may_read;
use crate::inode::{Inode, State};
use crate::shared::Shared;
use crate::tree::RequestStamp;

/// Revalidations of a file between two of its visits. One costs a tenth of the wait that it saves.
const MAX_REQUESTS: u8 = 3;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Revalidation {
    history: Mutex<History>,
}

/// A visit of a file that was visited before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Revisit {
    /// The number of the visit before.
    previous: u64,
    number: u64,
    /// The file itself is not validated.
    needs_request: bool,
}

impl Prefetcher {
    /// Whether validations expire at all, and opens are deferred because of them.
    fn revalidates(&self, shared: &Shared) -> bool {
        let config = &shared.config;
        let expires = !matches!(config.consistency, Consistency::Strict | Consistency::Immutable);
        shared.prefetches(Prefetch::Metadata)
            && expires
            && !shared.live(|it| it.open_revalidate).is_zero()
            && config.page_cache != PageCache::Never
    }

    /// `inode` is being opened for reading. If that is a visit, and not its first one, returns it
    /// for [`Prefetcher::revalidate_followers`].
    pub(crate) fn record_visit(&self, shared: &Shared, inode: &Inode) -> Option<Revisit> {
        if !self.revalidates(shared) {
            return None;
        }
        let now = Instant::now();
        let stale = shared.serves_stale(inode.ino);
        let mut state = inode.state();
        let validated = shared.validated(&state, inode.kind, stale).is_some();
        let since = state.validated_at().filter(|_| validated).unwrap_or(now);
        let previous = state.visit();
        if previous.is_some_and(|visit| since < visit.since() + renewal_age(shared)) {
            return None;
        }
        let mut history = self.revalidation.history.lock();
        if previous.is_some_and(|visit| visit.requests() > 0) {
            match history.in_flight(inode.ino) {
                _ if validated => history.note_in_time(),
                Some(_) => history.note_late(),
                None => history.note_expired(),
            }
        }
        let number = history.record(inode.ino);
        state.set_visit(Visit::new(number, since, previous));
        previous.map(|visit| Revisit {
            previous: visit.number(),
            number,
            needs_request: !validated,
        })
    }

    /// Revalidates the files that followed the last time, if it is time for that.
    pub(crate) fn revalidate_followers(&self, shared: &Arc<Shared>, revisit: Option<Revisit>) {
        let Some(Revisit { previous, number, needs_request }) = revisit else { return };
        let (visits, window) = {
            let mut history = self.revalidation.history.lock();
            if !needs_request && !history.is_due() {
                return;
            }
            history.between(previous, number)
        };
        let max_requests = if needs_request { MAX_REQUESTS } else { 1 };
        let followers = select_followers(shared, visits, window, max_requests);
        if followers.is_empty() {
            return;
        }
        let stamp = shared.stamp_request();
        for (inode, path) in followers {
            self.start_revalidation(shared, inode, path, stamp);
        }
    }

    /// Removes the files whose pages the kernel has from `files`, small files that are likely to be
    /// opened next, with their sizes in the listing. The removed ones are revalidated if that is
    /// useful.
    pub(crate) fn without_cached_pages(
        &self,
        shared: &Arc<Shared>,
        mut files: Vec<(RemotePath, u64)>,
    ) -> Vec<(RemotePath, u64)> {
        if files.is_empty() || self.files.may_miss_pages() {
            return files;
        }
        let (now, mut with_pages) = (Instant::now(), Vec::new());
        {
            let tree = shared.tree();
            files.retain(|(path, bytes)| {
                let Some(inode) = tree.find(path).and_then(|ino| tree.get(ino)) else {
                    return true;
                };
                let stale = shared.serves_stale_at(path);
                let mut state = inode.state();
                let known = state.last_attr().filter(|attr| attr.size == *bytes);
                if !known.is_some_and(|attr| shared.has_pages(&state, &attr, stale)) {
                    return true;
                }
                let visit = state.visit().filter(|visit| visit.requests() < MAX_REQUESTS);
                if let Some(visit) = visit
                    && self.revalidates(shared)
                    && is_worth_revalidating(shared, &state, now, stale)
                    && tree.has_one_path(inode.ino)
                {
                    state.set_visit(visit.with_request());
                    drop(state);
                    with_pages.push((inode, path.clone()));
                }
                false
            });
        }
        if !with_pages.is_empty() {
            let stamp = shared.stamp_request();
            for (inode, path) in with_pages {
                self.start_revalidation(shared, inode, path, stamp);
            }
        }
        files
    }

    /// Begins to revalidate `inode`, if there is room for that.
    fn start_revalidation(
        &self,
        shared: &Arc<Shared>,
        inode: Arc<Inode>,
        path: RemotePath,
        stamp: RequestStamp,
    ) {
        let Some(ended) = self.revalidation.history.lock().begin(inode.ino) else { return };
        start(shared, |shared| async move {
            let _in_flight = InFlight {
                revalidation: &shared.prefetch.revalidation,
                ino: inode.ino,
                _ended: ended,
            };
            // The open of the file gets the error.
            if let Ok(attr) = shared.remote.lstat(&path).await {
                record_reply(&shared, &inode, &path, &attr, stamp);
            }
        });
    }

    /// Requests the attributes of a file that has a new name, from a remote that reports times of
    /// change, since only it knows this one. `rsync` renames each file, and looks at it the next
    /// time.
    pub(crate) fn request_renamed(&self, shared: &Arc<Shared>, inode: &Arc<Inode>) {
        let is_useful = shared.prefetches(Prefetch::Metadata)
            && !shared.timeout(inode.kind).min.is_zero()
            && inode.state().has_ctime()
            && inode.state().changes_in_flight() == 0;
        let Some(path) = shared.tree().path(inode.ino).filter(|_| is_useful) else { return };
        let (stamp, inode) = (shared.stamp_request(), inode.clone());
        start(shared, |shared| async move {
            // Without an answer, the next caller asks.
            if let Ok(attr) = shared.remote.lstat(&path).await {
                record_reply(&shared, &inode, &path, &attr, stamp);
            }
        });
    }

    /// Waits for a revalidation of `inode` in flight, for at most [`MAX_WAIT`]. Returns whether
    /// there was one.
    pub(crate) async fn await_revalidation(&self, inode: &Inode) -> bool {
        let in_flight = self.revalidation.history.lock().in_flight(inode.ino);
        let Some(mut ended) = in_flight else { return false };
        // No value is ever sent: the wait ends when the sender is dropped.
        let _ = tokio::time::timeout(MAX_WAIT, ended.changed()).await;
        true
    }
}

/// The age from which a validation is renewed: half of its lifetime, so that files which were
/// opened one after the other are revalidated together the next time.
fn renewal_age(shared: &Shared) -> Duration {
    shared.live(|it| it.open_revalidate) / 2
}

/// The files among the next `window` that are to be revalidated. They are marked as such.
fn select_followers(
    shared: &Shared,
    visits: Vec<(u64, Ino)>,
    window: usize,
    max_requests: u8,
) -> Vec<(Arc<Inode>, RemotePath)> {
    let now = Instant::now();
    let mut left = window;
    let mut followers = Vec::new();
    let tree = shared.tree();
    for (number, ino) in visits {
        if left == 0 {
            break;
        }
        let Some(inode) = tree.get(ino) else { continue };
        let stale = shared.serves_stale_in(&tree, ino);
        let mut state = inode.state();
        let Some(visit) = state.visit().filter(|visit| visit.number() == number) else {
            continue;
        };
        left -= 1;
        let interval = visit.interval().min(shared.live(|it| it.open_revalidate) * 2);
        let too_soon = now < visit.since() + interval / 2;
        let too_often = visit.requests() >= max_requests;
        if too_soon || too_often || !is_worth_revalidating(shared, &state, now, stale) {
            continue;
        }
        let Ok([path]) = <[RemotePath; 1]>::try_from(tree.paths(ino)) else { continue };
        state.set_visit(visit.with_request());
        drop(state);
        followers.push((inode, path));
    }
    followers
}

/// Whether an open of a file with this state could be deferred after a validation, and cannot
/// be for much longer without one. `stale`: cached data of any age is valid for it.
fn is_worth_revalidating(shared: &Shared, state: &State, now: Instant, stale: bool) -> bool {
    let kind = FileKind::Regular;
    let is_old = match shared.config.consistency {
        Consistency::CloseToOpen => state.validated(now, renewal_age(shared)).is_none(),
        Consistency::Watch if !state.is_covered() => {
            state.validated(now, renewal_age(shared)).is_none()
        }
        _ => shared.validated(state, kind, stale).is_none(),
    };
    let can_defer = |attr: &Attr| {
        may_read(&shared.config, attr)
            && !shared.wants_backing(attr)
            && shared.has_pages(state, attr, stale)
    };
    let unopened = state.open.iter().all(|open| open.remote.opened().is_none());
    is_old
        && unopened
        && state.changes_in_flight() == 0
        && state.last_attr().as_ref().is_some_and(can_defer)
}

/// Records the attributes that the server returned for `path`, a name of `inode`.
fn record_reply(
    shared: &Shared,
    inode: &Inode,
    path: &RemotePath,
    attr: &Attr,
    stamp: RequestStamp,
) {
    let mut tree = shared.tree();
    let Some((dir, name)) = tree.used_name(inode.ino) else { return };
    let same_name = tree.path(inode.ino).as_ref() == Some(path);
    if !same_name || !tree.is_current(dir, &name, stamp) || inode.kind != attr.kind {
        return;
    }
    if shared.record_attr_in_background(inode, attr, stamp) {
        tree.reconcile_listing(dir, &name, Some(attr), stamp);
        tree.renew_name(dir, &name, inode.state().valid_until());
    }
}

/// A revalidation in flight. Removed from the list when dropped, whether it succeeded or not.
struct InFlight<'a> {
    revalidation: &'a Revalidation,
    ino: Ino,
    /// Wakes the callers that wait, after it is off the list.
    _ended: watch::Sender<()>,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.revalidation.history.lock().end(self.ino);
    }
}
