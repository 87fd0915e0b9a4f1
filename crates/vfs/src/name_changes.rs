//! Which names were changed through this mount lately, and when.
//!
//! Kept for each name apart, so that one change says nothing about the other names of its
//! directory. Only the last [`MAX_CHANGES`] are remembered one by one; whatever was asked before
//! those that were let go counts as asked before a change.

use std::collections::{HashMap, VecDeque};

use base::Name;

use crate::Ino;

/// Changes remembered by name. What is compared with them was asked some round trips ago, during
/// which not many names are changed; some 400 KiB.
const MAX_CHANGES: usize = 4096;

/// What a change makes a name lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Puts {
    /// To nothing: the name is removed, or its file gets another one.
    Nothing,
    /// To this inode.
    Inode(Ino),
    /// To something without an inode so far.
    New,
}

#[derive(Clone, Copy, Default)]
struct NameChange {
    /// When one began or ended last.
    tick: u64,
    /// Changes on their way.
    changing: u32,
    /// Those of them that put something at the name.
    putting: u32,
    /// When something was put there last.
    put: u64,
    /// What that was, if it has an inode, and when anything else was put there before.
    inode: Option<Ino>,
    before: u64,
}

impl NameChange {
    fn put(&mut self, puts: Puts, tick: u64) {
        let inode = match puts {
            Puts::Nothing => return,
            Puts::Inode(inode) => Some(inode),
            Puts::New => None,
        };
        if inode.is_none() || inode != self.inode {
            self.before = if inode.is_none() { tick } else { self.put };
            self.inode = inode;
        }
        self.put = tick;
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct NameChanges {
    by_dir: HashMap<Ino, HashMap<Name, NameChange>>,
    /// In the order of the ticks; a name that was changed several times is in it as often.
    order: VecDeque<(u64, Ino, Name)>,
    /// All changes up to this tick may have been let go.
    floor: u64,
}

impl NameChanges {
    /// A change of `name` begins at `tick`. To be followed by [`NameChanges::end`].
    pub(crate) fn begin(&mut self, dir: Ino, name: &Name, puts: Puts, tick: u64) {
        let change = self.by_dir.entry(dir).or_default().entry(name.clone()).or_default();
        change.tick = tick;
        change.changing += 1;
        change.putting += u32::from(puts != Puts::Nothing);
        change.put(puts, tick);
    }

    /// It is over at `tick`, however it ended.
    pub(crate) fn end(&mut self, dir: Ino, name: &Name, puts: Puts, tick: u64) {
        let change = self.by_dir.get_mut(&dir).and_then(|names| names.get_mut(name));
        let Some(change) = change else { return };
        change.tick = tick;
        change.changing -= 1;
        change.putting = change.putting.saturating_sub(u32::from(puts != Puts::Nothing));
        change.put(puts, tick);
        self.remember(dir, name, tick);
    }

    /// What `name` leads to was changed up to `tick`.
    pub(crate) fn note(&mut self, dir: Ino, name: &Name, tick: u64) {
        self.by_dir.entry(dir).or_default().entry(name.clone()).or_default().tick = tick;
        self.remember(dir, name, tick);
    }

    fn remember(&mut self, dir: Ino, name: &Name, tick: u64) {
        self.order.push_back((tick, dir, name.clone()));
        while self.order.len() > MAX_CHANGES {
            self.let_go_oldest();
        }
    }

    fn let_go_oldest(&mut self) {
        let Some((tick, dir, name)) = self.order.pop_front() else { return };
        self.floor = tick;
        let Some(names) = self.by_dir.get_mut(&dir) else { return };
        if names.get(&name).is_some_and(|change| change.tick == tick && change.changing == 0) {
            names.remove(&name);
            if names.is_empty() {
                self.by_dir.remove(&dir);
            }
        }
    }

    /// All names may have changed up to `tick`.
    pub(crate) fn doubt_all(&mut self, tick: u64) {
        self.floor = tick;
    }

    /// Whether `name` was not changed since `tick`, nor is being changed.
    pub(crate) fn unchanged_since(&self, dir: Ino, name: &Name, tick: u64) -> bool {
        let change = self.by_dir.get(&dir).and_then(|names| names.get(name));
        tick >= self.floor
            && change.is_none_or(|change| change.changing == 0 && change.tick <= tick)
    }

    /// Whether `name` may have led to something else than `inode` since `tick`, or may do so now.
    pub(crate) fn another_since(&self, dir: Ino, name: &Name, inode: Ino, tick: u64) -> bool {
        let Some(change) = self.by_dir.get(&dir).and_then(|names| names.get(name)) else {
            return tick < self.floor;
        };
        let only_it = change.inode == Some(inode) && change.before <= tick && change.putting <= 1;
        tick < self.floor || (change.putting > 0 || change.put > tick) && !only_it
    }

    /// Whether a change of `name` is on its way besides the one of who asks.
    pub(crate) fn others_change(&self, dir: Ino, name: &Name) -> bool {
        let change = self.by_dir.get(&dir).and_then(|names| names.get(name));
        change.is_some_and(|change| change.changing > 1)
    }

    /// The names in `dir` that were changed since `tick`, or are being changed; `None` when not
    /// all of them are known.
    pub(crate) fn since(&self, dir: Ino, tick: u64) -> Option<Vec<Name>> {
        if tick < self.floor {
            return None;
        }
        let names = self.by_dir.get(&dir).into_iter().flatten();
        let changed = names.filter(|(_, change)| change.changing > 0 || change.tick > tick);
        Some(changed.map(|(name, _)| name.clone()).collect())
    }

    /// Whether a name in `dir` may have been changed since `tick`, or is being changed.
    pub(crate) fn any_since(&self, dir: Ino, tick: u64) -> bool {
        let names = self.by_dir.get(&dir).into_iter().flatten();
        tick < self.floor
            || names.into_iter().any(|(_, change)| change.changing > 0 || change.tick > tick)
    }

    /// Whether names in `dir` were changed lately.
    pub(crate) fn any_in(&self, dir: Ino) -> bool {
        self.by_dir.contains_key(&dir)
    }

    /// The directory is gone for good.
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
    fn one_name_says_nothing_about_another() {
        let mut changes = NameChanges::default();
        let (dir, a, b) = (Ino(1), name("a"), name("b"));
        changes.begin(dir, &a, Puts::Nothing, 5);
        assert!(!changes.unchanged_since(dir, &a, 9), "it is being changed");
        assert!(changes.unchanged_since(dir, &b, 0) && changes.unchanged_since(Ino(2), &a, 0));
        changes.begin(dir, &a, Puts::Nothing, 6);
        assert!(changes.others_change(dir, &a));
        changes.end(dir, &a, Puts::Nothing, 7);
        assert!(!changes.unchanged_since(dir, &a, 7) && !changes.others_change(dir, &a));
        changes.end(dir, &a, Puts::Nothing, 8);
        assert!(changes.unchanged_since(dir, &a, 8) && !changes.unchanged_since(dir, &a, 7));
        assert_eq!(changes.since(dir, 7).unwrap(), [a]);
        assert!(changes.since(dir, 8).unwrap().is_empty());
        assert!(changes.any_since(dir, 7) && !changes.any_since(dir, 8));
        assert!(!changes.any_since(Ino(2), 0));
    }

    #[test]
    fn a_file_that_comes_back_to_its_name_is_no_other_one() {
        let mut changes = NameChanges::default();
        let (dir, a, it) = (Ino(1), name("a"), Ino(7));
        changes.begin(dir, &a, Puts::Nothing, 5);
        assert!(!changes.another_since(dir, &a, it, 4), "it gets another name");
        changes.end(dir, &a, Puts::Nothing, 6);
        changes.begin(dir, &a, Puts::Inode(it), 7);
        assert!(!changes.another_since(dir, &a, it, 4) && changes.another_since(dir, &a, dir, 4));
        changes.begin(dir, &a, Puts::New, 8);
        assert!(changes.another_since(dir, &a, it, 9), "under way");
        changes.end(dir, &a, Puts::New, 9);
        changes.end(dir, &a, Puts::Inode(it), 10);
        assert!(changes.another_since(dir, &a, it, 8));
        assert!(!changes.another_since(dir, &a, it, 9) && changes.another_since(dir, &a, dir, 9));
        assert!(
            !changes.another_since(dir, &a, dir, 10) && !changes.another_since(dir, &a, it, 10)
        );
    }

    #[test]
    fn what_was_let_go_spoils_what_was_asked_before_it() {
        let mut changes = NameChanges::default();
        let dir = Ino(1);
        changes.begin(dir, &name("slow"), Puts::Nothing, 1);
        for tick in 2..MAX_CHANGES as u64 + 10 {
            let name = name(&format!("n{tick}"));
            changes.begin(dir, &name, Puts::Nothing, tick);
            changes.end(dir, &name, Puts::Nothing, tick);
        }
        assert!(!changes.unchanged_since(dir, &name("other"), 5));
        assert!(changes.since(dir, 5).is_none());
        let now = MAX_CHANGES as u64 + 10;
        assert!(changes.unchanged_since(dir, &name("n3"), now));
        assert!(!changes.unchanged_since(dir, &name("slow"), now), "on its way still");
        changes.end(dir, &name("slow"), Puts::Nothing, now + 1);
        assert!(changes.by_dir[&dir].len() <= MAX_CHANGES && changes.order.len() <= MAX_CHANGES);
        changes.forget(dir);
        assert!(!changes.any_in(dir));
    }
}
