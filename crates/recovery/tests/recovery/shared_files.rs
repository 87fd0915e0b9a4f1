//! Programs that share files over one connection, which breaks at random: interleaved call by call,
//! and each file is changed by this client alone.
//!
//! - No operation fails, except a read or write of a file that was replaced while it was open.
//! - A read during which the file was not changed returns the last written content.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Access, AttrChange, Create, Errno, OpenFlags, Remote, RenameMode, Result};
use bytes::Bytes;
use recovery::{Config, Recovering};
use testkit::dice::Dice;
use testkit::interleave::{Interleave, seeds};
use testkit::mem::Options;
use testkit::{FaultyRemote, ManualClock, MemRemote, path};

/// Steps of each program.
const STEPS: usize = 20;

/// Probability in thousandths that the link breaks at a stop, and the longest outage.
const CUTS: u64 = 15;
const LONGEST_OUTAGE: Duration = Duration::from_millis(100);

/// Probability in thousandths that the server's clock advances by a second after a stop.
const TICKS: u64 = 100;

const FILES: [&str; 3] = ["a", "b", "c"];

/// A file that all programs read; one of them writes it.
#[derive(Default)]
struct Shared {
    content: Mutex<Vec<u8>>,
    /// Incremented when a change begins, and when it has ended.
    changes: AtomicU64,
    /// Incremented as `changes`, by changes that replace the file.
    replaced: AtomicU64,
}

struct Program {
    number: usize,
    mount: Arc<Recovering>,
    dice: Dice,
    shared: Arc<[Shared; FILES.len()]>,
}

fn truncating() -> OpenFlags {
    let create = Create::IfAbsent(0o644);
    OpenFlags { create, truncate: true, ..OpenFlags::existing(Access::Write) }
}

impl Program {
    /// Writes to the own file as `cp` does, in place or into a new file.
    async fn write(&mut self) {
        let (name, own) = (FILES[self.number], &self.shared[self.number]);
        let len = 1 + self.dice.below(40) as usize;
        let content = vec![self.dice.any() as u8; len];
        let replaces = self.dice.chance(40);
        let target = path(&if replaces { format!("new-{name}") } else { name.to_owned() });
        own.changes.fetch_add(1, SeqCst);
        own.replaced.fetch_add(u64::from(replaces), SeqCst);
        let written = async {
            let fh = self.mount.open(&target, truncating()).await?.fh;
            let middle = len / 2;
            let (first, second) = tokio::join!(
                biased;
                self.mount.write(fh, 0, Bytes::copy_from_slice(&content[..middle])),
                self.mount.write(fh, middle as u64, Bytes::copy_from_slice(&content[middle..])),
            );
            first.and(second)?;
            if self.dice.chance(50) {
                let (attr, flushed) = tokio::join!(self.mount.fstat(fh), self.mount.flush(fh));
                assert_eq!(attr?.size, len as u64);
                flushed?;
            }
            self.mount.finish(fh).await?;
            match replaces {
                true => self.mount.rename(&target, &path(name), RenameMode::Replace).await,
                false => Ok(()),
            }
        };
        assert_eq!(written.await, Ok(()), "writing {name}, replaced: {replaces}");
        *own.content.lock().unwrap() = content;
        own.replaced.fetch_add(u64::from(replaces), SeqCst);
        own.changes.fetch_add(1, SeqCst);
    }

    /// Sets attributes of the own file, by path or through a handle.
    async fn touch(&mut self) {
        let (name, own) = (FILES[self.number], &self.shared[self.number]);
        let change = match self.dice.chance(50) {
            true => AttrChange {
                perm: Some(0o600 | self.dice.below(64) as u32),
                ..AttrChange::default()
            },
            false => AttrChange {
                mtime: Some(base::Timestamp::from_secs(self.dice.below(1000) as i64)),
                ..AttrChange::default()
            },
        };
        own.changes.fetch_add(1, SeqCst);
        let changed = match self.dice.chance(50) {
            true => self.mount.setattr(&path(name), change).await,
            false => {
                let flags = OpenFlags::existing(Access::ReadWrite);
                let fh = self.mount.open(&path(name), flags).await.unwrap().fh;
                let changed = self.mount.fsetattr(fh, change).await;
                self.mount.close(fh);
                changed
            }
        };
        assert_eq!(changed, Ok(()), "{change:?} of {name}");
        own.changes.fetch_add(1, SeqCst);
    }

    async fn read(&mut self) {
        let which = self.dice.below(FILES.len() as u64) as usize;
        let (name, file) = (FILES[which], &self.shared[which]);
        let (changes, replaced) = (file.changes.load(SeqCst), file.replaced.load(SeqCst));
        let looks = self.dice.below(3);
        let read: Result<_> = async {
            let fh = self.mount.open(&path(name), OpenFlags::existing(Access::Read)).await?.fh;
            let mut read = self.mount.read(fh, 0, 100).await;
            for _ in 0..looks {
                if read.is_ok() {
                    read = self.mount.read(fh, 0, 100).await;
                }
            }
            self.mount.close(fh);
            read.map(|data| data.to_vec())
        }
        .await;
        if !replaced.is_multiple_of(2) || file.replaced.load(SeqCst) != replaced {
            assert!(matches!(read, Ok(_) | Err(Errno::ESTALE)), "{name}: {read:?}");
            return;
        }
        let is_quiet = changes.is_multiple_of(2) && file.changes.load(SeqCst) == changes;
        let read =
            read.unwrap_or_else(|error| panic!("reading {name}: {error}, quiet: {is_quiet}"));
        if is_quiet {
            assert_eq!(read, *file.content.lock().unwrap(), "{name}");
        }
    }

    async fn run(mut self) {
        for _ in 0..STEPS {
            match self.dice.below(10) {
                0..=3 => self.write().await,
                4 => self.touch().await,
                _ => self.read().await,
            }
        }
    }
}

/// Returns how often the link broke.
async fn play(seed: u64) -> usize {
    let clock = ManualClock::at(1_000_000);
    let server =
        Arc::new(MemRemote::with(Options { clock: clock.clone().into(), ..Options::default() }));
    let shared: Arc<[Shared; FILES.len()]> = Arc::default();
    FILES.iter().for_each(|name| server.put_file(name, b""));
    let link = Arc::new(FaultyRemote::new(server.clone()));
    let mount = Recovering::new(link.clone(), Config::default());
    let programs = [0, 1, 2].map(|number| Program {
        number,
        mount: mount.clone(),
        dice: Dice::of_part(seed, "program", number as u64),
        shared: shared.clone(),
    });
    let mut play = Interleave::new(seed);
    play.client("mount", [link.clone()], async move {
        let [one, two, three] = programs.map(Program::run);
        tokio::join!(one, two, three);
    });
    let mut dice = Dice::of_part(seed, "weather", 0);
    let mut cuts = 0;
    play.run(|_| {
        if dice.below(1000) < TICKS {
            clock.advance(1);
        }
        if !link.is_disconnected() && dice.below(1000) < CUTS {
            cuts += 1;
            link.cut();
            let (link, outage) = (link.clone(), dice.time(LONGEST_OUTAGE));
            tokio::spawn(async move {
                tokio::time::sleep(outage).await;
                link.restore_without_handles(Errno::ESTALE);
            });
        }
    })
    .await;
    for (name, shared) in FILES.iter().zip(&*shared) {
        assert_eq!(server.content(name), *shared.content.lock().unwrap(), "seed {seed}: {name}");
    }
    cuts
}

#[tokio::test(start_paused = true)]
async fn programs_that_share_files_do_not_notice_lost_connections() {
    let mut cuts = 0;
    for seed in seeds(150, 20_000) {
        cuts += play(seed).await;
    }
    println!("{cuts} cuts");
}
