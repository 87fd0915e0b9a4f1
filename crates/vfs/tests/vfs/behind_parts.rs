//! Several handles of one file, read and written in parts, while another machine changes it: each
//! page that is read is no older than the promises allow, and no older than the last local write to
//! it.
//!
//! The files are large enough for readahead and write-behind, and the kernel's pages are simulated:
//! kept over opens if it is told to, filled by reads and by writes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Access, Errno};
use bytes::Bytes;
use proptest::prelude::*;
use testkit::MemRemote;
use tokio::time::Instant;
use vfs::{Config, Ino, Invalidate, LookupResult, OpenRequest, Opened, Vfs};

const NAMES: [&str; 2] = ["a", "b"];
const LONG_AGO: i64 = 1_000_000_000;
const PAGE: usize = 4096;

/// Pages of each file: more than twice what is read ahead at first.
const PAGES: usize = 160;

/// Pages that the kernel reads at a time.
const READ_PAGES: usize = 16;

const SLOTS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    /// Another machine writes the whole file in place, or replaces it by another.
    Write(usize),
    Replace(usize),
    Open {
        slot: usize,
        name: usize,
        writes: bool,
    },
    Close(usize),
    /// Continues at the end of the last read through this slot, with this many requests.
    ReadOn(usize, usize),
    /// From this page on.
    Read(usize, usize),
    /// Some pages from this one on, one call for each.
    Put {
        slot: usize,
        page: usize,
        pages: usize,
    },
    Sync(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (name, slot, page) = (0..NAMES.len(), 0..SLOTS, 0..PAGES);
    prop_oneof![
        2 => name.clone().prop_map(Step::Write),
        1 => name.clone().prop_map(Step::Replace),
        5 => (slot.clone(), name, any::<bool>())
            .prop_map(|(slot, name, writes)| Step::Open { slot, name, writes }),
        2 => slot.clone().prop_map(Step::Close),
        6 => (slot.clone(), 1..6usize).prop_map(|(slot, times)| Step::ReadOn(slot, times)),
        2 => (slot.clone(), page.clone()).prop_map(|(slot, page)| Step::Read(slot, page)),
        5 => (slot.clone(), page, 1..40usize)
            .prop_map(|(slot, page, pages)| Step::Put { slot, page, pages }),
        1 => slot.prop_map(Step::Sync),
        2 => prop::sample::select(vec![1u64, 300, 1000, 2500]).prop_map(Step::Wait),
    ]
}

/// The content of page `at` in a version.
fn page(version: u32, at: usize) -> Vec<u8> {
    let mut page = vec![version as u8; PAGE];
    let stamp = [version.to_le_bytes(), (at as u32).to_le_bytes()].concat();
    page[..8].copy_from_slice(&stamp);
    page[PAGE - 8..].copy_from_slice(&stamp);
    page
}

/// The version that a whole page is of.
fn version_of(bytes: &[u8], at: usize) -> u32 {
    let version = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    assert!(bytes == page(version, at), "page {at} is a mix");
    version
}

/// The kernel's page cache.
#[derive(Default)]
struct Pages(Mutex<HashMap<Ino, HashMap<usize, Vec<u8>>>>);

impl Invalidate for Pages {
    fn content(&self, ino: Ino) {
        self.0.lock().unwrap().remove(&ino);
    }
}

impl Pages {
    fn get(&self, ino: Ino, at: usize) -> Option<Vec<u8>> {
        self.0.lock().unwrap().get(&ino)?.get(&at).cloned()
    }

    fn put(&self, ino: Ino, at: usize, page: Vec<u8>) {
        self.0.lock().unwrap().entry(ino).or_default().insert(at, page);
    }

    fn drop_page(&self, ino: Ino, at: usize) {
        if let Some(pages) = self.0.lock().unwrap().get_mut(&ino) {
            pages.remove(&at);
        }
    }
}

/// A version of a page, the time from which it had it, and whether it is a local write.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: Instant,
    version: u32,
    own: bool,
}

/// The history of each page of one file.
struct Log(Vec<Vec<Event>>);

struct Slot {
    name: usize,
    ino: Ino,
    opened: Opened,
    /// Its content existed at this time or later.
    since: Instant,
    writes: bool,
    /// The file behind it, if it is a writer's; others may be deferred.
    file: usize,
    next: usize,
}

struct World {
    remote: Arc<MemRemote>,
    vfs: Vfs,
    pages: Arc<Pages>,
    files: Vec<Log>,
    /// The file that each name has led to, with the time from which it did.
    named: [Vec<(Instant, usize)>; 2],
    versions: u32,
    slots: [Option<Slot>; SLOTS],
    looked_up: Vec<Ino>,
    bound: Duration,
}

impl World {
    fn new(config: Config) -> World {
        let remote = Arc::new(MemRemote::new());
        remote.set_pending(true);
        let bound = config.open_revalidate;
        let vfs = Vfs::new(remote.clone(), config);
        let pages = Arc::<Pages>::default();
        vfs.set_invalidate(pages.clone());
        let mut world = World {
            remote,
            vfs,
            pages,
            files: Vec::new(),
            named: [Vec::new(), Vec::new()],
            versions: 0,
            slots: [None, None, None],
            looked_up: Vec::new(),
            bound,
        };
        (0..NAMES.len()).for_each(|name| world.replace(name));
        world
    }

    fn version(&mut self) -> u32 {
        self.versions += 1;
        self.versions
    }

    fn file(&self, name: usize) -> usize {
        self.named[name].last().unwrap().1
    }

    fn put(&mut self, at: &str, version: u32) {
        let content: Vec<u8> = (0..PAGES).flat_map(|at| page(version, at)).collect();
        self.remote.put_file(at, content);
        self.remote.set_mtime(at, LONG_AGO + i64::from(version));
    }

    fn replace(&mut self, name: usize) {
        let (version, at) = (self.version(), Instant::now());
        self.put("new", version);
        self.remote.move_to("new", NAMES[name]);
        self.files.push(Log(vec![vec![Event { at, version, own: false }]; PAGES]));
        self.named[name].push((at, self.files.len() - 1));
    }

    /// Records versions at the server that were not recorded yet: local writes that reached it
    /// after those of the other machine.
    fn look(&mut self) {
        for (name, text) in NAMES.iter().enumerate() {
            let content = self.remote.content(text);
            let file = self.file(name);
            for (at, bytes) in content.chunks(PAGE).enumerate() {
                let version = version_of(bytes, at);
                let log = &mut self.files[file].0[at];
                if log.last().unwrap().version != version {
                    log.push(Event { at: Instant::now(), version, own: false });
                }
            }
        }
    }

    /// The versions that a page may have when it is read through a slot.
    fn allowed(&self, slot: &Slot, at: usize) -> Vec<u32> {
        let named = &self.named[slot.name];
        let from = named.iter().rposition(|(named_at, _)| *named_at <= slot.since).unwrap_or(0);
        let files = named[from..].iter().map(|(_, file)| *file);
        let events = files.filter(|file| !slot.writes || *file == slot.file).flat_map(|file| {
            let log = &self.files[file].0[at];
            let own = log.iter().rposition(|event| event.own).unwrap_or(0);
            let current = log.iter().rposition(|event| event.at <= slot.since).unwrap_or(0);
            log[own.max(current)..].iter()
        });
        events.map(|event| event.version).collect()
    }

    async fn open(&mut self, name: usize, writes: bool) -> (Ino, Opened) {
        let access = if writes { Access::ReadWrite } else { Access::Read };
        for _ in 0..3 {
            let found = self.vfs.lookup(Ino::ROOT, NAMES[name].as_bytes()).await.unwrap();
            let LookupResult::Found(entry) = found else { panic!("absent") };
            self.looked_up.push(entry.ino);
            match self.vfs.open(entry.ino, OpenRequest::plain(access)).await {
                Ok(opened) => {
                    if !opened.keep_cache {
                        self.pages.content(entry.ino);
                    }
                    return (entry.ino, opened);
                }
                Err(error) => assert_eq!(error, Errno::ESTALE),
            }
        }
        panic!("sent back to its name again and again");
    }

    /// Reads as the kernel does: pages that it does not have are requested. `None` if the file is
    /// another one by now.
    async fn read(&self, slot: &Slot, from: usize) -> Option<Vec<Vec<u8>>> {
        let until = (from + READ_PAGES).min(PAGES);
        let mut pages = Vec::new();
        while from + pages.len() < until {
            let at = from + pages.len();
            let kept = self.pages.get(slot.ino, at).filter(|_| !slot.opened.direct_io);
            if let Some(kept) = kept {
                pages.push(kept);
                continue;
            }
            let len = (until - at) * PAGE;
            let read = self.vfs.read(slot.opened.handle, (at * PAGE) as u64, len as u32).await;
            let data = match read {
                Ok(data) => data.to_vec(),
                Err(error) => {
                    assert_eq!(error, Errno::ESTALE);
                    return None;
                }
            };
            assert_eq!(data.len(), len, "the file has always the same size");
            for (ahead, bytes) in data.chunks(PAGE).enumerate() {
                // Pages that it has by now stay.
                let kept = self.pages.get(slot.ino, at + ahead);
                let page = kept.filter(|_| !slot.opened.direct_io);
                let page = page.unwrap_or_else(|| bytes.to_vec());
                if !slot.opened.direct_io {
                    self.pages.put(slot.ino, at + ahead, page.clone());
                }
                pages.push(page);
            }
        }
        Some(pages)
    }

    async fn check(&mut self, at: usize, from: Option<usize>) {
        let Some(mut slot) = self.slots[at].take() else { return };
        let from = from.unwrap_or(slot.next) % PAGES;
        // A request to the server returns its present content, after the writes in flight.
        if let Some(pages) = self.read(&slot, from).await {
            self.look();
            for (index, bytes) in pages.iter().enumerate() {
                let (page, allowed) = (from + index, self.allowed(&slot, from + index));
                let version = version_of(bytes, page);
                assert!(
                    allowed.contains(&version),
                    "page {page} of {} is {version}, not one of {allowed:?}",
                    NAMES[slot.name]
                );
            }
            slot.next = from + pages.len();
        } else {
            let changed = |file: &usize| {
                let log = &self.files[*file].0[0];
                log.last().unwrap().at > slot.since
            };
            assert!(changed(&self.file(slot.name)), "stale for no reason");
        }
        self.slots[at] = Some(slot);
    }

    async fn close(&mut self, at: usize) {
        if let Some(slot) = self.slots[at].take() {
            self.vfs.flush(slot.opened.handle).await.unwrap();
            self.vfs.release(slot.opened.handle);
            self.look();
        }
    }

    async fn step(&mut self, step: &Step) {
        match *step {
            Step::Write(name) => {
                let (version, at, file) = (self.version(), Instant::now(), self.file(name));
                // Writes in flight reach the server after this; acknowledged ones have.
                self.look();
                self.put(NAMES[name], version);
                for log in &mut self.files[file].0 {
                    log.push(Event { at, version, own: false });
                }
            }
            Step::Replace(name) => self.replace(name),
            Step::Open { slot, name, writes } => {
                self.close(slot).await;
                let since = Instant::now().checked_sub(self.bound).unwrap();
                let (ino, opened) = self.open(name, writes).await;
                let file = self.file(name);
                let opened = Slot { name, ino, opened, since, writes, file, next: 0 };
                self.slots[slot] = Some(opened);
            }
            Step::Close(slot) => self.close(slot).await,
            Step::ReadOn(slot, times) => {
                for _ in 0..times {
                    self.check(slot, None).await;
                }
            }
            Step::Read(slot, page) => self.check(slot, Some(page)).await,
            Step::Put { slot, page: from, pages } => {
                let version = self.version();
                let Some(slot) = self.slots[slot].as_ref().filter(|slot| slot.writes) else {
                    return;
                };
                for at in from..(from + pages).min(PAGES) {
                    let bytes = page(version, at);
                    let data = Bytes::from(bytes.clone());
                    self.vfs.write(slot.opened.handle, (at * PAGE) as u64, data).await.unwrap();
                    if slot.opened.direct_io {
                        self.pages.drop_page(slot.ino, at);
                    } else {
                        self.pages.put(slot.ino, at, bytes);
                    }
                    let event = Event { at: Instant::now(), version, own: true };
                    self.files[slot.file].0[at].push(event);
                }
            }
            Step::Sync(slot) => {
                if let Some(slot) = &self.slots[slot] {
                    match self.vfs.fsync(slot.opened.handle).await {
                        // The open was deferred, and is sent for this.
                        Err(error) => assert!(!slot.writes && error == Errno::ESTALE, "{error}"),
                        Ok(()) => self.look(),
                    }
                }
            }
            Step::Wait(ms) => tokio::time::advance(Duration::from_millis(ms)).await,
        }
    }
}

fn run(config: &Config, steps: &[Step]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut world = World::new(config.clone());
        tokio::time::advance(Duration::from_secs(100)).await;
        for step in steps {
            world.step(step).await;
            // So that times before and after differ.
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        for slot in 0..SLOTS {
            world.close(slot).await;
        }
        world.vfs.end_background();
        for ino in world.looked_up.drain(..) {
            world.vfs.forget(ino, 1);
        }
        let left = (world.vfs.inodes(), world.vfs.handles(), world.remote.open_handles());
        assert_eq!(left, (1, 0, 0));
    });
}

/// A tenth of the runs of other tests of this kind, since the files are large.
fn cases() -> ProptestConfig {
    let lists = std::env::var("SSHOAL_MODEL_LISTS").ok().and_then(|lists| lists.parse().ok());
    let cases = lists.unwrap_or(500) / 10;
    ProptestConfig { cases, failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(cases())]

    /// A2, C1 and C4 with what the defaults promise.
    #[test]
    fn pages_are_no_older_than_their_open(steps in prop::collection::vec(step(), 0..60)) {
        run(&Config { login: Some((0, 0)), ..Config::default() }, &steps);
    }

    /// A2, C1 and C4 if each open sends a request, little is read ahead, and writers wait for room.
    #[test]
    fn pages_are_what_was_there_at_their_open(steps in prop::collection::vec(step(), 0..60)) {
        let config = Config {
            open_revalidate: Duration::ZERO,
            readahead_bytes: 300_000,
            dirty_bytes: 90_000,
            dirty_file_bytes: 50_000,
            ..Config::default()
        };
        run(&config, &steps);
    }
}
