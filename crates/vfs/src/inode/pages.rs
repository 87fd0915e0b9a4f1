//! Which content the kernel's pages of a file hold, and whether an open may keep them.
//!
//! Pages are compared with the file by their [`Validator`]. Content that was read before the second
//! of its validator was over is racy: another change in that second would not be visible. Where the
//! remote reports changes ([`ChangeId`]), pages are compared by them as well, unless this mount has
//! changed the file since: a change may leave the validator the same, but not the ctime.

use std::time::Duration;

use base::{Attr, ChangeId, FileId, Timestamp};
use tokio::time::Instant;

use super::{State, instant};
use crate::compact_instant::CompactInstant;

/// A content is past its racy window when its validator has been known for this long: the second
/// named by the mtime, and one for a clock that ticks in between.
pub(super) const RACY_WINDOW: Duration = Duration::from_secs(2);

/// How late the kernel may drop pages after an open was answered that makes it do so: the thread of
/// that open drops them when it gets to run. Too long costs a request for each open of a changed
/// file meanwhile.
pub(super) const DROP_DELAY: Duration = Duration::from_secs(1);

/// An mtime that is this many seconds old by the local clock is past the racy window at once.
/// Bounds the difference of both clocks (Kerberos allows as much).
const MAX_CLOCK_SKEW: i64 = 300;

/// Identifies the content of a file, as far as the remote allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Validator {
    size: u64,
    mtime: i64,
    id: Option<FileId>,
}

impl Validator {
    pub(crate) fn of(attr: &Attr) -> Validator {
        Validator { size: attr.size, mtime: attr.mtime.secs, id: attr.id() }
    }

    /// Whether both may be of one content. One of them may be from before the server told files
    /// apart.
    pub(crate) fn agrees_with(&self, other: &Validator) -> bool {
        let is_other = self.id.zip(other.id).is_some_and(|(one, other)| one != other);
        (self.size, self.mtime) == (other.size, other.mtime) && !is_other
    }
}

/// The content that the kernel's page cache holds.
#[derive(Clone, Copy)]
pub(super) struct Pages {
    validator: Validator,
    /// `None` if it is not known since a local change, or never reported.
    change: Option<ChangeId>,
    past_racy_window: bool,
}

/// Whether both attributes may be of one content.
pub(crate) fn may_be_same_content(one: &Attr, other: &Attr) -> bool {
    Validator::of(one) == Validator::of(other) && may_be_equal(one.change(), other.change())
}

fn may_be_equal(one: Option<ChangeId>, other: Option<ChangeId>) -> bool {
    one.is_none() || other.is_none() || one == other
}

impl State {
    fn pages(&self) -> Option<Pages> {
        self.active.as_ref()?.pages
    }

    /// Whether the kernel's pages may hold data that was written locally, of which no validator is
    /// known yet.
    pub(crate) fn has_written_pages(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.pages.is_none() && active.writes_pages)
    }

    /// Whether the kernel's pages, if it has any, are of the content that `attr` names.
    pub(crate) fn has_pages(&self, attr: &Attr, trust_racy: bool) -> bool {
        self.expects_pages(attr, trust_racy) && !self.may_drop_pages()
    }

    /// Whether the kernel's pages are of the content that `attr` names when it has dropped those of
    /// older contents.
    fn expects_pages(&self, attr: &Attr, trust_racy: bool) -> bool {
        self.pages().is_some_and(|pages| {
            pages.validator == Validator::of(attr)
                && (!self.compares_changes(attr) || may_be_equal(pages.change, attr.change()))
                && (pages.past_racy_window || trust_racy)
        })
    }

    /// Whether the kernel may not have dropped yet what an open made it drop: another open that
    /// kept its pages could read the older ones.
    pub(crate) fn may_drop_pages(&self) -> bool {
        let until = self.active.as_ref().and_then(|active| active.pages_dropped_until);
        until.is_some_and(|until| CompactInstant::from(Instant::now()) < until)
    }

    /// The kernel has dropped its pages.
    pub(crate) fn note_pages_gone(&mut self) {
        if let Some(active) = &mut self.active {
            active.pages_dropped_until = None;
        }
    }

    /// The caller makes the kernel drop its pages, if it may have any.
    fn note_pages_dropped(&mut self) {
        if self.pages().is_some() || self.pages_untrusted {
            self.active().pages_dropped_until = Some((Instant::now() + DROP_DELAY).into());
        }
    }

    /// Whether pages are compared by changes. Without an identity, another change may be that of
    /// another file. Descriptors of the older file would fill the pages with its content: while
    /// there are any, the pages stay those of the older file.
    fn compares_changes(&self, attr: &Attr) -> bool {
        attr.id().is_some() || !self.fills_pages()
    }

    /// Whether reads through an open descriptor fill the kernel's pages.
    fn fills_pages(&self) -> bool {
        self.open.iter().any(|open| open.cached)
    }

    /// Whether the kernel's pages are of the content that `attr` names. If not, the caller makes
    /// the kernel drop them, and they are filled with that content from then on.
    ///
    /// With `trust_racy` an equal validator is enough. The content that fills the pages is read at
    /// `read_from` or later. The kernel may still have [older pages](State::may_drop_pages).
    pub(crate) fn validate_pages(
        &mut self,
        attr: &Attr,
        trust_racy: bool,
        read_from: Instant,
    ) -> bool {
        let validator = Validator::of(attr);
        let is_expected = self.expects_pages(attr, trust_racy);
        if !is_expected {
            self.note_pages_dropped();
            self.known_contents += 1;
            let since = i64::try_from(read_from.elapsed().as_secs()).unwrap_or(i64::MAX);
            let age = Timestamp::now().secs.saturating_sub(attr.mtime.secs).saturating_sub(since);
            let seen_for = read_from.saturating_duration_since(instant(self.validator_seen_at));
            let past_racy_window = age > MAX_CLOCK_SKEW + 1 || seen_for >= RACY_WINDOW;
            let change = attr.change();
            self.active().pages = Some(Pages { validator, change, past_racy_window });
        } else if self.compares_changes(attr)
            && let Some(pages) = &mut self.active().pages
        {
            pages.change = attr.change();
        }
        is_expected
    }

    /// Whether the file opened as `attr` may be another one than the file from which open
    /// descriptors fill the kernel's pages: its validator is the same, but racy, and no local
    /// change explains it.
    pub(crate) fn may_be_other_file(&self, attr: &Attr) -> bool {
        let validator = Validator::of(attr);
        let racy = |pages: Pages| pages.validator == validator && !pages.past_racy_window;
        self.changes_begun() == 0 && self.pages().is_some_and(racy) && self.fills_pages()
    }

    /// The file is being opened for writing, and has the attributes `attr`.
    pub(crate) fn begin_writing(&mut self, attr: &Attr) {
        let written = self.open.iter().any(|open| open.access.writes());
        self.began_empty = attr.size == 0 || self.began_empty && written;
    }

    /// The kernel's pages hold the data just written, and `attr` is the result; unless they also
    /// hold older data, which another machine may have changed.
    pub(crate) fn pages_written(&mut self, attr: &Attr) {
        if self.began_empty {
            let active = self.active();
            active.pages = Some(Pages {
                validator: Validator::of(attr),
                change: attr.change(),
                past_racy_window: false,
            });
            // The kernel has dropped what was older before the open of the writer returned.
            active.pages_dropped_until = None;
        }
    }

    /// A local change of the file, or of one of its names, begins or ends: it may set the ctime.
    pub(super) fn forget_page_change(&mut self) {
        let pages = self.active.as_mut().and_then(|active| active.pages.as_mut());
        if let Some(pages) = pages {
            pages.change = None;
        }
    }

    /// The content of the kernel's pages is no longer known.
    pub(crate) fn invalidate_pages(&mut self) {
        self.known_contents += 1;
        self.pages_untrusted = true;
        if let Some(active) = &mut self.active {
            active.pages = None;
        }
    }

    /// Whether the kernel's pages may be used where pages are never compared.
    pub(crate) fn trusts_pages(&self) -> bool {
        !self.pages_untrusted && !self.may_drop_pages()
    }

    /// Whether the kernel's pages may be used where pages are never compared. If not, the kernel
    /// drops them with this open, and later pages are trusted again.
    pub(crate) fn restore_page_trust(&mut self) -> bool {
        let trusts_pages = self.trusts_pages();
        if self.pages_untrusted {
            self.note_pages_dropped();
            self.pages_untrusted = false;
        }
        trusts_pages
    }

    /// The kernel's pages may hold bytes that are not in the file, such as those of failed writes.
    pub(crate) fn distrust_pages(&mut self) {
        self.began_empty = false;
        self.note_uncertain_kernel_size();
        self.note_kernel_invalidation();
        self.rare().pages_dropped_at = Some(Instant::now());
        if let Some(active) = &mut self.active {
            active.writes_pages = false;
        }
        self.invalidate_pages_and_size();
    }

    /// The content is being changed locally: the pages match no known validator, and the kernel
    /// knows that its size is stale.
    pub(crate) fn invalidate_pages_and_size(&mut self) {
        self.invalidate_pages();
        self.kernel_valid_until = CompactInstant::NEVER;
    }
}
