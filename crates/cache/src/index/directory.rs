//! The state of one directory that its records add up to.

use std::collections::HashMap;

use base::{Attr, DirEntry};

use super::record::{Record, weight};
use crate::metadata::{KnownAttr, KnownFile, KnownLink, Listing, same_but_atime};

/// Memory that a name takes beside its counted bytes.
const NAME_BYTES: u64 = 300;

/// The recorded state of the names of one directory.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    listing: Option<IndexedListing>,
    names: HashMap<Vec<u8>, NameRecords>,
    /// The number of the record added last. Records with higher numbers are later.
    latest: u64,
}

#[derive(Debug)]
struct IndexedListing {
    listing: Listing,
    /// The indices of the names in the listing.
    positions: HashMap<Vec<u8>, usize>,
    order: u64,
}

#[derive(Debug, Default)]
struct NameRecords {
    /// With the number of the record that it comes from.
    attr: Option<(KnownAttr, u64)>,
    file: Option<KnownFile>,
    link: Option<KnownLink>,
}

impl Directory {
    pub(crate) fn add(&mut self, record: Record) {
        self.latest += 1;
        let order = self.latest;
        match record {
            Record::Listing(listing) => self.set_listing(listing, order),
            Record::SeenAgain(seen_at) => {
                if let Some(listed) = &mut self.listing {
                    listed.listing.seen_at = seen_at;
                    listed.order = order;
                }
            }
            Record::File(name, known) => {
                let attr = KnownAttr { attr: known.attr, seen_at: known.fetched_at };
                let names = self.name(name);
                (names.file, names.attr) = (Some(known), Some((attr, order)));
            }
            Record::Link(name, known) => self.name(name).link = Some(known),
            Record::Attr(name, known) => self.name(name).attr = Some((known, order)),
            Record::Forget(name) => {
                // A listing has no entry for the directory itself.
                if !name.is_empty() {
                    self.listing = None;
                }
                self.names.remove(&name);
            }
            Record::ForgetListing => self.listing = None,
        }
    }

    fn set_listing(&mut self, listing: Listing, order: u64) {
        let names = listing.entries.iter().enumerate();
        let positions = names.map(|(at, entry)| (entry.name.as_bytes().to_vec(), at)).collect();
        self.listing = Some(IndexedListing { listing, positions, order });
    }

    fn name(&mut self, name: Vec<u8>) -> &mut NameRecords {
        self.names.entry(name).or_default()
    }

    pub(crate) fn listing(&self) -> Option<Listing> {
        self.listing.as_ref().map(|listed| listed.listing.clone())
    }

    /// Whether the listing has the name; `None` without a listing.
    pub(crate) fn lists(&self, name: &[u8]) -> Option<bool> {
        self.listing.as_ref().map(|listed| listed.positions.contains_key(name))
    }

    /// Whether the listing lacks the name, and the name was not seen after it.
    pub(crate) fn is_absent(&self, name: &[u8]) -> bool {
        let alone = self.names.get(name).and_then(|known| known.attr.as_ref());
        self.lists(name) == Some(false) && !alone.is_some_and(|alone| self.is_newest(alone))
    }

    /// Whether attributes of a name differ from those in the listing, and were seen after it.
    pub(crate) fn contradicts_listing(&self) -> bool {
        let Some(listed) = &self.listing else { return false };
        let differs = |name: &[u8], attr: &Attr| match listed.entry(name) {
            Some(entry) => entry.attr.is_some_and(|listed| !same_but_atime(&listed, attr)),
            None => true,
        };
        self.names.iter().filter(|(name, _)| !name.is_empty()).any(|(name, known)| {
            let alone = known.attr.as_ref().filter(|alone| self.is_newest(alone));
            alone.is_some_and(|(known, _)| differs(name, &known.attr))
        })
    }

    /// Whether the record of a name was seen after the listing. Of two that were seen at the same
    /// time, the one that was recorded last decides. A listing is recorded when it has ended, and
    /// was seen when it began.
    fn is_newest(&self, (known, order): &(KnownAttr, u64)) -> bool {
        self.listing
            .as_ref()
            .is_none_or(|listed| (known.seen_at, *order) > (listed.listing.seen_at, listed.order))
    }

    pub(crate) fn file(&self, name: &[u8]) -> Option<KnownFile> {
        self.names.get(name)?.file
    }

    /// The contents of all files, by name.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&[u8], &KnownFile)> {
        self.names.iter().filter_map(|(name, known)| Some((&name[..], known.file.as_ref()?)))
    }

    /// The attributes recorded for single names, not by the listing.
    pub(crate) fn attrs(&self) -> impl Iterator<Item = (&[u8], &KnownAttr)> {
        self.names.iter().filter_map(|(name, known)| Some((&name[..], &known.attr.as_ref()?.0)))
    }

    pub(crate) fn link(&self, name: &[u8]) -> Option<KnownLink> {
        self.names.get(name)?.link.clone()
    }

    /// The attributes of the name that were seen last. A listing that lacks the name is a proof of
    /// its absence; one may have the name without attributes.
    pub(crate) fn attr(&self, name: &[u8]) -> Option<KnownAttr> {
        let alone = self.names.get(name).and_then(|known| known.attr);
        let listed = match &self.listing {
            // A listing has no entry for the directory itself.
            Some(listed)
                if !name.is_empty() && !alone.is_some_and(|alone| self.is_newest(&alone)) =>
            {
                let seen_at = listed.listing.seen_at;
                listed.entry(name)?.attr.map(|attr| KnownAttr { attr, seen_at })
            }
            _ => None,
        };
        listed.or(alone.map(|(known, _)| known))
    }

    /// The smallest set of records that results in the same state.
    pub(crate) fn records(&self) -> Vec<Record> {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (name, known) in &self.names {
            before.extend(known.link.clone().map(|link| Record::Link(name.clone(), link)));
            // It sets the attributes too, so it comes before the record that has set them last.
            before.extend(known.file.map(|file| Record::File(name.clone(), file)));
            if let Some(alone) = known.attr {
                let side = if self.is_newest(&alone) { &mut after } else { &mut before };
                side.push(Record::Attr(name.clone(), alone.0));
            }
        }
        before.extend(self.listing().map(Record::Listing));
        before.append(&mut after);
        before
    }

    /// The approximate bytes of memory that it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let listed = self.listing.as_ref().map_or(0, |listed| listed.listing.entries.len());
        (listed + self.names.len()) as u64 * NAME_BYTES + NAME_BYTES
    }

    /// The approximate bytes that its records would take in a compacted file.
    pub(crate) fn live_bytes(&self) -> u64 {
        let listed = self.listing.iter().flat_map(|listed| listed.listing.entries.iter());
        let attr_bytes = |attr: &Attr| if attr.inode.is_some() { 125 } else { 55 };
        let bytes = |entry: &DirEntry| {
            entry.attr.as_ref().map_or(10, attr_bytes) + entry.name.as_bytes().len() as u64
        };
        let listed: u64 = listed.map(bytes).sum();
        listed + self.names.keys().map(|name| 2 * weight(name)).sum::<u64>()
    }
}

impl IndexedListing {
    fn entry(&self, name: &[u8]) -> Option<&DirEntry> {
        Some(&self.listing.entries[*self.positions.get(name)?])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::{Attr, DirEntry, FileKind, Name, Timestamp};
    use proptest::prelude::*;

    use super::super::record::tests::record;
    use super::*;
    use crate::digest::Digest;

    fn attr(size: u64) -> Attr {
        Attr {
            kind: FileKind::Regular,
            perm: 0o644,
            size,
            uid: 0,
            gid: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            inode: None,
        }
    }

    fn known(size: u64) -> KnownAttr {
        KnownAttr { attr: attr(size), seen_at: Timestamp::from_secs(size as i64) }
    }

    fn listing(names: &[(&str, u64)]) -> Listing {
        let entry = |(name, size): &(&str, u64)| DirEntry {
            name: Name::new(name.as_bytes()).unwrap(),
            attr: Some(attr(*size)),
        };
        let entries: Vec<_> = names.iter().map(entry).collect();
        Listing { entries: Arc::from(entries), seen_at: Timestamp::from_secs(1) }
    }

    fn directory(records: &[Record]) -> Directory {
        let mut directory = Directory::default();
        records.iter().for_each(|record| directory.add(record.clone()));
        directory
    }

    #[test]
    fn of_a_name_and_a_listing_the_one_seen_last_is_valid() {
        let listed = |names| Record::Listing(listing(names));
        let (one, absent) = (listed(&[("a", 1)]), listed(&[("b", 3)]));
        let seen = |at| {
            let seen_at = Timestamp::from_secs(at);
            Record::Attr(b"a".to_vec(), KnownAttr { seen_at, ..known(2) })
        };
        let read = |at| {
            let (digest, fetched_at) = (Digest::of(b""), Timestamp::from_secs(at));
            let file = KnownFile { attr: attr(2), digest, racy: false, fetched_at };
            Record::File(b"a".to_vec(), file)
        };
        // The listings were seen at 1.
        for (name, listing, size) in [
            (seen(0), &one, Some(1)),
            (seen(2), &one, Some(2)),
            (seen(0), &absent, None),
            (seen(2), &absent, Some(2)),
            (read(0), &one, Some(1)),
            (read(2), &one, Some(2)),
        ] {
            for records in [[name.clone(), listing.clone()], [listing.clone(), name.clone()]] {
                let directory = directory(&records);
                let found = directory.attr(b"a").map(|known| known.attr.size);
                assert_eq!(found, size, "{records:?}");
                assert_eq!(directory.is_absent(b"a"), size.is_none(), "{records:?}");
                assert_eq!(directory.contradicts_listing(), size == Some(2), "{records:?}");
            }
        }
        // At the same time: the one recorded last.
        let attr = |records: &[Record]| directory(records).attr(b"a").unwrap().attr.size;
        assert_eq!(attr(&[seen(1), one.clone()]), 1);
        assert_eq!(attr(&[one.clone(), seen(1)]), 2);
        // The same listing again, later.
        assert_eq!(attr(&[one, seen(2), Record::SeenAgain(Timestamp::from_secs(3))]), 1);
    }

    #[test]
    fn a_listing_without_attributes_leaves_those_of_its_names() {
        let mut unattributed = listing(&[("a", 1)]);
        unattributed.entries = unattributed
            .entries
            .iter()
            .map(|entry| DirEntry { attr: None, ..entry.clone() })
            .collect();
        for (name, size) in [("a", Some(2)), ("b", None)] {
            let records = [
                Record::Listing(unattributed.clone()),
                Record::Attr(name.as_bytes().to_vec(), known(2)),
            ];
            let mut directory = directory(&records);
            assert_eq!(directory.contradicts_listing(), name == "b", "{name}");
            directory.add(Record::SeenAgain(Timestamp::from_secs(3)));
            let found = directory.attr(name.as_bytes()).map(|known| known.attr.size);
            assert_eq!(found, size, "{name}");
        }
    }

    #[test]
    fn forgetting_a_name_forgets_which_names_there_are() {
        let records = [
            Record::Listing(listing(&[("a", 1), ("b", 1)])),
            Record::Attr(b"a".to_vec(), known(2)),
            Record::Attr(b"b".to_vec(), known(2)),
            Record::Forget(b"a".to_vec()),
        ];
        let directory = directory(&records);
        assert_eq!((directory.listing(), directory.attr(b"a")), (None, None));
        assert_eq!(directory.attr(b"b"), Some(known(2)));
    }

    #[test]
    fn forgetting_the_directory_itself_keeps_its_listing() {
        let records = [
            Record::Listing(listing(&[("a", 1)])),
            Record::Attr(Vec::new(), known(2)),
            Record::Forget(Vec::new()),
        ];
        let directory = directory(&records);
        assert_eq!(directory.listing(), Some(listing(&[("a", 1)])));
        assert_eq!(directory.attr(b""), None);
    }

    proptest! {
        #[test]
        fn the_records_of_a_directory_make_the_same_directory(
            records in prop::collection::vec(record(), 0..12)
        ) {
            let first = directory(&records);
            let again = directory(&first.records());
            prop_assert_eq!(first.listing(), again.listing());
            for name in first.names.keys().chain(again.names.keys()) {
                prop_assert_eq!(first.file(name), again.file(name));
                prop_assert_eq!(first.link(name), again.link(name));
                prop_assert_eq!(first.attr(name), again.attr(name), "{:?}", name);
            }
        }
    }
}
