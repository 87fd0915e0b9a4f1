//! What clients do with the same files, and what must hold for each of them. The clients are either
//! mounts of two machines, or threads of one mount.
//!
//! | rule | promise |
//! |---|---|
//! | a record that was appended and acknowledged is in the file once, whole, and in its order | A8, L3 |
//! | a name that was made with `O_EXCL` was made by one of them | L2 |
//! | a file that is opened after it was closed, or replaced, has what was written | C1, with `open_revalidate=0` |
//!
//! For threads of one mount, which alone changes the files, no call may fail, whatever the others
//! do ([`threads`]).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use testkit::dice::Dice;

use crate::ledger::close;
use crate::tally::Tally;
use threads::Threads;

mod threads;

/// Where all of it is.
const DIR: &str = "shared";

/// Files whose versions are compared, for each client, which is the only one to write them.
const STAMPS: u64 = 2;

/// Length of each version, in bytes: the size tells nothing.
const STAMP_BYTES: usize = 20_000;

/// Longest record: less than what the kernel cuts in two more than once.
const RECORD_BYTES: u64 = 6_000;

/// A client tries for a lock as often, and then says that it belongs to none of them.
const LOCK_TRIES: u32 = 400;

/// Tries of a client that waits for others which wait for the link.
const PATIENT_LOCK_TRIES: u32 = 12_000;

/// A file with versions, all of which one client writes.
#[derive(Default)]
struct Stamp {
    /// Doubled, and 1 more while the next one is written.
    version: AtomicU64,
    /// How often another file was put in its place; in the same way.
    replaced: AtomicU64,
}

/// The state that all clients know, as they are threads of one process.
pub struct Shared<'a> {
    lane: &'static str,
    tally: &'a Tally,
    /// Whether a client has the lock.
    locked: AtomicBool,
    stamps: Vec<Stamp>,
    /// Records by client and number: whether they were acknowledged.
    records: Mutex<BTreeMap<(u64, u64), bool>>,
    /// When all clients use one mount.
    threads: Option<Threads>,
}

impl<'a> Shared<'a> {
    /// So many clients with a mount each.
    pub fn of_clients(lane: &'static str, tally: &'a Tally, clients: u64) -> Shared<'a> {
        Shared {
            lane,
            tally,
            locked: AtomicBool::new(false),
            stamps: (0..clients * STAMPS).map(|_| Stamp::default()).collect(),
            records: Mutex::default(),
            threads: None,
        }
    }

    /// So many clients with one mount.
    pub fn of_threads(lane: &'static str, tally: &'a Tally, clients: u64) -> Shared<'a> {
        let threads = Some(Threads::new(clients));
        Shared { threads, ..Shared::of_clients(lane, tally, clients) }
    }

    /// Makes the directory of it, and takes away what a round before has left: a lock may be one of
    /// a client that was not answered. The stamps are there from the beginning: a name that was
    /// absent is absent for as long as the mount may keep that.
    pub fn prepare(&self, served: &Path) {
        let dir = served.join(DIR);
        fs::create_dir_all(&dir).unwrap();
        let _ = fs::remove_file(dir.join("lock"));
        for stamp in 0..self.stamps.len() {
            let path = dir.join(format!("stamp{stamp}"));
            File::options().append(true).create(true).open(path).unwrap();
        }
        self.prepare_threads(&dir);
    }

    /// Does one thing as a client, in its mount. Nothing breaks while `calm` is held.
    pub fn once(&self, client: u64, mount: &Path, calm: &RwLock<()>, dice: &mut Dice) {
        let dir = mount.join(DIR);
        let kinds = if self.threads.is_some() { 16 } else { 10 };
        let outcome = match dice.below(kinds) {
            0..=3 => self.append(client, &dir, dice),
            4..=5 => self.lock(client, &dir, calm, dice),
            6..=7 => self.write_stamp(client, &dir, dice),
            8..=9 => self.read_stamp(&dir, dice.below(self.stamps.len() as u64)),
            _ => self.in_one_mount(client, &dir, dice),
        };
        if let Err((what, why)) = outcome {
            self.tally.divergence(self.lane, &format!("client {client}, {what}: {why}"));
        }
    }

    /// Appends some records through one descriptor, and has each acknowledged.
    fn append(&self, client: u64, dir: &Path, dice: &mut Dice) -> Outcome {
        let path = dir.join("log");
        let open = || OpenOptions::new().append(true).create(true).open(path);
        let file = named("open of the log", self.tally.call(self.lane, "open", open))?;
        for _ in 0..=dice.below(4) {
            let number = {
                let mut records = self.records.lock().unwrap();
                let last = records.range((client, 0)..(client + 1, 0)).next_back();
                let number = last.map_or(0, |((_, number), _)| number + 1);
                records.insert((client, number), false);
                number
            };
            let text = record(client, number, dice.below(RECORD_BYTES));
            let written =
                self.tally.call(self.lane, "append", || (&file).write_all(text.as_bytes()));
            let synced =
                written.and_then(|()| self.tally.call(self.lane, "fsync", || file.sync_all()));
            match synced {
                Ok(()) => self.records.lock().unwrap().insert((client, number), true),
                Err(error) if self.threads.is_none() && is_doubt(&error) => {
                    // What others have appended meanwhile can hide whether it has arrived (L3,
                    // L4). Then it is an error, and the file is opened again.
                    let _ = close(file);
                    return Ok(());
                }
                Err(error) => return Err(("append", error)),
            };
        }
        named("close of the log", close(file))
    }

    /// Drops a byte of the middle of the log.
    pub fn damage(&self, served: &Path) {
        let log = served.join(DIR).join("log");
        let Ok(mut bytes) = fs::read(&log) else { return };
        if !bytes.is_empty() {
            bytes.remove(bytes.len() / 2);
            fs::write(log, bytes).unwrap();
        }
    }

    /// Compares what is at the server with what was acknowledged. No client has a file open.
    pub fn inspect(&self, served: &Path) {
        let dir = served.join(DIR);
        self.inspect_threads(&dir);
        self.inspect_log(&dir);
    }

    fn inspect_log(&self, dir: &Path) {
        let mut bytes = self.take_rotated(dir);
        let path = dir.join("log");
        bytes.extend(fs::read(&path).unwrap_or_default());
        let text = String::from_utf8_lossy(&bytes);
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        let mut records = std::mem::take(&mut *self.records.lock().unwrap());
        for line in text.lines() {
            let mut numbers = line.split(':').map(str::parse::<u64>);
            let (Some(Ok(client)), Some(Ok(number)), Some(Ok(fill))) =
                (numbers.next(), numbers.next(), numbers.next())
            else {
                self.wrong_record("torn", line);
                continue;
            };
            if record(client, number, fill).trim_end() != line {
                self.wrong_record("torn", line);
            } else if records.remove(&(client, number)).is_none() {
                self.wrong_record("there twice, or never written", line);
            } else if last.insert(client, number).is_some_and(|last| last > number) {
                self.wrong_record("out of order", line);
            }
        }
        for ((client, number), _) in records.into_iter().filter(|(_, acknowledged)| *acknowledged) {
            self.tally.lost_bytes.add(record(client, number, 0).len() as u64);
            self.wrong_record("lost", &format!("{client}:{number}"));
        }
        // The next round begins with a new one.
        let _ = fs::remove_file(path);
    }

    fn wrong_record(&self, what: &str, line: &str) {
        let short: String = line.chars().take(80).collect();
        self.tally.divergence(self.lane, &format!("a record of the log is {what}: {short}"));
    }

    /// Takes the lock that is a file, holds it, and lets it go.
    fn lock(&self, client: u64, dir: &Path, calm: &RwLock<()>, dice: &mut Dice) -> Outcome {
        // In one mount only one caller at a time may make a name, so that the outcome is known.
        let of_one = self.threads.is_some();
        let _calm = (!of_one).then(|| calm.read().unwrap());
        if !of_one {
            // An exclusive create whose answer is lost may take the file of another client for its
            // own (L2 does not promise otherwise). So the connection is made sure of first.
            named("probing the connection", self.probe(client, dir))?;
        }
        let path = dir.join("lock");
        for _ in 0..if of_one { PATIENT_LOCK_TRIES } else { LOCK_TRIES } {
            match self.tally.call(self.lane, "create", || File::create_new(&path)) {
                Ok(file) => {
                    if self.locked.swap(true, Ordering::SeqCst) {
                        self.tally.divergence(self.lane, "two clients have made the lock");
                    }
                    std::thread::sleep(dice.time(Duration::from_millis(10)));
                    let closed = close(file);
                    self.locked.store(false, Ordering::SeqCst);
                    named("close of the lock", closed)?;
                    let removed = self.tally.call(self.lane, "unlink", || fs::remove_file(&path));
                    return named("removal of the lock", removed);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(("making the lock", error)),
            }
        }
        Err(("making the lock", io::Error::other("there is one that no client has made")))
    }

    /// Has the server answer something that nothing cached can.
    fn probe(&self, client: u64, dir: &Path) -> io::Result<()> {
        let path = dir.join(format!("probe{client}"));
        self.tally.call(self.lane, "create", || close(File::create(&path)?))?;
        self.tally.call(self.lane, "unlink", || fs::remove_file(&path))
    }

    /// Writes the next version of one of the client's files, in place or by a new file.
    fn write_stamp(&self, client: u64, dir: &Path, dice: &mut Dice) -> Outcome {
        let stamp = client * STAMPS + dice.below(STAMPS);
        let Stamp { version, replaced } = &self.stamps[stamp as usize];
        let path = dir.join(format!("stamp{stamp}"));
        let next = version.load(Ordering::SeqCst) / 2 + 1;
        let bytes = stamp_content(stamp, next);
        let replaces = dice.chance(50);
        let target = if replaces { dir.join(format!("new{stamp}")) } else { path.clone() };
        version.fetch_add(1, Ordering::SeqCst);
        replaced.fetch_add(u64::from(replaces), Ordering::SeqCst);
        let written = self.tally.call(self.lane, "rewrite", || {
            let mut file = File::create(&target)?;
            file.write_all(&bytes)?;
            close(file)?;
            if replaces { fs::rename(&target, &path) } else { Ok(()) }
        });
        replaced.fetch_add(u64::from(replaces), Ordering::SeqCst);
        match written {
            Ok(()) => version.fetch_add(1, Ordering::SeqCst),
            // Which version it has is not known until it is written again.
            Err(_) => version.swap(0, Ordering::SeqCst),
        };
        named("writing a stamp", written)
    }

    /// Reads a file. If it was not written meanwhile, the last version is read.
    fn read_stamp(&self, dir: &Path, stamp: u64) -> Outcome {
        let Stamp { version, replaced } = &self.stamps[stamp as usize];
        let before = version.load(Ordering::SeqCst);
        let replaced_before = replaced.load(Ordering::SeqCst);
        let mut bytes = Vec::new();
        let read = self.tally.call(self.lane, "read", || {
            File::open(dir.join(format!("stamp{stamp}")))?.read_to_end(&mut bytes)
        });
        let is_quiet = before.is_multiple_of(2) && version.load(Ordering::SeqCst) == before;
        // An open file that has lost its name is lost with its link (L4).
        let is_replaced = !replaced_before.is_multiple_of(2)
            || replaced.load(Ordering::SeqCst) != replaced_before;
        let is_strict = self.threads.is_some() && before > 1 && !is_replaced;
        if is_strict || is_quiet && before > 0 {
            named("reading a stamp", read)?;
        }
        if !is_quiet || before == 0 {
            return Ok(());
        }
        let expected = stamp_content(stamp, before / 2);
        if bytes != expected {
            let wrong = bytes.iter().zip(&expected).filter(|(one, other)| one != other).count();
            self.tally.wrong_bytes.add((wrong + bytes.len().abs_diff(expected.len())) as u64);
            let text = format!(
                "stamp{stamp}: not version {}, but {:?} ({} bytes, {wrong} wrong)",
                before / 2,
                String::from_utf8_lossy(&bytes[..bytes.len().min(24)]),
                bytes.len()
            );
            self.tally.divergence(self.lane, &text);
        }
        Ok(())
    }
}

type Outcome = Result<(), (&'static str, io::Error)>;

fn named<T>(what: &'static str, result: io::Result<T>) -> Result<T, (&'static str, io::Error)> {
    result.map_err(|error| (what, error))
}

/// What an append answers of which it cannot be told whether it has arrived.
fn is_doubt(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ESTALE))
}

fn record(client: u64, number: u64, fill: u64) -> String {
    let byte = char::from(b'a' + (number % 26) as u8);
    format!("{client}:{number}:{fill}:{}\n", byte.to_string().repeat(fill as usize))
}

fn stamp_content(stamp: u64, version: u64) -> Vec<u8> {
    let mut bytes = format!("{stamp} version {version:10}\n").into_bytes();
    let byte = |at: usize| (at as u64).wrapping_mul(17 + version) as u8;
    bytes.extend((bytes.len()..STAMP_BYTES).map(byte));
    bytes
}
