//! How far the kernel reads ahead by itself.
//!
//! A mount begins with 128 KiB, and INIT can only make that less. More, only root may ask for, in
//! `/sys/class/bdi`. What is fetched ahead of the kernel's requests is another matter (`vfs`); but
//! the larger those are, the fewer there are to answer.

use std::fs;
use std::path::PathBuf;

use crate::mounts::Mount;

/// What the kernel is to read ahead, in bytes. Measured: a fifth less of our CPU time a byte than
/// with 128 KiB; 1 MiB brings no more. But it is also what a page fault in a mapping reads around
/// itself, which is why it is not more.
const READAHEAD: u32 = 512 << 10;

/// Has the kernel read ahead further in this mount, `wanted` bytes if that was asked for. Where it
/// is not permitted, it stays as it is.
pub fn raise(mount: &Mount, wanted: Option<u32>) {
    let path = PathBuf::from(format!("/sys/class/bdi/{}/read_ahead_kb", mount.device));
    let wanted_kib = wanted.unwrap_or(READAHEAD) >> 10;
    let present = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u32>().ok());
    // Less was agreed on with the kernel already.
    if present.is_none_or(|present| present >= wanted_kib) {
        return;
    }
    if let Err(error) = fs::write(&path, wanted_kib.to_string()) {
        tracing::debug!(%error, "cannot increase the kernel's readahead");
    }
}
