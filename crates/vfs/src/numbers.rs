//! Inode numbers that stay.
//!
//! SFTP tells no inode numbers, but `find`, `tar`, `git` and `rsync` compare them: within one
//! mount, and git also across mounts. So the number of a name is a hash of its parent's number
//! and itself, the same after FORGET and after a remount. Two things make exceptions:
//!
//! - a renamed inode keeps its number, and a second link made here shares it;
//! - a name whose own number is taken (its former owner was renamed away, or a server has chosen
//!   names of one number) gets another one, which may be another after a remount.
//!
//! Exceptions are remembered by name while the name lives, for [`MAX_EXCEPTIONS`] names at most;
//! past that the oldest are forgotten, and their numbers may change once the kernel has forgotten
//! the inode.
//!
//! Invariant: no two live inodes have the same number.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hasher;

use base::Name;

/// The number of the root. Also what `ls -i` shows for the root of a fresh ext4 is 2, but 1 is
/// FUSE's own.
pub(crate) const ROOT_NUMBER: u64 = 1;

/// Names with a number other than their own hash, at most; about 10 MiB when full.
const MAX_EXCEPTIONS: usize = 1 << 16;

/// Numbers that are tried for one name. A server that chooses names whose numbers are the same must
/// not make each of them cost more than the one before. What is past it gets the next free number.
const MAX_SALTS: u64 = 8;

/// The first of the numbers that are not made from a name.
const FIRST_UNNAMED: u64 = 1 << 63;

/// What one of them takes.
const EXCEPTION_BYTES: usize = 160;

type Key = (u64, Name);

/// Counts by number; nearly all are one.
#[derive(Default)]
struct Uses {
    once: HashSet<u64>,
    /// Numbers that are used twice at least. They are not in `once`.
    more: HashMap<u64, u32>,
}

impl Uses {
    fn count(&self, number: u64) -> u32 {
        let more = self.more.get(&number).copied();
        more.unwrap_or_else(|| u32::from(self.once.contains(&number)))
    }

    fn hold(&mut self, number: u64) {
        if let Some(count) = self.more.get_mut(&number) {
            *count += 1;
        } else if !self.once.insert(number) {
            self.once.remove(&number);
            self.more.insert(number, 2);
        }
    }

    fn drop_one(&mut self, number: u64) {
        let Some(count) = self.more.get_mut(&number) else {
            self.once.remove(&number);
            return;
        };
        *count -= 1;
        if *count == 1 {
            self.more.remove(&number);
            self.once.insert(number);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.once.len() + self.more.len()
    }
}

/// The numbers in use and the exceptions from the rule.
#[derive(Default)]
pub(crate) struct Numbers {
    /// How many live inodes have a number (one), and how many exceptions name it.
    used: Uses,
    overrides: HashMap<Key, (u64, u64)>,
    /// Insertion order of the exceptions, for forgetting the oldest.
    order: BTreeMap<u64, Key>,
    next_order: u64,
    /// How many numbers have been tried that are not made from a name.
    unnamed: u64,
}

impl Numbers {
    /// The number for an inode that is now found at `name` below the directory numbered `parent`.
    /// The caller reports its end with [`Numbers::release`].
    pub(crate) fn take(&mut self, parent: u64, name: &Name) -> u64 {
        if let Some(number) = self.known_override(parent, name) {
            // Its only other user may be this exception itself.
            if self.used.count(number) == 1 {
                self.used.hold(number);
                return number;
            }
        }
        let salted = (0..MAX_SALTS).map(|salt| hash(parent, name, salt));
        let free = |number: &u64| *number > ROOT_NUMBER && self.used.count(*number) == 0;
        let found = salted.enumerate().find(|(_, number)| free(number));
        let number = found.map_or_else(|| self.next_unnamed(), |(_, number)| number);
        self.used.hold(number);
        if found.is_none_or(|(salt, _)| salt > 0) {
            self.remember((parent, name.clone()), number);
        }
        number
    }

    /// A number that is not made from a name.
    fn next_unnamed(&mut self) -> u64 {
        loop {
            self.unnamed += 1;
            let number = FIRST_UNNAMED.wrapping_add(self.unnamed);
            if number > ROOT_NUMBER && self.used.count(number) == 0 {
                return number;
            }
        }
    }

    /// The number that `name` would most probably get.
    pub(crate) fn expected(&self, parent: u64, name: &Name) -> u64 {
        self.known_override(parent, name).unwrap_or_else(|| hash(parent, name, 0))
    }

    /// The number of a name that has another one than its own. Most mounts have none.
    fn known_override(&self, parent: u64, name: &Name) -> Option<u64> {
        if self.overrides.is_empty() {
            return None;
        }
        self.overrides.get(&(parent, name.clone())).map(|(number, _)| *number)
    }

    /// What exceptions take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.overrides.len() * EXCEPTION_BYTES
    }

    /// An inode of this number is gone.
    pub(crate) fn release(&mut self, number: u64) {
        self.used.drop_one(number);
    }

    /// `name` now belongs to the inode numbered `number`, by a rename or as a further link.
    pub(crate) fn bind(&mut self, parent: u64, name: &Name, number: u64) {
        self.unbind(parent, name);
        if hash(parent, name, 0) != number {
            self.remember((parent, name.clone()), number);
        }
    }

    /// `name` is gone: whatever takes it next starts anew.
    pub(crate) fn unbind(&mut self, parent: u64, name: &Name) {
        if self.overrides.is_empty() {
            return;
        }
        if let Some((number, order)) = self.overrides.remove(&(parent, name.clone())) {
            self.order.remove(&order);
            self.used.drop_one(number);
        }
    }

    fn remember(&mut self, key: Key, number: u64) {
        if self.overrides.len() >= MAX_EXCEPTIONS
            && let Some((_, oldest)) = self.order.pop_first()
            && let Some((number, _)) = self.overrides.remove(&oldest)
        {
            self.used.drop_one(number);
        }
        self.used.hold(number);
        let order = self.next_order;
        self.next_order += 1;
        self.order.insert(order, key.clone());
        if let Some((old, old_order)) = self.overrides.insert(key, (number, order)) {
            self.order.remove(&old_order);
            self.used.drop_one(old);
        }
    }
}

/// FNV-1a, 64 bit, finished with a multiply-shift mix: fixed for ever, since git keeps these
/// numbers on disk. Collisions cost nothing but a salt.
fn hash(parent: u64, name: &Name, salt: u64) -> u64 {
    struct Fnv(u64);
    impl Hasher for Fnv {
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        fn finish(&self) -> u64 {
            let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ (mixed >> 29)
        }
    }
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    hasher.write(&parent.to_le_bytes());
    hasher.write(name.as_bytes());
    if salt > 0 {
        hasher.write(b"/");
        hasher.write(&salt.to_le_bytes());
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_name_keeps_its_number_over_forget() {
        let mut numbers = Numbers::default();
        let first = numbers.take(1, &name("a"));
        numbers.release(first);
        assert_eq!(numbers.take(1, &name("a")), first);
        assert_ne!(numbers.take(1, &name("b")), first);
        assert_ne!(numbers.take(2, &name("a")), first);
    }

    #[test]
    fn a_renamed_inode_keeps_its_number_and_its_old_name_gets_another() {
        let mut numbers = Numbers::default();
        let moved = numbers.take(1, &name("a"));
        numbers.unbind(1, &name("a"));
        numbers.bind(1, &name("b"), moved);
        let newcomer = numbers.take(1, &name("a"));
        assert_ne!(newcomer, moved);
        numbers.release(moved);
        numbers.release(newcomer);
        assert_eq!(numbers.take(1, &name("b")), moved, "forgotten by the kernel, asked again");
        assert_eq!(numbers.take(1, &name("a")), newcomer);
    }

    #[test]
    fn a_removed_name_leaves_nothing_behind() {
        let mut numbers = Numbers::default();
        let moved = numbers.take(1, &name("a"));
        numbers.unbind(1, &name("a"));
        numbers.bind(1, &name("b"), moved);
        numbers.unbind(1, &name("b"));
        numbers.release(moved);
        assert!(numbers.used.len() == 0 && numbers.overrides.is_empty());
        assert!(numbers.order.is_empty());
    }

    #[test]
    fn names_of_one_number_cost_no_more_the_more_there_are() {
        let mut numbers = Numbers::default();
        let hostile = name("a");
        for salt in 0..MAX_SALTS {
            numbers.used.hold(hash(1, &hostile, salt));
        }
        // As if each of them had that name's number, whatever the salt.
        let revisit: Vec<u64> = (0..1000)
            .map(|_| {
                let number = numbers.take(1, &hostile);
                numbers.overrides.clear();
                number
            })
            .collect();
        let different: HashSet<&u64> = revisit.iter().collect();
        assert_eq!(different.len(), revisit.len());
        assert_eq!(numbers.unnamed, 1000, "one try each");
    }

    #[test]
    fn exceptions_are_bounded() {
        let mut numbers = Numbers::default();
        for index in 0..MAX_EXCEPTIONS + 10 {
            numbers.bind(1, &name(&format!("n{index}")), 1_000_000_000 + index as u64);
        }
        assert_eq!(numbers.overrides.len(), MAX_EXCEPTIONS);
        assert_eq!(numbers.order.len(), MAX_EXCEPTIONS);
        assert_eq!(numbers.used.len(), MAX_EXCEPTIONS);
    }
}
