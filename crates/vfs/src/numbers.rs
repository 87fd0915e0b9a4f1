//! Stable inode numbers.
//!
//! A remote that tells files apart ([`base::FileId`]) has numbers of its own, which are shown where
//! they are of the file system of the first such file; the others are hashed together with their
//! device. Those of a union are all hashed: which of its sources is used first may differ after a
//! remount.
//!
//! Plain SFTP has no inode numbers, but `find`, `tar`, `git` and `rsync` compare them: within one
//! mount, and git also across mounts. So the number of a name is a hash of its parent's number and
//! the name, the same after FORGET and after a remount. There are two exceptions:
//!
//! - a renamed inode keeps its number, and a second link made through this mount shares it;
//! - a name whose own number is taken (its former owner was renamed, or a server has chosen names
//!   with equal numbers) gets another one, which may differ after a remount.
//!
//! Exceptions are remembered by name while the name exists, for [`MAX_EXCEPTIONS`] names at most;
//! above that the oldest are dropped, and their numbers may change once the kernel has forgotten
//! the inode.
//!
//! Invariant: no two live inodes have the same number, except for the remote's own numbers.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::{FileId, Name, stable_hash};

/// The number of the root. The root of a new ext4 shows 2 in `ls -i`, but 1 is FUSE's own.
pub(crate) const ROOT_NUMBER: u64 = 1;

/// Names with a number other than their own hash, at most; about 10 MiB when full.
const MAX_EXCEPTIONS: usize = 1 << 16;

/// Hashes that are tried for one name. A server that chooses names with equal hashes must not make
/// each of them cost more than the one before. After these, the next free number is used.
const MAX_SALTS: u64 = 8;

/// The first number that is not a hash of a name.
const FIRST_UNNAMED: u64 = 1 << 63;

/// Bytes of one exception.
const EXCEPTION_BYTES: usize = 160;

type Key = (u64, Name);

/// Reference counts by number; nearly all are one.
#[derive(Default)]
struct Uses {
    once: HashSet<u64>,
    /// Numbers with a count of at least two. They are not in `once`.
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

/// The numbers in use and the exceptions.
#[derive(Default)]
pub(crate) struct Numbers {
    /// One reference for each live inode with the number, and one for each exception that names it.
    used: Uses,
    overrides: HashMap<Key, (u64, u64)>,
    /// Insertion order of the exceptions, to drop the oldest.
    order: BTreeMap<u64, Key>,
    next_order: u64,
    /// Count of the numbers that were tried and are not hashes.
    unnamed: u64,
    /// The remote's numbers are all hashed.
    hashes_all: bool,
    /// The file system whose numbers are shown as they are.
    device: Option<u64>,
}

impl Numbers {
    /// The number for an inode at `name` below the directory with the number `parent`. Must be
    /// given back with [`Numbers::release`].
    pub(crate) fn take(&mut self, parent: u64, name: &Name) -> u64 {
        if let Some(number) = self.known_override(parent, name) {
            // Its only other reference may be this exception itself.
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

    /// From now on the remote's numbers are all hashed. Called before there are any.
    pub(crate) fn hash_all(&mut self) {
        self.hashes_all = true;
    }

    /// The number for an inode with this identity at the remote. Must be given back with
    /// [`Numbers::release`].
    pub(crate) fn take_remote(&mut self, id: FileId) -> u64 {
        self.device.get_or_insert(id.device);
        let number = self.of_remote(id);
        self.used.hold(number);
        number
    }

    /// Whether some numbers are the remote's.
    pub(crate) fn are_remote(&self) -> bool {
        self.device.is_some()
    }

    /// The number that an inode with this identity at the remote has, or would get.
    pub(crate) fn of_remote(&self, id: FileId) -> u64 {
        // Readers of directories skip the number zero.
        let is_shown = self.device.is_none_or(|device| device == id.device) && !self.hashes_all;
        match is_shown && id.number > 0 {
            true => id.number,
            false => mix(id.number ^ mix(id.device)).max(ROOT_NUMBER + 1),
        }
    }

    /// A number that is not a hash.
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

    /// The number of a name that is an exception. Most mounts have none.
    fn known_override(&self, parent: u64, name: &Name) -> Option<u64> {
        if self.overrides.is_empty() {
            return None;
        }
        self.overrides.get(&(parent, name.clone())).map(|(number, _)| *number)
    }

    /// Bytes of all exceptions.
    pub(crate) fn bytes(&self) -> usize {
        self.overrides.len() * EXCEPTION_BYTES
    }

    /// An inode with this number was removed.
    pub(crate) fn release(&mut self, number: u64) {
        self.used.drop_one(number);
    }

    /// `name` now belongs to the inode with this number, by a rename or as a further link.
    pub(crate) fn bind(&mut self, parent: u64, name: &Name, number: u64) {
        self.unbind(parent, name);
        if hash(parent, name, 0) != number {
            self.remember((parent, name.clone()), number);
        }
    }

    /// `name` was removed: its next file gets a number of its own.
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

/// FNV-1a, 64 bit, finished with a multiply-shift mix. Must never change, since git keeps these
/// numbers on disk. A collision costs only another salt.
fn hash(parent: u64, name: &Name, salt: u64) -> u64 {
    let (parent, salted) = (parent.to_le_bytes(), salt.to_le_bytes());
    let salted: [&[u8]; 2] = if salt > 0 { [b"/", &salted] } else { [b"", b""] };
    mix(stable_hash(parent.iter().chain(name.as_bytes()).chain(salted.into_iter().flatten())))
}

fn mix(value: u64) -> u64 {
    let mixed = (value ^ (value >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remotes_numbers_are_shown_and_those_of_other_devices_are_hashed() {
        let mut numbers = Numbers::default();
        let id = |device, number| FileId { device, number, btime: None };
        assert_eq!(numbers.take_remote(id(8, 77)), 77);
        assert_eq!(numbers.take_remote(id(8, 77)), 77, "two names of one file");
        let other = numbers.take_remote(id(9, 77));
        assert!(other != 77 && other == numbers.of_remote(id(9, 77)));
        assert_ne!(numbers.of_remote(id(8, 0)), 0);
        (0..2).for_each(|_| numbers.release(77));
        numbers.release(other);
        assert!(numbers.used.len() == 0 && numbers.overrides.is_empty());
        let mut hashed = Numbers::default();
        hashed.hash_all();
        assert_eq!(hashed.take_remote(id(9, 77)), other, "also as the first one");
        assert_ne!(hashed.of_remote(id(8, 77)), 77);
    }

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
        // As if all these names had equal hashes with every salt.
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
