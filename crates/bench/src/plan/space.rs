//! Whether there is room for what the works lay out.

use std::io;
use std::path::Path;

use crate::place::Place;
use crate::size::Size;
use crate::work::Work;

use super::Refusal;

/// What is left free beside the works' own data: for logs, caches of peers, and whoever else
/// writes there.
const MARGIN_BYTES: u64 = 64 << 20;

/// Checks the scratch directory, and each place once. Places that are in the scratch directory
/// share its room.
pub(super) fn check<'a>(
    size: &Size,
    works: &[Box<dyn Work>],
    places: impl Iterator<Item = &'a dyn Place>,
    scratch: &Path,
) -> Result<(), Refusal> {
    let needs: Vec<(u64, u64)> = works.iter().map(|work| work.space(size)).collect();
    let in_place: u64 = needs.iter().map(|need| need.0).sum();
    let locally: u64 = needs.iter().map(|need| need.1).sum();
    let mut in_scratch = locally;
    let mut seen: Vec<&str> = Vec::new();
    for place in places {
        if seen.contains(&place.name()) {
            continue;
        }
        seen.push(place.name());
        if place.local().is_some_and(|dir| dir.starts_with(scratch)) {
            in_scratch += in_place;
            continue;
        }
        let free = place.free_bytes().map_err(|failure| Refusal::Unusable {
            name: place.name().to_owned(),
            why: format!("its free space is not known: {failure}"),
            remedy: None,
        })?;
        require(place.name().to_owned(), free, in_place)?;
    }
    let free = free_bytes(scratch)
        .map_err(|error| Refusal::Directory { path: scratch.to_owned(), why: error.to_string() })?;
    let parent = scratch.parent().unwrap_or(scratch);
    require(format!("scratch directory {parent:?}"), free, in_scratch)
}

fn require(place: String, free: u64, needed: u64) -> Result<(), Refusal> {
    let needed = needed.saturating_add(MARGIN_BYTES);
    if free < needed { Err(Refusal::NoSpace { place, free, needed }) } else { Ok(()) }
}

fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
