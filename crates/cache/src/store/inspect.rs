//! Listing and verifying the contents of a store, and rebuilding its index.

use std::collections::HashMap;
use std::sync::Arc;

use base::RemotePath;

use super::layout::Layout;
use super::pins::Place;
use super::scan::{self, What};
use super::shared::Shared;
use crate::digest::Digest;
use crate::index::record::Record;
use crate::metadata::{KnownFile, SourceId};
use crate::object::about::Origin;
use crate::object::read_chunk_of;
use crate::partial::files;

/// A content in the store.
#[derive(Clone, Debug)]
pub struct ContentInfo {
    /// Its digest; `None` for a partial content.
    pub digest: Option<Digest>,
    /// Its length.
    pub size_bytes: u64,
    /// Bytes of it in the store.
    pub present_bytes: u64,
    /// Files that have or had it; if there are many, not all of the former ones.
    pub files: Vec<Place>,
    /// When it was last used, with a resolution of an hour; seconds since 1970.
    pub used_secs: i64,
}

/// The result of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct VerifyReport {
    /// Undamaged whole contents.
    pub good: u64,
    /// Their bytes.
    pub good_bytes: u64,
    /// Damaged whole contents, which were removed.
    pub damaged: u64,
    /// Undamaged chunks of partial contents.
    pub good_chunks: u64,
    /// Damaged chunks; they will be fetched again.
    pub damaged_chunks: u64,
    /// Directories with undamaged records.
    pub directories: u64,
    /// Directories with damaged records, which were removed.
    pub damaged_directories: u64,
}

impl VerifyReport {
    /// Whether nothing was damaged.
    pub fn is_clean(&self) -> bool {
        self.damaged == 0 && self.damaged_chunks == 0 && self.damaged_directories == 0
    }
}

impl Shared {
    /// All contents, whole and partial. Long.
    pub fn list(&self) -> Vec<ContentInfo> {
        let layout = self.layout();
        let items = scan::all(&layout);
        let mut recorded = self.recorded(&items);
        let mut listed = |item: scan::Item| match item.what {
            What::Object(digest, size) => {
                let origins = self.about(&digest).map_or(Vec::new(), |about| about.origins);
                let place = |Origin { source, path, .. }| Place { source, path };
                let mut all: Vec<Place> = origins.into_iter().map(place).collect();
                // In the metadata of a content another process may not have written its files yet.
                for place in recorded.remove(&digest).unwrap_or_default() {
                    if !all.contains(&place) {
                        all.push(place);
                    }
                }
                Some(ContentInfo {
                    digest: Some(digest),
                    size_bytes: size,
                    present_bytes: size,
                    files: all,
                    used_secs: item.used_secs,
                })
            }
            What::Partial(key) => {
                let (map, _) = layout.partial.read_only(&files::Names::of(&key).map).ok()?;
                let (subject, _) = files::read_map(&map).ok()??;
                Some(ContentInfo {
                    digest: None,
                    size_bytes: subject.validator.size,
                    present_bytes: self.partial_bytes(&subject),
                    files: vec![Place { source: subject.source, path: subject.path }],
                    used_secs: item.used_secs,
                })
            }
            What::Records(..) => None,
        };
        items.into_iter().filter_map(&mut listed).collect()
    }

    /// The files of each content, from the index.
    fn recorded(&self, items: &[scan::Item]) -> HashMap<Digest, Vec<Place>> {
        let mut recorded: HashMap<Digest, Vec<Place>> = HashMap::new();
        for item in items {
            let What::Records(source, dir) = &item.what else { continue };
            for (path, digest) in self.contents_in(source, dir, |_| true) {
                recorded.entry(digest).or_default().push(Place { source: *source, path });
            }
        }
        recorded
    }

    /// Reads and verifies everything; removes what is damaged. `progress` is called with the size
    /// of each item. Long.
    pub fn verify(self: &Arc<Shared>, mut progress: impl FnMut(u64)) -> VerifyReport {
        let layout = self.layout();
        let mut report = VerifyReport::default();
        for item in scan::all(&layout) {
            match item.what {
                What::Object(digest, size) => match self.verify_object(&digest) {
                    Some(true) => {
                        report.good += 1;
                        report.good_bytes += size;
                    }
                    Some(false) => report.damaged += 1,
                    None => {}
                },
                What::Partial(key) => verify_partial(&layout, &key, &mut report),
                What::Records(source, path) => match self.verify_records(&source, &path) {
                    true => report.directories += 1,
                    false => report.damaged_directories += 1,
                },
            }
            progress(item.bytes);
        }
        report
    }

    /// Compares a content with its name, and its chunks with their checksums. `None` if it was
    /// removed meanwhile, or has no metadata: two processes have left it, one removing and one
    /// writing, and no reader gets it.
    fn verify_object(self: &Arc<Shared>, digest: &Digest) -> Option<bool> {
        self.object_bytes(digest)?;
        let before = self.damaged_so_far();
        let Some(object) = self.object(digest) else {
            let is_damaged = self.damaged_so_far() > before && self.object_bytes(digest).is_none();
            return is_damaged.then_some(false);
        };
        let mut hasher = blake3::Hasher::new();
        let report = object.verify_with(|bytes| {
            hasher.update(bytes);
        });
        if report.is_err() {
            return Some(false);
        }
        let same = hasher.finalize().as_bytes() == digest.as_bytes();
        if !same {
            object.remove_damaged();
        }
        Some(same)
    }

    fn verify_records(&self, source: &SourceId, path: &RemotePath) -> bool {
        let before = self.damaged_so_far();
        // A look-up reads the whole file, unless it is in memory and unchanged.
        let _ = self.directory(source, path);
        self.damaged_so_far() == before
    }

    fn damaged_so_far(&self) -> u64 {
        self.counters.damaged.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Rebuilds the index from the metadata of the contents. It lacks listings and links, which are
    /// requested when needed.
    pub(super) fn rebuild_index(self: &Arc<Shared>) -> u64 {
        let mut objects = Vec::new();
        scan::objects(&self.layout(), &mut objects);
        let mut latest: HashMap<(SourceId, RemotePath), KnownFile> = HashMap::new();
        for item in objects {
            let What::Object(digest, _) = item.what else { continue };
            let origins = self.about(&digest).map_or(Vec::new(), |about| about.origins);
            for Origin { source, path, attr, fetched_at } in origins {
                let known = KnownFile { attr, digest, racy: false, fetched_at };
                let place = latest.entry((source, path)).or_insert(known);
                if place.fetched_at < fetched_at {
                    *place = known;
                }
            }
        }
        for ((source, path), known) in &latest {
            self.record_name(source, path, |name| Record::File(name, *known));
        }
        latest.len() as u64
    }
}

fn verify_partial(layout: &Layout, key: &[u8; 32], report: &mut VerifyReport) {
    let names = files::Names::of(key);
    let opened = layout
        .partial
        .read_only(&names.data)
        .and_then(|(data, _)| Ok((data, layout.partial.read_only(&names.map)?.0)));
    let Ok((data, map)) = opened else { return };
    let Ok(Some((subject, entries))) = files::read_map(&map) else {
        report.damaged_chunks += 1;
        return;
    };
    for (chunk, sum) in entries.into_iter().collect::<HashMap<_, _>>() {
        let bytes = read_chunk_of(&data, chunk, subject.validator.size);
        if bytes.is_some_and(|bytes| crate::codec::checksum_at(&bytes, chunk) == sum) {
            report.good_chunks += 1;
        } else {
            report.damaged_chunks += 1;
        }
    }
}
