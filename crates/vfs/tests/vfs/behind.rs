//! Random changes behind the mount's back, between random calls through it: data that is read is no
//! older than the promises allow, and is one version of the file, never a mix.
//!
//! The simulated kernel does what matters here: it looks names up, sends an open that was answered
//! with `ESTALE` back to the lookup once, and keeps pages over opens if it is told to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Access, Errno, FileKind, RenameMode};
use bytes::Bytes;
use proptest::prelude::*;
use testkit::MemRemote;
use tokio::time::Instant;
use vfs::{
    Config, Entry, EntrySink, Ino, Invalidate, ListedEntry, LookupResult, OpenRequest, Opened, Vfs,
};

const NAMES: [&str; 4] = ["a", "b", "c", "e"];
const LONG_AGO: i64 = 1_000_000_000;

#[derive(Clone, Debug)]
enum Step {
    /// Another machine writes the file in place, replaces it, or removes it.
    Write(usize),
    Replace(usize),
    Remove(usize),
    /// Through the mount.
    Read(usize),
    List,
    OwnWrite(usize),
    OwnRemove(usize),
    OwnRename(usize, usize),
    /// Opened now, read later.
    Open(usize),
    ReadOpen,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    prop_oneof![
        2 => name.clone().prop_map(Step::Write),
        2 => name.clone().prop_map(Step::Replace),
        1 => name.clone().prop_map(Step::Remove),
        6 => name.clone().prop_map(Step::Read),
        2 => Just(Step::List),
        2 => name.clone().prop_map(Step::OwnWrite),
        1 => name.clone().prop_map(Step::OwnRemove),
        1 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::OwnRename(from, to)),
        2 => name.prop_map(Step::Open),
        2 => Just(Step::ReadOpen),
        3 => prop::sample::select(vec![1u64, 300, 700, 1000, 2500]).prop_map(Step::Wait),
    ]
}

/// The kernel's page cache.
#[derive(Default)]
struct Pages(Mutex<HashMap<Ino, Vec<u8>>>);

impl Invalidate for Pages {
    fn content(&self, ino: Ino) {
        self.0.lock().unwrap().remove(&ino);
    }
}

#[derive(Default)]
struct Names {
    entries: Vec<Entry>,
    names: Vec<Vec<u8>>,
    next: u64,
}

impl EntrySink for Names {
    fn has_room(&self, _: &[u8]) -> bool {
        true
    }
    fn push(&mut self, entry: ListedEntry<'_>) {
        if entry.kind == Some(FileKind::Regular) {
            self.names.push(entry.name.to_vec());
        }
        self.entries.extend(entry.entry);
        self.next = entry.next_offset;
    }
}

/// The time from which a name had this content (`None`: absent), and whether the change was local.
type Version = (Instant, Option<Vec<u8>>, bool);

struct World {
    remote: Arc<MemRemote>,
    vfs: Vfs,
    pages: Arc<Pages>,
    /// The history of each name.
    history: HashMap<&'static str, Vec<Version>>,
    versions: u32,
    /// Opened and not read yet: it may be read as any content since the open.
    open: Option<(usize, Ino, Opened, Instant)>,
    looked_up: Vec<Ino>,
    bound: Duration,
}

impl World {
    fn new(config: Config) -> World {
        let remote = Arc::new(MemRemote::new());
        let bound = config.open_revalidate.max(config.negative);
        let vfs = Vfs::new(remote.clone(), config);
        let pages = Arc::<Pages>::default();
        vfs.set_invalidate(pages.clone());
        let start = Instant::now();
        let history = NAMES.map(|name| (name, vec![(start, None, true)])).into();
        let (open, looked_up) = (None, Vec::new());
        World { remote, vfs, pages, history, versions: 0, open, looked_up, bound }
    }

    /// A content that no other version has, of a size that some have too.
    fn version(&mut self) -> Vec<u8> {
        self.versions += 1;
        let letter = format!("{:04}", self.versions).into_bytes();
        letter.repeat(1 + self.versions as usize % 3)
    }

    fn note(&mut self, name: usize, content: Option<Vec<u8>>, own: bool) {
        self.history.get_mut(NAMES[name]).unwrap().push((Instant::now(), content, own));
    }

    /// Whether `name` had `content` at some time since `since`, and at least since the last local
    /// change.
    fn allowed(&self, name: usize, content: Option<&[u8]>, since: Instant) -> bool {
        let history = &self.history[NAMES[name]];
        let own = history.iter().rposition(|(_, _, own)| *own).unwrap_or(0);
        let current = history.iter().rposition(|(at, ..)| *at <= since).unwrap_or(0);
        history[own.max(current)..].iter().any(|(_, was, _)| was.as_deref() == content)
    }

    async fn look_up(&mut self, name: usize) -> Option<Entry> {
        match self.vfs.lookup(Ino::ROOT, NAMES[name].as_bytes()).await.unwrap() {
            LookupResult::Found(entry) => {
                self.looked_up.push(entry.ino);
                Some(entry)
            }
            LookupResult::Absent(_) => None,
        }
    }

    async fn open(&mut self, name: usize, request: OpenRequest) -> Option<(Ino, Opened)> {
        for _ in 0..3 {
            let entry = self.look_up(name).await?;
            match self.vfs.open(entry.ino, request).await {
                Ok(opened) => {
                    if !opened.keep_cache {
                        self.pages.content(entry.ino);
                    }
                    return Some((entry.ino, opened));
                }
                Err(Errno::ESTALE) => {}
                Err(Errno::ENOENT) => return None,
                Err(error) => panic!("{error}"),
            }
        }
        panic!("sent back to its name again and again");
    }

    async fn read(&mut self, ino: Ino, opened: Opened) -> Result<Vec<u8>, Errno> {
        let kept = self.pages.0.lock().unwrap().get(&ino).cloned();
        if let Some(kept) = kept.filter(|_| !opened.direct_io) {
            return Ok(kept);
        }
        let data = self.vfs.read(opened.handle, 0, 1000).await?.to_vec();
        if !opened.direct_io {
            self.pages.0.lock().unwrap().insert(ino, data.clone());
        }
        Ok(data)
    }

    async fn close(&mut self, opened: Opened) {
        self.vfs.flush(opened.handle).await.unwrap();
        self.vfs.release(opened.handle);
    }

    async fn step(&mut self, step: &Step) {
        match *step {
            Step::Write(name) | Step::Replace(name) => {
                let there = self.history[NAMES[name]].last().unwrap().1.is_some();
                let content = self.version();
                let text = String::from_utf8(content.clone()).unwrap();
                let target = NAMES[name];
                if there && matches!(step, Step::Write(_)) {
                    self.remote.put_file(target, &text);
                } else {
                    self.remote.put_file("new", &text);
                    self.remote.move_to("new", target);
                }
                self.remote.set_mtime(target, LONG_AGO + i64::from(self.versions));
                self.note(name, Some(content), false);
            }
            Step::Remove(name) => {
                if self.history[NAMES[name]].last().unwrap().1.is_some() {
                    self.remote.remove(NAMES[name]);
                    self.note(name, None, false);
                }
            }
            Step::Read(name) => {
                let since = Instant::now().checked_sub(self.bound).unwrap();
                let opened = self.open(name, OpenRequest::plain(Access::Read)).await;
                let content = match opened {
                    None => None,
                    Some((ino, opened)) => {
                        let content = self.read(ino, opened).await;
                        self.close(opened).await;
                        match content {
                            // Changed since its deferred open.
                            Err(Errno::ESTALE) => {
                                let last = self.history[NAMES[name]].last().unwrap();
                                assert!(last.0 > since, "{:?}", self.history[NAMES[name]]);
                                return;
                            }
                            content => Some(content.unwrap()),
                        }
                    }
                };
                assert!(
                    self.allowed(name, content.as_deref(), since),
                    "{} read as {:?}: {:?}",
                    NAMES[name],
                    content.map(|content| String::from_utf8(content).unwrap()),
                    self.history[NAMES[name]],
                );
            }
            Step::List => {
                let since = Instant::now().checked_sub(self.bound).unwrap();
                let handle = self.vfs.opendir(Ino::ROOT).await.unwrap();
                let mut names = Names::default();
                loop {
                    let before = names.next;
                    self.vfs.readdir(handle, before, true, &mut names).await.unwrap();
                    if names.next == before {
                        break;
                    }
                }
                self.vfs.releasedir(handle);
                self.looked_up.extend(names.entries.iter().map(|entry| entry.ino));
                for (index, name) in NAMES.iter().enumerate() {
                    let listed = names.names.iter().any(|listed| listed == name.as_bytes());
                    let history = &self.history[name];
                    let own = history.iter().rposition(|(_, _, own)| *own).unwrap_or(0);
                    let from = history.iter().rposition(|(at, ..)| *at <= since).unwrap_or(0);
                    let mut was = history[own.max(from)..].iter();
                    assert!(was.any(|(_, was, _)| was.is_some() == listed), "{index} {listed}");
                }
            }
            Step::OwnWrite(name) => {
                let content = self.version();
                let request = OpenRequest { truncate: true, ..OpenRequest::plain(Access::Write) };
                let opened = match self.open(name, request).await {
                    Some((ino, opened)) => (ino, opened),
                    None => {
                        let name = NAMES[name].as_bytes();
                        let made = self.vfs.create(Ino::ROOT, name, 0o644, false, request);
                        let (entry, opened) = made.await.unwrap();
                        self.looked_up.push(entry.ino);
                        (entry.ino, opened)
                    }
                };
                let data = Bytes::from(content.clone());
                self.vfs.write(opened.1.handle, 0, data).await.unwrap();
                self.close(opened.1).await;
                self.pages.content(opened.0);
                self.note(name, Some(content), true);
            }
            Step::OwnRemove(name) => {
                if self.look_up(name).await.is_some() {
                    let removed = self.vfs.unlink(Ino::ROOT, NAMES[name].as_bytes()).await;
                    assert!(matches!(removed, Ok(()) | Err(Errno::ENOENT)));
                    self.note(name, None, true);
                }
            }
            Step::OwnRename(from, to) => {
                let there = self.history[NAMES[from]].last().unwrap().1.clone();
                if from != to && there.is_some() && self.look_up(from).await.is_some() {
                    let names = [from, to].map(|name| (Ino::ROOT, NAMES[name].as_bytes()));
                    self.vfs.rename(names[0], names[1], RenameMode::Replace).await.unwrap();
                    self.note(to, there, true);
                    self.note(from, None, true);
                }
            }
            Step::Open(name) => {
                if self.open.is_none() {
                    let opened = self.open(name, OpenRequest::plain(Access::Read)).await;
                    let since = Instant::now().checked_sub(self.bound).unwrap();
                    self.open = opened.map(|(ino, opened)| (name, ino, opened, since));
                }
            }
            Step::ReadOpen => {
                if let Some((_, ino, opened, _)) = self.open.take() {
                    let content = self.read(ino, opened).await;
                    self.close(opened).await;
                    // Its name may lead to another file now. It is one version in any case.
                    match content {
                        Ok(content) => {
                            let all = self.history.values().flatten();
                            let mut versions = all.filter_map(|(_, was, _)| was.as_ref());
                            assert!(versions.any(|was| *was == content) || content.is_empty());
                        }
                        Err(error) => assert_eq!(error, Errno::ESTALE),
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
        }
        if let Some((.., opened, _)) = world.open.take() {
            world.close(opened).await;
        }
        world.vfs.end_background();
        for ino in world.looked_up.drain(..) {
            world.vfs.forget(ino, 1);
        }
        let left = (world.vfs.inodes(), world.vfs.handles(), world.remote.open_handles());
        assert_eq!(left, (1, 0, 0));
    });
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("SSHOAL_MODEL_LISTS").ok().and_then(|lists| lists.parse().ok());
    ProptestConfig { cases: cases.unwrap_or(1000), failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(cases())]

    /// C1, C4, C5 with the defaults.
    #[test]
    fn what_is_read_is_no_older_than_a_second(steps in prop::collection::vec(step(), 0..60)) {
        run(&Config { login: Some((0, 0)), ..Config::default() }, &steps);
    }

    /// The same without what is requested ahead.
    #[test]
    fn what_is_read_without_prefetching_is_no_older_than_a_second(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let prefetch = vfs::Prefetch::None;
        run(&Config { login: Some((0, 0)), prefetch, ..Config::default() }, &steps);
    }

    /// C1 at once, if each open sends a request and absent names are not cached.
    #[test]
    fn what_is_read_is_what_is_there(steps in prop::collection::vec(step(), 0..60)) {
        let config = Config {
            open_revalidate: Duration::ZERO,
            negative: Duration::ZERO,
            dirs: vfs::Timeout::fixed(Duration::ZERO),
            ..Config::default()
        };
        run(&config, &steps);
    }
}
