//! Whether an opened file is the one that is already open by the same name.
//!
//! All handles of a file share one [`OpenFile`], even if their opens overlap: a change through one
//! of them must be expected of the others after a loss. SFTP has no inode numbers, so attributes
//! decide, unless the remote tells files apart ([`Attr::id`]). If they are not the expected ones,
//! another client has changed or replaced the file: then an fstat of both handles decides. For
//! that, a file whose handles are lost or closed by a flush is reopened first.

use std::sync::Arc;

use base::{Attr, Fh, Opened};

use super::{FileState, Handle, OpenFile, Phase};
use crate::Core;
use crate::expected_attrs::ExpectedAttrs;

/// The state of a file when an open was sent.
pub(super) struct OpenSnapshot {
    /// `None` if no open of the file had been answered.
    pub(super) expected: Option<ExpectedAttrs>,
    /// The number of the next change at that time, if no change was in flight.
    pub(super) next: Option<u64>,
    /// The open has truncated the file.
    pub(super) was_truncated: bool,
}

impl FileState {
    /// The first open was answered. `is_unchanged`: no change was begun since it was sent.
    pub(super) fn first_observed(&mut self, attr: &Attr, is_unchanged: bool) {
        self.has_attrs = true;
        let seen = ExpectedAttrs::of(attr);
        self.expected = if is_unchanged { seen } else { seen.or(self.expected) };
    }

    /// The number of the next change, if only these `own` changes are in flight. Attributes
    /// observed from now on may lack the effect of other changes in flight, even if those are
    /// answered first.
    pub(crate) fn next_if_idle(&self, own: u64) -> Option<u64> {
        (self.log.unanswered().0 as u64 == own).then(|| self.log.next() - own)
    }

    /// Whether no change is in flight, none was when `next` was the number of the next change, and
    /// only `own` changes have begun since.
    pub(crate) fn is_unchanged_since(&self, next: Option<u64>, own: u64) -> bool {
        self.log.is_idle() && next.is_some_and(|next| self.log.next() - next == own)
    }
}

impl OpenFile {
    /// Whether `opened` is this file. Without a `snapshot` from before the open, only a comparison
    /// of both handles decides.
    pub(super) async fn is_same_file(
        &self,
        core: &Arc<Core>,
        opened: &Opened,
        snapshot: Option<OpenSnapshot>,
    ) -> bool {
        let now = self.expected();
        let mut is_unchanged = true;
        if let Some(OpenSnapshot { expected, next, was_truncated }) = snapshot {
            let mut state = self.lock();
            is_unchanged = state.is_unchanged_since(next, u64::from(was_truncated));
            if !state.has_attrs {
                state.first_observed(&opened.attr, is_unchanged);
                return true;
            }
            if let Some(is_same) = now.is_same_file(&opened.attr) {
                if is_same && is_unchanged {
                    state.observed(&opened.attr);
                }
                return is_same;
            }
            let is_match = match expected {
                Some(before) => before.or(now).matches(&opened.attr),
                // The other open in flight has observed a different state.
                None => !is_unchanged || now.matches(&opened.attr),
            };
            if was_truncated || is_match {
                if is_unchanged {
                    state.observed(&opened.attr);
                }
                return true;
            }
        }
        match self.compare_handles(core, opened.fh).await {
            Some(is_same) => is_same,
            // Attributes observed between two changes of this mount are accepted: a later loss
            // compares them again.
            None if !is_unchanged => true,
            None => Box::pin(self.compare_reopened(core, opened)).await,
        }
    }

    /// As [`OpenFile::compare_handles`], after reopening the file if necessary. `false` if it is no
    /// longer the file that was open.
    async fn compare_reopened(&self, core: &Arc<Core>, opened: &Opened) -> bool {
        let handle = {
            let state = self.lock();
            let own = state.inner_handles.values().filter(|inner| inner.refused.is_none());
            own.filter_map(|inner| inner.handle.upgrade()).next()
        };
        let Some(handle) = handle else { return false };
        match core.fstat_unqueued(&handle).await {
            Ok(own) => self
                .compare_handles(core, opened.fh)
                .await
                .unwrap_or(opened.attr.is_between(&own, &own)),
            Err(_) => false,
        }
    }

    /// Whether `fh` shows the same file as one of its own handles: its size and mtime lie between
    /// those of the own handle before and after, because other clients may write in the meantime.
    /// Always `true` if this mount changes the file in the meantime. `None` if the handles cannot
    /// be queried.
    async fn compare_handles(&self, core: &Core, fh: Fh) -> Option<bool> {
        let (usable, next) = {
            let state = self.lock();
            (state.usable_inner(), state.next_if_idle(0))
        };
        let (_handle, own_fh) = usable?;
        // Pipelined on one connection: one round trip.
        let replies =
            tokio::join!(core.inner.fstat(own_fh), core.inner.fstat(fh), core.inner.fstat(own_fh));
        let (Ok(before), Ok(attr), Ok(after)) = replies else { return None };
        let mut state = self.lock();
        let is_unchanged = state.is_unchanged_since(next, 0);
        if is_unchanged && !attr.is_between(&before, &after) {
            return Some(false);
        }
        if is_unchanged && before.size == after.size {
            state.observed(&after);
        } else {
            let seen = [before, attr, after].map(|attr| ExpectedAttrs::of(&attr));
            state.expected = seen.into_iter().fold(state.expected, ExpectedAttrs::or);
        }
        Some(true)
    }
}

impl FileState {
    /// An inner handle that may be used now, with its outer handle.
    pub(crate) fn usable_inner(&self) -> Option<(Arc<Handle>, Fh)> {
        if self.phase != Phase::Open {
            return None;
        }
        let usable =
            self.inner_handles.values().filter(|inner| !inner.closed && inner.refused.is_none());
        usable.filter_map(|inner| Some((inner.handle.upgrade()?, inner.fh))).next()
    }
}
