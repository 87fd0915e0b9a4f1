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
//! inodes have is apart, and made when it is needed ([`ActiveState`], [`RareState`], [`Writes`], [`OpenHandles`]),
//! and points in time are [`CompactInstant`]s.

mod pages;
mod times;

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use base::{Access, Attr, AttrChange, Errno, FileKind, Timestamp};
use tokio::time::Instant;

use crate::Ino;
use crate::compact_instant::CompactInstant;
use crate::config::Timeout;
use crate::prefetch::history::Visit;
use crate::readahead::Readahead;
use crate::remote_file::RemoteFile;
use crate::tree::RequestStamp;
use crate::writes::Writes;
use pages::Pages;

/// For how much longer than it was told to the kernel may take attributes for true: its time runs
/// from when it takes the reply. Too much costs a round trip at an open of what has changed.
const KERNEL_TTL_SLACK: Duration = Duration::from_secs(1);

/// For how long the kernel is told attributes without any time to take them for true, once an open
/// has found that it had another size: long enough for each open that waits for the same file to
/// be made again. Costs questions of the kernel, but none to the server.
const ZERO_TTL_FOR: Duration = Duration::from_secs(10);

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
struct ActiveState {
    /// Tick of the last change made here.
    last_change_seq: u64,
    /// Tick at which a handle was opened that had been granted before.
    deferred_open_seq: u64,
    /// Changes that have ever begun.
    changes_begun: u64,
    /// Changes on their way.
    changes_in_flight: u32,
    /// Changes of its names on their way.
    renames_in_flight: u32,
    pages: Option<Pages>,
    visit: Option<Visit>,
    /// Something that changes the time of change was done here since the attributes were learned.
    mtime_pending: bool,
    /// Nanoseconds of the time of change last learned, if this mount has made that change; else 0.
    fraction: u32,
    /// What the file is, if this mount has made it and has done all to it since.
    created_here: Option<Box<CreatedFile>>,
    rare: Option<Box<RareState>>,
}

/// What is known of few inodes: of those that are changed through this mount.
#[derive(Default)]
struct RareState {
    /// Until when the kernel is told nothing to take for true.
    zero_ttl_until: Option<Instant>,
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
struct CreatedFile {
    attr: Attr,
    /// So is the time of its last change.
    exact_mtime: bool,
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
pub(crate) struct StateVersion {
    /// The number of the file that was opened last, of those that are open.
    newest: Option<u64>,
    validator: Option<Validator>,
}

/// Those who have a file open: nobody, for most files.
#[derive(Default)]
pub(crate) struct OpenHandles(
    #[expect(clippy::box_collection, reason = "all files have room for it")]
    Option<Box<Vec<OpenHandle>>>,
);

impl OpenHandles {
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

impl Deref for OpenHandles {
    type Target = [OpenHandle];

    fn deref(&self) -> &[OpenHandle] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

/// The mutable part of an [`Inode`].
pub(crate) struct State {
    /// As the server last told, not mapped.
    attr: Option<Attr>,
    valid_until: CompactInstant,
    /// When the server told `attr`.
    received_at: CompactInstant,
    /// `attr` was true at this time or later.
    requested_at: CompactInstant,
    /// A name of this inode was seen to lead to it at this time or later.
    name_validated_at: CompactInstant,
    /// When the present validator was first seen.
    validator_seen_at: CompactInstant,
    /// Until when the kernel may take `kernel_size` for true; never when it knows that it is not.
    kernel_valid_until: CompactInstant,
    /// The size that the kernel was told last, for however short a time.
    kernel_size: u64,
    /// Counts the contents that the file has had, as far as that is known here, and how often the
    /// kernel's pages were dropped.
    content_generation: u64,
    /// For how long an unchanged answer counts next, in milliseconds. What is longer than fits
    /// here comes out of the time-out that it is bounded by.
    lifetime_ms: u32,
    /// Links, as far as this mount made them.
    pub(crate) nlink: u32,
    /// `None` for most inodes.
    active: Option<Box<ActiveState>>,
    pub(crate) open: OpenHandles,
    /// Shared by those who have the file open through the page cache.
    pub(crate) readahead: Weak<Readahead>,
    /// Something has happened here since `attr` was told that may have changed it.
    invalidated: bool,
    /// The kernel's pages may be of another file, whatever is taken for granted about them.
    pages_untrusted: bool,
    /// Whoever writes the file at present has found it empty. So the kernel's pages hold what was
    /// written here, and nothing from before that another machine could have changed meanwhile.
    began_empty: bool,
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
                received_at: now,
                requested_at: now,
                name_validated_at: CompactInstant::NEVER,
                validator_seen_at: now,
                kernel_valid_until: CompactInstant::NEVER,
                kernel_size: 0,
                content_generation: 0,
                lifetime_ms: 0,
                nlink: 1,
                active: None,
                open: OpenHandles::default(),
                readahead: Weak::new(),
                invalidated: true,
                pages_untrusted: false,
                began_empty: false,
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
        (CompactInstant::from(now) < self.valid_until).then_some(self.attr).flatten()
    }

    /// The attributes last seen, however long ago.
    pub(crate) fn last_attr(&self) -> Option<Attr> {
        self.attr
    }

    /// The attributes last seen, if they were asked for no longer than `within` ago, whatever has
    /// been changed here since.
    pub(crate) fn requested_within(&self, within: Duration) -> Option<Attr> {
        let age = Instant::now().saturating_duration_since(instant(self.requested_at));
        self.attr.filter(|_| age < within)
    }

    /// When the server told the attributes last seen.
    pub(crate) fn received_at(&self) -> Instant {
        instant(self.received_at)
    }

    /// See [`StateVersion`].
    pub(crate) fn version(&self) -> StateVersion {
        StateVersion {
            newest: self.open.iter().map(|open| open.file).max(),
            validator: self.last_attr().map(|attr| Validator::of(&attr)),
        }
    }

    /// The kernel is told `size`, to take it for true for `ttl` at most. Tells for how long.
    pub(crate) fn note_kernel_reply(&mut self, size: u64, ttl: Duration) -> Duration {
        let now = Instant::now();
        let ttl = if self.has_zero_ttl(now) { Duration::ZERO } else { ttl };
        self.kernel_valid_until = match ttl {
            Duration::ZERO => CompactInstant::NEVER,
            _ => (now + ttl + KERNEL_TTL_SLACK).into(),
        };
        self.kernel_size = size;
        ttl
    }

    fn active(&mut self) -> &mut ActiveState {
        self.active.get_or_insert_default()
    }

    fn rare(&mut self) -> &mut RareState {
        self.active().rare.get_or_insert_default()
    }

    fn rare_if_any(&self) -> Option<&RareState> {
        self.active.as_ref()?.rare.as_deref()
    }

    /// Whether the kernel is told nothing to take for true.
    fn has_zero_ttl(&self, now: Instant) -> bool {
        self.rare_if_any().and_then(|rare| rare.zero_ttl_until).is_some_and(|until| now < until)
    }

    /// Whether the kernel takes another size for true than `size`, and was not made to doubt it
    /// lately. It is now.
    pub(crate) fn expire_kernel_size(&mut self, size: u64) -> bool {
        let now = Instant::now();
        let mistold =
            self.kernel_size != size && CompactInstant::from(now) < self.kernel_valid_until;
        let has_zero_ttl = mistold && !self.has_zero_ttl(now);
        if has_zero_ttl {
            self.rare().zero_ttl_until = Some(now + ZERO_TTL_FOR);
        }
        has_zero_ttl
    }

    /// An open has found the name gone. Whether it is to be sent back to the name: not if that was
    /// done a moment ago, and the name was found again since.
    pub(crate) fn send_back_to_lookup(&mut self) -> bool {
        let (now, name_validated_at) = (Instant::now(), self.name_validated_at);
        let rare = self.rare();
        let before =
            rare.sent_back_at.filter(|at| now.saturating_duration_since(*at) < ZERO_TTL_FOR);
        let again = before.is_some_and(|at| name_validated_at >= at.into());
        rare.sent_back_at = (!again).then_some(now);
        !again
    }

    /// It was opened.
    pub(crate) fn note_opened(&mut self) {
        if let Some(rare) = self.active.as_mut().and_then(|active| active.rare.as_mut()) {
            rare.sent_back_at = None;
        }
    }

    /// A change of one of its names begins. To be followed by [`State::end_renaming`].
    pub(crate) fn begin_renaming(&mut self) {
        self.active().renames_in_flight += 1;
    }

    /// The change of the name is over, however it ended.
    pub(crate) fn end_renaming(&mut self) {
        self.active().renames_in_flight -= 1;
    }

    /// Whether one of its names is being changed.
    pub(crate) fn is_renaming(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.renames_in_flight > 0)
    }

    /// Whether the kernel has been told that the file goes on behind `end`.
    pub(crate) fn kernel_size_exceeds(&self, end: u64) -> bool {
        self.kernel_size > end
    }

    /// Whether something has happened here that may have changed the attributes last seen.
    pub(crate) fn is_invalidated(&self) -> bool {
        self.invalidated
    }

    /// Until when the attributes count.
    pub(crate) fn valid_until(&self) -> Instant {
        instant(self.valid_until)
    }

    /// Grows whenever the content may be, or become, another one than before: what was asked for
    /// before is not to be used any longer. Changes count from their beginning; what is asked for
    /// while one is [on its way](State::changing) may be of either content.
    pub(crate) fn content_generation(&self) -> u64 {
        self.content_generation + self.changes_begun()
    }

    /// Whether something was changed here since `seq`, or is being changed.
    pub(crate) fn changed_since(&self, seq: u64) -> bool {
        self.active
            .as_ref()
            .is_some_and(|active| active.changes_in_flight > 0 || active.last_change_seq > seq)
    }

    /// Whether nothing was changed here since `seq`, nor is being changed, and no handle was opened
    /// that had been granted before.
    pub(crate) fn unchanged_since(&self, seq: u64) -> bool {
        !self.changed_since(seq)
            && self.active.as_ref().is_none_or(|active| active.deferred_open_seq <= seq)
    }

    /// A handle is open from now on, at `seq`, that was granted before. What was asked before that
    /// of a name may be of another file.
    pub(crate) fn note_deferred_open(&mut self, seq: u64) {
        self.active().deferred_open_seq = seq;
    }

    /// Whether that has happened since `seq`.
    pub(crate) fn deferred_open_since(&self, seq: u64) -> bool {
        self.active.as_ref().is_some_and(|active| active.deferred_open_seq > seq)
    }

    /// Whether anything was ever changed here.
    pub(crate) fn was_changed(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.last_change_seq > 0)
    }

    /// A change made through this mount begins at `seq`. To be followed by [`State::end_change`].
    pub(crate) fn begin_change(&mut self, seq: u64) {
        let active = self.active();
        active.changes_in_flight += 1;
        active.changes_begun += 1;
        active.last_change_seq = seq;
        self.invalidate();
    }

    /// The change is over at `seq`, however it ended.
    pub(crate) fn end_change(&mut self, seq: u64) {
        let active = self.active();
        active.changes_in_flight -= 1;
        active.last_change_seq = seq;
        self.invalidate();
    }

    /// How many changes have ever begun.
    pub(crate) fn changes_begun(&self) -> u64 {
        self.active.as_ref().map_or(0, |active| active.changes_begun)
    }

    /// How many changes are on their way.
    pub(crate) fn changes_in_flight(&self) -> u32 {
        self.active.as_ref().map_or(0, |active| active.changes_in_flight)
    }

    /// Whether the change that was the `changes_begun`th to begin is on its way, and no other has been
    /// since.
    pub(crate) fn is_only_change(&self, changes_begun: u64) -> bool {
        self.changes_in_flight() == 1 && self.changes_begun() == changes_begun
    }

    /// Something that this inode was part of was changed at `seq`, which shows in its attributes.
    pub(crate) fn note_change(&mut self, seq: u64) {
        self.active().last_change_seq = seq;
        self.invalidate();
    }

    /// Whether all changes are over, and none has begun since [`State::changes_begun`] said `changes_begun`.
    pub(crate) fn is_quiet_since(&self, changes_begun: u64) -> bool {
        self.changes_in_flight() == 0 && self.changes_begun() == changes_begun
    }

    /// The attributes do not count any longer.
    pub(crate) fn invalidate(&mut self) {
        self.valid_until = Instant::now().into();
        self.invalidated = true;
    }

    /// The attributes, if the server was asked within `window` for them, and whether a name leads
    /// to this inode, and nothing was changed here since, nor is being changed.
    pub(crate) fn validated(&self, now: Instant, window: Duration) -> Option<Attr> {
        let since = self.validated_at()?;
        let young = now.saturating_duration_since(since) < window;
        let quiet = self
            .active
            .as_ref()
            .is_none_or(|active| active.changes_in_flight == 0 && active.renames_in_flight == 0);
        let counts = !self.invalidated && quiet && young;
        counts.then_some(self.attr).flatten()
    }

    /// When the server was asked for what an open can be granted on.
    pub(crate) fn validated_at(&self) -> Option<Instant> {
        self.name_validated_at.min(self.requested_at).instant()
    }

    /// The last turn of this file, if it has had one.
    pub(crate) fn visit(&self) -> Option<Visit> {
        self.active.as_ref()?.visit
    }

    /// Now this is its last turn.
    pub(crate) fn set_visit(&mut self, visit: Visit) {
        self.active().visit = Some(visit);
    }

    /// A name of this inode was seen to lead to it, when asked for at `requested_at`.
    pub(crate) fn note_name_validated(&mut self, requested_at: Instant) {
        self.name_validated_at = self.name_validated_at.max(requested_at.into());
    }

    /// For how long `attr`, told at `now`, counts.
    pub(crate) fn lifetime(&self, attr: &Attr, now: Instant, timeout: Timeout) -> Duration {
        let Some(old) = self.attr else { return timeout.at_age(attr.mtime.secs) };
        let same = Validator::of(&old) == Validator::of(attr)
            && (old.perm, old.uid, old.gid) == (attr.perm, attr.uid, attr.gid);
        let lifetime = Duration::from_millis(self.lifetime_ms.into());
        if same && CompactInstant::from(now) >= self.valid_until {
            (lifetime * 2).clamp(timeout.min, timeout.max)
        } else if same {
            lifetime.clamp(timeout.min, timeout.max)
        } else {
            timeout.min
        }
    }

    /// For how long a listing of this directory counts that was asked for when `stamp`, and the
    /// `newest` of whose names was changed at that time: as long as everything in it does, unless
    /// the directory is known to have changed since.
    pub(crate) fn listing_lifetime(
        &self,
        stamp: RequestStamp,
        newest: i64,
        timeout: Timeout,
    ) -> Duration {
        let Some(attr) = self.attr else { return timeout.min };
        let changed = self.validator_seen_at > stamp.at.into() || !self.unchanged_since(stamp.seq);
        if changed { timeout.min } else { timeout.at_age(newest.max(attr.mtime.secs)) }
    }

    /// Takes over what the server told at `now`, to count for as long as `timeout` says. It was
    /// asked for at `requested_at`.
    pub(crate) fn set_attr(
        &mut self,
        attr: Attr,
        now: Instant,
        requested_at: Instant,
        timeout: Timeout,
    ) {
        let lifetime = self.lifetime(&attr, now, timeout);
        self.lifetime_ms = u32::try_from(lifetime.as_millis()).unwrap_or(u32::MAX);
        let changed = self.attr.is_none_or(|old| Validator::of(&old) != Validator::of(&attr));
        let same_second = self.attr.is_some_and(|old| old.mtime.secs == attr.mtime.secs);
        if changed {
            self.content_generation += 1;
            self.validator_seen_at = now.into();
        }
        if let Some(active) = &mut self.active {
            if let Some(rare) = &mut active.rare {
                rare.set_atime = rare.set_atime.filter(|set| set.secs == attr.atime.secs);
                rare.set_mtime = rare.set_mtime.filter(|set| set.secs == attr.mtime.secs);
            }
            if active.fraction > 0 && changed {
                // Another machine has changed it after this one, perhaps in the same second.
                active.mtime_pending |= same_second;
                active.fraction = 0;
            }
            // Somebody else has had a hand in it if its size is another one.
            active.created_here.take_if(|created_here| created_here.attr.size != attr.size);
            if let Some(created_here) = &mut active.created_here {
                **created_here = CreatedFile { attr, exact_mtime: true, at: now };
            }
        }
        self.attr = Some(attr);
        self.received_at = now.into();
        self.requested_at = requested_at.into();
        self.invalidated = false;
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
    pub(crate) fn extend_validity(&mut self, until: Instant) {
        self.valid_until = until.into();
        self.invalidated = false;
    }

    /// What the file is, if this mount has made it and has done all to it since. The time of its
    /// last change is a guess.
    pub(crate) fn created_here(&self) -> Option<Attr> {
        self.active.as_ref()?.created_here.as_ref().map(|created_here| created_here.attr)
    }

    /// The same, if the time of its last change is no guess: it was set after the last write. Tells
    /// too since when that is known.
    pub(crate) fn created_here_exact(&self) -> Option<(Attr, Instant)> {
        let created_here = self.active.as_ref()?.created_here.as_ref();
        created_here
            .filter(|created_here| created_here.exact_mtime)
            .map(|created_here| (created_here.attr, created_here.at))
    }

    /// This mount has made the file, or knows what it has made of it: `exact_mtime`, or but for the time
    /// of its last change.
    pub(crate) fn set_created_here(&mut self, attr: Attr, exact_mtime: bool) {
        self.active().created_here =
            Some(Box::new(CreatedFile { attr, exact_mtime, at: Instant::now() }));
    }

    /// What the file has become is to be asked for.
    pub(crate) fn forget_created_here(&mut self) {
        if let Some(active) = &mut self.active {
            active.created_here = None;
        }
    }

    /// `len` bytes are being written at `offset`, or at the end.
    pub(crate) fn grow_created_here(&mut self, offset: Option<u64>, len: u64) {
        if let Some(created_here) =
            self.active.as_mut().and_then(|active| active.created_here.as_mut())
        {
            let size = created_here.attr.size;
            created_here.attr.size = offset.map_or(size + len, |offset| size.max(offset + len));
            created_here.exact_mtime = false;
        }
    }

    /// An acknowledged write has failed.
    pub(crate) fn write_failed(&mut self, error: Errno) {
        self.forget_created_here();
        let rare = self.rare();
        rare.failed_writes = (rare.failed_writes.0 + 1, Some(error));
    }

    /// How many acknowledged writes have failed, and why the last one did.
    pub(crate) fn failed_writes(&self) -> (u64, Option<Errno>) {
        self.rare_if_any().map_or((0, None), |rare| rare.failed_writes)
    }

    /// The content is being changed here, and with it the time of change.
    pub(crate) fn note_content_change(&mut self) {
        self.invalidate_pages_and_size();
        self.expect_new_mtime();
    }

    /// `file` has it open no longer.
    pub(crate) fn close(&mut self, file: u64) {
        self.open.retain(|open| open.file != file);
        if self.open.is_empty() {
            // It keeps the memory.
            self.readahead = Weak::new();
        }
    }

    /// Whether it was never opened nor changed here, as far as is known.
    pub(crate) fn is_plain(&self) -> bool {
        self.active.is_none()
    }
}

/// Whether what comes of `change` is known without asking. A new owner takes set-id bits away, a
/// new mode may lose them, a new size makes a new time of change.
pub(crate) fn is_predictable(change: &AttrChange) -> bool {
    let special = change.perm.is_some_and(|perm| perm & 0o7000 != 0);
    change.size.is_none() && change.uid.or(change.gid).is_none() && !special
}

/// For those that have been since the beginning.
fn instant(compact: CompactInstant) -> Instant {
    compact.instant().expect("not never")
}

#[cfg(test)]
mod tests;
