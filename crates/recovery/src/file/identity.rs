//! Whether what was opened by a name is the file that is open by that name already.
//!
//! All handles of a file share its [`OpenFile`], also when their opens overlap: what one of them
//! changes, the others have to expect after a loss. SFTP tells no inode numbers, so attributes have
//! to do. Where these are not what is expected, another client may have changed the file, or may
//! have put another one in its place: both handles are asked then.

use std::sync::Arc;

use base::{Attr, Fh, Opened};

use super::{FileState, Handle, OpenFile, Phase};
use crate::Core;
use crate::expected_attrs::ExpectedAttrs;

/// What was known when the open was sent.
pub(super) struct OpenSnapshot {
    /// `None` when no open of the file had been answered.
    pub(super) expected: Option<ExpectedAttrs>,
    /// The number of the next change at that time, if nothing was under way.
    pub(super) next: Option<u64>,
    /// The open has cut the file.
    pub(super) was_truncated: bool,
}

impl FileState {
    /// The first open of it is answered. `is_unchanged`: nothing was changed since it was sent.
    pub(super) fn first_observed(&mut self, attr: &Attr, is_unchanged: bool) {
        self.has_attrs = true;
        let seen = ExpectedAttrs::of(attr);
        self.expected = if is_unchanged { seen } else { seen.or(self.expected) };
    }

    /// The number of the next change, if nothing is under way but these `own` changes. What is under
    /// way may be missing in what is seen from now on, though it is answered before that.
    pub(crate) fn next_if_idle(&self, own: u64) -> Option<u64> {
        (self.log.unanswered().0 as u64 == own).then(|| self.log.next() - own)
    }

    /// Whether nothing is under way, and nothing was when the change `next` was the next one, nor has
    /// begun since, but for `own` changes.
    pub(crate) fn is_unchanged_since(&self, next: Option<u64>, own: u64) -> bool {
        self.log.is_idle() && next.is_some_and(|next| self.log.next() - next == own)
    }
}

impl OpenFile {
    /// Whether `opened` is this file. Without what was `snapshot` when it was sent, only both handles
    /// can tell.
    pub(super) async fn is_same_file(
        &self,
        core: &Core,
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
            let is_match = match expected {
                Some(before) => before.or(now).matches(&opened.attr),
                // The other open that was under way has told what it was.
                None => !is_unchanged || now.matches(&opened.attr),
            };
            if was_truncated || is_match {
                if is_unchanged {
                    state.observed(&opened.attr);
                }
                return true;
            }
        }
        // Where there is nobody to ask, what was seen between two of our own changes is taken for it:
        // a later loss compares it again.
        self.compare_handles(core, opened.fh).await.unwrap_or(!is_unchanged)
    }

    /// Whether one of its handles shows the same as `fh`: size and time are between what it shows
    /// before and after, since others may write meanwhile. Always so if this mount changes the file
    /// meanwhile. `None` if they cannot be asked.
    async fn compare_handles(&self, core: &Core, fh: Fh) -> Option<bool> {
        let (usable, next) = {
            let state = self.lock();
            (state.usable_inner(), state.next_if_idle(0))
        };
        let (_handle, own_fh) = usable?;
        // One behind the other over one connection: one round trip.
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
    /// A handle below that may be used now, and who has it.
    fn usable_inner(&self) -> Option<(Arc<Handle>, Fh)> {
        if self.phase != Phase::Open {
            return None;
        }
        let usable =
            self.inner_handles.values().filter(|inner| !inner.closed && inner.refused.is_none());
        usable.filter_map(|inner| Some((inner.handle.upgrade()?, inner.fh))).next()
    }
}
