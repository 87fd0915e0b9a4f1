//! What was asked to change one file and is not answered, in its order.
//!
//! An entry is in one of these states:
//!
//! - `Sent`: its caller waits for the remote's answer. → out of the log with that answer; `Waiting`
//!   when the answer was lost; `Replaying` when the file is opened anew before that is noticed.
//! - `Waiting`: never sent, or lost; to be sent when the file is open again. → `Replaying`.
//! - `Replaying`: sent again by whoever opens the file anew. → `Answered`, or `Waiting` when that was
//!   lost as well.
//! - `Answered`: its caller has not looked yet.
//! - `Acknowledged`: acknowledged, and kept as long as an older entry may still be sent again: what is newer
//!   must not be overwritten by it.
//!
//! A caller that gives up takes its entry out.
//!
//! Appends, and what else may move the end of the file, are never without an answer at the same time
//! ([`ChangeLog::admits`]): what has become of an append is told by where the file ends, so nothing else may
//! have moved that.
//!
//! Pure bookkeeping: nothing is asked here.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use base::{AttrChange, Result};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::expected_attrs::{ExpectedAttrs, IsFuture};
use crate::file::Handle;
use crate::unstable::Digest;

/// Done entries that are kept behind an unanswered one. Remotes answer about in order, so there are
/// few; without the oldest of more, a write could be lost that overtook one which was lost.
const MAX_ACKNOWLEDGED_KEPT: usize = 4096;

/// One change of a file.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Bytes at an offset.
    Write { offset: u64, data: Bytes },
    /// Bytes at the end. `arrived`: of these, so many are known to have arrived.
    Append { data: Bytes, arrived: usize },
    /// Attributes, through a handle.
    SetAttr(AttrChange),
    /// Attributes, through the path. Sent again by whoever asked for it.
    SetAttrByPath(AttrChange),
    /// Bytes that the server takes from another file. Sent again by whoever asked for it.
    Copy(Range<u64>),
}

/// What a change does with the end of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EofEffect {
    /// It leaves it where it is.
    Unchanged,
    /// It puts something behind it.
    Append,
    /// It may set it elsewhere.
    Move,
}

impl Change {
    /// What it does with the end of the file.
    pub(crate) fn eof_effect(&self) -> EofEffect {
        match self {
            Change::Append { .. } => EofEffect::Append,
            Change::Write { .. } | Change::Copy(_) if self.range().is_empty() => {
                EofEffect::Unchanged
            }
            Change::Write { .. } | Change::Copy(_) => EofEffect::Move,
            Change::SetAttr(change) | Change::SetAttrByPath(change) => match change.size {
                Some(_) => EofEffect::Move,
                None => EofEffect::Unchanged,
            },
        }
    }

    /// Whether it sets the size through a handle.
    fn sets_size(&self) -> bool {
        matches!(self, Change::SetAttr(AttrChange { size: Some(_), .. }))
    }

    /// Bytes of content that are kept for it.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Change::Write { data, .. } | Change::Append { data, .. } => data.len() as u64,
            Change::SetAttr(_) | Change::SetAttrByPath(_) | Change::Copy(_) => 0,
        }
    }

    /// Of its content, if it has any.
    pub(crate) fn digest(&self) -> Option<Digest> {
        match self {
            Change::Write { data, .. } => Some(Digest::of(data)),
            Change::Append { data, arrived } => Some(Digest::of(&data[*arrived..])),
            Change::SetAttr(_) | Change::SetAttrByPath(_) | Change::Copy(_) => None,
        }
    }

    fn is_replayable(&self) -> bool {
        !matches!(self, Change::SetAttrByPath(_) | Change::Copy(_))
    }

    /// The bytes that it decides about.
    pub(crate) fn range(&self) -> Range<u64> {
        match self {
            Change::Write { offset, data } => *offset..offset.saturating_add(data.len() as u64),
            Change::Copy(range) => range.clone(),
            Change::SetAttr(AttrChange { size: Some(size), .. })
            | Change::SetAttrByPath(AttrChange { size: Some(size), .. }) => *size..u64::MAX,
            Change::Append { .. } | Change::SetAttr(_) | Change::SetAttrByPath(_) => 0..0,
        }
    }

    /// It has happened.
    pub(crate) fn happened(&self, expected: &mut ExpectedAttrs, is_future: IsFuture<'_>) {
        match self {
            Change::Write { .. } | Change::Copy(_) if self.range().is_empty() => {}
            Change::Write { .. } | Change::Copy(_) => expected.wrote(self.range().end, is_future),
            Change::Append { data, arrived } => {
                expected.appended((data.len() - arrived) as u64, is_future);
            }
            Change::SetAttr(change) | Change::SetAttrByPath(change) => {
                expected.set(change, is_future)
            }
        }
    }

    /// It may have happened, or a part of it.
    pub(crate) fn may_have_happened(&self, expected: &mut ExpectedAttrs, is_future: IsFuture<'_>) {
        match self {
            Change::Write { .. } | Change::Copy(_) if self.range().is_empty() => {}
            Change::Write { .. } | Change::Copy(_) => {
                expected.may_have_written(self.range().end, is_future);
            }
            Change::Append { data, arrived } => {
                expected.may_have_appended((data.len() - arrived) as u64, is_future);
            }
            Change::SetAttr(change) | Change::SetAttrByPath(change) => {
                expected.may_have_set(change, is_future);
            }
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
    /// `None` once it is done, and for what goes through no handle.
    handle: Option<Arc<Handle>>,
    /// The number of its handle, also when it is done.
    handle_number: Option<u64>,
    change: Change,
    /// It was on its way at least once.
    may_have_arrived: bool,
}

impl Entry {
    /// The bytes that it has decided about, if it has happened.
    fn happened(&self) -> Option<Range<u64>> {
        match &self.state {
            EntryState::Acknowledged(range) => Some(range.clone()),
            EntryState::Answered(Ok(())) => Some(self.change.range()),
            _ => None,
        }
    }

    fn is_unanswered(&self) -> bool {
        matches!(self.state, EntryState::Sent | EntryState::Waiting | EntryState::Replaying)
    }
}

/// What is to be sent again.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    pub(crate) number: u64,
    pub(crate) handle: Arc<Handle>,
    pub(crate) change: Change,
    /// Parts of a write that are still to be written: what came later is left out.
    pub(crate) parts: Vec<Range<u64>>,
}

/// How much of a range may have been overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Covered {
    Not,
    Partly,
    Whole,
}

/// Answers need not come in the order in which the server has done things: what is newer may have
/// been acknowledged already, and what that has done stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overtaken {
    /// What the file looks like is not simply what this change makes of it.
    pub(crate) attrs: bool,
    /// Some of its content was written over, or cut off.
    pub(crate) content: bool,
}

/// What was taken out of the log by its caller.
pub(crate) struct EndedEntry {
    pub(crate) change: Change,
    pub(crate) may_have_arrived: bool,
    /// How it stands to what is newer and was acknowledged before it.
    pub(crate) overtaken: Overtaken,
    /// To be dropped without a lock, since its end may close it.
    _handle: Option<Arc<Handle>>,
}

/// The changes of one file.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    next: u64,
    /// By number.
    entries: VecDeque<Entry>,
    acknowledged_kept: usize,
    /// Unanswered appends, and other unanswered changes that may move the end.
    open_appends: usize,
    open_moves: usize,
    /// Notified when an entry is answered or taken out.
    changed: Arc<Notify>,
}

impl ChangeLog {
    /// Notified when an entry is answered or taken out.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Whether a change that does this may begin now.
    pub(crate) fn admits(&self, effect: EofEffect) -> bool {
        match effect {
            EofEffect::Unchanged => true,
            EofEffect::Append => self.open_moves == 0,
            EofEffect::Move => self.open_appends == 0,
        }
    }

    /// How many with such an end have no answer.
    fn count(&mut self, effect: EofEffect) -> Option<&mut usize> {
        match effect {
            EofEffect::Unchanged => None,
            EofEffect::Append => Some(&mut self.open_appends),
            EofEffect::Move => Some(&mut self.open_moves),
        }
    }

    /// One with such an end has its answer, or needs none any more.
    fn note_answered(&mut self, effect: EofEffect) {
        if let Some(count) = self.count(effect) {
            *count -= 1;
        }
        self.changed.notify_waiters();
    }

    /// The number that the next entry will have.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Begins a change, which is `sent` now or when the file is open again.
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

    /// Whether the answer to what its caller has sent still counts.
    pub(crate) fn is_sent(&mut self, number: u64) -> bool {
        self.entry(number).is_some_and(|entry| matches!(entry.state, EntryState::Sent))
    }

    /// The answer to what its caller had sent was lost; or it was not sent, since its handle was
    /// stale already.
    pub(crate) fn lost(&mut self, number: u64, may_have_arrived: bool) {
        if let Some(entry) = self.entry(number)
            && matches!(entry.state, EntryState::Sent)
        {
            entry.state = EntryState::Waiting;
            entry.may_have_arrived = may_have_arrived;
        }
    }

    /// The answer to what was sent again.
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

    /// How an entry that was sent again has ended.
    pub(crate) fn answered(&mut self, number: u64) -> Option<Result<()>> {
        match self.entry(number)?.state {
            EntryState::Answered(result) => Some(result),
            _ => None,
        }
    }

    /// Ends an entry: acknowledged, or taken out.
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

    /// How an entry stands to those behind it that have been acknowledged.
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

    /// What all that is not answered may have done to the file.
    pub(crate) fn apply_unanswered(&self, expected: &mut ExpectedAttrs, is_future: IsFuture<'_>) {
        let unanswered = self.entries.iter().filter(|entry| entry.is_unanswered());
        unanswered
            .filter(|entry| entry.may_have_arrived)
            .for_each(|entry| entry.change.may_have_happened(expected, is_future));
    }

    /// Entries without an answer, and the bytes that are kept for them.
    pub(crate) fn unanswered(&self) -> (usize, u64) {
        let unanswered = self.entries.iter().filter(|entry| entry.is_unanswered());
        unanswered.fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.change.len()))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty() || self.unanswered().0 == 0
    }

    fn is_to_be_replayed(entry: &Entry) -> bool {
        let unanswered = matches!(entry.state, EntryState::Sent | EntryState::Waiting);
        unanswered && entry.change.is_replayable()
    }

    /// The next entries to be sent again, at most `max_count`, all through one handle; none when all have
    /// been.
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

    /// The bytes of an entry that nothing newer has decided about.
    fn remaining_ranges(&self, position: usize) -> Vec<Range<u64>> {
        let mut parts = vec![self.entries[position].change.range()];
        for newer in position + 1..self.entries.len() {
            let entry = &self.entries[newer];
            // A cut that is not sent again would not cut off what is written anew.
            let range_if_truncated =
                || self.is_truncation_done(newer).then(|| entry.change.range());
            if let Some(covered) = entry.happened().or_else(range_if_truncated) {
                parts = parts.into_iter().flat_map(|part| subtract(part, &covered)).collect();
            }
        }
        parts
    }

    /// Whether a change of size has been carried out, since something newer was acknowledged through
    /// the same handle. To set the size once more would undo what is newer. What came by another way
    /// may have overtaken it, and may be cut off by it as well as not, as long as it is not answered.
    fn is_truncation_done(&self, position: usize) -> bool {
        let entry = &self.entries[position];
        let mut newer = self.entries.iter().skip(position + 1);
        entry.change.sets_size()
            && entry.may_have_arrived
            && newer.any(|newer| {
                newer.handle_number == entry.handle_number && newer.happened().is_some()
            })
    }

    /// Entries that were being sent again were lost once more. Returns whether there were any.
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

    /// Whether an append may have arrived whose answer was lost.
    pub(crate) fn has_appends_in_doubt(&self) -> bool {
        let replayed = self.entries.iter().filter(|entry| ChangeLog::is_to_be_replayed(entry));
        replayed.filter(|entry| entry.may_have_arrived).any(
            |entry| matches!(&entry.change, Change::Append { data, arrived } if *arrived < data.len()),
        )
    }

    /// What was put to the end, is not answered, and may have arrived; in order. It is taken over:
    /// from now on it is answered by whoever looks for it in the file.
    pub(crate) fn take_appends_in_doubt(&mut self) -> Vec<(u64, Bytes)> {
        let mut appends = Vec::new();
        for entry in self.entries.iter_mut().filter(|entry| ChangeLog::is_to_be_replayed(entry)) {
            if let (Change::Append { data, arrived }, true) =
                (&entry.change, entry.may_have_arrived)
                && *arrived < data.len()
            {
                appends.push((entry.number, data.slice(*arrived..)));
                entry.state = EntryState::Replaying;
            }
        }
        appends
    }

    /// How much of `range` may have been overwritten by what is not answered and will be sent again.
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

    /// So many bytes more of an append are known to have arrived; tells whether that is all of it.
    /// What is left of it has not arrived.
    pub(crate) fn append_arrived(&mut self, number: u64, bytes: usize) -> bool {
        let Some(entry) = self.entry(number) else { return false };
        entry.may_have_arrived = false;
        entry.state = EntryState::Waiting;
        match &mut entry.change {
            Change::Append { data, arrived } => {
                *arrived += bytes;
                *arrived == data.len()
            }
            _ => false,
        }
    }
}

/// What is left of `range` without `covered`.
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
