//! Sub-trees that are exempt from eviction.
//!
//! A pin is a sealed file, named by the digest of its content. A damaged one is ignored: its
//! sub-tree may be evicted, and nothing else happens.

use std::io;

use base::RemotePath;

use super::StoreError;
use super::shared::Shared;
use crate::codec::{Reader, Writer};
use crate::digest::Digest;
use crate::metadata::SourceId;

const MAGIC: &[u8; 8] = b"sshoalN1";

/// Longest pin file that is read.
const MAX_BYTES: u64 = 64 << 10;

/// A file of a source, or a sub-tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The source.
    pub source: SourceId,
    /// The path in it.
    pub path: RemotePath,
}

impl Place {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(MAGIC).raw(self.source.as_bytes()).string(self.path.as_bytes());
        writer.seal()
    }

    fn decode(bytes: &[u8]) -> Option<Place> {
        let mut reader = Reader::sealed(bytes)?;
        if reader.array()? != *MAGIC {
            return None;
        }
        let source = SourceId::from_bytes(reader.array()?);
        let path = RemotePath::parse(reader.string()?).ok()?;
        reader.end(Place { source, path })
    }

    fn name(&self) -> String {
        Digest::of(&self.encode()).to_hex()
    }

    /// Whether a path is in the sub-tree.
    pub fn covers(&self, source: &SourceId, path: &RemotePath) -> bool {
        let (top, path) = (self.path.as_bytes(), path.as_bytes());
        self.source == *source
            && path
                .strip_prefix(top)
                .is_some_and(|rest| top.is_empty() || rest.is_empty() || rest[0] == b'/')
    }

    /// Whether its own name is an entry of this directory.
    pub fn is_listed_in(&self, source: &SourceId, dir: &RemotePath) -> bool {
        self.source == *source && self.path.parent().as_ref() == Some(dir)
    }
}

impl Shared {
    /// Protects a sub-tree from eviction: its present contents, and later ones.
    pub fn pin(&self, source: &SourceId, path: &RemotePath) -> Result<(), StoreError> {
        let pin = Place { source: *source, path: path.clone() };
        let layout = self.layout();
        let written = layout.put(&layout.pins, pin.name().as_bytes(), &pin.encode());
        written.map_err(|error| StoreError::io(&self.dir, "writing a pin", error))
    }

    /// Removes a pin; returns whether it existed.
    pub fn unpin(&self, source: &SourceId, path: &RemotePath) -> Result<bool, StoreError> {
        let pin = Place { source: *source, path: path.clone() };
        match self.layout().pins.unlink(pin.name().as_bytes()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(StoreError::io(&self.dir, "removing a pin", error)),
        }
    }

    /// All pins, in order.
    pub fn pins(&self) -> Vec<Place> {
        let layout = self.layout();
        let names = layout.pins.names().unwrap_or_default();
        let read = |name: &[u8]| Place::decode(&layout.pins.read_whole(name, MAX_BYTES).ok()??);
        let mut pins: Vec<Place> = names.into_iter().filter_map(|(name, _)| read(&name)).collect();
        pins.sort();
        pins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_covers_its_sub_tree_and_no_name_that_begins_alike() {
        let source = SourceId::new(b"a");
        let path = |text: &str| RemotePath::parse(text.as_bytes()).unwrap();
        let pin = Place { source, path: path("src/lib") };
        assert!(pin.covers(&source, &path("src/lib")));
        assert!(pin.covers(&source, &path("src/lib/a")));
        assert!(!pin.covers(&source, &path("src/library")));
        assert!(!pin.covers(&source, &path("src")));
        assert!(!pin.covers(&SourceId::new(b"b"), &path("src/lib")));
        assert!(Place { source, path: path("") }.covers(&source, &path("any")));
        assert_eq!(Place::decode(&pin.encode()), Some(pin));
    }
}
