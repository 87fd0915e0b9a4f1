//! What several threads of one mount do with the same files besides: they rename files that the
//! others append to, write and open. Only this mount changes the files, so no call may fail, and
//! nothing may be lost (L1 to L4).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use testkit::dice::Dice;

use super::{Outcome, Shared, named};
use crate::ledger::close;

/// The two names of the file of blocks.
const BLOCKS: [&str; 2] = ["blocks", "blocks-moved"];

/// The bytes of a client in that file: not a multiple of a page.
const BLOCK_BYTES: usize = 5_000;

/// Most writes of a client to its block through one descriptor.
const MOST_WRITES: u64 = 4;

/// How often a file that is renamed meanwhile is looked for by its names.
const OPEN_TRIES: u32 = 1_000;

/// See the [module](self).
pub(super) struct Threads {
    /// How often the log was renamed. Held during a rename.
    rotated: Mutex<u64>,
    /// Held while the file of blocks has its other name.
    moves: Mutex<()>,
    /// Of each client the version of its block.
    blocks: Vec<Mutex<u64>>,
}

impl Threads {
    pub(super) fn new(clients: u64) -> Threads {
        let blocks = (0..clients).map(|_| Mutex::new(0)).collect();
        Threads { rotated: Mutex::new(0), moves: Mutex::new(()), blocks }
    }
}

impl Shared<'_> {
    /// Does one thing that only threads of one mount do.
    pub(super) fn in_one_mount(&self, client: u64, dir: &Path, dice: &mut Dice) -> Outcome {
        let threads = self.threads.as_ref().expect("the clients are threads");
        match dice.below(6) {
            0 => self.rotate(threads, dir),
            1..=2 => self.move_blocks(threads, dir, dice),
            _ => self.write_block(threads, client, dir, dice),
        }
    }

    /// Gives the log another name. Records are appended to it by those who have it open.
    fn rotate(&self, threads: &Threads, dir: &Path) -> Outcome {
        let mut rotated = threads.rotated.lock().unwrap();
        let to = dir.join(format!("log.{rotated}"));
        match self.tally.call(self.lane, "rename", || fs::rename(dir.join("log"), to)) {
            Ok(()) => *rotated += 1,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(("rename of the log", error)),
        }
        Ok(())
    }

    /// Gives the file of blocks its other name, and back.
    fn move_blocks(&self, threads: &Threads, dir: &Path, dice: &mut Dice) -> Outcome {
        let _moves = threads.moves.lock().unwrap();
        let [name, other] = BLOCKS.map(|name| dir.join(name));
        for _ in 0..=dice.below(5) {
            for (from, to) in [(&name, &other), (&other, &name)] {
                let renamed = self.tally.call(self.lane, "rename", || fs::rename(from, to));
                named("rename of the blocks", renamed)?;
            }
        }
        Ok(())
    }

    fn open_blocks(&self, dir: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        for name in BLOCKS.iter().cycle().take(OPEN_TRIES as usize) {
            let opened = self.tally.call(self.lane, "open", || options.open(dir.join(name)));
            match opened {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                opened => return opened,
            }
        }
        Err(io::Error::other("it has neither of its names"))
    }

    /// Writes a client's block a few times, and reads it by the same and by another open.
    fn write_block(&self, threads: &Threads, client: u64, dir: &Path, dice: &mut Dice) -> Outcome {
        let mut version = threads.blocks[client as usize].lock().unwrap();
        let file = named("open of the blocks", self.open_blocks(dir))?;
        let offset = client * BLOCK_BYTES as u64;
        for _ in 0..=dice.below(MOST_WRITES) {
            let bytes = block(client, *version + 1);
            let written =
                self.tally.call(self.lane, "pwrite", || file.write_all_at(&bytes, offset));
            named("write of a block", written)?;
            *version += 1;
            if dice.chance(40) {
                named("fsync of a block", self.tally.call(self.lane, "fsync", || file.sync_all()))?;
            }
            if dice.chance(40) {
                self.read_block(&file, client, *version)?;
            }
        }
        named("close of the blocks", close(file))?;
        let again = named("open of the blocks again", self.open_blocks(dir))?;
        self.read_block(&again, client, *version)
    }

    fn read_block(&self, file: &File, client: u64, version: u64) -> Outcome {
        let mut bytes = vec![0; BLOCK_BYTES];
        let offset = client * BLOCK_BYTES as u64;
        let read = self.tally.call(self.lane, "pread", || file.read_exact_at(&mut bytes, offset));
        named("read of a block", read)?;
        self.compare_block(&bytes, client, version);
        Ok(())
    }

    fn compare_block(&self, bytes: &[u8], client: u64, version: u64) {
        let expected = block(client, version);
        let wrong = bytes.iter().zip(&expected).filter(|(one, other)| one != other).count();
        if wrong > 0 || bytes.len() != expected.len() {
            self.tally.wrong_bytes.add((wrong + expected.len() - bytes.len()) as u64);
            let is = String::from_utf8_lossy(&bytes[..bytes.len().min(24)]);
            let text = format!("block {client}: not version {version}, but {is:?}, {wrong} wrong");
            self.tally.divergence(self.lane, &text);
        }
    }

    /// Makes the files that are only renamed and written.
    pub(super) fn prepare_threads(&self, dir: &Path) {
        if self.threads.is_some() {
            let _ = fs::remove_file(dir.join(BLOCKS[1]));
            File::options().create(true).append(true).open(dir.join(BLOCKS[0])).unwrap();
        }
    }

    /// Compares the blocks with what was written last.
    pub(super) fn inspect_threads(&self, dir: &Path) {
        let Some(threads) = &self.threads else { return };
        let mut bytes = Vec::new();
        match File::open(dir.join(BLOCKS[0])) {
            Ok(mut file) => drop(file.read_to_end(&mut bytes).unwrap()),
            Err(why) => self.tally.divergence(self.lane, &format!("the blocks: {why}")),
        }
        for (client, version) in threads.blocks.iter().enumerate() {
            let (version, at) = (*version.lock().unwrap(), client * BLOCK_BYTES);
            if version > 0 {
                let end = bytes.len().min(at + BLOCK_BYTES);
                self.compare_block(bytes.get(at..end).unwrap_or_default(), client as u64, version);
            }
        }
    }

    /// The content of the log under its former names, which are removed.
    pub(super) fn take_rotated(&self, dir: &Path) -> Vec<u8> {
        let Some(threads) = &self.threads else { return Vec::new() };
        let mut rotated = threads.rotated.lock().unwrap();
        let mut bytes = Vec::new();
        for number in 0..std::mem::take(&mut *rotated) {
            let path = dir.join(format!("log.{number}"));
            match fs::read(&path).and_then(|part| fs::remove_file(&path).map(|()| part)) {
                Ok(part) => bytes.extend(part),
                Err(why) => self.tally.divergence(self.lane, &format!("log.{number}: {why}")),
            }
        }
        bytes
    }
}

fn block(client: u64, version: u64) -> Vec<u8> {
    let mut bytes = format!("{client} version {version:10}\n").into_bytes();
    let byte = |at: usize| (at as u64).wrapping_mul(13 + version) as u8;
    bytes.extend((bytes.len()..BLOCK_BYTES).map(byte));
    bytes
}
