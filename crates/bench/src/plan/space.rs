//! Whether there is room for what the works lay out.

use std::io;
use std::path::Path;

use crate::size::Size;
use crate::storage::Storage;
use crate::work::Work;

use super::Refusal;

/// What is left free beside the works' own data: for logs, caches of peers, and whoever else
/// writes there.
const MARGIN_BYTES: u64 = 64 << 20;

/// Checks the scratch directory, and each storage once. Places that are in the scratch directory
/// share its room.
pub(super) fn check<'a>(
    size: &Size,
    works: &[Box<dyn Work>],
    places: impl Iterator<Item = &'a dyn Storage>,
    scratch: &Path,
) -> Result<(), Refusal> {
    let needs: Vec<(u64, u64)> = works.iter().map(|work| work.space(size)).collect();
    let in_place: u64 = needs.iter().map(|need| need.0).sum();
    let locally: u64 = needs.iter().map(|need| need.1).sum();
    let mut in_scratch = locally;
    let mut seen: Vec<&str> = Vec::new();
    for storage in places {
        if seen.contains(&storage.name()) {
            continue;
        }
        seen.push(storage.name());
        if storage.local().is_some_and(|dir| dir.starts_with(scratch)) {
            in_scratch += in_place;
            continue;
        }
        let free = storage.free_bytes().map_err(|failure| Refusal::Unusable {
            name: storage.name().to_owned(),
            why: format!("its free space is not known: {failure}"),
            remedy: None,
        })?;
        require(storage.name().to_owned(), free, in_place)?;
    }
    let free = free_bytes(scratch)
        .map_err(|error| Refusal::Directory { path: scratch.to_owned(), why: error.to_string() })?;
    let parent = scratch.parent().unwrap_or(scratch);
    require(format!("scratch directory {parent:?}"), free, in_scratch)
}

fn require(storage: String, free: u64, needed: u64) -> Result<(), Refusal> {
    let needed = needed.saturating_add(MARGIN_BYTES);
    if free < needed { Err(Refusal::NoSpace { storage, free, needed }) } else { Ok(()) }
}

fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
