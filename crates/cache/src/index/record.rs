//! The encoding of records of names. Pure: bytes in, record out.
//!
//! Each record has a checksum over itself and the directory it belongs to, so a damaged record, or
//! one in another directory's file, is not valid.

use std::sync::Arc;

use base::{Attr, DirEntry, Name, Timestamp};

use crate::codec::{CHECKSUM_BYTES, Reader, Writer, checksum_at};
use crate::digest::Digest;
use crate::metadata::{KnownAttr, KnownFile, KnownLink, Listing};

/// Longest record: the listing of half a million names. Longer ones are not recorded.
pub(crate) const MAX_RECORD_BYTES: usize = 64 << 20;

/// Length of a record's frame: its length, the checksum.
const FRAME_BYTES: usize = 4 + CHECKSUM_BYTES;

/// A record in a directory's file. Names are those of its entries; the empty name is the directory
/// itself. Later records replace earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A complete listing of the directory.
    Listing(Listing),
    /// It was listed again, with an equal result.
    SeenAgain(Timestamp),
    File(Vec<u8>, KnownFile),
    Link(Vec<u8>, KnownLink),
    Attr(Vec<u8>, KnownAttr),
    /// The name, and the listing of the directory, are forgotten.
    Forget(Vec<u8>),
    /// The listing of the directory is forgotten.
    ForgetListing,
}

impl Record {
    /// The encoded record; `None` if it is too long.
    pub(crate) fn encode(&self, seed: u64) -> Option<Vec<u8>> {
        let mut writer = Writer::default();
        match self {
            Record::Listing(listing) => encode_listing(&mut writer, listing),
            Record::SeenAgain(seen_at) => writer.u8(2).time(*seen_at),
            Record::File(name, known) => {
                writer.u8(3).string(name).attr(&known.attr).raw(known.digest.as_bytes());
                writer.u8(u8::from(known.racy)).time(known.fetched_at)
            }
            Record::Link(name, known) => {
                writer.u8(4).string(name).optional_attr(None);
                writer.string(&known.target).time(known.seen_at)
            }
            Record::Attr(name, known) => {
                writer.u8(5).string(name).attr(&known.attr).time(known.seen_at)
            }
            Record::Forget(name) => writer.u8(6).string(name),
            Record::ForgetListing => writer.u8(7),
        };
        let body = writer.0;
        let mut framed = Writer::default();
        framed.u32(body.len() as u32).raw(&checksum_at(&body, seed)).raw(&body);
        (body.len() <= MAX_RECORD_BYTES).then_some(framed.0)
    }

    fn decode(body: &[u8]) -> Option<Record> {
        let mut reader = Reader::new(body);
        let record = match reader.u8()? {
            1 => Record::Listing(decode_listing(&mut reader)?),
            2 => Record::SeenAgain(reader.time()?),
            3 => {
                let name = reader.string()?.to_vec();
                let (attr, digest): (Attr, Digest) = (reader.attr()?, reader.digest()?);
                let (racy, fetched_at) = (reader.flag()?, reader.time()?);
                Record::File(name, KnownFile { attr, digest, racy, fetched_at })
            }
            4 => {
                let name = reader.string()?.to_vec();
                reader.optional_attr()?;
                let target = reader.string()?.into();
                Record::Link(name, KnownLink { target, seen_at: reader.time()? })
            }
            5 => {
                let name = reader.string()?.to_vec();
                Record::Attr(name, KnownAttr { attr: reader.attr()?, seen_at: reader.time()? })
            }
            6 => Record::Forget(reader.string()?.to_vec()),
            7 => Record::ForgetListing,
            _ => return None,
        };
        reader.end(record)
    }
}

fn encode_listing<'a>(writer: &'a mut Writer, listing: &Listing) -> &'a mut Writer {
    writer.u8(1).time(listing.seen_at).optional_attr(None);
    writer.u32(listing.entries.len() as u32);
    for entry in listing.entries.iter() {
        writer.string(entry.name.as_bytes()).optional_attr(entry.attr.as_ref());
    }
    writer
}

fn decode_listing(reader: &mut Reader<'_>) -> Option<Listing> {
    let seen_at = reader.time()?;
    reader.optional_attr()?;
    let count = reader.u32()?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let name = Name::new(reader.string()?).ok()?;
        entries.push(DirEntry { name, attr: reader.optional_attr()? });
    }
    Some(Listing { entries: Arc::from(entries), seen_at })
}

/// The records in `bytes`, in order; `None` if any of them is damaged.
pub(crate) fn decode_all(bytes: &[u8], seed: u64) -> Option<Vec<Record>> {
    let mut reader = Reader::new(bytes);
    let mut records = Vec::new();
    while !reader.is_empty() {
        let len = reader.u32()? as usize;
        let sum: [u8; CHECKSUM_BYTES] = reader.array()?;
        if len > MAX_RECORD_BYTES {
            return None;
        }
        let body = reader.raw(len)?;
        if checksum_at(body, seed) != sum {
            return None;
        }
        records.push(Record::decode(body)?);
    }
    Some(records)
}

/// The approximate bytes of a record about `name`.
pub(crate) fn weight(name: &[u8]) -> u64 {
    (FRAME_BYTES + 128 + name.len()) as u64
}

#[cfg(test)]
pub(crate) mod tests {
    use base::{ChangeId, FileId, FileKind, InodeAttr};
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn time() -> impl Strategy<Value = Timestamp> {
        (any::<i64>(), 0..1_000_000_000u32).prop_map(|(secs, nanos)| Timestamp { secs, nanos })
    }

    pub(crate) fn attr() -> impl Strategy<Value = Attr> {
        let kind = prop::sample::select(vec![
            FileKind::Regular,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Fifo,
        ]);
        let ids = (any::<u32>(), any::<u32>());
        let inode = prop::option::of(inode());
        (kind, 0..0o10000u32, any::<u64>(), ids, time(), time(), inode).prop_map(
            |(kind, perm, size, (uid, gid), atime, mtime, inode)| Attr {
                kind,
                perm,
                size,
                uid,
                gid,
                atime,
                mtime,
                inode,
            },
        )
    }

    fn inode() -> impl Strategy<Value = InodeAttr> {
        let id = (any::<u64>(), any::<u64>(), prop::option::of(time()))
            .prop_map(|(device, number, btime)| FileId { device, number, btime });
        let change = (any::<u64>(), time()).prop_map(|(inode, ctime)| ChangeId { inode, ctime });
        let (id, change) = (prop::option::of(id), prop::option::of(change));
        let rdev = (any::<u32>(), any::<u32>());
        (id, change, any::<u32>(), any::<u64>(), rdev, any::<Option<bool>>()).prop_map(
            |(id, change, links, blocks, rdev, xattrs)| InodeAttr {
                id,
                change,
                links,
                blocks,
                rdev,
                xattrs,
            },
        )
    }

    fn name() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(1..=46u8, 1..5).prop_filter("a name", |name| Name::new(name).is_ok())
    }

    pub(crate) fn record() -> impl Strategy<Value = Record> {
        let entry = (name(), prop::option::of(attr()))
            .prop_map(|(name, attr)| DirEntry { name: Name::new(&name).unwrap(), attr });
        let entries = prop::collection::vec(entry, 0..5);
        let target = prop::collection::vec(any::<u8>(), 0..9);
        prop_oneof![
            (entries, time()).prop_map(|(entries, seen_at)| {
                Record::Listing(Listing { entries: Arc::from(entries), seen_at })
            }),
            time().prop_map(Record::SeenAgain),
            (name(), attr(), any::<[u8; 32]>(), any::<bool>(), time()).prop_map(
                |(name, attr, digest, racy, fetched_at)| {
                    let digest = Digest::from_bytes(digest);
                    Record::File(name, KnownFile { attr, digest, racy, fetched_at })
                }
            ),
            (name(), target, time()).prop_map(|(name, target, seen_at)| {
                Record::Link(name, KnownLink { target: target.into(), seen_at })
            }),
            (name(), attr(), time())
                .prop_map(|(name, attr, seen_at)| Record::Attr(name, KnownAttr { attr, seen_at })),
            name().prop_map(Record::Forget),
            Just(Record::ForgetListing),
        ]
    }

    proptest! {
        #[test]
        fn records_are_read_back(
            records in prop::collection::vec(record(), 0..5),
            seed: u64,
            bit in any::<prop::sample::Index>(),
        ) {
            let mut bytes: Vec<u8> =
                records.iter().flat_map(|record| record.encode(seed).unwrap()).collect();
            let elsewhere = decode_all(&bytes, seed.wrapping_add(1));
            prop_assert_eq!(elsewhere.is_none(), !records.is_empty());
            prop_assert_eq!(decode_all(&bytes, seed), Some(records));
            if !bytes.is_empty() {
                let bit = bit.index(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(decode_all(&bytes, seed), None);
            }
        }

        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), seed: u64) {
            let _ = decode_all(&bytes, seed);
            let _ = Record::decode(&bytes);
        }
    }

    #[test]
    fn a_count_without_entries_takes_no_memory() {
        let mut writer = Writer::default();
        writer.u8(1).time(Timestamp::default()).u8(0).u32(u32::MAX);
        assert_eq!(Record::decode(&writer.0), None);
    }

    /// Fails when the format has changed; then it needs a new version (docs/cache-format.md).
    #[test]
    fn the_format_is_that_of_version_1() {
        let time = Timestamp { secs: -5, nanos: 7 };
        let attr = Attr {
            kind: FileKind::Regular,
            perm: 0o640,
            size: 1 << 40,
            uid: 1,
            gid: 2,
            atime: time,
            mtime: Timestamp::from_secs(1 << 33),
            inode: None,
        };
        let with_inode = |id, change, xattrs| {
            let inode = InodeAttr { id, change, links: 3, blocks: 8, rdev: (4, 5), xattrs };
            Attr { inode: Some(inode), ..attr }
        };
        let id = |btime| Some(FileId { device: 1 << 40, number: 1 << 50, btime });
        let change = Some(ChangeId { inode: 1 << 50, ctime: time });
        let known = |attr| Record::Attr(b"name".to_vec(), KnownAttr { attr, seen_at: time });
        let name = b"name".to_vec();
        let digest = Digest::from_bytes([9; 32]);
        let entry = DirEntry { name: Name::new(&name).unwrap(), attr: Some(attr) };
        let entries: Arc<[DirEntry]> = Arc::from([entry]);
        let records = [
            Record::Listing(Listing { entries, seen_at: time }),
            Record::SeenAgain(time),
            Record::File(name.clone(), KnownFile { attr, digest, racy: true, fetched_at: time }),
            Record::Link(name.clone(), KnownLink { target: Arc::from(*b"to"), seen_at: time }),
            known(attr),
            known(with_inode(None, None, None)),
            known(with_inode(id(None), change, Some(false))),
            known(with_inode(id(Some(time)), change, Some(true))),
            Record::Forget(name),
            Record::ForgetListing,
        ];
        let bytes: Vec<u8> = records.iter().flat_map(|record| record.encode(3).unwrap()).collect();
        assert_eq!(
            Digest::of(&bytes).to_hex(),
            "e798edde4090f655ed4aab5f2c1f944bf33e81792c8644880972f70ab45d6d49"
        );
    }
}
