//! Random operations by two mounts on one store, and at the server, with damage to the store and
//! remounts. Each mount must show what the same operations show on a remote without a cache.
//!
//! Time passes before each operation, so that no two contents of a file have the same mtime:
//! nothing is promised for contents that cannot be distinguished. Files are closed before another
//! client changes something, since an open file may show the content of its open.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{
    Access, Attr, AttrChange, Create, Errno, Fh, OpenFlags, Remote, RenameMode, Result, Timestamp,
};
use bytes::Bytes;
use cache::{Cached, CachedConfig, Mode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{FaultyRemote, ManualClock, MemRemote, path};

use super::damage::{files, flip};
use super::stage::{LONG_AGO, Stage, open_store, pattern};

const NAMES: &[&str] = &["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a"];
const SLOTS: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Put { name: &'static str, len: usize, fill: u8 },
    Get { name: &'static str },
    Open { slot: usize, name: &'static str, access: Access },
    Close { slot: usize },
    Read { slot: usize, offset: u64, len: u32 },
    Write { slot: usize, offset: u64, len: usize, fill: u8 },
    Cut { slot: usize, size: u64 },
    Fstat { slot: usize },
    Truncate { name: &'static str, size: u64 },
    Lstat { name: &'static str },
    List { name: &'static str },
    Mkdir { name: &'static str },
    Rmdir { name: &'static str },
    Unlink { name: &'static str },
    Symlink { name: &'static str },
    Readlink { name: &'static str },
    Rename { from: &'static str, to: &'static str },
    Chmod { name: &'static str, perm: u32 },
}

impl Op {
    fn changes(&self) -> bool {
        !matches!(
            self,
            Op::Get { .. }
                | Op::Close { .. }
                | Op::Read { .. }
                | Op::Fstat { .. }
                | Op::Lstat { .. }
                | Op::List { .. }
                | Op::Readlink { .. }
                | Op::Open { access: Access::Read, .. }
        )
    }
}

/// One step of a case.
#[derive(Clone, Debug)]
enum Step {
    One(Op),
    Other(Op),
    Behind(Op),
    /// Waits until all data is kept.
    Settle,
    /// The first mount ends, and another one begins.
    Remount,
    /// A bit of a file of the store flips.
    Damage {
        file: usize,
        place: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let name = || select(NAMES);
    let file = || prop_oneof![3 => select(&["a", "b", "d/a"][..]), 1 => select(NAMES)];
    let slot = || 0..SLOTS;
    let len = || prop_oneof![3 => 0..5000usize, 1 => select(vec![131_071, 131_072, 300_000])];
    let access = prop_oneof![3 => Just(Access::Read), 1 => Just(Access::ReadWrite)];
    prop_oneof![
        8 => (file(), len(), any::<u8>()).prop_map(|(name, len, fill)| Op::Put { name, len, fill }),
        16 => file().prop_map(|name| Op::Get { name }),
        5 => (slot(), name(), access)
            .prop_map(|(slot, name, access)| Op::Open { slot, name, access }),
        2 => slot().prop_map(|slot| Op::Close { slot }),
        8 => (slot(), 0..300_000u64, 0..200_000u32)
            .prop_map(|(slot, offset, len)| Op::Read { slot, offset, len }),
        3 => (slot(), 0..5000u64, 0..3000usize, any::<u8>())
            .prop_map(|(slot, offset, len, fill)| Op::Write { slot, offset, len, fill }),
        1 => (slot(), 0..6000u64).prop_map(|(slot, size)| Op::Cut { slot, size }),
        2 => slot().prop_map(|slot| Op::Fstat { slot }),
        1 => (name(), 0..6000u64).prop_map(|(name, size)| Op::Truncate { name, size }),
        4 => name().prop_map(|name| Op::Lstat { name }),
        4 => prop_oneof![Just(""), name()].prop_map(|name| Op::List { name }),
        3 => name().prop_map(|name| Op::Mkdir { name }),
        1 => name().prop_map(|name| Op::Rmdir { name }),
        2 => name().prop_map(|name| Op::Unlink { name }),
        1 => name().prop_map(|name| Op::Symlink { name }),
        1 => name().prop_map(|name| Op::Readlink { name }),
        3 => (name(), name()).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => (name(), select(vec![0o644u32, 0o600]))
            .prop_map(|(name, perm)| Op::Chmod { name, perm }),
    ]
}

fn steps(alone: bool) -> impl Strategy<Value = Vec<Step>> {
    let others = u32::from(!alone);
    let step = prop_oneof![
        12 => op().prop_map(Step::One),
        1 + 4 * others => op().prop_map(move |op| if alone { Step::One(op) } else { Step::Other(op) }),
        1 + 2 * others => op().prop_map(move |op| if alone { Step::One(op) } else { Step::Behind(op) }),
        4 => Just(Step::Settle),
        1 => Just(Step::Remount),
        1 => (any::<usize>(), any::<u64>()).prop_map(|(file, place)| Step::Damage { file, place }),
    ];
    vec(step, 1..60)
}

/// Attributes without the atime.
type Seen = (base::FileKind, u32, u64, Timestamp);

fn seen(attr: Attr) -> Seen {
    let size = if attr.is_dir() { 0 } else { attr.size };
    (attr.kind, attr.perm, size, attr.mtime)
}

/// The result of an operation, to be compared.
#[derive(PartialEq)]
enum Outcome {
    Done,
    Bytes(Vec<u8>),
    Attr(Seen),
    Names(Vec<(String, Option<Seen>)>),
}

impl Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Bytes(bytes) => {
                write!(f, "{} bytes with {}", bytes.len(), cache::Digest::of(bytes))
            }
            Outcome::Attr(seen) => write!(f, "{seen:?}"),
            Outcome::Names(names) => write!(f, "{names:?}"),
        }
    }
}

type Slots = [Option<Fh>; SLOTS];

/// Runs `op` with the open files of its mount.
async fn apply(remote: &dyn Remote, slots: &mut Slots, op: &Op) -> Result<Outcome> {
    let done = |()| Outcome::Done;
    let read = |access| OpenFlags::existing(access);
    match *op {
        Op::Put { name, len, fill } => {
            let flags = OpenFlags {
                create: Create::IfAbsent(0o644),
                truncate: true,
                ..read(Access::Write)
            };
            let opened = remote.open(&path(name), flags).await?;
            let data = Bytes::from(pattern(fill, len));
            let written = remote.write(opened.fh, 0, data).await;
            remote.close(opened.fh);
            written.map(done)
        }
        Op::Get { name } => {
            let opened = remote.open(&path(name), read(Access::Read)).await?;
            let data = remote.read(opened.fh, 0, 1 << 20).await;
            remote.close(opened.fh);
            let data = data?.to_vec();
            assert_eq!(data.len() as u64, opened.attr.size);
            Ok(Outcome::Bytes(data))
        }
        Op::Open { slot, name, access } => {
            let opened = remote.open(&path(name), read(access)).await?;
            if let Some(fh) = slots[slot].replace(opened.fh) {
                remote.close(fh);
            }
            Ok(Outcome::Attr(seen(opened.attr)))
        }
        Op::Close { slot } => {
            slots[slot].take().into_iter().for_each(|fh| remote.close(fh));
            Ok(Outcome::Done)
        }
        Op::Read { slot, offset, len } => {
            let data = remote.read(slots[slot].ok_or(Errno::EBADF)?, offset, len).await?;
            Ok(Outcome::Bytes(data.to_vec()))
        }
        Op::Write { slot, offset, len, fill } => {
            let data = Bytes::from(pattern(fill, len));
            remote.write(slots[slot].ok_or(Errno::EBADF)?, offset, data).await.map(done)
        }
        Op::Cut { slot, size } => {
            let fh = slots[slot].ok_or(Errno::EBADF)?;
            let change = AttrChange { size: Some(size), ..AttrChange::default() };
            remote.fsetattr(fh, change).await.map(done)
        }
        Op::Fstat { slot } => {
            let attr = remote.fstat(slots[slot].ok_or(Errno::EBADF)?).await?;
            Ok(Outcome::Attr(seen(attr)))
        }
        Op::Truncate { name, size } => {
            let change = AttrChange { size: Some(size), ..AttrChange::default() };
            remote.setattr(&path(name), change).await.map(done)
        }
        Op::Lstat { name } => remote.lstat(&path(name)).await.map(|attr| Outcome::Attr(seen(attr))),
        Op::List { name } => {
            let dh = remote.opendir(&path(name)).await?;
            let mut names = Vec::new();
            while let Some(batch) = remote.readdir(dh).await? {
                names.extend(batch.iter().map(|it| (it.name.to_string(), it.attr.map(seen))));
            }
            remote.closedir(dh);
            names.sort_by(|one, other| one.0.cmp(&other.0));
            Ok(Outcome::Names(names))
        }
        Op::Mkdir { name } => remote.mkdir(&path(name), 0o755).await.map(done),
        Op::Rmdir { name } => remote.rmdir(&path(name)).await.map(done),
        Op::Unlink { name } => remote.unlink(&path(name)).await.map(done),
        Op::Symlink { name } => remote.symlink(b"nowhere", &path(name)).await.map(done),
        Op::Readlink { name } => remote.readlink(&path(name)).await.map(Outcome::Bytes),
        Op::Rename { from, to } => {
            remote.rename(&path(from), &path(to), RenameMode::Replace).await.map(done)
        }
        Op::Chmod { name, perm } => {
            let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
            remote.setattr(&path(name), change).await.map(done)
        }
    }
}

fn close_all(remote: &dyn Remote, slots: &mut Slots) {
    slots.iter_mut().filter_map(Option::take).for_each(|fh| remote.close(fh));
}

/// A mount and its open files, and those of the remote without a cache.
struct Party {
    cached: Arc<Cached>,
    slots: Slots,
    plain_slots: Slots,
}

impl Party {
    fn close(&mut self, plain: &MemRemote) {
        close_all(&*self.cached, &mut self.slots);
        close_all(plain, &mut self.plain_slots);
    }
}

/// Returns how many opens were answered from the store.
async fn check(
    steps: &[Step],
    config: &CachedConfig,
    shows_inodes: bool,
) -> std::result::Result<u64, TestCaseError> {
    let clock = ManualClock::at(LONG_AGO);
    let memory = || {
        let limits = Limits { shows_inodes, ..Limits::default() };
        let options = Options { clock: clock.clone().into(), limits, ..Options::default() };
        Arc::new(MemRemote::with(options))
    };
    let (behind, plain) = (memory(), memory());
    let dir = tempfile::TempDir::new().unwrap();
    let mount = || {
        let inner = Arc::new(FaultyRemote::new(behind.clone()));
        let cached = Cached::new(inner, open_store(dir.path()), config.clone()).unwrap();
        Party { cached, slots: Slots::default(), plain_slots: Slots::default() }
    };
    // So that most operations have an effect.
    for remote in [&behind, &plain] {
        remote.put_dir("d/e");
        remote.put_dir("f");
        for (fill, name) in ["a", "b", "d/a", "d/e/a", "f/a"].iter().enumerate() {
            remote.put_file(name, pattern(fill as u8, 150_000 * (fill % 2) + 100 * fill));
        }
    }
    let (mut one, mut other) = (mount(), mount());
    for (index, step) in steps.iter().enumerate() {
        clock.advance(1);
        let (op, got, expected) = match step {
            Step::One(op) | Step::Other(op) => {
                let (actor, witness) = match step {
                    Step::One(_) => (&mut one, &mut other),
                    _ => (&mut other, &mut one),
                };
                if op.changes() {
                    witness.close(&plain);
                }
                let got = apply(&*actor.cached, &mut actor.slots, op).await;
                (op, got, apply(&*plain, &mut actor.plain_slots, op).await)
            }
            Step::Behind(op) => {
                one.close(&plain);
                other.close(&plain);
                let (mut slots, mut plain_slots) = (Slots::default(), Slots::default());
                let got = apply(&*behind, &mut slots, op).await;
                let expected = apply(&*plain, &mut plain_slots, op).await;
                close_all(&*behind, &mut slots);
                close_all(&*plain, &mut plain_slots);
                (op, got, expected)
            }
            Step::Settle => {
                one.cached.wait_idle().await;
                other.cached.wait_idle().await;
                continue;
            }
            Step::Remount => {
                one.close(&plain);
                // Like the end of a mount: otherwise it could still write what its successor has
                // changed.
                one.cached.shutdown().await;
                one = mount();
                continue;
            }
            Step::Damage { file, place } => {
                let all = files(&dir.path().join("store"));
                flip(&all[file % all.len()], *place);
                continue;
            }
        };
        prop_assert_eq!(got, expected, "step {}: {:?}", index, op);
    }
    one.close(&plain);
    other.close(&plain);
    // Twice: the second mount may find what the first one fetches.
    for round in 0..4 {
        let party = if round % 2 == 0 { &mut one } else { &mut other };
        for name in NAMES {
            for op in [Op::Lstat { name }, Op::Get { name }, Op::List { name }] {
                let got = apply(&*party.cached, &mut party.slots, &op).await;
                let expected = apply(&*plain, &mut party.plain_slots, &op).await;
                prop_assert_eq!(got, expected, "in the end: {:?}", op);
            }
        }
        party.cached.wait_idle().await;
    }
    for party in [&one, &other] {
        party.cached.wait_idle().await;
    }
    // Background fetches close their handles late, after the end of a mount perhaps in a thread of
    // low priority.
    for _ in 0..10_000 {
        if behind.open_handles() == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    prop_assert_eq!(behind.open_handles(), 0);
    let hits = one.cached.status().hits + other.cached.status().hits;
    Ok(hits)
}

/// Lists of steps that run at the same time. Each mostly waits for threads of low priority; on a
/// busy machine one after the other takes hours.
const AT_ONCE: u32 = 8;

fn run(alone: bool, config: &CachedConfig) {
    run_over(alone, config, false);
}

fn run_over(alone: bool, config: &CachedConfig, shows_inodes: bool) {
    // Some thousand operations, each compared.
    let lists = if std::env::var_os("SSHOAL_TEST_BIG").is_some() { 3000 } else { 40 };
    let (hits, checked) = (AtomicU64::new(0), AtomicU64::new(0));
    let try_some = || {
        let cases =
            Config { cases: lists / AT_ONCE, failure_persistence: None, ..Config::default() };
        TestRunner::new(cases).run(&steps(alone), |steps| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            hits.fetch_add(
                runtime.unwrap().block_on(check(&steps, config, shows_inodes))?,
                Relaxed,
            );
            checked.fetch_add(1, Relaxed);
            Ok(())
        })
    };
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(try_some)).collect();
        for run in runs {
            let result = run.join().unwrap_or_else(|why| std::panic::resume_unwind(why));
            result.unwrap_or_else(|why| panic!("{why}"));
        }
    });
    let (hits, checked) = (hits.into_inner(), checked.into_inner());
    assert!(checked >= u64::from(lists), "{checked} lists");
    println!("{checked} lists of steps, {hits} opens from the store");
    let some = config.recent_change > std::time::Duration::from_secs(1 << 30);
    assert!(some || hits > 100, "the store was hardly asked: {hits}");
}

fn config(mode: Mode) -> CachedConfig {
    CachedConfig { mode, ..Stage::new().config() }
}

#[test]
fn two_mounts_show_the_state_of_the_server() {
    run(false, &config(Mode::CloseToOpen));
}

#[test]
fn two_mounts_show_the_state_of_a_server_that_identifies_files() {
    run_over(false, &config(Mode::CloseToOpen), true);
}

#[test]
fn two_mounts_show_the_state_of_recently_changed_files() {
    run(
        false,
        &CachedConfig { recent_change: std::time::Duration::MAX, ..config(Mode::CloseToOpen) },
    );
}

#[test]
fn a_mount_shows_its_own_changes_of_an_immutable_tree() {
    run(true, &config(Mode::Immutable));
}
