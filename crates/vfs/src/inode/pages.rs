//! Which content the kernel's pages of a file are of, and whether they may be kept over an open.
//!
//! The pages are compared with the file by their [`Validator`]. Content that was read before the
//! second was over that the validator names is not settled: a second change in that second could
//! not be seen.

use std::time::Duration;

use base::{Attr, Timestamp};
use tokio::time::Instant;

use super::{State, Validator, instant};
use crate::compact_instant::CompactInstant;

/// A content is settled when this much time has gone since its validator was first seen: the
/// second named by the time stamp, and one for a clock that ticks in between.
pub(super) const RACY_WINDOW: Duration = Duration::from_secs(2);

/// A time stamp that lies this far back by this machine's clock is settled without waiting.
/// Bounds how far the clocks of both machines may be apart (Kerberos allows as much).
const MAX_CLOCK_SKEW: i64 = 300;

/// Which content the kernel's page cache holds, and since when it may have been filled.
#[derive(Clone, Copy)]
pub(super) struct Pages {
    validator: Validator,
    past_racy_window: bool,
}

impl State {
    fn pages(&self) -> Option<Pages> {
        self.active.as_ref()?.pages
    }

    /// Whether the kernel's pages, if it has any, are of the content that `attr` names.
    pub(crate) fn has_pages(&self, attr: &Attr, trust_racy: bool) -> bool {
        self.pages().is_some_and(|pages| {
            pages.validator == Validator::of(attr) && (pages.past_racy_window || trust_racy)
        })
    }

    /// Whether the kernel's pages are of the content that `attr` names. If not, the caller has
    /// the kernel drop them, and they are filled with that content from now on.
    ///
    /// With `trust_racy` an equal validator is enough. `read_from` is the time from which on
    /// the content is read that the pages are filled with.
    pub(crate) fn validate_pages(
        &mut self,
        attr: &Attr,
        trust_racy: bool,
        read_from: Instant,
    ) -> bool {
        let validator = Validator::of(attr);
        let kept = self.has_pages(attr, trust_racy);
        if !kept {
            self.content_generation += 1;
            let since = i64::try_from(read_from.elapsed().as_secs()).unwrap_or(i64::MAX);
            let age = Timestamp::now().secs.saturating_sub(attr.mtime.secs).saturating_sub(since);
            let seen_for = read_from.saturating_duration_since(instant(self.validator_seen_at));
            let past_racy_window = age > MAX_CLOCK_SKEW + 1 || seen_for >= RACY_WINDOW;
            self.active().pages = Some(Pages { validator, past_racy_window });
        }
        kept
    }

    /// Whether what was opened as `attr` may be another file than the one that descriptors which
    /// are open here fill the kernel's pages from: its validator is the same, but it was first
    /// seen within the second that it names, and no change made here explains it.
    pub(crate) fn may_be_other_file(&self, attr: &Attr) -> bool {
        let validator = Validator::of(attr);
        let racy = |pages: Pages| pages.validator == validator && !pages.past_racy_window;
        self.changes_begun() == 0
            && self.pages().is_some_and(racy)
            && self.open.iter().any(|open| open.cached)
    }

    /// It is being opened for writing, as `attr`.
    pub(crate) fn begin_writing(&mut self, attr: &Attr) {
        let written = self.open.iter().any(|open| open.access.writes());
        self.began_empty = attr.size == 0 || self.began_empty && written;
    }

    /// The kernel's pages are what was just written, and `attr` is what came of it. Unless they
    /// hold something from before: then another machine may have changed that.
    pub(crate) fn pages_written(&mut self, attr: &Attr) {
        if self.began_empty {
            self.active().pages =
                Some(Pages { validator: Validator::of(attr), past_racy_window: false });
        }
    }

    /// Which content the kernel's pages are of is not known any longer.
    pub(crate) fn invalidate_pages(&mut self) {
        self.content_generation += 1;
        self.pages_untrusted = true;
        if let Some(active) = &mut self.active {
            active.pages = None;
        }
    }

    /// Whether the kernel's pages are trusted where they are not compared with what is known.
    pub(crate) fn trusts_pages(&self) -> bool {
        !self.pages_untrusted
    }

    /// The same; the kernel drops them if not, and from then on they are trusted again.
    pub(crate) fn restore_page_trust(&mut self) -> bool {
        !std::mem::take(&mut self.pages_untrusted)
    }

    /// The content is being changed here, so that the pages match no validator seen so far, and
    /// the kernel knows that the size it was told is not true any longer.
    pub(crate) fn invalidate_pages_and_size(&mut self) {
        self.invalidate_pages();
        self.kernel_valid_until = CompactInstant::NEVER;
    }
}
