//! What each file may lose when a subject is killed, and what it may not.
//!
//! A change through a descriptor is *binding* once `fsync` of the file, or `close` of that
//! descriptor, has succeeded. A change by name is binding at once. Until then any of the changes
//! may be missing, each for each byte, since a write may be split and only a part sent.
//!
//! Times and permission bits changed through a descriptor are binding after its `close`.

use std::collections::{BTreeSet, HashMap};

use base::Result;

use super::Op;
use super::op::Answer;
use super::reference::Reference;
use crate::tree::Ino;

/// A change of a file's content.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// These bytes from this offset.
    Bytes(u64, Vec<u8>),
    /// This size.
    Size(u64),
}

/// A change of content by an operation.
#[derive(Clone, Debug)]
pub(super) struct Effect {
    pub(super) ino: Ino,
    /// The slot of the descriptor; `None` for a change by name.
    pub(super) slot: Option<usize>,
    pub(super) change: Change,
}

#[derive(Debug)]
struct Event {
    slot: Option<usize>,
    binding: bool,
    change: Change,
}

/// The history of a file since its content was binding.
#[derive(Debug)]
struct History {
    /// The binding content.
    base: Vec<u8>,
    /// Oldest first; at least one is not binding.
    events: Vec<Event>,
}

/// All files of a subject.
#[derive(Debug, Default)]
pub(super) struct Journal {
    contents: HashMap<Ino, History>,
    /// Slots through which a file was changed since their open.
    changed: HashMap<Ino, BTreeSet<usize>>,
}

impl Journal {
    /// Executes an operation on the reference, and records what it changes. `is_in_flight` returns
    /// whether an operation that has succeeded there may be executed in part.
    pub(super) fn execute(
        &mut self,
        op: &Op,
        reference: &mut Reference,
        is_in_flight: impl FnOnce(&Result<Answer>) -> bool,
    ) -> Result<Answer> {
        let effect = reference.effect(op);
        let before = effect.as_ref().map(|effect| match self.contents.contains_key(&effect.ino) {
            true => Vec::new(),
            false => reference.content(effect.ino),
        });
        let closing = reference.closing(op);
        let answer = op.apply(reference);
        let in_flight = is_in_flight(&answer);
        if answer.is_ok() {
            if let (Some(effect), Some(before)) = (effect, before) {
                self.change(effect, before, in_flight);
            }
            if let Some((ino, slot)) = reference.changed(op) {
                self.changed.entry(ino).or_default().insert(slot);
            }
            match (op, closing) {
                _ if in_flight => {}
                (Op::Close { fd }, Some(ino)) => self.closed(ino, *fd),
                (Op::Fsync { .. }, Some(ino)) => drop(self.contents.remove(&ino)),
                _ => {}
            }
        }
        answer
    }

    /// Records a change of a content, which was `before` unless the file has a history.
    fn change(&mut self, effect: Effect, before: Vec<u8>, in_flight: bool) {
        let Effect { ino, slot, change } = effect;
        let binding = slot.is_none() && !in_flight;
        let new = || History { base: before, events: Vec::new() };
        self.contents.entry(ino).or_insert_with(new).events.push(Event { slot, binding, change });
        self.settle(ino);
    }

    /// `close` has succeeded.
    fn closed(&mut self, ino: Ino, slot: usize) {
        if let Some(history) = self.contents.get_mut(&ino) {
            let of_slot = |event: &&mut Event| event.slot == Some(slot);
            history.events.iter_mut().filter(of_slot).for_each(|event| event.binding = true);
        }
        self.settle(ino);
        if let Some(slots) = self.changed.get_mut(&ino) {
            slots.remove(&slot);
            if slots.is_empty() {
                self.changed.remove(&ino);
            }
        }
    }

    /// Removes a history in which everything is binding.
    fn settle(&mut self, ino: Ino) {
        let is_settled = |history: &History| history.events.iter().all(|event| event.binding);
        if self.contents.get(&ino).is_some_and(is_settled) {
            self.contents.remove(&ino);
        }
    }

    /// Whether mtime and permission bits may have any value.
    pub(super) fn is_changed(&self, ino: Ino) -> bool {
        self.changed.contains_key(&ino) || self.contents.contains_key(&ino)
    }

    /// Number of unexplained bytes of `found`; `None` if the content is binding.
    pub(super) fn unexplained(&self, ino: Ino, found: &[u8]) -> Option<u64> {
        self.contents.get(&ino).map(|history| history.unexplained(found))
    }
}

impl History {
    fn unexplained(&self, found: &[u8]) -> u64 {
        let (least, most) = self.sizes();
        let size = found.len() as u64;
        let missing = least.saturating_sub(size) + size.saturating_sub(most);
        let wrong = found.iter().enumerate().filter(|(at, byte)| !self.allows(*at as u64, **byte));
        missing + wrong.count() as u64
    }

    /// The smallest and the largest size that the file may have.
    fn sizes(&self) -> (u64, u64) {
        let size = self.base.len() as u64;
        let (mut least, mut most) = (size, size);
        for event in &self.events {
            match (&event.change, event.binding) {
                (Change::Bytes(offset, bytes), binding) => {
                    let end = offset + bytes.len() as u64;
                    most = most.max(end);
                    least = if binding { least.max(end) } else { least };
                }
                (Change::Size(size), true) => (least, most) = (*size, *size),
                (Change::Size(size), false) => (least, most) = (least.min(*size), most.max(*size)),
            }
        }
        (least, most)
    }

    fn allows(&self, at: u64, found: u8) -> bool {
        for event in self.events.iter().rev() {
            let byte = match &event.change {
                Change::Bytes(offset, bytes) => {
                    at.checked_sub(*offset).and_then(|at| bytes.get(at as usize).copied())
                }
                Change::Size(size) => (at >= *size).then_some(0),
            };
            match byte {
                Some(byte) if byte == found => return true,
                Some(_) if event.binding => return false,
                _ => {}
            }
        }
        self.base.get(at as usize).copied().unwrap_or(0) == found
    }
}
