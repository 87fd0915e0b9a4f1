//! Whether what was opened by a name is the file that is open by that name already.
//!
//! All handles of a file share its [`Body`], also when their opens overlap: what one of them
//! changes, the others have to expect after a loss. SFTP tells no inode numbers, so attributes have
//! to do. Where these are not what is expected, another client may have changed the file, or may
//! have put another one in its place: both handles are asked then.

use std::sync::Arc;

use base::{Attr, Fh, Opened};

use super::{Body, Handle, Phase, State};
use crate::Core;
use crate::expect::Expect;

/// What was known when the open was sent.
pub(super) struct Known {
    /// `None` when no open of the file had been answered.
    pub(super) expect: Option<Expect>,
    /// The number of the next change at that time, if nothing was under way.
    pub(super) next: Option<u64>,
    /// The open has cut the file.
    pub(super) was_cut: bool,
}

impl State {
    /// The first open of it is answered. `is_quiet`: nothing was changed since it was sent.
    pub(super) fn first_seen(&mut self, attr: &Attr, is_quiet: bool) {
        self.is_seen = true;
        let seen = Expect::of(attr);
        self.expect = if is_quiet { seen } else { seen.or(self.expect) };
    }

    /// The number of the next change, if nothing is under way but these `own` changes. What is under
    /// way may be missing in what is seen from now on, though it is answered before that.
    pub(crate) fn quiet_next(&self, own: u64) -> Option<u64> {
        (self.log.unanswered().0 as u64 == own).then(|| self.log.next() - own)
    }

    /// Whether nothing is under way, and nothing was when the change `next` was the next one, nor has
    /// begun since, but for `own` changes.
    pub(crate) fn is_quiet_since(&self, next: Option<u64>, own: u64) -> bool {
        self.log.is_idle() && next.is_some_and(|next| self.log.next() - next == own)
    }
}

impl Body {
    /// Whether `opened` is this file. Without what was `known` when it was sent, only both handles
    /// can tell.
    pub(super) async fn is_file(&self, core: &Core, opened: &Opened, known: Option<Known>) -> bool {
        let now = self.expect();
        let mut is_quiet = true;
        if let Some(Known { expect, next, was_cut }) = known {
            let mut state = self.lock();
            is_quiet = state.is_quiet_since(next, u64::from(was_cut));
            if !state.is_seen {
                state.first_seen(&opened.attr, is_quiet);
                return true;
            }
            let is_explained = match expect {
                Some(before) => before.or(now).explains(&opened.attr),
                // The other open that was under way has told what it was.
                None => !is_quiet || now.explains(&opened.attr),
            };
            if was_cut || is_explained {
                if is_quiet {
                    state.seen(&opened.attr);
                }
                return true;
            }
        }
        // Where there is nobody to ask, what was seen between two of our own changes is taken for it:
        // a later loss compares it again.
        self.is_same_as(core, opened.fh).await.unwrap_or(!is_quiet)
    }

    /// Whether one of its handles shows the same as `fh`: size and time are between what it shows
    /// before and after, since others may write meanwhile. Always so if this mount changes the file
    /// meanwhile. `None` if they cannot be asked.
    async fn is_same_as(&self, core: &Core, fh: Fh) -> Option<bool> {
        let (usable, next) = {
            let state = self.lock();
            (state.usable_handle(), state.quiet_next(0))
        };
        let (_handle, mine) = usable?;
        // One behind the other over one connection: one round trip.
        let looks =
            tokio::join!(core.inner.fstat(mine), core.inner.fstat(fh), core.inner.fstat(mine));
        let (Ok(before), Ok(attr), Ok(after)) = looks else { return None };
        let mut state = self.lock();
        let is_quiet = state.is_quiet_since(next, 0);
        if is_quiet && !attr.is_between(&before, &after) {
            return Some(false);
        }
        if is_quiet && before.size == after.size {
            state.seen(&after);
        } else {
            let seen = [before, attr, after].map(|attr| Expect::of(&attr));
            state.expect = seen.into_iter().fold(state.expect, Expect::or);
        }
        Some(true)
    }
}

impl State {
    /// A handle below that may be used now, and who has it.
    fn usable_handle(&self) -> Option<(Arc<Handle>, Fh)> {
        if self.phase != Phase::Open {
            return None;
        }
        let usable = self.slots.values().filter(|slot| !slot.closed && slot.refused.is_none());
        usable.filter_map(|slot| Some((slot.handle.upgrade()?, slot.fh))).next()
    }
}
