//! What all handles of a store in this process share: directories, room, counters.
//!
//! Locks here are held for a few instructions, except for those of the file `usage` and of the stock
//! of room, under which a few system calls are made. Nothing here waits for the network.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::fs::StatVfs;

use super::deferred::DeferredWork;
use super::layout::Layout;
use super::quota::{self, Bounds, FreeSpace, Health, Usage};
use super::{StoreConfig, StoreError};
use crate::index::Memory;
use crate::object::{KnownDigests, Verified};
use crate::partial::Registry;

/// Room that a process reserves beyond what it needs, so that it does not lock the file `usage` for
/// each small file; at most 1/64 of the store. What a killed process had is found by the next scan.
const RESERVE_AHEAD_BYTES: u64 = 1 << 20;

/// Events of this process, counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) record_hits: AtomicU64,
    pub(crate) record_misses: AtomicU64,
    pub(crate) object_hits: AtomicU64,
    pub(crate) object_misses: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
    /// Fetches of contents that are larger than what is kept.
    pub(crate) too_large: AtomicU64,
    /// Bytes that wait in memory until their chunk is whole, of all partial contents.
    pub(crate) fragment_bytes: AtomicU64,
    /// Bytes of small contents that open objects keep in memory.
    pub(crate) held_bytes: AtomicU64,
    /// Bytes that checksums of blocks take in memory.
    pub(crate) sums_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, number: u64) {
        counter.fetch_add(number, Ordering::Relaxed);
    }
}

/// How often room is taken from the stock until the disk is looked at again: others write to it,
/// and files take more than their bytes.
const RESERVATION_USES: u32 = 16;

/// Room that is reserved for what this process writes next.
#[derive(Default)]
struct Reservation {
    bytes: u64,
    uses: u32,
}

/// The state of an open store.
pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) digests: bool,
    pub(crate) aliases: bool,
    pub(crate) bounds: Bounds,
    pub(crate) health: Health,
    pub(crate) counters: Counters,
    pub(crate) memory: Memory,
    pub(crate) known_digests: KnownDigests,
    pub(crate) verified: Verified,
    pub(crate) partials: Registry,
    pub(crate) deferred: DeferredWork,
    /// The housekeeping is at work, in this process.
    pub(crate) housekeeping: AtomicBool,
    /// When it may begin again, after it has found nothing to do.
    pub(crate) paused_until: Mutex<Option<Instant>>,
    layout: Mutex<Arc<Layout>>,
    usage: Mutex<Option<File>>,
    /// What the bounds allow, as it was when room was last reserved.
    limit_bytes: AtomicU64,
    reservation: Mutex<Reservation>,
}

impl Shared {
    pub(crate) fn open(config: StoreConfig) -> Result<Shared, StoreError> {
        let layout = Layout::open(&config.dir)?;
        let bounds = Bounds::new(config.size_bytes, config.free_bytes);
        let limit_bytes = layout.disk().map_or(0, |disk| bounds.size_bytes(&disk));
        Ok(Shared {
            digests: config.digests || config.aliases,
            aliases: config.aliases,
            bounds,
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

    /// The directories as they are open now.
    pub(crate) fn layout(&self) -> Arc<Layout> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether something may be written, with no room reserved for it: records, mostly. After a
    /// pause that a failure brought, the directories are opened anew, since somebody may have
    /// removed them.
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
                *self.layout.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(layout);
                *self.usage_file() = None;
            }
            Err(error) => self.health.failed("opening it", &std::io::Error::other(error)),
        }
    }

    fn usage_file(&self) -> MutexGuard<'_, Option<File>> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the number of bytes that the store takes; `None` when that was not possible.
    pub(crate) fn change_usage(&self, change: impl FnOnce(Usage) -> Usage) -> Option<Usage> {
        let mut file = self.usage_file();
        if file.is_none() {
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

    /// Takes room for `bytes` more, if the bounds leave it; calls the housekeeping when they are
    /// near. What is not written after all goes back by [`Shared::release`].
    pub(crate) fn reserve(self: &Arc<Shared>, bytes: u64) -> bool {
        if !self.may_write() {
            return false;
        }
        let mut reservation = self.reservation();
        if reservation.bytes >= bytes && reservation.uses < RESERVATION_USES {
            // The disk had room for all of it a moment ago.
            reservation.bytes -= bytes;
            reservation.uses += 1;
            return true;
        }
        let Ok(disk) = self.layout().disk() else { return false };
        reservation.uses = 0;
        if reservation.bytes >= bytes
            && FreeSpace::on(&disk).fits(bytes, self.bounds.free_bytes(&disk))
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

    /// As [`Shared::reserve`], for a little that is worth no clean-up.
    pub(crate) fn reserve_quietly(&self, bytes: u64) -> bool {
        let Ok(disk) = self.layout().disk() else { return false };
        if !FreeSpace::on(&disk).fits(bytes, self.bounds.free_bytes(&disk)) {
            return false;
        }
        let mut reservation = self.reservation();
        if reservation.bytes >= bytes {
            reservation.bytes -= bytes;
            return true;
        }
        drop(reservation);
        self.reserve_in_file(&disk, bytes).0
    }

    /// Whether there is room, which is taken then; and whether a clean-up is due.
    fn reserve_in_file(&self, disk: &StatVfs, bytes: u64) -> (bool, bool) {
        let limit = self.bounds.size_bytes(disk);
        self.limit_bytes.store(limit, Ordering::Relaxed);
        let fits_disk = FreeSpace::on(disk).fits(bytes, self.bounds.free_bytes(disk));
        let mut fits_limit = false;
        let usage = self.change_usage(|usage| {
            fits_limit = usage.bytes.saturating_add(bytes) <= limit;
            let taken = if fits_limit && fits_disk { bytes } else { 0 };
            Usage { bytes: usage.bytes + taken, ..usage }
        });
        let near = usage.is_some_and(|usage| usage.bytes > limit / 20 * 19 || !fits_limit);
        (fits_limit && fits_disk, near || !fits_disk)
    }

    fn reservation(&self) -> MutexGuard<'_, Reservation> {
        self.reservation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of room that were reserved, and not asked for yet.
    pub(crate) fn unused_bytes(&self) -> u64 {
        self.reservation().bytes
    }

    /// Gives back the room that nobody has asked for yet.
    pub(crate) fn release_reservation(&self) {
        let bytes = std::mem::take(&mut *self.reservation()).bytes;
        if bytes > 0 {
            self.release(bytes);
        }
    }

    /// Gives room back.
    pub(crate) fn release(&self, bytes: u64) {
        self.change_usage(|usage| Usage { bytes: usage.bytes.saturating_sub(bytes), ..usage });
    }

    /// Largest content that is kept: half of the store. A larger one would drive out all others
    /// and still not fit beside the next of its kind.
    pub(crate) fn largest_content_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed) / 2
    }

    /// Whether a content of so many bytes is kept at all. The first time that one is not, the user
    /// is told.
    pub(crate) fn fits_at_all(&self, bytes: u64) -> bool {
        let largest = self.largest_content_bytes();
        if bytes <= largest {
            return true;
        }
        if self.counters.too_large.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "a file of {} MiB is not kept in the cache, which keeps files of up to {} MiB, half \
                 of its size; a larger cache_size= keeps it",
                bytes.div_ceil(1 << 20),
                largest >> 20
            );
        }
        false
    }

    /// Damage was found.
    pub(crate) fn damaged(&self, what: &str) {
        Counters::add(&self.counters.damaged, 1);
        tracing::info!("the cache has thrown away a damaged {what}");
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.write_notes();
        self.release_reservation();
    }
}
