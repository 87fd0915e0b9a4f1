//! Times as applications see them: the server's, with fractions of a second that only this mount
//! knows.
//!
//! A time that was set through this mount keeps the fraction that it was set with. Another local
//! change gets a fraction from [`Fractions`](crate::fractions::Fractions) when the server's mtime
//! for it arrives, and keeps it until the next change, so each reply is the same while size and
//! second are the same. A change by another machine in the same second, recognized by its size,
//! gets a later fraction.

use base::{Attr, AttrChange, Timestamp};

use super::State;
use crate::tree::ChangeCounter;

/// Whether the remote reports fractions of seconds.
pub(crate) fn has_fractions(attr: &Attr) -> bool {
    attr.change().is_some() || attr.mtime.nanos > 0
}

impl State {
    /// The inode was changed now (links, name), but not its content.
    pub(crate) fn touch_ctime(&mut self, changes: &ChangeCounter) {
        match self.has_ctime() {
            // The remote's ctime is requested when it is needed.
            true => self.note_change(changes.advance()),
            false => self.rare().ctime = Some(Timestamp::now()),
        }
    }

    /// atime, mtime and ctime, with the fractions set locally.
    pub(crate) fn times(&self, attr: &Attr) -> (Timestamp, Timestamp, Timestamp) {
        // A remote with fractions reports those that were set here, too.
        let exact = |received: Timestamp, set: Option<Timestamp>| {
            set.filter(|set| set.secs == received.secs && !has_fractions(attr)).unwrap_or(received)
        };
        let last_change = |mtime| attr.ctime().unwrap_or(mtime);
        let Some(active) = &self.active else {
            return (attr.atime, attr.mtime, last_change(attr.mtime));
        };
        let known_mtime = self.last_attr().map(|attr| attr.mtime).filter(|_| active.fraction > 0);
        let own_mtime = known_mtime.map(|mtime| Timestamp { nanos: active.fraction, ..mtime });
        let mtime = exact(attr.mtime, own_mtime);
        let Some(rare) = &active.rare else { return (attr.atime, mtime, last_change(mtime)) };
        let mtime = exact(mtime, rare.set_mtime);
        let ctime = last_change(mtime);
        let ctime = rare.ctime.map_or(ctime, |own| own.max(ctime));
        (exact(attr.atime, rare.set_atime), mtime, ctime)
    }

    /// A local change is setting an mtime that the server chooses.
    pub(crate) fn expect_new_mtime(&mut self) {
        self.active().mtime_pending = true;
    }

    /// No local change of the content follows `change`. If it sets the mtime, that value is kept.
    pub(crate) fn keep_set_mtime(&mut self, change: &AttrChange) {
        if change.mtime.is_some() {
            let active = self.active();
            (active.mtime_pending, active.fraction) = (false, 0);
        }
    }

    /// Whether the cached mtime is that of a local change and has no fraction yet.
    pub(crate) fn wants_fraction(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.mtime_pending)
    }

    /// The cached mtime is that of a local change, and gets this fraction unless the remote reports
    /// one.
    pub(crate) fn set_fraction(&mut self, nanos: u32) {
        let exact = self.last_attr().is_some_and(|attr| has_fractions(&attr));
        let active = self.active();
        (active.mtime_pending, active.fraction) = (false, if exact { 0 } else { nanos });
        if let Some(rare) = &mut active.rare {
            rare.set_mtime = None;
        }
    }
}
