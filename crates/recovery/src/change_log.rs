//! The unanswered changes of one file, in their order.
//!
//! An entry is in one of these states:
//!
//! - `Sent`: its caller waits for the reply of the inner remote. → removed from the log with the
//!   reply; `Waiting` when the reply is lost; `Replaying` when the file is reopened before the loss
//!   is noticed.
//! - `Waiting`: never sent, or lost; to be sent when the file is open again. → `Replaying`.
//! - `Replaying`: sent again by the task that reopens the file. → `Answered`, or `Waiting` after
//!   another loss.
//! - `Answered`: its caller has not been polled yet.
//! - `Acknowledged`: kept as long as an older entry may still be replayed, which must not overwrite
//!   a newer change.
//!
//! A cancelled caller withdraws its entry.
//!
//! An append is never unanswered together with another change that may move the end of the file
//! ([`ChangeLog::admits`]): the end of the file shows how much of the append has arrived, so no
//! other change may have moved it.
//!
//! This module only keeps records; it sends no request.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use base::{AttrChange, Result};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::expected_attrs::{ExpectedAttrs, IsFuture};
use crate::file::Handle;
use crate::unstable::Digest;

/// Acknowledged entries that are kept behind an unanswered one. Remotes reply roughly in order, so
/// there are few. Without the oldest of more, the replay of a lost write could overwrite a newer
/// one.
const MAX_ACKNOWLEDGED_KEPT: usize = 4096;

/// A change of a file.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Bytes at an offset.
    Write { offset: u64, data: Bytes },
    /// Bytes at the end, which the caller assumes to be here, of which the first `arrived` are known
    /// to be in the file.
    Append { end: u64, data: Bytes, arrived: usize },
    /// Attributes, through a handle.
    SetAttr(AttrChange),
    /// Attributes, by path. Repeated by its caller, not by the replay.
    SetAttrByPath(AttrChange),
    /// Bytes that the server copies from another file. Repeated by its caller, not by the replay.
    Copy(Range<u64>),
    /// An access list, by path, which may change the permission bits. Repeated by its caller, not
    /// by the replay.
    SetAcl,
    /// Space that is reserved or freed: these bytes become zeros, and the file is at least as long
    /// as this. Repeated by its caller, not by the replay.
    Allocate { zeros: Range<u64>, min_size: u64 },
}

/// The effect of a change on the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EofEffect {
    /// None.
    Unchanged,
    /// Bytes are added behind the end.
    Append,
    /// The end may move to another offset.
    Move,
}

impl Change {
    /// The effect on the end of the file.
    pub(crate) fn eof_effect(&self) -> EofEffect {
        match self {
            Change::Append { .. } => EofEffect::Append,
            Change::Write { .. } | Change::Copy(_) if self.range().is_empty() => {
                EofEffect::Unchanged
            }
            Change::Write { .. } | Change::Copy(_) => EofEffect::Move,
            Change::SetAcl | Change::Allocate { min_size: 0, .. } => EofEffect::Unchanged,
            Change::Allocate { .. } => EofEffect::Move,
            Change::SetAttr(change) | Change::SetAttrByPath(change) => match change.size {
                Some(_) => EofEffect::Move,
                None => EofEffect::Unchanged,
            },
        }
    }

    /// Whether the change sets the size through a handle.
    fn sets_size(&self) -> bool {
        matches!(self, Change::SetAttr(AttrChange { size: Some(_), .. }))
    }

    /// Bytes of content that are kept for the change.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Change::Write { data, .. } | Change::Append { data, .. } => data.len() as u64,
            _ => 0,
        }
    }

    /// The digest of the content, if there is any.
    pub(crate) fn digest(&self) -> Option<Digest> {
        match self {
            Change::Write { data, .. } => Some(Digest::of(data)),
            Change::Append { data, arrived, .. } => Some(Digest::of(&data[*arrived..])),
            _ => None,
        }
    }

    fn is_replayable(&self) -> bool {
        matches!(self, Change::Write { .. } | Change::Append { .. } | Change::SetAttr(_))
    }

    /// The bytes whose content the change determines.
    pub(crate) fn range(&self) -> Range<u64> {
        match self {
            Change::Write { offset, data } => *offset..offset.saturating_add(data.len() as u64),
            Change::Copy(range) | Change::Allocate { zeros: range, .. } => range.clone(),
            Change::SetAttr(AttrChange { size: Some(size), .. })
            | Change::SetAttrByPath(AttrChange { size: Some(size), .. }) => *size..u64::MAX,
            Change::Append { .. }
            | Change::SetAttr(_)
            | Change::SetAttrByPath(_)
            | Change::SetAcl => 0..0,
        }
    }

    /// The server has executed the change.
    pub(crate) fn happened(&self, expected: &mut ExpectedAttrs, is_future: IsFuture<'_>) {
        match self {
            Change::Write { .. } | Change::Copy(_) if self.range().is_empty() => {}
            Change::Write { .. } | Change::Copy(_) => expected.wrote(self.range().end, is_future),
            Change::Append { data, arrived, .. } => {
                expected.appended((data.len() - arrived) as u64, is_future);
            }
            Change::SetAttr(change) | Change::SetAttrByPath(change) => {
                expected.set(change, is_future)
            }
            Change::SetAcl => expected.may_have_other_perm(),
            Change::Allocate { min_size, .. } => expected.wrote(*min_size, is_future),
        }
    }

    /// The server may have executed the change, or a part of it.
    pub(crate) fn may_have_happened(&self, expected: &mut ExpectedAttrs, is_future: IsFuture<'_>) {
        match self {
            Change::Write { .. } | Change::Copy(_) if self.range().is_empty() => {}
            Change::Write { .. } | Change::Copy(_) => {
                expected.may_have_written(self.range().end, is_future);
            }
            Change::Append { data, arrived, .. } => {
                expected.may_have_appended((data.len() - arrived) as u64, is_future);
            }
            Change::SetAttr(change) | Change::SetAttrByPath(change) => {
                expected.may_have_set(change, is_future);
            }
            Change::SetAcl => expected.may_have_other_perm(),
            Change::Allocate { min_size, .. } => expected.may_have_written(*min_size, is_future),
        }
    }
}

#[derive(Debug)]
enum EntryState {
    Sent,
    Waiting,
    Replaying,
    Answered(Result<()>),
    Acknowledged(Range<u64>),
}

#[derive(Debug)]
struct Entry {
    number: u64,
    state: EntryState,
    /// `None` once acknowledged, and for a change without a handle.
    handle: Option<Arc<Handle>>,
    /// The number of the handle, also after the entry was acknowledged.
    handle_number: Option<u64>,
    change: Change,
    /// The change was in flight at least once.
    may_have_arrived: bool,
}

impl Entry {
    /// The bytes whose content the entry has determined, if it was executed.
    fn happened(&self) -> Option<Range<u64>> {
        match &self.state {
            EntryState::Acknowledged(range) => Some(range.clone()),
            EntryState::Answered(Ok(())) => Some(self.change.range()),
            _ => None,
        }
    }

    /// What is missing of an append that may have arrived without a reply, and will be replayed.
    fn append_in_doubt(&self) -> Option<Bytes> {
        let Change::Append { data, arrived, .. } = &self.change else { return None };
        let in_doubt = ChangeLog::is_to_be_replayed(self) && self.may_have_arrived;
        (in_doubt && *arrived < data.len()).then(|| data.slice(*arrived..))
    }

    fn is_unanswered(&self) -> bool {
        matches!(self.state, EntryState::Sent | EntryState::Waiting | EntryState::Replaying)
    }
}

/// A change to be replayed.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    pub(crate) number: u64,
    pub(crate) handle: Arc<Handle>,
    pub(crate) change: Change,
    /// The parts of a write to send: without the bytes that a newer change has determined.
    pub(crate) parts: Vec<Range<u64>>,
}

/// How much of a range may have been overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Covered {
    Not,
    Partly,
    Whole,
}

/// How newer changes, acknowledged earlier, limit the effect of a change. Replies need not arrive
/// in the order of execution, and the effect of the newer changes stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overtaken {
    /// The attributes of the file do not follow from this change alone.
    pub(crate) attrs: bool,
    /// Some of the content was overwritten or truncated.
    pub(crate) content: bool,
}

/// An entry that its caller has removed from the log.
pub(crate) struct EndedEntry {
    pub(crate) change: Change,
    pub(crate) may_have_arrived: bool,
    /// How newer changes that were acknowledged earlier limit its effect.
    pub(crate) overtaken: Overtaken,
    /// Dropped by the caller without a lock, because the last reference closes the handle.
    _handle: Option<Arc<Handle>>,
}

/// The changes of one file.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    next: u64,
    /// Sorted by number.
    entries: VecDeque<Entry>,
    acknowledged_kept: usize,
    /// Unanswered appends, and other unanswered changes that may move the end.
    open_appends: usize,
    open_moves: usize,
    /// Notified when an entry is answered or removed.
    changed: Arc<Notify>,
}

impl ChangeLog {
    /// Notified when an entry is answered or removed.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Whether a change with this effect may begin now.
    pub(crate) fn admits(&self, effect: EofEffect) -> bool {
        match effect {
            EofEffect::Unchanged => true,
            EofEffect::Append => self.open_moves == 0,
            EofEffect::Move => self.open_appends == 0,
        }
    }

    /// The counter of unanswered changes with this effect.
    fn count(&mut self, effect: EofEffect) -> Option<&mut usize> {
        match effect {
            EofEffect::Unchanged => None,
            EofEffect::Append => Some(&mut self.open_appends),
            EofEffect::Move => Some(&mut self.open_moves),
        }
    }

    /// A change with this effect was answered or withdrawn.
    fn note_answered(&mut self, effect: EofEffect) {
        if let Some(count) = self.count(effect) {
            *count -= 1;
        }
        self.changed.notify_waiters();
    }

    /// The number of the next entry.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Adds a change, which is `sent` now, or when the file is open again.
    pub(crate) fn begin(&mut self, change: Change, handle: Option<Arc<Handle>>, sent: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        let state = if sent { EntryState::Sent } else { EntryState::Waiting };
        if let Some(count) = self.count(change.eof_effect()) {
            *count += 1;
        }
        let handle_number = handle.as_ref().map(|handle| handle.number);
        let entry = Entry { number, state, handle, handle_number, change, may_have_arrived: sent };
        self.entries.push_back(entry);
        number
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&number, |entry| entry.number).ok()
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        let position = self.position(number)?;
        self.entries.get_mut(position)
    }

    /// Whether the reply to the caller's own request is still valid.
    pub(crate) fn is_sent(&mut self, number: u64) -> bool {
        self.entry(number).is_some_and(|entry| matches!(entry.state, EntryState::Sent))
    }

    /// The reply to the caller's request was lost, or its handle was already stale.
    pub(crate) fn lost(&mut self, number: u64, may_have_arrived: bool) {
        if let Some(entry) = self.entry(number)
            && matches!(entry.state, EntryState::Sent)
        {
            entry.state = EntryState::Waiting;
            entry.may_have_arrived = may_have_arrived;
        }
    }

    /// Sets the result of a replay.
    pub(crate) fn answer(&mut self, number: u64, result: Result<()>) -> bool {
        let Some(entry) = self.entry(number) else { return false };
        let unanswered = entry.is_unanswered().then(|| entry.change.eof_effect());
        entry.state = EntryState::Answered(result);
        entry.may_have_arrived = false;
        if let Some(end) = unanswered {
            self.note_answered(end);
        }
        true
    }

    /// The result of an entry that was replayed.
    pub(crate) fn answered(&mut self, number: u64) -> Option<Result<()>> {
        match self.entry(number)?.state {
            EntryState::Answered(result) => Some(result),
            _ => None,
        }
    }

    /// Ends an entry that was acknowledged or withdrawn.
    pub(crate) fn end(&mut self, number: u64, acknowledged: bool) -> Option<EndedEntry> {
        let position = self.position(number)?;
        let overtaken = self.overtaken(position);
        let entry = self.entries.get_mut(position)?;
        let range = entry.change.range();
        let unanswered = entry.is_unanswered().then(|| entry.change.eof_effect());
        let ended = EndedEntry {
            overtaken,
            change: std::mem::replace(&mut entry.change, Change::SetAttr(AttrChange::default())),
            may_have_arrived: entry.may_have_arrived,
            _handle: entry.handle.take(),
        };
        if acknowledged && position > 0 {
            entry.state = EntryState::Acknowledged(range);
            self.acknowledged_kept += 1;
        } else {
            self.entries.remove(position);
        }
        self.trim();
        if let Some(end) = unanswered {
            self.note_answered(end);
        }
        Some(ended)
    }

    /// How acknowledged newer entries limit the effect of an entry.
    fn overtaken(&self, position: usize) -> Overtaken {
        let mut overtaken = Overtaken::default();
        let change = &self.entries[position].change;
        let range = change.range();
        let is_set = matches!(change, Change::SetAttr(_) | Change::SetAttrByPath(_));
        for newer in self.entries.iter().skip(position + 1).filter_map(Entry::happened) {
            let is_truncated = newer.end == u64::MAX;
            overtaken.attrs |= is_set || is_truncated;
            overtaken.content |= newer.start < range.end && range.start < newer.end;
        }
        overtaken
    }

    fn trim(&mut self) {
        while let Some(Entry { state: EntryState::Acknowledged(_), .. }) = self.entries.front() {
            self.entries.pop_front();
            self.acknowledged_kept -= 1;
        }
        if self.acknowledged_kept > MAX_ACKNOWLEDGED_KEPT
            && let Some(oldest) = self
                .entries
                .iter()
                .position(|entry| matches!(entry.state, EntryState::Acknowledged(_)))
        {
            self.entries.remove(oldest);
            self.acknowledged_kept -= 1;
        }
    }

    /// Applies to `expected` what the unanswered changes may have done.
    pub(crate) fn apply_unanswered(&self, expected: &mut ExpectedAttrs, is_future: IsFuture<'_>) {
        let unanswered = self.entries.iter().filter(|entry| entry.is_unanswered());
        unanswered
            .filter(|entry| entry.may_have_arrived)
            .for_each(|entry| entry.change.may_have_happened(expected, is_future));
    }

    /// Number of unanswered entries, and bytes kept for them.
    pub(crate) fn unanswered(&self) -> (usize, u64) {
        let unanswered = self.entries.iter().filter(|entry| entry.is_unanswered());
        unanswered.fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.change.len()))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty() || self.unanswered().0 == 0
    }

    /// Whether all unanswered changes are in flight through the handle with this number.
    pub(crate) fn is_idle_but(&self, handle_number: u64) -> bool {
        let mut unanswered = self.entries.iter().filter(|entry| entry.is_unanswered());
        unanswered.all(|entry| {
            matches!(entry.state, EntryState::Sent) && entry.handle_number == Some(handle_number)
        })
    }

    fn is_to_be_replayed(entry: &Entry) -> bool {
        let unanswered = matches!(entry.state, EntryState::Sent | EntryState::Waiting);
        unanswered && entry.change.is_replayable()
    }

    /// Takes the next entries to replay: at most `max_count`, all through one handle. Empty when
    /// none is left.
    pub(crate) fn take_replays(&mut self, max_count: usize) -> Vec<Replay> {
        let mut taken: Vec<Replay> = Vec::new();
        for position in 0..self.entries.len() {
            let entry = &self.entries[position];
            if !ChangeLog::is_to_be_replayed(entry) {
                continue;
            }
            let Some(handle) = entry.handle.clone() else { continue };
            let has_same_handle =
                taken.first().is_none_or(|first| Arc::ptr_eq(&first.handle, &handle));
            if taken.len() == max_count || !has_same_handle {
                break;
            }
            let parts = self.remaining_ranges(position);
            let is_truncated = self.is_truncation_done(position);
            let entry = &mut self.entries[position];
            entry.state = EntryState::Replaying;
            entry.may_have_arrived = true;
            let mut change = entry.change.clone();
            if let Change::SetAttr(change) = &mut change
                && is_truncated
            {
                change.size = None;
            }
            taken.push(Replay { number: entry.number, handle, change, parts });
        }
        taken
    }

    /// The bytes of an entry that no newer change has determined.
    fn remaining_ranges(&self, position: usize) -> Vec<Range<u64>> {
        let mut parts = vec![self.entries[position].change.range()];
        for newer in position + 1..self.entries.len() {
            let entry = &self.entries[newer];
            // A truncation that is not replayed would not remove the bytes of a replayed write.
            let range_if_truncated =
                || self.is_truncation_done(newer).then(|| entry.change.range());
            if let Some(covered) = entry.happened().or_else(range_if_truncated) {
                parts = parts.into_iter().flat_map(|part| subtract(part, &covered)).collect();
            }
        }
        parts
    }

    /// Whether a change of size was executed, because a newer change through the same handle was
    /// acknowledged. Replaying it would undo the newer change. A newer change through another
    /// handle may have been executed before it; as long as the change of size is unanswered, the
    /// two are concurrent, and either order is valid.
    fn is_truncation_done(&self, position: usize) -> bool {
        let entry = &self.entries[position];
        let mut newer = self.entries.iter().skip(position + 1);
        entry.change.sets_size()
            && entry.may_have_arrived
            && newer.any(|newer| {
                newer.handle_number == entry.handle_number && newer.happened().is_some()
            })
    }

    /// Entries in replay were lost again. Returns whether there were any.
    pub(crate) fn replay_lost(&mut self) -> bool {
        let mut is_any = false;
        for entry in &mut self.entries {
            if matches!(entry.state, EntryState::Replaying) {
                entry.state = EntryState::Waiting;
                is_any = true;
            }
        }
        is_any
    }

    /// Whether an append without a reply may have arrived.
    pub(crate) fn has_appends_in_doubt(&self) -> bool {
        self.entries.iter().any(|entry| entry.append_in_doubt().is_some())
    }

    /// Takes the unanswered appends that may have arrived, in order. From now on, the task that
    /// looks for them in the file completes them.
    pub(crate) fn take_appends_in_doubt(&mut self) -> Vec<(u64, Bytes)> {
        let mut appends = Vec::new();
        for entry in &mut self.entries {
            if let Some(data) = entry.append_in_doubt() {
                appends.push((entry.number, data));
                entry.state = EntryState::Replaying;
            }
        }
        appends
    }

    /// How much of `range` may have been overwritten by unanswered changes.
    pub(crate) fn covers(&self, range: &Range<u64>) -> Covered {
        let in_doubt = |entry: &&Entry| entry.is_unanswered() && entry.may_have_arrived;
        let mut rest = vec![range.clone()];
        for entry in self.entries.iter().filter(in_doubt) {
            let covered = entry.change.range();
            rest = rest.into_iter().flat_map(|part| subtract(part, &covered)).collect();
        }
        match rest.as_slice() {
            [] => Covered::Whole,
            [part] if part == range => Covered::Not,
            _ => Covered::Partly,
        }
    }

    /// Another `bytes` bytes of an append are known to be in the file, and its remaining bytes are
    /// known not to be. Returns whether it is complete.
    pub(crate) fn append_arrived(&mut self, number: u64, bytes: usize) -> bool {
        let Some(entry) = self.entry(number) else { return false };
        entry.may_have_arrived = false;
        entry.state = EntryState::Waiting;
        match &mut entry.change {
            Change::Append { data, arrived, .. } => {
                *arrived += bytes;
                *arrived == data.len()
            }
            _ => false,
        }
    }
}

/// The parts of `range` outside of `covered`.
fn subtract(range: Range<u64>, covered: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let before = range.start..range.end.min(covered.start);
    let after = range.start.max(covered.end)..range.end;
    let whole = covered.is_empty().then(|| range.clone());
    let range_if_truncated = (!covered.is_empty()).then_some([before, after]);
    whole
        .into_iter()
        .chain(range_if_truncated.into_iter().flatten())
        .filter(|part| part.start < part.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_without_another() {
        let left = |covered: Range<u64>| {
            let parts = subtract(10..20, &covered);
            parts.map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(left(0..10), [(10, 20)]);
        assert_eq!(left(20..30), [(10, 20)]);
        assert_eq!(left(0..30), []);
        assert_eq!(left(12..15), [(10, 12), (15, 20)]);
        assert_eq!(left(0..15), [(15, 20)]);
        assert_eq!(left(15..u64::MAX), [(10, 15)]);
        assert_eq!(left(12..12), [(10, 20)]);
    }
}
