//! Parts of large contents: verified block by block, with checksums that may be missing or damaged.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use cache::{CHUNK_BYTES, Digest, Store, Validator};

use crate::world::{self, Numbers};

/// The unit that is verified.
const BLOCK: usize = 4096;

/// Five chunks, and one that ends in the middle of a block.
const SIZE: usize = 5 * CHUNK_BYTES as usize + 2 * BLOCK + 77;

/// Length of a table entry.
const ENTRY: usize = 272;

struct Kept {
    dir: tempfile::TempDir,
    store: Store,
    content: Bytes,
    digest: Digest,
}

fn content() -> Bytes {
    let mut numbers = Numbers::new(77);
    (0..SIZE).map(|_| numbers.next() as u8).collect::<Vec<_>>().into()
}

fn attr() -> base::Attr {
    base::Attr { size: SIZE as u64, ..world::attr(0, 1) }
}

fn fetch(store: &Store) -> cache::Partial {
    store.fetch(&world::source(), &world::path(0), Validator::of(&attr()))
}

impl Kept {
    fn new() -> Kept {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let store = world::open_without_digests(dir.path());
        let kept = Kept { digest: Digest::of(&content()), content: content(), dir, store };
        kept.put();
        kept
    }

    fn put(&self) {
        let partial = fetch(&self.store);
        for (at, piece) in (0..).step_by(70_000).zip(self.content.chunks(70_000)) {
            partial.write(at, &Bytes::copy_from_slice(piece));
        }
        assert_eq!(partial.finish(&attr(), false).unwrap().digest, self.digest);
    }

    fn path(&self, suffix: &str) -> PathBuf {
        path_of(self.dir.path(), &self.digest, suffix)
    }

    /// Reads a part of a content that is opened for it.
    fn read(&self, offset: usize, len: usize) -> Result<Bytes, cache::Damaged> {
        self.store.object(&self.digest).expect("it is here").read(offset as u64, len)
    }

    #[track_caller]
    fn check(&self, offset: usize, len: usize) {
        let end = SIZE.min(offset + len);
        assert!(self.read(offset, len).unwrap() == self.content.slice(offset..end));
    }
}

fn path_of(dir: &Path, digest: &Digest, suffix: &str) -> PathBuf {
    let hex = digest.to_hex();
    dir.join("v1/objects").join(&hex[..2]).join(format!("{}{suffix}", &hex[2..]))
}

#[test]
fn any_part_is_read_as_it_was_put_in() {
    let kept = Kept::new();
    let object = kept.store.object(&kept.digest).unwrap();
    let mut numbers = Numbers::new(1);
    for _ in 0..2000 {
        let offset = numbers.below(SIZE as u64) as usize;
        let most = [10, 5000, 140_000, 600_000][numbers.below(4) as usize];
        let len = numbers.below(most) as usize;
        let right = kept.content.slice(offset..SIZE.min(offset + len));
        assert!(object.read(offset as u64, len).unwrap() == right, "{len} at {offset}");
        assert!(object.read_now(offset as u64, len).unwrap().unwrap_or(right.clone()) == right);
    }
    assert_eq!(kept.store.status().damaged, 0);
}

/// The bytes beside a part are not read.
#[test]
fn a_part_is_read_without_the_rest_of_its_chunk() {
    let kept = Kept::new();
    let file = std::fs::OpenOptions::new().write(true).open(kept.path("")).unwrap();
    let at = CHUNK_BYTES as usize + 9 * BLOCK + 5;
    file.write_all_at(&[kept.content[at] ^ 1], at as u64).unwrap();
    kept.check(CHUNK_BYTES as usize + 3 * BLOCK + 5, 5 * BLOCK);
    kept.check(CHUNK_BYTES as usize + 10 * BLOCK, 100);
    kept.check(0, CHUNK_BYTES as usize + 9 * BLOCK);
    assert!(kept.read(at - 1, 1).is_err(), "the block is damaged, if not this byte of it");
    assert!(kept.store.object(&kept.digest).is_none(), "thrown away");
    assert!(!kept.path(".blocks").exists(), "with all of it");
    kept.put();
    kept.check(at - 1, 10);
}

/// With `SSHOAL_TEST_BIG` each bit.
#[test]
fn no_flipped_bit_of_a_block_is_read() {
    let kept = Kept::new();
    // No other thread reads it meanwhile, and would remove it, or writes metadata.
    kept.store.compute_digests(&kept.digest).unwrap();
    kept.store.flush();
    let stride = if world::is_big() { 1 } else { 1009 };
    let names = ["", ".about", ".blocks"];
    let spares = names.map(|name| kept.dir.path().join(format!("spare{name}")));
    for (name, spare) in names.iter().zip(&spares) {
        std::fs::copy(kept.path(name), spare).unwrap();
    }
    // Hard links to the same files, since the store removes damaged ones.
    std::fs::remove_file(kept.path("")).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&spares[0]).unwrap();
    for bit in (0..SIZE * 8).step_by(stride) {
        for (name, spare) in names.iter().zip(&spares) {
            let _ = std::fs::remove_file(kept.path(name));
            std::fs::hard_link(spare, kept.path(name)).unwrap();
        }
        let at = bit / 8;
        file.write_all_at(&[kept.content[at] ^ 1 << (bit % 8)], at as u64).unwrap();
        let object = kept.store.object(&kept.digest).unwrap();
        // Another byte of the same block, and one of its ends.
        assert!(object.read((at / BLOCK * BLOCK) as u64, 1).is_err(), "bit {bit}");
        file.write_all_at(&kept.content[at..=at], at as u64).unwrap();
    }
}

/// With `SSHOAL_TEST_BIG` each bit of the table; in any case each of an entry.
#[test]
fn a_damaged_table_is_repaired_and_gives_no_other_bytes() {
    let kept = Kept::new();
    let table = std::fs::read(kept.path(".blocks")).unwrap();
    assert_eq!(table.len(), 6 * ENTRY);
    let entries = if world::is_big() { 0..6 } else { 2..3 };
    for bit in entries.start * ENTRY * 8..entries.end * ENTRY * 8 {
        let mut flipped = table.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(kept.path(".blocks"), &flipped).unwrap();
        let chunk = bit / 8 / ENTRY * CHUNK_BYTES as usize;
        kept.check(chunk + BLOCK - 1, 3);
        assert!(std::fs::read(kept.path(".blocks")).unwrap() == table, "bit {bit}");
    }
    for len in 0..table.len() {
        std::fs::write(kept.path(".blocks"), &table[..len]).unwrap();
        kept.check(5 * CHUNK_BYTES as usize + 1, 10);
        kept.check(len / ENTRY * CHUNK_BYTES as usize + 1, 10);
    }
    // The table of another content, undamaged, and one that is too long.
    let other = world::put(&kept.store, large_file(), 1).unwrap();
    let others = std::fs::read(path_of(kept.dir.path(), &other.digest, ".blocks")).unwrap();
    std::fs::write(kept.path(".blocks"), others).unwrap();
    kept.check(CHUNK_BYTES as usize + 1, 10);
    std::fs::write(kept.path(".blocks"), [&table[..], &table[..]].concat()).unwrap();
    kept.check(CHUNK_BYTES as usize + 1, 10);
    kept.check(0, SIZE);
    assert!(kept.path("").exists());
}

/// A file of the world that is long enough to have a table.
fn large_file() -> u64 {
    (7..).step_by(7).find(|file| world::content(*file, 1).len() > 4 * CHUNK_BYTES as usize).unwrap()
}

/// As an earlier version of this program, or a full disk, has left it.
#[test]
fn a_table_that_is_missing_is_made_as_chunks_are_read() {
    let kept = Kept::new();
    let table = std::fs::read(kept.path(".blocks")).unwrap();
    std::fs::remove_file(kept.path(".blocks")).unwrap();
    kept.check(3 * CHUNK_BYTES as usize + 1, 10);
    let made = std::fs::read(kept.path(".blocks")).unwrap();
    let (holes, entry) = made.split_at(3 * ENTRY);
    assert!(holes.iter().all(|byte| *byte == 0) && entry == &table[3 * ENTRY..4 * ENTRY]);
    // A verification completes it, and does not count that as damage.
    assert!(kept.store.verify(|_| {}).is_clean());
    assert_eq!(std::fs::read(kept.path(".blocks")).unwrap(), table);
    assert_eq!(kept.store.status().damaged, 0);
    let mut flipped = table.clone();
    flipped[7] ^= 1;
    std::fs::write(kept.path(".blocks"), &flipped).unwrap();
    assert_eq!(kept.store.verify(|_| {}).damaged, 0, "the content is not");
    assert_eq!(std::fs::read(kept.path(".blocks")).unwrap(), table);
    assert_eq!(kept.store.status().damaged, 1, "but it is counted");
}

#[test]
fn a_continued_fetch_makes_the_whole_table() {
    let kept = Kept::new();
    let table = std::fs::read(kept.path(".blocks")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for half in [0..3 * CHUNK_BYTES as usize, 3 * CHUNK_BYTES as usize..SIZE] {
        let store = world::open(dir.path());
        let partial = fetch(&store);
        partial.write(half.start as u64, &kept.content.slice(half));
        let _ = partial.finish(&attr(), false);
    }
    let made = std::fs::read(path_of(dir.path(), &kept.digest, ".blocks")).unwrap();
    assert!(made == table);
}

#[test]
fn the_room_of_a_table_is_counted_and_given_back() {
    let kept = Kept::new();
    let with = world::settled_bytes(&kept.store);
    std::fs::remove_file(kept.path(".blocks")).unwrap();
    assert_eq!(world::settled_bytes(&kept.store), with - 4096);
    kept.check(1, 10);
    assert_eq!(kept.store.status().used_bytes, with, "made again");
    assert_eq!(world::settled_bytes(&kept.store), with);
    kept.store.clear().unwrap();
    assert!(!kept.path(".blocks").exists());
    // A table without its content is removed, when it is old enough not to be in the middle of
    // being created.
    let lost = kept.path(".blocks");
    std::fs::create_dir_all(lost.parent().unwrap()).unwrap();
    let file = std::fs::File::create(&lost).unwrap();
    kept.store.gc();
    assert!(lost.exists());
    file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(3600)).unwrap();
    kept.store.gc();
    assert!(!lost.exists());
}
