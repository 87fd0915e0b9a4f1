//! One inode: its cached attributes, local knowledge that the server does not have, and its open
//! handles.
//!
//! Definitions. The *validator* of a file identifies its content as far as SFTP allows: size and
//! mtime in whole seconds. A content is *racy* (Git's "racily clean") if it was read within the
//! second that its validator names: a second change in that second would leave the validator the
//! same. Later it is *past the racy window*.
//!
//! Words of freshness. Each names one question; the methods of [`State`] use them so.
//!
//! | word | question | clock |
//! | --- | --- | --- |
//! | fresh | is the time-out of the attributes not over? | now < `valid_until` |
//! | expired | is it over? | now >= `valid_until` |
//! | validated | did the server confirm the attributes and a name within `open_revalidate`, with no local change since or in flight? | age of `requested_at`, `name_validated_at` |
//! | invalidated | has a local change, or a contradicting answer, made the attributes doubtful? | none; until the next answer |
//! | unchanged since | was there no local change since a request was sent, and is none in flight? | [`ChangeCounter`](crate::tree::ChangeCounter) |
//! | no change since a count | have all changes ended, and has none begun since a count of [`State::changes_begun`]? | that count |
//! | past the racy window | can the content not change any more without a new validator? | `validator_seen_at`, the server's mtime |
//! | same generation | is the content the one that was requested? | [`State::content_generation`] |
//!
//! Locking. `state` is a plain mutex held for a few instructions; it may be taken inside the tree's
//! lock, never around it. `writes` has a lock of its own, which may be taken inside that of
//! `state`: a write begins and ends in both at once.
//!
//! There is one `Inode` for each file that the kernel knows, and most of them are only listed. So
//! fields that few inodes need are in boxes of their own ([`ActiveState`], [`RareState`],
//! [`Writes`], [`OpenHandles`]), and times are [`CompactInstant`]s.

mod pages;
mod times;

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use base::{Access, Attr, AttrChange, Errno, FileKind, InodeAttr, Mutex, Timestamp};
use tokio::time::Instant;

use crate::Ino;
use crate::compact_instant::CompactInstant;
use crate::config::Timeout;
use crate::cover::{Cover, Covers, MAX_AGE, QUIET};
use crate::prefetch::history::Visit;
use crate::readahead::Readahead;
use crate::remote_file::RemoteFile;
use crate::stored_attr::StoredAttr;
use crate::tree::{ChangeCounter, RequestStamp};
use crate::writes::Writes;
use pages::Pages;

pub(crate) use pages::{Validator, may_be_same_content};
pub(crate) use times::has_fractions;

/// How much longer than its time-out the kernel may use attributes: its time-out starts when it
/// receives the reply. Too long a slack costs a round trip at the open of a changed file.
const KERNEL_TTL_SLACK: Duration = Duration::from_secs(1);

/// How long the kernel gets attributes with a time-out of zero after an open found another size
/// than the kernel's: long enough for each open that waits for the same file to be repeated. Costs
/// requests of the kernel, but none to the server.
const ZERO_TTL_FOR: Duration = Duration::from_secs(10);

/// See the [module](self).
pub(crate) struct Inode {
    pub(crate) ino: Ino,
    /// `st_ino`.
    pub(crate) number: u64,
    pub(crate) kind: FileKind,
    /// The remote shows files of several servers, of which some may tell files apart.
    is_of_union: bool,
    /// It has, or had, several names here.
    has_several_names: AtomicBool,
    pub(crate) writes: Writes,
    state: Mutex<State>,
}

/// State of inodes that were opened or changed; most inodes have none.
#[derive(Default)]
struct ActiveState {
    /// Sequence number of the last local change.
    last_change_seq: u64,
    /// When a local change began or ended last, if the inode may be covered.
    last_change_at: Option<CompactInstant>,
    /// Sequence number of the last open of a deferred handle.
    deferred_open_seq: u64,
    /// Sequence number of the last change that the server has reported.
    reported_seq: u64,
    /// When the server has reported a change of its name last.
    name_reported_at: Option<CompactInstant>,
    /// Number of changes that have ever begun.
    changes_begun: u64,
    /// Number of local changes of size or mtime.
    validator_changes: u64,
    /// Changes in flight.
    changes_in_flight: u32,
    /// Changes of its names in flight.
    renames_in_flight: u32,
    pages: Option<Pages>,
    /// Until when the kernel may not have dropped the pages of an older content.
    pages_dropped_until: Option<CompactInstant>,
    /// The content was changed locally since the kernel's pages were dropped.
    writes_pages: bool,
    /// The kernel was requested to drop its attributes, and has got none since that it may cache.
    kernel_attr_dropped: bool,
    visit: Option<Visit>,
    /// A local change has set a new mtime since the attributes were received.
    mtime_pending: bool,
    /// Nanoseconds of the cached mtime, if this mount made that change; else 0.
    fraction: u32,
    /// The file, if this mount created it and no other client has changed it since.
    created_here: Option<Box<CreatedFile>>,
    rare: Option<Box<RareState>>,
}

/// State of the few inodes that are changed through this mount.
#[derive(Default)]
struct RareState {
    /// Until when the kernel gets attributes with a time-out of zero.
    zero_ttl_until: Option<Instant>,
    /// Until when the kernel may use another size than `kernel_size`.
    uncertain_size_until: Option<Instant>,
    /// The largest of those sizes.
    largest_uncertain_size: u64,
    /// When the kernel was last requested to drop the pages.
    pages_dropped_at: Option<Instant>,
    /// When an open was last sent back to the lookup of a name that was gone.
    sent_back_at: Option<Instant>,
    /// Time of the last local change of the inode.
    ctime: Option<Timestamp>,
    /// Times set locally, with fractions that SFTP cannot carry; valid while the server reports the
    /// same second.
    set_atime: Option<Timestamp>,
    set_mtime: Option<Timestamp>,
    /// The number of writes that had returned and then failed, and the last error.
    failed_writes: (u64, Option<Errno>),
}

/// A file that this mount has created.
struct CreatedFile {
    attr: Attr,
    /// Whether the mtime in `attr` is exact.
    exact_mtime: bool,
    /// When `attr` was known.
    at: Instant,
}

/// An open handle of the file.
pub(crate) struct OpenHandle {
    /// The number of the open file.
    pub(crate) file: u64,
    pub(crate) remote: Arc<RemoteFile>,
    /// The validator at the open.
    pub(crate) validator: Validator,
    pub(crate) access: Access,
    /// Whether reads through it fill the kernel's page cache.
    pub(crate) cached: bool,
}

/// Whether the kernel uses the size of an opened file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KernelSize {
    /// It does, or requests the attributes before it uses a size.
    Right,
    /// It may use another one, as long as it does not look the name up.
    Wrong,
    /// It has just looked the name up, and got another size once more. A reply with an older size
    /// may also reach it after that of the open.
    WrongAgain,
}

/// Compared before and after an await, to see whether another open or lookup has changed the inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StateVersion {
    /// The highest number among the open files.
    newest_open_file: Option<u64>,
    validator: Option<Validator>,
}

impl StateVersion {
    /// Whether another file was opened between this version and `later`.
    pub(crate) fn has_newer_open(self, later: &StateVersion) -> bool {
        later.newest_open_file > self.newest_open_file
    }
}

/// The open handles of a file: none, for most files.
#[derive(Default)]
pub(crate) struct OpenHandles(
    #[expect(clippy::box_collection, reason = "all files have room for it")]
    Option<Box<Vec<OpenHandle>>>,
);

impl OpenHandles {
    /// Adds a handle.
    pub(crate) fn push(&mut self, handle: OpenHandle) {
        self.0.get_or_insert_default().push(handle);
    }

    /// Removes all handles but those that are `kept`.
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
///
/// | field | question | clock | set by |
/// | --- | --- | --- | --- |
/// | `attr` | what are the attributes? | – | [`set_attr`](State::set_attr), [`apply`](State::apply) |
/// | `valid_until` | until when are they fresh? | local time | `set_attr`, [`extend_validity`](State::extend_validity), [`invalidate`](State::invalidate) |
/// | `received_at` | which of two answers is newer? | local time of the answer | `set_attr` |
/// | `requested_at` | how old may `attr` be? | local time of the request | `set_attr` |
/// | `name_validated_at` | when did a name lead here? | local time of the request | [`note_name_validated`](State::note_name_validated) |
/// | `validator_seen_at` | since when is the validator known? | local time of the answer | `set_attr`, if the validator changes |
/// | `invalidated` | may a change have outdated `attr`? | – | set by `invalidate`, cleared by `set_attr`, `extend_validity` |
/// | `is_covered`, `covers` | are changes since `requested_at` reported? | local time of the request | `set_attr`, the tree |
/// | `lifetime_ms` | how long was the last answer fresh, if it was not covered? | – | `set_attr` |
/// | `kernel_size`, `kernel_valid_until` | which size does the kernel use, and until when? | local time of the reply | [`note_kernel_reply`](State::note_kernel_reply), [`invalidate_pages_and_size`](State::invalidate_pages_and_size) |
/// | `uncertain_size_until`, `largest_uncertain_size` | until when may it use another size? | local time of a reply | [`note_uncertain_kernel_size`](State::note_uncertain_kernel_size), [`take_uncertain_kernel_size`](State::take_uncertain_kernel_size) |
/// | `kernel_updates` | may the kernel ignore the size that a short reply to a READ shows? | counter | `note_kernel_reply`, [`note_short_reply`](State::note_short_reply), [`note_kernel_invalidation`](State::note_kernel_invalidation) |
/// | `kernel_attr_dropped` | are the kernel's attributes invalidated already? | – | set by [`drop_kernel_attr`](State::drop_kernel_attr), cleared by `note_kernel_reply` |
/// | `known_contents` | is prefetched data of the present content? | counter | `set_attr`, [`validate_pages`](State::validate_pages), [`invalidate_pages`](State::invalidate_pages) |
/// | `pages_untrusted` | may uncompared pages be of another file? | – | set by `invalidate_pages`, cleared by [`restore_page_trust`](State::restore_page_trust) |
/// | `began_empty` | do the kernel's pages hold only local writes? | – | [`begin_writing`](State::begin_writing), [`distrust_pages`](State::distrust_pages) |
/// | `last_change_seq`, `changes_in_flight` | is an answer from before a local change? | change counter | [`begin_change`](State::begin_change), [`end_change`](State::end_change), [`note_change`](State::note_change) |
/// | `changes_begun` | has another change begun meanwhile? | count | `begin_change` |
/// | `validator_changes` | may a new validator be that of a local change? | count | [`note_content_change`](State::note_content_change), `apply` |
/// | `renames_in_flight` | is a name being changed? | – | [`begin_renaming`](State::begin_renaming), [`end_renaming`](State::end_renaming) |
/// | `deferred_open_seq` | was an answer by name requested before a deferred handle was opened? | change counter | [`note_deferred_open`](State::note_deferred_open) |
/// | `reported_seq` | was an answer requested before a change was reported? | change counter | [`note_reported_change`](State::note_reported_change) |
/// | `pages` | which content do the kernel's pages hold? | – | `validate_pages`, [`pages_written`](State::pages_written), `invalidate_pages` |
/// | `pages_dropped_until` | may the kernel still have pages of an older content? | local time of a reply | set by `validate_pages`, [`restore_page_trust`](State::restore_page_trust); cleared by `pages_written`, [`note_pages_gone`](State::note_pages_gone) |
/// | `writes_pages` | may they hold local writes if `pages` is unset? | – | set by `note_content_change`, cleared by `distrust_pages` |
/// | `mtime_pending` | will the next mtime be that of a local change? | – | [`expect_new_mtime`](State::expect_new_mtime), [`set_fraction`](State::set_fraction) |
/// | `created_here` | is the file known without a request? | – | [`set_created_here`](State::set_created_here), [`forget_created_here`](State::forget_created_here) |
pub(crate) struct State {
    /// The server's last answer, owners not mapped.
    attr: Option<StoredAttr>,
    valid_until: CompactInstant,
    /// When the server's answer arrived.
    received_at: CompactInstant,
    /// When it was requested: `attr` was true then or later.
    requested_at: CompactInstant,
    /// When a name was requested that led to this inode: it did so then or later.
    name_validated_at: CompactInstant,
    /// When the present validator was first seen.
    validator_seen_at: CompactInstant,
    /// Until when the kernel may use `kernel_size`; never, if it knows that the size is stale.
    kernel_valid_until: CompactInstant,
    /// The last size sent to the kernel, with any time-out.
    kernel_size: u64,
    /// Counts replies with attributes to the kernel, short replies to READs, and invalidations of
    /// its attributes or pages.
    kernel_updates: u32,
    /// Counts the known contents of the file, and how often the kernel's pages were dropped.
    known_contents: u64,
    /// How long the last answer was fresh, in milliseconds. A longer time than fits here is
    /// replaced by the bounds of the time-out.
    lifetime_ms: u32,
    /// Links, as far as this mount made them.
    nlink: u32,
    /// `None` for most inodes.
    active: Option<Box<ActiveState>>,
    /// `None` unless the server may report changes.
    covers: Option<Box<Covers>>,
    pub(crate) open: OpenHandles,
    /// Shared by all handles that read through the page cache.
    pub(crate) readahead: Weak<Readahead>,
    /// A local change since the answer may have changed `attr`, or another answer contradicts it.
    invalidated: bool,
    /// The last answer was [covered](crate::cover).
    is_covered: bool,
    /// The kernel's pages may be of another file, even where pages are never compared.
    pages_untrusted: bool,
    /// The present writers found the file empty when they opened it. So the kernel's pages hold
    /// local writes only, and nothing older that another machine could have changed meanwhile.
    began_empty: bool,
}

impl Inode {
    pub(crate) fn new(ino: Ino, number: u64, kind: FileKind, is_of_union: bool) -> Inode {
        let now = Instant::now().into();
        Inode {
            ino,
            number,
            kind,
            is_of_union,
            has_several_names: AtomicBool::new(false),
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
                kernel_updates: 0,
                known_contents: 0,
                lifetime_ms: 0,
                nlink: 1,
                active: None,
                covers: None,
                open: OpenHandles::default(),
                readahead: Weak::new(),
                invalidated: true,
                is_covered: false,
                pages_untrusted: false,
                began_empty: false,
            }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether it has, or had, several names here: the kernel must look up each before it uses it.
    pub(crate) fn has_several_names(&self) -> bool {
        self.has_several_names.load(Ordering::Relaxed)
    }

    /// It has several names. Returns whether it had before.
    pub(crate) fn set_several_names(&self) -> bool {
        self.has_several_names.swap(true, Ordering::Relaxed)
    }

    /// Whether it is not open, and neither it nor one of its names is being changed.
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.state();
        state.open.is_empty() && state.changes_in_flight() == 0 && !state.is_renaming()
    }

    /// Whether `attr` may be of this file. Certain if the remote tells files apart; otherwise only
    /// the kind is compared. The root is whichever directory the path of the mount leads to: the
    /// kernel never looks it up again.
    pub(crate) fn may_be(&self, attr: &Attr) -> bool {
        let is_same = || self.is_same_file(&self.state(), attr) != Some(false);
        self.kind == attr.kind && (self.ino == Ino::ROOT || is_same())
    }

    /// Whether `attr` is of this file, whose state this is; `None` if the remote does not tell
    /// files apart.
    pub(crate) fn is_same_file(&self, state: &State, attr: &Attr) -> Option<bool> {
        let known = state.last_attr()?;
        // Of two sources, one of which does not tell files apart. A directory may begin or cease to
        // be merged.
        let differs = known.id().is_some() != attr.id().is_some();
        if self.is_of_union && differs && !attr.is_dir() {
            return Some(false);
        }
        known.is_same_file(attr)
    }
}

impl State {
    /// The cached attributes, if they are fresh.
    pub(crate) fn fresh_attr(&self, now: Instant) -> Option<Attr> {
        self.last_attr().filter(|_| now < self.valid_until())
    }

    /// The last answer was covered by a watch that has ended since.
    fn is_cover_lost(&self) -> bool {
        self.is_covered && !self.includes(instant(self.requested_at), self.name_validated_at)
    }

    fn includes(&self, requested_at: Instant, named_at: CompactInstant) -> bool {
        !self.is_name_reported_since(named_at)
            && self.covers.as_ref().is_some_and(|covers| covers.include(requested_at, named_at))
    }

    /// The cached attributes, if they are fresh and covered, and when they were requested.
    pub(crate) fn covered_attr(&self, now: Instant) -> Option<(Attr, Instant)> {
        let attr = self.fresh_attr(now).filter(|_| self.is_covered())?;
        Some((attr, instant(self.requested_at)))
    }

    /// Whether the cached attributes are covered.
    pub(crate) fn is_covered(&self) -> bool {
        self.is_covered && !self.is_cover_lost()
    }

    /// Whether reports of changes may be about local ones.
    pub(crate) fn is_quiet_time(&self, now: Instant) -> bool {
        self.active.as_ref().is_some_and(|active| {
            active.changes_in_flight > 0
                || active.last_change_at.is_some_and(|at| now < instant(at) + QUIET)
        })
    }

    /// Whether `attr`, requested at `requested_at`, are covered, if a name led here at `named_at`.
    fn covers(&self, attr: &Attr, requested_at: Instant, named_at: CompactInstant) -> bool {
        attr.has_one_name()
            && self.includes(requested_at, named_at)
            && !self.is_quiet_time(requested_at)
    }

    /// Sets the watch of the directory that contains it.
    pub(crate) fn set_parent_cover(&mut self, cover: Option<Arc<Cover>>) {
        if cover.is_some() || self.covers.is_some() {
            self.covers.get_or_insert_default().parent = cover;
        }
    }

    /// Sets the watch of the directory that it is.
    pub(crate) fn set_own_cover(&mut self, cover: Arc<Cover>) {
        self.covers.get_or_insert_default().own = Some(cover);
    }

    /// The watch of the directory that it is.
    pub(crate) fn own_cover(&self) -> Option<&Arc<Cover>> {
        self.covers.as_ref()?.own.as_ref()
    }

    /// Reports of changes may be about a local one that has just ended.
    pub(crate) fn begin_quiet_time(&mut self) {
        if self.covers.is_some() {
            self.active().last_change_at = Some(Instant::now().into());
        }
    }

    /// The server has reported a change, counted as `seq`: answers that were requested before are
    /// outdated.
    pub(crate) fn note_reported_change(&mut self, seq: u64) {
        let active = self.active();
        active.reported_seq = active.reported_seq.max(seq);
        self.invalidate();
    }

    /// Whether the server has reported a change since `seq`.
    pub(crate) fn is_reported_since(&self, seq: u64) -> bool {
        self.active.as_ref().is_some_and(|active| active.reported_seq > seq)
    }

    /// Whether an answer that was requested at `stamp` is outdated by reported changes, none of its
    /// name, and by nothing else.
    pub(crate) fn is_outdated_by_reports_only(&self, stamp: RequestStamp) -> bool {
        self.active.as_ref().is_some_and(|active| {
            active.reported_seq > stamp.seq
                && self.requested_at <= stamp.at.into()
                && !self.changed_since(stamp.seq)
                && active.deferred_open_seq <= stamp.seq
                && active.name_reported_at.is_none_or(|at| at < stamp.at.into())
        })
    }

    /// The attributes may be outdated already: they are used for `time` at most.
    pub(crate) fn limit_validity(&mut self, time: Duration) {
        self.is_covered = false;
        self.valid_until = self.valid_until.min((Instant::now() + time).into());
    }

    /// Whether the server has reported a change of its name at `named_at`, when it led here, or
    /// later.
    fn is_name_reported_since(&self, named_at: CompactInstant) -> bool {
        let reported_at = self.active.as_ref().and_then(|active| active.name_reported_at);
        reported_at.is_some_and(|reported_at| reported_at >= named_at)
    }

    /// Whether the server has reported a change of its name since it led here last.
    pub(crate) fn is_name_outdated(&self) -> bool {
        self.is_name_reported_since(self.name_validated_at)
    }

    /// The server has reported a change of its name: it may not lead here any more.
    pub(crate) fn note_reported_name(&mut self) {
        self.active().name_reported_at = Some(Instant::now().into());
    }

    /// The cached attributes, however old.
    pub(crate) fn last_attr(&self) -> Option<Attr> {
        self.attr.as_ref().map(StoredAttr::get)
    }

    /// The cached attributes, however old, if no local change may have outdated them, no local
    /// descriptor is open for writing, and the kernel does not use a newer, greater size.
    pub(crate) fn attr_at_rest(&self, now: Instant) -> Option<Attr> {
        let is_written = self.open.iter().any(|open| open.access.writes());
        let changed_at = self.active.as_ref().and_then(|active| active.last_change_at);
        let is_newer = changed_at.is_none_or(|changed_at| changed_at <= self.requested_at);
        let is_at_rest = is_newer && !is_written && !self.is_quiet_time(now);
        // The kernel would cut off the pages of a mapping.
        let may_be_older = |attr: &Attr| self.invalidated && attr.size < self.kernel_size;
        self.last_attr().filter(|attr| is_at_rest && !may_be_older(attr))
    }

    /// An open handle, one that is open at the server if there is one, if the remote identifies
    /// files.
    pub(crate) fn handle_with_identity(&self) -> Option<Arc<RemoteFile>> {
        let opened = self.open.iter().rfind(|open| open.remote.opened().is_some());
        let any = opened.or(self.open.last()).filter(|_| self.has_identity());
        any.map(|open| open.remote.clone())
    }

    /// Whether the remote identifies files, as far as it is known.
    pub(crate) fn has_identity(&self) -> bool {
        self.attr.as_ref().is_some_and(|attr| attr.get().id().is_some())
    }

    /// Whether the remote reports times of change, as far as it is known.
    pub(crate) fn has_ctime(&self) -> bool {
        self.attr.as_ref().is_some_and(|attr| attr.get().ctime().is_some())
    }

    /// The number of names, as far as it is known.
    pub(crate) fn links(&self) -> u32 {
        self.last_attr().and_then(|attr| attr.inode).map_or(self.nlink, |inode| inode.links)
    }

    /// This mount has added (1) or removed (-1) a name.
    ///
    /// A directory has one; its other links are `.` and those of its subdirectories.
    pub(crate) fn add_links(&mut self, change: i32, changes: &ChangeCounter) {
        self.count_links(change);
        self.touch_ctime(changes);
    }

    /// Another machine has removed a name. It may have changed the content, too: a new ctime is not
    /// explained by that.
    pub(crate) fn lose_link(&mut self) {
        self.count_links(-1);
        self.invalidate();
    }

    fn count_links(&mut self, change: i32) {
        let is_removed_dir = change < 0 && self.last_attr().is_some_and(|attr| attr.is_dir());
        let change = if is_removed_dir { i32::MIN } else { change };
        self.nlink = self.nlink.saturating_add_signed(change);
        if let Some(Attr { inode: Some(inode), .. }) = self.last_attr() {
            self.update_attr(|attr| {
                let links = inode.links.saturating_add_signed(change);
                attr.inode = Some(InodeAttr { links, ..inode });
            });
        }
    }

    /// The cached attributes, if they were requested within `within`, even if a local change
    /// followed.
    pub(crate) fn requested_within(&self, within: Duration) -> Option<Attr> {
        let age = Instant::now().saturating_duration_since(instant(self.requested_at));
        self.last_attr().filter(|_| age < within)
    }

    /// Whether the cached attributes contradict `attr`, and were requested after `requested_at`,
    /// when `attr` was.
    pub(crate) fn has_overtaken(&self, attr: &Attr, requested_at: Instant) -> bool {
        let differs = |known: Attr| Validator::of(&known) != Validator::of(attr);
        self.requested_at > requested_at.into() && self.last_attr().is_some_and(differs)
    }

    /// When the cached attributes arrived.
    pub(crate) fn received_at(&self) -> Instant {
        instant(self.received_at)
    }

    /// See [`StateVersion`].
    pub(crate) fn version(&self) -> StateVersion {
        StateVersion {
            newest_open_file: self.open.iter().map(|open| open.file).max(),
            validator: self.last_attr().map(|attr| Validator::of(&attr)),
        }
    }

    /// The kernel gets `size`, to be cached for `ttl` at most. Returns the time-out to send.
    pub(crate) fn note_kernel_reply(&mut self, size: u64, ttl: Duration) -> Duration {
        let now = Instant::now();
        let ttl = if self.has_zero_ttl(now) { Duration::ZERO } else { ttl };
        let is_same = self.kernel_size == size;
        if !is_same {
            self.note_uncertain_kernel_size();
        }
        self.kernel_valid_until = match ttl {
            Duration::ZERO => CompactInstant::NEVER,
            _ => {
                if let Some(active) = &mut self.active {
                    active.kernel_attr_dropped = false;
                }
                let until = (now + ttl + KERNEL_TTL_SLACK).into();
                // It may drop this reply, and use an equal one that it has.
                if is_same { self.kernel_valid_until.max(until) } else { until }
            }
        };
        self.kernel_size = size;
        self.kernel_updates = self.kernel_updates.wrapping_add(1);
        ttl
    }

    /// When the kernel was last requested to drop the pages, other than by an open.
    pub(crate) fn pages_dropped_at(&self) -> Option<Instant> {
        self.rare_if_any()?.pages_dropped_at
    }

    /// The kernel is being requested to drop its attributes, or its pages too; or it gets a size.
    pub(crate) fn note_kernel_invalidation(&mut self) {
        self.kernel_updates = self.kernel_updates.wrapping_add(1);
    }

    /// The attributes that the kernel may have are outdated. Returns whether to invalidate them. Each
    /// invalidation also discards the replies that are in flight: with one for each report, the
    /// kernel might never get the size of a file that grows all the time.
    pub(crate) fn drop_kernel_attr(&mut self) -> bool {
        if std::mem::replace(&mut self.active().kernel_attr_dropped, true) {
            return false;
        }
        self.note_kernel_invalidation();
        true
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

    /// Whether the kernel gets attributes with a time-out of zero.
    fn has_zero_ttl(&self, now: Instant) -> bool {
        self.rare_if_any().and_then(|rare| rare.zero_ttl_until).is_some_and(|until| now < until)
    }

    /// If the kernel may use another size than `size`, it gets attributes with a time-out of zero
    /// for [`ZERO_TTL_FOR`].
    pub(crate) fn expire_kernel_size(&mut self, size: u64) -> KernelSize {
        let now = Instant::now();
        let is_expired = CompactInstant::from(now) >= self.kernel_valid_until;
        match (self.kernel_size == size, self.has_zero_ttl(now)) {
            (true, _) => KernelSize::Right,
            (false, true) => KernelSize::WrongAgain,
            (false, false) if is_expired => KernelSize::Right,
            (false, false) => {
                self.rare().zero_ttl_until = Some(now + ZERO_TTL_FOR);
                KernelSize::Wrong
            }
        }
    }

    /// As long as the kernel may use `kernel_size`, it may use another size, too, than the one that
    /// it gets after this call, or has got before it:
    ///
    /// - It drops the attributes in a reply if it has received others for the inode since it sent
    ///   the request, even older ones.
    /// - It uses the size that the end of the data shows in a short reply to a READ.
    /// - A notification that was queued has not reached it.
    pub(crate) fn note_uncertain_kernel_size(&mut self) {
        if self.kernel_valid_until > Instant::now().into() {
            let others = self.largest_uncertain_size();
            let (size, until) = (self.kernel_size, self.kernel_valid_until.instant());
            let rare = self.rare();
            rare.largest_uncertain_size = others.map_or(size, |others| others.max(size));
            rare.uncertain_size_until = rare.uncertain_size_until.max(until);
        }
    }

    /// Whether the kernel may use another size than the last one that it got.
    pub(crate) fn has_uncertain_kernel_size(&self) -> bool {
        self.largest_uncertain_size().is_some()
    }

    /// The largest size besides the last one that the kernel may use, if there is any.
    fn largest_uncertain_size(&self) -> Option<u64> {
        let rare = self.rare_if_any()?;
        let is_uncertain = rare.uncertain_size_until.is_some_and(|until| Instant::now() < until);
        is_uncertain.then_some(rare.largest_uncertain_size)
    }

    /// As [`State::has_uncertain_kernel_size`], once: the caller makes the kernel request the
    /// attributes again.
    pub(crate) fn take_uncertain_kernel_size(&mut self) -> bool {
        let uncertain = self.has_uncertain_kernel_size();
        if uncertain {
            self.rare().uncertain_size_until = None;
            self.note_kernel_invalidation();
        }
        uncertain
    }

    /// An open has found the name gone, or that of another kind of file. Returns whether the kernel
    /// should look the name up again: not if it has just done so and found the name.
    pub(crate) fn send_back_to_lookup(&mut self) -> bool {
        let (now, name_validated_at) = (Instant::now(), self.name_validated_at);
        let rare = self.rare();
        let before =
            rare.sent_back_at.filter(|at| now.saturating_duration_since(*at) < ZERO_TTL_FOR);
        let again = before.is_some_and(|at| name_validated_at >= at.into());
        rare.sent_back_at = (!again).then_some(now);
        !again
    }

    /// An open has succeeded.
    pub(crate) fn note_opened(&mut self) {
        if let Some(rare) = self.active.as_mut().and_then(|active| active.rare.as_mut()) {
            rare.sent_back_at = None;
        }
    }

    /// A change of one of its names begins. Must be followed by [`State::end_renaming`].
    pub(crate) fn begin_renaming(&mut self) {
        self.active().renames_in_flight += 1;
        self.forget_page_change();
    }

    /// A change of one of its names has ended, successfully or not.
    pub(crate) fn end_renaming(&mut self) {
        self.active().renames_in_flight -= 1;
        self.forget_page_change();
    }

    /// Whether a change of one of its names is in flight.
    pub(crate) fn is_renaming(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.renames_in_flight > 0)
    }

    /// How often the kernel has got attributes or a size, or was requested to drop them or its
    /// pages.
    pub(crate) fn kernel_updates(&self) -> u32 {
        self.kernel_updates
    }

    /// Whether the kernel ignores the size that a short reply to a READ shows: it has got or dropped
    /// attributes, or the size by another short reply, since it sent the request. `updates` is
    /// [`State::kernel_updates`] of when the request arrived; a local change since `seq` explains
    /// the short reply.
    pub(crate) fn ignores_short_reply(&self, updates: u32, seq: u64) -> bool {
        self.kernel_updates != updates && !self.changed_since(seq)
    }

    /// A short reply is about to be sent, unless the kernel [ignores](State::ignores_short_reply)
    /// the size that it shows. Returns whether it does not.
    pub(crate) fn note_short_reply(&mut self, updates: u32, seq: u64) -> bool {
        if self.ignores_short_reply(updates, seq) {
            return false;
        }
        self.note_uncertain_kernel_size();
        self.note_kernel_invalidation();
        true
    }

    /// Whether the kernel may use a size greater than `end`.
    pub(crate) fn kernel_size_exceeds(&self, end: u64) -> bool {
        self.kernel_size > end || self.largest_uncertain_size().is_some_and(|size| size > end)
    }

    /// Whether a local change, or an answer, may have outdated the cached attributes.
    pub(crate) fn is_invalidated(&self) -> bool {
        self.invalidated
    }

    /// When the attributes expire.
    pub(crate) fn valid_until(&self) -> Instant {
        instant(if self.is_cover_lost() { self.requested_at } else { self.valid_until })
    }

    /// Increases whenever the content changes, or may change: data requested before is not used any
    /// more. A local change increases it at its beginning; data requested while a change is [in
    /// flight](State::changes_in_flight) may be of either content.
    pub(crate) fn content_generation(&self) -> u64 {
        self.known_contents + self.changes_begun()
    }

    /// Whether there was a local change since `seq`, or one is in flight.
    pub(crate) fn changed_since(&self, seq: u64) -> bool {
        self.active
            .as_ref()
            .is_some_and(|active| active.changes_in_flight > 0 || active.last_change_seq > seq)
    }

    /// Whether there was no local change since `seq`, none is in flight, no deferred handle was
    /// opened since, and no change was reported since.
    pub(crate) fn unchanged_since(&self, seq: u64) -> bool {
        let last = |active: &ActiveState| active.deferred_open_seq.max(active.reported_seq);
        !self.changed_since(seq) && self.active.as_ref().is_none_or(|active| last(active) <= seq)
    }

    /// A deferred handle was opened at `seq`. An answer by name that was requested before may be of
    /// another file.
    pub(crate) fn note_deferred_open(&mut self, seq: u64) {
        let active = self.active();
        active.deferred_open_seq = active.deferred_open_seq.max(seq);
    }

    /// Whether a deferred handle was opened since `seq`.
    pub(crate) fn deferred_open_since(&self, seq: u64) -> bool {
        self.active.as_ref().is_some_and(|active| active.deferred_open_seq > seq)
    }

    /// Whether there was ever a local change, or one that the server has reported.
    pub(crate) fn was_changed(&self) -> bool {
        self.active
            .as_ref()
            .is_some_and(|active| active.last_change_seq.max(active.reported_seq) > 0)
    }

    /// A local change begins at `seq`. Must be followed by [`State::end_change`].
    pub(crate) fn begin_change(&mut self, seq: u64) {
        let active = self.active();
        active.changes_in_flight += 1;
        active.changes_begun += 1;
        active.last_change_seq = seq;
        self.forget_page_change();
        self.begin_quiet_time();
        self.invalidate();
    }

    /// A change has ended at `seq`, successfully or not.
    pub(crate) fn end_change(&mut self, seq: u64) {
        let active = self.active();
        active.changes_in_flight -= 1;
        active.last_change_seq = seq;
        self.forget_page_change();
        self.begin_quiet_time();
        self.invalidate();
    }

    /// The number of changes that have ever begun.
    pub(crate) fn changes_begun(&self) -> u64 {
        self.active.as_ref().map_or(0, |active| active.changes_begun)
    }

    /// The number of local changes of size or mtime.
    pub(crate) fn validator_changes(&self) -> u64 {
        self.active.as_ref().map_or(0, |active| active.validator_changes)
    }

    /// The number of changes in flight.
    pub(crate) fn changes_in_flight(&self) -> u32 {
        self.active.as_ref().map_or(0, |active| active.changes_in_flight)
    }

    /// Whether the change number `changes_begun` is in flight, and no other has begun since.
    pub(crate) fn is_only_change(&self, changes_begun: u64) -> bool {
        self.changes_in_flight() == 1 && self.changes_begun() == changes_begun
    }

    /// A local change of something else at `seq` affects the attributes of this inode.
    pub(crate) fn note_change(&mut self, seq: u64) {
        self.active().last_change_seq = seq;
        self.forget_page_change();
        self.begin_quiet_time();
        self.invalidate();
    }

    /// Whether all changes have ended, and none has begun since [`State::changes_begun`] was
    /// `changes_begun`.
    pub(crate) fn no_change_since_count(&self, changes_begun: u64) -> bool {
        self.changes_in_flight() == 0 && self.changes_begun() == changes_begun
    }

    /// The attributes are no longer valid.
    pub(crate) fn invalidate(&mut self) {
        self.valid_until = Instant::now().into();
        self.invalidated = true;
        self.is_covered = false;
    }

    /// The attributes, if the server confirmed them and a name of this inode within `window`, and
    /// there was no local change since and none is in flight.
    pub(crate) fn validated(&self, now: Instant, window: Duration) -> Option<Attr> {
        let since = self.validated_at()?;
        let young = now.saturating_duration_since(since) < window;
        let no_change_in_flight = self
            .active
            .as_ref()
            .is_none_or(|active| active.changes_in_flight == 0 && active.renames_in_flight == 0);
        let is_valid = !self.invalidated && no_change_in_flight && young;
        self.last_attr().filter(|_| is_valid)
    }

    /// When a name was requested last that led here.
    pub(crate) fn name_validated_at(&self) -> CompactInstant {
        self.name_validated_at
    }

    /// When the last confirmation was requested that a deferred open can rely on.
    pub(crate) fn validated_at(&self) -> Option<Instant> {
        self.name_validated_at.min(self.requested_at).instant()
    }

    /// The last [visit](Visit) of this file, if there was one.
    pub(crate) fn visit(&self) -> Option<Visit> {
        self.active.as_ref()?.visit
    }

    /// Sets the last visit.
    pub(crate) fn set_visit(&mut self, visit: Visit) {
        self.active().visit = Some(visit);
    }

    /// A name of this inode led to it, in an answer requested at `requested_at`.
    pub(crate) fn note_name_validated(&mut self, requested_at: Instant) {
        self.name_validated_at = self.name_validated_at.max(requested_at.into());
    }

    /// How long `attr`, requested at `requested_at` and received at `now`, is fresh.
    pub(crate) fn lifetime(
        &self,
        attr: &Attr,
        now: Instant,
        requested_at: Instant,
        timeout: Timeout,
    ) -> Duration {
        // An entry of a listing is also an answer for the name.
        match self.covers(attr, requested_at, requested_at.into()) {
            true => MAX_AGE,
            false => self.lifetime_without_cover(attr, now, requested_at, timeout),
        }
    }

    fn lifetime_without_cover(
        &self,
        attr: &Attr,
        now: Instant,
        requested_at: Instant,
        timeout: Timeout,
    ) -> Duration {
        if self.covers.is_some() && self.is_quiet_time(requested_at) {
            return timeout.min;
        }
        let Some(old) = self.last_attr() else { return timeout.at_age(attr.mtime.secs) };
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

    /// How long a listing of this directory is valid that was requested at `stamp` and whose newest
    /// entry has the mtime `newest`: as long as all of its entries, unless the directory is known
    /// to have changed since.
    pub(crate) fn listing_lifetime(
        &self,
        stamp: RequestStamp,
        newest: i64,
        timeout: Timeout,
    ) -> Duration {
        if self.own_cover().is_some_and(|cover| cover.includes(stamp.at)) {
            return MAX_AGE;
        }
        let Some(attr) = self.last_attr() else { return timeout.min };
        let changed = self.validator_seen_at > stamp.at.into() || !self.unchanged_since(stamp.seq);
        if changed { timeout.min } else { timeout.at_age(newest.max(attr.mtime.secs)) }
    }

    /// Stores the server's answer, requested at `requested_at` and received at `now`, fresh for the
    /// time that `timeout` gives.
    pub(crate) fn set_attr(
        &mut self,
        attr: Attr,
        now: Instant,
        requested_at: Instant,
        timeout: Timeout,
    ) {
        let mut lifetime = self.lifetime_without_cover(&attr, now, requested_at, timeout);
        self.lifetime_ms = u32::try_from(lifetime.as_millis()).unwrap_or(u32::MAX);
        let old = self.last_attr();
        let changed = old.is_none_or(|old| Validator::of(&old) != Validator::of(&attr));
        let same_second = old.is_some_and(|old| old.mtime.secs == attr.mtime.secs);
        if changed {
            self.validator_seen_at = now.into();
        }
        if changed || old.is_some_and(|old| old.change() != attr.change()) {
            self.known_contents += 1;
        }
        if let Some(active) = &mut self.active {
            if let Some(rare) = &mut active.rare {
                // The remote's own ctime includes all that this mount has changed.
                rare.ctime = rare.ctime.filter(|_| attr.ctime().is_none());
                rare.set_atime = rare.set_atime.filter(|set| set.secs == attr.atime.secs);
                rare.set_mtime = rare.set_mtime.filter(|set| set.secs == attr.mtime.secs);
            }
            if active.fraction > 0 && changed {
                // Another machine has changed the file after this one, perhaps in the same second.
                active.mtime_pending |= same_second;
                active.fraction = 0;
            }
            // Another machine has changed the file if its size differs.
            active.created_here.take_if(|created_here| created_here.attr.size != attr.size);
            if let Some(created_here) = &mut active.created_here {
                **created_here = CreatedFile { attr, exact_mtime: true, at: now };
            }
        }
        self.attr = Some(attr.into());
        self.received_at = now.into();
        self.requested_at = requested_at.into();
        self.invalidated = false;
        self.is_covered = self.covers(&attr, requested_at, self.name_validated_at);
        if self.is_covered {
            lifetime = MAX_AGE.saturating_sub(now.saturating_duration_since(requested_at));
        }
        self.valid_until = (now + lifetime).into();
    }

    /// The server has executed `change`: applies its predictable effects if the attributes were
    /// fresh (`was_fresh`). Returns whether all effects are known.
    pub(crate) fn apply(&mut self, change: &AttrChange, was_fresh: bool) -> bool {
        self.active().validator_changes += u64::from(change.mtime.is_some());
        let rare = self.rare();
        rare.ctime = Some(Timestamp::now());
        rare.set_atime = change.atime.or(rare.set_atime);
        rare.set_mtime = change.mtime.or(rare.set_mtime);
        let predictable = was_fresh && self.predicts(change);
        if predictable {
            self.update_attr(|attr| {
                attr.perm = change.perm.unwrap_or(attr.perm);
                let whole = |time: Timestamp| Timestamp::from_secs(time.secs);
                attr.atime = change.atime.map_or(attr.atime, whole);
                attr.mtime = change.mtime.map_or(attr.mtime, whole);
            });
        }
        predictable
    }

    /// Whether the result of `change` is known without a request.
    pub(crate) fn predicts(&self, change: &AttrChange) -> bool {
        // The remote's ctime is not known.
        self.attr.is_some() && !self.has_ctime() && is_predictable(change)
    }

    fn update_attr(&mut self, update: impl FnOnce(&mut Attr)) {
        if let Some(mut attr) = self.last_attr() {
            update(&mut attr);
            self.attr = Some(attr.into());
        }
    }

    /// Makes the attributes fresh until `until` again, after [`State::apply`] has applied a change.
    pub(crate) fn extend_validity(&mut self, until: Instant) {
        self.valid_until = until.into();
        self.invalidated = false;
        self.is_covered = false;
    }

    /// The attributes, if this mount has created the file and made all changes since. The mtime is
    /// a guess.
    pub(crate) fn created_here(&self) -> Option<Attr> {
        self.active.as_ref()?.created_here.as_ref().map(|created_here| created_here.attr)
    }

    /// Like [`State::created_here`], if that is known for less than `within`.
    pub(crate) fn created_here_within(&self, within: Duration) -> Option<Attr> {
        let created_here = self.active.as_ref()?.created_here.as_ref();
        created_here
            .filter(|created_here| created_here.at.elapsed() < within)
            .map(|created_here| created_here.attr)
    }

    /// Like [`State::created_here`], if the mtime is exact because it was set after the last write.
    /// Also returns since when this is known.
    pub(crate) fn created_here_exact(&self) -> Option<(Attr, Instant)> {
        let created_here = self.active.as_ref()?.created_here.as_ref();
        created_here
            .filter(|created_here| created_here.exact_mtime)
            .map(|created_here| (created_here.attr, created_here.at))
    }

    /// This mount has created the file, or knows its attributes after its own changes.
    /// `exact_mtime` is false if the mtime is a guess.
    pub(crate) fn set_created_here(&mut self, attr: Attr, exact_mtime: bool) {
        self.active().created_here =
            Some(Box::new(CreatedFile { attr, exact_mtime, at: Instant::now() }));
    }

    /// The attributes must be requested from the server again.
    pub(crate) fn forget_created_here(&mut self) {
        if let Some(active) = &mut self.active {
            active.created_here = None;
        }
    }

    /// `len` bytes are being written at `offset`, or at the end of the file.
    pub(crate) fn grow_created_here(&mut self, offset: Option<u64>, len: u64) {
        if let Some(created_here) =
            self.active.as_mut().and_then(|active| active.created_here.as_mut())
        {
            let size = created_here.attr.size;
            created_here.attr.size = offset.map_or(size + len, |offset| size.max(offset + len));
            if let Some(inode) = &mut created_here.attr.inode {
                // Archivers take a file without blocks to be a hole.
                inode.blocks = inode.blocks.max(created_here.attr.size.div_ceil(512));
            }
            created_here.exact_mtime = false;
        }
    }

    /// A write that had returned has failed.
    pub(crate) fn write_failed(&mut self, error: Errno) {
        self.forget_created_here();
        let rare = self.rare();
        rare.failed_writes = (rare.failed_writes.0 + 1, Some(error));
    }

    /// The number of writes that had returned and then failed, and the last error.
    pub(crate) fn failed_writes(&self) -> (u64, Option<Errno>) {
        self.rare_if_any().map_or((0, None), |rare| rare.failed_writes)
    }

    /// A local change of the content begins, which also changes the mtime.
    pub(crate) fn note_content_change(&mut self) {
        let active = self.active();
        active.validator_changes += 1;
        active.writes_pages = true;
        self.invalidate_pages_and_size();
        self.expect_new_mtime();
    }

    /// `file` is no longer open.
    pub(crate) fn close(&mut self, file: u64) {
        self.open.retain(|open| open.file != file);
        if self.open.is_empty() {
            // Frees the prefetched data.
            self.readahead = Weak::new();
        }
    }

    /// Whether the inode was never opened or changed locally.
    pub(crate) fn is_plain(&self) -> bool {
        self.active.is_none()
    }
}

/// Whether the result of `change` is known without a request. A new owner clears set-id bits, a new
/// mode may lose them, a new size sets a new mtime.
fn is_predictable(change: &AttrChange) -> bool {
    let special = change.perm.is_some_and(|perm| perm & 0o7000 != 0);
    change.size.is_none() && change.uid.or(change.gid).is_none() && !special
}

/// Converts a time that is never [`CompactInstant::NEVER`].
fn instant(compact: CompactInstant) -> Instant {
    compact.instant().expect("not never")
}

#[cfg(test)]
mod tests;
