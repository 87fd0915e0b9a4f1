//! Files that are asked about before they are opened again.
//!
//! A compiler opens the same headers for every unit, `tar` and `rsync` go through a tree as they
//! did the last time. Under close-to-open each of these opens may be granted once the server has
//! told, within `open_revalidate`, that the file is unchanged; asked one by one, that is a round
//! trip for each. So it is remembered in which order files took their [turns](turns), and when one
//! is opened, those that followed it the last time are asked about too, all at the same time. So
//! are small files that come next in the order of a directory (see [`contents`](crate::prefetch)).
//!
//! Invariants:
//! 1. What an answer validates counts from when its question was sent, as any other answer does
//!    (`open_revalidate`). Nothing is granted here: the open that comes looks at what is known.
//! 2. Nobody waits for a question that was sent ahead but who opens that very file, and not for
//!    long. The question of an open goes out before those that are sent ahead with it.
//! 3. A file is asked about ahead [a few times](MOST_QUESTIONS) at most before it is opened again.
//!    So however wrong the guesses are, questions ahead are no more than so many for each turn.
//! 4. On their way are no more than the window of [`History`] has files.
//!
//! A file that takes its turns seldom follows many that take theirs often. So it is not asked about
//! while what is known of it counts, and after the first time only together with a file that has to
//! be waited for: that one was not opened for a while either, and is the better guess.
//!
//! Only files are asked about whose answer is of use: of which the kernel has pages, which the
//! login may read, and which have one name.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Attr, FileKind, RemotePath};
use tokio::sync::watch;
use tokio::time::Instant;

use super::MAX_WAIT;
use super::history::{History, Visit};
use crate::Ino;
use crate::config::{Consistency, PageCache};
use crate::deferred_open::may_read;
use crate::inode::{Inode, State, Validator};
use crate::shared::Shared;
use crate::tree::RequestStamp;

/// Questions about a file between two of its turns. One costs a tenth of the wait that it spares.
const MAX_REQUESTS: u8 = 3;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Revalidation {
    history: Mutex<History>,
}

impl Revalidation {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn that was taken just now by a file that had had one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Revisit {
    /// The number of that one.
    previous: u64,
    number: u64,
    /// The file itself is not validated.
    needs_request: bool,
}

impl Shared {
    /// Whether validations run out at all, and something is granted by them.
    fn revalidates(&self) -> bool {
        let runs_out =
            matches!(self.config.consistency, Consistency::CloseToOpen | Consistency::Timeout);
        runs_out
            && !self.config.open_revalidate.is_zero()
            && self.config.page_cache != PageCache::Never
    }

    /// The age from which on a validation is worth renewing: half of what it may have, so that
    /// those that were opened one after the other are asked about together the next time.
    fn renewal_age(&self) -> Duration {
        self.config.open_revalidate / 2
    }

    /// `inode` is being opened for reading. If that is its turn, and it had one before, what
    /// followed then is to be [asked about](Shared::validate_next).
    pub(crate) fn record_visit(&self, inode: &Inode) -> Option<Revisit> {
        if !self.revalidates() {
            return None;
        }
        let now = Instant::now();
        let mut state = inode.state();
        let validated = self.validated(&state, inode.kind).is_some();
        let since = state.validated_at().filter(|_| validated).unwrap_or(now);
        let previous = state.visit();
        if previous.is_some_and(|visit| since < visit.since() + self.renewal_age()) {
            return None;
        }
        let mut history = self.prefetch.revalidation.history();
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

    /// Asks about the files that followed last time, if it is time for that.
    pub(crate) fn revalidate_followers(self: &Arc<Self>, revisit: Option<Revisit>) {
        let Some(Revisit { previous, number, needs_request }) = revisit else { return };
        let (history, window) = {
            let mut history = self.prefetch.revalidation.history();
            if !needs_request && !history.is_due() {
                return;
            }
            history.between(previous, number)
        };
        let max_requests = if needs_request { MAX_REQUESTS } else { 1 };
        let select_followers = self.select_followers(history, window, max_requests);
        if select_followers.is_empty() {
            return;
        }
        let stamp = self.stamp_request();
        for (inode, path) in select_followers {
            self.start_revalidation(inode, path, stamp);
        }
    }

    /// Out of small files that are likely to be opened next, with their sizes as they were listed,
    /// those that the kernel has no pages of. The others are asked about, where that is of use.
    pub(crate) fn without_cached_pages(
        self: &Arc<Self>,
        mut files: Vec<(RemotePath, u64)>,
    ) -> Vec<(RemotePath, u64)> {
        if files.is_empty() || self.prefetch.files.may_miss_pages() {
            return files;
        }
        let (now, mut with_pages) = (Instant::now(), Vec::new());
        {
            let tree = self.tree();
            files.retain(|(path, bytes)| {
                let Some(inode) = tree.find(path).and_then(|ino| tree.get(ino)) else {
                    return true;
                };
                let mut state = inode.state();
                let known = state.last_attr().filter(|attr| attr.size == *bytes);
                if !known.is_some_and(|attr| self.has_pages(&state, &attr)) {
                    return true;
                }
                let visit = state.visit().filter(|visit| visit.requests() < MAX_REQUESTS);
                if let Some(visit) = visit
                    && self.revalidates()
                    && self.is_worth_revalidating(&state, now)
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
            let stamp = self.stamp_request();
            for (inode, path) in with_pages {
                self.start_revalidation(inode, path, stamp);
            }
        }
        files
    }

    /// Those of the next `window` files that are to be asked about. They are marked as such.
    fn select_followers(
        &self,
        history: Vec<(u64, Ino)>,
        window: usize,
        max_requests: u8,
    ) -> Vec<(Arc<Inode>, RemotePath)> {
        let now = Instant::now();
        let mut left = window;
        let mut select_followers = Vec::new();
        let tree = self.tree();
        for (number, ino) in history {
            if left == 0 {
                break;
            }
            let Some(inode) = tree.get(ino) else { continue };
            let mut state = inode.state();
            let Some(visit) = state.visit().filter(|visit| visit.number() == number) else {
                continue;
            };
            left -= 1;
            let pause = visit.interval().min(self.config.open_revalidate * 2);
            let too_soon = now < visit.since() + pause / 2;
            let in_vain = visit.requests() >= max_requests;
            if too_soon || in_vain || !self.is_worth_revalidating(&state, now) {
                continue;
            }
            let Ok([path]) = <[RemotePath; 1]>::try_from(tree.paths(ino)) else { continue };
            state.set_visit(visit.with_request());
            drop(state);
            select_followers.push((inode, path));
        }
        select_followers
    }

    /// Whether an open of a file with this state could be granted if the server told that it is
    /// unchanged, and cannot be for much longer.
    fn is_worth_revalidating(&self, state: &State, now: Instant) -> bool {
        let kind = FileKind::Regular;
        let is_old = match self.config.consistency {
            Consistency::CloseToOpen => state.validated(now, self.renewal_age()).is_none(),
            _ => self.validated(state, kind).is_none(),
        };
        let can_defer = |attr: &Attr| {
            may_read(&self.config, attr) && !self.wants_backing(attr) && self.has_pages(state, attr)
        };
        let unopened = state.open.iter().all(|open| open.remote.opened().is_none());
        is_old
            && unopened
            && state.changes_in_flight() == 0
            && state.last_attr().as_ref().is_some_and(can_defer)
    }

    /// Begins to ask about `inode`, if there is room for that.
    fn start_revalidation(
        self: &Arc<Self>,
        inode: Arc<Inode>,
        path: RemotePath,
        stamp: RequestStamp,
    ) {
        let Some(ended) = self.prefetch.revalidation.history().begin(inode.ino) else { return };
        let shared = self.clone();
        self.background.start(async move {
            let _on_its_way = InFlight { shared: &shared, ino: inode.ino, _ended: ended };
            // Who opens it is told of any error.
            if let Ok(attr) = shared.remote.lstat(&path).await {
                shared.record_revalidation(&inode, &path, &attr, stamp);
            }
        });
    }

    /// Keeps what was told of the name `path` of `inode`.
    fn record_revalidation(
        &self,
        inode: &Inode,
        path: &RemotePath,
        attr: &Attr,
        stamp: RequestStamp,
    ) {
        let mut tree = self.tree();
        let Some((dir, name)) = tree.first_name(inode.ino) else { return };
        let same_name = tree.path(inode.ino).as_ref() == Some(path);
        if !same_name || !tree.is_current(dir, &name, stamp) || inode.kind != attr.kind {
            return;
        }
        {
            let state = inode.state();
            let open = state.open.iter().any(|open| open.remote.opened().is_some());
            let known = state.last_attr().map(|known| Validator::of(&known));
            // An open handle may be of another file than the name.
            if open && known != Some(Validator::of(attr)) || state.received_at() > stamp.at {
                return;
            }
        }
        tree.reconcile_listing(dir, &name, Some(attr), stamp);
        self.record_attr(inode, attr, stamp);
        tree.renew_name(dir, &name, inode.state().valid_until());
    }

    /// Waits for the answer to a question about `inode` that was sent ahead, though not for long.
    /// Whether there was one.
    pub(crate) async fn await_revalidation(&self, inode: &Inode) -> bool {
        let in_flight = self.prefetch.revalidation.history().in_flight(inode.ino);
        let Some(mut ended) = in_flight else { return false };
        // Nothing is ever sent: it ends with its sender.
        let _ = tokio::time::timeout(MAX_WAIT, ended.changed()).await;
        true
    }
}

/// Takes a question off the list when it is over, however it ended.
struct InFlight<'a> {
    shared: &'a Shared,
    ino: Ino,
    /// Tells those who wait, after it is off the list.
    _ended: watch::Sender<()>,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.shared.prefetch.revalidation.history().end(self.ino);
    }
}
