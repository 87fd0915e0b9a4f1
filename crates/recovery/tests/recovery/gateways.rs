//! Two gateways to one file system. Each may show, for a while, the state before a change through
//! the other one. They are disconnected and reconnected at random, interleaved call by call with
//! two programs that use them through a pool, and with another machine that changes a file of its
//! own.
//!
//! - Each change of a program is executed once, and each result is that of a server without
//!   gateways. A change of a name may end with `EIO` if a gateway was disconnected in the meantime:
//!   the other one may show the state before, and then the outcome is unknown.
//! - The observed state of the other machine's file is at most as old as the lag of a gateway.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use base::{Access, AttrChange, Create, Errno, Fh, OpenFlags, Remote, RenameMode, Result};
use bytes::Bytes;
use recovery::Recovering;
use replicas::{Gateway, Mode, Replicas};
use testkit::dice::Dice;
use testkit::history::{History, shown};
use testkit::interleave::{Interleave, seeds};
use testkit::{Clock, FaultyRemote, Lagging, MemRemote, path};
use tokio::time::Instant;

use super::stage::{Started, poll_once};

type Link = Arc<FaultyRemote<Lagging>>;

/// The names in the directory of each program, and of the file that the other machine changes.
const NAMES: [&str; 3] = ["a", "b", "c"];
const THEIRS: &str = "theirs";

/// Steps of each program.
const STEPS: usize = 25;

/// The longest time that a gateway may show an old state. Each call takes a millisecond.
const LAG: Duration = Duration::from_millis(500);

/// A gateway that is silent for this time is ejected.
const DEADLINE: Duration = Duration::from_millis(200);

/// Probability in thousandths that a gateway is disconnected at a stop, and the longest outage.
const CUTS: u64 = 10;
const LONGEST_OUTAGE: Duration = Duration::from_millis(500);

/// When each version began.
#[derive(Default)]
struct Moments(Mutex<VecDeque<(Instant, u64)>>);

impl Moments {
    fn note(&self, moment: u64) {
        self.0.lock().unwrap().push_back((Instant::now(), moment));
    }

    /// The oldest version that a gateway may still show.
    fn oldest_shown(&self) -> u64 {
        let since = Instant::now().checked_sub(LAG).unwrap();
        let mut moments = self.0.lock().unwrap();
        while moments.get(1).is_some_and(|(at, _)| *at < since) {
            moments.pop_front();
        }
        moments.front().map_or(0, |(_, moment)| *moment)
    }
}

struct Program {
    pool: Arc<Recovering>,
    dir: String,
    dice: Dice,
    /// The expected content of each file.
    files: BTreeMap<&'static str, Vec<u8>>,
    /// A file that stays open.
    open: Option<(&'static str, Fh)>,
    history: Arc<History>,
    moments: Arc<Moments>,
    /// How often a gateway was disconnected.
    cuts: Arc<AtomicUsize>,
}

fn bytes(dice: &mut Dice) -> Vec<u8> {
    let (fill, len) = (dice.any() as u8, 1 + dice.below(30));
    (0..len).map(|at| fill.wrapping_add(at as u8)).collect()
}

/// Writes `data` at `offset`, with zeros in a gap before it.
fn put(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    content.resize(content.len().max(offset + data.len()), 0);
    content[offset..offset + data.len()].copy_from_slice(data);
}

impl Program {
    fn at(&self, name: &str) -> base::RemotePath {
        path(&format!("{}/{name}", self.dir))
    }

    async fn open(&self, name: &str, flags: OpenFlags) -> Fh {
        self.pool.open(&self.at(name), flags).await.unwrap().fh
    }

    fn cuts(&self) -> usize {
        self.cuts.load(Relaxed)
    }

    /// Whether the outcome of a change of a name is unknown, because a gateway was disconnected
    /// during it. The state on the server is expected from then on.
    fn is_in_doubt(&mut self, changed: Result<()>, cuts_before: usize) -> bool {
        if changed.is_ok() {
            return false;
        }
        assert_eq!(changed, Err(Errno::EIO));
        assert!(self.cuts() > cuts_before, "nothing was cut off");
        if let Some((_, fh)) = self.open.take() {
            self.pool.close(fh);
        }
        let server = self.history.server();
        let at = |name: &str| format!("{}/{name}", self.dir);
        let there = NAMES.into_iter().filter(|name| server.exists(&at(name)));
        self.files = there.map(|name| (name, server.content(&at(name)))).collect();
        true
    }

    /// A name that exists.
    fn present(&mut self) -> Option<&'static str> {
        let names: Vec<_> = self.files.keys().copied().collect();
        (!names.is_empty()).then(|| self.dice.pick(&names))
    }

    fn close_if(&mut self, name: &str) {
        if let Some((_, fh)) = self.open.take_if(|(open, _)| *open == name) {
            self.pool.close(fh);
        }
    }

    async fn write_anew(&mut self) {
        let name = self.dice.pick(&NAMES);
        let (first, second) = (bytes(&mut self.dice), bytes(&mut self.dice));
        let create = Create::IfAbsent(0o644);
        let flags = OpenFlags { create, truncate: true, ..OpenFlags::existing(Access::ReadWrite) };
        let fh = self.open(name, flags).await;
        let middle = first.len() as u64;
        let mut content = first.clone();
        content.extend(&second);
        let (one, other) = tokio::join!(
            biased;
            self.pool.write(fh, 0, Bytes::from(first)),
            self.pool.write(fh, middle, Bytes::from(second)),
        );
        assert_eq!((one, other), (Ok(()), Ok(())), "{name}");
        assert_eq!(self.pool.finish(fh).await, Ok(()), "{name}");
        self.files.insert(name, content);
    }

    async fn append(&mut self) {
        let Some(name) = self.present() else { return };
        let data = bytes(&mut self.dice);
        let flags = OpenFlags { append: true, ..OpenFlags::existing(Access::Write) };
        let fh = self.open(name, flags).await;
        let appended = self.pool.write(fh, 0, Bytes::from(data.clone())).await;
        assert_eq!(appended, Ok(()), "{name}");
        assert_eq!(self.pool.finish(fh).await, Ok(()), "{name}");
        self.files.get_mut(name).unwrap().extend(data);
    }

    /// Through the file that stays open, or one that does from now on.
    async fn write_in_place(&mut self) {
        if self.open.is_none() {
            let Some(name) = self.present() else { return };
            let fh = self.open(name, OpenFlags::existing(Access::ReadWrite)).await;
            self.open = Some((name, fh));
        }
        let Some((name, fh)) = self.open else { return };
        let (offset, data) = (self.dice.below(40) as usize, bytes(&mut self.dice));
        let written = self.pool.write(fh, offset as u64, Bytes::from(data.clone())).await;
        assert_eq!(written, Ok(()), "{name}");
        put(self.files.get_mut(name).unwrap(), offset, &data);
        if self.dice.chance(30) {
            assert_eq!(self.pool.fsync(fh).await, Ok(()), "{name}");
        }
        let size = self.pool.fstat(fh).await.map(|attr| attr.size);
        assert_eq!(size, Ok(self.files[name].len() as u64), "{name}");
        if self.dice.chance(50) {
            self.close_if(name);
        }
    }

    async fn read(&mut self) {
        let name = self.dice.pick(&NAMES);
        let Some(expected) = self.files.get(name) else {
            let opened = self.pool.open(&self.at(name), OpenFlags::existing(Access::Read)).await;
            assert_eq!(opened.err(), Some(Errno::ENOENT), "{name}");
            return;
        };
        let fh = self.open(name, OpenFlags::existing(Access::Read)).await;
        let content = self.pool.read(fh, 0, 4096).await.map(|data| data.to_vec());
        self.pool.close(fh);
        assert_eq!(content.as_ref(), Ok(expected), "{}/{name}", self.dir);
    }

    async fn look(&mut self) {
        let name = self.dice.pick(&NAMES);
        let size = self.pool.lstat(&self.at(name)).await.map(|attr| attr.size);
        let expected = self.files.get(name).map(|content| content.len() as u64);
        assert_eq!(size, expected.ok_or(Errno::ENOENT), "{}/{name}", self.dir);
    }

    async fn truncate(&mut self) {
        let Some(name) = self.present() else { return };
        let size = self.dice.below(50);
        let change = AttrChange { size: Some(size), ..AttrChange::default() };
        assert_eq!(self.pool.setattr(&self.at(name), change).await, Ok(()), "{name}");
        self.files.get_mut(name).unwrap().resize(size as usize, 0);
    }

    async fn rename(&mut self) {
        let (Some(from), to) = (self.present(), self.dice.pick(&NAMES)) else { return };
        // Open files without a name are not tested here.
        self.close_if(to);
        // As a kernel does before it changes a name.
        let _ = self.pool.lstat(&self.at(to)).await;
        let cuts = self.cuts();
        let renamed = self.pool.rename(&self.at(from), &self.at(to), RenameMode::Replace).await;
        if self.is_in_doubt(renamed, cuts) {
            return;
        }
        let content = self.files.remove(from).unwrap();
        self.files.insert(to, content);
        if let Some((name, _)) = &mut self.open
            && *name == from
        {
            *name = to;
        }
    }

    async fn remove(&mut self) {
        let Some(name) = self.present() else { return };
        self.close_if(name);
        let _ = self.pool.lstat(&self.at(name)).await;
        let cuts = self.cuts();
        let removed = self.pool.unlink(&self.at(name)).await;
        if !self.is_in_doubt(removed, cuts) {
            self.files.remove(name);
        }
    }

    async fn list(&mut self) {
        let dh = self.pool.opendir(&path(&self.dir)).await.unwrap();
        let mut names = Vec::new();
        while let Some(batch) = self.pool.readdir(dh).await.unwrap() {
            names.extend(batch.iter().map(|entry| entry.name.to_string()));
        }
        self.pool.closedir(dh);
        names.sort();
        assert_eq!(names, self.files.keys().copied().collect::<Vec<_>>(), "{}", self.dir);
    }

    /// Reads the file that another machine changes.
    async fn read_theirs(&mut self) {
        let begun = self.moments.oldest_shown();
        let flags = OpenFlags::existing(Access::Read);
        let read = match self.pool.open(&path(THEIRS), flags).await {
            Ok(opened) => {
                let read = self.pool.read(opened.fh, 0, 4096).await;
                self.pool.close(opened.fh);
                read
            }
            Err(error) => Err(error),
        };
        let been = self.history.since(THEIRS, begun);
        match read {
            Ok(data) => {
                let data = data.to_vec();
                let is_one = been.iter().flatten().any(|version| **version == data);
                let been = been.iter().map(|it| shown(it.as_ref().map(|it| &it[..])));
                let been: Vec<_> = been.collect();
                assert!(is_one, "{}, of {been:?}", shown(Some(&data)));
            }
            Err(error) => assert!(error == Errno::ESTALE && been.len() > 1, "{error}"),
        }
    }

    async fn run(mut self) -> (String, BTreeMap<&'static str, Vec<u8>>) {
        for _ in 0..STEPS {
            match self.dice.below(24) {
                0..=3 => self.write_anew().await,
                4..=6 => self.append().await,
                7..=9 => self.write_in_place().await,
                10..=13 => self.read().await,
                14..=15 => self.look().await,
                16 => self.truncate().await,
                17..=18 => self.rename().await,
                19 => self.remove().await,
                20..=21 => self.list().await,
                _ => self.read_theirs().await,
            }
        }
        if let Some((_, fh)) = self.open.take() {
            assert_eq!(self.pool.finish(fh).await, Ok(()));
        }
        (self.dir, self.files)
    }
}

/// Another machine, which replaces its file.
async fn other_machine(link: Arc<FaultyRemote<MemRemote>>, history: Arc<History>) {
    for words in [3, 3, 9, 3, 9] {
        let create = Create::Exclusive(0o644);
        let flags = OpenFlags { create, ..OpenFlags::existing(Access::Write) };
        let fh = link.open(&path("new"), flags).await.unwrap().fh;
        let content = Bytes::from(history.version(words));
        link.write(fh, 0, content).await.unwrap();
        link.finish(fh).await.unwrap();
        link.rename(&path("new"), &path(THEIRS), RenameMode::Replace).await.unwrap();
    }
}

/// The result of a server in memory, which is ready at once.
fn at_once<T>(mut call: Started<'_, T>) -> T {
    match poll_once(&mut call) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the server takes time"),
    }
}

/// Disconnects gateways for a while.
struct OutageInjector {
    links: [Link; 2],
    dice: Dice,
    cuts: Arc<AtomicUsize>,
}

impl OutageInjector {
    /// A user of the gateway's own machine looks something up, and the gateway caches it.
    fn visit(&mut self) {
        let gateway = self.links[self.dice.below(2) as usize].inner();
        let dir = self.dice.pick(&["0", "1"]);
        let name = path(&format!("{dir}/{}", self.dice.pick(&NAMES)));
        match self.dice.below(8) {
            0 => drop(at_once(gateway.lstat(&name))),
            1 => {
                if let Ok(opened) = at_once(gateway.open(&name, OpenFlags::existing(Access::Read)))
                {
                    let _ = at_once(gateway.read(opened.fh, 0, 4096));
                    gateway.close(opened.fh);
                }
            }
            2 => {
                let listed = at_once(gateway.opendir(&path(dir)));
                listed.into_iter().for_each(|dh| gateway.closedir(dh));
            }
            _ => {}
        }
    }

    fn change(&mut self) {
        let link = &self.links[self.dice.below(2) as usize];
        if link.is_disconnected() || self.dice.below(1000) >= CUTS {
            return;
        }
        self.cuts.fetch_add(1, Relaxed);
        link.cut();
        let (link, outage) = (link.clone(), self.dice.time(LONGEST_OUTAGE));
        tokio::spawn(async move {
            tokio::time::sleep(outage).await;
            link.restore_without_handles(Errno::ESTALE);
        });
    }
}

/// Returns how often a gateway was disconnected.
async fn play(seed: u64) -> usize {
    let history = History::new(&[THEIRS], Clock::System);
    let server = history.server().clone();
    server.put_file(THEIRS, history.version(3));
    server.put_dir("0");
    history.record();
    let gateway = || Arc::new(FaultyRemote::new(Arc::new(Lagging::new(server.clone(), LAG))));
    let links: [Link; 2] = [gateway(), gateway()];
    links.iter().for_each(|link| link.set_write_verifier("the only one"));
    let mode = [Mode::Balance, Mode::Hash, Mode::Failover][seed as usize % 3];
    let config = replicas::Config { mode, deadline: DEADLINE, lag: LAG };
    let named = |link: &Link| Gateway { name: "gateway".to_owned(), remote: link.clone() };
    let pool = Arc::new(Replicas::new(links.iter().map(named).collect(), config).unwrap());
    let pool = Recovering::new(pool, recovery::Config::default());
    let (moments, cuts) = (Arc::<Moments>::default(), Arc::<AtomicUsize>::default());
    let program = |number: u64| Program {
        pool: pool.clone(),
        dir: number.to_string(),
        dice: Dice::of_part(seed, "program", number),
        files: BTreeMap::new(),
        open: None,
        history: history.clone(),
        moments: moments.clone(),
        cuts: cuts.clone(),
    };
    let mut play = Interleave::new(seed);
    let programs = (program(0), program(1));
    let maker = pool.clone();
    play.client("pool", links.clone(), async move {
        // As a kernel does before it creates a name.
        assert_eq!(maker.lstat(&path("1")).await, Err(Errno::ENOENT));
        maker.mkdir(&path("1"), 0o755).await.unwrap();
        let ended = tokio::join!(programs.0.run(), programs.1.run());
        vec![ended.0, ended.1]
    });
    let link = Arc::new(FaultyRemote::new(server.clone()));
    let other = other_machine(link.clone(), history.clone());
    play.client("other", [link], async move {
        other.await;
        Vec::new()
    });
    let dice = Dice::of_part(seed, "injector", 0);
    let mut injector = OutageInjector { links, dice, cuts: cuts.clone() };
    let ends = play.run(|_| {
        history.record();
        moments.note(history.moment());
        injector.visit();
        injector.change();
    });
    let ends = ends.await;
    for (dir, files) in ends.into_iter().flatten().flatten() {
        let names: Vec<_> = files.keys().map(|name| (*name).to_owned()).collect();
        assert_eq!(server.names(&dir), names, "seed {seed}");
        for (name, content) in files {
            assert_eq!(server.content(&format!("{dir}/{name}")), content, "seed {seed}: {name}");
        }
    }
    cuts.load(Relaxed)
}

#[tokio::test(start_paused = true)]
async fn two_lagging_gateways_behave_as_one_server() {
    let mut cuts = 0;
    for seed in seeds(150, 10_000) {
        cuts += play(seed).await;
    }
    println!("{cuts} cuts");
}
