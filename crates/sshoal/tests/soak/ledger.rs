//! Files that live over many kills: what was acknowledged of them is there at the end.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use testkit::dice::Dice;

use crate::tally::Tally;

/// Longest write, in bytes: more than one request takes.
const MOST_BYTES: u64 = 300_000;

/// A volume that has so many bytes is full.
const VOLUME_BYTES: u64 = 1 << 20;

/// Volumes that are kept.
const VOLUMES: usize = 16;

/// Does a call of a lane. An error names it.
fn call<T>(
    (tally, lane): (&Tally, &str),
    what: &str,
    act: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    tally.call(lane, what, act).map_err(named)
}

/// A file, and how much of it was acknowledged.
struct Volume {
    name: String,
    key: u64,
    acknowledged: u64,
    /// How far it may reach: what was written last, and not acknowledged.
    most: u64,
}

/// See the [module](self).
pub struct Ledger<'a> {
    lane: &'static str,
    tally: &'a Tally,
    name: String,
    dice: Dice,
    volumes: VecDeque<Volume>,
    begun: u64,
}

/// The bytes of a volume: what is shifted or of another volume is noticed.
fn content(key: u64, range: std::ops::Range<u64>) -> Vec<u8> {
    let byte = |at: u64| ((at.wrapping_mul(31) ^ (at >> 8) ^ key.wrapping_mul(at >> 3)) as u8) | 1;
    range.map(byte).collect()
}

impl<'a> Ledger<'a> {
    pub fn new(lane: &'static str, tally: &'a Tally, name: &str, dice: Dice) -> Ledger<'a> {
        let name = name.to_owned();
        Ledger { lane, tally, name, dice, volumes: VecDeque::new(), begun: 0 }
    }

    /// Writes some more and has it acknowledged, by `fsync` or `close`.
    pub fn write(&mut self, mount: &Path) -> io::Result<()> {
        if self.volumes.back().is_none_or(|volume| volume.acknowledged >= VOLUME_BYTES) {
            self.begin(mount)?;
        }
        let of = (self.tally, self.lane);
        let volume = self.volumes.back_mut().unwrap();
        let path = mount.join(&volume.name);
        let file = call(of, "open", || File::options().write(true).open(path))?;
        let mut end = volume.acknowledged;
        if volume.most > end {
            // What a kill has left of the last write.
            call(of, "ftruncate", || file.set_len(end))?;
        }
        for _ in 0..self.dice.below(6) {
            let most = if self.dice.chance(80) { 4_000 } else { MOST_BYTES };
            let bytes = content(volume.key, end..end + 1 + self.dice.below(most));
            volume.most = volume.most.max(end + bytes.len() as u64);
            call(of, "pwrite", || file.write_all_at(&bytes, end))?;
            end += bytes.len() as u64;
            if self.dice.chance(50) {
                call(of, "fsync", || file.sync_all())?;
                volume.acknowledged = end;
            }
        }
        call(of, "close", || close(file))?;
        (volume.acknowledged, volume.most) = (end, end);
        Ok(())
    }

    fn begin(&mut self, mount: &Path) -> io::Result<()> {
        let of = (self.tally, self.lane);
        if self.volumes.len() == VOLUMES {
            let oldest = self.volumes.pop_front().unwrap();
            match call(of, "unlink", || fs::remove_file(mount.join(&oldest.name))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let name = format!("{}-{}", self.name, self.begun);
        self.begun += 1;
        let file = call(of, "create", || File::create_new(mount.join(&name)))?;
        call(of, "close", || close(file))?;
        let key = self.dice.any();
        self.volumes.push_back(Volume { name, key, acknowledged: 0, most: 0 });
        Ok(())
    }

    /// Compares what is there with what must be: all volumes, or only the last one. What comes
    /// after the acknowledged part is taken for acknowledged from now on, where it is right.
    pub fn inspect(&mut self, when: &str, dir: &Path, all: bool, is_killed: &dyn Fn() -> bool) {
        let first = if all { 0 } else { self.volumes.len().saturating_sub(1) };
        for volume in self.volumes.iter_mut().skip(first) {
            let found =
                match self.tally.call(self.lane, "read", || fs::read(dir.join(&volume.name))) {
                    Ok(_) | Err(_) if is_killed() => return,
                    Ok(found) => found,
                    Err(why) => {
                        self.tally.lost_bytes.add(volume.acknowledged);
                        let text = format!("{when}, ledger {}: {why}", volume.name);
                        self.tally.divergence(self.lane, &text);
                        continue;
                    }
                };
            let size = found.len() as u64;
            let expected = content(volume.key, 0..size);
            let wrong = |from: usize, to: usize| {
                let pairs = found[from..to].iter().zip(&expected[from..to]);
                pairs
                    .enumerate()
                    .filter(|(_, (one, other))| one != other)
                    .map(move |it| from + it.0)
            };
            let bound = size.min(volume.acknowledged) as usize;
            let lost = (volume.acknowledged - bound as u64) + wrong(0, bound).count() as u64;
            // Holes are what a lost write leaves before one that has arrived.
            let strange = wrong(bound, found.len()).filter(|at| found[*at] != 0).count() as u64;
            if lost > 0 || strange > 0 || size > volume.most {
                self.tally.lost_bytes.add(lost);
                let Volume { name, acknowledged, most, .. } = volume;
                let text = format!(
                    "{when}, ledger {name}: {lost} of {acknowledged} acknowledged bytes are lost, \
                     {strange} are strange, size {size} of {most} at most, first at {:?}",
                    wrong(0, found.len()).next()
                );
                self.tally.divergence(self.lane, &text);
                volume.acknowledged = bound as u64;
            }
        }
    }

    /// Takes the last byte of the acknowledged part away, behind the mount's back.
    pub fn damage(&self, served: &Path) {
        let Some(volume) = self.volumes.back().filter(|volume| volume.acknowledged > 0) else {
            return;
        };
        let file = File::options().write(true).open(served.join(&volume.name)).unwrap();
        file.set_len(volume.acknowledged - 1).unwrap();
    }
}

/// close(2) with its result, which [`File`] does not give.
#[allow(unsafe_code, reason = "there is no safe interface to the result of close")]
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor was `file`'s, which has given it away, so it is closed once.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
