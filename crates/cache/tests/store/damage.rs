//! Every bit that flips, every file that is cut: the right bytes or a miss, never a panic.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cache::{CHUNK_BYTES, Store, Validator};

use crate::world::{self, Numbers, source};

/// Files whose whole contents are in the store: small ones, an empty one, one of two chunks.
const WHOLE: [u64; 4] = [2, 3, 1, 7];

/// One of which a chunk is there.
const BEGUN: u64 = 14;

const FILES: u64 = 10;

/// A store as it lies on the disk.
struct Image {
    dir: PathBuf,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Image {
    fn new(dir: &Path) -> Image {
        let store = world::open(dir);
        for file in WHOLE {
            world::put(&store, file, 1).unwrap();
        }
        let attr = world::attr(BEGUN, 1);
        let begun = store.fetch(&source(), &world::path(BEGUN), Validator::of(&attr));
        begun.write(0, &world::content(BEGUN, 1).slice(..CHUNK_BYTES as usize));
        store.record_directory(&source(), &world::dir(2), &world::listing(2, FILES, 1));
        store.record_link(&source(), &world::link_path(2), &world::link_of(2));
        store.pin(&source(), &world::dir(4)).unwrap();
        drop((store, begun));
        let mut files = BTreeMap::new();
        collect(dir, &mut files);
        Image { dir: dir.into(), files }
    }

    /// Puts back what the last test has removed or changed.
    fn restore(&self) {
        for (path, bytes) in &self.files {
            if !std::fs::read(path).is_ok_and(|now| now == *bytes) {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, bytes).unwrap();
            }
        }
    }

    /// Asks a store for everything. What is wrong panics there.
    fn check(&self, store: &Store) -> u32 {
        let mut found = 0;
        for file in WHOLE {
            found += u32::from(world::check_file(store, file).content);
        }
        let right = world::content(BEGUN, 1);
        let attr = world::attr(BEGUN, 1);
        let begun = store.fetch(&source(), &world::path(BEGUN), Validator::of(&attr));
        if let Some(bytes) = begun.read(10, 100) {
            assert_eq!(bytes, right.slice(10..110));
            found += 1;
        }
        assert_eq!(begun.read(CHUNK_BYTES, 5), None, "a chunk that was never there");
        found += u32::from(world::check_dir(store, 2, FILES));
        assert!(store.pins().len() <= 1);
        found
    }

    /// Damages one file, and asks a store that is opened then.
    fn damage(&self, path: &Path, damaged: &[u8]) -> u32 {
        std::fs::write(path, damaged).unwrap();
        let found = self.check(&world::open(&self.dir));
        self.restore();
        found
    }
}

fn collect(dir: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            collect(&entry.path(), files);
        } else if kind.is_file() {
            files.insert(entry.path(), std::fs::read(entry.path()).unwrap());
        }
    }
}

/// All numbers below `bound`, or some of them where there are too many for a short test.
fn sampled(bound: usize, most: usize, numbers: &mut Numbers) -> Vec<usize> {
    if bound <= most {
        return (0..bound).collect();
    }
    (0..most).map(|_| numbers.below(bound as u64) as usize).collect()
}

#[test]
fn no_flipped_bit_gives_other_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let image = Image::new(dir.path());
    let all = WHOLE.len() as u32 + 2;
    assert_eq!(image.check(&world::open(dir.path())), all);
    image.restore();
    let mut numbers = Numbers::new(5);
    let (mut flips, mut misses) = (0, 0);
    for (path, bytes) in &image.files {
        let small = bytes.len() < 10_000;
        let most = match world::is_big() {
            true if small => usize::MAX,
            true => 20_000,
            false => 60,
        };
        for bit in sampled(bytes.len() * 8, most, &mut numbers) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            flips += 1;
            misses += u32::from(image.damage(path, &flipped) < all);
        }
    }
    // Most bits count for something. (Others are in checksums of digests, usage, the tag.)
    assert!(misses * 3 > flips, "{misses} misses in {flips} flips");
    assert_eq!(image.check(&world::open(dir.path())), all, "restored");
}

#[test]
fn no_cut_file_gives_other_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let image = Image::new(dir.path());
    let mut numbers = Numbers::new(6);
    for (path, bytes) in &image.files {
        let most = if world::is_big() { 5000 } else { 60 };
        for len in sampled(bytes.len(), most, &mut numbers) {
            image.damage(path, &bytes[..len]);
        }
        // And grown, with zeros or with itself.
        image.damage(path, &[&bytes[..], &[0; 100]].concat());
        image.damage(path, &[&bytes[..], &bytes[..]].concat());
    }
}

#[test]
fn files_that_changed_places_give_no_other_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let image = Image::new(dir.path());
    for path in image.files.keys() {
        for other in image.files.values() {
            image.damage(path, other);
        }
    }
}

#[test]
fn damage_under_an_open_store_is_found_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let image = Image::new(dir.path());
    let store = world::open(dir.path());
    let mut numbers = Numbers::new(9);
    for (path, bytes) in &image.files {
        if !path.to_string_lossy().contains("/objects/") || bytes.is_empty() {
            continue;
        }
        for bit in sampled(bytes.len() * 8, 100, &mut numbers) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(path, &flipped).unwrap();
            for file in WHOLE {
                if !world::check_file(&store, file).content {
                    world::put(&store, file, 1).unwrap();
                    assert!(world::check_file(&store, file).content, "repaired");
                }
            }
        }
    }
    assert!(store.status().damaged > 0);
    assert!(store.verify(|_| {}).is_clean());
}

#[test]
fn damage_under_an_open_content_is_found_by_each_reader() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    let known = world::put(&store, 7, 1).unwrap();
    let right = world::content(7, 1);
    let hex = known.digest.to_hex();
    let path = dir.path().join("v1/objects").join(&hex[..2]).join(&hex[2..]);
    let mut flipped = right.to_vec();
    flipped[100] ^= 1;
    let object = store.object(&known.digest).unwrap();
    assert_eq!(object.read(50, 100).unwrap(), right.slice(50..150));
    std::fs::write(&path, &flipped).unwrap();
    // Both a part of the chunk that was read before, and all of it.
    assert!(object.read(50, 100).is_err());
    assert!(object.read(0, CHUNK_BYTES as usize).is_err());
    assert_eq!(
        object.read(CHUNK_BYTES, 10).unwrap(),
        right.slice(CHUNK_BYTES as usize..).slice(..10)
    );
    assert!(object.verify().is_err());
    assert!(store.object(&known.digest).is_none(), "thrown away");
}

#[test]
fn a_verification_finds_what_nobody_has_read() {
    let dir = tempfile::tempdir().unwrap();
    let image = Image::new(dir.path());
    for (path, bytes) in &image.files {
        let name = path.to_string_lossy();
        let counts = name.contains("/objects/") && !name.ends_with(".about")
            || name.ends_with("/records")
            || name.ends_with(".data");
        if !counts || bytes.is_empty() {
            continue;
        }
        let mut flipped = bytes.clone();
        flipped[bytes.len().min(2000) / 2] ^= 4;
        std::fs::write(path, &flipped).unwrap();
        let store = world::open(dir.path());
        let verified = store.verify(|_| {});
        assert!(!verified.is_clean(), "{name}");
        image.restore();
    }
}
