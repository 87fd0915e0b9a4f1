//! Random calls, compared with a map that forgets nothing. The store may forget.

use std::collections::HashMap;

use cache::{CHUNK_BYTES, Store, StoreConfig, Validator};
use proptest::prelude::*;

use crate::world::{self, source};

const FILES: u64 = 16;

#[derive(Clone, Debug)]
enum Call {
    Put { file: u64, version: u64, piece: usize },
    Begin { file: u64, version: u64, offset: usize, len: usize },
    Get { file: u64 },
    List { dir: u64, version: u64 },
    Forget { file: u64 },
    ForgetDir { dir: u64 },
    ForgetListing { dir: u64 },
    Clean,
    Reopen,
    LoseIndex,
    Clear,
}

fn call() -> impl Strategy<Value = Call> {
    let (file, version, dir) = (0..FILES, 0..3u64, 0..world::DIRS);
    let size = 6 * CHUNK_BYTES as usize;
    prop_oneof![
        6 => (file.clone(), version.clone(), 700..400_000usize)
            .prop_map(|(file, version, piece)| Call::Put { file, version, piece }),
        3 => (file.clone(), version.clone(), 0..size, 0..size)
            .prop_map(|(file, version, offset, len)| Call::Begin { file, version, offset, len }),
        6 => file.clone().prop_map(|file| Call::Get { file }),
        2 => (dir.clone(), version).prop_map(|(dir, version)| Call::List { dir, version }),
        1 => file.prop_map(|file| Call::Forget { file }),
        1 => dir.clone().prop_map(|dir| Call::ForgetDir { dir }),
        1 => dir.prop_map(|dir| Call::ForgetListing { dir }),
        1 => Just(Call::Clean),
        1 => Just(Call::Reopen),
        1 => Just(Call::LoseIndex),
        1 => Just(Call::Clear),
    ]
}

/// The last records. Absent: none, or forgotten.
#[derive(Default)]
struct Model {
    files: HashMap<u64, u64>,
    listings: HashMap<u64, u64>,
    /// The index was lost: the metadata of the contents may have an older version, or a forgotten
    /// one.
    doubt: bool,
}

impl Model {
    fn forget(&mut self, file: u64) {
        self.files.remove(&file);
        self.listings.remove(&(file % world::DIRS));
    }
}

fn run(calls: &[Call], size_bytes: u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { size_bytes: Some(size_bytes), ..world::config(dir.path()) };
    let mut store = Store::open(config.clone()).unwrap();
    let mut model = Model::default();
    let mut hits = 0;
    for call in calls {
        match *call {
            Call::Put { file, version, piece } => {
                if world::put_in_pieces(&store, file, version, piece).is_ok() {
                    model.files.insert(file, version);
                } else {
                    // The content may have been kept though its record was not.
                    model.files.remove(&file);
                }
            }
            Call::Begin { file, version, offset, len } => begin(&store, file, version, offset, len),
            Call::Get { file } => hits += u64::from(get(&store, &model, file)),
            Call::List { dir, version } => {
                let listing = world::listing(dir, FILES, version);
                store.record_directory(&source(), &world::dir(dir), &listing);
                model.listings.insert(dir, version);
            }
            Call::Forget { file } => {
                store.forget(&source(), &world::path(file));
                model.forget(file);
            }
            Call::ForgetDir { dir } => {
                store.forget(&source(), &world::dir(dir));
                (0..FILES).filter(|file| file % world::DIRS == dir).for_each(|f| model.forget(f));
            }
            Call::ForgetListing { dir } => {
                store.forget_listing(&source(), &world::dir(dir));
                model.listings.remove(&dir);
            }
            Call::Clean => {
                world::settled_bytes(&store);
            }
            Call::Reopen => store = Store::open(config.clone()).unwrap(),
            Call::LoseIndex => {
                world::settled_bytes(&store);
                std::fs::remove_dir_all(dir.path().join("v1/index")).unwrap();
                store = Store::open(config.clone()).unwrap();
                model.listings.clear();
                model.doubt = true;
            }
            Call::Clear => {
                store.clear().unwrap();
                model = Model::default();
            }
        }
    }
    assert_eq!(store.status().damaged, 0);
    assert!(store.verify(|_| {}).is_clean());
    hits
}

fn begin(store: &Store, file: u64, version: u64, offset: usize, len: usize) {
    let content = world::content(file, version);
    let attr = world::attr(file, version);
    let partial = store.fetch(&source(), &world::path(file), Validator::of(&attr));
    let start = content.len().min(offset);
    let end = content.len().min(offset + len);
    partial.write(start as u64, &content.slice(start..end));
    for range in partial.missing(0..content.len() as u64) {
        assert_eq!(partial.read(range.start, 1), None);
    }
    world::check_partial(store, file, version);
}

fn get(store: &Store, model: &Model, file: u64) -> bool {
    let found = world::check_file(store, file);
    let known = store.file(&source(), &world::path(file));
    if let Some(known) = known.filter(|_| !model.doubt) {
        assert_eq!(Some(&world::version_of(&known.attr)), model.files.get(&file), "file {file}");
    }
    let dir = file % world::DIRS;
    world::check_dir(store, dir, FILES);
    if let Some(listing) = store.directory(&source(), &world::dir(dir)) {
        let version = listing.entries[0].attr.map(|attr| world::version_of(&attr));
        assert_eq!(version, model.listings.get(&dir).copied(), "listing of {dir}");
    }
    found.content
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if world::is_big() { 2000 } else { 40 }))]

    #[test]
    fn the_store_matches_its_model(
        calls in prop::collection::vec(call(), 1..60),
        small in any::<bool>(),
    ) {
        run(&calls, if small { 3 << 20 } else { 1 << 30 });
    }
}

/// The model would also hold for a store that never keeps anything.
#[test]
fn a_store_with_room_forgets_nothing() {
    let puts = (0..FILES).map(|file| Call::Put { file, version: 1, piece: 50_000 });
    let gets = (0..FILES).map(|file| Call::Get { file });
    let calls: Vec<_> = puts.chain([Call::Reopen]).chain(gets).collect();
    assert_eq!(run(&calls, 1 << 30), FILES);
}
