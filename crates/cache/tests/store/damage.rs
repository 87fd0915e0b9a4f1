//! Every flipped bit, every truncated file: the right bytes or a miss, never a panic.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use cache::{CHUNK_BYTES, Sample, SampleLimits, Store, Validator};

use crate::world::{self, Numbers, source};

/// Files with whole contents in the store, in versions that are short, so that each of their bits
/// can be tried: small ones, an empty one, one of two chunks, one of five chunks with a table of
/// its blocks.
static WHOLE: LazyLock<[(u64, u64); 5]> = LazyLock::new(|| {
    let small = |file, most| (file, version_of_size(file, 0..=most));
    let tabled = (TABLED, version_of_size(TABLED, 4 * CHUNK_BYTES..=4 * CHUNK_BYTES + 40_000));
    [small(2, 200), small(3, 200), small(1, 0), small(LARGE, CHUNK_BYTES + 4000), tabled]
});

/// The one of two chunks.
const LARGE: u64 = 7;

/// The one with a table.
const TABLED: u64 = 21;

static TABLED_DIGEST: LazyLock<cache::Digest> =
    LazyLock::new(|| cache::Digest::of(&world::content(TABLED, WHOLE[4].1)));

/// A partial content with one chunk.
const BEGUN: u64 = 14;

const FILES: u64 = 10;

/// Bits that a short run skips between two that it tries: a prime, so that all positions in a byte
/// and in a chunk occur.
const STRIDE: usize = 4099;

fn version_of_size(file: u64, wanted: RangeInclusive<u64>) -> u64 {
    let fits = |version: &u64| wanted.contains(&world::attr(file, *version).size);
    (1..).find(fits).expect("an endless search")
}

/// A directory in memory, if possible: these tests write a hundred thousand files.
fn fast_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The files of a store on the disk.
struct Image {
    dir: PathBuf,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Image {
    fn new(dir: &Path) -> Image {
        let store = world::open_without_digests(dir);
        for (file, version) in *WHOLE {
            let known = world::put(&store, file, version).unwrap();
            store.compute_digests(&known.digest).unwrap();
        }
        let attr = world::attr(BEGUN, 1);
        let begun = store.fetch(&source(), &world::path(BEGUN), Validator::of(&attr));
        begun.write(0, &world::content(BEGUN, 1).slice(..CHUNK_BYTES as usize));
        store.record_directory(&source(), &world::dir(2), &world::listing(2, FILES, 1));
        store.record_link(&source(), &world::link_path(2), &world::link_of(2));
        store.pin(&source(), &world::dir(4)).unwrap();
        store.gc();
        drop((store, begun));
        let mut files = BTreeMap::new();
        collect(dir, &mut files);
        Image { dir: dir.into(), files }
    }

    /// In one step: the last store may still compute a table on a thread of its own.
    fn replace(&self, path: &Path, bytes: &[u8]) {
        let spare = self.dir.join("spare");
        std::fs::write(&spare, bytes).unwrap();
        std::fs::rename(spare, path).unwrap();
    }

    /// Restores what the last test has removed or changed.
    fn restore(&self) {
        for (path, bytes) in &self.files {
            if !std::fs::read(path).is_ok_and(|now| now == *bytes) {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                self.replace(path, bytes);
            }
        }
    }

    /// Requests everything from a store. Panics on wrong data.
    fn check(&self, store: &Store) -> u32 {
        let mut found = 0;
        for (file, _) in *WHOLE {
            found += u32::from(world::check_file(store, file).content);
        }
        check_blocks(store);
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

    /// Whether a file is optional: a table of blocks, which is computed again from its content.
    fn is_made_again(path: &Path) -> bool {
        path.extension() == Some("blocks".as_ref())
    }

    /// Damages one file, and requests everything from a store that is opened then.
    fn damage(&self, path: &Path, damaged: &[u8]) -> u32 {
        self.replace(path, damaged);
        let found = self.check(&world::open_without_digests(&self.dir));
        self.restore();
        found
    }
}

/// Reads a part of each chunk of the content with a table, by its blocks.
fn check_blocks(store: &Store) {
    let right = world::content(TABLED, WHOLE[4].1);
    let Some(object) = store.object(&TABLED_DIGEST) else { return };
    for at in (0..right.len()).step_by(CHUNK_BYTES as usize) {
        let part = at + 4000..right.len().min(at + 4200);
        if let Ok(bytes) = object.read(part.start as u64, part.len()) {
            assert_eq!(bytes, right.slice(part), "a part of the content with a table");
        }
    }
}

/// Runs `work` on several stores at once, with the number of the store and of all.
fn on_all_processors(work: impl Fn(&Image, usize, usize) + Sync) {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let work = &work;
            scope.spawn(move || {
                let dir = fast_dir();
                work(&Image::new(dir.path()), worker, workers);
            });
        }
    });
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

/// All numbers below `bound`, or a sample where there are too many for a short test.
fn sampled(bound: usize, most: usize, numbers: &mut Numbers) -> Vec<usize> {
    if bound <= most {
        return (0..bound).collect();
    }
    (0..most).map(|_| numbers.below(bound as u64) as usize).collect()
}

/// With `SSHOAL_TEST_BIG` each bit of each file but the two long ones, which have tests of their
/// own.
#[test]
fn no_flipped_bit_gives_other_bytes() {
    let all = WHOLE.len() as u32 + 2;
    let (flips, misses, tables) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    on_all_processors(|image, worker, workers| {
        assert_eq!(image.check(&world::open_without_digests(&image.dir)), all);
        image.restore();
        let mut numbers = Numbers::new(5 + worker as u64);
        for (path, bytes) in &image.files {
            let is_long = bytes.len() > 10_000;
            let most = if world::is_big() && !is_long { usize::MAX } else { 60 };
            let bits = sampled(bytes.len() * 8, most, &mut numbers);
            for bit in bits.into_iter().skip(worker).step_by(workers) {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let found = image.damage(path, &flipped);
                if Image::is_made_again(path) {
                    assert_eq!(found, all, "nothing is lost with a table: {path:?}, bit {bit}");
                    tables.fetch_add(1, Relaxed);
                    continue;
                }
                flips.fetch_add(1, Relaxed);
                misses.fetch_add(u64::from(found < all), Relaxed);
            }
        }
        assert_eq!(image.check(&world::open_without_digests(&image.dir)), all, "restored");
    });
    let (flips, misses) = (flips.into_inner(), misses.into_inner());
    // Most bits matter. (Others are in checksums of digests, usage, the tag.)
    assert!(misses * 3 > flips, "{misses} misses in {flips} flips");
    let tables = tables.into_inner();
    assert!(tables > 0);
    println!("{flips} flips, {misses} misses, and {tables} flips in tables");
}

/// With `SSHOAL_TEST_BIG` each bit of a content of two chunks: more than a million. The store stays
/// open, and finds the damage when it opens the content and reads the chunk.
#[test]
fn no_flipped_bit_of_a_large_content_is_read() {
    let stride = if world::is_big() { 1 } else { STRIDE };
    on_all_processors(|image, worker, workers| {
        let store = world::open_without_digests(&image.dir);
        let right = world::content(LARGE, WHOLE[3].1);
        let digest = cache::Digest::of(&right);
        let hex = digest.to_hex();
        let path = image.dir.join("v1/objects").join(&hex[..2]).join(&hex[2..]);
        let about = path.with_file_name(format!("{}.about", &hex[2..]));
        // Hard links to the same files, since the store removes damaged ones.
        let spares = [image.dir.join("content"), image.dir.join("about")];
        std::fs::hard_link(&path, &spares[0]).unwrap();
        std::fs::hard_link(&about, &spares[1]).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&spares[0]).unwrap();
        for bit in (worker * stride..right.len() * 8).step_by(workers * stride) {
            let at = bit / 8;
            file.write_all_at(&[right[at] ^ 1 << (bit % 8)], at as u64).unwrap();
            let object = store.object(&digest).expect("it shows only when it is read");
            let chunk = at as u64 / CHUNK_BYTES * CHUNK_BYTES;
            assert!(object.read(chunk, CHUNK_BYTES as usize).is_err(), "bit {bit}");
            file.write_all_at(&right[at..=at], at as u64).unwrap();
            std::fs::hard_link(&spares[0], &path).unwrap();
            std::fs::hard_link(&spares[1], &about).unwrap();
        }
        let object = store.object(&digest).unwrap();
        assert!(object.read(0, right.len()).unwrap() == right, "as it was");
    });
}

/// With `SSHOAL_TEST_BIG` each bit of a chunk of a partial content.
#[test]
fn no_flipped_bit_of_a_part_is_read() {
    let stride = if world::is_big() { 1 } else { STRIDE };
    on_all_processors(|image, worker, workers| {
        let store = world::open_without_digests(&image.dir);
        let right = world::content(BEGUN, 1).slice(..CHUNK_BYTES as usize);
        let validator = Validator::of(&world::attr(BEGUN, 1));
        let fetch = || store.fetch(&source(), &world::path(BEGUN), validator);
        let mut data = image.files.keys().filter(|path| path.extension() == Some("data".as_ref()));
        let file = std::fs::OpenOptions::new().write(true).open(data.next().unwrap()).unwrap();
        for bit in (worker * stride..right.len() * 8).step_by(workers * stride) {
            let at = bit / 8;
            file.write_all_at(&[right[at] ^ 1 << (bit % 8)], at as u64).unwrap();
            assert_eq!(fetch().read(0, 100), None, "bit {bit}");
            file.write_all_at(&right[at..=at], at as u64).unwrap();
        }
        assert!(fetch().read(0, right.len()) == Some(right), "as it was");
    });
}

/// With `SSHOAL_TEST_BIG` each length of each file, of the long ones some.
#[test]
fn no_cut_file_gives_other_bytes() {
    on_all_processors(|image, worker, workers| {
        let mut numbers = Numbers::new(6 + worker as u64);
        for (path, bytes) in &image.files {
            let is_long = bytes.len() > 10_000;
            let most = match world::is_big() {
                true if !is_long => usize::MAX,
                true => 5000,
                false => 60,
            };
            let lengths = sampled(bytes.len(), most, &mut numbers);
            for len in lengths.into_iter().skip(worker).step_by(workers) {
                image.damage(path, &bytes[..len]);
            }
            // And extended, with zeros or with itself.
            image.damage(path, &[&bytes[..], &[0; 100]].concat());
            image.damage(path, &[&bytes[..], &bytes[..]].concat());
        }
    });
}

#[test]
fn files_that_changed_places_give_no_other_bytes() {
    let dir = fast_dir();
    let image = Image::new(dir.path());
    for path in image.files.keys() {
        for other in image.files.values() {
            image.damage(path, other);
        }
    }
}

#[test]
fn damage_under_an_open_store_is_found_and_repaired() {
    let dir = fast_dir();
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
            for (file, version) in *WHOLE {
                if !world::check_file(&store, file).content {
                    world::put(&store, file, version).unwrap();
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
    // A part of the chunk that was read before, and all of it.
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
fn a_verification_finds_damage_in_unread_contents() {
    let dir = fast_dir();
    let image = Image::new(dir.path());
    for (path, bytes) in &image.files {
        let name = path.to_string_lossy();
        let counts =
            name.contains("/objects/") && !name.ends_with(".about") && !Image::is_made_again(path)
                || name.ends_with("/records")
                || name.ends_with(".data");
        if !counts || bytes.is_empty() {
            continue;
        }
        let mut flipped = bytes.clone();
        flipped[bytes.len().min(2000) / 2] ^= 4;
        std::fs::write(path, &flipped).unwrap();
        let store = world::open_without_digests(dir.path());
        let report = store.verify(|_| {});
        assert!(!report.is_clean(), "{name}");
        image.restore();
    }
}

/// Reads nothing but what it may, changes nothing.
#[test]
fn a_sample_finds_damage_and_leaves_it_where_it_is() {
    let dir = fast_dir();
    let image = Image::new(dir.path());
    let all = SampleLimits { bytes: u64::MAX, time: Duration::from_secs(600) };
    let undamaged = Sample::take(dir.path(), all).unwrap();
    assert!(undamaged.is_clean() && undamaged.directories > 0, "{undamaged:?}");
    assert_eq!(undamaged.contents, WHOLE.len() as u64);
    let little = Sample::take(dir.path(), SampleLimits { bytes: 1, ..all }).unwrap();
    assert_eq!((little.contents, little.directories), (0, 1), "{little:?}");
    for (path, bytes) in &image.files {
        let name = path.to_string_lossy();
        let counts =
            name.contains("/objects/") && !name.ends_with(".about") && !Image::is_made_again(path)
                || name.ends_with("/records");
        if !counts || bytes.is_empty() {
            continue;
        }
        let mut flipped = bytes.clone();
        flipped[bytes.len().min(2000) / 2] ^= 4;
        std::fs::write(path, &flipped).unwrap();
        let sample = Sample::take(dir.path(), all).unwrap();
        let damaged = sample.damaged_contents + sample.damaged_directories;
        assert_eq!(damaged, 1, "{name}: {sample:?}");
        assert_eq!(std::fs::read(path).unwrap(), flipped, "{name}");
        image.restore();
    }
    let nothing = Sample::take(&dir.path().join("missing"), all).unwrap();
    assert_eq!(nothing, Sample::default());
    assert!(!dir.path().join("missing").exists());
}
