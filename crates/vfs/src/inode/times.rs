//! Times as applications see them: those of the server, with fractions of a second that this mount
//! knows better.
//!
//! A time that was set through this mount has the fraction that it was set with. A change made
//! here gets one from [`Fractions`](crate::fractions::Fractions) when the server's time of it is
//! learned, and keeps it until the next change: the same in each answer while size and second stay
//! the same. What another machine does in the same second, and is seen by its size, comes after it.

use base::{Attr, AttrChange, Timestamp};

use super::State;

impl State {
    /// The inode itself was changed now (links, name), though not its content.
    pub(crate) fn touch_ctime(&mut self) {
        self.rare().ctime = Some(Timestamp::now());
    }

    /// Times as applications see them: with the fractions set here, and a time of change.
    pub(crate) fn times(&self, attr: &Attr) -> (Timestamp, Timestamp, Timestamp) {
        let exact = |received: Timestamp, set: Option<Timestamp>| {
            set.filter(|set| set.secs == received.secs).unwrap_or(received)
        };
        let Some(active) = &self.active else { return (attr.atime, attr.mtime, attr.mtime) };
        let known_mtime = self.attr.map(|attr| attr.mtime).filter(|_| active.fraction > 0);
        let own_mtime = known_mtime.map(|mtime| Timestamp { nanos: active.fraction, ..mtime });
        let mtime = exact(attr.mtime, own_mtime);
        let Some(rare) = &active.rare else { return (attr.atime, mtime, mtime) };
        let mtime = exact(mtime, rare.set_mtime);
        let ctime = rare.ctime.map_or(mtime, |own| own.max(mtime));
        (exact(attr.atime, rare.set_atime), mtime, ctime)
    }

    /// The time of change is being changed here, to one that the server chooses.
    pub(crate) fn expect_new_mtime(&mut self) {
        self.active().mtime_pending = true;
    }

    /// `change` is the last one made here. If it sets the time of change, that is as it was set.
    pub(crate) fn keep_set_mtime(&mut self, change: &AttrChange) {
        if change.mtime.is_some() {
            let active = self.active();
            (active.mtime_pending, active.fraction) = (false, 0);
        }
    }

    /// Whether the time of change was learned after a change made here, and has no fraction yet.
    pub(crate) fn wants_fraction(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.mtime_pending)
    }

    /// The time of change that was learned is of a change made here, and gets this fraction unless
    /// the remote reports one.
    pub(crate) fn set_fraction(&mut self, nanos: u32) {
        let exact = self.attr.is_some_and(|attr| attr.mtime.nanos > 0);
        let active = self.active();
        (active.mtime_pending, active.fraction) = (false, if exact { 0 } else { nanos });
        if let Some(rare) = &mut active.rare {
            rare.set_mtime = None;
        }
    }
}
