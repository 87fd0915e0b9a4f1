//! A source whose files and directories are known in each version. So any data from a store can be
//! checked, whichever process stored it and when.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

use base::{Attr, DirEntry, FileKind, Name, RemotePath, Timestamp};
use bytes::Bytes;
use cache::{CHUNK_BYTES, KnownFile, KnownLink, Listing, SourceId, Store, StoreConfig, Validator};

/// Directories over which the files are spread.
pub(crate) const DIRS: u64 = 5;

/// Every Nth file has more than one chunk.
const LARGE_EVERY: u64 = 7;

pub(crate) fn source() -> SourceId {
    SourceId::new(b"world")
}

/// A store with enough space, unless changed.
pub(crate) fn config(dir: &Path) -> StoreConfig {
    StoreConfig {
        size_bytes: Some(1 << 30),
        free_bytes: Some(0),
        digests: true,
        ..StoreConfig::new(dir)
    }
}

pub(crate) fn open(dir: &Path) -> Store {
    Store::open(config(dir)).unwrap()
}

/// A store that computes digests only on request.
pub(crate) fn open_without_digests(dir: &Path) -> Store {
    Store::open(StoreConfig { digests: false, ..config(dir) }).unwrap()
}

/// Reproducible pseudo-random numbers.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn size(file: u64, version: u64) -> u64 {
    let mut numbers = Numbers::new(file << 20 | version);
    match file % LARGE_EVERY {
        0 => CHUNK_BYTES + 1 + numbers.below(4 * CHUNK_BYTES),
        1 => numbers.below(3),
        _ => numbers.below(6000),
    }
}

pub(crate) fn content(file: u64, version: u64) -> Bytes {
    static KNOWN: LazyLock<Mutex<HashMap<(u64, u64), Bytes>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap();
    known.entry((file, version)).or_insert_with(|| new_content(file, version)).clone()
}

fn new_content(file: u64, version: u64) -> Bytes {
    let mut numbers = Numbers::new(file << 32 | version);
    let size = size(file, version) as usize;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        bytes.extend_from_slice(&numbers.next().to_le_bytes());
    }
    bytes.truncate(size);
    bytes.into()
}

pub(crate) fn attr(file: u64, version: u64) -> Attr {
    let mtime = Timestamp::from_secs(1_000_000 + version as i64);
    Attr {
        kind: FileKind::Regular,
        perm: 0o644,
        size: size(file, version),
        uid: 1000,
        gid: 1000,
        atime: mtime,
        mtime,
        inode: None,
    }
}

/// The version of which these are the attributes.
pub(crate) fn version_of(attr: &Attr) -> u64 {
    (attr.mtime.secs - 1_000_000) as u64
}

pub(crate) fn dir(number: u64) -> RemotePath {
    RemotePath::parse(format!("d{number}").as_bytes()).unwrap()
}

pub(crate) fn path(file: u64) -> RemotePath {
    dir(file % DIRS).join(&name(file))
}

fn name(file: u64) -> Name {
    Name::new(format!("f{file}").as_bytes()).unwrap()
}

/// A directory of the first `files` files, all in one version.
pub(crate) fn listing(number: u64, files: u64, version: u64) -> Listing {
    let entries = (0..files).filter(|file| file % DIRS == number);
    let entries: Vec<_> = entries
        .map(|file| DirEntry { name: name(file), attr: Some(attr(file, version)) })
        .collect();
    Listing { entries: Arc::from(entries), seen_at: Timestamp::from_secs(5) }
}

pub(crate) fn link_of(number: u64) -> KnownLink {
    let target = format!("target of {number}").into_bytes();
    KnownLink { target: target.into(), seen_at: Timestamp::from_secs(6) }
}

/// Puts a file's content into the store, in pieces of `piece` bytes; returns the result of
/// `finish`.
pub(crate) fn put_in_pieces(
    store: &Store,
    file: u64,
    version: u64,
    piece: usize,
) -> Result<KnownFile, cache::Unfinished> {
    let (content, attr) = (content(file, version), attr(file, version));
    let partial = store.fetch(&source(), &path(file), Validator::of(&attr));
    let mut at = 0;
    while at < content.len() {
        let end = content.len().min(at + piece);
        partial.write(at as u64, &content.slice(at..end));
        at = end;
    }
    partial.finish(&attr, false)
}

pub(crate) fn put(store: &Store, file: u64, version: u64) -> Option<KnownFile> {
    put_in_pieces(store, file, version, 100_000).ok()
}

/// What the store returned for one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) record: bool,
    pub(crate) content: bool,
}

/// Requests everything about a file, and compares it. Misses are allowed.
pub(crate) fn check_file(store: &Store, file: u64) -> Found {
    let mut found = Found::default();
    let (source, path) = (source(), path(file));
    if let Some(known) = store.attr(&source, &path) {
        assert_eq!(known.attr, attr(file, version_of(&known.attr)), "attributes of {file}");
    }
    let Some(known) = store.file(&source, &path) else { return found };
    found.record = true;
    let version = version_of(&known.attr);
    assert_eq!(known.attr, attr(file, version), "attributes of {file}");
    let right = content(file, version);
    assert_eq!(known.digest, cache::Digest::of(&right), "digest of {file}");
    if let Some(digests) = store.digests(&known.digest) {
        use sha2::Digest as _;
        assert_eq!(digests.sha256[..], sha2::Sha256::digest(&right)[..]);
    }
    let Some(object) = store.object(&known.digest) else { return found };
    assert_eq!(object.len(), right.len() as u64, "length of {file}");
    let Ok(middle) = object.read(right.len() as u64 / 2, 100) else { return found };
    assert_eq!(middle, right.slice(right.len() / 2..(right.len() / 2 + 100).min(right.len())));
    let Ok(all) = object.read(0, right.len() + 1) else { return found };
    assert!(all == right, "content of {file}");
    found.content = true;
    found
}

/// Requests the part of an unfinished fetch, and compares it.
pub(crate) fn check_partial(store: &Store, file: u64, version: u64) -> u64 {
    let right = content(file, version);
    let partial = store.fetch(&source(), &path(file), Validator::of(&attr(file, version)));
    let mut present = 0;
    let mut at = 0;
    while at < right.len() {
        let end = right.len().min(at + CHUNK_BYTES as usize);
        if let Some(bytes) = partial.read(at as u64, end - at) {
            assert!(bytes == right.slice(at..end), "part of {file} at {at}");
            present += (end - at) as u64;
        }
        at = end;
    }
    present
}

/// Requests the listing and the link of a directory, and compares them. Misses are allowed.
pub(crate) fn check_dir(store: &Store, number: u64, files: u64) -> bool {
    if let Some(link) = store.link(&source(), &link_path(number)) {
        assert_eq!(link, link_of(number));
    }
    let Some(known) = store.directory(&source(), &dir(number)) else { return false };
    let version =
        known.entries.first().and_then(|entry| entry.attr).map_or(0, |attr| version_of(&attr));
    assert_eq!(known, listing(number, files, version), "listing of {number}");
    true
}

pub(crate) fn link_path(number: u64) -> RemotePath {
    dir(number).join(&Name::new(b"link").unwrap())
}

/// Whether the long tests are enabled.
pub(crate) fn is_big() -> bool {
    std::env::var_os("SSHOAL_TEST_BIG").is_some()
}

/// Cleans up, after any other process that does so, and returns the bytes that the store takes.
pub(crate) fn settled_bytes(store: &Store) -> u64 {
    loop {
        let report = store.gc();
        if !report.busy {
            return store.status().used_bytes;
        }
        std::thread::yield_now();
    }
}
