//! One inode: its attributes as last seen, what this mount knows better than the server, and the
//! handles it is open with.
//!
//! Definitions. The *validator* of a file is what tells one content from another as far as SFTP
//! allows: size and time of last change, in whole seconds. It is *settled* when no further change
//! could leave it the same: when the second it names is over.
//!
//! Who locks what: `state` is a plain mutex held for a few instructions; it may be taken inside
//! the tree's lock, never around it. `writes` has a lock of its own, which may be taken inside
//! that of `state`: a write begins and ends in both at once.
//!
//! There is one for each file that the kernel knows, most of which are only listed. So what few
//! inodes have is apart, and made when it is needed ([`More`], [`Rare`], [`Writes`], [`Handles`]),
//! and points in time are [`Moment`]s.

mod pages;
mod times;

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use base::{Access, Attr, AttrChange, Errno, FileKind, Timestamp};
use tokio::time::Instant;

use crate::Ino;
use crate::config::Timeout;
use crate::moment::Moment;
use crate::readahead::Readahead;
use crate::remote_file::RemoteFile;
use crate::tree::Asked;
use crate::validate_ahead::turns::Turn;
use crate::writes::Writes;
use pages::Pages;

/// For how much longer than it was told to the kernel may take attributes for true: its time runs
/// from when it takes the reply. Too much costs a round trip at an open of what has changed.
const TOLD_SLACK: Duration = Duration::from_secs(1);

/// For how long the kernel is told attributes without any time to take them for true, once an open
/// has found that it had another size: long enough for each open that waits for the same file to
/// be made again. Costs questions of the kernel, but none to the server.
const DOUBT: Duration = Duration::from_secs(10);

/// See the [module](self).
pub(crate) struct Inode {
    pub(crate) ino: Ino,
    /// `st_ino`.
    pub(crate) number: u64,
    pub(crate) kind: FileKind,
    pub(crate) writes: Writes,
    state: Mutex<State>,
}

/// What tells one content of a file from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Validator {
    size: u64,
    mtime: i64,
}

impl Validator {
    pub(crate) fn of(attr: &Attr) -> Validator {
        Validator { size: attr.size, mtime: attr.mtime.secs }
    }
}

/// What is known of those inodes that are opened or changed.
#[derive(Default)]
struct More {
    /// Tick of the last change made here.
    changed: u64,
    /// Tick at which a handle was opened that had been granted before.
    opened_late: u64,
    /// Changes that have ever begun.
    begun: u64,
    /// Changes on their way.
    changing: u32,
    /// Changes of its names on their way.
    renaming: u32,
    pages: Option<Pages>,
    turn: Option<Turn>,
    /// Something that changes the time of change was done here since the attributes were learned.
    time_changes: bool,
    /// Nanoseconds of the time of change last learned, if this mount has made that change; else 0.
    fraction: u32,
    /// What the file is, if this mount has made it and has done all to it since.
    made: Option<Box<Made>>,
    rare: Option<Box<Rare>>,
}

/// What is known of few inodes: of those that are changed through this mount.
#[derive(Default)]
struct Rare {
    /// Until when the kernel is told nothing to take for true.
    doubted_until: Option<Instant>,
    /// When an open was last sent back to a name that was gone.
    sent_back_at: Option<Instant>,
    /// Time of the last change of the inode that this mount made.
    ctime: Option<Timestamp>,
    /// Times set here, with the fractions that SFTP cannot carry; they hold as long as the server
    /// tells the same seconds.
    set_atime: Option<Timestamp>,
    set_mtime: Option<Timestamp>,
    /// Acknowledged writes that have failed, and why the last one did.
    failed_writes: (u64, Option<Errno>),
}

/// What a file is that this mount is making.
struct Made {
    attr: Attr,
    /// So is the time of its last change.
    exact: bool,
    /// When that was known.
    at: Instant,
}

/// One of those who have the file open.
pub(crate) struct OpenHandle {
    /// The number of the open file.
    pub(crate) file: u64,
    pub(crate) remote: Arc<RemoteFile>,
    /// What it was opened as.
    pub(crate) validator: Validator,
    pub(crate) access: Access,
    /// Reads through it fill the kernel's pages.
    pub(crate) cached: bool,
}

/// What is known of a file that another open, or a look at its name, changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    /// The number of the file that was opened last, of those that are open.
    newest: Option<u64>,
    validator: Option<Validator>,
}

/// Those who have a file open: nobody, for most files.
#[derive(Default)]
pub(crate) struct Handles(
    #[expect(clippy::box_collection, reason = "all files have room for it")]
    Option<Box<Vec<OpenHandle>>>,
);

impl Handles {
    /// One more has it open.
    pub(crate) fn push(&mut self, handle: OpenHandle) {
        self.0.get_or_insert_default().push(handle);
    }

    /// Leaves those that are to be `kept`.
    pub(crate) fn retain(&mut self, kept: impl FnMut(&OpenHandle) -> bool) {
        if let Some(handles) = &mut self.0 {
            handles.retain(kept);
            self.0.take_if(|handles| handles.is_empty());
        }
    }
}

impl Deref for Handles {
    type Target = [OpenHandle];

    fn deref(&self) -> &[OpenHandle] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

/// The mutable part of an [`Inode`].
pub(crate) struct State {
    /// As the server last told, not mapped.
    attr: Option<Attr>,
    valid_until: Moment,
    /// When the server told `attr`.
    learned_at: Moment,
    /// `attr` was true at this time or later.
    asked_at: Moment,
    /// A name of this inode was seen to lead to it at this time or later.
    named_at: Moment,
    /// When the present validator was first seen.
    first_seen: Moment,
    /// Until when the kernel may take `shown_size` for true; never when it knows that it is not.
    told_until: Moment,
    /// The size that the kernel was told last, for however short a time.
    shown_size: u64,
    /// Counts the contents that the file has had, as far as that is known here, and how often the
    /// kernel's pages were dropped.
    content: u64,
    /// For how long an unchanged answer counts next, in milliseconds. What is longer than fits
    /// here comes out of the time-out that it is bounded by.
    lifetime_ms: u32,
    /// Links, as far as this mount made them.
    pub(crate) nlink: u32,
    /// `None` for most inodes.
    more: Option<Box<More>>,
    pub(crate) open: Handles,
    /// Shared by those who have the file open through the page cache.
    pub(crate) ahead: Weak<Readahead>,
    /// Something has happened here since `attr` was told that may have changed it.
    outdated: bool,
    /// The kernel's pages may be of another file, whatever is taken for granted about them.
    doubts_pages: bool,
    /// Whoever writes the file at present has found it empty. So the kernel's pages hold what was
    /// written here, and nothing from before that another machine could have changed meanwhile.
    begun_empty: bool,
}

impl Inode {
    pub(crate) fn new(ino: Ino, number: u64, kind: FileKind) -> Inode {
        let now = Instant::now().into();
        Inode {
            ino,
            number,
            kind,
            writes: Writes::default(),
            state: Mutex::new(State {
                attr: None,
                valid_until: now,
                learned_at: now,
                asked_at: now,
                named_at: Moment::NEVER,
                first_seen: now,
                told_until: Moment::NEVER,
                shown_size: 0,
                content: 0,
                lifetime_ms: 0,
                nlink: 1,
                more: None,
                open: Handles::default(),
                ahead: Weak::new(),
                outdated: true,
                doubts_pages: false,
                begun_empty: false,
            }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The attributes last seen, if they still count.
    pub(crate) fn fresh_attr(&self, now: Instant) -> Option<Attr> {
        (Moment::from(now) < self.valid_until).then_some(self.attr).flatten()
    }

    /// The attributes last seen, however long ago.
    pub(crate) fn last_attr(&self) -> Option<Attr> {
        self.attr
    }

    /// The attributes last seen, if they were asked for no longer than `within` ago, whatever has
    /// been changed here since.
    pub(crate) fn asked_within(&self, within: Duration) -> Option<Attr> {
        let age = Instant::now().saturating_duration_since(instant(self.asked_at));
        self.attr.filter(|_| age < within)
    }

    /// When the server told the attributes last seen.
    pub(crate) fn learned_at(&self) -> Instant {
        instant(self.learned_at)
    }

    /// See [`Known`].
    pub(crate) fn known(&self) -> Known {
        Known {
            newest: self.open.iter().map(|open| open.file).max(),
            validator: self.last_attr().map(|attr| Validator::of(&attr)),
        }
    }

    /// The kernel is told `size`, to take it for true for `ttl` at most. Tells for how long.
    pub(crate) fn tell(&mut self, size: u64, ttl: Duration) -> Duration {
        let now = Instant::now();
        let ttl = if self.doubts(now) { Duration::ZERO } else { ttl };
        self.told_until = match ttl {
            Duration::ZERO => Moment::NEVER,
            _ => (now + ttl + TOLD_SLACK).into(),
        };
        self.shown_size = size;
        ttl
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    fn rare(&mut self) -> &mut Rare {
        self.more().rare.get_or_insert_default()
    }

    fn known_rare(&self) -> Option<&Rare> {
        self.more.as_ref()?.rare.as_deref()
    }

    /// Whether the kernel is told nothing to take for true.
    fn doubts(&self, now: Instant) -> bool {
        self.known_rare().and_then(|rare| rare.doubted_until).is_some_and(|until| now < until)
    }

    /// Whether the kernel takes another size for true than `size`, and was not made to doubt it
    /// lately. It is now.
    pub(crate) fn doubt_other_than(&mut self, size: u64) -> bool {
        let now = Instant::now();
        let mistold = self.shown_size != size && Moment::from(now) < self.told_until;
        let doubts = mistold && !self.doubts(now);
        if doubts {
            self.rare().doubted_until = Some(now + DOUBT);
        }
        doubts
    }

    /// An open has found the name gone. Whether it is to be sent back to the name: not if that was
    /// done a moment ago, and the name was found again since.
    pub(crate) fn send_back(&mut self) -> bool {
        let (now, named_at) = (Instant::now(), self.named_at);
        let rare = self.rare();
        let before = rare.sent_back_at.filter(|at| now.saturating_duration_since(*at) < DOUBT);
        let again = before.is_some_and(|at| named_at >= at.into());
        rare.sent_back_at = (!again).then_some(now);
        !again
    }

    /// It was opened.
    pub(crate) fn opened(&mut self) {
        if let Some(rare) = self.more.as_mut().and_then(|more| more.rare.as_mut()) {
            rare.sent_back_at = None;
        }
    }

    /// A change of one of its names begins. To be followed by [`State::end_renaming`].
    pub(crate) fn begin_renaming(&mut self) {
        self.more().renaming += 1;
    }

    /// The change of the name is over, however it ended.
    pub(crate) fn end_renaming(&mut self) {
        self.more().renaming -= 1;
    }

    /// Whether one of its names is being changed.
    pub(crate) fn is_renaming(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.renaming > 0)
    }

    /// Whether the kernel has been told that the file goes on behind `end`.
    pub(crate) fn told_beyond(&self, end: u64) -> bool {
        self.shown_size > end
    }

    /// Whether something has happened here that may have changed the attributes last seen.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated
    }

    /// Until when the attributes count.
    pub(crate) fn valid_until(&self) -> Instant {
        instant(self.valid_until)
    }

    /// Grows whenever the content may be, or become, another one than before: what was asked for
    /// before is not to be used any longer. Changes count from their beginning; what is asked for
    /// while one is [on its way](State::changing) may be of either content.
    pub(crate) fn content(&self) -> u64 {
        self.content + self.begun()
    }

    /// Whether something was changed here since `tick`, or is being changed.
    pub(crate) fn changed_since(&self, tick: u64) -> bool {
        self.more.as_ref().is_some_and(|more| more.changing > 0 || more.changed > tick)
    }

    /// Whether nothing was changed here since `tick`, nor is being changed, and no handle was opened
    /// that had been granted before.
    pub(crate) fn unchanged_since(&self, tick: u64) -> bool {
        !self.changed_since(tick) && self.more.as_ref().is_none_or(|more| more.opened_late <= tick)
    }

    /// A handle is open from now on, at `tick`, that was granted before. What was asked before that
    /// of a name may be of another file.
    pub(crate) fn open_late(&mut self, tick: u64) {
        self.more().opened_late = tick;
    }

    /// Whether that has happened since `tick`.
    pub(crate) fn opened_late_since(&self, tick: u64) -> bool {
        self.more.as_ref().is_some_and(|more| more.opened_late > tick)
    }

    /// Whether anything was ever changed here.
    pub(crate) fn was_changed(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.changed > 0)
    }

    /// A change made through this mount begins at `tick`. To be followed by [`State::end_change`].
    pub(crate) fn begin_change(&mut self, tick: u64) {
        let more = self.more();
        more.changing += 1;
        more.begun += 1;
        more.changed = tick;
        self.expire();
    }

    /// The change is over at `tick`, however it ended.
    pub(crate) fn end_change(&mut self, tick: u64) {
        let more = self.more();
        more.changing -= 1;
        more.changed = tick;
        self.expire();
    }

    /// How many changes have ever begun.
    pub(crate) fn begun(&self) -> u64 {
        self.more.as_ref().map_or(0, |more| more.begun)
    }

    /// How many changes are on their way.
    pub(crate) fn changing(&self) -> u32 {
        self.more.as_ref().map_or(0, |more| more.changing)
    }

    /// Whether the change that was the `begun`th to begin is on its way, and no other has been
    /// since.
    pub(crate) fn only_change(&self, begun: u64) -> bool {
        self.changing() == 1 && self.begun() == begun
    }

    /// Something that this inode was part of was changed at `tick`, which shows in its attributes.
    pub(crate) fn changed_at(&mut self, tick: u64) {
        self.more().changed = tick;
        self.expire();
    }

    /// Whether all changes are over, and none has begun since [`State::begun`] said `begun`.
    pub(crate) fn settled_since(&self, begun: u64) -> bool {
        self.changing() == 0 && self.begun() == begun
    }

    /// The attributes do not count any longer.
    pub(crate) fn expire(&mut self) {
        self.valid_until = Instant::now().into();
        self.outdated = true;
    }

    /// The attributes, if the server was asked within `window` for them, and whether a name leads
    /// to this inode, and nothing was changed here since, nor is being changed.
    pub(crate) fn validated(&self, now: Instant, window: Duration) -> Option<Attr> {
        let since = self.validated_at()?;
        let young = now.saturating_duration_since(since) < window;
        let quiet = self.more.as_ref().is_none_or(|more| more.changing == 0 && more.renaming == 0);
        let counts = !self.outdated && quiet && young;
        counts.then_some(self.attr).flatten()
    }

    /// When the server was asked for what an open can be granted on.
    pub(crate) fn validated_at(&self) -> Option<Instant> {
        self.named_at.min(self.asked_at).instant()
    }

    /// The last turn of this file, if it has had one.
    pub(crate) fn turn(&self) -> Option<Turn> {
        self.more.as_ref()?.turn
    }

    /// Now this is its last turn.
    pub(crate) fn set_turn(&mut self, turn: Turn) {
        self.more().turn = Some(turn);
    }

    /// A name of this inode was seen to lead to it, when asked for at `asked_at`.
    pub(crate) fn named(&mut self, asked_at: Instant) {
        self.named_at = self.named_at.max(asked_at.into());
    }

    /// For how long `attr`, told at `now`, counts.
    pub(crate) fn lifetime(&self, attr: &Attr, now: Instant, timeout: Timeout) -> Duration {
        let Some(old) = self.attr else { return timeout.at_age(attr.mtime.secs) };
        let same = Validator::of(&old) == Validator::of(attr)
            && (old.perm, old.uid, old.gid) == (attr.perm, attr.uid, attr.gid);
        let lifetime = Duration::from_millis(self.lifetime_ms.into());
        if same && Moment::from(now) >= self.valid_until {
            (lifetime * 2).clamp(timeout.min, timeout.max)
        } else if same {
            lifetime.clamp(timeout.min, timeout.max)
        } else {
            timeout.min
        }
    }

    /// For how long a listing of this directory counts that was asked for when `asked`, and the
    /// `newest` of whose names was changed at that time: as long as everything in it does, unless
    /// the directory is known to have changed since.
    pub(crate) fn listing_lifetime(&self, asked: Asked, newest: i64, timeout: Timeout) -> Duration {
        let Some(attr) = self.attr else { return timeout.min };
        let changed = self.first_seen > asked.at.into() || !self.unchanged_since(asked.tick);
        if changed { timeout.min } else { timeout.at_age(newest.max(attr.mtime.secs)) }
    }

    /// Takes over what the server told at `now`, to count for as long as `timeout` says. It was
    /// asked for at `asked_at`.
    pub(crate) fn learn(&mut self, attr: Attr, now: Instant, asked_at: Instant, timeout: Timeout) {
        let lifetime = self.lifetime(&attr, now, timeout);
        self.lifetime_ms = u32::try_from(lifetime.as_millis()).unwrap_or(u32::MAX);
        let changed = self.attr.is_none_or(|old| Validator::of(&old) != Validator::of(&attr));
        let same_second = self.attr.is_some_and(|old| old.mtime.secs == attr.mtime.secs);
        if changed {
            self.content += 1;
            self.first_seen = now.into();
        }
        if let Some(more) = &mut self.more {
            if let Some(rare) = &mut more.rare {
                rare.set_atime = rare.set_atime.filter(|set| set.secs == attr.atime.secs);
                rare.set_mtime = rare.set_mtime.filter(|set| set.secs == attr.mtime.secs);
            }
            if more.fraction > 0 && changed {
                // Another machine has changed it after this one, perhaps in the same second.
                more.time_changes |= same_second;
                more.fraction = 0;
            }
            // Somebody else has had a hand in it if its size is another one.
            more.made.take_if(|made| made.attr.size != attr.size);
            if let Some(made) = &mut more.made {
                **made = Made { attr, exact: true, at: now };
            }
        }
        self.attr = Some(attr);
        self.learned_at = now.into();
        self.asked_at = asked_at.into();
        self.outdated = false;
        self.valid_until = (now + lifetime).into();
    }

    /// The server has done `change`: what follows from it without asking is taken over, if the
    /// attributes counted before. Returns whether all of it is known.
    pub(crate) fn apply(&mut self, change: &AttrChange, counted: bool) -> bool {
        let rare = self.rare();
        rare.ctime = Some(Timestamp::now());
        rare.set_atime = change.atime.or(rare.set_atime);
        rare.set_mtime = change.mtime.or(rare.set_mtime);
        let predictable = counted && is_predictable(change);
        if let Some(attr) = self.attr.as_mut().filter(|_| predictable) {
            if let Some(perm) = change.perm {
                attr.perm = perm;
            }
            if let Some(atime) = change.atime {
                attr.atime = Timestamp::from_secs(atime.secs);
            }
            if let Some(mtime) = change.mtime {
                attr.mtime = Timestamp::from_secs(mtime.secs);
            }
            return true;
        }
        false
    }

    /// Lets the attributes count until `until` again, after a change which [`State::apply`] has
    /// taken over.
    pub(crate) fn extend(&mut self, until: Instant) {
        self.valid_until = until.into();
        self.outdated = false;
    }

    /// What the file is, if this mount has made it and has done all to it since. The time of its
    /// last change is a guess.
    pub(crate) fn made(&self) -> Option<Attr> {
        self.more.as_ref()?.made.as_ref().map(|made| made.attr)
    }

    /// The same, if the time of its last change is no guess: it was set after the last write. Tells
    /// too since when that is known.
    pub(crate) fn exactly_made(&self) -> Option<(Attr, Instant)> {
        let made = self.more.as_ref()?.made.as_ref();
        made.filter(|made| made.exact).map(|made| (made.attr, made.at))
    }

    /// This mount has made the file, or knows what it has made of it: `exact`, or but for the time
    /// of its last change.
    pub(crate) fn set_made(&mut self, attr: Attr, exact: bool) {
        self.more().made = Some(Box::new(Made { attr, exact, at: Instant::now() }));
    }

    /// What the file has become is to be asked for.
    pub(crate) fn forget_made(&mut self) {
        if let Some(more) = &mut self.more {
            more.made = None;
        }
    }

    /// `len` bytes are being written at `offset`, or at the end.
    pub(crate) fn grow_made(&mut self, offset: Option<u64>, len: u64) {
        if let Some(made) = self.more.as_mut().and_then(|more| more.made.as_mut()) {
            let size = made.attr.size;
            made.attr.size = offset.map_or(size + len, |offset| size.max(offset + len));
            made.exact = false;
        }
    }

    /// An acknowledged write has failed.
    pub(crate) fn write_failed(&mut self, error: Errno) {
        self.forget_made();
        let rare = self.rare();
        rare.failed_writes = (rare.failed_writes.0 + 1, Some(error));
    }

    /// How many acknowledged writes have failed, and why the last one did.
    pub(crate) fn failed_writes(&self) -> (u64, Option<Errno>) {
        self.known_rare().map_or((0, None), |rare| rare.failed_writes)
    }

    /// The content is being changed here, and with it the time of change.
    pub(crate) fn change_content(&mut self) {
        self.forget_pages();
        self.change_time();
    }

    /// `file` has it open no longer.
    pub(crate) fn close(&mut self, file: u64) {
        self.open.retain(|open| open.file != file);
        if self.open.is_empty() {
            // It keeps the memory.
            self.ahead = Weak::new();
        }
    }

    /// Whether it was never opened nor changed here, as far as is known.
    pub(crate) fn is_plain(&self) -> bool {
        self.more.is_none()
    }
}

/// Whether what comes of `change` is known without asking. A new owner takes set-id bits away, a
/// new mode may lose them, a new size makes a new time of change.
pub(crate) fn is_predictable(change: &AttrChange) -> bool {
    let special = change.perm.is_some_and(|perm| perm & 0o7000 != 0);
    change.size.is_none() && change.uid.or(change.gid).is_none() && !special
}

/// For those that have been since the beginning.
fn instant(moment: Moment) -> Instant {
    moment.instant().expect("not never")
}

#[cfg(test)]
mod tests;
