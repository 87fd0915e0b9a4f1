//! The kernel's own readahead.
//!
//! A mount starts with 128 KiB, and INIT can only reduce it. Only root can increase it, in
//! `/sys/class/bdi`. The readahead of `vfs` is independent of it; but larger requests of the kernel mean
//! fewer to answer.

use std::fs;
use std::path::PathBuf;

use crate::mounts::Mount;

/// The kernel's readahead in bytes. Measured: a fifth less CPU time per byte than with 128 KiB; 1 MiB
/// gains no more. It is not larger because a page fault in a mapping also reads this much.
const READAHEAD: u32 = 512 << 10;

/// Increases the kernel's readahead of this mount, to `wanted` bytes if set. Without permission it stays
/// unchanged.
pub fn raise(mount: &Mount, wanted: Option<u32>) {
    let path = PathBuf::from(format!("/sys/class/bdi/{}/read_ahead_kb", mount.device));
    let wanted_kib = wanted.unwrap_or(READAHEAD) >> 10;
    let present = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u32>().ok());
    // INIT has already set a smaller value.
    if present.is_none_or(|present| present >= wanted_kib) {
        return;
    }
    if let Err(error) = fs::write(&path, wanted_kib.to_string()) {
        tracing::debug!(%error, "cannot increase the kernel's readahead");
    }
}
