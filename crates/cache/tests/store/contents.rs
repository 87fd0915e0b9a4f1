//! Contents: whole, partial, and their digests.

use std::os::unix::fs::MetadataExt;

use bytes::Bytes;
use cache::{CHUNK_BYTES, Digest, Unfinished, Validator};

use crate::world::{self, Found, Numbers};

const WHOLE: Found = Found { record: true, content: true };

#[test]
fn what_was_put_in_is_there_after_a_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    for file in 0..20 {
        let piece = [1, 777, 50_000, 131_072, 1 << 20][file as usize % 5].max(1);
        let piece = if world::content(file, 1).len() > 10_000 { piece.max(777) } else { piece };
        let known = world::put_in_pieces(&store, file, 1, piece).unwrap();
        assert_eq!(known.digest, Digest::of(&world::content(file, 1)));
    }
    for store in [store, world::open(dir.path())] {
        for file in 0..20 {
            assert_eq!(world::check_file(&store, file), WHOLE, "file {file}");
        }
    }
}

#[test]
fn equal_contents_are_kept_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    world::put(&store, 7, 1).unwrap();
    let before = world::settled_bytes(&store);
    // The same content under another name, in one piece and then from a slow fetch.
    let (content, attr) = (world::content(7, 1), world::attr(7, 1));
    let other = world::path(8);
    let partial = store.fetch(&world::source(), &other, Validator::of(&attr));
    partial.write(0, &content);
    let known = partial.finish(&attr, false).unwrap();
    assert_eq!(store.file(&world::source(), &other), Some(known));
    drop(partial);
    let after = world::settled_bytes(&store);
    assert!(after < before + 20_000, "{before} became {after}");
    let listed = store.list();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].files.len(), 2);
}

#[test]
fn a_fetch_continues_where_a_killed_one_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (content, attr) = (Bytes::from(vec![7; 5 * CHUNK_BYTES as usize + 9]), world::attr(0, 1));
    let attr = base::Attr { size: content.len() as u64, ..attr };
    let fetch =
        |store: &cache::Store| store.fetch(&world::source(), &world::path(0), Validator::of(&attr));
    let chunk = |number: u64| {
        content.slice((number * CHUNK_BYTES) as usize..).slice(..CHUNK_BYTES as usize)
    };
    {
        let store = world::open(dir.path());
        let partial = fetch(&store);
        partial.write(2 * CHUNK_BYTES, &chunk(2));
        partial.write(0, &chunk(0));
        // Incomplete: lost with the process.
        partial.write(CHUNK_BYTES, &content.slice(..100));
        assert_eq!(partial.present_bytes(), 2 * CHUNK_BYTES);
    }
    let store = world::open(dir.path());
    let present = store.present_bytes(&world::source(), &world::path(0), Validator::of(&attr));
    assert_eq!(present, 2 * CHUNK_BYTES);
    let partial = fetch(&store);
    let len = content.len() as u64;
    assert_eq!(partial.missing(0..u64::MAX), [CHUNK_BYTES..2 * CHUNK_BYTES, 3 * CHUNK_BYTES..len]);
    let part = partial.missing(10..CHUNK_BYTES + 10);
    assert_eq!(part.first(), Some(&(CHUNK_BYTES..CHUNK_BYTES + 10)));
    assert_eq!(partial.read(5, 10).unwrap(), content.slice(5..15));
    assert_eq!(partial.read(CHUNK_BYTES - 1, 2), None);
    assert_eq!(partial.finish(&attr, false), Err(Unfinished::Missing));
    for missing in partial.missing(0..len) {
        partial.write(missing.start, &content.slice(missing.start as usize..missing.end as usize));
    }
    assert!(partial.is_whole());
    let known = partial.finish(&attr, false).unwrap();
    assert_eq!(known.digest, Digest::of(&content));
    assert_eq!(partial.read(0, content.len()).unwrap(), content);
    assert_eq!(store.object(&known.digest).unwrap().read(0, 1 << 30).unwrap(), content);
    let left = std::fs::read_dir(dir.path().join("v1/partial")).unwrap().count();
    assert_eq!(left, 0, "the files of the fetch are gone");
}

#[test]
fn bytes_may_come_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    let mut numbers = Numbers::new(3);
    let (content, attr) = (world::content(14, 1), world::attr(14, 1));
    let partial = store.fetch(&world::source(), &world::path(14), Validator::of(&attr));
    let mut pieces: Vec<_> = (0..content.len().div_ceil(30_000)).collect();
    while !pieces.is_empty() {
        let at = pieces.swap_remove(numbers.below(pieces.len() as u64) as usize) * 30_000;
        partial.write(at as u64, &content.slice(at..content.len().min(at + 40_000)));
    }
    assert_eq!(partial.finish(&attr, false).unwrap().digest, Digest::of(&content));
    assert_eq!(world::check_file(&store, 14), WHOLE);
}

#[test]
fn two_fetches_of_one_file_share_the_partial_content() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    let (content, attr) = (world::content(0, 1), world::attr(0, 1));
    let fetch = || store.fetch(&world::source(), &world::path(0), Validator::of(&attr));
    let (one, two) = (fetch(), fetch());
    one.write(0, &content.slice(..CHUNK_BYTES as usize));
    assert_eq!(two.present_bytes(), CHUNK_BYTES);
    two.write(CHUNK_BYTES, &content.slice(CHUNK_BYTES as usize..));
    let known = one.finish(&attr, false).unwrap();
    assert_eq!(two.finish(&attr, false), Ok(known));
}

#[test]
fn a_file_that_changed_during_its_fetch_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    for file in [0, 2] {
        let (content, attr) = (world::content(file, 1), world::attr(file, 1));
        let fetch = || store.fetch(&world::source(), &world::path(file), Validator::of(&attr));
        let partial = fetch();
        partial.write(0, &content);
        assert_eq!(partial.finish(&world::attr(file, 2), false), Err(Unfinished::Changed));
        assert_eq!(partial.finish(&attr, false), Err(Unfinished::Missing), "thrown away");
        assert_eq!(fetch().present_bytes(), 0);
        assert_eq!(store.file(&world::source(), &world::path(file)), None);
    }
    assert!(store.list().is_empty());
}

#[test]
fn a_racy_content_is_kept_and_marked() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    let (content, attr) = (world::content(2, 1), world::attr(2, 1));
    let partial = store.fetch(&world::source(), &world::path(2), Validator::of(&attr));
    partial.write(0, &content);
    let known = partial.finish(&attr, true).unwrap();
    assert!(known.racy);
    let read = store.file(&world::source(), &world::path(2)).unwrap();
    assert!(read.racy && read.validator() == Validator::of(&attr));
    assert!(store.object(&read.digest).is_some());
    // Nor does it after the index was lost.
    drop((store, partial));
    std::fs::remove_dir_all(dir.path().join("v1/index")).unwrap();
    assert_eq!(world::open(dir.path()).file(&world::source(), &world::path(2)), None);
}

#[test]
fn the_index_is_made_again_from_the_contents() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    for file in 0..15 {
        world::put(&store, file, 1).unwrap();
    }
    // The later version of a file is valid.
    world::put(&store, 3, 2).unwrap();
    drop(store);
    std::fs::remove_dir_all(dir.path().join("v1/index")).unwrap();
    let store = world::open(dir.path());
    for file in 0..15 {
        assert_eq!(world::check_file(&store, file), WHOLE, "file {file}");
    }
    let known = store.file(&world::source(), &world::path(3)).unwrap();
    assert!(!known.racy && known.validator() == Validator::of(&world::attr(3, 2)));
}

#[test]
fn digests_are_made_once() {
    let dir = tempfile::tempdir().unwrap();
    let with = world::open(dir.path());
    let without = world::open_without_digests(dir.path());
    for file in [3, 7] {
        let known = world::put(&without, file, 1).unwrap();
        assert_eq!(without.digests(&known.digest), None);
        let computed = without.compute_digests(&known.digest).unwrap();
        assert_eq!(without.digests(&known.digest), Some(computed));
        assert_eq!(with.digests(&known.digest), Some(computed), "another open store");
        world::check_file(&with, file);
    }
}

/// The thread that computes them in an idle store is waited for by this test only.
#[test]
fn digests_are_made_when_the_store_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    let known = world::put(&store, 7, 1).unwrap();
    let begun = std::time::Instant::now();
    while store.digests(&known.digest).is_none() {
        assert!(begun.elapsed().as_secs() < 60, "never made");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Where a content was found is known after the store was closed, and before.
#[test]
fn notes_about_contents_are_written_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open_without_digests(dir.path());
    for file in 0..10 {
        world::put(&store, file, 1);
    }
    drop(store);
    std::fs::remove_dir_all(dir.path().join("v1/index")).unwrap();
    let store = world::open_without_digests(dir.path());
    assert!((2..7).all(|file| world::check_file(&store, file).content));
}

#[test]
fn an_open_content_outlives_its_removal() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    let known = world::put(&store, 7, 1).unwrap();
    let object = store.object(&known.digest).unwrap();
    object.verify().unwrap();
    store.clear().unwrap();
    assert!(store.object(&known.digest).is_none());
    assert_eq!(object.read(0, 1 << 30).unwrap(), world::content(7, 1));
    assert_eq!(store.status().damaged, 0);
}

#[test]
fn a_directory_that_was_removed_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let store = world::open(&cache);
    world::put(&store, 7, 1).unwrap();
    std::fs::remove_dir_all(&cache).unwrap();
    assert_eq!(store.file(&world::source(), &world::path(7)), None);
    assert_eq!(world::put(&store, 7, 1), None, "nothing is kept, and nothing fails");
    assert!(store.status().off.is_some());
    assert_eq!(world::check_file(&world::open(&cache), 7), Found::default());
}

#[test]
fn the_store_is_private() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("a/b");
    let store = world::open(&cache);
    world::put(&store, 7, 1).unwrap();
    for private in [cache.clone(), cache.join("v1"), cache.join("v1/objects")] {
        assert_eq!(std::fs::metadata(&private).unwrap().mode() & 0o777, 0o700, "{private:?}");
    }
}
