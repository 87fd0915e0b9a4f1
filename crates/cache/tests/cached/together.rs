//! Two mounts on one store, with two programs in each, interleaved call by call at the server. Data
//! that is read was in the file since its open began, also while the other mount writes, keeps and
//! evicts; and each content left in the store is one version of the file, whole.
//!
//! The threads that write to the store are not interleaved: a seed repeats the order of the calls
//! as far as that does not depend on them.

use std::sync::Arc;

use base::{Access, Create, Errno, OpenFlags, Remote, RenameMode, Result};
use bytes::Bytes;
use cache::{Cached, CachedConfig, Store, StoreConfig};
use testkit::dice::Dice;
use testkit::history::{History, Version, shown};
use testkit::interleave::{Interleave, seeds};
use testkit::{FaultyRemote, ManualClock, path};

use super::stage::{LONG_AGO, Stage};

const NAMES: [&str; 3] = ["a", "b", "d/a"];

/// Lengths of files in words of eight bytes: within a page, a piece, and several.
const WORDS: [u32; 4] = [2, 700, 20_000, 40_000];

/// Bytes of a read.
const REQUEST: u32 = 128 << 10;

/// Steps of each program.
const STEPS: usize = 16;

/// Space in the store for one or two of the largest files, so that they evict each other.
const TIGHT_BYTES: u64 = 700 << 10;

/// Seeds that run at the same time: each mostly waits for threads of low priority.
const AT_ONCE: u64 = 8;

fn open_store(dir: &std::path::Path, size_bytes: u64) -> Store {
    let config = StoreConfig {
        size_bytes: Some(size_bytes),
        free_bytes: Some(0),
        ..StoreConfig::new(dir.join("store"))
    };
    Store::open(config).unwrap()
}

/// Whether these bytes were at this offset of one of the versions.
fn was_at(offset: usize, bytes: &[u8], asked: usize, versions: &[Version]) -> bool {
    versions.iter().flatten().any(|version| {
        let end = version.len().min(offset + asked);
        version.get(offset.min(end)..end) == Some(bytes)
    })
}

/// A call may fail only if the file has changed since the call began.
fn assert_excused(name: &str, error: Errno, been: &[Version]) {
    let all = || been.iter().map(|it| shown(it.as_ref().map(|it| &it[..]))).collect::<Vec<_>>();
    match error {
        Errno::ENOENT => assert!(been.contains(&None), "{name}: {error}, of {:?}", all()),
        Errno::ESTALE => assert!(been.len() > 1, "{name}: {error}, of {:?}", all()),
        _ => panic!("{name}: {error}, of {:?}", all()),
    }
}

struct Program {
    cached: Arc<Cached>,
    history: Arc<History>,
    dice: Dice,
}

impl Program {
    /// Reads a whole file, in the requests of a mount.
    async fn read(&mut self, name: &str) {
        let begun = self.history.moment();
        if let Err(error) = self.read_since(name, begun).await {
            assert_excused(name, error, &self.history.since(name, begun));
        }
    }

    async fn read_since(&self, name: &str, begun: u64) -> Result<()> {
        let opened = self.cached.open(&path(name), OpenFlags::existing(Access::Read)).await?;
        let been = self.history.since(name, begun);
        let is_size = |version: &Arc<Vec<u8>>| version.len() as u64 == opened.attr.size;
        assert!(been.iter().flatten().any(is_size), "{name} has {} bytes", opened.attr.size);
        let mut offset = 0;
        let end = loop {
            let data = match self.cached.read(opened.fh, offset, REQUEST).await {
                Ok(data) => data.to_vec(),
                Err(error) => break Err(error),
            };
            let been = self.history.since(name, begun);
            let good = was_at(offset as usize, &data, REQUEST as usize, &been);
            let been = been.iter().map(|it| shown(it.as_ref().map(|it| &it[..])));
            let been = been.collect::<Vec<_>>();
            assert!(good, "{name} at {offset}: {}, of {been:?}", shown(Some(&data)));
            offset += data.len() as u64;
            if data.len() < REQUEST as usize {
                break Ok(());
            }
        };
        self.cached.close(opened.fh);
        end
    }

    /// Writes a version, in two pieces; `anew` into a truncated or new file.
    async fn write(&mut self, name: &str, anew: bool) {
        let begun = self.history.moment();
        let words = self.dice.pick(&WORDS);
        let content = Bytes::from(self.history.version(words));
        if let Err(error) = self.write_all(name, anew, content).await {
            assert_excused(name, error, &self.history.since(name, begun));
        }
    }

    async fn write_all(&self, name: &str, anew: bool, content: Bytes) -> Result<()> {
        let flags = OpenFlags { truncate: anew, ..OpenFlags::existing(Access::Write) };
        let create = if anew { Create::IfAbsent(0o644) } else { Create::Never };
        let fh = self.cached.open(&path(name), OpenFlags { create, ..flags }).await?.fh;
        let (first, second) =
            (content.slice(..content.len() / 2), content.slice(content.len() / 2..));
        let middle = first.len() as u64;
        let first = self.cached.write(fh, 0, first).await;
        let second = self.cached.write(fh, middle, second).await;
        self.cached.finish(fh).await.and(first).and(second)
    }

    async fn rename(&mut self, from: &str, to: &str) {
        let begun = self.history.moment();
        let renamed = self.cached.rename(&path(from), &path(to), RenameMode::Replace).await;
        if let Err(error) = renamed {
            assert_excused(from, error, &self.history.since(from, begun));
        }
    }

    async fn remove(&mut self, name: &str) {
        let begun = self.history.moment();
        if let Err(error) = self.cached.unlink(&path(name)).await {
            assert_excused(name, error, &self.history.since(name, begun));
        }
    }

    async fn run(mut self, store: Store) {
        for _ in 0..STEPS {
            let name = self.dice.pick(&NAMES);
            match self.dice.below(20) {
                0..=8 => self.read(name).await,
                9..=11 => self.write(name, true).await,
                12..=13 => self.write(name, false).await,
                14 => {
                    let to = self.dice.pick(&NAMES);
                    self.rename(name, to).await;
                }
                15 => self.remove(name).await,
                16..=18 => self.cached.wait_idle().await,
                _ => drop(store.gc()),
            }
        }
    }
}

/// The content of `name` in the store, read without the server, is one of its versions.
async fn assert_kept_whole(history: &Arc<History>, store: Store, config: &CachedConfig) -> usize {
    let config = CachedConfig { offline: true, ..config.clone() };
    let server = Arc::new(FaultyRemote::new(history.server().clone()));
    let offline = Cached::new(server.clone(), store, config).unwrap();
    let mut whole = 0;
    for name in NAMES {
        let opened = offline.open(&path(name), OpenFlags::existing(Access::Read)).await;
        let Ok(opened) = opened else { continue };
        let data = offline.read(opened.fh, 0, 1 << 20).await;
        offline.close(opened.fh);
        // Perhaps only a part is cached.
        let Ok(data) = data else { continue };
        let data = data.to_vec();
        let ever = history.since(name, 0);
        let is_one = ever.iter().flatten().any(|version| **version == data);
        assert!(is_one, "{name} is kept as {}", shown(Some(&data)));
        whole += 1;
    }
    assert_eq!(server.round_trips(), 0);
    whole
}

/// Returns how many opens were answered from the store, and how many contents were left in it.
async fn play(seed: u64) -> (u64, usize) {
    let stage = Stage::new();
    let history = History::new(&NAMES, ManualClock::at(LONG_AGO).into());
    history.server().put_dir("d");
    history.server().put_file("a", history.version(20_000));
    history.record();
    let size_bytes = if seed.is_multiple_of(3) { TIGHT_BYTES } else { 1 << 30 };
    let shared = open_store(stage.dir.path(), size_bytes);
    let mut play = Interleave::new(seed);
    let mut mounts = Vec::new();
    for number in 0..2u64 {
        // One process with two mounts, or two processes.
        let store = match seed.is_multiple_of(2) {
            true => shared.clone(),
            false => open_store(stage.dir.path(), size_bytes),
        };
        let link = Arc::new(FaultyRemote::new(history.server().clone()));
        let cached = Cached::new(link.clone(), store.clone(), stage.config()).unwrap();
        mounts.push(cached.clone());
        let program = |part| Program {
            cached: cached.clone(),
            history: history.clone(),
            dice: Dice::of_part(seed, "program", 2 * number + part),
        };
        let programs = (program(0), program(1));
        play.client(&format!("mount{number}"), [link], async move {
            tokio::join!(programs.0.run(store.clone()), programs.1.run(store));
        });
    }
    let looked = history.clone();
    play.run(|_| looked.record()).await;
    let hits = mounts.iter().map(|mount| mount.status().hits).sum();
    for mount in mounts {
        mount.wait_idle().await;
    }
    let report = shared.verify(|_| {});
    assert!(report.is_clean(), "seed {seed}: {report:?}");
    (hits, assert_kept_whole(&history, shared, &stage.config()).await)
}

#[test]
fn two_mounts_on_one_store_show_the_state_of_the_server() {
    let seeds = seeds(64, 5000);
    let play_some = |first: u64| {
        let mut sums = (0, 0);
        for seed in seeds.clone().skip(first as usize).step_by(AT_ONCE as usize) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build();
            let (hits, whole) = runtime.unwrap().block_on(play(seed));
            sums = (sums.0 + hits, sums.1 + whole);
        }
        sums
    };
    let sums: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|it| scope.spawn(move || play_some(it))).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let hits: u64 = sums.iter().map(|it| it.0).sum();
    let whole: usize = sums.iter().map(|it| it.1).sum();
    let orders = seeds.end - seeds.start;
    println!("{orders} orders, {hits} opens from the store, {whole} contents left in it");
    // How many opens find their content in the store depends on the speed of the machine.
    assert!(orders == 1 || (hits > 0 && whole > 0), "the store was not used");
}
