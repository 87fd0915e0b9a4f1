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
    pub(crate) fn touch(&mut self) {
        self.rare().ctime = Some(Timestamp::now());
    }

    /// Times as applications see them: with the fractions set here, and a time of change.
    pub(crate) fn times(&self, attr: &Attr) -> (Timestamp, Timestamp, Timestamp) {
        let exact = |told: Timestamp, set: Option<Timestamp>| {
            set.filter(|set| set.secs == told.secs).unwrap_or(told)
        };
        let Some(more) = &self.more else { return (attr.atime, attr.mtime, attr.mtime) };
        let known = self.attr.map(|attr| attr.mtime).filter(|_| more.fraction > 0);
        let made = known.map(|mtime| Timestamp { nanos: more.fraction, ..mtime });
        let mtime = exact(attr.mtime, made);
        let Some(rare) = &more.rare else { return (attr.atime, mtime, mtime) };
        let mtime = exact(mtime, rare.set_mtime);
        let ctime = rare.ctime.map_or(mtime, |own| own.max(mtime));
        (exact(attr.atime, rare.set_atime), mtime, ctime)
    }

    /// The time of change is being changed here, to one that the server chooses.
    pub(crate) fn change_time(&mut self) {
        self.more().time_changes = true;
    }

    /// `change` is the last one made here. If it sets the time of change, that is as it was set.
    pub(crate) fn keep_time(&mut self, change: &AttrChange) {
        if change.mtime.is_some() {
            let more = self.more();
            (more.time_changes, more.fraction) = (false, 0);
        }
    }

    /// Whether the time of change was learned after a change made here, and has no fraction yet.
    pub(crate) fn wants_fraction(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.time_changes)
    }

    /// The time of change that was learned is of a change made here, and gets this fraction unless
    /// the remote reports one.
    pub(crate) fn set_fraction(&mut self, nanos: u32) {
        let exact = self.attr.is_some_and(|attr| attr.mtime.nanos > 0);
        let more = self.more();
        (more.time_changes, more.fraction) = (false, if exact { 0 } else { nanos });
        if let Some(rare) = &mut more.rare {
            rare.set_mtime = None;
        }
    }
}
