//! Sub-trees that are exempt from eviction.
//!
//! A pin is a sealed file, named by the digest of its content. A damaged one is ignored: its
//! sub-tree may be evicted, and nothing else happens.

use std::io;

use base::RemotePath;

use super::layout::Layout;
use crate::codec::{Reader, Writer};
use crate::digest::Digest;
use crate::dir_fd::read_exact_at;
use crate::metadata::SourceId;

const MAGIC: &[u8; 8] = b"sshoalN1";

/// Longest pin file that is read.
const MAX_BYTES: u64 = 64 << 10;

/// A sub-tree of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pin {
    /// The source.
    pub source: SourceId,
    /// The root of the sub-tree, or a single file.
    pub path: RemotePath,
}

impl Pin {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(MAGIC).raw(self.source.as_bytes()).string(self.path.as_bytes());
        writer.seal()
    }

    fn decode(bytes: &[u8]) -> Option<Pin> {
        let mut reader = Reader::sealed(bytes)?;
        if reader.array()? != *MAGIC {
            return None;
        }
        let source = SourceId::from_bytes(reader.array()?);
        let path = RemotePath::parse(reader.string()?).ok()?;
        reader.end(Pin { source, path })
    }

    fn name(&self) -> String {
        Digest::of(&self.encode()).to_hex()
    }

    /// Whether a path is in the sub-tree.
    #[must_use]
    pub fn covers(&self, source: &SourceId, path: &RemotePath) -> bool {
        let (top, path) = (self.path.as_bytes(), path.as_bytes());
        self.source == *source
            && path
                .strip_prefix(top)
                .is_some_and(|rest| top.is_empty() || rest.is_empty() || rest[0] == b'/')
    }

    /// Whether its own name is an entry of this directory.
    #[must_use]
    pub fn is_listed_in(&self, source: &SourceId, dir: &RemotePath) -> bool {
        self.source == *source && self.path.parent().as_ref() == Some(dir)
    }
}

pub(super) fn add(layout: &Layout, pin: &Pin) -> io::Result<()> {
    layout.put(&layout.pins, pin.name().as_bytes(), &pin.encode())
}

/// Removes a pin; returns whether it existed.
pub(super) fn remove(layout: &Layout, pin: &Pin) -> io::Result<bool> {
    match layout.pins.unlink(pin.name().as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn all(layout: &Layout) -> Vec<Pin> {
    let names = layout.pins.names().unwrap_or_default();
    let mut pins: Vec<Pin> =
        names.into_iter().filter_map(|(name, _)| read(layout, &name)).collect();
    pins.sort();
    pins
}

fn read(layout: &Layout, name: &[u8]) -> Option<Pin> {
    let (file, stat) = layout.pins.read_only(name).ok()?;
    let len = stat.st_size as u64;
    if len > MAX_BYTES {
        return None;
    }
    Pin::decode(&read_exact_at(&file, 0, len as usize).ok()??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_covers_its_sub_tree_and_no_name_that_begins_alike() {
        let source = SourceId::new(b"a");
        let path = |text: &str| RemotePath::parse(text.as_bytes()).unwrap();
        let pin = Pin { source, path: path("src/lib") };
        assert!(pin.covers(&source, &path("src/lib")));
        assert!(pin.covers(&source, &path("src/lib/a")));
        assert!(!pin.covers(&source, &path("src/library")));
        assert!(!pin.covers(&source, &path("src")));
        assert!(!pin.covers(&SourceId::new(b"b"), &path("src/lib")));
        assert!(Pin { source, path: path("") }.covers(&source, &path("any")));
        assert_eq!(Pin::decode(&pin.encode()), Some(pin));
    }
}
