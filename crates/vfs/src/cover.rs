//! Which answers are valid until the server reports a change (`consistency=watch`).
//!
//! Definitions. A directory is *watched* while the server reports what changes in it. Its [`Cover`]
//! says since when. An answer is *covered* if it was requested while the directory of the entry was
//! watched: then it is valid until a change is reported, for at most [`MAX_AGE`]. The attributes of
//! a directory are also changed by changes in it, so they are covered only if the directory itself
//! is watched, too.
//!
//! Answers are not covered in two cases, and then have the time-outs of close-to-open:
//!
//! 1. The file has several names. A change by another name may not be reported.
//! 2. A local change of the file is in flight, or ended less than [`QUIET`] before the request. The
//!    server reports local changes like all others, a moment later; so reports within that time are
//!    ignored, and nothing that relies on them is kept for longer than the minimum time-out.
//!
//! When a watch ends, no answer is covered by it any more, without a visit to each: an answer is
//! covered while the watch is older than its request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::compact_instant::CompactInstant;

/// How long a covered answer is valid without a report. Bounds what the server does not see: writes
/// through a mapping or through a new hard link, times of access, and a silent loss of the
/// connection. A directory costs one request in this time.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(60);

/// Time-out of names and attributes in the kernel. Reports make it look them up again; but a
/// notification may overlap with a reply, wait for a lock of the kernel, or miss what is below a
/// renamed directory.
pub(crate) const KERNEL_TTL: Duration = Duration::from_millis(500);

/// Reports of a directory that nothing uses after which its watch ends.
const MAX_UNUSED_REPORTS: u32 = 1000;

/// How long after a local change reports may be about it.
pub(crate) const QUIET: Duration = Duration::from_secs(1);

/// Since when a directory is watched.
pub(crate) struct Cover {
    since: AtomicI64,
    lapsed: AtomicI64,
    /// A listing from before the watch was requested again.
    is_refreshed: AtomicBool,
    /// Reports since the directory was used last.
    unused_reports: AtomicU32,
}

impl Default for Cover {
    fn default() -> Cover {
        let never = || AtomicI64::new(CompactInstant::NEVER.to_raw());
        let (is_refreshed, unused_reports) = (AtomicBool::new(false), AtomicU32::new(0));
        Cover { since: never(), lapsed: never(), is_refreshed, unused_reports }
    }
}

impl Cover {
    /// All changes after `now` are reported.
    pub(crate) fn begin(&self, now: Instant) {
        self.is_refreshed.store(false, Ordering::Relaxed);
        self.note_use();
        self.since.store(CompactInstant::from(now).to_raw(), Ordering::Release);
    }

    /// Changes may not be reported any more.
    pub(crate) fn end(&self, now: Instant) {
        self.since.store(CompactInstant::NEVER.to_raw(), Ordering::Release);
        self.lapsed.store(CompactInstant::from(now).to_raw(), Ordering::Release);
    }

    fn since(&self) -> Option<Instant> {
        CompactInstant::from_raw(self.since.load(Ordering::Acquire)).instant()
    }

    /// Whether all changes since `requested_at` were reported.
    pub(crate) fn includes(&self, requested_at: Instant) -> bool {
        self.since().is_some_and(|since| since <= requested_at)
    }

    /// The directory, or a name in it, is in use.
    pub(crate) fn note_use(&self) {
        self.unused_reports.store(0, Ordering::Relaxed);
    }

    /// A change was reported. Returns whether the watch costs more than it saves.
    pub(crate) fn note_report(&self) -> bool {
        self.unused_reports.fetch_add(1, Ordering::Relaxed) >= MAX_UNUSED_REPORTS
    }

    /// Whether this number of reports may be too many for the watch.
    pub(crate) fn is_about_to_end(&self, reports: usize) -> bool {
        let before = self.unused_reports.load(Ordering::Relaxed) as usize;
        before + reports > MAX_UNUSED_REPORTS as usize
    }

    /// Whether a listing that was requested at `requested_at` is to be requested again, so that it
    /// is covered. Once for each watch.
    pub(crate) fn wants_refresh(&self, requested_at: Instant) -> bool {
        self.since().is_some_and(|since| requested_at < since)
            && !self.is_refreshed.swap(true, Ordering::Relaxed)
    }

    /// When a watch ended last: names that were validated before may lead elsewhere.
    pub(crate) fn lapsed(&self) -> CompactInstant {
        CompactInstant::from_raw(self.lapsed.load(Ordering::Acquire))
    }
}

/// The watches that an inode depends on.
#[derive(Default)]
pub(crate) struct Covers {
    /// Of the directory that contains it; the root's own for the root.
    pub(crate) parent: Option<Arc<Cover>>,
    /// Of the directory that it is.
    pub(crate) own: Option<Arc<Cover>>,
}

impl Covers {
    /// Whether all changes were reported of the attributes since `requested_at`, and of the name
    /// since `named_at`.
    pub(crate) fn include(&self, requested_at: Instant, named_at: CompactInstant) -> bool {
        let Some(parent) = &self.parent else { return false };
        let own_includes = self.own.as_ref().is_none_or(|own| own.includes(requested_at));
        let is_root = self.own.as_ref().is_some_and(|own| Arc::ptr_eq(own, parent));
        let is_named = is_root || named_at.instant().is_some_and(|at| parent.includes(at));
        own_includes && is_named && parent.includes(requested_at)
    }
}
