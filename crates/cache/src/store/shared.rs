//! The state that all handles of a store in this process share: directories, quota, counters.
//!
//! Locks are held for a few instructions, except for those of the file `usage` and of the
//! reservation, under which a few system calls are made. Nothing here waits for the network.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use base::Mutex;

use rustix::fs::StatVfs;

use super::deferred::DeferredWork;
use super::layout::Layout;
use super::quota::{self, Bounds, FreeSpace, Health, Usage};
use super::{StoreConfig, StoreError};
use crate::index::Memory;
use crate::object::{KnownDigests, LARGEST_BYTES, Verified};
use crate::partial::Registry;

/// Space that a process reserves beyond its needs, so that it does not lock the file `usage` for
/// each small file; at most 1/64 of the store. The reservation of a killed process is corrected by
/// the next scan.
const RESERVE_AHEAD_BYTES: u64 = 1 << 20;

/// Memory that is taken, of a bound that several users share.
#[derive(Debug, Default)]
pub(crate) struct Budget(AtomicU64);

impl Budget {
    /// Takes `amount`, unless more than `bound` is taken then. Returns whether it did.
    pub(crate) fn take(&self, amount: u64, bound: u64) -> bool {
        let fits = self.0.fetch_add(amount, Ordering::Relaxed) + amount <= bound;
        if !fits {
            self.give_back(amount);
        }
        fits
    }

    pub(crate) fn give_back(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }
}

/// Counters of this process.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) damaged: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
    /// Fetches of contents that are larger than the bound.
    pub(crate) too_large: AtomicU64,
    /// Bytes of incomplete chunks in memory, of all partial contents.
    pub(crate) fragment_bytes: Budget,
    /// Bytes of small contents that open objects keep in memory.
    pub(crate) held_bytes: Budget,
    /// Bytes of block checksums in memory.
    pub(crate) sums_bytes: Budget,
}

/// How often space is taken from the reservation before the disk is checked again: other processes
/// write to it, and files take more than their bytes.
const RESERVATION_USES: u32 = 16;

/// Space that is reserved for the next writes of this process.
#[derive(Default)]
struct Reservation {
    bytes: u64,
    uses: u32,
}

/// The state of an open store. Its public functions are those of a [`Store`](super::Store).
pub struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) digests: bool,
    bounds: Mutex<Bounds>,
    pub(crate) health: Health,
    pub(crate) counters: Counters,
    pub(crate) memory: Memory,
    pub(crate) known_digests: KnownDigests,
    pub(crate) verified: Verified,
    pub(crate) partials: Registry,
    pub(crate) deferred: DeferredWork,
    /// The housekeeping is running in this process.
    pub(crate) housekeeping: AtomicBool,
    /// When it may run again, after it has removed nothing.
    pub(crate) paused_until: Mutex<Option<Instant>>,
    layout: Mutex<Arc<Layout>>,
    usage: Mutex<Option<File>>,
    /// The size bound, as of the last reservation.
    limit_bytes: AtomicU64,
    reservation: Mutex<Reservation>,
}

impl Shared {
    pub(crate) fn open(config: StoreConfig) -> Result<Shared, StoreError> {
        let layout = Layout::open(&config.dir)?;
        let bounds = Bounds { size: config.size_bytes, free: config.free_bytes };
        let limit_bytes = layout.disk().map_or(0, |disk| bounds.size_bytes(&disk));
        Ok(Shared {
            digests: config.digests,
            bounds: Mutex::new(bounds),
            health: Health::default(),
            counters: Counters::default(),
            memory: Memory::new(config.memory_bytes),
            known_digests: KnownDigests::default(),
            verified: Verified::default(),
            partials: Registry::default(),
            deferred: DeferredWork::default(),
            housekeeping: AtomicBool::new(false),
            paused_until: Mutex::new(None),
            layout: Mutex::new(Arc::new(layout)),
            usage: Mutex::new(None),
            limit_bytes: AtomicU64::new(limit_bytes),
            reservation: Mutex::default(),
            dir: config.dir,
        })
    }

    /// The bounds of the store.
    pub(crate) fn current_bounds(&self) -> Bounds {
        *self.bounds.lock()
    }

    /// Changes the bounds of the store for this process.
    pub(crate) fn change_bounds(&self, bounds: Bounds) {
        *self.bounds.lock() = bounds;
    }

    /// The open directories.
    pub(crate) fn layout(&self) -> Arc<Layout> {
        self.layout.lock().clone()
    }

    /// Whether records may be written, for which no space is reserved. After the pause that follows
    /// a failure, the directories are opened again, since they may have been removed.
    pub(crate) fn may_write(&self) -> bool {
        if !self.health.is_on() {
            return false;
        }
        if self.health.resumes() {
            self.reopen();
        }
        true
    }

    fn reopen(&self) {
        if !self.layout().is_gone() {
            return;
        }
        match Layout::open(&self.dir) {
            Ok(layout) => {
                *self.layout.lock() = Arc::new(layout);
                *self.usage.lock() = None;
            }
            Err(error) => self.health.failed("opening it", &std::io::Error::other(error)),
        }
    }

    /// Changes the number of bytes that the store takes; `None` if that failed.
    pub(crate) fn change_usage(&self, change: impl FnOnce(Usage) -> Usage) -> Option<Usage> {
        let mut file = self.usage.lock();
        // A user may have removed it. Then other processes use a new one.
        let has_name = |file: &File| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink > 0);
        if !file.as_ref().is_some_and(has_name) {
            match self.layout().root.ensure(b"usage") {
                Ok((opened, _)) => *file = Some(opened),
                Err(error) => {
                    drop(file);
                    self.health.failed("opening the file usage", &error);
                    return None;
                }
            }
        }
        match quota::change(file.as_ref()?, change) {
            Ok(usage) => usage,
            Err(error) => {
                drop(file);
                self.health.failed("writing the file usage", &error);
                None
            }
        }
    }

    /// The number of bytes that the store takes.
    pub(crate) fn usage(&self) -> Usage {
        self.change_usage(|usage| usage).unwrap_or_default()
    }

    /// Reserves `bytes`, if the bounds allow it; starts the housekeeping near the bounds. Unused
    /// space is given back by [`Shared::release`].
    pub(crate) fn reserve(self: &Arc<Shared>, bytes: u64) -> bool {
        if !self.may_write() {
            return false;
        }
        let mut reservation = self.reservation.lock();
        if reservation.bytes >= bytes && reservation.uses < RESERVATION_USES {
            // The disk had space for all of it a moment ago.
            reservation.bytes -= bytes;
            reservation.uses += 1;
            return true;
        }
        let Ok(disk) = self.layout().disk() else { return false };
        reservation.uses = 0;
        if reservation.bytes >= bytes
            && FreeSpace::on(&disk).fits(bytes, self.current_bounds().free_bytes(&disk))
        {
            reservation.bytes -= bytes;
            return true;
        }
        let step = RESERVE_AHEAD_BYTES.min(self.limit_bytes.load(Ordering::Relaxed) / 64);
        let (mut fits, mut near) = self.reserve_in_file(&disk, bytes + step);
        if fits {
            reservation.bytes += step;
        }
        drop(reservation);
        if !fits {
            (fits, near) = self.reserve_in_file(&disk, bytes);
        }
        if near {
            self.start_housekeeping();
        }
        fits
    }

    /// Reserves a few bytes, which are not worth a clean-up.
    pub(crate) fn reserve_quietly(&self, bytes: u64) -> bool {
        let Ok(disk) = self.layout().disk() else { return false };
        if !FreeSpace::on(&disk).fits(bytes, self.current_bounds().free_bytes(&disk)) {
            return false;
        }
        let mut reservation = self.reservation.lock();
        if reservation.bytes >= bytes {
            reservation.bytes -= bytes;
            return true;
        }
        drop(reservation);
        self.reserve_in_file(&disk, bytes).0
    }

    /// Reserves space in the file `usage`. Returns whether there was enough, and whether a clean-up
    /// is due.
    fn reserve_in_file(&self, disk: &StatVfs, bytes: u64) -> (bool, bool) {
        let limit = self.current_bounds().size_bytes(disk);
        self.limit_bytes.store(limit, Ordering::Relaxed);
        let fits_disk = FreeSpace::on(disk).fits(bytes, self.current_bounds().free_bytes(disk));
        let mut fits_limit = false;
        let usage = self.change_usage(|usage| {
            fits_limit = usage.bytes.saturating_add(bytes) <= limit;
            let taken = if fits_limit && fits_disk { bytes } else { 0 };
            Usage { bytes: usage.bytes + taken, ..usage }
        });
        // The bytes of a new file are not those in the store before a scan.
        let near = usage.is_some_and(|usage| {
            usage.bytes > limit / 20 * 19 || !fits_limit || usage.scanned_secs == 0
        });
        (fits_limit && fits_disk, near || !fits_disk)
    }

    /// Bytes that are reserved and not used.
    pub(crate) fn unused_bytes(&self) -> u64 {
        self.reservation.lock().bytes
    }

    /// Gives back the unused reservation.
    pub(crate) fn release_reservation(&self) {
        let bytes = std::mem::take(&mut *self.reservation.lock()).bytes;
        if bytes > 0 {
            self.release(bytes);
        }
    }

    /// Gives space back.
    pub(crate) fn release(&self, bytes: u64) {
        self.change_usage(|usage| Usage { bytes: usage.bytes.saturating_sub(bytes), ..usage });
    }

    /// Largest content that is kept: half of the store, within the bound of the format. A larger one
    /// would evict all others, and the next of its kind would evict it.
    pub(crate) fn largest_content_bytes(&self) -> u64 {
        (self.limit_bytes.load(Ordering::Relaxed) / 2).min(LARGEST_BYTES)
    }

    /// Whether a content of this size is kept at all. The user is told the first time that one is
    /// not.
    pub(crate) fn fits_at_all(&self, bytes: u64) -> bool {
        let largest = self.largest_content_bytes();
        if bytes <= largest {
            return true;
        }
        if self.counters.too_large.fetch_add(1, Ordering::Relaxed) == 0 {
            let (unit_bytes, unit) = unit_for(largest);
            let bytes = format!("{} {unit}", bytes.div_ceil(unit_bytes));
            let largest = format!("{} {unit}", largest / unit_bytes);
            tracing::warn!(
                "a file of {bytes} is not kept in the cache, which keeps files of up to {largest}, \
                 half of its size and at most 2 TiB; a larger cache_size= keeps larger ones"
            );
        }
        false
    }

    /// Counts and logs damage.
    pub(crate) fn damaged(&self, what: &str) {
        self.counters.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::info!("the cache has removed a damaged {what}");
    }
}

/// The unit in which a size has at least two digits.
fn unit_for(bytes: u64) -> (u64, &'static str) {
    if bytes < 10 << 20 { (1 << 10, "KiB") } else { (1 << 20, "MiB") }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.write_notes();
        self.release_reservation();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_not_shown_as_0() {
        for (bytes, shown) in [(1 << 19, (512, "KiB")), (10 << 30, (10 << 10, "MiB"))] {
            let (unit_bytes, unit) = unit_for(bytes);
            assert_eq!((bytes / unit_bytes, unit), shown);
        }
    }
}
