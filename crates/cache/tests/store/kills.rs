//! Processes that are killed at any moment of a fill or an eviction.

use std::path::Path;
use std::time::Duration;

use crate::processes::{self, LIMIT_BYTES};
use crate::world::{self, Numbers};

#[test]
fn a_store_survives_kills_at_any_moment() {
    let rounds = if world::is_big() { 1000 } else { 50 };
    let dir = tempfile::tempdir().unwrap();
    let mut numbers = Numbers::new(11);
    let (mut hits, mut tables) = (0, 0);
    let enough = |hits: u64, tables: u64| hits > rounds && tables > rounds / 2;
    for round in 0..10 * rounds {
        // On a busy machine most of them are killed before they have written anything.
        if round >= rounds && enough(hits, tables) {
            break;
        }
        let mut children: Vec<_> = (0..1 + round % 2)
            .map(|child| {
                processes::start(dir.path(), 100 + 2 * round + child, Duration::from_secs(60))
            })
            .collect();
        std::thread::sleep(Duration::from_micros(numbers.below(60_000)));
        for child in &mut children {
            child.kill().unwrap();
        }
        for mut child in children {
            child.wait().unwrap();
        }
        let store = processes::open(dir.path());
        tables += tables_in(&dir.path().join("v1/objects"));
        hits += processes::check_all(&store);
        let used = world::settled_bytes(&store);
        assert!(used <= LIMIT_BYTES, "{used} bytes in round {round}");
        // The store works afterwards: it keeps new contents. (Small ones; there is space for a
        // few.)
        let new = 1003 + 7 * round;
        world::put(&store, new, 0).unwrap();
        assert!(world::check_file(&store, new).content);
    }
    assert!(enough(hits, tables), "only {hits} contents were found, and {tables} tables of blocks");
    println!("{rounds} rounds and more: {hits} contents, {tables} tables");
    let store = processes::open(dir.path());
    store.verify(|_| {});
    assert!(store.verify(|_| {}).is_clean(), "what was damaged is gone");
}

/// The number of contents that have a table of their blocks.
fn tables_in(objects: &Path) -> u64 {
    let folders = std::fs::read_dir(objects).unwrap().flatten();
    let names = folders.flat_map(|dir_fd| std::fs::read_dir(dir_fd.path()).into_iter().flatten());
    names.flatten().filter(|entry| entry.path().extension() == Some("blocks".as_ref())).count()
        as u64
}
