//! The recent local changes of names.
//!
//! Recorded per name, so that a change does not affect the other names of its directory. Only the
//! last [`MAX_CHANGES`] are recorded; any request from before the dropped ones is treated as older
//! than a change.

use std::collections::{HashMap, VecDeque};

use base::Name;

use crate::Ino;

/// Changes recorded by name. They are compared with requests of some round trips ago, during which
/// few names change; some 400 KiB.
const MAX_CHANGES: usize = 4096;

/// What a name is bound to by a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoundTo {
    /// Nothing: the name is removed, or its file gets another name.
    Nothing,
    /// This inode.
    Inode(Ino),
    /// A file without an inode so far.
    New,
}

#[derive(Clone, Copy, Default)]
struct NameChange {
    /// Sequence number at which the last change began or ended.
    seq: u64,
    /// Changes in flight.
    in_flight: u32,
    /// Changes in flight that bind the name to a file.
    binding: u32,
    /// Sequence number of the last binding.
    last_bound_seq: u64,
    /// The inode of the last binding, if it has one, and the sequence number of the last binding to
    /// anything else.
    inode: Option<Ino>,
    other_bound_seq: u64,
}

impl NameChange {
    fn record_binding(&mut self, bound_to: BoundTo, seq: u64) {
        let inode = match bound_to {
            BoundTo::Nothing => return,
            BoundTo::Inode(inode) => Some(inode),
            BoundTo::New => None,
        };
        if inode.is_none() || inode != self.inode {
            self.other_bound_seq = if inode.is_none() { seq } else { self.last_bound_seq };
            self.inode = inode;
        }
        self.last_bound_seq = seq;
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct NameChanges {
    by_dir: HashMap<Ino, HashMap<Name, NameChange>>,
    /// Ordered by sequence number. A name that was changed several times is in it several times,
    /// unless the changes followed each other.
    order: VecDeque<(u64, Ino, Name)>,
    /// Changes up to this sequence number may have been dropped.
    floor: u64,
}

impl NameChanges {
    /// A change of `name` begins at `seq`. Must be followed by [`NameChanges::end`].
    pub(crate) fn begin(&mut self, dir: Ino, name: &Name, bound_to: BoundTo, seq: u64) {
        let change = self.by_dir.entry(dir).or_default().entry(name.clone()).or_default();
        change.seq = seq;
        change.in_flight += 1;
        change.binding += u32::from(bound_to != BoundTo::Nothing);
        change.record_binding(bound_to, seq);
    }

    /// A change of `name` has ended at `seq`, successfully or not.
    pub(crate) fn end(&mut self, dir: Ino, name: &Name, bound_to: BoundTo, seq: u64) {
        let change = self.by_dir.get_mut(&dir).and_then(|names| names.get_mut(name));
        let Some(change) = change else { return };
        change.seq = seq;
        change.in_flight -= 1;
        change.binding = change.binding.saturating_sub(u32::from(bound_to != BoundTo::Nothing));
        change.record_binding(bound_to, seq);
        self.remember(dir, name, seq);
    }

    /// Records that what `name` leads to was changed up to `seq`.
    pub(crate) fn note(&mut self, dir: Ino, name: &Name, seq: u64) {
        self.by_dir.entry(dir).or_default().entry(name.clone()).or_default().seq = seq;
        self.remember(dir, name, seq);
    }

    fn remember(&mut self, dir: Ino, name: &Name, seq: u64) {
        // Of one change several events are reported.
        let last = self.order.back();
        if last.is_some_and(|(_, last_dir, last_name)| *last_dir == dir && last_name == name) {
            self.order.pop_back();
        }
        self.order.push_back((seq, dir, name.clone()));
        while self.order.len() > MAX_CHANGES {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some((seq, dir, name)) = self.order.pop_front() else { return };
        self.floor = seq;
        let Some(names) = self.by_dir.get_mut(&dir) else { return };
        if names.get(&name).is_some_and(|change| change.seq == seq && change.in_flight == 0) {
            names.remove(&name);
            if names.is_empty() {
                self.by_dir.remove(&dir);
            }
        }
    }

    /// Any name may have changed up to `seq`.
    pub(crate) fn invalidate_all(&mut self, seq: u64) {
        self.floor = seq;
    }

    fn get(&self, dir: Ino, name: &Name) -> Option<&NameChange> {
        self.by_dir.get(&dir)?.get(name)
    }

    /// Whether `name` was not changed since `seq`, and is not being changed.
    pub(crate) fn unchanged_since(&self, dir: Ino, name: &Name, seq: u64) -> bool {
        let change = self.get(dir, name);
        seq >= self.floor && change.is_none_or(|change| change.in_flight == 0 && change.seq <= seq)
    }

    /// Whether `name` may have led to another file than `inode` since `seq`, or may do so now.
    pub(crate) fn may_be_other_since(&self, dir: Ino, name: &Name, inode: Ino, seq: u64) -> bool {
        let Some(change) = self.get(dir, name) else {
            return seq < self.floor;
        };
        let only_it =
            change.inode == Some(inode) && change.other_bound_seq <= seq && change.binding <= 1;
        seq < self.floor || (change.binding > 0 || change.last_bound_seq > seq) && !only_it
    }

    /// Whether a change is in flight that binds `name` to a file.
    pub(crate) fn is_binding(&self, dir: Ino, name: &Name) -> bool {
        self.get(dir, name).is_some_and(|change| change.binding > 0)
    }

    /// Whether another change of `name` is in flight besides the caller's.
    pub(crate) fn has_other_changes(&self, dir: Ino, name: &Name) -> bool {
        self.get(dir, name).is_some_and(|change| change.in_flight > 1)
    }

    /// The names in `dir` that were changed since `seq`, or are being changed; `None` if they are
    /// not all recorded.
    pub(crate) fn changed_since(&self, dir: Ino, seq: u64) -> Option<Vec<Name>> {
        if seq < self.floor {
            return None;
        }
        let names = self.by_dir.get(&dir).into_iter().flatten();
        let changed = names.filter(|(_, change)| change.in_flight > 0 || change.seq > seq);
        Some(changed.map(|(name, _)| name.clone()).collect())
    }

    /// Whether any name in `dir` may have been changed since `seq`, or is being changed.
    pub(crate) fn any_changed_since(&self, dir: Ino, seq: u64) -> bool {
        let names = self.by_dir.get(&dir).into_iter().flatten();
        seq < self.floor
            || names.into_iter().any(|(_, change)| change.in_flight > 0 || change.seq > seq)
    }

    /// The directories with changes in flight.
    pub(crate) fn dirs_in_flight(&self) -> impl Iterator<Item = Ino> {
        let in_flight =
            |names: &HashMap<Name, NameChange>| names.values().any(|change| change.in_flight > 0);
        self.by_dir.iter().filter(move |(_, names)| in_flight(names)).map(|(dir, _)| *dir)
    }

    /// Whether any change in `dir` is recorded.
    pub(crate) fn has_changes_in(&self, dir: Ino) -> bool {
        self.by_dir.contains_key(&dir)
    }

    /// Drops the record of a removed directory.
    pub(crate) fn forget(&mut self, dir: Ino) {
        self.by_dir.remove(&dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_change_of_one_name_does_not_affect_another() {
        let mut changes = NameChanges::default();
        let (dir, a, b) = (Ino(1), name("a"), name("b"));
        changes.begin(dir, &a, BoundTo::Nothing, 5);
        assert!(!changes.unchanged_since(dir, &a, 9), "it is being changed");
        assert!(changes.unchanged_since(dir, &b, 0) && changes.unchanged_since(Ino(2), &a, 0));
        changes.begin(dir, &a, BoundTo::Nothing, 6);
        assert!(changes.has_other_changes(dir, &a));
        changes.end(dir, &a, BoundTo::Nothing, 7);
        assert!(!changes.unchanged_since(dir, &a, 7) && !changes.has_other_changes(dir, &a));
        changes.end(dir, &a, BoundTo::Nothing, 8);
        assert!(changes.unchanged_since(dir, &a, 8) && !changes.unchanged_since(dir, &a, 7));
        assert_eq!(changes.changed_since(dir, 7).unwrap(), [a]);
        assert!(changes.changed_since(dir, 8).unwrap().is_empty());
        assert!(changes.any_changed_since(dir, 7) && !changes.any_changed_since(dir, 8));
        assert!(!changes.any_changed_since(Ino(2), 0));
    }

    #[test]
    fn a_file_that_returns_to_its_name_is_the_same() {
        let mut changes = NameChanges::default();
        let (dir, a, it) = (Ino(1), name("a"), Ino(7));
        changes.begin(dir, &a, BoundTo::Nothing, 5);
        assert!(!changes.may_be_other_since(dir, &a, it, 4), "it gets another name");
        changes.end(dir, &a, BoundTo::Nothing, 6);
        changes.begin(dir, &a, BoundTo::Inode(it), 7);
        assert!(
            !changes.may_be_other_since(dir, &a, it, 4)
                && changes.may_be_other_since(dir, &a, dir, 4)
        );
        changes.begin(dir, &a, BoundTo::New, 8);
        assert!(changes.may_be_other_since(dir, &a, it, 9), "under way");
        changes.end(dir, &a, BoundTo::New, 9);
        changes.end(dir, &a, BoundTo::Inode(it), 10);
        assert!(changes.may_be_other_since(dir, &a, it, 8));
        assert!(
            !changes.may_be_other_since(dir, &a, it, 9)
                && changes.may_be_other_since(dir, &a, dir, 9)
        );
        assert!(
            !changes.may_be_other_since(dir, &a, dir, 10)
                && !changes.may_be_other_since(dir, &a, it, 10)
        );
    }

    #[test]
    fn a_dropped_record_invalidates_earlier_requests() {
        let mut changes = NameChanges::default();
        let dir = Ino(1);
        changes.begin(dir, &name("slow"), BoundTo::Nothing, 1);
        for seq in 2..MAX_CHANGES as u64 + 10 {
            let name = name(&format!("n{seq}"));
            changes.begin(dir, &name, BoundTo::Nothing, seq);
            changes.end(dir, &name, BoundTo::Nothing, seq);
        }
        assert!(!changes.unchanged_since(dir, &name("other"), 5));
        assert!(changes.changed_since(dir, 5).is_none());
        let now = MAX_CHANGES as u64 + 10;
        assert!(changes.unchanged_since(dir, &name("n3"), now));
        assert!(!changes.unchanged_since(dir, &name("slow"), now), "still in flight");
        changes.end(dir, &name("slow"), BoundTo::Nothing, now + 1);
        assert!(changes.by_dir[&dir].len() <= MAX_CHANGES && changes.order.len() <= MAX_CHANGES);
        changes.forget(dir);
        assert!(!changes.has_changes_in(dir));
    }
}
