//! The output of `sshoal cache`, as text and JSON. All text from outside is escaped.

use std::collections::HashSet;
use std::fmt::Write as _;

use cache::{Cached, Store, store};
use cli::printable;
use control::job::Tally;
use serde::Serialize;

use crate::quantity::{bytes, count};

/// The status of a store.
#[derive(Debug, Serialize)]
pub struct Told {
    /// The directory.
    pub dir: String,
    /// Its size in bytes.
    pub used_bytes: u64,
    /// Maximum size in bytes, as far as this command knows: a mount may have another limit.
    pub limit_bytes: u64,
    /// Size of the largest file that is cached, in bytes.
    pub largest_file_bytes: u64,
    /// Free bytes on its disk.
    pub disk_free_bytes: u64,
    /// Bytes to leave free on its disk.
    pub keep_free_bytes: u64,
    /// Why nothing is written at present, if so.
    pub off: Option<String>,
    /// The pins.
    pub pins: Vec<Pin>,
}

/// A subtree that is protected from eviction.
#[derive(Debug, Serialize)]
pub struct Pin {
    /// The source, by the beginning of its identity.
    pub source: String,
    /// The path in the source, escaped.
    pub path: String,
}

/// A cached content.
#[derive(Debug, Serialize)]
pub struct Content {
    /// Its digest (blake3); `null` for a partial content.
    pub digest: Option<String>,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// The bytes of it that are cached.
    pub present_bytes: u64,
    /// When it was last used, rounded to the hour, in seconds since 1970.
    pub used_secs: i64,
    /// Paths in sources that have or had this content.
    pub places: Vec<Pin>,
}

impl Pin {
    fn of(place: &store::Place) -> Pin {
        // Enough to distinguish the sources of one cache.
        let source = hex::encode(&place.source.as_bytes()[..4]);
        Pin { source, path: base::printable(place.path.as_bytes()) }
    }
}

impl Told {
    /// The status of this store.
    pub fn of(store: &Store) -> Told {
        let status = store.status();
        let mut pins = store.pins();
        // Each pin is stored under both identities of a source.
        let second: HashSet<store::Place> = pins
            .iter()
            .map(|pin| store::Place {
                source: Cached::pinned_source(&pin.source),
                path: pin.path.clone(),
            })
            .collect();
        pins.retain(|pin| !second.contains(pin));
        pins.sort_by(|one, other| one.path.cmp(&other.path));
        Told {
            dir: printable(&status.dir),
            used_bytes: status.used_bytes,
            limit_bytes: status.limit_bytes,
            largest_file_bytes: status.largest_content_bytes,
            disk_free_bytes: status.disk_free_bytes,
            keep_free_bytes: status.keep_free_bytes,
            off: status.off.as_deref().map(printable),
            pins: pins.iter().map(Pin::of).collect(),
        }
    }
}

impl From<store::ContentInfo> for Content {
    fn from(listed: store::ContentInfo) -> Content {
        Content {
            digest: listed.digest.map(|digest| digest.to_hex()),
            size_bytes: listed.size_bytes,
            present_bytes: listed.present_bytes,
            used_secs: listed.used_secs,
            places: listed.files.iter().map(Pin::of).collect(),
        }
    }
}

/// The status in a few lines.
pub fn status(told: &Told) -> String {
    let mut out = format!("{}\n", told.dir);
    let (used, limit) = (bytes(told.used_bytes), bytes(told.limit_bytes));
    let _ = writeln!(out, "  used       {used} (limit {limit})");
    let _ = writeln!(out, "  max file   {}", bytes(told.largest_file_bytes));
    let (free, keep) = (bytes(told.disk_free_bytes), bytes(told.keep_free_bytes));
    let _ = writeln!(out, "  disk       {free} free ({keep} reserved)");
    if let Some(why) = &told.off {
        let _ = writeln!(out, "  writes     off: {why}");
    }
    for pin in &told.pins {
        let path = if pin.path.is_empty() { "all of a source" } else { &pin.path };
        let _ = writeln!(out, "  pinned     {path}");
    }
    out
}

/// One line per content: size, digest and last path.
pub fn contents(contents: &[Content]) -> String {
    let mut out = String::new();
    for content in contents {
        let size = match content.present_bytes == content.size_bytes {
            true => bytes(content.size_bytes),
            false => format!("{} of {}", bytes(content.present_bytes), bytes(content.size_bytes)),
        };
        let digest = content.digest.as_deref().map_or("partial", |digest| &digest[..16]);
        let place = content.places.last().map_or("", |place| &place.path);
        let _ = writeln!(out, "{size:>12}  {digest:<16}  {place}");
    }
    out
}

/// The result of a verification in one or two lines.
pub fn verified(found: &store::VerifyReport) -> String {
    let mut out = format!(
        "checksums match: {} ({})\n",
        count(found.good, "content"),
        bytes(found.good_bytes)
    );
    let damaged = found.damaged + found.damaged_chunks + found.damaged_directories;
    if damaged > 0 {
        let _ = writeln!(
            out,
            "removed as damaged: {}, {} of partial contents, {} of directories",
            count(found.damaged, "content"),
            count(found.damaged_chunks, "chunk"),
            count(found.damaged_directories, "record"),
        );
    }
    out
}

/// The result of a garbage collection.
pub fn cleaned(told: &Told, freed_bytes: u64) -> String {
    format!("freed {}\n{}", bytes(freed_bytes), status(told))
}

/// How much of some files is cached.
pub fn presence(tally: &Tally) -> String {
    let (here, all) = (bytes(tally.present_bytes), bytes(tally.bytes));
    let mut out = format!(
        "{here} of {all} in {} of {} cached\n",
        tally.whole_files,
        count(tally.files, "file")
    );
    if tally.failed > 0 {
        let _ = writeln!(out, "{} could not be checked", tally.failed);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_pins_are_told() {
        let told = Told {
            dir: "/c".into(),
            used_bytes: 5 << 20,
            limit_bytes: 20 << 30,
            largest_file_bytes: 10 << 30,
            disk_free_bytes: 1 << 30,
            keep_free_bytes: 1 << 29,
            off: Some("No space left on device".into()),
            pins: vec![Pin { source: "0a".into(), path: "src".into() }],
        };
        assert_eq!(
            status(&told),
            "/c\n  used       5 MiB (limit 20 GiB)\n  max file   10 GiB\n  \
             disk       1 GiB free (512 MiB reserved)\n  writes     off: No space left on device\n  pinned     src\n"
        );
    }

    #[test]
    fn pins_of_two_sources_are_two() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(cache::StoreConfig::new(dir.path().join("cache"))).unwrap();
        let path = base::RemotePath::root();
        for id in [&b"one"[..], b"other"] {
            let source = cache::SourceId::new(id);
            for source in [Cached::pinned_source(&source), source] {
                store.pin(&source, &path).unwrap();
            }
        }
        let told = Told::of(&store);
        assert_eq!(told.pins.len(), 2);
        assert_ne!(told.pins[0].source, told.pins[1].source);
    }

    #[test]
    fn a_content_is_a_line() {
        let place = Pin { source: "0a".into(), path: "a/b".into() };
        let whole = Content {
            digest: Some("0123456789abcdef0123".into()),
            size_bytes: 1536,
            present_bytes: 1536,
            used_secs: 0,
            places: vec![place],
        };
        let part = Content { digest: None, present_bytes: 1024, places: vec![], ..whole };
        let whole = Content {
            digest: Some("0123456789abcdef0123".into()),
            size_bytes: 1536,
            present_bytes: 1536,
            used_secs: 0,
            places: vec![Pin { source: "0a".into(), path: "a/b".into() }],
        };
        let lines = contents(&[whole, part]);
        assert_eq!(
            lines,
            "     1.5 KiB  0123456789abcdef  a/b\n1 KiB of 1.5 KiB  partial           \n"
        );
    }
}
