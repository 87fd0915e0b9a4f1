//! The memory after a walk over a large tree: no more inodes than the budget allows, and each takes
//! the estimated bytes.
//!
//! One test, since it measures the memory of this process.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use base::FileKind;
use testkit::MemRemote;
use vfs::{Config, Entry, EntrySink, Eviction, Ino, Invalidate, ListedEntry, LookupResult, Vfs};

const DIRS: usize = 250;
const FILES: usize = 400;

/// Bytes of a name of that length.
const NAME_BYTES: usize = 48;

/// Bytes that `vfs` estimates for an inode.
const COUNTED_BYTES: usize = 420;

/// The inodes that the kernel was requested to forget and has not forgotten yet.
#[derive(Default)]
struct Asked(Mutex<VecDeque<Eviction>>);

impl Invalidate for Asked {
    fn content(&self, _: Ino) {}

    fn evict(&self, inodes: Vec<Eviction>) {
        self.0.lock().unwrap().extend(inodes);
    }
}

/// A kernel that keeps all inodes until it is requested to forget them.
struct Kernel {
    vfs: Vfs,
    asked: Arc<Asked>,
    lookups: HashMap<Ino, u64>,
    /// Number of names that the kernel has below a directory. It cannot forget the directory before
    /// them.
    below: HashMap<Ino, u64>,
}

#[derive(Default)]
struct Names {
    /// The entries with attributes.
    entries: Vec<(Vec<u8>, Entry)>,
    /// All entries, with their numbers.
    names: Vec<(Vec<u8>, u64)>,
    next: u64,
    full: bool,
}

impl EntrySink for Names {
    /// As much as the kernel requests at a time.
    fn has_room(&self, _: &[u8]) -> bool {
        self.names.len() < 200
    }

    fn push(&mut self, entry: ListedEntry<'_>) {
        self.entries.extend(entry.entry.map(|found| (entry.name.to_vec(), found)));
        self.names.push((entry.name.to_vec(), entry.number));
        self.next = entry.next_offset;
        self.full = true;
    }
}

impl Kernel {
    fn new(remote: &Arc<MemRemote>, metadata_bytes: usize) -> Kernel {
        let vfs = Vfs::new(remote.clone(), Config { metadata_bytes, ..Config::default() });
        let asked = Arc::<Asked>::default();
        vfs.set_invalidate(asked.clone());
        Kernel { vfs, asked, lookups: HashMap::new(), below: HashMap::new() }
    }

    fn count(&mut self, parent: Ino, entry: &Entry) {
        let lookups = self.lookups.entry(entry.ino).or_default();
        if *lookups == 0 {
            *self.below.entry(parent).or_default() += 1;
        }
        *lookups += 1;
    }

    /// The entries of a directory that a listing has looked up.
    async fn list(&mut self, dir: Ino) -> Vec<Entry> {
        self.list_names(dir).await.0
    }

    /// The entries of a directory that a listing has looked up, and all names with their numbers.
    async fn list_names(&mut self, dir: Ino) -> (Vec<Entry>, Vec<(Vec<u8>, u64)>) {
        let handle = self.vfs.opendir(dir).await.unwrap();
        let (mut all, mut named) = (Vec::new(), Vec::new());
        let mut offset = 0;
        loop {
            let mut names = Names::default();
            self.vfs.readdir(handle, offset, true, &mut names).await.unwrap();
            if !names.full {
                break;
            }
            offset = names.next;
            named.extend(names.names.into_iter().filter(|(name, _)| !name.starts_with(b".")));
            for (name, entry) in names.entries {
                if name != b"." && name != b".." {
                    self.count(dir, &entry);
                    all.push(entry);
                }
            }
        }
        self.vfs.releasedir(handle);
        (all, named)
    }

    async fn lookup(&mut self, parent: Ino, name: &str) -> Entry {
        match self.vfs.lookup(parent, name.as_bytes()).await.unwrap() {
            LookupResult::Found(entry) => {
                self.count(parent, &entry);
                entry
            }
            LookupResult::Absent(_) => panic!("{name} is absent"),
        }
    }

    /// Forgets the requested inodes, as far as it can.
    fn forget(&mut self) {
        loop {
            let Some(eviction) = self.asked.0.lock().unwrap().pop_front() else { return };
            if self.below.get(&eviction.ino).is_some_and(|below| *below > 0) {
                continue;
            }
            if let Some(lookups) = self.lookups.remove(&eviction.ino) {
                *self.below.get_mut(&eviction.parent).unwrap() -= 1;
                self.vfs.forget(eviction.ino, lookups);
            }
        }
    }
}

/// Bytes of memory of this process.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn a_walk_over_a_large_tree_leaves_no_more_than_there_is_room_for() {
    let remote = Arc::new(MemRemote::new());
    for dir in 0..DIRS {
        remote.put_dir(&format!("dir{dir}"));
        for file in 0..FILES {
            remote.put_file(&format!("dir{dir}/a-file-{file:06}"), "");
        }
    }

    // Without evictions: the memory is what the estimates add up to, and not much more.
    let before = resident_bytes();
    let mut all = Kernel::new(&remote, usize::MAX);
    for dir in all.list(Ino::ROOT).await {
        assert_eq!(all.list(dir.ino).await.len(), FILES);
    }
    assert_eq!(all.vfs.inodes(), 1 + DIRS * (1 + FILES));
    let listed_bytes = all.vfs.stats().listed_bytes;
    // The kernel's side of this test.
    let tables = all.lookups.capacity() * 20;
    let taken = resident_bytes().saturating_sub(before).saturating_sub(listed_bytes + tables);
    // Names are shared with the remote here.
    let each = taken / all.vfs.inodes() + NAME_BYTES;
    eprintln!("{each} bytes an inode");
    assert!(each < COUNTED_BYTES, "{each} bytes an inode");
    assert!(all.asked.0.lock().unwrap().is_empty());
    drop(all);

    // With a budget for a tenth of it.
    let mut few = Kernel::new(&remote, 12 << 20);
    let first = few.lookup(Ino::ROOT, "dir0").await;
    let number = few.lookup(first.ino, "a-file-000007").await.stat.number;
    let mut most = 0;
    assert_eq!(few.list(Ino::ROOT).await.len(), DIRS);
    for dir in 0..DIRS {
        // It may have been forgotten meanwhile.
        let dir = few.lookup(Ino::ROOT, &format!("dir{dir}")).await;
        assert_eq!(few.list_names(dir.ino).await.1.len(), FILES);
        few.lookup(dir.ino, "a-file-000123").await;
        most = most.max(few.vfs.inodes());
        few.forget();
    }
    assert!(most < DIRS * FILES / 3, "{most} inodes at a time");
    // A forgotten inode is found again, with the same number.
    let first = few.lookup(Ino::ROOT, "dir0").await;
    let again = few.lookup(first.ino, "a-file-000007").await;
    assert_eq!((again.stat.number, again.stat.attr.kind), (number, FileKind::Regular));

    // A program that looks up no file gets names only, after a while; the numbers are those of a
    // lookup.
    let mut looked_up = 0;
    for number in 0..DIRS {
        let dir = few.lookup(Ino::ROOT, &format!("dir{number}")).await;
        let (entries, names) = few.list_names(dir.ino).await;
        assert_eq!(names.len(), FILES);
        looked_up += usize::from(!entries.is_empty());
        few.forget();
    }
    assert!(looked_up < DIRS / 2, "{looked_up} of {DIRS} directories");
    let dir = few.lookup(Ino::ROOT, "dir3").await;
    let (entries, names) = few.list_names(dir.ino).await;
    assert!(entries.is_empty());
    let (name, number) = &names[7];
    let found = few.lookup(dir.ino, std::str::from_utf8(name).unwrap()).await;
    assert_eq!(found.stat.number, *number);
    // From then on all are looked up again.
    assert_eq!(few.list(dir.ino).await.len(), FILES);
}
